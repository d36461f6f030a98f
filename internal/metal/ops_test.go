package metal

import (
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// everyOp makes ops that between them run every kernel of a type of activations.
func everyOp(act num.DType, buf func(num.DType, int) engine.Buffer) []engine.Op {
	const rows, pos, dim, heads, kvHeads, headDim, rotary, vocabulary = 5, 3, 36, 4, 2, 8, 6, 7
	pass := &engine.Pass{Step: 1, Rows: rows, Pos: pos}
	one := &engine.Pass{Step: 2, Rows: 1, Pos: pos}
	place := func(p *engine.Pass, name string) engine.Place { return engine.Place{In: p, Name: name} }
	hidden := func(cols int) engine.Buffer { return buf(act, rows*cols) }
	view := func(cols int) engine.View { return engine.View{Buffer: hidden(cols + 4), Offset: 4, Stride: cols + 4} }
	att := engine.Attention{Heads: heads, KVHeads: kvHeads, Dim: headDim}
	const width, cache = kvHeads * headDim, 16 * kvHeads * headDim
	var ops []engine.Op
	for _, w := range []num.DType{num.Float32, num.Float16, num.BFloat16, num.Int8} {
		m := engine.Matrix{Buffer: buf(w, vocabulary*dim), Rows: vocabulary, Cols: dim}
		if w == num.Int8 {
			m.Scale = buf(num.Float32, vocabulary)
		}
		ops = append(ops,
			&engine.Embed{Place: place(pass, "embed"), Out: hidden(dim), IDs: buf(num.Int32, rows), W: m, Scale: 2},
			&engine.Linear{Place: place(one, "qkv"), Out: hidden(vocabulary), X: hidden(dim), W: m, Bias: buf(num.Float32, vocabulary)},
			&engine.Linear{Place: place(pass, "qkv"), Out: hidden(vocabulary), X: hidden(dim), W: m})
	}
	return append(ops,
		&engine.RMSNorm{Place: place(pass, "attn_norm"), Out: hidden(dim), X: view(dim), W: buf(num.Float32, dim/2), Heads: 2, Dim: dim / 2},
		&engine.RoPE{Place: place(pass, "q_rope"), Out: hidden(heads * headDim), X: view(heads * headDim),
			Table: buf(num.Float32, 16*rotary), Heads: heads, Dim: headDim, RotaryDim: rotary},
		&engine.KVWrite{Place: place(pass, "kv_write"), KCache: buf(act, cache), VCache: buf(act, cache), K: view(width), V: view(width), Width: width},
		&engine.Scores{Place: place(pass, "scores"), Attention: att, Out: buf(act, heads*rows*(pos+rows)), Q: view(heads * headDim), K: buf(act, cache)},
		&engine.Softmax{Place: place(pass, "softmax"), Attention: att, Out: buf(act, heads*rows*(pos+rows)), X: buf(act, heads*rows*(pos+rows))},
		&engine.Context{Place: place(pass, "context"), Attention: att, Out: hidden(heads * headDim), P: buf(act, heads*rows*(pos+rows)), V: buf(act, cache)},
		&engine.Activate{Place: place(pass, "act"), Out: hidden(dim), Gate: hidden(dim), Up: hidden(dim), Dim: dim, F: engine.SiLU},
		&engine.Activate{Place: place(pass, "act"), Out: hidden(dim), Gate: hidden(dim), Dim: dim, F: engine.ReLU},
		&engine.Add{Place: place(pass, "layer_out"), Out: hidden(dim), A: hidden(dim), B: hidden(dim), Dim: dim},
		&engine.SoftCap{Place: place(pass, "logits"), Out: hidden(dim), X: hidden(dim), Dim: dim, Cap: 30})
}
