package cpuref

import (
	"llmrun/internal/cpuref/kernel"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

func (b *Backend) kvWrite(_ *engine.KVWrite, out, in operands) {
	copied := func(out, x, _ []float32) { b.kernels.Scale(out, x, 1) }
	b.pool.rowwise(out.get("kcache"), in.get("k"), operand{}, copied)
	b.pool.rowwise(out.get("vcache"), in.get("v"), operand{}, copied)
}

// Attention's work is cut into blocks of one KV head, tokens and keys (or columns of the head), so that what is read serves all
// tokens of the block and all heads that share the KV head.
const (
	keyBlock    = 120
	valueBlock  = 64 // keys whose values stay in a core's first cache
	columnBlock = 32
	valueTokens = 8
)

func (b *Backend) scores(o *engine.Scores, out, in operands) {
	k, dst, q := in.get("k"), out.get("out"), b.floats(in.get("q"))
	_, first, keys := o.Keys(o.Pass())
	rows, group := o.Rows(), o.Heads/o.KVHeads
	tBlocks, jBlocks := blocks(rows, tokenBlock), blocks(keys, keyBlock)
	b.pool.each(o.KVHeads*tBlocks*jBlocks, o.Heads*rows*keys*o.Dim, func(s *scratch, item int) {
		kv := item / (tBlocks * jBlocks)
		t0, t1 := span(item/jBlocks%tBlocks, rows, tokenBlock)
		j0, j1 := span(item%jBlocks, keys, keyBlock)
		key := kernel.Matrix{Data: k.from(j0, kv*o.Dim), DType: k.dtype, Cols: o.Dim, Stride: k.Stride * k.dtype.Size()}
		key.Rows = max(0, min(j1, first+t1-1)-j0) // what the block's last token attends to
		// product computes the scores of n rows of the output from row r on, whose queries are stride apart from q on.
		product := func(r, n, q0, stride int) {
			y := dst.room(s, 0, r, n, j0, j1-j0)
			b.kernels.Product(&s.Temp, y, kernel.Floats{Data: q.Data[q0:], Stride: stride}, n, key)
			for i := range n {
				row := y.Data[i*y.Stride:][:j1-j0]
				seen := min(len(row), max(0, first+(r+i)%rows-j0))
				b.kernels.Scale(row[:seen], row[:seen], o.Scale)
				clear(row[seen:])
			}
			dst.put(y, r, n, j0, j1-j0)
		}
		if rows == 1 { // the heads are the rows
			product(kv*group, group, kv*group*o.Dim, o.Dim)
			return
		}
		for h := kv * group; h < (kv+1)*group; h++ {
			product(h*rows+t0, t1-t0, t0*q.Stride+h*o.Dim, q.Stride)
		}
	})
}

func (b *Backend) softmax(o *engine.Softmax, out, in operands) {
	x, dst := in.get("x"), out.get("out")
	_, first, keys := o.Keys(o.Pass())
	b.pool.each(x.Rows, 8*x.Rows*keys, func(s *scratch, r int) { // an exp is worth some eight multiply-adds
		n := first + r%o.Rows()
		row := dst.room(s, 0, r, 1, 0, keys)
		b.kernels.Softmax(&s.Temp, row.Data[:n], x.row(s, 1, r, 0, n))
		clear(row.Data[n:])
		dst.put(row, r, 1, 0, keys)
	})
}

func (b *Backend) context(o *engine.Context, out, in operands) {
	v, p, dst := in.get("v"), in.get("p"), out.get("out")
	_, first, keys := o.Keys(o.Pass())
	rows, group := o.Rows(), o.Heads/o.KVHeads
	tBlocks, iBlocks := blocks(rows, valueTokens), blocks(o.Dim, columnBlock)
	b.pool.each(o.KVHeads*tBlocks*iBlocks, o.Heads*rows*keys*o.Dim, func(s *scratch, item int) {
		kv := item / (tBlocks * iBlocks)
		t0, t1 := span(item/iBlocks%tBlocks, rows, valueTokens)
		i0, i1 := span(item%iBlocks, o.Dim, columnBlock)
		width := blocks(i1-i0, 8) * 8
		sums, y := s.floats(0, group*(t1-t0)*8*width), s.floats(1, width)
		for j0 := 0; j0 < first+t1-1; j0 += valueBlock {
			value := v.values(s, 2, j0, min(first+t1-1, j0+valueBlock), kv*o.Dim+i0, i1-i0, width)
			for i := range group * (t1 - t0) {
				h, t := kv*group+i/(t1-t0), t0+i%(t1-t0)
				n := min(first+t, j0+valueBlock) - j0
				if n <= 0 {
					continue
				}
				last := j0+n == first+t
				weight := p.row(s, 3, h*rows+t, j0, n)
				b.kernels.WeightedSum(y, weight, value, sums[i*8*width:], j0 == 0, last)
				if last {
					dst.writeRow(t, h*o.Dim+i0, y[:i1-i0])
				}
			}
		}
	})
}

// values gives columns [i, i+n) of rows [from, to): where they lie, or widened and filled up to width columns with zeros.
func (o operand) values(s *scratch, slot, from, to, i, n, width int) kernel.Floats {
	if o.dtype == num.Float32 && n == width {
		return kernel.Floats{Data: kernel.FloatsOf(o.from(from, i)), Stride: o.Stride}
	}
	v := s.floats(slot, (to-from)*width)
	clear(v)
	for r := from; r < to; r++ {
		o.read(v[(r-from)*width:][:n], r, i)
	}
	return kernel.Floats{Data: v, Stride: width}
}
