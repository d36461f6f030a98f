package backendtest

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

// properties need no oracle: each says that two answers are one, or that a failure is one.
var properties = map[string]func(t *testing.T, b engine.Backend){
	"a row alone equals the row in a batch":     rowAlone,
	"prefill of n tokens equals n decode steps": prefillIsDecode,
	"a quantized linear has one result":         oneResult,
	"softmax ignores a shift":                   softmaxShift,
	"rope keeps length":                         ropeLength,
	"equal KV heads make GQA of MHA":            equalHeads,
	"Host shows results and takes inputs":       hostAfterRun,
	"an op may change once Run has returned":    opChanges,
	"an unknown token id fails for good":        fails(unknownID),
	"a position beyond the rotary table fails":  fails(beyondTable),
	"a position beyond the learned ones fails":  fails(beyondPositions),
	"a position beyond the cache fails":         fails(beyondCache),
}

func newMaker(t *testing.T, b engine.Backend) *maker {
	return &maker{t, b, rand.New(rand.NewPCG(7, 1))}
}

// values reads elements [from, from+n) of a buffer.
func values(t *testing.T, b engine.Buffer, from, n int) []float32 {
	t.Helper()
	v := make([]float32, n)
	num.Float32s(v, b.DType(), host(t, b)[from*b.DType().Size():])
	return v
}

// same compares two answers to one question. The CPU reference promises the same bits; of another backend each answer
// is within its bound of the truth, so they differ by the two bounds at most.
func same(t *testing.T, b engine.Backend, what string, x, y []float32, boundX, boundY []float64) {
	t.Helper()
	differ, worst := 0, 0.0
	for i := range x {
		if x[i] == y[i] {
			continue
		}
		differ++
		ratio := math.Abs(float64(x[i])-float64(y[i])) / (boundX[i] + boundY[i])
		worst = max(worst, ratio)
		if b.Name() == "cpu" || !(ratio <= 1) {
			t.Errorf("%s: element %d: %g and %g, %.3g × what they may differ", what, i, x[i], y[i], ratio)
		}
	}
	if differ > 0 {
		t.Logf("%s: %d of %d elements differ, by %.3g × their bounds at most", what, differ, len(x), worst)
	}
}

func rowAlone(t *testing.T, b engine.Backend) {
	const rows, in, out = 5, 257, 33
	for _, d := range weightTypes {
		m := newMaker(t, b)
		x := m.random(rows*in, 2)
		batch := newLinear(m, d, x, in, out, true)
		together := check(t, b, batch)[0]
		for r := range rows {
			alone := *batch
			alone.Place = place("qkv", engine.FamilyLinear, engine.Pass{Rows: 1})
			alone.Out, alone.X = m.out(out), m.buffer(x[r*in:][:in])
			found := check(t, b, &alone)[0]
			same(t, b, fmt.Sprintf("%v row %d", d, r), values(t, alone.Out, 0, out), values(t, batch.Out, r*out, out),
				found.Allowed, together.Allowed[r*out:])
		}
	}
}

// prefillIsDecode runs attention over n tokens at once and one by one. What scores and weights may stray hands on to
// later ops, so for other backends than the reference each op is compared from the same inputs.
func prefillIsDecode(t *testing.T, b engine.Backend) {
	const n = 9
	a := engine.Attention{Heads: 4, KVHeads: 2, Dim: 33}
	m := newMaker(t, b)
	all := engine.Pass{Rows: n}
	s := newScores(m, a, all)
	allScores := check(t, b, s)[0]
	soft := newSoftmax(m, a, all, values(t, s.Out, 0, a.Heads*n*n))
	allWeights := check(t, b, soft)[0]
	c := newContext(m, a, all)
	put(t, c.P, values(t, soft.Out, 0, a.Heads*n*n))
	allContext := check(t, b, c)[0]

	width := a.Heads * a.Dim
	for pos := range n {
		step := engine.Pass{Rows: 1, Pos: pos, Span: engine.Span{Decode: true}}
		keys := pos + 1
		// rows picks row pos of each head of [Heads, n, n].
		rows := func(from []float32) (row []float32) {
			for h := range a.Heads {
				row = append(row, from[(h*n+pos)*n:][:keys]...)
			}
			return row
		}
		bounds := func(from []float64) (row []float64) {
			for h := range a.Heads {
				row = append(row, from[(h*n+pos)*n:][:keys]...)
			}
			return row
		}
		one := *s
		one.Place, one.Out = place("scores", engine.FamilyScores, step), m.out(a.Heads*keys)
		one.Q.Offset += pos * s.Q.Stride
		found := check(t, b, &one)[0]
		want := rows(values(t, s.Out, 0, a.Heads*n*n))
		same(t, b, fmt.Sprintf("scores of token %d", pos), values(t, one.Out, 0, a.Heads*keys), want, found.Allowed, bounds(allScores.Allowed))

		weights := newSoftmax(m, a, step, want)
		found = check(t, b, weights)[0]
		want = rows(values(t, soft.Out, 0, a.Heads*n*n))
		same(t, b, fmt.Sprintf("weights of token %d", pos), values(t, weights.Out, 0, a.Heads*keys), want, found.Allowed, bounds(allWeights.Allowed))

		ctx := *c
		ctx.Place, ctx.Out, ctx.P = place("context", engine.FamilyContext, step), m.out(width), m.buffer(want)
		found = check(t, b, &ctx)[0]
		same(t, b, fmt.Sprintf("context of token %d", pos), values(t, ctx.Out, 0, width), values(t, c.Out, pos*width, width),
			found.Allowed, allContext.Allowed[pos*width:])
	}
}

