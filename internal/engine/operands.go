package engine

import "fmt"

// Check holds an operand to its buffer. The rotary table, learned positions and the cache end where the longest text does, which is for
// the user to know: an error. Any other operand that leaves its buffer is our own mistake.
func (o Operand) Check() error {
	length := o.Buffer.Len()
	if end := o.Offset + (o.Rows-1)*o.Stride + o.Cols; o.Rows > 0 && o.Offset >= 0 && o.Stride >= 0 && end <= length {
		return nil
	}
	switch o.Name {
	case "table", "positions", "kcache", "vcache":
		return fmt.Errorf("%s holds %d positions, position %d is asked for", o.Name, length/o.Stride, o.Offset/o.Stride+o.Rows-1)
	}
	panic(fmt.Sprintf("BUG: %s: %d rows of %d, %d apart, from %d on, in a buffer of %d elements",
		o.Name, o.Rows, o.Cols, o.Stride, o.Offset, length))
}

// flat is an operand of contiguous rows.
func flat(name string, b Buffer, rows, cols int) Operand {
	return Operand{name, b, 0, cols, rows, cols}
}

func strided(name string, v View, rows, cols int) Operand {
	return Operand{name, v.Buffer, v.Offset, v.Stride, rows, cols}
}

// appendWeight appends a matrix and, if it has one, its row scale.
func appendWeight(in []Operand, m Matrix) []Operand {
	in = append(in, flat("w", m.Buffer, m.Rows, m.Cols))
	if m.Scale != nil {
		in = append(in, flat("scale", m.Scale, 1, m.Rows))
	}
	return in
}

// Operands is documented at Op.
func (o *Embed) Operands(out, in []Operand) (_, _ []Operand) {
	in = appendWeight(append(in, flat("ids", o.IDs, 1, o.Rows())), o.W)
	if o.Positions != nil {
		in = append(in, Operand{"positions", o.Positions, o.In.Pos * o.W.Cols, o.W.Cols, o.Rows(), o.W.Cols})
	}
	return append(out, flat("out", o.Out, o.Rows(), o.W.Cols)), in
}

// Operands is documented at Op.
func (o *RMSNorm) Operands(out, in []Operand) (_, _ []Operand) {
	width := o.Heads * o.Dim
	return append(out, flat("out", o.Out, o.Rows(), width)),
		append(in, strided("x", o.X, o.Rows(), width), flat("w", o.W, 1, o.Dim))
}

// Operands is documented at Op.
func (o *LayerNorm) Operands(out, in []Operand) (_, _ []Operand) {
	return append(out, flat("out", o.Out, o.Rows(), o.Dim)),
		append(in, flat("x", o.X, o.Rows(), o.Dim), flat("w", o.W, 1, o.Dim), flat("bias", o.Bias, 1, o.Dim))
}

// Operands is documented at Op.
func (o *Linear) Operands(out, in []Operand) (_, _ []Operand) {
	in = appendWeight(append(in, flat("x", o.X, o.Rows(), o.W.Cols)), o.W)
	if o.Bias != nil {
		in = append(in, flat("bias", o.Bias, 1, o.W.Rows))
	}
	return append(out, flat("out", o.Out, o.Rows(), o.W.Rows)), in
}

// Operands is documented at Op.
func (o *RoPE) Operands(out, in []Operand) (_, _ []Operand) {
	width := o.Heads * o.Dim
	return append(out, flat("out", o.Out, o.Rows(), width)), append(in, strided("x", o.X, o.Rows(), width),
		Operand{"table", o.Table, o.In.Pos * o.RotaryDim, o.RotaryDim, o.Rows(), o.RotaryDim})
}

// Operands is documented at Op.
func (o *KVWrite) Operands(out, in []Operand) (_, _ []Operand) {
	row := func(name string, b Buffer) Operand {
		return Operand{name, b, o.In.Pos * o.Width, o.Width, o.Rows(), o.Width}
	}
	return append(out, row("kcache", o.KCache), row("vcache", o.VCache)),
		append(in, strided("k", o.K, o.Rows(), o.Width), strided("v", o.V, o.Rows(), o.Width))
}

// Keys gives, for a pass, the first key that any row attends to, the number of keys that row 0 attends to, and
// the number of keys that the last row attends to, which is the width of a row of scores.
func (a Attention) Keys(p *Pass) (from, first, width int) {
	from, to := p.Keys(a.Window)
	return from, to - from, to - from + p.Rows - 1
}

// cache is the rows of a KV cache that a pass attends to.
func (a Attention) cache(name string, b Buffer, p *Pass) Operand {
	from, _, width := a.Keys(p)
	row := a.KVHeads * a.Dim
	return Operand{name, b, from * row, row, width, row}
}

// scores is a buffer [Heads, rows, keys].
func (a Attention) scores(name string, b Buffer, p *Pass) Operand {
	_, _, width := a.Keys(p)
	return flat(name, b, a.Heads*p.Rows, width)
}

// Operands is documented at Op.
func (o *Scores) Operands(out, in []Operand) (_, _ []Operand) {
	return append(out, o.scores("out", o.Out, o.In)),
		append(in, strided("q", o.Q, o.Rows(), o.Heads*o.Dim), o.cache("k", o.K, o.In))
}

// Operands is documented at Op.
func (o *Softmax) Operands(out, in []Operand) (_, _ []Operand) {
	return append(out, o.scores("out", o.Out, o.In)), append(in, o.scores("x", o.X, o.In))
}

// Operands is documented at Op.
func (o *Context) Operands(out, in []Operand) (_, _ []Operand) {
	return append(out, flat("out", o.Out, o.Rows(), o.Heads*o.Dim)),
		append(in, o.scores("p", o.P, o.In), o.cache("v", o.V, o.In))
}

// Operands is documented at Op.
func (o *Activate) Operands(out, in []Operand) (_, _ []Operand) {
	in = append(in, flat("gate", o.Gate, o.Rows(), o.Dim))
	if o.Up != nil {
		in = append(in, flat("up", o.Up, o.Rows(), o.Dim))
	}
	return append(out, flat("out", o.Out, o.Rows(), o.Dim)), in
}

// Operands is documented at Op.
func (o *Add) Operands(out, in []Operand) (_, _ []Operand) {
	return append(out, flat("out", o.Out, o.Rows(), o.Dim)),
		append(in, flat("a", o.A, o.Rows(), o.Dim), flat("b", o.B, o.Rows(), o.Dim))
}

// Operands is documented at Op.
func (o *SoftCap) Operands(out, in []Operand) (_, _ []Operand) {
	return append(out, flat("out", o.Out, o.Rows(), o.Dim)), append(in, flat("x", o.X, o.Rows(), o.Dim))
}
