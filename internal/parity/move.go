package parity

import (
	"fmt"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// moved is a side's backend with some ops run on the other side's: its arithmetic, its weights and tables. What the op
// reads is copied there, and what it writes back, so that it works in either direction and between float32 and float16.
type moved struct {
	engine.Backend                         // the side's own
	to             engine.Backend          // the other side's
	twins          map[engine.Op]engine.Op // op by op, the other side's program
	mirrors        map[engine.Buffer]engine.Buffer
	move           func(engine.Op) bool
	err            error
}

// moveOps makes the backend for ops of s that are to run on other.
func moveOps(s, other *side, mirrors map[engine.Buffer]engine.Buffer, move func(engine.Op) bool) *moved {
	m := &moved{Backend: s.backend, to: other.backend, twins: map[engine.Op]engine.Op{}, mirrors: mirrors, move: move}
	twins := other.Program()
	for i, op := range s.Program() {
		m.twins[op] = twins[i]
	}
	return m
}

// Run runs op here or there.
func (m *moved) Run(op engine.Op) {
	if !m.move(op) {
		m.Backend.Run(op)
		return
	}
	if m.err == nil {
		m.err = m.there(op)
	}
}

// Sync waits for both; the first failure of either.
func (m *moved) Sync() error {
	if m.err != nil {
		return m.err
	}
	return m.Backend.Sync()
}

func (m *moved) there(op engine.Op) error {
	outs, ins := op.Operands(nil, nil)
	_, filed := m.twins[op].Operands(nil, nil)
	buffers := map[engine.Buffer]engine.Buffer{}
	for i, in := range ins {
		if isFile(in.Name) {
			buffers[in.Buffer] = filed[i].Buffer
			continue
		}
		mirror, err := m.mirror(in.Buffer)
		if err != nil {
			return err
		}
		if err := copyExtent(mirror, in.Buffer, in); err != nil {
			return err
		}
		buffers[in.Buffer] = mirror
	}
	for _, out := range outs {
		mirror, err := m.mirror(out.Buffer)
		if err != nil {
			return err
		}
		buffers[out.Buffer] = mirror
	}
	m.to.Run(rebind(op, buffers))
	if err := m.to.Sync(); err != nil {
		return err
	}
	for _, out := range outs {
		if err := copyExtent(out.Buffer, buffers[out.Buffer], out); err != nil {
			return err
		}
	}
	return nil
}

// isFile tells the operands that come from the file, or are computed from what it says.
func isFile(operand string) bool {
	switch operand {
	case "w", "scale", "bias", "table", "positions":
		return true
	}
	return false
}

// mirror is a buffer of the other backend in place of one of this.
func (m *moved) mirror(b engine.Buffer) (engine.Buffer, error) {
	if mirror := m.mirrors[b]; mirror != nil {
		return mirror, nil
	}
	d := m.to.Activations()
	if b.DType() == num.Int32 {
		d = num.Int32
	}
	mirror, err := m.to.NewBuffer(d, b.Len())
	if err != nil {
		return nil, fmt.Errorf("move an op to %s: %w", m.to.Name(), err)
	}
	m.mirrors[b] = mirror
	return mirror, nil
}

// copyExtent copies o's elements from one buffer to another at the same places.
func copyExtent(to, from engine.Buffer, o engine.Operand) error {
	src, err := from.Host()
	if err != nil {
		return err
	}
	dst, err := to.Host()
	if err != nil {
		return err
	}
	a, b := from.DType(), to.DType()
	row := make([]float32, o.Cols)
	for r := range o.Rows {
		first := o.Offset + r*o.Stride
		if a == b {
			copy(dst[first*b.Size():(first+o.Cols)*b.Size()], src[first*a.Size():])
			continue
		}
		num.Float32s(row, a, src[first*a.Size():])
		num.PutFloat32s(b, dst[first*b.Size():], row)
	}
	return nil
}

// rebind is op on other buffers.
func rebind(op engine.Op, buffers map[engine.Buffer]engine.Buffer) engine.Op {
	at := func(b engine.Buffer) engine.Buffer {
		if b == nil {
			return nil
		}
		return buffers[b]
	}
	view := func(v engine.View) engine.View {
		return engine.View{Buffer: at(v.Buffer), Offset: v.Offset, Stride: v.Stride}
	}
	matrix := func(w engine.Matrix) engine.Matrix {
		return engine.Matrix{Buffer: at(w.Buffer), Scale: at(w.Scale), Rows: w.Rows, Cols: w.Cols}
	}
	switch o := op.(type) {
	case *engine.Embed:
		c := *o
		c.Out, c.IDs, c.W, c.Positions = at(o.Out), at(o.IDs), matrix(o.W), at(o.Positions)
		return &c
	case *engine.RMSNorm:
		c := *o
		c.Out, c.X, c.W = at(o.Out), view(o.X), at(o.W)
		return &c
	case *engine.LayerNorm:
		c := *o
		c.Out, c.X, c.W, c.Bias = at(o.Out), at(o.X), at(o.W), at(o.Bias)
		return &c
	case *engine.Linear:
		c := *o
		c.Out, c.X, c.W, c.Bias = at(o.Out), at(o.X), matrix(o.W), at(o.Bias)
		return &c
	case *engine.RoPE:
		c := *o
		c.Out, c.X, c.Table = at(o.Out), view(o.X), at(o.Table)
		return &c
	case *engine.KVWrite:
		c := *o
		c.KCache, c.VCache, c.K, c.V = at(o.KCache), at(o.VCache), view(o.K), view(o.V)
		return &c
	case *engine.Scores:
		c := *o
		c.Out, c.Q, c.K = at(o.Out), view(o.Q), at(o.K)
		return &c
	case *engine.Softmax:
		c := *o
		c.Out, c.X = at(o.Out), at(o.X)
		return &c
	case *engine.Context:
		c := *o
		c.Out, c.P, c.V = at(o.Out), at(o.P), at(o.V)
		return &c
	case *engine.Activate:
		c := *o
		c.Out, c.Gate, c.Up = at(o.Out), at(o.Gate), at(o.Up)
		return &c
	case *engine.Add:
		c := *o
		c.Out, c.A, c.B = at(o.Out), at(o.A), at(o.B)
		return &c
	case *engine.SoftCap:
		c := *o
		c.Out, c.X = at(o.Out), at(o.X)
		return &c
	}
	panic(fmt.Sprintf("BUG: %v: no op %T", op.Site(), op))
}

// synced waits for every op.
type synced struct{ engine.Backend }

func (b synced) Run(op engine.Op) {
	b.Backend.Run(op)
	b.Backend.Sync() // it stays failed, if it does
}

// zeroed writes zeros to everything that an op is about to write.
type zeroed struct{ engine.Backend }

func (b zeroed) Run(op engine.Op) {
	outs, _ := op.Operands(nil, nil)
	for _, o := range outs {
		host, err := o.Buffer.Host()
		if err != nil {
			return // Sync tells
		}
		size := o.Buffer.DType().Size()
		for r := range o.Rows {
			first := o.Offset + r*o.Stride
			clear(host[first*size : (first+o.Cols)*size])
		}
	}
	b.Backend.Run(op)
}
