package shadow

import (
	"math"
	"slices"
	"strings"
	"testing"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// at tells whether op is the one named, in its first layer or outside the layers.
func at(op engine.Op, site string) bool { return op.Site().Name == site && op.Site().Layer <= 0 }

// instead is a backend that runs another op at a site.
func instead[O engine.Op](site string, change func(O) engine.Op) func(engine.Backend) *faulty {
	return func(b engine.Backend) *faulty {
		return &faulty{Backend: b, run: func(op engine.Op) engine.Op {
			if o, ok := op.(O); ok && at(op, site) {
				return change(o)
			}
			return op
		}}
	}
}

// altered is a backend that changes a site's output, rows one after the other, once it has run.
func altered(site string, change func(op engine.Op, out []float32)) func(engine.Backend) *faulty {
	return func(b engine.Backend) *faulty {
		return &faulty{Backend: b, after: func(op engine.Op) {
			if !at(op, site) {
				return
			}
			outs, _ := op.Operands(nil, nil)
			out := take(outs[0])
			change(op, out)
			put(outs[0], out)
		}}
	}
}

// take reads an operand; put writes it.
func take(o engine.Operand) []float32 {
	host, _ := o.Buffer.Host()
	out := make([]float32, o.Rows*o.Cols)
	for i := range out {
		out[i] = num.Float32At(o.Buffer.DType(), host, o.Offset+i/o.Cols*o.Stride+i%o.Cols)
	}
	return out
}

func put(o engine.Operand, v []float32) {
	host, _ := o.Buffer.Host()
	for i, x := range v {
		num.PutFloat32(o.Buffer.DType(), host, o.Offset+i/o.Cols*o.Stride+i%o.Cols, x)
	}
}

func operand(op engine.Op, name string) []float32 {
	_, ins := op.Operands(nil, nil)
	return take(ins[slices.IndexFunc(ins, func(o engine.Operand) bool { return o.Name == name })])
}

// moved is an op's place in a pass whose first position is another.
func moved(p engine.Place, by int) engine.Place {
	pass := *p.In
	pass.Pos += by
	p.In = &pass
	return p
}

func scaled(by float32) func(engine.Op, []float32) {
	return func(_ engine.Op, out []float32) {
		for i := range out {
			out[i] *= by
		}
	}
}

// rescored computes scores or context with a wrong KV head.
func rescored(site string, kv func(h, kvHeads int) int) func(engine.Backend) *faulty {
	return altered(site, func(op engine.Op, out []float32) {
		switch o := op.(type) {
		case *engine.Scores:
			q, k := operand(op, "q"), operand(op, "k")
			_, first, keys := o.Keys(o.In)
			for i := range out {
				r, j := i/keys, i%keys
				h, t := r/o.Rows(), r%o.Rows()
				if out[i] = 0; j < first+t {
					for d := range o.Dim {
						out[i] += q[(t*o.Heads+h)*o.Dim+d] * k[(j*o.KVHeads+kv(h, o.KVHeads))*o.Dim+d]
					}
					out[i] *= o.Scale
				}
			}
		case *engine.Context:
			p, v := operand(op, "p"), operand(op, "v")
			_, first, keys := o.Keys(o.In)
			for i := range out {
				t, h, d := i/(o.Heads*o.Dim), i/o.Dim%o.Heads, i%o.Dim
				out[i] = 0
				for j := range first + t {
					out[i] += p[(h*o.Rows()+t)*keys+j] * v[(j*o.KVHeads+kv(h, o.KVHeads))*o.Dim+d]
				}
			}
		}
	})
}

// masked recomputes a softmax in which row t sees the keys [from, to(first+t)).
func masked(from int, to func(n, keys int) int) func(engine.Backend) *faulty {
	return altered("softmax", func(op engine.Op, out []float32) {
		o, x := op.(*engine.Softmax), operand(op, "x")
		_, first, keys := o.Keys(o.In)
		for r := range o.Heads * o.Rows() {
			row, sum := out[r*keys:][:keys], 0.0
			end := to(first+r%o.Rows(), keys)
			for j := range row {
				if row[j] = 0; j >= from && j < end {
					sum += math.Exp(float64(x[r*keys+j]))
				}
			}
			for j := from; j < end; j++ {
				row[j] = float32(math.Exp(float64(x[r*keys+j])) / sum)
			}
		}
	})
}

// Each mistake is found where it is made, and named.
func TestWhy(t *testing.T) {
	const gemma, qwen, gpt = "tiny-gemma2", "tiny-qwen2", "v3"
	for _, c := range []struct {
		model, site string
		fault       func(engine.Backend) *faulty
		op, why     string // "" why: nothing is claimed but where
	}{
		{gemma, "act", instead("act", func(o *engine.Activate) engine.Op { x := *o; x.F = engine.GELU; return &x }), "gelu_tanh", "it is gelu, not gelu_tanh"},
		{gemma, "act", instead("act", func(o *engine.Activate) engine.Op { x := *o; x.F = engine.SiLU; return &x }), "gelu_tanh", "it is silu, not gelu_tanh"},
		{qwen, "act", instead("act", func(o *engine.Activate) engine.Op { x := *o; x.F = engine.ReLU; return &x }), "silu", "it is relu, not silu"},
		{qwen, "act", instead("act", func(o *engine.Activate) engine.Op { x := *o; x.Up = nil; return &x }), "silu", "up is left out"},
		{qwen, "act", instead("act", func(o *engine.Activate) engine.Op { x := *o; x.Up, x.Gate = o.Gate, o.Up; return &x }), "silu", "gate and up are swapped"},
		{gemma, "attn_norm", instead("attn_norm", func(o *engine.RMSNorm) engine.Op { x := *o; x.Offset = 0; return &x }), "rms_norm", "the weight counts as 0 + w, not 1 + w"},
		{qwen, "attn_norm", instead("attn_norm", func(o *engine.RMSNorm) engine.Op { x := *o; x.Offset = 1; return &x }), "rms_norm", "the weight counts as 1 + w, not 0 + w"},
		{gemma, "attn_norm", instead("attn_norm", func(o *engine.RMSNorm) engine.Op { x := *o; x.Eps = 1e-3; return &x }), "rms_norm", "epsilon is 0.001, not 1e-06"},
		{gemma, "final_norm", altered("final_norm", func(op engine.Op, out []float32) { copy(out, operand(op, "x")) }), "rms_norm", "the norm is left out"},
		{gemma, "attn_norm", altered("attn_norm", scaled(float32(math.Sqrt(144.0/128)))), "rms_norm", "times 1.0607 = √(144/128)"},
		{qwen, "qkv", instead("qkv", func(o *engine.Linear) engine.Op { x := *o; x.Bias = nil; return &x }), "linear", "the bias is left out"},
		{gemma, "down", altered("down", func(op engine.Op, out []float32) {
			for i := range out {
				if i%128 >= 112 {
					out[i] = 0
				}
			}
		}), "linear", "all wrong elements are 0"},
		{gemma, "down", altered("down", func(op engine.Op, out []float32) {
			for i := range out {
				out[i] = num.Float16ToFloat32(num.Float32ToFloat16(out[i]))
			}
		}), "linear", "every wrong element is a float16 value"},
		{gemma, "o_proj", altered("o_proj", func(op engine.Op, out []float32) {
			for i := range out[:128] {
				out[i] += 1
			}
		}), "linear", ""},
		{gemma, "q_rope", instead("q_rope", func(o *engine.RoPE) engine.Op { x := *o; x.Place = moved(o.Place, 1); return &x }), "rope", "the position is one too far"},
		{gemma, "k_rope", instead("k_rope", func(o *engine.RoPE) engine.Op { x := *o; x.Interleaved = !o.Interleaved; return &x }), "rope", "the pairs are interleaved, not half-split"},
		{gemma, "k_rope", altered("k_rope", func(op engine.Op, out []float32) { copy(out, operand(op, "x")) }), "rope", "nothing is rotated"},
		{qwen, "q_rope", altered("q_rope", func(op engine.Op, out []float32) {
			o, x := op.(*engine.RoPE), operand(op, "x")
			for i := range out {
				first, second, pair := pair(o, i%(o.Heads*o.Dim))
				row := i / (o.Heads * o.Dim)
				angle := float64(o.In.Pos+row) * math.Pow(10000, -2*float64(pair)/float64(o.RotaryDim))
				a, b := float64(x[row*o.Heads*o.Dim+first]), float64(x[row*o.Heads*o.Dim+second])
				if out[i] = float32(a*math.Cos(angle) - b*math.Sin(angle)); i%(o.Heads*o.Dim) == second {
					out[i] = float32(b*math.Cos(angle) + a*math.Sin(angle))
				}
			}
		}), "rope", "the base is 10000"},
		{gemma, "kv_write", func(b engine.Backend) *faulty {
			return &faulty{Backend: b, run: func(op engine.Op) engine.Op {
				if at(op, "kv_write") {
					return nil
				}
				return op
			}}
		}, "kv_write", "are 0"},
		{gemma, "kv_write", instead("kv_write", func(o *engine.KVWrite) engine.Op { x := *o; x.K, x.V = o.V, o.K; return &x }), "kv_write", "keys and values are swapped"},
		{gemma, "kv_write", instead("kv_write", func(o *engine.KVWrite) engine.Op {
			x := *o
			x.Place = moved(o.Place, 1)
			return &x
		}), "kv_write", "in the cache +1 rows from their place"},
		{gemma, "scores", rescored("scores", func(h, kv int) int { return h % kv }), "scores", "head h reads KV head h mod 2"},
		{gemma, "scores", altered("scores", scaled(float32(math.Sqrt(36)))), "scores", "times 6"},
		{gemma, "context", rescored("context", func(h, kv int) int { return h % kv }), "context", "head h reads KV head h mod 2"},
		{gemma, "softmax", masked(0, func(_, keys int) int { return keys }), "softmax", "the mask is left out"},
		{gemma, "softmax", masked(1, func(n, _ int) int { return n }), "softmax", "the oldest key is not seen"},
		{gemma, "embed", instead("embed", func(o *engine.Embed) engine.Op { x := *o; x.Scale = 1; return &x }), "embed", "is left out"},
		{"m_softcap", "logits", altered("logits", func(op engine.Op, out []float32) { copy(out, operand(op, "x")) }), "soft_cap", "the cap is left out"},
		{gemma, "attn_residual", altered("attn_residual", func(op engine.Op, out []float32) { copy(out, operand(op, "a")) }), "add", "b is left out"},
		{gpt, "attn_norm", altered("attn_norm", func(op engine.Op, out []float32) {
			o, x, w, bias := op.(*engine.LayerNorm), operand(op, "x"), operand(op, "w"), operand(op, "bias")
			for i := range out {
				row, squares := x[i/o.Dim*o.Dim:][:o.Dim], 0.0
				for _, a := range row {
					squares += float64(a) * float64(a)
				}
				out[i] = float32(float64(x[i])/math.Sqrt(squares/float64(o.Dim)+float64(o.Eps))*float64(w[i%o.Dim]) + float64(bias[i%o.Dim]))
			}
		}), "layer_norm", "it is an RMSNorm"},
		{gemma, "act", altered("act", func(op engine.Op, out []float32) {
			gate := operand(op, "gate")
			for i, x := range gate {
				if u := math.Sqrt(2/math.Pi) * float64(x+0.044715*x*x*x); u > 44.36 {
					out[i] = float32(math.NaN())
				}
			}
		}), "gelu_tanh", "exp(2u) leaves float32 above u = 44.36"},
	} {
		t.Run(c.site+" "+c.why, func(t *testing.T) {
			layers := c.fault
			if strings.Contains(c.why, "leaves float32") { // the layer that has such an input
				inner := c.fault
				layers = func(b engine.Backend) *faulty {
					f := inner(b)
					after := f.after
					f.after = func(op engine.Op) {
						if o, ok := op.(*engine.Activate); ok {
							x := *o
							x.Layer = 0
							after(&x)
						}
					}
					return f
				}
			}
			text, steps := text, 4
			if c.model == gemma {
				text, steps = story, 9
			}
			w := follow(t, c.model, layers(cpu(t)), text, steps)
			list := w.Findings()
			if len(list) == 0 {
				t.Fatal("nothing was found")
			}
			f := list[0]
			t.Logf("%+v", f)
			if f.Site != c.site || f.Op != c.op || f.Between != nil || f.Bad == 0 || !slices.ContainsFunc(f.Why, func(s string) bool { return strings.Contains(s, c.why) }) {
				t.Errorf("want %s %s, because %s", c.site, c.op, c.why)
			}
			for _, other := range list {
				if other.Site != c.site {
					t.Errorf("%+v is innocent", other)
				}
			}
			if cells := w.Cells(); !slices.ContainsFunc(cells, func(c Cell) bool { return c.Bad > 0 && c.Ratio > 1 && c.Site == f.Site }) {
				t.Errorf("no cell tells of it: %v", cells)
			}
		})
	}
}
