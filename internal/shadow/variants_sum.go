package shadow

import (
	"fmt"
	"math"

	"llmrun/internal/cpuref/oracle"
	"llmrun/internal/engine"
)

func (v *verdict) linearVariants(o *engine.Linear, in reader) (list []variant) {
	x, w, bias := in["x"], in["w"], in["bias"]
	n, k := o.W.Rows, o.W.Cols
	rows, weights := x.pieces(k), w.pieces(k)
	input := func(r int) []float64 { return rows(r, 0) }
	if o.Quantized {
		rows := quantizedRows(o, x, o.Truncated)
		input = eachOnce(func(r int) []float64 { return rows(r).x() })
		list = v.quantizedVariants(o, in)
	}
	weight := func(c int) []float64 { return weights(c, 0) }
	// transposed reads the elements of row c elsewhere.
	transposed := func(at func(c, i int) float64) func(c int) []float64 {
		row := make([]float64, k)
		return func(c int) []float64 {
			for i := range row {
				row[i] = at(c, i)
			}
			return row
		}
	}
	offset := func(c int) float64 {
		if !bias.exists() || c < 0 || c >= n {
			return 0
		}
		return bias.at(0, c)
	}
	product := func(what string, from, to int, weight func(c int) []float64, bias func(c int) float64) variant {
		return v.made(what, float64(k+4), func(r, c int) (float64, float64) {
			sum, size, _ := oracle.Sum(input(r)[from:to], weight(c)[from:to])
			return sum + bias(c), size + math.Abs(bias(c))
		})
	}
	if bias.exists() {
		list = append(list, product("the bias is left out", 0, k, weight, func(int) float64 { return 0 }),
			product("the bias is added twice", 0, k, weight, func(c int) float64 { return 2 * offset(c) }),
			product("the bias is subtracted", 0, k, weight, func(c int) float64 { return -offset(c) }),
			product("the bias is that of the row after", 0, k, weight, func(c int) float64 { return offset(c + 1) }),
			product("the bias is that of the row before", 0, k, weight, func(c int) float64 { return offset(c - 1) }),
			product("the bias is that of the first row", 0, k, weight, func(int) float64 { return offset(0) }))
	}
	if n == k {
		list = append(list, product("the weight is transposed", 0, k, transposed(func(c, i int) float64 { return w.at(i, c) }), offset))
	} else {
		list = append(list, product(fmt.Sprintf("the weight [%d %d] is read as [%d %d] transposed", n, k, k, n), 0, k,
			transposed(func(c, i int) float64 { return w.at((i*n+c)/k, (i*n+c)%k) }), offset))
	}
	for _, tail := range tails(k) {
		list = append(list, product(fmt.Sprintf("%s missing: columns from %d on", terms(tail), k-tail), 0, k-tail, weight, offset))
	}
	list = append(list, product("the first term is missing", 1, k, weight, offset))
	if w.scale != nil {
		plain := w
		plain.scale = nil
		unscaled := plain.pieces(k)
		list = append(list, product("the row scale is left out", 0, k, func(c int) []float64 { return unscaled(c, 0) }, offset))
	}
	return list
}

// attention is what the variants of its three ops have in common.
type attention struct {
	engine.Attention
	rows, first, keys int
}

func attending(a engine.Attention, p *engine.Pass) attention {
	_, first, keys := a.Keys(p)
	return attention{a, p.Rows, first, keys}
}

// mapping is a wrong way to choose the KV head of head h.
type mapping struct {
	what string
	kv   func(h int) int
}

func (a attention) mappings() []mapping {
	list := []mapping{{"every head reads KV head 0", func(int) int { return 0 }}}
	if group := a.Heads / a.KVHeads; group > 1 && a.KVHeads > 1 {
		what := fmt.Sprintf("head h reads KV head h mod %d, not h/%d", a.KVHeads, group)
		list = append(list, mapping{what, func(h int) int { return h % a.KVHeads }})
	}
	return list
}

