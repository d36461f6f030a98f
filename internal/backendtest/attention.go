package backendtest

import (
	"fmt"
	"math"

	"llmrun/internal/engine"
)

// passes are the ways in which CTranslate2 lets tokens see keys. See engine.Span.
var passes = []struct {
	name   string
	window int
	pass   engine.Pass
}{
	{"prefill 1", 0, engine.Pass{Rows: 1}},
	{"prefill 5", 0, engine.Pass{Rows: 5}},
	{"prefill 33", 0, engine.Pass{Rows: 33}},
	{"prefill 3 more", 0, engine.Pass{Rows: 3, Pos: 5}},
	{"decode at 0", 0, engine.Pass{Rows: 1, Span: engine.Span{Decode: true}}},
	{"decode at 31", 0, engine.Pass{Rows: 1, Pos: 31, Span: engine.Span{Decode: true}}},
	{"decode at 32", 0, engine.Pass{Rows: 1, Pos: 32, Span: engine.Span{Decode: true}}},
	{"decode at 256", 0, engine.Pass{Rows: 1, Pos: 256, Span: engine.Span{Decode: true}}},
	{"decode at 2, window 4", 4, engine.Pass{Rows: 1, Pos: 2, Span: engine.Span{Decode: true}}},
	{"decode at 40, window 33", 33, engine.Pass{Rows: 1, Pos: 40, Span: engine.Span{Decode: true}}},
	{"second chunk", 0, engine.Pass{Rows: 4, Pos: 4, Span: engine.Span{Chunk: 4, ChunkStart: 4}}},
	{"second chunk, window", 4, engine.Pass{Rows: 4, Pos: 4, Span: engine.Span{Chunk: 4, ChunkStart: 4}}},
	{"third chunk", 0, engine.Pass{Rows: 3, Pos: 8, Span: engine.Span{Chunk: 4, ChunkStart: 8}}},
	{"third chunk, window, its second half", 4, engine.Pass{Rows: 2, Pos: 10, Span: engine.Span{Chunk: 4, ChunkStart: 8}}},
}

var heads = []engine.Attention{
	{Heads: 1, KVHeads: 1, Dim: 32}, {Heads: 4, KVHeads: 2, Dim: 33}, {Heads: 3, KVHeads: 3, Dim: 1},
	{Heads: 8, KVHeads: 1, Dim: 64}, {Heads: 9, KVHeads: 3, Dim: 64}, {Heads: 2, KVHeads: 1, Dim: 256}}

// attentions combines every pass with one or two of the heads.
func attentions() (cases []Case) {
	for i, p := range passes {
		for _, a := range []engine.Attention{heads[i%len(heads)], heads[(i+3)%len(heads)]} {
			a.Window = p.window
			name := fmt.Sprintf("%s, %d/%dx%d", p.name, a.Heads, a.KVHeads, a.Dim)
			cases = append(cases,
				Case{"scores/" + name, func(m *maker) engine.Op { return newScores(m, a, p.pass) }},
				Case{"context/" + name, func(m *maker) engine.Op { return newContext(m, a, p.pass) }},
				Case{"softmax/" + name, func(m *maker) engine.Op {
					_, _, keys := a.Keys(&p.pass)
					return newSoftmax(m, a, p.pass, m.random(a.Heads*p.pass.Rows*keys, 12))
				}})
		}
	}
	for name, x := range map[string][]float32{
		"all equal":        {7, 7, 7, 7, 7, 7, 7},
		"far below zero":   {-1e4, -1e4, -1e4, -1e4, -9.9e3, -1e4, -1e4},
		"one wins":         {-50, 3, 1e4, 12, 0, -1e4, 1},
		"zeros":            {0, float32(math.Copysign(0, -1)), 0, 0, 0, 0, 0},
		"underflow":        {0, -80, -87, -88, -100, -104, -200},
		"not a number":     {1, 2, float32(math.NaN()), 3, 4, 5, 6},
		"an infinity":      {1, 2, float32(math.Inf(1)), 3, 4, 5, 6},
		"minus infinities": {1, float32(math.Inf(-1)), 2, float32(math.Inf(-1)), 4, 5, 6},
	} {
		cases = append(cases, Case{"softmax/" + name, func(m *maker) engine.Op {
			return newSoftmax(m, engine.Attention{Heads: 1, KVHeads: 1, Dim: 1},
				engine.Pass{Rows: 1, Pos: len(x) - 1, Span: engine.Span{Decode: true}}, x)
		}})
	}
	return append(cases, Case{"context/the last value is NaN", func(m *maker) engine.Op {
		a, p := heads[1], engine.Pass{Rows: 3} // which the tokens before it must not see
		o := newContext(m, a, p)
		v := append(m.random(2*a.KVHeads*a.Dim, 3), repeat(float32(math.NaN()), a.KVHeads*a.Dim)...)
		put(m.tb, o.V, v)
		return o
	}})
}

// cache holds random rows where the pass looks, and NaN before and after.
func (m *maker) cache(a engine.Attention, p engine.Pass) engine.Buffer {
	m.tb.Helper()
	from, _, keys := a.Keys(&p)
	row := a.KVHeads * a.Dim
	all := repeat(float32(math.NaN()), (from+keys+2)*row)
	copy(all[from*row:], m.random(keys*row, 3))
	return m.buffer(all)
}

func newScores(m *maker, a engine.Attention, p engine.Pass) *engine.Scores {
	_, _, keys := a.Keys(&p)
	width := a.Heads * a.Dim
	return &engine.Scores{Place: place("scores", engine.FamilyScores, p), Attention: a,
		Out: m.out(a.Heads * p.Rows * keys), Q: m.view(m.random(p.Rows*width, 3), width), K: m.cache(a, p),
		Scale: float32(1 / math.Sqrt(float64(a.Dim)))}
}

func newSoftmax(m *maker, a engine.Attention, p engine.Pass, x []float32) *engine.Softmax {
	return &engine.Softmax{Place: place("softmax", engine.FamilySoftmax, p), Attention: a, Out: m.out(len(x)), X: m.buffer(x)}
}

// newContext has weights like a softmax's: none below 0, and 0 where a row does not attend.
func newContext(m *maker, a engine.Attention, p engine.Pass) *engine.Context {
	_, first, keys := a.Keys(&p)
	weights := m.random(a.Heads*p.Rows*keys, 2/float64(keys))
	for i, w := range weights {
		weights[i] = max(w, -w)
		if i%keys >= first+i/keys%p.Rows {
			weights[i] = 0
		}
	}
	return &engine.Context{Place: place("context", engine.FamilyContext, p), Attention: a,
		Out: m.out(p.Rows * a.Heads * a.Dim), P: m.buffer(weights), V: m.cache(a, p)}
}
