package metal

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// fused is ops that become one kernel.
type fused struct {
	name   string
	kernel string // without its types
	ops    []engine.Op
	binds  string // "out=2.out q=0.q": for each of the kernel's buffers which op's operand it is
}

// everyFusion makes ops for each fused kernel in each of its ways, on so many rows.
func everyFusion(act num.DType, rows int, buf func(num.DType, int) engine.Buffer) (all []fused) {
	const pos, heads, kvHeads, dim, capacity = 3, 6, 2, 10, 160
	pass := &engine.Pass{Step: 1, Rows: rows, Pos: pos}
	if rows == 1 {
		pass.Span.Decode = true
	}
	place := func(name string) engine.Place { return engine.Place{In: pass, Layer: 2, Name: name} }
	hidden := func(cols int) engine.Buffer { return buf(act, rows*cols) }
	view := func(cols int) engine.View { return engine.View{Buffer: hidden(cols + 4), Offset: 4, Stride: cols + 4} }
	att := engine.Attention{Heads: heads, KVHeads: kvHeads, Dim: dim}
	const width = kvHeads * dim
	scores, weights, k, v := buf(act, heads*rows*(pos+rows)), buf(act, heads*rows*(pos+rows+dim)), buf(act, capacity*width), buf(act, capacity*width)
	variant := "attention"
	if rows > 1 {
		variant = "attention4"
	}
	all = append(all, fused{"attention", variant, []engine.Op{
		&engine.Scores{Place: place("scores"), Attention: att, Out: scores, Q: view(heads * dim), K: k, Scale: 0.3},
		&engine.Softmax{Place: place("softmax"), Attention: att, Out: weights, X: scores},
		&engine.Context{Place: place("context"), Attention: att, Out: hidden(heads * dim), P: weights, V: v},
	}, "out=2.out q=0.q k=0.k v=2.v"})
	for _, d := range []int{1, 31, 32, 33, 257, 896} {
		x, y, normed, next, a, w, nextW := hidden(d), hidden(d), hidden(d), hidden(d), hidden(d), buf(num.Float32, d), buf(num.Float32, d)
		before := &engine.RMSNorm{Place: place("post_attn_norm"), Out: normed, X: engine.View{Buffer: x, Stride: d}, W: w, Heads: 1, Dim: d, Eps: 1e-6, Offset: 1}
		add := &engine.Add{Place: place("attn_residual"), Out: y, A: a, B: normed, Dim: d}
		after := &engine.RMSNorm{Place: place("ffn_norm"), Out: next, X: engine.View{Buffer: y, Stride: d}, W: nextW, Heads: 1, Dim: d, Eps: 1e-5}
		plain := *add
		plain.B = x
		all = append(all,
			fused{fmt.Sprint("norm, add of ", d), "residual", []engine.Op{before, add}, "y=1.out next=1.out a=1.a b=0.x w=0.w nextW=0.w"},
			fused{fmt.Sprint("add, norm of ", d), "residual", []engine.Op{&plain, after}, "y=0.out next=1.out a=0.a b=0.b w=1.w nextW=1.w"},
			fused{fmt.Sprint("norm, add, norm of ", d), "residual", []engine.Op{before, add, after}, "y=1.out next=2.out a=1.a b=0.x w=0.w nextW=2.w"})
	}
	for _, rotary := range []int{dim, 6} {
		for _, interleaved := range []bool{false, true} {
			table, turned := buf(num.Float32, capacity*rotary), hidden(width)
			rope := func(site string, out engine.Buffer, heads int) *engine.RoPE {
				return &engine.RoPE{Place: place(site), Out: out, X: view(heads * dim), Table: table, Heads: heads, Dim: dim, RotaryDim: rotary, Interleaved: interleaved}
			}
			q, k := rope("q_rope", hidden(heads*dim), heads), rope("k_rope", turned, kvHeads)
			write := &engine.KVWrite{Place: place("kv_write"), KCache: buf(act, capacity*width), VCache: buf(act, capacity*width),
				K: engine.View{Buffer: turned, Stride: width}, V: view(width), Width: width}
			all = append(all, fused{fmt.Sprintf("rope of %d, interleaved %t", rotary, interleaved), "rope_kv", []engine.Op{q, k, write},
				"out=0.out kcache=2.kcache vcache=2.vcache q=0.x k=1.x v=2.v table=0.table"})
			norm := func(site string, r *engine.RoPE) (*engine.RMSNorm, *engine.RoPE) {
				n := &engine.RMSNorm{Place: place(site), Out: hidden(r.Heads * dim), X: r.X, W: buf(num.Float32, dim), Heads: r.Heads, Dim: dim, Eps: 1e-6, Offset: 1}
				turn := *r
				turn.X = engine.View{Buffer: n.Out, Stride: r.Heads * dim}
				return n, &turn
			}
			qNorm, q := norm("q_norm", q)
			kNorm, k := norm("k_norm", k)
			all = append(all, fused{fmt.Sprintf("norm, rope of %d, interleaved %t", rotary, interleaved), "norm_rope_kv", []engine.Op{qNorm, kNorm, q, k, write},
				"out=2.out kcache=4.kcache vcache=4.vcache q=0.x k=1.x v=4.v table=2.table qW=0.w kW=1.w"})
		}
	}
	if rows > 1 {
		return all
	}
	for _, w := range []num.DType{num.Float32, num.Float16, num.BFloat16, num.Int8} {
		for _, s := range [][2]int{{5, 7}, {16, 32}, {33, 130}, {352, 129}} {
			x, gate, up := hidden(s[1]), hidden(s[0]), hidden(s[0])
			matrix := func() engine.Matrix {
				m := engine.Matrix{Buffer: buf(w, s[0]*s[1]), Rows: s[0], Cols: s[1]}
				if w == num.Int8 {
					m.Scale = buf(num.Float32, s[0])
				}
				return m
			}
			binds := "out=2.out x=0.x gate=0.w gateScale=0.w up=1.w upScale=1.w"
			if w == num.Int8 {
				binds = "out=2.out x=0.x gate=0.w gateScale=0.scale up=1.w upScale=1.scale"
			}
			for _, f := range []engine.Function{engine.GELUTanh, engine.SiLU} {
				all = append(all, fused{fmt.Sprintf("gate, up of %d×%d %v, %v", s[0], s[1], w, f), "gate_up", []engine.Op{
					&engine.Linear{Place: place("gate"), Out: gate, X: x, W: matrix()}, &engine.Linear{Place: place("up"), Out: up, X: x, W: matrix()},
					&engine.Activate{Place: place("act"), Out: hidden(s[0]), Gate: gate, Up: up, Dim: s[0], F: f}}, binds})
			}
		}
	}
	return all
}

