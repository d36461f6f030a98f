package oracle

import (
	"math"

	"llmrun/internal/engine"
)

// JudgeAttention computes what context should have written from what scores reads, over the softmax between them, whose results need not
// exist: the three ops as one.
//
// The weight of a key is p_j = exp(s_j - m) for any m: what is right is Σ p_j·v_j / Σ p_j. A backend may take for m the largest score so far,
// and multiply what it has by exp(m - m') when a larger m' comes. What that does to a weight:
//
//   - its arguments m - s_j, m' - m, m" - m' … have one sign and add up to the distance of s_j to the last maximum, so their roundings, u of
//     each, come to u of that distance: as if the last maximum had been known at once;
//   - each exp strays 4 ulp, which is 8 units, and each multiplication one more. There are fewer than rescalings(n) of them.
//
// Each sum is one of n terms whose weights stray so. Scores are not stored, so that a score beyond float16 is none to worry about.
func JudgeAttention(s *engine.Scores, c *engine.Context) (Judged, error) {
	_, ins := s.Operands(nil, nil)
	outs, values := c.Operands(nil, nil)
	in := map[string]input{}
	for _, o := range append(ins, values...) {
		if o.Name == "p" {
			continue // the softmax
		}
		opened, err := read(o)
		if err != nil {
			return Judged{}, err
		}
		in[o.Name] = opened
	}
	j := Judged{outs[0], make([]float64, outs[0].Rows*outs[0].Cols), make([]float64, outs[0].Rows*outs[0].Cols)}
	attention(s, output{&j, outs[0].Buffer.DType()}, in)
	return j, nil
}

// rescalings is how often a weight is multiplied on its way, at most: once for every 32 keys, once where parts of a simdgroup's keys
// meet, once where those of all meet.
func rescalings(keys int) float64 { return float64((keys+31)/32 + 2) }

func attention(o *engine.Scores, out output, in map[string]input) {
	_, first, keys := o.Keys(o.Pass())
	k, v := headsOf(in["k"], keys, o.Dim), byDimension(in["v"], keys)
	weights, p := make([]approx, keys), make([]float64, keys)
	seen := make([]vector, len(v))
	for t := range o.Rows() {
		n := first + t
		for i := range v {
			seen[i] = measured(v[i][:n])
		}
		for h, q := range split(in["q"].row(t), o.Dim) {
			kv := h / (o.Heads / o.KVHeads)
			top := math.Inf(-1)
			for j := range n {
				s := dot(q, k[j][kv]).likely(0).mul(exact(float64(o.Scale)))
				weights[j], top = s, max(top, s.v)
			}
			for j, s := range weights[:n] {
				w := s.add(exact(-top)).exp()
				weights[j] = rounded(w.v, w.err, 9*rescalings(n))
				p[j] = w.v
			}
			all, values := total(weights[:n]), measured(p[:n])
			for i := range o.Dim {
				out.set(t, h*o.Dim+i, weighted(weights[:n], values, seen[kv*o.Dim+i]).div(all))
			}
		}
	}
}

// weighted is Σ wₖ·vₖ; p holds the weights' values.
func weighted(w []approx, p, v vector) approx {
	a := dot(p, v).worst(0)
	for k := range w {
		a.err += w[k].err * math.Abs(v.a[k])
	}
	if math.IsNaN(a.v) || math.IsInf(a.v, 0) {
		a.err = 0
	} else if math.IsNaN(a.err) { // an infinite bound times 0
		a.err = math.Inf(1)
	}
	return a
}
