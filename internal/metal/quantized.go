package metal

import (
	"errors"
	"fmt"

	"llmrun/internal/engine"
)

type (
	quantizeArgs struct{ cols, truncated uint32 }
	linearI8Args struct{ rows, cols, tokens, hasBias uint32 }
)

// quantizer is the memory in which inputs of quantized linears become int8, one after the other: a command buffer's kernels
// run in order.
type quantizer struct {
	q, inverse room
	// The last input: two linears that read the same one, such as gate and up, quantize it once.
	x          slot
	rows, cols int
	truncated  bool
}

// room is memory that grows to the largest need.
type room struct {
	slot
	bytes int
}

// reserve makes it large enough.
func (b *Backend) reserve(r *room, bytes int) error {
	if r.bytes >= bytes {
		return nil
	}
	m, _, err := b.allocate(bytes)
	if err == nil {
		*r = room{slot{mtl: m}, bytes}
	}
	return err
}

// quantizedLinear multiplies int8 by int8 in two kernels.
func (b *Backend) quantizedLinear(o *engine.Linear) {
	if b.err = b.quantize(o); b.err != nil {
		return
	}
	w, scale := b.matrix(o.W)
	bias := w
	if o.Bias != nil {
		bias = b.float(o.Bias)
	}
	key, tokens := plain("linear_i8"), 1
	if o.Rows() > 1 {
		key.variant, tokens = "x4", 4
	}
	group := size{4 * simdWidth, 1, 1}
	grid := size{uint(ceil(o.W.Rows, 4*4)) * group.Width, uint(ceil(o.Rows(), tokens)), 1}
	queue(b, o.Site(), key, grid, group, linearI8Args{uint32(o.W.Rows), uint32(o.W.Cols), uint32(o.Rows()), flag(o.Bias != nil)},
		b.act(o.Out), b.quantizer.q.slot, b.quantizer.inverse.slot, w, scale, bias)
	b.work += o.Rows() * o.W.Rows * o.W.Cols
}

// quantize makes o's input int8, unless the op before has done it.
func (b *Backend) quantize(o *engine.Linear) error {
	z, x := &b.quantizer, b.act(o.X)
	last := len(b.pending) - 1
	if last >= 0 && b.pending[last].key.shader == "linear_i8" && z.x == x && z.rows == o.Rows() && z.cols == o.W.Cols && z.truncated == o.Truncated {
		return nil
	}
	if err := errors.Join(b.reserve(&z.q, o.Rows()*o.W.Cols), b.reserve(&z.inverse, 4*o.Rows())); err != nil {
		return &engine.OpError{Site: o.Site(), Err: fmt.Errorf("metal: quantize: %w", err)}
	}
	z.x, z.rows, z.cols, z.truncated = x, o.Rows(), o.W.Cols, o.Truncated
	queue(b, o.Site(), plain("quantize"), size{uint(o.Rows()) * 256, 1, 1}, size{256, 1, 1}, quantizeArgs{uint32(o.W.Cols), flag(o.Truncated)},
		z.q.slot, z.inverse.slot, x)
	return nil
}
