package backendtest

import (
	"fmt"
	"math"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

var weightTypes = []num.DType{num.Float32, num.Float16, num.BFloat16, num.Int8}

// Cases gives the table: every op with every type of weight, in sizes that hurt and in the models' own.
func Cases() []Case {
	var all []Case
	for _, list := range [][]Case{embeds(), norms(), layerNorms(), linears(), quantizedLinears(), ropes(), kvWrites(), attentions(), activations(), adds(), softCaps()} {
		all = append(all, list...)
	}
	return all
}

func embeds() (cases []Case) {
	for _, d := range weightTypes {
		for _, cols := range []int{1, 31, 33, 896} {
			for _, scale := range []float32{1, 29.933260} { // √896, as Gemma has it
				cases = append(cases, Case{fmt.Sprintf("embed/%v/%d×%g", d, cols, scale), func(m *maker) engine.Op {
					return embed(m, d, cols, scale)
				}})
			}
			cases = append(cases, Case{fmt.Sprintf("embed/%v/%d, positions", d, cols), func(m *maker) engine.Op {
				o := embed(m, d, cols, 1)
				o.Positions = m.vector(m.random((o.In.Pos+o.In.Rows)*cols, 1))
				return o
			}})
		}
	}
	return cases
}

func embed(m *maker, d num.DType, cols int, scale float32) *engine.Embed {
	return &engine.Embed{Place: place("embed", engine.FamilyEmbed, engine.Pass{Rows: 5, Pos: 4}),
		Out: m.out(5 * cols), IDs: m.ids(0, 10, 3, 3, 7), W: m.matrix(d, 11, cols), Scale: scale}
}

func norms() (cases []Case) {
	add := func(name string, rows, heads, dim int, offset float32, x func(m *maker, n int) []float32) {
		cases = append(cases, Case{fmt.Sprintf("rms_norm/%s/%dx%dx%d", name, rows, heads, dim), func(m *maker) engine.Op {
			width := heads * dim
			return &engine.RMSNorm{Place: place("attn_norm", engine.FamilyNorm, engine.Pass{Rows: rows}),
				Out: m.out(rows * width), X: m.view(x(m, rows*width), width), W: m.vector(m.random(dim, 2)),
				Heads: heads, Dim: dim, Eps: 1e-6, Offset: offset}
		}})
	}
	of := func(size float64) func(m *maker, n int) []float32 {
		return func(m *maker, n int) []float32 { return m.random(n, size) }
	}
	for _, dim := range []int{1, 31, 32, 33, 128, 257, 352, 896, 2304} {
		add("plain", 3, 1, dim, 0, of(3))
	}
	for _, dim := range []int{33, 128, 2304} {
		add("plus one", 1, 1, dim, 1, of(3))
	}
	add("heads", 5, 4, 33, 0, of(1))
	add("heads", 2, 3, 256, 1, of(1))
	add("large", 2, 1, 352, 0, of(1e4))
	add("eps counts", 2, 1, 352, 0, of(1e-3))
	add("zero", 2, 1, 33, 1, func(m *maker, n int) []float32 { return make([]float32, n) })
	add("not finite", 4, 1, 33, 1, func(m *maker, n int) []float32 {
		x := m.random(n, 1)
		x[0], x[33+32], x[2*33+5] = float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))
		return x
	})
	return cases
}

func layerNorms() (cases []Case) {
	add := func(name string, rows, dim int, x func(m *maker, n int) []float32) {
		cases = append(cases, Case{fmt.Sprintf("layer_norm/%s/%dx%d", name, rows, dim), func(m *maker) engine.Op {
			return &engine.LayerNorm{Place: place("attn_norm", engine.FamilyNorm, engine.Pass{Rows: rows}),
				Out: m.out(rows * dim), X: m.buffer(x(m, rows*dim)), W: m.vector(m.random(dim, 2)), Bias: m.vector(m.random(dim, 1)),
				Dim: dim, Eps: 1e-5}
		}})
	}
	for _, dim := range []int{1, 31, 32, 33, 257, 768} {
		add("plain", 3, dim, func(m *maker, n int) []float32 { return m.random(n, 3) })
	}
	add("far from zero", 2, 257, func(m *maker, n int) []float32 {
		x := m.random(n, 1)
		for i := range x {
			x[i] += 50
		}
		return x
	})
	add("constant", 2, 33, func(_ *maker, n int) []float32 { return repeat(3, n) })
	add("not finite", 3, 33, func(m *maker, n int) []float32 {
		x := m.random(n, 1)
		x[0], x[33+32], x[2*33+5] = float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))
		return x
	})
	return cases
}

