package shadow

import (
	"encoding/binary"
	"fmt"
	"math"

	"llmrun/internal/cpuref/oracle"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// variant is a known way to get an op wrong: what element (r, c) of the output would be, and how far rounding may move it.
type variant struct {
	what string
	at   func(r, c int) (want, allowed float64)
}

const unit = 0x1p-24 // the most that rounding to float32 moves a value, relative to it

// values reads an operand.
type values struct {
	engine.Operand
	data    []byte
	scale   []byte // of each row of an int8 matrix
	divides bool   // it does, and does not multiply
}

func (m values) at(r, c int) float64 {
	v := num.Float32At(m.Buffer.DType(), m.data, m.Offset+r*m.Stride+c)
	if m.scale == nil {
		return float64(v)
	}
	scale := num.Float32At(num.Float32, m.scale, r)
	if m.divides {
		return float64(v) / float64(scale)
	}
	return float64(v * scale)
}

// widen puts elements of row r from column c on into wide.
func (m values) widen(wide []float64, r, c int) {
	d := m.Buffer.DType()
	oracle.Widen(wide, d, m.data[(m.Offset+r*m.Stride+c)*d.Size():])
	if m.scale == nil {
		return
	}
	scale := num.Float32At(num.Float32, m.scale, r)
	for i, v := range wide {
		if m.divides {
			wide[i] = v / float64(scale)
		} else {
			wide[i] = float64(float32(v) * scale)
		}
	}
}

// pieces gives n elements of row r from column c on, widened: they hold until others are asked for.
func (m values) pieces(n int) func(r, c int) []float64 {
	wide, row, col := make([]float64, n), -1, 0
	return func(r, c int) []float64 {
		if r != row || c != col {
			m.widen(wide, r, c)
			row, col = r, c
		}
		return wide
	}
}

func (m values) exists() bool { return m.Buffer != nil }

// reader gives op's operands by name; one that it does not have does not exist.
type reader map[string]values

func read(op engine.Op) (reader, error) {
	in := reader{}
	_, ins := op.Operands(nil, nil)
	for _, o := range ins {
		data, err := o.Buffer.Host()
		if err != nil {
			return nil, err
		}
		in[o.Name] = values{Operand: o, data: data}
	}
	if s, ok := in["scale"]; ok {
		w := in["w"]
		w.scale = s.data
		if o, ok := op.(*engine.Linear); ok {
			w.divides = o.Quantized
		}
		in["w"] = w
	}
	return in, nil
}

// variants lists the mistakes that are known of the op.
func (v *verdict) variants(in reader) []variant {
	var list []variant
	switch o := v.op.(type) {
	case *engine.Embed:
		list = v.embedVariants(o, in)
	case *engine.RMSNorm:
		list = v.rmsNormVariants(o, in)
	case *engine.LayerNorm:
		list = v.layerNormVariants(o, in)
	case *engine.Linear:
		list = v.linearVariants(o, in)
	case *engine.RoPE:
		list = v.ropeVariants(o, in)
	case *engine.KVWrite:
		list = v.kvWriteVariants(in)
	case *engine.Scores:
		list = v.scoresVariants(o, in)
	case *engine.Softmax:
		list = v.softmaxVariants(o, in)
	case *engine.Context:
		list = v.contextVariants(o, in)
	case *engine.Activate:
		list = v.activateVariants(o, in)
	case *engine.Add:
		list = v.addVariants(in)
	case *engine.SoftCap:
		list = []variant{v.copied("the cap is left out: it is the input", in["x"])}
		for _, limit := range []float32{30, 50} {
			other := *o
			other.Cap = limit
			list = append(list, v.judged(fmt.Sprintf("the cap is %g instead of %g", limit, o.Cap), &other))
		}
	}
	return append(list, v.moved()...)
}

// judged is the variant of which another op is right.
func (v *verdict) judged(what string, op engine.Op) variant {
	var want *oracle.Judged
	return variant{what, func(r, c int) (float64, float64) {
		if want == nil {
			want = &oracle.Judged{}
			if all, err := oracle.Judge(op); err == nil {
				*want = all[0]
			}
		}
		if len(want.Want) != len(v.got) { // it reads what is not there
			return math.NaN(), 0
		}
		return want.Want[r*v.cols()+c], want.Allowed[r*v.cols()+c]
	}}
}

// made is a variant of values that pass so many roundings to float32, relative to size.
func (v *verdict) made(what string, roundings float64, f func(r, c int) (want, size float64)) variant {
	d := v.Operand.Buffer.DType()
	return variant{what, func(r, c int) (float64, float64) {
		want, size := f(r, c)
		allowed := roundings*unit*size + 0x1p-126
		if d != num.Float32 {
			p := d.Precision()
			allowed += max(math.Ldexp(math.Abs(want)+allowed, -p.Digits), p.Least)
		}
		return want, allowed
	}}
}

// copied is a variant that is an input as it is.
func (v *verdict) copied(what string, x values) variant {
	return v.made(what, 0, func(r, c int) (float64, float64) { return x.at(r, c), 0 })
}

// moved are the right values at the wrong place. Nothing is said of what came from outside.
func (v *verdict) moved() (list []variant) {
	rows, cols := v.Operand.Rows, v.Operand.Cols
	right := func(r, c int) (float64, float64) {
		if r < 0 || r >= rows || c < 0 || c >= cols {
			return math.NaN(), math.Inf(1)
		}
		return v.Want[r*cols+c], v.Allowed[r*cols+c]
	}
	if rows > 1 {
		list = append(list,
			variant{"each row holds what belongs in the row after it", func(r, c int) (float64, float64) { return right(r+1, c) }},
			variant{"each row holds what belongs in the row before it", func(r, c int) (float64, float64) { return right(r-1, c) }},
			variant{"all rows hold what belongs in the first", func(_, c int) (float64, float64) { return right(0, c) }})
	}
	return append(list,
		variant{"each column holds what belongs in the column after it", func(r, c int) (float64, float64) { return right(r, c+1) }},
		variant{"each column holds what belongs in the column before it", func(r, c int) (float64, float64) { return right(r, c-1) }})
}

func (v *verdict) embedVariants(o *engine.Embed, in reader) (list []variant) {
	ids, w := in["ids"], in["w"]
	if o.Scale != 1 {
		plain := *o
		plain.Scale = 1
		list = append(list, v.judged(fmt.Sprintf("the embedding's scale, %g, is left out", o.Scale), &plain))
		twice := *o
		twice.Scale *= o.Scale
		list = append(list, v.judged(fmt.Sprintf("the embedding's scale, %g, is applied twice", o.Scale), &twice))
	}
	if o.Positions != nil {
		plain := *o
		plain.Positions = nil
		list = append(list, v.judged("the positions are left out", &plain))
		for _, by := range []int{1, -1} {
			pass, other := *o.In, *o
			pass.Pos += by
			other.In = &pass
			if pass.Pos >= 0 {
				list = append(list, v.judged(fmt.Sprintf("the positions are off by %+d", by), &other))
			}
		}
		return list
	}
	id := func(t int) int { return int(int32(binary.LittleEndian.Uint32(ids.data[4*(ids.Offset+t):]))) }
	row := func(what string, of func(t int) int) variant {
		return v.made(what, 1, func(t, c int) (float64, float64) {
			r := of(t)
			if r < 0 || r >= o.W.Rows {
				return math.NaN(), 0
			}
			a := w.at(r, c) * float64(o.Scale)
			return a, math.Abs(a)
		})
	}
	return append(list,
		row("it is the embedding of the id after", func(t int) int { return id(t) + 1 }),
		row("it is the embedding of the id before", func(t int) int { return id(t) - 1 }),
		row("it is the embedding of id 0", func(int) int { return 0 }))
}

func (v *verdict) addVariants(in reader) []variant {
	a, b := in["a"], in["b"]
	sum := func(what string, x, y float64) variant {
		return v.made(what, 3, func(r, c int) (float64, float64) {
			p, q := x*a.at(r, c), y*b.at(r, c)
			return p + q, math.Abs(p) + math.Abs(q)
		})
	}
	return []variant{v.copied("b is left out: it is a", a), v.copied("a is left out: it is b", b),
		sum("b is subtracted", 1, -1), sum("a is subtracted", -1, 1), sum("a is added twice", 2, 1), sum("b is added twice", 1, 2)}
}

func (v *verdict) kvWriteVariants(in reader) (list []variant) {
	own, other := in["k"], in["v"]
	if v.Operand.Name == "vcache" {
		own, other = other, own
	}
	list = append(list, v.copied("keys and values are swapped", other))
	for _, by := range []int{1, -1} {
		list = append(list, v.made(fmt.Sprintf("the elements are those %+d beside", by), 0, func(r, c int) (float64, float64) {
			i := own.Offset + r*own.Stride + c + by
			if i < 0 || i >= own.Buffer.Len() {
				return math.NaN(), 0
			}
			return float64(num.Float32At(own.Buffer.DType(), own.data, i)), 0
		}))
	}
	return list
}

func (v *verdict) activateVariants(o *engine.Activate, in reader) (list []variant) {
	gate, up := in["gate"], in["up"]
	for f := engine.ReLU; f <= engine.Sigmoid; f++ {
		if f != o.F {
			other := *o
			other.F = f
			list = append(list, v.judged(fmt.Sprintf("it is %v, not %v", f, o.F), &other))
		}
	}
	product := func(what string, f func(x float64) float64) variant {
		return v.made(what, 16, func(r, c int) (float64, float64) {
			a := f(gate.at(r, c))
			if up.exists() {
				a *= up.at(r, c)
			}
			return a, math.Abs(a)
		})
	}
	list = append(list, product("the function is left out", func(x float64) float64 { return x }),
		product("the gate passes through integers", func(x float64) float64 { return math.Trunc(max(0, x)) }),
		product("the cubic term of the tanh's argument is left out", func(x float64) float64 {
			return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*x))
		}))
	if up.exists() {
		plain, swapped := *o, *o
		plain.Up = nil
		swapped.Gate, swapped.Up = o.Up, o.Gate
		list = append(list, v.judged("up is left out: it is the function of the gate alone", &plain),
			v.judged("gate and up are swapped", &swapped))
	}
	return list
}
