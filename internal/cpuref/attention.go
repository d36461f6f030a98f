package cpuref

import (
	"math"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

func (b *Backend) kvWrite(_ *engine.KVWrite, out, in operands) {
	copied := func(out, x, _ []float32) { copy(out, x) }
	b.pool.rowwise(out.get("kcache"), in.get("k"), operand{}, copied)
	b.pool.rowwise(out.get("vcache"), in.get("v"), operand{}, copied)
}

// Attention's work is cut into blocks of one KV head, tokens and keys (or dimensions of the head), so that what is widened serves all
// tokens of the block and all heads that share the KV head.
const (
	tokenBlock = 16
	keyBlock   = 64
	dimBlock   = 16
)

func (b *Backend) scores(o *engine.Scores, out, in operands) {
	k, dst, q := in.get("k"), out.get("out"), b.wide(in.get("q"))
	_, first, keys := o.Keys(o.Pass())
	rows, group := o.Rows(), o.Heads/o.KVHeads
	tBlocks, jBlocks := blocks(rows, tokenBlock), blocks(keys, keyBlock)
	b.pool.each(o.KVHeads*tBlocks*jBlocks, o.Heads*rows*keys*o.Dim, func(s *scratch, item int) {
		kv := item / (tBlocks * jBlocks)
		t0, t1 := span(item/jBlocks%tBlocks, rows, tokenBlock)
		j0, j1 := span(item%jBlocks, keys, keyBlock)
		key := s.doubles(0, o.Dim)
		for j := j0; j < j1; j++ {
			k.readWide(key, j, kv*o.Dim)
			for h := kv * group; h < (kv+1)*group; h++ {
				for t := t0; t < t1; t++ {
					score := float32(0)
					if j < first+t {
						score = float32(dot(q[(t*o.Heads+h)*o.Dim:][:o.Dim], key) * o.Scale)
					}
					dst.write(h*rows+t, j, score)
				}
			}
		}
	})
}

func (b *Backend) softmax(o *engine.Softmax, out, in operands) {
	x, dst := in.get("x"), out.get("out")
	_, first, keys := o.Keys(o.Pass())
	b.pool.each(x.Rows, 8*x.Rows*keys, func(s *scratch, item int) { // an exp is worth some eight multiply-adds
		row, e, ones := s.floats(0, keys), s.doubles(0, keys), s.doubles(1, keys)
		n := first + item%o.Rows()
		x.read(row[:n], item, 0)
		top := float32(math.Inf(-1))
		for _, v := range row[:n] {
			top = max(top, v)
		}
		for j, v := range row[:n] {
			e[j], ones[j] = float64(float32(num.Exp(float64(v)-float64(top)))), 1
		}
		sum := dot(e[:n], ones[:n])
		for j := range n {
			row[j] = float32(float32(e[j]) / sum)
		}
		clear(row[n:])
		dst.writeRow(item, 0, row)
	})
}

func (b *Backend) context(o *engine.Context, out, in operands) {
	v, p, dst := in.get("v"), in.get("p"), out.get("out")
	_, first, keys := o.Keys(o.Pass())
	rows, group := o.Rows(), o.Heads/o.KVHeads
	tBlocks, iBlocks := blocks(rows, tokenBlock), blocks(o.Dim, dimBlock)
	b.pool.each(o.KVHeads*tBlocks*iBlocks, o.Heads*rows*keys*o.Dim, func(s *scratch, item int) {
		kv := item / (tBlocks * iBlocks)
		t0, t1 := span(item/iBlocks%tBlocks, rows, tokenBlock)
		i0, i1 := span(item%iBlocks, o.Dim, dimBlock)
		// Values lie by key; a sum over keys wants them by dimension.
		value, byDim, weight := s.doubles(0, i1-i0), s.doubles(1, (i1-i0)*keys), s.doubles(2, keys)
		for j := range first + t1 - 1 {
			v.readWide(value, j, kv*o.Dim+i0)
			for i, a := range value {
				byDim[i*keys+j] = a
			}
		}
		for h := kv * group; h < (kv+1)*group; h++ {
			for t := t0; t < t1; t++ {
				n := first + t
				p.readWide(weight[:n], h*rows+t, 0)
				for i := i0; i < i1; i++ {
					dst.write(t, h*o.Dim+i, dot(byDim[(i-i0)*keys:][:n], weight[:n]))
				}
			}
		}
	})
}
