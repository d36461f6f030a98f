package fault

import "llmrun/internal/engine"

// bufferFaults leave the ops as they are, but not the memory that they share.
var bufferFaults = []Fault{
	{ID: "cache-not-cleared", What: "the KV cache keeps the last text's first four rows, and every later text goes on behind them",
		Wrap: running(cacheNotCleared), Want: born(0, 0, kvWrite, kv).healedBy("")},
	{ID: "stale-input", What: "layer 5's down projection reads the activations of the step before",
		Wrap: running(staleInput), Text: once, Want: born(2, 5, "down", linear).because("stale by one step")},
	{ID: "stale-residual", What: "layer 4's residual stream is overwritten with that of the step before while the feed-forward runs",
		Wrap: running(staleResidual), Text: once, Want: changed(2, 4, act, activation, "attn_residual", "layer_out")},
	{ID: "read-too-early", What: "the logits are read before they are done: those of the step before",
		Wrap: running(readTooEarly), Text: once, Want: born(1, engine.NoLayer, lmHead, engine.FamilyLMHead)},
	{ID: "stray-write", What: "layer 2's gate projection writes beyond its output, into the first key of layer 1",
		Wrap: running(strayWrite), Text: once, Want: changed(1, 2, "gate", linear, kvWrite, scores).because("while step 1 layer 2 gate was run")},
	{ID: "cache-lost", What: "the first two rows of layer 6's values are zero from step 4 on, lost when the step begins",
		Wrap: running(cacheLost), Text: once, Want: changed(4, engine.NoLayer, embed, engine.FamilyEmbed, kvWrite, contextSite)},
	{ID: "norm-weight-overwritten", What: "a weight of layer 5's norm before the feed-forward is overwritten once it was used: who decodes again finds it so",
		Wrap: after(func(op engine.Op) {
			if o, ok := op.(*engine.RMSNorm); ok && at(op, 5, "ffn_norm") && o.In.Step == 0 {
				each(o.W, 3, 1, 1, func(float32) float32 { return 0 })
			}
		}), Text: once, Want: misloaded(5, "ffn_norm", norm)},
}

// cacheNotCleared moves what is cached of every text after the first, as far as the cache has room.
func cacheNotCleared(b engine.Backend) func(engine.Op) {
	const kept = 4
	seen, behind, room := 0, 0, 0
	return func(op engine.Op) {
		p := op.Pass()
		back := moved(p, min(behind, room-p.Pos-p.Rows))
		switch o := op.(type) {
		case *engine.Embed:
			if p.Pos == 0 {
				behind = min(seen, kept)
			}
			seen = p.Pos + p.Rows
		case *engine.KVWrite:
			room = o.KCache.Len() / o.Width
			c := *o
			c.In = moved(p, min(behind, room-p.Pos-p.Rows))
			op = &c
		case *engine.Scores:
			c := *o
			c.In = back
			op = &c
		case *engine.Softmax:
			c := *o
			c.In = back
			op = &c
		case *engine.Context:
			c := *o
			c.In = back
			op = &c
		}
		b.Run(op)
	}
}

func staleInput(b engine.Backend) func(engine.Op) {
	var stale engine.Buffer
	var last []byte
	return func(op engine.Op) {
		o, ok := op.(*engine.Linear)
		if !ok || !at(op, 5, "down") {
			b.Run(op)
			return
		}
		now := clone(o.X)
		if o.In.Step >= 2 && last != nil {
			if stale == nil {
				var err error
				if stale, err = b.NewBuffer(o.X.DType(), o.X.Len()); err != nil {
					return
				}
			}
			copy(bytesOf(stale), last)
			c := *o
			c.X = stale
			op = &c
		}
		b.Run(op)
		last = now
	}
}

func staleResidual(b engine.Backend) func(engine.Op) {
	var residual engine.Buffer
	var last, now []byte
	return func(op engine.Op) {
		b.Run(op)
		switch o := op.(type) {
		case *engine.Add:
			if at(op, 4, "attn_residual") {
				residual, last, now = o.Out, now, clone(o.Out)
			}
		case *engine.Activate:
			if at(op, 4, act) && o.In.Step >= 2 && last != nil {
				copy(bytesOf(residual), last)
			}
		}
	}
}

func readTooEarly(b engine.Backend) func(engine.Op) {
	var last []byte
	return func(op engine.Op) {
		b.Run(op)
		o, ok := op.(*engine.Linear)
		if !ok || op.Family() != engine.FamilyLMHead {
			return
		}
		now := clone(o.Out)
		if last == nil {
			last = make([]byte, len(now))
		}
		copy(bytesOf(o.Out), last)
		last = now
	}
}

func strayWrite(b engine.Backend) func(engine.Op) {
	var keys engine.Buffer
	return func(op engine.Op) {
		b.Run(op)
		if o, ok := op.(*engine.KVWrite); ok && o.Layer == 1 {
			keys = o.KCache
		}
		if at(op, 2, "gate") && op.Site().Step == 1 && keys != nil {
			each(keys, 0, 1, 4, func(float32) float32 { return 1 })
		}
	}
}

func cacheLost(b engine.Backend) func(engine.Op) {
	var values engine.Buffer
	width := 0
	return func(op engine.Op) {
		if o, ok := op.(*engine.KVWrite); ok && o.Layer == 6 {
			values, width = o.VCache, o.Width
		}
		if op.Family() == engine.FamilyEmbed && op.Site().Step >= 4 && values != nil {
			each(values, 0, 1, 2*width, func(float32) float32 { return 0 })
		}
		b.Run(op)
	}
}
