package metal

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"llmrun/internal/cpuref/oracle"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// attentionCase is the three ops of attention and what they read.
type attentionCase struct {
	name string
	engine.Attention
	pass    engine.Pass
	scale   float32
	q, k, v func(r *rand.Rand, row, i int) float64 // nil: random, of size 1
}

func decodeAt(pos int) engine.Pass {
	return engine.Pass{Step: 1, Rows: 1, Pos: pos, Span: engine.Span{Decode: true}}
}

func prefillAt(pos, rows int) engine.Pass { return engine.Pass{Rows: rows, Pos: pos} }

func same(v float64) func(*rand.Rand, int, int) float64 {
	return func(*rand.Rand, int, int) float64 { return v }
}

func attentionCases() (cases []attentionCase) {
	heads := []engine.Attention{{Heads: 14, KVHeads: 2, Dim: 64}, {Heads: 8, KVHeads: 4, Dim: 256}, {Heads: 4, KVHeads: 4, Dim: 128}, {Heads: 9, KVHeads: 3, Dim: 80},
		{Heads: 2, KVHeads: 1, Dim: 33}, {Heads: 5, KVHeads: 1, Dim: 1}, {Heads: 2, KVHeads: 2, Dim: 96}, {Heads: 3, KVHeads: 1, Dim: 255}, {Heads: 4, KVHeads: 2, Dim: 32}, {Heads: 2, KVHeads: 1, Dim: 129}}
	passes := []engine.Pass{decodeAt(0), decodeAt(31), decodeAt(127), decodeAt(128), decodeAt(1100), prefillAt(0, 2), prefillAt(0, 33), prefillAt(5, 3), prefillAt(300, 7),
		{Rows: 4, Pos: 8, Span: engine.Span{Chunk: 4, ChunkStart: 8}}}
	for i, p := range passes {
		for _, h := range []int{i, i + 3, i + 7} {
			for _, window := range []int{0, 5, 40} {
				a := heads[h%len(heads)]
				a.Window = window
				cases = append(cases, attentionCase{name: fmt.Sprintf("%d rows at %d, window %d, %d/%dx%d", p.Rows, p.Pos, window, a.Heads, a.KVHeads, a.Dim), Attention: a, pass: p})
			}
		}
	}
	a := engine.Attention{Heads: 4, KVHeads: 2, Dim: 64}
	one := engine.Attention{Heads: 2, KVHeads: 1, Dim: 64}
	add := func(name string, a engine.Attention, p engine.Pass, scale float32, q, k, v func(*rand.Rand, int, int) float64) {
		cases = append(cases, attentionCase{name, a, p, scale, q, k, v})
	}
	// A score's size grows with its key's row: up, down, or in turns, in steps that make each block's maximum another.
	rising := func(r *rand.Rand, row, _ int) float64 { return float64(row) / 20 }
	falling := func(r *rand.Rand, row, _ int) float64 { return -float64(row) / 20 }
	add("a long context", one, decodeAt(8191), 0, nil, nil, nil)
	for _, p := range []engine.Pass{decodeAt(2500), prefillAt(700, 5)} { // more than all simdgroups score at once
		add("equal scores", a, p, 0, same(0), nil, nil)
		add("rising scores", one, p, 0.1, same(1), rising, nil)
		add("falling scores", one, p, 0.1, same(1), falling, nil)
		add("scores of 1e4", one, p, 1, same(12.5), func(r *rand.Rand, _, i int) float64 { return float64(r.IntN(3)-1) * 12.5 }, nil)
		add("one dominates", one, p, 1, same(4), func(r *rand.Rand, row, _ int) float64 {
			if row == 333 {
				return 4
			}
			return -4
		}, nil)
		add("beyond float16", one, p, 1, same(100), func(_ *rand.Rand, row, i int) float64 { return 100 - float64(i%2*row%5)/16 }, nil)
		for _, name := range []string{"q", "k", "v"} {
			nan := func(r *rand.Rand, row, i int) float64 {
				if i == 7 && (row%703 == 1 || name == "q" && p.Rows == 1) {
					return math.NaN()
				}
				return r.NormFloat64()
			}
			c := attentionCase{name: "NaN in " + name, Attention: a, pass: p}
			*map[string]*func(*rand.Rand, int, int) float64{"q": &c.q, "k": &c.k, "v": &c.v}[name] = nan
			cases = append(cases, c)
		}
	}
	return cases
}