func (v *verdict) scoresVariants(o *engine.Scores, in reader) (list []variant) {
	a, q, k := attending(o.Attention, o.In), in["q"], in["k"]
	query, key := q.pieces(a.Dim), k.pieces(a.Dim)
	score := func(t, h, j, kv, dims int) (float64, float64) {
		sum, size, _ := oracle.Sum(query(t, h*a.Dim)[:dims], key(j, kv*a.Dim)[:dims])
		return sum * float64(o.Scale), size * math.Abs(float64(o.Scale))
	}
	own := func(h int) int { return h / (a.Heads / a.KVHeads) }
	variantOf := func(what string, sees func(t, j int) bool, kv func(h int) int, key func(j int) int, dims int) variant {
		return v.made(what, float64(a.Dim+4), func(r, j int) (float64, float64) {
			h, t := r/a.rows, r%a.rows
			if !sees(t, j) || key(j) < 0 || key(j) >= a.keys {
				return 0, 0
			}
			return score(t, h, key(j), kv(h), dims)
		})
	}
	sees := func(t, j int) bool { return j < a.first+t }
	same := func(j int) int { return j }
	for _, m := range a.mappings() {
		list = append(list, variantOf(m.what, sees, m.kv, same, a.Dim))
	}
	list = append(list,
		variantOf("the mask is left out: every row sees all keys", func(int, int) bool { return true }, own, same, a.Dim),
		variantOf("a row does not see its own key: the causal mask is strict", func(t, j int) bool { return j < a.first+t-1 }, own, same, a.Dim),
		variantOf("a row sees one key too many", func(t, j int) bool { return j <= a.first+t }, own, same, a.Dim),
		variantOf("the oldest key is not seen", func(t, j int) bool { return j > 0 && sees(t, j) }, own, same, a.Dim),
		variantOf("the keys are those one position later", sees, own, func(j int) int { return j + 1 }, a.Dim),
		variantOf("the keys are those one position earlier", sees, own, func(j int) int { return j - 1 }, a.Dim))
	for _, tail := range tails(a.Dim) {
		list = append(list, variantOf(fmt.Sprintf("%s missing: a head's elements from %d on", terms(tail), a.Dim-tail), sees, own, same, a.Dim-tail))
	}
	for _, limit := range []float64{30, 50} {
		list = append(list, v.made(fmt.Sprintf("they are soft-capped at %g, which the file does not ask for", limit), float64(a.Dim+16), func(r, j int) (float64, float64) {
			if !sees(r%a.rows, j) {
				return 0, 0
			}
			s, size := score(r%a.rows, r/a.rows, j, own(r/a.rows), a.Dim)
			return limit * math.Tanh(s/limit), size
		}))
	}
	return list
}

func (v *verdict) softmaxVariants(o *engine.Softmax, in reader) []variant {
	a, x := attending(o.Attention, o.In), in["x"]
	// weights are over the keys [from, to(t)), the sum over as many of them as count says.
	weights := func(what string, from int, to func(t int) int, exp func(x float64) float64, count func(n int) int) variant {
		return v.made(what, float64(a.keys+32), func(r, j int) (float64, float64) {
			end := min(to(r%a.rows), a.keys)
			if j < from || j >= end {
				return 0, 0
			}
			top, sum := math.Inf(-1), 0.0
			for i := from; i < end; i++ {
				top = max(top, x.at(r, i))
			}
			for i := from; i < from+count(end-from); i++ {
				sum += exp(x.at(r, i) - top)
			}
			p := exp(x.at(r, j)-top) / sum
			return p, math.Abs(p) * (1 + math.Abs(x.at(r, j)-top))
		})
	}
	own, all := func(t int) int { return a.first + t }, func(n int) int { return n }
	return []variant{
		weights("the mask is left out: every row sees all keys", 0, func(int) int { return a.keys }, math.Exp, all),
		weights("a row does not see its own key: the causal mask is strict", 0, func(t int) int { return a.first + t - 1 }, math.Exp, all),
		weights("a row sees one key too many", 0, func(t int) int { return a.first + t + 1 }, math.Exp, all),
		weights("the oldest key is not seen", 1, own, math.Exp, all),
		weights("the power is of 2, not of e", 0, own, math.Exp2, all),
		weights("the sum is over the first 32 keys only", 0, own, math.Exp, func(n int) int { return min(n, 32) }),
		weights("the last key is missing in the sum", 0, own, math.Exp, func(n int) int { return n - 1 }),
		v.made("they are not divided by their sum", 16, func(r, j int) (float64, float64) {
			if j >= own(r%a.rows) {
				return 0, 0
			}
			top := math.Inf(-1)
			for i := range own(r % a.rows) {
				top = max(top, x.at(r, i))
			}
			p := math.Exp(x.at(r, j) - top)
			return p, p * (1 + top - x.at(r, j))
		}),
		v.copied("the softmax is left out: it is the input", x),
	}
}

