package shadow

import (
	"math"

	"llmrun/internal/cpuref/oracle"
	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// verdict is an output that is beyond its bound.
type verdict struct {
	op engine.Op
	oracle.Judged
	oracle.Report
	got     []float64
	written []byte // got, as bytes
	held    []byte // what the buffer held there before, as far as it is known
	last    []byte // what the op wrote in the pass before, if that was of a single token
}

// bad tells whether element i is beyond its bound.
func (v *verdict) bad(i int) bool { return v.Strays(i, v.got[i]) > 1 }

// cols is the length of a row.
func (v *verdict) cols() int { return v.Operand.Cols }

// nonFinite counts the NaNs and infinities that are beyond their bounds.
func (v *verdict) nonFinite() (n int) {
	for i, got := range v.got {
		if (math.IsNaN(got) || math.IsInf(got, 0)) && v.bad(i) {
			n++
		}
	}
	return n
}

func (v *verdict) finding() (Finding, error) {
	site := v.op.Site()
	f := Finding{Step: site.Step, Layer: site.Layer, Site: site.Name, Family: string(v.op.Family()), Op: kind(v.op), Operand: v.Operand.Name,
		Elements: v.Elements, Bad: v.Bad, Ratio: ctconv.Number(v.WorstRatio)}
	f.NonFinite = v.nonFinite()
	i := v.WorstIndex
	inputs, err := inputs(v.op, i/v.cols(), i%v.cols())
	if err != nil {
		return Finding{}, err
	}
	f.Worst = Worst{Row: i / v.cols(), Col: i % v.cols(), Inputs: inputs, Want: ctconv.Number(v.Want[i]), Got: ctconv.Number(v.got[i]),
		Error: ctconv.Number(math.Abs(v.got[i] - v.Want[i])), Allowed: ctconv.Number(v.Allowed[i])}
	f.Why, err = v.why()
	return f, err
}

// place is an element of an operand.
type place struct {
	name     string // of the operand
	row, col int
	as       string // what to call it; "": the operand's name
}

// inputs reads what element (r, c) of op's output was made of, where that is few values.
func inputs(op engine.Op, r, c int) ([]Input, error) {
	var places []place
	switch o := op.(type) {
	case *engine.Embed:
		places = []place{{"ids", 0, r, "id"}, {"positions", r, c, "position"}}
	case *engine.RMSNorm:
		places = []place{{"x", r, c, ""}, {"w", 0, c % o.Dim, ""}}
	case *engine.LayerNorm:
		places = []place{{"x", r, c, ""}, {"w", 0, c, ""}, {"bias", 0, c, ""}}
	case *engine.RoPE:
		if c%o.Dim >= o.RotaryDim {
			places = []place{{"x", r, c, ""}}
			break
		}
		first, second, pair := pair(o, c)
		places = []place{{"x", r, first, "a"}, {"x", r, second, "b"}, {"table", r, pair, "cos"}, {"table", r, o.RotaryDim/2 + pair, "sin"}}
	case *engine.KVWrite:
		places = []place{{"k", r, c, ""}, {"v", r, c, ""}}
	case *engine.Softmax, *engine.SoftCap:
		places = []place{{"x", r, c, ""}}
	case *engine.Activate:
		places = []place{{"gate", r, c, ""}, {"up", r, c, ""}}
	case *engine.Add:
		places = []place{{"a", r, c, ""}, {"b", r, c, ""}}
	}
	list := []Input{}
	_, ins := op.Operands(nil, nil)
	for _, p := range places {
		for _, in := range ins {
			if in.Name != p.name {
				continue
			}
			host, err := in.Buffer.Host()
			if err != nil {
				return nil, err
			}
			name := p.as
			if name == "" {
				name = p.name
			}
			list = append(list, Input{name, ctconv.Number(num.Float32At(in.Buffer.DType(), host, in.Offset+p.row*in.Stride+p.col))})
		}
	}
	if o, ok := op.(*engine.Embed); ok && len(list) > 0 { // the row of the embedding that the id names
		host, err := o.W.Buffer.Host()
		if err != nil {
			return nil, err
		}
		list = append(list, Input{"w", ctconv.Number(num.Float32At(o.W.Buffer.DType(), host, int(list[0].Value)*o.W.Cols+c))})
	}
	return list, nil
}

// pair gives the columns that RoPE turns column c with, and which pair they are.
func pair(o *engine.RoPE, c int) (first, second, pair int) {
	head, i, half := c/o.Dim*o.Dim, c%o.Dim, o.RotaryDim/2
	if o.Interleaved {
		return head + i/2*2, head + i/2*2 + 1, i / 2
	}
	return head + i%half, head + i%half + half, i % half
}
