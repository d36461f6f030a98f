package oracle

import (
	"math"

	"llmrun/internal/engine"
)

// quantizedLinear follows engine.Linear. Which integers a row becomes is decided by single float32 operations, correctly rounded,
// so a backend has no choice in it, and none in the exact sum: only the last steps round.
func quantizedLinear(o *engine.Linear, out output, in map[string]input) {
	x := make([]quantized, o.Rows())
	for t := range x {
		x[t] = quantize(in["x"].row(t), o.Truncated)
	}
	weights, scale, bias := in["w"], in["scale"].row(0), []float64(nil)
	if b, ok := in["bias"]; ok {
		bias = b.row(0)
	}
	share(o.W.Rows, o.W.Rows*o.W.Cols*len(x), func(from, to int) {
		w := make([]float64, o.W.Cols)
		for n := from; n < to; n++ {
			weights.widen(w, n)
			for t := range x {
				a := x[t].product(w).div(exact(scale[n]))
				if bias != nil {
					a = a.add(exact(bias[n]))
				}
				out.set(t, n, a)
			}
		}
	})
}

// quantized is a row of x in int8.
type quantized struct {
	q      []float64 // integers; nil if the row is not finite
	factor float32
	tiny   []int // where x is subnormal, and its integer is not 0
}

func quantize(x []float64, truncate bool) (r quantized) {
	r.q, r.factor = Quantize(x, truncate)
	for k, q := range r.q {
		if math.Abs(x[k]) < tiny && q != 0 {
			r.tiny = append(r.tiny, k)
		}
	}
	return r
}

// Quantize gives the integers that a quantized linear makes of a row of x, and their factor; none and NaN for a row that is not finite.
func Quantize(x []float64, truncate bool) (q []float64, factor float32) {
	largest := float32(0)
	for _, v := range x {
		if v-v != 0 {
			return nil, float32(math.NaN())
		}
		largest = max(largest, float32(math.Abs(v)))
	}
	if factor = 127 / largest; math.IsInf(float64(factor), 0) {
		factor = 1
	}
	round := math.RoundToEven
	if truncate {
		round = math.Trunc
	}
	q = make([]float64, len(x))
	for k, v := range x {
		q[k] = round(float64(float32(v) * factor))
	}
	return q, factor
}

// product is Σ q·w / factor. The sum is of integers below 2³¹, which float64 adds exactly in any order; it rounds when it becomes a
// float32, when 1/factor does, and when they are multiplied.
func (r quantized) product(w []float64) approx {
	if r.q == nil {
		return approx{math.NaN(), 0}
	}
	sum := multiply(r.q, w).v
	flushed := 0.0 // what is missing if subnormal inputs are read as zero
	for _, k := range r.tiny {
		flushed += math.Abs(r.q[k] * w[k])
	}
	a := rounded(sum, flushed, 1).mul(rounded(1/float64(r.factor), 0, 1))
	if math.Abs(a.v)+a.err > maxFloat32 { // it overflows before the scale brings it back
		a.err = math.Inf(1)
	}
	return a
}