func (v *verdict) contextVariants(o *engine.Context, in reader) (list []variant) {
	a, p, val := attending(o.Attention, o.In), in["p"], in["v"]
	own := func(h int) int { return h / (a.Heads / a.KVHeads) }
	row := func(t, h int) int { return h*a.rows + t }
	average := func(what string, from int, to func(t int) int, kv func(h int) int, key func(j int) int, row func(t, h int) int) variant {
		return v.made(what, float64(a.keys+4), func(t, c int) (float64, float64) {
			h, seen := c/a.Dim, make([]float64, to(t)-from)
			for i := range seen {
				if j := key(from + i); j >= 0 && j < a.keys {
					seen[i] = val.at(j, kv(h)*a.Dim+c%a.Dim)
				}
			}
			weights := make([]float64, len(seen))
			p.widen(weights, row(t, h), from)
			sum, size, _ := oracle.Sum(weights, seen)
			return sum, size
		})
	}
	end, same := func(t int) int { return a.first + t }, func(j int) int { return j }
	for _, m := range a.mappings() {
		list = append(list, average(m.what, 0, end, m.kv, same, row))
	}
	list = append(list,
		average("the oldest key is left out", 1, end, own, same, row),
		average("the values are those one position later", 0, end, own, func(j int) int { return j + 1 }, row),
		average("the values are those one position earlier", 0, end, own, func(j int) int { return j - 1 }, row),
		average("the weights are read as [rows heads keys]", 0, end, own, same, func(t, h int) int { return t*a.Heads + h }))
	for _, tail := range tails(a.keys) {
		if tail < a.first {
			list = append(list, average(fmt.Sprintf("%s missing: a row's newest keys", terms(tail)), 0, func(t int) int { return a.first + t - tail }, own, same, row))
		}
	}
	return list
}

func (v *verdict) ropeVariants(o *engine.RoPE, in reader) (list []variant) {
	x, table := in["x"], in["table"]
	half, positions := o.RotaryDim/2, o.Table.Len()/o.RotaryDim
	// turned is the rotation with the cosine and sine that angle gives for a position and a pair.
	turned := func(what string, interleaved bool, roundings float64, angle func(p, i int) (cos, sin float64)) variant {
		other := *o
		other.Interleaved = interleaved
		return v.made(what, roundings, func(r, c int) (float64, float64) {
			if c%o.Dim >= o.RotaryDim {
				return x.at(r, c), 0
			}
			first, second, i := pair(&other, c)
			cos, sin := angle(o.In.Pos+r, i)
			a, b := x.at(r, first), x.at(r, second)
			if c == first {
				return a*cos - b*sin, math.Abs(a*cos) + math.Abs(b*sin)
			}
			return b*cos + a*sin, math.Abs(b*cos) + math.Abs(a*sin)
		})
	}
	entry := func(p, i int) (cos, sin float64) { // of the table
		if p < 0 || p >= positions {
			return math.NaN(), math.NaN()
		}
		r := p - o.In.Pos
		return table.at(r, i), table.at(r, half+i)
	}
	at := func(what string, position func(p int) int) variant {
		return turned(what, o.Interleaved, 4, func(p, i int) (float64, float64) { return entry(position(p), i) })
	}
	list = append(list, v.copied("nothing is rotated: it is the input", x),
		at("the position is one too far", func(p int) int { return p + 1 }),
		at("the position is one too near", func(p int) int { return p - 1 }),
		at("every row has the position of the first", func(int) int { return o.In.Pos }),
		at("the positions start from 0 in this pass", func(p int) int { return p - o.In.Pos }),
		turned("the rotation goes backwards", o.Interleaved, 4, func(p, i int) (float64, float64) {
			cos, sin := entry(p, i)
			return cos, -sin
		}),
		turned("sine and cosine are swapped", o.Interleaved, 4, func(p, i int) (float64, float64) {
			cos, sin := entry(p, i)
			return sin, cos
		}))
	pairs := map[bool]string{true: "the pairs are interleaved, not half-split", false: "the pairs are half-split, not interleaved"}
	list = append(list, turned(pairs[!o.Interleaved], !o.Interleaved, 4, entry))
	for _, base := range []float64{10000, 1000000, 500000} {
		// A float32 angle is off by some roundings of itself.
		list = append(list, turned(fmt.Sprintf("the base is %g", base), o.Interleaved, 8*float64(positions+1), func(p, i int) (float64, float64) {
			angle := float64(p) * math.Pow(base, -float64(2*i)/float64(o.RotaryDim))
			return math.Cos(angle), math.Sin(angle)
		}))
	}
	return list
}
