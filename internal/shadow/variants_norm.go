package shadow

import (
	"fmt"
	"math"

	"llmrun/internal/engine"
)

// Epsilons that norms have, in the models that are converted.
var epsilons = []float32{0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-3}

// tails are the numbers of last terms that a loop of whole vectors, simdgroups or tiles may leave out of a sum of n.
func tails(n int) (list []int) {
	seen := map[int]bool{0: true, n: true}
	for _, whole := range []int{4, 8, 16, 32, 64, 128, 256} {
		if tail := n % whole; !seen[tail] {
			seen[tail] = true
			list = append(list, tail)
		}
	}
	for _, tail := range []int{1, 4, 8, 16, 32, 64, 128} {
		if tail < n && !seen[tail] {
			seen[tail] = true
			list = append(list, tail)
		}
	}
	return list
}

func terms(tail int) string {
	if tail == 1 {
		return "the last term is"
	}
	return fmt.Sprintf("the last %d terms are", tail)
}

func (v *verdict) rmsNormVariants(o *engine.RMSNorm, in reader) (list []variant) {
	x, w := in["x"], in["w"]
	for _, offset := range []float32{0, 1, 2} {
		if offset != o.Offset {
			other := *o
			other.Offset = offset
			list = append(list, v.judged(fmt.Sprintf("the weight counts as %g + w, not %g + w", offset, o.Offset), &other))
		}
	}
	for _, eps := range epsilons {
		if eps != o.Eps {
			other := *o
			other.Eps = eps
			list = append(list, v.judged(fmt.Sprintf("epsilon is %g, not %g", eps, o.Eps), &other))
		}
	}
	n := float64(o.Dim)
	gain := func(c int) float64 { return float64(o.Offset) + w.at(0, c%o.Dim) }
	// normed is x/root(sum of squares of the first so many elements of the head) times the gain.
	normed := func(what string, terms int, root func(sum float64) float64) variant {
		return v.made(what, n+16, func(r, c int) (float64, float64) {
			sum := 0.0
			for i := range terms {
				e := x.at(r, c/o.Dim*o.Dim+i)
				sum += e * e
			}
			y := x.at(r, c) / root(sum) * gain(c)
			return y, math.Abs(y)
		})
	}
	eps := float64(o.Eps)
	whole := func(sum float64) float64 { return math.Sqrt(sum/n + eps) }
	list = append(list, v.copied("the norm is left out: it is the input", x),
		v.made("it is not divided by the root", 4, func(r, c int) (float64, float64) {
			y := x.at(r, c) * gain(c)
			return y, math.Abs(y)
		}),
		v.made("the weight is left out", n+16, func(r, c int) (float64, float64) {
			g := gain(c)
			return v.Want[r*v.cols()+c] / g, math.Abs(v.Want[r*v.cols()+c] / g)
		}),
		normed("epsilon is added outside the root", o.Dim, func(sum float64) float64 { return math.Sqrt(sum/n) + eps }),
		normed("the sum of squares is not divided by the width", o.Dim, func(sum float64) float64 { return math.Sqrt(sum + eps) }),
		normed("the root is left out", o.Dim, func(sum float64) float64 { return sum/n + eps }))
	for _, tail := range tails(o.Dim) {
		list = append(list, normed(terms(tail)+" missing in the sum of squares", o.Dim-tail, whole))
	}
	return append(list, v.made("the mean is subtracted", n+16, func(r, c int) (float64, float64) {
		mean, squares, size := 0.0, 0.0, 0.0
		for i := range o.Dim {
			e := x.at(r, c/o.Dim*o.Dim+i)
			mean += e / n
			size += math.Abs(e) / n
		}
		for i := range o.Dim {
			d := x.at(r, c/o.Dim*o.Dim+i) - mean
			squares += d * d
		}
		scale := gain(c) / math.Sqrt(squares/n+eps)
		return (x.at(r, c) - mean) * scale, (math.Abs(x.at(r, c)) + size) * math.Abs(scale)
	}))
}

func (v *verdict) layerNormVariants(o *engine.LayerNorm, in reader) (list []variant) {
	x, w, bias := in["x"], in["w"], in["bias"]
	for _, eps := range epsilons {
		if eps != o.Eps {
			other := *o
			other.Eps = eps
			list = append(list, v.judged(fmt.Sprintf("epsilon is %g, not %g", eps, o.Eps), &other))
		}
	}
	n := float64(o.Dim)
	moments := func(r int) (mean, variance, size float64) {
		for i := range o.Dim {
			mean += x.at(r, i) / n
			size += math.Abs(x.at(r, i)) / n
		}
		for i := range o.Dim {
			variance += (x.at(r, i) - mean) * (x.at(r, i) - mean) / n
		}
		return mean, variance, size
	}
	normed := func(what string, f func(x, mean, variance, w, bias float64) float64) variant {
		return v.made(what, n+16, func(r, c int) (float64, float64) {
			mean, variance, size := moments(r)
			scale := math.Abs(w.at(0, c)) / math.Sqrt(variance+float64(o.Eps))
			y := f(x.at(r, c), mean, variance+float64(o.Eps), w.at(0, c), bias.at(0, c))
			return y, (math.Abs(x.at(r, c))+size)*scale + math.Abs(bias.at(0, c)) + math.Abs(y)
		})
	}
	return append(list, v.copied("the norm is left out: it is the input", x),
		normed("the bias is left out", func(x, mean, variance, w, _ float64) float64 { return (x - mean) / math.Sqrt(variance) * w }),
		normed("the weight is left out", func(x, mean, variance, _, b float64) float64 { return (x-mean)/math.Sqrt(variance) + b }),
		normed("the mean is not subtracted from the elements", func(x, _, variance, w, b float64) float64 { return x/math.Sqrt(variance)*w + b }),
		normed("it is an RMSNorm: the mean is not subtracted", func(x, mean, variance, w, b float64) float64 {
			return x/math.Sqrt(variance+mean*mean)*w + b
		}),
		normed("the variance is divided by the width less one", func(x, mean, variance, w, b float64) float64 {
			return (x-mean)/math.Sqrt((variance-float64(o.Eps))*n/(n-1)+float64(o.Eps))*w + b
		}))
}
