package oracle

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"sync"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

func copied(out output, in input) {
	for t := range in.Rows {
		for i, v := range in.row(t) {
			out.set(t, i, exact(v))
		}
	}
}

func embed(o *engine.Embed, out output, in map[string]input) error {
	for t := range o.Rows() {
		id := int(int32(binary.LittleEndian.Uint32(in["ids"].data[4*(in["ids"].Offset+t):])))
		if id < 0 || id >= o.W.Rows {
			return fmt.Errorf("%v: token id %d, the vocabulary has %d", o.Site(), id, o.W.Rows)
		}
		var positions []float64
		if p, ok := in["positions"]; ok {
			positions = p.row(t)
		}
		for i, v := range weights(in, id) {
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
	w := in["w"].row(0)
	for t := range o.Rows() {
		row := in["x"].row(t)
		for h := range o.Heads {
			x := row[h*o.Dim:][:o.Dim]
			all := dot(x, x)
			all.sizeA = absolute(x)
			all.sizeB = all.sizeA
			squares := all.inLanes()
			overflows := math.IsInf(squares.err, 1)
			if overflows {
				squares.err = 0
			}
			root := squares.div(exact(float64(o.Dim))).add(exact(float64(o.Eps))).sqrt()
			inv := exact(1).div(root)
			if overflows { // an infinite sum makes it 0
				inv.err += inv.v
			}
			for i, v := range x {
				gain := exact(float64(o.Offset)).add(exact(w[i]))
				out.set(t, h*o.Dim+i, exact(v).mul(inv).mul(gain))
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
	x, sizeX := make([][]float64, o.Rows()), make([]float64, o.Rows())
	for t := range x {
		x[t] = in["x"].row(t)
		sizeX[t] = absolute(x[t])
	}
	extra := 0
	if o.W.Scale != nil {
		extra = 1 // the scale may be applied to the sum instead of the weight
	}
	bias, biased := in["bias"]
	share(o.W.Rows, func(n int) {
		w := weights(in, n)
		sizeW := absolute(w)
		for t := range x {
			s := dot(x[t], w)
			s.sizeA, s.sizeB = sizeX[t], sizeW
			a := s.likely(extra)
			if biased {
				a = a.add(exact(float64(num.Float32At(num.Float32, bias.data, bias.Offset+n))))
			}
			out.set(t, n, a)
		}
	})
}

// share calls f for every n in [0, rows), a part of them on each core: most of a model's work is in linears.
func share(rows int, f func(n int)) {
	var wait sync.WaitGroup
	part := rows/runtime.GOMAXPROCS(0) + 1
	for from := 0; from < rows; from += part {
		wait.Go(func() {
			for n := from; n < min(from+part, rows); n++ {
				f(n)
			}
		})
	}
	wait.Wait()
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
	k := make([][]float64, keys)
	for j := range k {
		k[j] = in["k"].row(j)
	}
	for t := range o.Rows() {
		q := in["q"].row(t)
		for h := range o.Heads {
			kv := h / (o.Heads / o.KVHeads) * o.Dim
			for j := range first + t { // the rest stays 0, exactly
				out.set(h*o.Rows()+t, j, likeness(q[h*o.Dim:][:o.Dim], k[j][kv:][:o.Dim]).mul(exact(float64(o.Scale))))
			}
		}
	}
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
	v := make([][]float64, o.KVHeads*o.Dim) // by dimension
	for i := range v {
		v[i] = make([]float64, keys)
	}
	for j := range keys {
		for i, a := range in["v"].row(j) {
			v[i][j] = a
		}
	}
	for h := range o.Heads {
		kv := h / (o.Heads / o.KVHeads) * o.Dim
		for t := range o.Rows() {
			n := first + t
			p := in["p"].row(h*o.Rows() + t)[:n]
			for i := range o.Dim {
				out.set(t, h*o.Dim+i, sum(p, v[kv+i][:n], 0))
			}
		}
	}
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