// TestFusedBindings runs every fusion on the recorder, and holds what the kernel is given to what it takes.
func TestFusedBindings(t *testing.T) {
	shaders := readShaders(t)
	for _, act := range []num.DType{num.Float32, num.Float16, num.BFloat16} {
		for _, rows := range []int{1, 5} {
			b, buf := recorder(act)
			fuseAll(b)
			for _, f := range everyFusion(act, rows, buf) {
				d := f.record(t, b)
				s, name := shaders[d.key.shader], d.key.name(act)
				if want := f.kernel + suffixes[act] + suffixes[d.key.weight]; name != want || !s.instances[name] {
					t.Fatalf("%s: became %s, want %s, which the shader has: %t", f.name, name, want, s.instances[name])
				}
				if d.site != f.ops[0].Site() {
					t.Errorf("%s: at %v, its first op is at %v", f.name, d.site, f.ops[0].Site())
				}
				var params []string
				for i, bind := range strings.Fields(f.binds) {
					param, from, _ := strings.Cut(bind, "=")
					params = append(params, param)
					o := f.operand(from)
					if want := (slot{o.Buffer.(*buffer).mtl, uint(o.Offset * o.Buffer.DType().Size())}); d.slots[i] != want {
						t.Errorf("%s: %s is bound to %+v, want %s, %+v", f.name, param, d.slots[i], from, want)
					}
				}
				if got := strings.Join(s.parameters, " "); got != strings.Join(append(params, "args"), " ") || d.slotCount != len(params) || d.argsLen != 4*len(s.argsFields) {
					t.Errorf("%s: the kernel takes %s and %d fields, is given %v and %d bytes", f.name, got, len(s.argsFields), params, d.argsLen)
				}
			}
		}
	}
}

// fuseAll turns all fusions on, of a recorder too.
func fuseAll(b *Backend) {
	b.fuses, b.lost = make([]bool, len(fusions)), map[mtlBuffer]bool{}
	for i := range b.fuses {
		b.fuses[i] = true
	}
}

// record gives the dispatch that the ops become on a recorder.
func (f *fused) record(t *testing.T, b *Backend) dispatch {
	t.Helper()
	b.pending = b.pending[:0]
	for _, op := range f.ops {
		b.Run(op)
	}
	if b.err != nil || len(b.pending) != 1 {
		t.Fatalf("%s: %d dispatches, %v", f.name, len(b.pending), b.err)
	}
	return b.pending[0]
}

