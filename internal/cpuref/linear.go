package cpuref

import (
	"encoding/binary"
	"fmt"

	"llmrun/internal/engine"
)

// weights is a matrix as the ops of a decoder read it.
type weights struct{ matrix, scale operand }

func (in operands) weights() weights { return weights{in.get("w"), in.get("scale")} }

// row widens row n of the matrix.
func (w weights) row(dst []float64, n int) {
	scale := []float32{1}
	if w.scale.exists() {
		w.scale.read(scale, 0, n)
	}
	widen(dst, w.matrix.dtype, w.matrix.from(n, 0), scale[0])
}

func (b *Backend) embed(o *engine.Embed, out, in operands) error {
	w, ids := in.weights(), in.get("ids")
	for t := range o.Rows() {
		if id := int32(binary.LittleEndian.Uint32(ids.from(0, t))); id < 0 || int(id) >= o.W.Rows {
			return fmt.Errorf("token id %d, the vocabulary has %d", id, o.W.Rows)
		}
	}
	dst, positions := out.get("out"), in.get("positions")
	b.pool.each(o.Rows(), o.Rows()*o.W.Cols, func(s *scratch, t int) {
		row, add := s.doubles(0, o.W.Cols), s.floats(0, o.W.Cols)
		w.row(row, int(binary.LittleEndian.Uint32(ids.from(0, t))))
		if positions.exists() {
			positions.read(add, t, 0)
		}
		for i, v := range row {
			scaled := float32(float32(v) * o.Scale)
			if positions.exists() {
				scaled = float32(scaled + add[i])
			}
			dst.write(t, i, scaled)
		}
	})
	return nil
}

const (
	itemWork   = 1 << 15 // multiply-adds that are worth an item of their own
	cacheBlock = 1 << 14 // float64 values of x that stay in a core's cache while rows of W pass by
)

func (b *Backend) linear(o *engine.Linear, out, in operands) {
	w, bias, dst := in.weights(), in.get("bias"), out.get("out")
	rows, cols, work := o.Rows(), o.W.Cols, o.Rows()*o.W.Cols
	x := b.wide(in.get("x"))
	tokens := min(rows, max(1, cacheBlock/cols))
	block := min(o.W.Rows, max(1, itemWork/work))
	b.pool.each(blocks(o.W.Rows, block), work*o.W.Rows, func(s *scratch, item int) {
		row, add := s.doubles(0, cols), s.floats(0, 1)
		first, end := span(item, o.W.Rows, block)
		for t0 := 0; t0 < rows; t0 += tokens {
			for n := first; n < end; n++ {
				w.row(row, n)
				if bias.exists() {
					bias.read(add, 0, n)
				}
				for t := t0; t < min(rows, t0+tokens); t++ {
					sum := dot(row, x[t*cols:][:cols])
					if bias.exists() {
						sum = float32(sum + add[0])
					}
					dst.write(t, n, sum)
				}
			}
		}
	})
}

// wide widens all of an operand, once for all threads. It is good until the next call.
func (b *Backend) wide(o operand) []float64 {
	if n := o.Rows * o.Cols; cap(b.x) < n {
		b.x = make([]float64, n)
	}
	x := b.x[:o.Rows*o.Cols]
	b.pool.each(o.Rows, len(x), func(_ *scratch, r int) { o.readWide(x[r*o.Cols:][:o.Cols], r, 0) })
	return x
}