// softmaxShift adds 16 to multiples of 1/8, which any type holds exactly: the differences to the maximum stay the same, so all bits do.
func softmaxShift(t *testing.T, b engine.Backend) {
	m := newMaker(t, b)
	a, p := engine.Attention{Heads: 3, KVHeads: 3, Dim: 1}, engine.Pass{Rows: 7}
	x, shifted := make([]float32, 3*7*7), make([]float32, 3*7*7)
	for i := range x {
		x[i] = float32(m.rand.IntN(129)-64) / 8
		shifted[i] = x[i] + 16
	}
	plain, moved := newSoftmax(m, a, p, x), newSoftmax(m, a, p, shifted)
	check(t, b, plain)
	check(t, b, moved)
	if !bytes.Equal(host(t, plain.Out), host(t, moved.Out)) {
		t.Error("the weights change when 16 is added to all scores")
	}
}

// ropeLength: turned by an angle whose cosine and sine are rounded to float32 (2^-24 each of a square that sums to 1: 2^-22 is beyond
// that), a pair keeps its length, but for what the op may stray.
func ropeLength(t *testing.T, b engine.Backend) {
	const rows, heads, dim = 4, 3, 64
	m := newMaker(t, b)
	x := m.random(rows*heads*dim, 4)
	op := &engine.RoPE{Place: place("k_rope", engine.FamilyRoPE, engine.Pass{Rows: rows, Pos: 100}), Out: m.out(len(x)),
		X: m.view(x, heads*dim), Table: m.table(100+rows, dim), Heads: heads, Dim: dim, RotaryDim: dim}
	found := check(t, b, op)[0]
	for r := range rows {
		before := values(t, op.X.Buffer, op.X.Offset+r*op.X.Stride, heads*dim)
		after := values(t, op.Out, r*heads*dim, heads*dim)
		for h := range heads {
			for i := h * dim; i < h*dim+dim/2; i++ {
				square := func(v []float32) float64 { return math.Pow(float64(v[i]), 2) + math.Pow(float64(v[i+dim/2]), 2) }
				was, is := square(before), square(after)
				da, db := found.Allowed[r*heads*dim+i], found.Allowed[r*heads*dim+i+dim/2]
				allowed := was*0x1p-22 + 2*math.Sqrt(is)*(da+db) + da*da + db*db
				if !(math.Abs(is-was) <= allowed) {
					t.Errorf("row %d, element %d: a pair of square length %g has %g, may stray %g", r, i, was, is, allowed)
				}
			}
		}
	}
}

// equalHeads repeats two KV heads into four.
func equalHeads(t *testing.T, b engine.Backend) {
	m := newMaker(t, b)
	grouped := engine.Attention{Heads: 4, KVHeads: 2, Dim: 33}
	full := engine.Attention{Heads: 4, KVHeads: 4, Dim: 33}
	p := engine.Pass{Rows: 5}
	repeated := func(cache engine.Buffer) engine.Buffer {
		var all []float32
		for j := range 5 {
			for h := range full.KVHeads {
				all = append(all, values(t, cache, (j*2+h/2)*grouped.Dim, grouped.Dim)...)
			}
		}
		return m.buffer(all)
	}
	s := newScores(m, grouped, p)
	s4 := *s
	s4.Attention, s4.K, s4.Out = full, repeated(s.K), m.out(4*5*5)
	one, other := check(t, b, s)[0], check(t, b, &s4)[0]
	same(t, b, "scores", values(t, s.Out, 0, 100), values(t, s4.Out, 0, 100), one.Allowed, other.Allowed)

	c := newContext(m, grouped, p)
	c4 := *c
	c4.Attention, c4.V, c4.Out = full, repeated(c.V), m.out(5*4*33)
	one, other = check(t, b, c)[0], check(t, b, &c4)[0]
	same(t, b, "context", values(t, c.Out, 0, 660), values(t, c4.Out, 0, 660), one.Allowed, other.Allowed)
}