// operand finds "2.out".
func (f *fused) operand(name string) engine.Operand {
	out, in := f.ops[name[0]-'0'].Operands(nil, nil)
	for _, o := range append(out, in...) {
		if o.Name == name[2:] {
			return o
		}
	}
	panic("BUG: no operand " + name)
}

// TestFusedBits: a fused kernel writes what its parts write, bit for bit, and nothing else. Attention rounds otherwise: see TestAttention.
func TestFusedBits(t *testing.T) {
	for _, act := range []num.DType{num.Float32, num.Float16, num.BFloat16} {
		b := open(t, Options{Activations: act, Fuse: true})
		for _, rows := range []int{1, 2, 7, 128} {
			for _, f := range everyFusion(act, rows, newBuffers(t, b)) {
				if f.name == "attention" {
					continue
				}
				r := rand.New(rand.NewPCG(8, 9))
				for _, op := range f.ops {
					fill(t, r, op)
				}
				plain := f.run(t, b, true)
				for i, got := range f.run(t, b, false) {
					if got != nil && !bytes.Equal(got, plain[i]) {
						t.Errorf("%v, %d rows, %s: %s differs", act, rows, f.name, f.outputs()[i].Name)
					}
				}
			}
		}
	}
}

func (f *fused) outputs() (all []engine.Operand) {
	for _, op := range f.ops {
		out, _ := op.Operands(nil, nil)
		all = append(all, out...)
	}
	return all
}

