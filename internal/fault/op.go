package fault

import (
	"math"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// opFaults run an op otherwise than the program says.
var opFaults = []Fault{
	{ID: "kv-skipped-layer", What: "layer 3 never writes its keys and values",
		Wrap: changing(func(op engine.Op) engine.Op {
			if at(op, 3, kvWrite) {
				return nil
			}
			return op
		}), Text: once, Want: born(0, 3, kvWrite, kv)},
	{ID: "kv-skipped-step", What: "step 3 does not write its keys and values",
		Wrap: changing(func(op engine.Op) engine.Op {
			if op.Family() == kv && op.Site().Step == 3 {
				return nil
			}
			return op
		}), Text: once, Want: born(3, 0, kvWrite, kv)},
	{ID: "kv-row-ahead", What: "a single token's keys and values are written one row too far on",
		Wrap: changing(func(op engine.Op) engine.Op {
			if o, ok := op.(*engine.KVWrite); ok && o.In.Step > 0 {
				c := *o
				c.In = moved(o.In, 1)
				return &c
			}
			return op
		}), Text: once, Want: born(1, 0, kvWrite, kv)},
	{ID: "rope-decode-lags", What: "a single token is rotated by the position before its own",
		Wrap: changing(func(op engine.Op) engine.Op {
			if o, ok := op.(*engine.RoPE); ok && o.In.Step > 0 && o.In.Pos > 0 {
				c := *o
				c.In = moved(o.In, -1)
				return &c
			}
			return op
		}), Text: once, Want: born(1, 0, qRope, rope)},
	{ID: "rope-base-10000", What: "the rotary base is the customary 10000, where the model has 1000000",
		Wrap: running(ropeBase10000), Model: qwen, Text: once, Want: born(0, 0, qRope, rope).because("10000")},
	{ID: "rope-query-fixed", What: "a single token's query is not rotated, its key is",
		Wrap: changing(func(op engine.Op) engine.Op {
			if o, ok := op.(*engine.RoPE); ok && o.Name == qRope {
				c := *o
				c.In = moved(o.In, -o.In.Pos) // whose angle is 0
				return &c
			}
			return op
		}), Text: once, Want: born(1, 0, qRope, rope)},
	{ID: "window-one-long", What: "the sliding window is 9 keys, where the model has 8: from the ninth token on a row of scores is longer than it should be",
		Wrap: changing(window(+1)), Model: golden + "m_llama_w8", Text: seven, Want: born(3, 0, scores, familyScores).healedBy(attentionOps)},
	{ID: "window-one-short", What: "the sliding window is 7 keys, where the model has 8",
		Wrap: changing(window(-1)), Model: golden + "m_llama_w8", Text: seven, Want: born(2, 0, scores, familyScores).healedBy(attentionOps)},
	{ID: "keys-of-last-layer", What: "layer 3 scores its queries with layer 2's keys",
		Wrap: running(keysOfLastLayer), Text: once, Want: born(0, 3, scores, familyScores)},
	{ID: "channel-15-percent", What: "one output channel of layer 4's up projection is 15 % too large",
		Wrap: after(func(op engine.Op) {
			if o, ok := op.(*engine.Linear); ok && at(op, 4, "up") {
				each(o.Out, 37, o.W.Rows, o.Rows(), func(v float32) float32 { return 1.15 * v })
			}
		}), Text: once, Want: born(0, 4, "up", linear).because("1.15")},
	{ID: "activation-skipped", What: "layer 5's activation is not run: down reads what layer 4 left there",
		Wrap: changing(func(op engine.Op) engine.Op {
			if at(op, 5, act) {
				return nil
			}
			return op
		}), Text: once, Want: born(0, 5, act, activation).because("nothing was written")},
	{ID: "embed-scale-missing", What: "the backend does not know of the factor of embeddings",
		Wrap: changing(func(op engine.Op) engine.Op {
			if o, ok := op.(*engine.Embed); ok {
				c := *o
				c.Scale = 1
				return &c
			}
			return op
		}), Text: once, Want: born(0, engine.NoLayer, embed, engine.FamilyEmbed)},
	{ID: "final-norm-skipped", What: "the last hidden state goes to the vocabulary as it is, without the final norm",
		Wrap: copying("final_norm"), Text: once, Want: born(1, engine.NoLayer, "final_norm", norm).because("left out")},
	{ID: "logits-cap-missing", What: "the logits go out as they are, without the model's soft cap",
		Wrap: copying("logits"), Model: golden + "m_softcap", Text: seven, Want: born(1, engine.NoLayer, "logits", engine.FamilyLMHead).because("left out")},
	{ID: "alias-ignored", What: "the projection is an alias of the embeddings; it is not followed, and the weight stays zero",
		Wrap: running(aliasIgnored), Text: once, Want: born(1, engine.NoLayer, lmHead, engine.FamilyLMHead)},
	{ID: "padded-row-wins", What: "the vocabulary's last row is padding, and what the projection makes of it is not masked",
		Wrap: after(func(op engine.Op) {
			if o, ok := op.(*engine.Linear); ok && op.Family() == engine.FamilyLMHead {
				each(o.Out, o.W.Rows-1, 1, 1, func(float32) float32 { return 1000 })
			}
		}), Text: once, Want: born(1, engine.NoLayer, lmHead, engine.FamilyLMHead)},
}

// ropeBase10000 rotates by a table of its own.
func ropeBase10000(b engine.Backend) func(engine.Op) {
	var table engine.Buffer
	return func(op engine.Op) {
		o, ok := op.(*engine.RoPE)
		if !ok {
			b.Run(op)
			return
		}
		if table == nil || table.Len() < o.Table.Len() {
			var err error
			if table, err = b.NewBuffer(num.Float32, o.Table.Len()); err != nil {
				return
			}
			fillTable(table, o.RotaryDim, 10000)
		}
		c := *o
		c.Table = table
		b.Run(&c)
	}
}

// fillTable writes the cosines and sines of position·base^(-2i/dim).
func fillTable(table engine.Buffer, dim int, base float64) {
	host := bytesOf(table)
	for p := range table.Len() / dim {
		for i := range dim / 2 {
			sin, cos := math.Sincos(float64(p) * math.Pow(base, -float64(2*i)/float64(dim)))
			num.PutFloat32(num.Float32, host, p*dim+i, float32(cos))
			num.PutFloat32(num.Float32, host, p*dim+dim/2+i, float32(sin))
		}
	}
}

// window changes the layers' sliding window, if they have one.
func window(by int) func(engine.Op) engine.Op {
	return func(op engine.Op) engine.Op {
		switch o := op.(type) {
		case *engine.Scores:
			c := *o
			c.Window += by
			return &c
		case *engine.Softmax:
			c := *o
			c.Window += by
			return &c
		case *engine.Context:
			c := *o
			c.Window += by
			return &c
		}
		return op
	}
}

func keysOfLastLayer(b engine.Backend) func(engine.Op) {
	var keys engine.Buffer
	return func(op engine.Op) {
		if o, ok := op.(*engine.KVWrite); ok && o.Layer == 2 {
			keys = o.KCache
		}
		if o, ok := op.(*engine.Scores); ok && o.Layer == 3 && keys != nil {
			c := *o
			c.K = keys
			op = &c
		}
		b.Run(op)
	}
}

// copying makes the op of a site hand on its input.
func copying(site string) func(engine.Backend) engine.Backend {
	return running(func(b engine.Backend) func(engine.Op) {
		return func(op engine.Op) {
			if op.Site().Name != site {
				b.Run(op)
				return
			}
			outs, ins := op.Operands(nil, nil)
			if x := bytesOf(ins[0].Buffer); x != nil {
				copy(bytesOf(outs[0].Buffer), x)
			}
		}
	})
}

func aliasIgnored(b engine.Backend) func(engine.Op) {
	var zeros engine.Buffer
	return func(op engine.Op) {
		o, ok := op.(*engine.Linear)
		if !ok || op.Family() != engine.FamilyLMHead {
			b.Run(op)
			return
		}
		if zeros == nil {
			var err error
			if zeros, err = b.NewBuffer(o.W.Buffer.DType(), o.W.Buffer.Len()); err != nil {
				return
			}
		}
		c := *o
		c.W.Buffer = zeros
		b.Run(&c)
	}
}
