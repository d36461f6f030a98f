package engine

import "llmrun/internal/num"

// builder lays out a session's buffers and lists its ops. Every site has a buffer of its own, shared by the layers, so no
// op overwrites what another site of the same layer wrote: what an op read is still there when the layer is done.
// The exceptions are the residual stream (embed and layer_out write the same buffer) and the KV cache.
type builder struct {
	s     *Session
	d     *Decoder
	rows  int // of the largest pass
	layer int
	sizes map[string]int // site → elements per buffer, the largest of all layers
	bufs  map[string]Buffer
	err   error
}

func (s *Session) build() error {
	b := &builder{s: s, d: s.decoder, rows: min(blockRows, s.capacity), layer: NoLayer,
		sizes: map[string]int{}, bufs: map[string]Buffer{}}
	b.measure()
	s.ids = b.make(num.Int32, b.rows)
	x := b.buf("embed")
	s.program = append(s.program, &Embed{b.at("embed", FamilyEmbed), x, s.ids, b.d.embed, b.d.positions, b.d.EmbedScale})
	for i := range b.d.layers {
		b.layer = i
		if b.d.FourNorms {
			s.program = append(s.program, b.fourNormLayer(&b.d.layers[i], x)...)
		} else {
			s.program = append(s.program, b.sequentialLayer(&b.d.layers[i], x)...)
		}
	}
	b.layer, s.body = NoLayer, s.program
	for i, op := range s.body {
		if _, ok := op.(*KVWrite); ok {
			s.prompt = s.body[:i+1]
		}
	}
	h, ops := b.norm("final_norm", x, b.d.norm)
	s.logits = b.buf("lm_head")
	s.program = append(s.program, ops, b.d.head.op(b.at("lm_head", FamilyLMHead), s.logits, h))
	if b.d.LogitCap != 0 {
		capped := b.buf("logits")
		s.program = append(s.program, &SoftCap{b.at("logits", FamilyLMHead), capped, s.logits, b.d.Vocabulary, b.d.LogitCap})
		s.logits = capped
	}
	return b.err
}

// fourNormLayer is the block of Gemma 2 and 3: norms before and after attention and feed-forward. It reads and writes x.
//
//	y = x + post_attn_norm(attention(attn_norm(x)))     x = y + post_ffn_norm(ffn(ffn_norm(y)))
func (b *builder) fourNormLayer(l *layer, x Buffer) (ops []Op) {
	h, op := b.norm("attn_norm", x, l.attnNorm)
	ops = append(ops, op)
	a, list := b.attention(l, h)
	ops = append(ops, list...)
	a, op = b.norm("post_attn_norm", a, *l.postAttnNorm)
	y, add := b.add("attn_residual", x, a)
	ops = append(ops, op, add)
	h, op = b.norm("ffn_norm", y, l.ffnNorm)
	ops = append(ops, op)
	f, list := b.feedForward(l, h)
	ops = append(ops, list...)
	f, op = b.norm("post_ffn_norm", f, *l.postFFNNorm)
	return append(ops, op, b.layerOut(x, y, f))
}

// sequentialLayer is the block of Llama, Qwen and Gemma 1: norms before attention and feed-forward. It reads and writes x.
//
//	y = x + attention(attn_norm(x))     x = y + ffn(ffn_norm(y))
func (b *builder) sequentialLayer(l *layer, x Buffer) (ops []Op) {
	h, op := b.norm("attn_norm", x, l.attnNorm)
	ops = append(ops, op)
	a, list := b.attention(l, h)
	ops = append(ops, list...)
	y, add := b.add("attn_residual", x, a)
	ops = append(ops, add)
	h, op = b.norm("ffn_norm", y, l.ffnNorm)
	ops = append(ops, op)
	f, list := b.feedForward(l, h)
	return append(append(ops, list...), b.layerOut(x, y, f))
}

// attention is grouped-query attention over the layer's own KV cache, out to the output projection.
func (b *builder) attention(l *layer, h Buffer) (out Buffer, ops []Op) {
	a := l.Attention
	width, kvWidth := a.Heads*a.Dim, a.KVHeads*a.Dim
	qkv, op := b.linear("qkv", h, l.qkv)
	ops = append(ops, op)
	stride := width + 2*kvWidth
	q, k, v := View{qkv, 0, stride}, View{qkv, width, stride}, View{qkv, width + kvWidth, stride}
	if l.qNorm != nil {
		q, ops = b.headNorm("q_norm", q, *l.qNorm, a.Heads, ops)
	}
	if l.kNorm != nil {
		k, ops = b.headNorm("k_norm", k, *l.kNorm, a.KVHeads, ops)
	}
	if l.rotary.dim > 0 {
		table := l.table(b)
		q, ops = b.rope("q_rope", q, l, table, a.Heads, ops)
		k, ops = b.rope("k_rope", k, l, table, a.KVHeads, ops)
	}
	kCache, vCache := b.cache(kvWidth), b.cache(kvWidth)
	scores, weights, context := b.buf("scores"), b.buf("softmax"), b.buf("context")
	out, project := b.linear("o_proj", context, l.oProj)
	return out, append(ops,
		&KVWrite{b.at("kv_write", FamilyKV), kCache, vCache, k, v, kvWidth},
		&Scores{b.at("scores", FamilyScores), a, scores, q, kCache, l.scale},
		&Softmax{b.at("softmax", FamilySoftmax), a, weights, scores},
		&Context{b.at("context", FamilyContext), a, context, weights, vCache},
		project)
}