// run clears what the ops write, runs them, one by one or as they come, and gives what they have written; nil for what is lost.
func (f *fused) run(t *testing.T, b *Backend, oneByOne bool) (written [][]byte) {
	t.Helper()
	for _, o := range f.outputs() {
		host, err := o.Buffer.Host()
		if err != nil {
			t.Fatal(err)
		}
		clear(host)
	}
	for _, op := range f.ops {
		b.Run(op)
		if oneByOne {
			if n := len(b.pending); n != 1 || b.pending[0].key.shader == strings.TrimSuffix(f.kernel, "4") {
				t.Fatalf("%s, looked at in between: %s is one of %d dispatches", f.name, b.pending[n-1].key.shader, n)
			}
			if err := b.Sync(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := len(b.pending); !oneByOne && (n != 1 || b.pending[0].key.shader+b.pending[0].key.variant != f.kernel) {
		t.Fatalf("%s became %d dispatches", f.name, n)
	}
	for _, o := range f.outputs() {
		lost := b.lost[o.Buffer.(*buffer).mtl]
		host, err := o.Buffer.Host()
		if err != nil {
			t.Fatal(err)
		}
		if lost {
			host = nil
		}
		written = append(written, bytes.Clone(host))
	}
	return written
}

// TestNotFused: parts that are not joined as they have to be stay what they are.
func TestNotFused(t *testing.T) {
	b, buf := recorder(num.Float32)
	fuseAll(b)
	other := func(n int) engine.Buffer { return buf(num.Float32, n) }
	for name, change := range map[string]func(f *fused){
		"attention: the softmax of other scores":          func(f *fused) { f.ops[1].(*engine.Softmax).X = other(400) },
		"attention: the context of other weights":         func(f *fused) { f.ops[2].(*engine.Context).P = other(400) },
		"attention: it writes its queries":                func(f *fused) { f.ops[2].(*engine.Context).Out = f.ops[0].(*engine.Scores).Q.Buffer },
		"attention: it writes where the weights were":     func(f *fused) { f.ops[2].(*engine.Context).Out = f.ops[1].(*engine.Softmax).Out },
		"norm, add of 31: the sum takes the norm's place": func(f *fused) { f.ops[1].(*engine.Add).Out = f.ops[1].(*engine.Add).B },
		"attention: one head of values":                   func(f *fused) { f.ops[2].(*engine.Context).KVHeads = 1 },
		"norm, add, norm of 31: other rows are added":     func(f *fused) { f.ops[1].(*engine.Add).B = other(5 * 31) },
		"norm, add of 31: heads are normed": func(f *fused) {
			n := f.ops[0].(*engine.RMSNorm)
			n.Heads, n.Dim = 31, 1
		},
		"norm, add of 32: rows with gaps are normed": func(f *fused) {
			n := f.ops[0].(*engine.RMSNorm)
			n.X = engine.View{Buffer: other(5 * 33), Stride: 33}
		},
		"add, norm of 33: another sum is normed": func(f *fused) { f.ops[1].(*engine.RMSNorm).X.Buffer = other(5 * 33) },
		"add, norm of 33: the norm takes the place of a summand": func(f *fused) {
			f.ops[1].(*engine.RMSNorm).Out = f.ops[0].(*engine.Add).A
		},
		"norm, rope of 6, interleaved true: other norms' sizes":   func(f *fused) { f.ops[1].(*engine.RMSNorm).Eps = 1e-5 },
		"norm, rope of 6, interleaved true: keys of another norm": func(f *fused) { f.ops[3].(*engine.RoPE).X.Buffer = other(100) },
		"norm, rope of 6, interleaved true: a norm over the key's heads": func(f *fused) {
			n := f.ops[1].(*engine.RMSNorm)
			n.Heads, n.Dim = 1, 20
			n.W = other(20)
		},
		"gate, up of 5×7 float32, silu: another input": func(f *fused) { f.ops[1].(*engine.Linear).X = other(7) },
		"gate, up of 5×7 int8, silu: a bias":           func(f *fused) { f.ops[1].(*engine.Linear).Bias = other(5) },
		"gate, up of 5×7 float32, silu: up and gate": func(f *fused) {
			a := f.ops[2].(*engine.Activate)
			a.Gate, a.Up = a.Up, a.Gate
		},
		"rope of 10, interleaved false: another table":     func(f *fused) { f.ops[1].(*engine.RoPE).Table = other(1600) },
		"rope of 10, interleaved false: other keys cached": func(f *fused) { f.ops[2].(*engine.KVWrite).K.Buffer = other(100) },
		"rope of 6, interleaved true: other pairs":         func(f *fused) { f.ops[1].(*engine.RoPE).Interleaved = false },
	} {
		which, _, _ := strings.Cut(name, ":")
		found := false
		rows := 5
		if strings.HasPrefix(which, "gate") {
			rows = 1
		}
		for _, f := range everyFusion(num.Float32, rows, buf) {
			if f.name != which {
				continue
			}
			found = true
			change(&f)
			b.pending = b.pending[:0]
			for _, op := range f.ops {
				b.Run(op)
			}
			if b.err != nil || len(b.pending) < 2 {
				t.Errorf("%s: %d dispatches, %v", name, len(b.pending), b.err)
			}
		}
		if !found {
			t.Errorf("BUG: no fusion %q", which)
		}
	}
}

// TestLost: what a fused kernel does not write is NaN to the host, and an error to an op that reads it, until it is written again.
func TestLost(t *testing.T) {
	for _, act := range []num.DType{num.Float32, num.Float16, num.BFloat16} {
		b := open(t, Options{Activations: act, Fuse: true})
		f := everyFusion(act, 2, newBuffers(t, b))[0]
		run := func() {
			for _, op := range f.ops {
				b.Run(op)
			}
		}
		weights := f.ops[1].(*engine.Softmax).Out
		first := func() float64 {
			host, err := weights.Host()
			if err != nil {
				t.Fatal(err)
			}
			return float64(num.Float32At(act, host, 0))
		}
		run()
		if v := first(); !math.IsNaN(v) {
			t.Errorf("%v: a lost weight is %g", act, v)
		}
		b.Run(f.ops[0])
		b.Run(f.ops[1])
		if v := first(); !(v >= 0) {
			t.Errorf("%v: a weight that was written again is %g", act, v)
		}
		run()
		b.Run(f.ops[2])
		if err := b.Sync(); err == nil || !strings.Contains(err.Error(), "step 1 layer 2 context: metal: p is lost") {
			t.Errorf("%v: an op that reads what is lost: %v", act, err)
		}
	}
}

// TestSetFusion: a fusion that is off is not made, and the others are.
func TestSetFusion(t *testing.T) {
	b, buf := recorder(num.Float32)
	fuseAll(b)
	for _, kernel := range fusedKernels {
		name := kernel.Name
		b.SetFusion(name, false)
		for _, f := range everyFusion(num.Float32, 1, buf) {
			b.pending = b.pending[:0]
			for _, op := range f.ops {
				b.Run(op)
			}
			if n := len(b.pending); (n > 1) != (strings.HasPrefix(f.kernel, name)) || b.err != nil {
				t.Errorf("without %s: %s becomes %d dispatches, %v", name, f.name, n, b.err)
			}
		}
		b.SetFusion(name, true)
	}
}