func linears() (cases []Case) {
	shapes := []struct{ rows, in, out int }{
		{1, 1, 1}, {1, 7, 3}, {1, 31, 33}, {1, 32, 32}, {1, 33, 31}, {1, 257, 5}, {1, 128, 352}, {1, 352, 128}, {1, 896, 128}, {1, 2304, 33},
		{2, 33, 31}, {3, 8, 1}, {5, 1, 9}, {5, 257, 33}, {5, 128, 352}, {5, 896, 64}, {8, 131, 67}, {17, 32, 17}, {33, 128, 65}, {64, 64, 64},
		// tiles and steps cut short: of 32 rows, of 64 outputs, of 32 inputs and of vectors of four
		{9, 1, 1}, {9, 2, 9}, {9, 3, 63}, {9, 4, 64}, {9, 5, 65}, {9, 6, 5}, {9, 7, 130}, {32, 32, 64}, {33, 31, 63}, {64, 33, 65}, {130, 67, 1},
		{130, 97, 129}, {33, 899, 35}}
	for _, d := range weightTypes {
		for _, s := range shapes {
			for _, bias := range []bool{false, true} {
				name := fmt.Sprintf("linear/%v/%dx%dx%d", d, s.rows, s.in, s.out)
				if bias {
					name += "+bias"
				}
				cases = append(cases, Case{name, func(m *maker) engine.Op {
					return newLinear(m, d, m.random(s.rows*s.in, 2), s.in, s.out, bias)
				}})
			}
		}
		cases = append(cases, Case{fmt.Sprintf("linear/%v/not finite", d), func(m *maker) engine.Op {
			x := m.random(4*33, 1)
			x[0], x[33+32], x[2*33+5] = float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))
			return newLinear(m, d, x, 33, 17, true)
		}}, Case{fmt.Sprintf("linear/%v/large", d), func(m *maker) engine.Op { // past what a half holds, where there are halves
			return newLinear(m, d, m.random(3*257, 6e4), 257, 33, false)
		}})
	}
	return cases
}

func newLinear(m *maker, d num.DType, x []float32, in, out int, bias bool) *engine.Linear {
	rows := len(x) / in
	o := &engine.Linear{Place: place("qkv", engine.FamilyLinear, engine.Pass{Rows: rows}),
		Out: m.out(rows * out), X: m.buffer(x), W: m.matrix(d, out, in)}
	if bias {
		o.Bias = m.vector(m.random(out, 1))
	}
	return o
}

func ropes() (cases []Case) {
	for _, s := range []struct{ rows, pos, heads, dim, rotary int }{
		{1, 0, 1, 2, 2}, {5, 0, 4, 32, 32}, {3, 7, 2, 66, 66}, {1, 4000, 9, 64, 64}, {2, 129, 3, 256, 256}, {5, 1, 2, 80, 32}, {2, 40, 3, 33, 16}} {
		for _, interleaved := range []bool{false, true} {
			name := fmt.Sprintf("rope/%d at %d, %dx%d/%d", s.rows, s.pos, s.heads, s.rotary, s.dim)
			if interleaved {
				name += " interleaved"
			}
			cases = append(cases, Case{name, func(m *maker) engine.Op {
				width := s.heads * s.dim
				return &engine.RoPE{Place: place("q_rope", engine.FamilyRoPE, engine.Pass{Rows: s.rows, Pos: s.pos}),
					Out: m.out(s.rows * width), X: m.view(m.random(s.rows*width, 8), width), Table: m.table(s.pos+s.rows, s.rotary),
					Heads: s.heads, Dim: s.dim, RotaryDim: s.rotary, Interleaved: interleaved}
			}})
		}
	}
	return cases
}

