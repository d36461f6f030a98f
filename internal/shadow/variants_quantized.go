package shadow

import (
	"math"

	"llmrun/internal/cpuref/oracle"
	"llmrun/internal/engine"
)

// quantizedRow is a row of x in int8: x is q / factor.
type quantizedRow struct {
	q      []float64
	factor float64
}

// x is what the integers stand for.
func (r quantizedRow) x() []float64 {
	x := make([]float64, len(r.q))
	for i, q := range r.q {
		x[i] = q / r.factor
	}
	return x
}

// quantizedRows gives o's rows, each computed when it is first asked for. A row that is not finite is all NaN.
func quantizedRows(o *engine.Linear, x values, truncated bool) func(r int) quantizedRow {
	return eachOnce(func(r int) quantizedRow {
		q, factor := oracle.Quantize(row(x, r, o.W.Cols), truncated)
		if q == nil {
			q = make([]float64, o.W.Cols) // over NaN
		}
		return quantizedRow{q, float64(factor)}
	})
}

// eachOnce remembers what f gives.
func eachOnce[T any](f func(r int) T) func(r int) T {
	known := map[int]T{}
	return func(r int) T {
		v, ok := known[r]
		if !ok {
			v = f(r)
			known[r] = v
		}
		return v
	}
}

// row is a row of x, widened.
func row(x values, r, cols int) []float64 {
	wide := make([]float64, cols)
	x.widen(wide, r, 0)
	return wide
}

func largest(x []float64) (top float64) {
	for _, v := range x {
		top = max(top, math.Abs(v))
	}
	return top
}

// quantizedVariants are the mistakes that are known of a quantized linear alone. Which integers a row becomes is one thing, what is made of
// their products another: sum gives that, before the factor, the scale and the bias.
func (v *verdict) quantizedVariants(o *engine.Linear, in reader) (list []variant) {
	x, w, bias, scale, k := in["x"], in["w"], in["bias"], in["scale"], o.W.Cols
	integers := w
	integers.scale = nil
	weights := integers.pieces(k)
	rows := quantizedRows(o, x, o.Truncated)
	made := func(what string, rows func(r int) quantizedRow, sum func(q []float64, c int) float64, apply func(s float64, r, c int) float64) variant {
		return v.made(what, 6, func(r, c int) (float64, float64) {
			y, b := apply(sum(rows(r).q, c), r, c), 0.0
			if bias.exists() {
				b = bias.at(0, c)
			}
			return y + b, math.Abs(y) + math.Abs(b)
		})
	}
	exact := func(q []float64, c int) float64 {
		s, _, _ := oracle.Sum(q, weights(c, 0))
		return s
	}
	by := func(rows func(r int) quantizedRow) func(s float64, r, c int) float64 {
		return func(s float64, r, c int) float64 { return s / rows(r).factor / scale.at(0, c) }
	}
	// factored quantizes with another factor, and limits to what an int8 holds.
	factored := func(factor func(r int) float64) func(r int) quantizedRow {
		return eachOnce(func(r int) quantizedRow {
			q, a := row(x, r, k), float32(factor(r))
			for i, f := range q {
				q[i] = max(-128, min(127, math.RoundToEven(float64(float32(f)*a))))
			}
			return quantizedRow{q, float64(a)}
		})
	}
	flipped := *o
	flipped.Truncated = !o.Truncated
	what := map[bool]string{false: "x is rounded toward zero, not to the nearest integer", true: "x is rounded to the nearest integer, not toward zero"}
	list = append(list, v.judged(what[o.Truncated], &flipped))

	shifted := eachOnce(func(r int) quantizedRow { // to a uint8
		q, a := row(x, r, k), rows(r).factor
		for i, f := range q {
			q[i] = math.RoundToEven(float64(float32(float32(f)*float32(a))+128)) - 128
		}
		return quantizedRow{q, a}
	})
	saturated := func(q []float64, c int) (sum float64) {
		w := weights(c, 0)
		for i := 0; i < k; i += 2 {
			pair := 0.0
			for j := i; j < min(i+2, k); j++ {
				pair += (q[j] + 128) * w[j]
				sum -= 128 * w[j]
			}
			sum += max(math.MinInt16, min(math.MaxInt16, pair))
		}
		return sum
	}
	list = append(list,
		made("x·a + 128 is rounded to a uint8, as CTranslate2 does on x86", shifted, exact, by(shifted)),
		made("sums of pairs saturate at the ends of an int16: VPMADDUBSW on uint8 and int8", shifted, saturated, by(shifted)))

	if o.Rows() > 1 {
		all, first := 0.0, largest(row(x, 0, k))
		for r := range o.Rows() {
			all = max(all, largest(row(x, r, k)))
		}
		one := factored(func(int) float64 { return 127 / all })
		same := factored(func(int) float64 { return 127 / first })
		list = append(list, made("all rows have one factor, and not each its own", one, exact, by(one)),
			made("all rows are quantized with the first one's factor", same, exact, by(same)),
			made("all rows are divided by the first one's factor", rows, exact, func(s float64, _, c int) float64 { return s / rows(0).factor / scale.at(0, c) }))
	}
	wide := factored(func(r int) float64 { return 128 / largest(row(x, r, k)) })
	product := func(what string, apply func(s float64, r, c int) float64) variant {
		return made(what, rows, exact, apply)
	}
	return append(list,
		made("the factor is 128/max, not 127/max", wide, exact, by(wide)),
		product("the row scale multiplies, and does not divide", func(s float64, r, c int) float64 { return s / rows(r).factor * scale.at(0, c) }),
		product("the row scale is that of the row after", func(s float64, r, c int) float64 {
			if c+1 >= o.W.Rows {
				return math.NaN()
			}
			return s / rows(r).factor / scale.at(0, c+1)
		}),
		product("the sum is not divided by x's factor", func(s float64, _, c int) float64 { return s / scale.at(0, c) }),
		product("the sum is multiplied by x's factor", func(s float64, r, c int) float64 { return s * rows(r).factor / scale.at(0, c) }),
		made("x is not quantized", eachOnce(func(r int) quantizedRow { return quantizedRow{row(x, r, k), 1} }), exact,
			func(s float64, _, c int) float64 { return s / scale.at(0, c) }))
}
