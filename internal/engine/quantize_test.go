package engine

import (
	"math"
	"strings"
	"testing"

	"llmrun/internal/num"
)

func TestQuantizeMatrix(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		row      []float32
		truncate bool
		want     []int8
		factor   float32
		fails    string
	}{
		{[]float32{1, -2, 0.5, 0}, false, []int8{64, -127, 32, 0}, 63.5, ""}, // 63.5 and 31.75
		{[]float32{1, -2, 0.5, 0}, true, []int8{63, -127, 31, 0}, 63.5, ""},
		{[]float32{127, 0.5, 1.5, -2.5}, false, []int8{127, 0, 2, -2}, 1, ""}, // ties
		{[]float32{0, 0, 0, 0}, false, []int8{0, 0, 0, 0}, 1, ""},
		{[]float32{1e-40, 0, 0, 0}, false, []int8{0, 0, 0, 0}, 1, ""}, // 127/1e-40 is infinite
		{[]float32{0, nan, 0, 0}, false, nil, 0, "row 1: want finite weights"},
	} {
		// The row is the second of two.
		data, q := make([]byte, 4*8), make([]byte, 8)
		num.PutFloat32s(num.Float32, data, append([]float32{3, 3, 3, 3}, c.row...))
		factors, err := quantize(q, data, num.Float32, 2, 4, c.truncate)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%v: want error %q, got %v", c.row, c.fails, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if factors[1] != c.factor {
			t.Errorf("%v: want factor %v, got %v", c.row, c.factor, factors[1])
		}
		for i, want := range c.want {
			if got := int8(q[4+i]); got != want {
				t.Errorf("%v: element %d: want %d, got %d", c.row, i, want, got)
			}
		}
	}
}
