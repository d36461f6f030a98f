// Package oracle computes every op again in float64, from the op's own inputs, as its formula reads, and beside each value
// how far a right answer may stray from it: whatever the order in which a backend sums in float32, whether it fuses multiply
// and add, with the accuracies that Metal's precise functions promise. So it judges any backend, and an op by itself:
// one that hands on what was already wrong is innocent.
package oracle

import (
	"fmt"
	"math"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// Judge computes what op should have written. It reads op's inputs as they are: no op writes what it reads, so
// they are there before and after.
func Judge(op engine.Op) ([]Judged, error) {
	outs, ins := op.Operands(nil, nil)
	in := map[string]input{}
	for _, o := range ins {
		opened, err := read(o)
		if err != nil {
			return nil, fmt.Errorf("%v: %s: %w", op.Site(), o.Name, err)
		}
		in[o.Name] = opened
	}
	judged := make([]Judged, len(outs))
	out := make([]output, len(outs))
	for i, o := range outs {
		judged[i] = Judged{o, make([]float64, o.Rows*o.Cols), make([]float64, o.Rows*o.Cols)}
		out[i] = output{&judged[i], o.Buffer.DType()}
	}
	switch o := op.(type) {
	case *engine.Embed:
		return judged, embed(o, out[0], in)
	case *engine.RMSNorm:
		rmsNorm(o, out[0], in)
	case *engine.LayerNorm:
		layerNorm(o, out[0], in)
	case *engine.Linear:
		if o.Quantized {
			quantizedLinear(o, out[0], in)
		} else {
			linear(o, out[0], in)
		}
	case *engine.RoPE:
		rope(o, out[0], in)
	case *engine.KVWrite:
		copied(out[0], in["k"])
		copied(out[1], in["v"])
	case *engine.Scores:
		scores(o, out[0], in)
	case *engine.Softmax:
		softmax(o, out[0], in)
	case *engine.Context:
		context(o, out[0], in)
	case *engine.Activate:
		activate(o, out[0], in)
	case *engine.Add:
		add(o, out[0], in)
	case *engine.SoftCap:
		softCap(o, out[0], in)
	default:
		panic(fmt.Sprintf("BUG: %v: no op %T", op.Site(), op))
	}
	return judged, nil
}

// input is an operand that is read.
type input struct {
	engine.Operand
	data []byte
}

func read(o engine.Operand) (input, error) {
	data, err := o.Buffer.Host()
	if err != nil {
		return input{}, err
	}
	if end := o.Offset + (o.Rows-1)*o.Stride + o.Cols; end > o.Buffer.Len() {
		return input{}, fmt.Errorf("reaches to element %d of a buffer of %d", end, o.Buffer.Len())
	}
	return input{o, data}, nil
}

// row gives row r in float64.
func (in input) row(r int) []float64 {
	wide := make([]float64, in.Cols)
	in.widen(wide, r)
	return wide
}

// widen puts row r into wide.
func (in input) widen(wide []float64, r int) {
	d := in.Buffer.DType()
	Widen(wide, d, in.data[(in.Offset+r*in.Stride)*d.Size():])
}

// all gives all rows, one after the other.
func (in input) all() []float64 {
	all := make([]float64, in.Rows*in.Cols)
	for r := range in.Rows {
		in.widen(all[r*in.Cols:][:in.Cols], r)
	}
	return all
}

// weights is a matrix, of int8 with the scales of its rows.
type weights struct {
	input
	scale []byte // float32; nil: none
}

// weightsOf gives matrix "w".
func weightsOf(in map[string]input) weights {
	w := weights{input: in["w"]}
	if scale, ok := in["scale"]; ok {
		w.scale = scale.data[scale.Offset*num.Float32.Size():]
	}
	return w
}

// widen puts row n into wide.
func (w weights) widen(wide []float64, n int) {
	if w.scale == nil {
		w.input.widen(wide, n)
		return
	}
	scaled(wide, w.data[w.Offset+n*w.Stride:], num.Float32At(num.Float32, w.scale, n))
}

// output is an operand that is judged.
type output struct {
	*Judged
	dtype num.DType
}

// reserve is what is allowed over what the analysis says. A single operation, correctly rounded, goes as far as it says; with this a clean
// run stays at two thirds of every bound, and one that comes nearer is worth a look.
const reserve = 1.5

// set states element i of row r. Storing as a 16-bit type rounds once more, by 2^-Digits relative, or by half its least number among the
// subnormal ones, which as bfloat16 may be flushed instead (a half's may not: Metal Shading Language Specification, §8.1). A value that no
// arithmetic has touched has one right answer.
func (o output) set(r, i int, a approx) {
	switch {
	case o.dtype == num.Float32:
	case a.err == 0:
		a.v = o.dtype.Round(a.v)
	default:
		p := o.dtype.Precision()
		a.err += max(math.Ldexp(math.Abs(a.v)+a.err, -p.Digits), p.Least/2)
		if o.dtype == num.BFloat16 && math.Abs(a.v)-a.err < tiny {
			a.err += tiny
		}
	}
	o.Want[r*o.Operand.Cols+i], o.Allowed[r*o.Operand.Cols+i] = a.v, reserve*a.err
}
