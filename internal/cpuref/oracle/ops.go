package oracle

import (
	"encoding/binary"
	"fmt"
	"math"

	"llmrun/internal/engine"
)

func copied(out output, in input) {
	for t := range in.Rows {
		for i, v := range in.row(t) {
			out.set(t, i, exact(v))
		}
	}
}

func embed(o *engine.Embed, out output, in map[string]input) error {
	w, row := weightsOf(in), make([]float64, o.W.Cols)
	for t := range o.Rows() {
		id := int(int32(binary.LittleEndian.Uint32(in["ids"].data[4*(in["ids"].Offset+t):])))
		if id < 0 || id >= o.W.Rows {
			return fmt.Errorf("%v: token id %d, the vocabulary has %d", o.Site(), id, o.W.Rows)
		}
		var positions []float64
		if p, ok := in["positions"]; ok {
			positions = p.row(t)
		}
		w.widen(row, id)
		for i, v := range row {
			a := exact(v)
			if o.Scale != 1 {
				a = a.mul(exact(float64(o.Scale)))
			}
			if positions != nil {
				a = a.add(exact(positions[i]))
			}
			out.set(t, i, a)
		}
	}
	return nil
}

func rmsNorm(o *engine.RMSNorm, out output, in map[string]input) {
	gain := make([]approx, o.Dim)
	for i, w := range in["w"].row(0) {
		gain[i] = exact(float64(o.Offset)).add(exact(w))
	}
	for t := range o.Rows() {
		for h, x := range split(in["x"].row(t), o.Dim) {
			squares := dot(x, x).inLanes()
			overflows := math.IsInf(squares.err, 1)
			if overflows {
				squares.err = 0
			}
			root := squares.div(exact(float64(o.Dim))).add(exact(float64(o.Eps))).sqrt()
			inv := exact(1).div(root)
			if overflows { // an infinite sum makes it 0
				inv.err += inv.v
			}
			for i, v := range x.a {
				out.set(t, h*o.Dim+i, exact(v).mul(inv).mul(gain[i]))
			}
		}
	}
}

// layerNorm follows the formula: the mean first, the variance from the differences to it. In one pass, as mean(x²) - mean(x)², the
// variance of values far from zero would lose more than this allows.
func layerNorm(o *engine.LayerNorm, out output, in map[string]input) {
	w, bias, n := in["w"].row(0), in["bias"].row(0), exact(float64(o.Dim))
	terms, differences := make([]approx, o.Dim), make([]approx, o.Dim)
	for t := range o.Rows() {
		for i, v := range in["x"].row(t) {
			terms[i] = exact(v)
		}
		mean := total(terms).div(n)
		for i, x := range terms {
			differences[i] = x.add(approx{-mean.v, mean.err})
		}
		for i, d := range differences {
			terms[i] = d.mul(d)
		}
		squares := total(terms)
		overflows := math.IsInf(squares.err, 1)
		if overflows {
			squares.err = 0
		}
		inv := exact(1).div(squares.div(n).add(exact(float64(o.Eps))).sqrt())
		if overflows { // an infinite sum makes it 0
			inv.err += inv.v
		}
		for i, d := range differences {
			out.set(t, i, d.mul(inv).mul(exact(w[i])).add(exact(bias[i])))
		}
	}
}

func linear(o *engine.Linear, out output, in map[string]input) {
	x := make([]vector, o.Rows())
	for t := range x {
		x[t] = measured(in["x"].row(t))
	}
	extra := 0
	if o.W.Scale != nil {
		extra = 1 // the scale may be applied to the sum instead of the weight
	}
	weights, bias := weightsOf(in), []float64(nil)
	if b, ok := in["bias"]; ok {
		bias = b.row(0)
	}
	share(o.W.Rows, o.W.Rows*o.W.Cols*len(x), func(from, to int) {
		row := make([]float64, o.W.Cols)
		for n := from; n < to; n++ {
			weights.widen(row, n)
			w := measured(row)
			for t := range x {
				a := dot(x[t], w).likely(extra)
				if bias != nil {
					a = a.add(exact(bias[n]))
				}
				out.set(t, n, a)
			}
		}
	})
}

func rope(o *engine.RoPE, out output, in map[string]input) {
	half := o.RotaryDim / 2
	for t := range o.Rows() {
		row, table := in["x"].row(t), in["table"].row(t)
		for h := range o.Heads {
			x := row[h*o.Dim:][:o.Dim]
			for i := range half {
				first, second := i, i+half
				if o.Interleaved {
					first, second = 2*i, 2*i+1
				}
				a, b, cos, sin := exact(x[first]), exact(x[second]), exact(table[i]), exact(table[half+i])
				out.set(t, h*o.Dim+first, a.mul(cos).add(b.mul(exact(-sin.v))))
				out.set(t, h*o.Dim+second, b.mul(cos).add(a.mul(sin)))
			}
			for i := o.RotaryDim; i < o.Dim; i++ {
				out.set(t, h*o.Dim+i, exact(x[i]))
			}
		}
	}
}

