package metal

import (
	"errors"
	"math/rand/v2"
	"os"
	"testing"

	"llmrun/internal/cpuref/oracle"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// open opens the backend, or skips the test where there is no Metal and no C++ compiler to stand in for it.
func open(t testing.TB, o Options) *Backend {
	t.Helper()
	b, err := Open(o)
	var none *UnavailableError
	if errors.As(err, &none) && os.Getenv("LLMRUN_REQUIRE_METAL") == "" {
		t.Skipf("%v; %s", err, none.Hint())
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// everyOp makes ops that between them run every kernel of a type of activations, on rows of dim elements.
func everyOp(act num.DType, dim int, buf func(num.DType, int) engine.Buffer) []engine.Op {
	const rows, pos, heads, kvHeads, headDim, rotary, vocabulary = 5, 3, 4, 2, 10, 6, 7
	pass := &engine.Pass{Step: 1, Rows: rows, Pos: pos}
	one := &engine.Pass{Step: 2, Rows: 1, Pos: pos, Span: engine.Span{Decode: true}}
	many := &engine.Pass{Step: 1, Rows: manyTokens}
	place := func(p *engine.Pass, name string) engine.Place { return engine.Place{In: p, Name: name} }
	hidden := func(cols int) engine.Buffer { return buf(act, rows*cols) }
	view := func(cols int) engine.View { return engine.View{Buffer: hidden(cols + 4), Offset: 4, Stride: cols + 4} }
	att := engine.Attention{Heads: heads, KVHeads: kvHeads, Dim: headDim}
	const width, capacity, keys = kvHeads * headDim, 16, pos + rows
	cache := func() engine.Buffer { return buf(act, capacity*width) }
	scores := func() engine.Buffer { return buf(act, heads*rows*keys) }
	vector := func(n int) engine.Buffer { return buf(num.Float32, n) }
	var ops []engine.Op
	for _, w := range []num.DType{num.Float32, num.Float16, num.BFloat16, num.Int8} {
		m := engine.Matrix{Buffer: buf(w, vocabulary*dim), Rows: vocabulary, Cols: dim}
		if w == num.Int8 {
			m.Scale = vector(vocabulary)
		}
		ops = append(ops,
			&engine.Embed{Place: place(pass, "embed"), Out: hidden(dim), IDs: buf(num.Int32, rows), W: m, Scale: 2},
			&engine.Embed{Place: place(pass, "embed"), Out: hidden(dim), IDs: buf(num.Int32, rows), W: m,
				Positions: vector(keys * dim), Scale: 1},
			&engine.Linear{Place: place(one, "qkv"), Out: hidden(vocabulary), X: hidden(dim), W: m, Bias: vector(vocabulary)},
			&engine.Linear{Place: place(pass, "qkv"), Out: hidden(vocabulary), X: hidden(dim), W: m},
			&engine.Linear{Place: place(many, "qkv"), Out: buf(act, manyTokens*vocabulary), X: buf(act, manyTokens*dim), W: m, Bias: vector(vocabulary)})
	}
	i8 := engine.Matrix{Buffer: buf(num.Int8, vocabulary*dim), Scale: vector(vocabulary), Rows: vocabulary, Cols: dim}
	ops = append(ops,
		&engine.Linear{Place: place(one, "qkv"), Out: hidden(vocabulary), X: hidden(dim), W: i8, Bias: vector(vocabulary), Quantized: true},
		&engine.Linear{Place: place(pass, "qkv"), Out: hidden(vocabulary), X: hidden(dim), W: i8, Quantized: true, Truncated: true})
	for f := engine.ReLU; f <= engine.Sigmoid; f++ {
		ops = append(ops, &engine.Activate{Place: place(pass, "act"), Out: hidden(dim), Gate: hidden(dim), Up: hidden(dim), Dim: dim, F: f})
	}
	windowed := att
	windowed.Window = 2
	rope := engine.RoPE{Place: place(pass, "q_rope"), Out: hidden(heads * headDim), X: view(heads * headDim),
		Table: vector(capacity * rotary), Heads: heads, Dim: headDim, RotaryDim: rotary}
	interleaved := rope
	interleaved.Interleaved, interleaved.Out = true, hidden(heads*headDim)
	return append(ops,
		&engine.RMSNorm{Place: place(pass, "attn_norm"), Out: hidden(dim), X: view(dim), W: vector(dim / 2), Heads: 2, Dim: dim / 2, Eps: 1e-6, Offset: 1},
		&engine.LayerNorm{Place: place(pass, "attn_norm"), Out: hidden(dim), X: hidden(dim), W: vector(dim), Bias: vector(dim), Dim: dim, Eps: 1e-5},
		&rope, &interleaved,
		&engine.KVWrite{Place: place(pass, "kv_write"), KCache: cache(), VCache: cache(), K: view(width), V: view(width), Width: width},
		&engine.Scores{Place: place(pass, "scores"), Attention: att, Out: scores(), Q: view(heads * headDim), K: cache(), Scale: 0.3},
		&engine.Scores{Place: place(one, "scores"), Attention: windowed, Out: scores(), Q: view(heads * headDim), K: cache(), Scale: 0.3},
		&engine.Softmax{Place: place(pass, "softmax"), Attention: att, Out: scores(), X: scores()},
		&engine.Context{Place: place(pass, "context"), Attention: att, Out: hidden(heads * headDim), P: scores(), V: cache()},
		&engine.Context{Place: place(one, "context"), Attention: windowed, Out: hidden(heads * headDim), P: scores(), V: cache()},
		&engine.Activate{Place: place(pass, "act"), Out: hidden(dim), Gate: hidden(dim), Dim: dim, F: engine.GELUTanh},
		&engine.Add{Place: place(pass, "layer_out"), Out: hidden(dim), A: hidden(dim), B: hidden(dim), Dim: dim},
		&engine.SoftCap{Place: place(pass, "logits"), Out: hidden(dim), X: hidden(dim), Dim: dim, Cap: 3})
}

// fill gives every buffer of an op random values; ids are rows of the embedding.
func fill(t *testing.T, r *rand.Rand, op engine.Op) {
	t.Helper()
	_, in := op.Operands(nil, nil)
	for _, o := range in {
		bytes, err := o.Buffer.Host()
		if err != nil {
			t.Fatal(err)
		}
		for i := range o.Buffer.Len() {
			switch d := o.Buffer.DType(); d {
			case num.Int32:
				bytes[4*i] = byte(r.IntN(op.(*engine.Embed).W.Rows))
			case num.Int8:
				bytes[i] = byte(r.IntN(256))
			default:
				num.PutFloat32(d, bytes, i, float32(r.NormFloat64()))
			}
		}
	}
}

// TestEveryKernel runs every kernel once on random values; the thorough suite is backendtest's.
func TestEveryKernel(t *testing.T) {
	for _, act := range []num.DType{num.Float32, num.Float16, num.BFloat16} {
		b := open(t, Options{Activations: act})
		r := rand.New(rand.NewPCG(1, 2))
		for _, dim := range []int{36, 35} { // with and without vector loads
			for _, op := range everyOp(act, dim, newBuffers(t, b)) {
				fill(t, r, op)
				b.Run(op)
				judge(t, op)
			}
		}
	}
}

// judge holds what op has written to the oracle.
func judge(t *testing.T, op engine.Op) {
	t.Helper()
	outputs, err := oracle.Judge(op)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range outputs {
		got, err := o.Got()
		if err != nil {
			t.Fatal(err)
		}
		if r := o.Compare(got); !r.OK() {
			t.Errorf("%T at %v: element %d is %v, want %v ± %.3g", op, op.Site(), r.WorstIndex, got[r.WorstIndex], o.Want[r.WorstIndex], o.Allowed[r.WorstIndex])
		}
	}
}

// newBuffers makes buffers of b, which must succeed.
func newBuffers(t testing.TB, b *Backend) func(num.DType, int) engine.Buffer {
	return func(d num.DType, n int) engine.Buffer {
		x, err := b.NewBuffer(d, n)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
}