func hostAfterRun(t *testing.T, b engine.Backend) {
	m := newMaker(t, b)
	op := &engine.Add{Place: place("layer_out", engine.FamilyResidual, engine.Pass{Rows: 1}),
		Out: m.buffer([]float32{0, 0}), A: m.buffer([]float32{1, 2}), B: m.buffer([]float32{10, 20}), Dim: 2}
	next := *op
	next.A, next.Out = op.Out, m.buffer([]float32{0, 0})
	for _, want := range [][2]float32{{21, 42}, {120, 140}} {
		b.Run(op)
		b.Run(&next)
		if got := values(t, next.Out, 0, 2); got[0] != want[0] || got[1] != want[1] {
			t.Errorf("a + b + b: want %v, Host shows %v", want, got)
		}
		put(t, op.A, []float32{100, 100}) // the next round sees it
	}
}

func opChanges(t *testing.T, b engine.Backend) {
	m := newMaker(t, b)
	pass := &engine.Pass{Rows: 2, Pos: 1}
	op := &engine.KVWrite{Place: place("kv_write", engine.FamilyKV, *pass), KCache: m.buffer(make([]float32, 12)),
		VCache: m.buffer(make([]float32, 12)), K: m.view([]float32{1, 2, 3, 4}, 2), V: m.view([]float32{5, 6, 7, 8}, 2), Width: 2}
	op.In = pass
	b.Run(op)
	pass.Pos = 3
	b.Run(op)
	pass.Pos, pass.Rows = 0, 1
	want := []float32{0, 0, 1, 2, 3, 4, 1, 2, 3, 4, 0, 0}
	for i, got := range values(t, op.KCache, 0, 12) {
		if i >= 6 && i < 10 {
			want[i] = []float32{1, 2, 3, 4}[i-6]
		}
		if got != want[i] {
			t.Errorf("key element %d: want %g, got %g", i, want[i], got)
		}
	}
}

// fails checks a failure: it names the op's site, it stays, and no op runs after it.
func fails(bad func(m *maker, p engine.Place) engine.Op) func(t *testing.T, b engine.Backend) {
	return func(t *testing.T, b engine.Backend) {
		m := newMaker(t, b)
		at := place("here", engine.FamilyEmbed, engine.Pass{Rows: 2, Pos: 3})
		good := &engine.Add{Place: place("layer_out", engine.FamilyResidual, engine.Pass{Rows: 1}),
			Out: m.buffer([]float32{0}), A: m.buffer([]float32{1}), B: m.buffer([]float32{2}), Dim: 1}
		data := host(t, good.Out)
		b.Run(bad(m, at))
		b.Run(good)
		for range 2 {
			if err := b.Sync(); err == nil || !strings.Contains(err.Error(), at.Site().String()) {
				t.Errorf("Sync: want an error that names %v, got %v", at.Site(), err)
			}
		}
		if _, err := good.Out.Host(); err == nil {
			t.Error("Host: want the backend's failure, got none")
		}
		if v := num.Float32At(good.Out.DType(), data, 0); v != 0 {
			t.Errorf("an op after the failure has run, and given %g", v)
		}
	}
}

func unknownID(m *maker, p engine.Place) engine.Op {
	return &engine.Embed{Place: p, Out: m.out(2 * 8), IDs: m.ids(3, 11), W: m.matrix(num.Float32, 11, 8), Scale: 1}
}

func beyondTable(m *maker, p engine.Place) engine.Op {
	return &engine.RoPE{Place: p, Out: m.out(2 * 4), X: m.view(m.random(2*4, 1), 4), Table: m.table(4, 4), Heads: 1, Dim: 4, RotaryDim: 4}
}

func beyondPositions(m *maker, p engine.Place) engine.Op {
	return &engine.Embed{Place: p, Out: m.out(2 * 8), IDs: m.ids(3, 10), W: m.matrix(num.Float32, 11, 8), Scale: 1,
		Positions: m.vector(m.random(4*8, 1))}
}

func beyondCache(m *maker, p engine.Place) engine.Op {
	return &engine.KVWrite{Place: p, KCache: m.buffer(make([]float32, 4*2)), VCache: m.buffer(make([]float32, 4*2)),
		K: m.view(m.random(2*2, 1), 2), V: m.view(m.random(2*2, 1), 2), Width: 2}
}