func scores(o *engine.Scores, out output, in map[string]input) {
	_, first, keys := o.Keys(o.Pass())
	k := headsOf(in["k"], keys, o.Dim)
	for t := range o.Rows() {
		for h, q := range split(in["q"].row(t), o.Dim) {
			kv := h / (o.Heads / o.KVHeads)
			for j := range first + t { // the rest stays 0, exactly
				out.set(h*o.Rows()+t, j, dot(q, k[j][kv]).likely(0).mul(exact(float64(o.Scale))))
			}
		}
	}
}

// headsOf gives the first rows of a cache, each in its heads.
func headsOf(cache input, rows, dim int) [][]vector {
	heads := make([][]vector, rows)
	for j := range heads {
		heads[j] = split(cache.row(j), dim)
	}
	return heads
}

func softmax(o *engine.Softmax, out output, in map[string]input) {
	_, first, keys := o.Keys(o.Pass())
	e := make([]approx, keys)
	for r := range o.Heads * o.Rows() {
		x := in["x"].row(r)[:first+r%o.Rows()]
		top := math.Inf(-1)
		for _, v := range x {
			top = max(top, v)
		}
		for j, v := range x {
			e[j] = exact(v).add(exact(-top)).exp()
		}
		all := total(e[:len(x)])
		for j := range x {
			out.set(r, j, e[j].div(all))
		}
	}
}

func context(o *engine.Context, out output, in map[string]input) {
	_, first, keys := o.Keys(o.Pass())
	v := byDimension(in["v"], keys)
	seen := make([]vector, len(v))
	for t := range o.Rows() {
		n := first + t
		for i := range v {
			seen[i] = measured(v[i][:n])
		}
		for h := range o.Heads {
			kv := h / (o.Heads / o.KVHeads) * o.Dim
			p := measured(in["p"].row(h*o.Rows() + t)[:n])
			for i := range o.Dim {
				out.set(t, h*o.Dim+i, dot(p, seen[kv+i]).worst(0))
			}
		}
	}
}

// byDimension gives the first rows of a cache, column by column.
func byDimension(cache input, rows int) [][]float64 {
	columns, row := make([][]float64, cache.Cols), make([]float64, cache.Cols)
	for i := range columns {
		columns[i] = make([]float64, rows)
	}
	for j := range rows {
		cache.widen(row, j)
		for i, a := range row {
			columns[i][j] = a
		}
	}
	return columns
}

func activate(o *engine.Activate, out output, in map[string]input) {
	for t := range o.Rows() {
		gate, up := in["gate"].row(t), []float64(nil)
		if u, ok := in["up"]; ok {
			up = u.row(t)
		}
		for i, v := range gate {
			a := activation(o.F, v)
			if up != nil {
				a = a.mul(exact(up[i]))
			}
			out.set(t, i, a)
		}
	}
}

// activation is F(x), as the list in package engine reads.
func activation(f engine.Function, v float64) approx {
	x, one, half := exact(v), exact(1), exact(0.5)
	sigmoid := func(a approx) approx { return one.add(approx{-a.v, a.err}.exp()) } // its denominator
	switch f {
	case engine.ReLU:
		return exact(max(0, v))
	case engine.GELUTanh:
		inner := x.add(constant(0.044715).mul(x.mul(x).mul(x)))
		return half.mul(x).mul(one.add(constant(math.Sqrt(2 / math.Pi)).mul(inner).tanh()))
	case engine.SiLU:
		return x.div(sigmoid(x))
	case engine.GELU:
		return half.mul(x).mul(one.add(constant(1 / math.Sqrt2).mul(x).erf()))
	case engine.GELUSigmoid:
		return x.div(sigmoid(constant(1.702).mul(x)))
	case engine.Tanh:
		return x.tanh()
	case engine.Sigmoid:
		return one.div(sigmoid(x))
	}
	panic(fmt.Sprintf("BUG: no activation function %d", int(f)))
}

func softCap(o *engine.SoftCap, out output, in map[string]input) {
	bound := exact(float64(o.Cap))
	for t := range o.Rows() {
		for i, v := range in["x"].row(t) {
			out.set(t, i, bound.mul(exact(v).div(bound).tanh()))
		}
	}
}

func add(o *engine.Add, out output, in map[string]input) {
	for t := range o.Rows() {
		a, b := in["a"].row(t), in["b"].row(t)
		for i := range a {
			out.set(t, i, exact(a[i]).add(exact(b[i])))
		}
	}
}
