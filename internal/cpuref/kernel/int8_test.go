package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"llmrun/internal/num"
)

// int8sOf is the memory of b.
func int8sOf(b []byte) []int8 {
	return unsafe.Slice((*int8)(unsafe.Pointer(unsafe.SliceData(b))), len(b))
}

// fillInt8 draws integers: all of them, those at the ends, or one of them everywhere, so that all products of a sum have one sign.
func fillInt8(r *rand.Rand, kind int, b []byte, least int) {
	ends := []int{least, -127, 127, 127}
	one := ends[r.IntN(len(ends))]
	for i := range b {
		switch kind {
		case 0:
			b[i] = byte(least + r.IntN(128-least))
		case 1:
			b[i] = byte(ends[r.IntN(len(ends))])
		default:
			b[i] = byte(one)
		}
	}
}

// checkInt8 compares a product with the formula. All operands end at a fence.
func checkInt8(t *testing.T, s *Set, r *rand.Rand, kind, rows, n, cols int) {
	t.Helper()
	const gap = 3
	what := fmt.Sprintf("%s, kind %d: %d rows, [%d %d]", s.Name, kind, rows, n, cols)
	before := r.IntN(4)
	stride := cols + r.IntN(2)
	data, _ := fenced(t, 0, (n-1)*stride+cols, before)
	fillInt8(r, kind, data, -128)
	scales, _ := fenced(t, 1, 4*n, before)
	w := Matrix{Data: data, DType: num.Int8, Rows: n, Cols: cols, Stride: stride, Scale: FloatsOf(scales)}
	fill(r, kind, w.Scale)
	q, _ := fenced(t, 2, (rows-1)*(cols+gap)+cols, before)
	fillInt8(r, kind, q, -127)
	inverse := make([]float32, rows)
	fill(r, kind, inverse)
	x := Quantized{int8sOf(q), cols + gap, inverse}
	out, whole := fenced(t, 3, 4*((rows-1)*(n+gap)+n), before)
	y := Floats{FloatsOf(out), n + gap}
	s.QuantizedProduct(new(Temp), y, x, rows, w)
	for m := range rows {
		for i := range n {
			c := int64(0)
			for k := range cols {
				c += int64(x.Data[m*x.Stride+k]) * int64(int8(data[i*stride+k]))
			}
			want := stored(float32(float32(c)*inverse[m]) / w.Scale[i])
			if got := y.Data[m*y.Stride+i]; math.Float32bits(want) != math.Float32bits(got) {
				t.Fatalf("%s: [%d %d]: want %x, got %x", what, m, i, want, got)
			}
		}
		if m < rows-1 && !slices.Equal(num.Bytes(y.Data[m*y.Stride+n:][:gap]), slices.Repeat([]byte{guard}, 4*gap)) {
			t.Fatalf("%s: row %d reaches beyond its end", what, m)
		}
	}
	if !slices.Equal(whole[len(whole)-before:], slices.Repeat([]byte{guard}, before)) || whole[len(whole)-before-len(out)-1] != guard {
		t.Fatalf("%s: the bytes around the output have changed", what)
	}
}

func TestQuantizedProduct(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 1))
	for _, s := range Sets() {
		for kind := range 3 {
			for cols := range 32 {
				checkInt8(t, s, r, kind, 1+r.IntN(9), 1+r.IntN(9), 1+cols+32*r.IntN(4))
			}
			for rows := 1; rows < 10; rows++ {
				for n := 1; n < 10; n++ {
					checkInt8(t, s, r, kind, rows, n, 16*(1+r.IntN(12)))
				}
			}
			checkInt8(t, s, r, kind, 33, 65, 16*(1+r.IntN(12)))
			checkInt8(t, s, r, kind, 70, 62, 1560) // columns in two blocks, rows in two, weights in two, the last of them short
			checkInt8(t, s, r, kind, 4, 3, 4864)
			checkInt8(t, s, r, kind, 1, 7, 9216)
		}
		checkInt8(t, s, r, 2, 5, 5, 132096) // the longest sums that int32 is promised to hold
	}
}

// A row in int8 is its elements times 127/max|x|, rounded, whatever its length and the size of its elements.
func TestQuantize(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 2))
	for _, s := range Sets() {
		for kind := range kinds {
			for n := 1; n < 67; n++ {
				data, _ := fenced(t, 0, 4*n, r.IntN(4))
				x := FloatsOf(data)
				fill(r, kind, x)
				if kind == 0 && n%2 == 0 { // 127/max is 1, and halves are ties
					for i := range x {
						x[i] = float32(r.IntN(508)-254) / 2
					}
					x[r.IntN(n)] = -127
				}
				for _, truncate := range []bool{false, true} {
					q, whole := fenced(t, 1, n, 1)
					inverse := make([]float32, 2)
					s.Quantize(new(Temp), Quantized{int8sOf(q), n, inverse[1:]}, 0, x, truncate)
					checkRow(t, fmt.Sprintf("%s, kind %d, %d elements, truncated %t", s.Name, kind, n, truncate), x, int8sOf(q), inverse[1], truncate)
					if whole[len(whole)-1] != guard || whole[len(whole)-n-2] != guard {
						t.Fatalf("%s, %d elements: the bytes around the output have changed", s.Name, n)
					}
				}
			}
		}
	}
}

func checkRow(t *testing.T, what string, x []float32, q []int8, inverse float32, truncate bool) {
	t.Helper()
	top := 0.0
	for _, v := range x {
		top = max(top, math.Abs(float64(v))) // a NaN stays
	}
	if math.IsNaN(top) || math.IsInf(top, 0) {
		if inverse == inverse {
			t.Fatalf("%s: a row that is not finite has 1/factor %g", what, inverse)
		}
		return
	}
	a := 127 / float32(top)
	if math.IsInf(float64(a), 0) {
		a = 1
	}
	if inverse != 1/a {
		t.Fatalf("%s: 1/factor: want %g, got %g", what, 1/a, inverse)
	}
	for i, v := range x {
		want := math.RoundToEven(float64(v * a))
		if truncate {
			want = math.Trunc(float64(v * a))
		}
		if float64(q[i]) != want {
			t.Fatalf("%s: %g times %g: want %g, got %d", what, v, a, want, q[i])
		}
	}
}
