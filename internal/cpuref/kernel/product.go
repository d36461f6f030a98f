package kernel

import (
	"fmt"
	"unsafe"

	"llmrun/internal/num"
)

// Matrix is rows of weights where they lie in memory, without any alignment.
type Matrix struct {
	Data       []byte    // of these rows, and perhaps of others behind them that will be used soon
	DType      num.DType // float32, float16, bfloat16 or int8
	Rows, Cols int
	Stride     int       // bytes from row to row
	Scale      []float32 // int8 only, one for each row: the weight is float32(q)·scale, rounded
}

// Span is rows [from, to) of the matrix.
func (w Matrix) Span(from, to int) Matrix {
	w.Data, w.Rows = w.Data[from*w.Stride:], to-from
	if w.Scale != nil {
		w.Scale = w.Scale[from:to]
	}
	return w
}

// Floats are rows of float32 values in a longer array.
type Floats struct {
	Data   []float32
	Stride int // elements from row to row
}

// Temp is one thread's memory for sums that are not finished. It grows to the largest and stays.
type Temp struct {
	lanes, sums [lanes]float32
	kept        []float32
	tail        [4][lanes]float32  // the last terms of four rows of weights,
	xTail       [lanes]float32     // and of x, with zeros up to eight
	most        [2 * lanes]float32 // of softmax: the largest of each lane, and the terms beyond them, with -Inf up to eight
	wide        [lanes]float64
	x16         [4 * columnBlock * 3 / 2]int16 // four rows of x, for tiles of int8
	four        [4]float32
}

func (t *Temp) keep(n int) *float32 {
	if len(t.kept) < n {
		t.kept = make([]float32, n)
	}
	return &t.kept[0]
}

// Product gives out[m, n] = dot(w[n], x[m]) for the first rows rows of x. A row of x has the same sums alone and among others.
func (s *Set) Product(t *Temp, out, x Floats, rows int, w Matrix) {
	if rows == 0 || w.Rows == 0 {
		return
	}
	size := w.DType.Size()
	if len(w.Data) < (w.Rows-1)*w.Stride+w.Cols*size || len(x.Data) < (rows-1)*x.Stride+w.Cols ||
		len(out.Data) < (rows-1)*out.Stride+w.Rows || w.DType == num.Int8 && len(w.Scale) < w.Rows {
		panic(fmt.Sprintf("BUG: %d rows · [%d %d] of %v, %d bytes apart: %d bytes, %d scales, %d inputs, %d outputs", rows, w.Rows, w.Cols,
			w.DType, w.Stride, len(w.Data), len(w.Scale), len(x.Data), len(out.Data)))
	}
	if w.Cols == 0 {
		for m := range rows {
			clear(out.Data[m*out.Stride:][:w.Rows])
		}
		return
	}
	if tiler := s.tiler(rows, w.Rows); tiler != nil && w.Cols%lanes == 0 {
		tiler.tiles(t, out, x, rows, w)
		return
	}
	for m := range rows {
		s.rows(t, out.Data[m*out.Stride:], x.Data[m*x.Stride:], w)
	}
}

// Dot gives dot(a, b).
func (s *Set) Dot(t *Temp, a, b []float32) float32 {
	s.Product(t, Floats{t.four[:], 0}, Floats{b, 0}, 1, Matrix{Data: num.Bytes(a), Rows: 1, Cols: len(a)})
	return t.four[0]
}

// rows multiplies one row of x. Memory serves four distant streams better than one: the first starts at row 0 and the others each a
// quarter of the rows further. They are equally long, so where 4 does not divide the rows some are computed twice.
func (s *Set) rows(t *Temp, out, x []float32, w Matrix) {
	quarter := w.Rows / 4
	near, far, skip, n := w.Stride, quarter*w.Stride, 4*quarter, w.Rows-3*quarter
	scale := unsafe.SliceData(w.Scale)
	f := s.dotRows[w.DType]
	whole := w.Cols &^ (lanes - 1)
	if whole == w.Cols {
		f(&w.Data[0], near, far, scale, &x[0], whole, &out[0], skip, n, nil, 0)
		return
	}
	kept := t.keep(4 * lanes)
	t.xTail = [lanes]float32{}
	copy(t.xTail[:], x[whole:w.Cols])
	for i := range n {
		f(&w.Data[i*near], near, far, move(scale, 4*i), &x[0], whole, &out[i], skip, 1, kept, modeLeave)
		for r := range t.tail {
			row := i + r*quarter
			t.tail[r] = [lanes]float32{}
			wide, factor := t.wide[:w.Cols-whole], float32(1)
			if w.DType == num.Int8 {
				factor = w.Scale[row]
			}
			widen(wide, w.DType, w.Data[row*near+whole*w.DType.Size():], factor)
			for k, v := range wide {
				t.tail[r][k] = float32(v)
			}
		}
		s.dotRows[num.Float32]((*byte)(unsafe.Pointer(&t.tail)), 0, 4*lanes, nil, &t.xTail[0], lanes, &out[i], skip, 1, kept, modeContinue)
	}
}

