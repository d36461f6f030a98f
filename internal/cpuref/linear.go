package cpuref

import (
	"encoding/binary"
	"fmt"

	"llmrun/internal/cpuref/kernel"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

func (b *Backend) embed(o *engine.Embed, out, in operands) error {
	w, scale, ids := in.get("w"), in.get("scale"), in.get("ids")
	for t := range o.Rows() {
		if id := int32(binary.LittleEndian.Uint32(ids.from(0, t))); id < 0 || int(id) >= o.W.Rows {
			return fmt.Errorf("token id %d, the vocabulary has %d", id, o.W.Rows)
		}
	}
	dst, positions := out.get("out"), in.get("positions")
	b.pool.each(o.Rows(), o.Rows()*o.W.Cols, func(s *scratch, t int) {
		row, factor := s.floats(0, o.W.Cols), []float32{1}
		id := int(binary.LittleEndian.Uint32(ids.from(0, t)))
		w.read(row, id, 0)
		if scale.exists() {
			scale.read(factor, 0, id)
		}
		for i, v := range row {
			row[i] = float32(float32(v*factor[0]) * o.Scale)
		}
		if positions.exists() {
			b.kernels.Add(row, row, positions.row(s, 1, t, 0, o.W.Cols))
		}
		dst.writeRow(t, 0, row)
	})
	return nil
}

// matrix is the weights where they lie.
func (in operands) matrix() kernel.Matrix {
	w := in.get("w")
	m := kernel.Matrix{Data: w.from(0, 0), DType: w.dtype, Rows: w.Rows, Cols: w.Cols, Stride: w.Stride * w.dtype.Size()}
	if scale := in.get("scale"); scale.exists() {
		m.Scale = kernel.FloatsOf(scale.from(0, 0))[:w.Rows]
	}
	return m
}

func (b *Backend) linear(o *engine.Linear, out, in operands) {
	w, bias, dst := in.matrix(), in.get("bias"), out.get("out")
	rows := o.Rows()
	var x kernel.Floats
	var q kernel.Quantized
	if o.Quantized {
		q = b.quantize(in.get("x"), o.Truncated)
	} else {
		x = b.floats(in.get("x"))
	}
	tokens, block := b.pool.cut(rows, w)
	tBlocks := blocks(rows, tokens)
	b.pool.each(blocks(w.Rows, block)*tBlocks, rows*w.Rows*w.Cols, func(s *scratch, item int) {
		n0, n1 := span(item/tBlocks, w.Rows, block)
		t0, t1 := span(item%tBlocks, rows, tokens)
		y := dst.room(s, 0, t0, t1-t0, n0, n1-n0)
		if o.Quantized {
			b.kernels.QuantizedProduct(&s.Temp, y, q.From(t0), t1-t0, w.Span(n0, n1))
		} else {
			b.kernels.Product(&s.Temp, y, kernel.Floats{Data: x.Data[t0*x.Stride:], Stride: x.Stride}, t1-t0, w.Span(n0, n1))
		}
		for t := range t1 - t0 {
			if row := y.Data[t*y.Stride:][:n1-n0]; bias.exists() {
				b.kernels.Add(row, row, bias.row(s, 1, 0, n0, n1-n0))
			}
		}
		dst.put(y, t0, t1-t0, n0, n1-n0)
	})
}

const (
	streams     = 4 * 56 << 10 // bytes that an item reads when weights come from memory: four streams, each long enough for its speed
	tokenBlock  = 64           // of an item whose weights serve many tokens,
	weightBlock = 60           // with so many rows of weights
)

// cut says how many tokens and how many rows of weights are an item.
func (p *pool) cut(rows int, w kernel.Matrix) (tokens, block int) {
	if rows < 4 {
		return rows, p.share(w.Rows, w.Stride, streams)
	}
	// Some items for each thread, so that one that is late does not keep the others.
	tokens = min(rows, tokenBlock)
	perThread := blocks(w.Rows*blocks(rows, tokens), 4*len(p.work))
	return tokens, min(weightBlock, blocks(perThread, 3)*3)
}

// floats gives all of an operand: where it lies, or widened, once for all threads and good until the next call.
func (b *Backend) floats(o operand) kernel.Floats {
	if o.dtype == num.Float32 {
		return kernel.Floats{Data: kernel.FloatsOf(o.from(0, 0)), Stride: o.Stride}
	}
	if n := o.Rows * o.Cols; cap(b.x) < n {
		b.x = make([]float32, n)
	}
	x := b.x[:o.Rows*o.Cols]
	b.pool.each(o.Rows, len(x), func(_ *scratch, r int) { o.read(x[r*o.Cols:][:o.Cols], r, 0) })
	return kernel.Floats{Data: x, Stride: o.Cols}
}

// quantize gives all of an operand as int8, good until the next call.
func (b *Backend) quantize(o operand, truncate bool) kernel.Quantized {
	if n := o.Rows * o.Cols; cap(b.q.Data) < n {
		b.q.Data = make([]int8, n)
	}
	if cap(b.q.Inverse) < o.Rows {
		b.q.Inverse = make([]float32, o.Rows)
	}
	q := kernel.Quantized{Data: b.q.Data[:o.Rows*o.Cols], Stride: o.Cols, Inverse: b.q.Inverse[:o.Rows]}
	b.pool.each(o.Rows, o.Rows*o.Cols, func(s *scratch, r int) {
		b.kernels.Quantize(&s.Temp, q, r, o.row(s, 0, r, 0, o.Cols), truncate)
	})
	return q
}