// ops makes the three ops, and what they read.
func (c attentionCase) ops(t testing.TB, act num.DType, buf func(num.DType, int) engine.Buffer) (*engine.Scores, *engine.Softmax, *engine.Context) {
	r := rand.New(rand.NewPCG(6, uint64(len(c.name))))
	p := c.pass
	from, _, keys := c.Keys(&p)
	width, kvWidth := c.Heads*c.Dim, c.KVHeads*c.Dim
	fill := func(b engine.Buffer, offset, stride, rows, cols, firstRow int, f func(*rand.Rand, int, int) float64) {
		bytes, err := b.Host()
		if err != nil {
			t.Fatal(err)
		}
		for i := range b.Len() {
			num.PutFloat32(act, bytes, i, float32(math.NaN()))
		}
		for row := range rows {
			for i := range cols {
				v := r.NormFloat64()
				if f != nil {
					v = f(r, firstRow+row, i)
				}
				num.PutFloat32(act, bytes, offset+row*stride+i, float32(v))
			}
		}
	}
	q := engine.View{Buffer: buf(act, 3+p.Rows*(width+5)), Offset: 3, Stride: width + 5}
	fill(q.Buffer, 3, width+5, p.Rows, width, 0, c.q)
	cache := func(f func(*rand.Rand, int, int) float64) engine.Buffer { // NaN before and after what the pass sees
		b := buf(act, (from+keys+1)*kvWidth)
		fill(b, from*kvWidth, kvWidth, keys, kvWidth, from, f)
		return b
	}
	place := func(name string) engine.Place { return engine.Place{In: &p, Layer: 1, Name: name} }
	scale := c.scale
	if scale == 0 {
		scale = float32(1 / math.Sqrt(float64(c.Dim)))
	}
	s := &engine.Scores{Place: place("scores"), Attention: c.Attention, Out: buf(act, c.Heads*p.Rows*keys), Q: q, K: cache(c.k), Scale: scale}
	x := &engine.Softmax{Place: place("softmax"), Attention: c.Attention, Out: buf(act, c.Heads*p.Rows*keys), X: s.Out}
	return s, x, &engine.Context{Place: place("context"), Attention: c.Attention, Out: buf(act, p.Rows*width), P: x.Out, V: cache(c.v)}
}

// TestAttention holds the fused kernel to the oracle of the three ops as one.
func TestAttention(t *testing.T) {
	for _, act := range []num.DType{num.Float32, num.Float16, num.BFloat16} {
		b := open(t, Options{Activations: act, Fuse: true})
		worst, in := 0.0, ""
		for _, c := range attentionCases() {
			t.Run(act.String()+" "+c.name, func(t *testing.T) {
				s, x, o := c.ops(t, act, newBuffers(t, b))
				b.Run(s)
				b.Run(x)
				b.Run(o)
				if n := len(b.pending); n != 1 || b.pending[0].key.shader != "attention" {
					t.Fatalf("%d dispatches, the last one is %s", n, b.pending[n-1].key.shader)
				}
				j, err := oracle.JudgeAttention(s, o)
				if err != nil {
					t.Fatal(err)
				}
				got, err := j.Got()
				if err != nil {
					t.Fatal(err)
				}
				r := j.Compare(got)
				if i := r.WorstIndex; !r.OK() {
					t.Errorf("%d of %d wrong; element %d is %g, want %g ± %.3g", r.Bad, r.Elements, i, got[i], j.Want[i], j.Allowed[i])
				}
				if r.WorstRatio > worst {
					worst, in = r.WorstRatio, c.name
				}
			})
		}
		t.Logf("%v: worst at %.3f of its bound (%s)", act, worst, in)
	}
}
