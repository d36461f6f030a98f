package kernel

import (
	"fmt"
	"math"
	"unsafe"

	"llmrun/internal/num"
)

// What multiplies int8 by int8. The sums are exact, so they have no order and need no lanes for their bits; only what is made of them does.

// wholeInt8 is how many columns the kernels take at a time. The others are left to plain Go.
const wholeInt8 = 16

// int8Funcs are the inner loops. k is a multiple of 16, and n of magnitude, quantize and rescale one of 8.
type int8Funcs struct {
	rows func(w *byte, near, far int, x *int8, k int, sum *int32, skip, n int) // as dotRowsFunc
	// magnitude gives the largest |x| of each of 8 lanes, or an infinity, or some NaN.
	magnitude func(x *float32, n int, lanes *float32)
	quantize  func(q *int8, x *float32, a float32, n int)                              // x·a to the nearest integer, ties to even; |x·a| < 128
	rescale   func(out *float32, sum *int32, divisor *float32, inverse float32, n int) // (float32(sum)·inverse) / divisor
}

// Quantized is rows of int8, each a row of floats times a factor of its own.
type Quantized struct {
	Data    []int8
	Stride  int       // from row to row
	Inverse []float32 // 1/factor, or NaN for a row that is not finite
}

// From is q without its first rows.
func (q Quantized) From(row int) Quantized {
	return Quantized{q.Data[row*q.Stride:], q.Stride, q.Inverse[row:]}
}

// Quantize turns row x into row r of q, which has room for it.
func (s *Set) Quantize(t *Temp, q Quantized, r int, x []float32, truncate bool) {
	largest := float32(0)
	s.int8cut(len(x), func(f *int8Funcs, i, n int) {
		f.magnitude(&x[i], n, &t.lanes[0])
		for _, l := range t.lanes {
			largest = max(largest, l)
		}
	})
	if largest-largest != 0 {
		q.Inverse[r] = theNaN
		return
	}
	factor := 127 / largest
	if math.IsInf(float64(factor), 0) {
		factor = 1
	}
	q.Inverse[r] = 1 / factor
	row := q.Data[r*q.Stride:][:len(x)]
	if truncate {
		for i, v := range x {
			row[i] = int8(float32(v * factor))
		}
		return
	}
	s.int8cut(len(x), func(f *int8Funcs, i, n int) { f.quantize(&row[i], &x[i], factor, n) })
}

// int8cut is cut for int8Funcs.
func (s *Set) int8cut(total int, f func(v *int8Funcs, from, n int)) {
	whole := total &^ (lanes - 1)
	if whole > 0 {
		f(&s.int8, 0, whole)
	}
	if whole < total {
		f(&genericInt8, whole, total-whole)
	}
}