func kvWrites() (cases []Case) {
	for _, s := range []struct{ rows, pos, width int }{{1, 0, 1}, {1, 7, 33}, {5, 0, 64}, {3, 4, 257}, {33, 2, 192}} {
		cases = append(cases, Case{fmt.Sprintf("kv_write/%d at %d, %d", s.rows, s.pos, s.width), func(m *maker) engine.Op {
			n := s.rows * s.width
			return &engine.KVWrite{Place: place("kv_write", engine.FamilyKV, engine.Pass{Rows: s.rows, Pos: s.pos}),
				KCache: m.out((s.pos + s.rows + 1) * s.width), VCache: m.out((s.pos + s.rows + 1) * s.width),
				K: m.view(m.random(n, 5), s.width), V: m.view(m.random(n, 5), s.width), Width: s.width}
		}})
	}
	return cases
}

// special are the inputs that functions trip over: GELU's tanh leaves float32 near 10.06, exp at 88.7, and a
// half ends at 65504. Subnormals are left out: a backend may flush them.
func special(d num.DType) []float32 {
	v := []float32{0, float32(math.Copysign(0, -1)), 1e-4, 0.5, 1, 3, 9.5, 10, 10.06, 10.5, 11.6, 14.9, 15.1, 20, 43.7, 44, 44.4, 88, 88.7, 89, 100, 104, 1e4}
	if d != num.Float16 {
		v = append(v, 0x1p-120, 1e-30, 1e6, 7e12, 1e20)
	}
	for _, x := range v {
		v = append(v, -x)
	}
	return v
}

func activations() (cases []Case) {
	for f := engine.ReLU; f <= engine.Sigmoid; f++ {
		for _, gated := range []bool{false, true} {
			add := func(name string, dim int, values func(m *maker) []float32) {
				if gated {
					name += " gated"
				}
				cases = append(cases, Case{fmt.Sprintf("activate/%v/%s", f, name), func(m *maker) engine.Op {
					gate := values(m)
					o := &engine.Activate{Place: place("act", engine.FamilyActivation, engine.Pass{Rows: len(gate) / dim}),
						Out: m.out(len(gate)), Gate: m.buffer(gate), Dim: dim, F: f}
					if gated {
						o.Up = m.buffer(m.random(len(gate), 20))
					}
					return o
				}})
			}
			for _, dim := range []int{1, 31, 33, 352} {
				add(fmt.Sprint(dim), dim, func(m *maker) []float32 { return m.random(3*dim, 12) })
			}
			add("special", 1, func(m *maker) []float32 { return special(m.b.Activations()) })
			add("not finite", 3, func(*maker) []float32 {
				return []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}
			})
		}
	}
	return cases
}

func adds() (cases []Case) {
	op := func(m *maker, a, b []float32, dim int) engine.Op {
		return &engine.Add{Place: place("attn_residual", engine.FamilyResidual, engine.Pass{Rows: len(a) / dim}),
			Out: m.out(len(a)), A: m.buffer(a), B: m.buffer(b), Dim: dim}
	}
	for _, dim := range []int{1, 31, 32, 33, 257, 2304} {
		cases = append(cases, Case{fmt.Sprintf("add/%d", dim), func(m *maker) engine.Op {
			return op(m, m.random(3*dim, 9), m.random(3*dim, 9), dim)
		}})
	}
	return append(cases, Case{"add/special", func(m *maker) engine.Op {
		values := append(special(m.b.Activations()), 6e4, -6e4, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()))
		var a, b []float32
		for _, x := range values {
			for _, y := range values {
				a, b = append(a, x), append(b, y)
			}
		}
		return op(m, a, b, len(values))
	}})
}

func softCaps() (cases []Case) {
	add := func(name string, dim int, x func(m *maker) []float32) {
		cases = append(cases, Case{"soft_cap/" + name, func(m *maker) engine.Op {
			v := x(m)
			return &engine.SoftCap{Place: place("logits", engine.FamilyLMHead, engine.Pass{Rows: len(v) / dim}),
				Out: m.out(len(v)), X: m.buffer(v), Dim: dim, Cap: 30}
		}})
	}
	for _, dim := range []int{1, 31, 257, 896} {
		add(fmt.Sprint(dim), dim, func(m *maker) []float32 { return m.random(2*dim, 90) })
	}
	add("special", 1, func(m *maker) []float32 {
		return append(special(m.b.Activations()), float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)))
	})
	return cases
}