// feedForward is down(F(gate(h)) · up(h)), or down(F(gate(h))) without an up projection.
func (b *builder) feedForward(l *layer, h Buffer) (out Buffer, ops []Op) {
	gate, op := b.linear("gate", h, l.gate)
	ops = append(ops, op)
	var up Buffer
	if l.up != nil {
		up, op = b.linear("up", h, *l.up)
		ops = append(ops, op)
	}
	act := b.buf("act")
	out, down := b.linear("down", act, l.down)
	return out, append(ops, &Activate{b.at("act", FamilyActivation), act, gate, up, l.ffn, b.d.Activation}, down)
}

func (b *builder) norm(site string, x Buffer, n norm) (Buffer, Op) {
	out := b.buf(site)
	if n.bias != nil {
		return out, &LayerNorm{b.at(site, FamilyNorm), out, x, n.w, n.bias, n.dim, n.eps}
	}
	return out, &RMSNorm{b.at(site, FamilyNorm), out, View{x, 0, n.dim}, n.w, 1, n.dim, n.eps, n.offset}
}

func (b *builder) headNorm(site string, x View, n norm, heads int, ops []Op) (View, []Op) {
	out := b.buf(site)
	return View{out, 0, heads * n.dim}, append(ops,
		&RMSNorm{b.at(site, FamilyNorm), out, x, n.w, heads, n.dim, n.eps, n.offset})
}

func (b *builder) linear(site string, x Buffer, l linear) (Buffer, Op) {
	out := b.buf(site)
	return out, l.op(b.at(site, FamilyLinear), out, x)
}

func (l *linear) op(at Place, out, x Buffer) Op {
	return &Linear{at, out, x, l.w, l.bias, l.quantized, l.truncated}
}

func (b *builder) rope(site string, x View, l *layer, table Buffer, heads int, ops []Op) (View, []Op) {
	out := b.buf(site)
	return View{out, 0, heads * l.Attention.Dim}, append(ops,
		&RoPE{b.at(site, FamilyRoPE), out, x, table, heads, l.Attention.Dim, l.rotary.dim, l.interleaved})
}

func (b *builder) add(site string, x, y Buffer) (Buffer, Op) {
	out := b.buf(site)
	return out, &Add{b.at(site, FamilyResidual), out, x, y, b.d.Dim}
}

// layerOut writes the residual stream, which no later op of the layer reads.
func (b *builder) layerOut(x, y, f Buffer) Op {
	return &Add{b.at("layer_out", FamilyResidual), x, y, f, b.d.Dim}
}

func (b *builder) at(site string, f Family) Place { return Place{b.s.pass, b.layer, site, f} }

// table is the rotary table of a layer: one for all layers with equal options.
func (l *layer) table(b *builder) Buffer {
	for _, t := range b.s.tables {
		if t.equal(&l.angles) {
			return t.buffer
		}
	}
	t := &rotaryTable{l.angles, b.make(num.Float32, b.s.capacity*l.rotary.dim)}
	if b.err == nil {
		b.err = t.fill(b.s.capacity, 0)
	}
	b.s.tables = append(b.s.tables, t)
	return t.buffer
}

func (b *builder) cache(width int) Buffer {
	return b.make(b.d.backend.Activations(), b.s.capacity*width)
}

// measure finds the largest buffer that any layer needs at each site.
func (b *builder) measure() {
	need := func(n int, sites ...string) {
		for _, site := range sites {
			b.sizes[site] = max(b.sizes[site], n)
		}
	}
	need(b.rows*b.d.Dim, "embed", "attn_norm", "o_proj", "post_attn_norm", "attn_residual", "ffn_norm", "down",
		"post_ffn_norm", "final_norm")
	need(b.d.Vocabulary, "lm_head", "logits") // one row: a prompt's logits are never asked for
	for _, l := range b.d.layers {
		q, kv := l.Heads*l.Attention.Dim, l.KVHeads*l.Attention.Dim
		need(b.rows*(q+2*kv), "qkv")
		need(b.rows*q, "q_norm", "q_rope", "context")
		need(b.rows*kv, "k_norm", "k_rope")
		need(b.rows*l.Heads*b.s.capacity, "scores", "softmax")
		need(b.rows*l.ffn, "gate", "up", "act")
	}
}

// buf is the buffer of a site.
func (b *builder) buf(site string) Buffer {
	if b.bufs[site] == nil {
		b.bufs[site] = b.make(b.d.backend.Activations(), b.sizes[site])
	}
	return b.bufs[site]
}

func (b *builder) make(d num.DType, n int) Buffer {
	if b.err != nil {
		return nil
	}
	buf, err := b.d.backend.NewBuffer(d, n)
	b.err = err
	return buf
}