// QuantizedProduct gives out[m, n] = Σₖ x[m, k]·w[n, k] · inverse[m] / w.Scale[n] for the first rows rows of x.
func (s *Set) QuantizedProduct(t *Temp, out Floats, x Quantized, rows int, w Matrix) {
	if rows == 0 || w.Rows == 0 {
		return
	}
	if w.DType != num.Int8 || len(w.Data) < (w.Rows-1)*w.Stride+w.Cols || len(x.Data) < (rows-1)*x.Stride+w.Cols || len(x.Inverse) < rows ||
		len(out.Data) < (rows-1)*out.Stride+w.Rows || len(w.Scale) < w.Rows {
		panic(fmt.Sprintf("BUG: %d quantized rows · [%d %d] of %v, %d bytes apart: %d bytes, %d scales, %d inputs, %d outputs", rows, w.Rows, w.Cols,
			w.DType, w.Stride, len(w.Data), len(w.Scale), len(x.Data), len(out.Data)))
	}
	whole, tiler := w.Cols&^(wholeInt8-1), s.tiler(rows, w.Rows)
	switch {
	case whole == 0:
		for m := range rows {
			clear(sums(out, m, w.Rows))
		}
	case tiler != nil:
		ahead := w.ahead()
		t.tile(tiler, rows, w.Rows, whole, func(m, n, k, columns, count int, kept *float32, mode int) {
			tiler.int8(&x.Data[m*x.Stride+k], x.Stride, &w.Data[n*w.Stride+k], w.Stride, columns, &sums(out, m, w.Rows)[n], 4*out.Stride, count, kept, mode, &t.x16[0],
				ahead.take(tiler.rows*columns, rows*whole))
		})
	default:
		quarter := w.Rows / 4
		for m := range rows {
			s.int8.rows(&w.Data[0], w.Stride, quarter*w.Stride, &x.Data[m*x.Stride], whole, &sums(out, m, w.Rows)[0], 4*quarter, w.Rows-3*quarter)
		}
	}
	for m := range rows {
		row, c := out.Data[m*out.Stride:][:w.Rows], sums(out, m, w.Rows)
		if whole < w.Cols {
			for n := range c {
				c[n] += dotInt8(x.Data[m*x.Stride+whole:][:w.Cols-whole], w.Data[n*w.Stride+whole:])
			}
		}
		s.int8cut(w.Rows, func(f *int8Funcs, i, n int) { f.rescale(&row[i], &c[i], &w.Scale[i], x.Inverse[m], n) })
	}
}

// sums is the memory of row m of out, where the sums stand until they are rescaled.
func sums(out Floats, m, n int) []int32 {
	row := out.Data[m*out.Stride:][:n]
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(row))), n)
}

// dotInt8 is Σ x·w, exactly.
func dotInt8(x []int8, w []byte) (sum int32) {
	w = w[:len(x)]
	for k, v := range x {
		sum += int32(v) * int32(int8(w[k]))
	}
	return sum
}

// genericInt8 is the plain form.
var genericInt8 = int8Funcs{
	rows: func(w *byte, near, far int, x *int8, k int, sum *int32, skip, n int) {
		for i := range n {
			for r := range 4 {
				*move(sum, 4*i+r*skip) = dotInt8(unsafe.Slice(x, k), unsafe.Slice(move(w, r*far+i*near), k))
			}
		}
	},
	magnitude: func(x *float32, n int, kept *float32) {
		l := unsafe.Slice(kept, lanes)
		clear(l)
		for i, v := range unsafe.Slice(x, n) {
			l[i%lanes] = max(l[i%lanes], float32(math.Abs(float64(v))))
		}
	},
	quantize: func(q *int8, x *float32, a float32, n int) {
		const shift = 1.5 * (1 << 23) // where the distance of float32 values is 1
		row := unsafe.Slice(q, n)
		for i, v := range unsafe.Slice(x, n) {
			row[i] = int8(float32(float32(v*a)+shift) - shift)
		}
	},
	rescale: func(out *float32, sum *int32, divisor *float32, inverse float32, n int) {
		y, d := unsafe.Slice(out, n), unsafe.Slice(divisor, n)
		for i, c := range unsafe.Slice(sum, n) {
			y[i] = stored(float32(float32(c)*inverse) / d[i])
		}
	},
}

func genericTileInt8(x *int8, ldx int, w *byte, ldw, k int, sum *int32, ld, n int, kept *float32, mode int, _ *int16, _ *byte) {
	for i := range 3 * n {
		for m := range 4 {
			c := dotInt8(unsafe.Slice(move(x, m*ldx), k), unsafe.Slice(move(w, i*ldw), k))
			put := move(sum, m*ld+4*i)
			if lane := (*int32)(unsafe.Pointer(move(kept, 32*(12*(i/3)+3*m+i%3)))); mode != 0 { // one lane of eight is enough
				if mode&modeContinue != 0 {
					c += *lane
				}
				if mode&modeLeave != 0 {
					put = lane
				}
			}
			*put = c
		}
	}
}