// The blocks that Product works in when many rows of x share the weights: so many rows of weights and of x, whole tiles of any size, of so many
// columns, stay in a core's second cache together.
const (
	WeightBlock = 48
	InputBlock  = 60
	columnBlock = 1024
)

// tiler gives the largest that needs no more rows of x and of weights, or nil.
func (s *Set) tiler(rows, weights int) *tiler {
	for i := range s.tilers {
		if t := &s.tilers[i]; t.rows <= rows && t.weights <= weights {
			return t
		}
	}
	return nil
}

func (tiler *tiler) tiles(t *Temp, out, x Floats, rows int, w Matrix) {
	size, ahead := w.DType.Size(), w.ahead()
	t.tile(tiler, rows, w.Rows, w.Cols, func(m, n, k, columns, count int, kept *float32, mode int) {
		tiler.dot[w.DType](&x.Data[m*x.Stride+k], 4*x.Stride, &w.Data[n*w.Stride+k*size], w.Stride, move(unsafe.SliceData(w.Scale), 4*n),
			columns, &out.Data[m*out.Stride+n], 4*out.Stride, count, kept, mode, ahead.take(tiler.rows*columns, rows*w.Cols))
	})
}

// ahead is memory that will be needed next: as much as w, behind it.
type ahead struct {
	data []byte
	done float64 // of it
}

func (w Matrix) ahead() ahead {
	end := min(len(w.Data)-1, w.Rows*w.Stride)
	return ahead{data: w.Data[end:min(len(w.Data), 2*end+1)]}
}

// take gives where the next part of it begins, of so many parts of all.
func (a *ahead) take(part, all int) *byte {
	at := &a.data[min(len(a.data)-1, int(a.done*float64(len(a.data))))]
	a.done += float64(part) / float64(all)
	return at
}

// tile cuts a product into calls of run, for a tile's rows of x from m on, count tiles of weights from n on, and columns [k, k+columns). kept has their
// unfinished sums, if the columns are not all. Tiles at the edges reach back over finished sums.
func (t *Temp) tile(tiler *tiler, rows, weights, cols int, run func(m, n, k, columns, count int, kept *float32, mode int)) {
	columns, high, wide := cols, tiler.rows, tiler.weights
	if columns > columnBlock*3/2 {
		parts := (columns + columnBlock - 1) / columnBlock
		columns = ((columns+parts-1)/parts + 15) / 16 * 16
	}
	if columns < cols {
		t.keep((InputBlock + high) * (WeightBlock + wide) * lanes)
	}
	for n0 := 0; n0 < weights; n0 += WeightBlock {
		n1 := min(weights, n0+WeightBlock)
		for m0 := 0; m0 < rows; m0 += InputBlock {
			m1 := min(rows, m0+InputBlock)
			for k := 0; k < cols; k += columns {
				mode := 0
				if k > 0 {
					mode |= modeContinue
				}
				if k+columns < cols {
					mode |= modeLeave
				}
				used := 0
				part := func(m, n, count int) {
					var kept *float32
					if mode != 0 {
						kept = &t.kept[used]
						used += lanes * high * wide * count
					}
					run(m, n, k, min(columns, cols-k), count, kept, mode)
				}
				first, last := max(0, min(n0, n1-wide)), n1-wide
				for m := max(0, min(m0, m1-high)); m < m1; m += high {
					part(min(m, m1-high), first, (n1-first)/wide)
					if (n1-first)%wide != 0 {
						part(min(m, m1-high), last, 1)
					}
				}
			}
		}
	}
}

// FloatsOf is the little-endian float32 values in b, which has no alignment. The machine is little-endian too.
func FloatsOf(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// Read reads b but for its last bytes, in four streams, as fast as a core can: what a product with weights can at best reach. The
// result says only that they were read.
func (s *Set) Read(b []byte) (sum float32) {
	if n := len(b) / 4 &^ 63; n > 0 {
		s.read(&b[0], n, n, &sum)
	}
	return sum
}
