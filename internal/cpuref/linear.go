package cpuref

import (
	"encoding/binary"
	"fmt"

	"llmrun/internal/cpuref/kernel"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

type embed struct {
	*Backend
	o                              *engine.Embed
	w, scale, ids, positions, dest operand
}

func (b *Backend) embed(o *engine.Embed, out, in operands) error {
	e := &b.now.embed
	*e = embed{b, o, in.get("w"), in.get("scale"), in.get("ids"), in.get("positions"), out.get("out")}
	for t := range o.Rows() {
		if id := int32(binary.LittleEndian.Uint32(e.ids.from(0, t))); id < 0 || int(id) >= o.W.Rows {
			return fmt.Errorf("token id %d, the vocabulary has %d", id, o.W.Rows)
		}
	}
	b.pool.each(o.Rows(), o.Rows()*o.W.Cols, e)
	return nil
}

func (e *embed) item(s *scratch, t int) {
	row, factor := s.floats(0, e.o.W.Cols), float32(1)
	id := int(binary.LittleEndian.Uint32(e.ids.from(0, t)))
	e.w.read(row, id, 0)
	if e.scale.exists() {
		factor = e.scale.row(s, 1, 0, id, 1)[0]
	}
	for i, v := range row {
		row[i] = float32(float32(v*factor) * e.o.Scale)
	}
	if e.positions.exists() {
		e.kernels.Add(row, row, e.positions.row(s, 1, t, 0, e.o.W.Cols))
	}
	e.dest.writeRow(t, 0, row)
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

type linear struct {
	*Backend
	o             *engine.Linear
	w             kernel.Matrix
	x             kernel.Floats
	q             kernel.Quantized // in place of x, where w is quantized
	bias, dest    operand
	tokens, block int // of an item: tokens, and rows of weights
}

func (b *Backend) linear(o *engine.Linear, out, in operands) {
	l := &b.now.linear
	*l = linear{Backend: b, o: o, w: in.matrix(), bias: in.get("bias"), dest: out.get("out")}
	if o.Quantized {
		l.q = b.quantize(in.get("x"), o.Truncated)
	} else {
		l.x = b.floats(in.get("x"))
	}
	if o.Rows() == 1 {
		b.foresight.next.Add(1)
	}
	l.tokens, l.block = b.pool.cut(o.Rows(), l.w)
	b.pool.each(blocks(l.w.Rows, l.block)*blocks(o.Rows(), l.tokens), o.Rows()*l.w.Rows*l.w.Cols, l)
}

func (l *linear) item(s *scratch, item int) {
	tBlocks := blocks(l.o.Rows(), l.tokens)
	n0, n1 := span(item/tBlocks, l.w.Rows, l.block)
	t0, t1 := span(item%tBlocks, l.o.Rows(), l.tokens)
	y := l.dest.room(s, 0, t0, t1-t0, n0, n1-n0)
	if l.o.Quantized {
		l.kernels.QuantizedProduct(&s.Temp, y, l.q.From(t0), t1-t0, l.w.Span(n0, n1))
	} else {
		l.kernels.Product(&s.Temp, y, kernel.Floats{Data: l.x.Data[t0*l.x.Stride:], Stride: l.x.Stride}, t1-t0, l.w.Span(n0, n1))
	}
	for t := range t1 - t0 {
		if row := y.Data[t*y.Stride:][:n1-n0]; l.bias.exists() {
			l.kernels.Add(row, row, l.bias.row(s, 1, 0, n0, n1-n0))
		}
	}
	l.dest.put(y, t0, t1-t0, n0, n1-n0)
}

const (
	// What an item reads when weights come from memory, in bytes: four streams, each long enough for its speed, in about a tenth of a
	// millisecond, since the Go scheduler waits for a kernel's end.
	streams    = 4 * 448 << 10
	tokenBlock = kernel.InputBlock // of an item whose weights serve many tokens
	tiles      = 24                // rows of weights that are whole tiles of the kernels, whatever their size
)

// cacheBlock is bytes that wait in a core's second cache until they are used.
const cacheBlock = 384 << 10

// cut says how many tokens and how many rows of weights are an item.
func (p *pool) cut(rows int, w kernel.Matrix) (tokens, block int) {
	if rows < 4 {
		return rows, p.share(w.Rows, w.Stride, streams)
	}
	// Some items for each thread, so that one that is late does not keep the others.
	tokens = min(rows, tokenBlock)
	perThread := blocks(w.Rows*blocks(rows, tokens), 4*len(p.work))
	return tokens, min(kernel.WeightBlock, blocks(perThread, tiles)*tiles)
}

// floats gives all of an operand: where it lies, or widened, once for all threads and good until the next call.
func (b *Backend) floats(o operand) kernel.Floats {
	if o.dtype == num.Float32 {
		return kernel.Floats{Data: kernel.FloatsOf(o.from(0, 0)), Stride: o.Stride}
	}
	w := &b.now.widen
	if n := o.Rows * o.Cols; cap(w.to) < n {
		w.to = make([]float32, n)
	}
	w.from, w.to = o, w.to[:o.Rows*o.Cols]
	b.pool.each(o.Rows, len(w.to), w)
	return kernel.Floats{Data: w.to, Stride: o.Cols}
}

type widen struct {
	from operand
	to   []float32
}

func (w *widen) item(_ *scratch, r int) { w.from.read(w.to[r*w.from.Cols:][:w.from.Cols], r, 0) }

// quantize gives all of an operand as int8, good until the next call.
func (b *Backend) quantize(o operand, truncate bool) kernel.Quantized {
	q := &b.now.quantize
	if n := o.Rows * o.Cols; cap(q.to.Data) < n {
		q.to.Data = make([]int8, n)
	}
	if cap(q.to.Inverse) < o.Rows {
		q.to.Inverse = make([]float32, o.Rows)
	}
	*q = quantize{b, o, kernel.Quantized{Data: q.to.Data[:o.Rows*o.Cols], Stride: o.Cols, Inverse: q.to.Inverse[:o.Rows]}, truncate}
	b.pool.each(o.Rows, o.Rows*o.Cols, q)
	return q.to
}

type quantize struct {
	*Backend
	from     operand
	to       kernel.Quantized
	truncate bool
}

func (q *quantize) item(s *scratch, r int) {
	q.kernels.Quantize(&s.Temp, q.to, r, q.from.row(s, 0, r, 0, q.from.Cols), q.truncate)
}
