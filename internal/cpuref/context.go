package cpuref

import (
	"llmrun/internal/cpuref/kernel"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

const lanes = 8 // of a sum

func (b *Backend) context(o *engine.Context, out, in operands) {
	v, p := in.get("v"), in.get("p")
	if o.Rows() == 1 && o.Dim%lanes == 0 && v.dtype == num.Float32 && p.dtype == num.Float32 {
		b.contextOfOne(o, out.get("out"), v, p)
		return
	}
	_, first, keys := o.Keys(o.Pass())
	c := &b.now.context
	*c = weighing{b, o, v, p, out.get("out"), first}
	b.pool.each(blocks(o.Rows(), valueTokens)*blocks(o.KVHeads*o.Dim, columnBlock), o.Heads*o.Rows()*keys*o.Dim, c)
}

// contextOfOne is a Context op of a single token at work. An item sums, for all heads, some of the lanes and some of the columns: it reads some of each
// eight rows of the cache, block by block, and each block comes from memory while the one before it is summed. Long pieces of memory come faster
// than short ones, so threads share the lanes rather than the columns.
type contextOfOne struct {
	*Backend
	o                    *engine.Context
	v, p                 operand
	keys                 int       // in whole eights
	lanes, columns, rows int       // of an item, and what it has in a core's cache at a time
	sums                 []float32 // not finished: [Heads, Dim/8, lanes, 8]
}

func (b *Backend) contextOfOne(o *engine.Context, dest, v, p operand) {
	const (
		line  = 16        // floats that memory gives at once, and two lanes of eight columns
		least = 4 * lanes // rows of a block, so that each lane has four streams of the same length
		few   = 3 * least // rows of a block that takes longer to begin and to end than it is worth
		many  = 8         // blocks: while the first comes nothing is summed, and while the last is summed nothing comes
	)
	c, threads, group := &b.now.contextOfOne, len(b.pool.work), o.Heads/o.KVHeads
	_, keys, _ := o.Keys(o.Pass())
	share := 1
	for share < lanes/2 && threads%(2*share) == 0 {
		share *= 2
	}
	width, n := o.KVHeads*o.Dim, lanes*o.Heads*o.Dim
	sums := c.sums
	if cap(sums) < n {
		sums = make([]float32, n)
	}
	*c = contextOfOne{Backend: b, o: o, v: v, p: p, keys: keys / lanes * lanes, lanes: lanes / share, sums: sums[:n]}
	c.columns = blocks(blocks(width, threads/share), line) * line
	times := max(1, min(many, c.keys/few), blocks(4*c.keys*c.lanes/lanes*c.columns, cacheBlock))
	c.rows = blocks(c.keys, times*least) * least // no block is longer than the one before it, which asks for as much
	clear(c.sums)
	b.pool.each(share*blocks(width, c.columns), o.Heads*keys*o.Dim, c)
	for h := range o.Heads {
		y := dest.room(&b.pool.work[0], 0, 0, 1, h*o.Dim, o.Dim)
		last := kernel.Floats{Stride: v.Stride}
		if c.keys < keys {
			last.Data = kernel.FloatsOf(v.from(c.keys, h/group*o.Dim))
		}
		weights := kernel.FloatsOf(p.from(h, c.keys))[:keys-c.keys]
		b.kernels.EndSum(y.Data, weights, last, c.sums[h*o.Dim*lanes:])
		dest.put(y, 0, 1, h*o.Dim, o.Dim)
	}
}

func (c *contextOfOne) item(_ *scratch, item int) {
	o, group := c.o, c.o.Heads/c.o.KVHeads
	l0, l1 := span(item%(lanes/c.lanes), lanes, c.lanes)
	i0, i1 := span(item/(lanes/c.lanes), o.KVHeads*o.Dim, c.columns)
	for j := 0; j < c.keys; j += c.rows {
		n, ahead := min(c.rows, c.keys-j), 0
		if j+n < c.keys {
			ahead = n
		}
		if j == 0 {
			c.fetch(n, l0, l1, i0, i1)
		}
		for i := i0; i < i1; {
			kv, end := i/o.Dim, min(i1, (i/o.Dim+1)*o.Dim)
			sums := kernel.Floats{Data: c.sums[(kv*group*o.Dim+i%o.Dim)*lanes:], Stride: o.Dim * lanes}
			weights := kernel.Floats{Data: kernel.FloatsOf(c.p.from(kv*group, j)), Stride: c.p.Stride}
			values := kernel.Floats{Data: kernel.FloatsOf(c.v.from(j, i)), Stride: c.v.Stride}
			c.kernels.Weigh(sums, weights, group, values, n, end-i, l0, l1, ahead)
			i = end
		}
	}
}

// fetch reads columns [i0, i1) of lanes [l0, l1) of the first n rows, before which there is nothing to sum.
func (c *contextOfOne) fetch(n, l0, l1, i0, i1 int) {
	stride, each, times := 4*c.v.Stride, 4*(i1-i0), l1-l0
	if i1-i0 == c.v.Stride {
		each, times = (l1-l0)*stride, 1 // one after the other
	}
	near, quarter := lanes*stride, n/lanes/4
	for l := range times {
		c.kernels.Fetch(c.v.from(l0+l, i0), near, quarter*near, n/lanes-3*quarter, each)
	}
}

// weighing is a Context op of many tokens at work.
type weighing struct {
	*Backend
	o          *engine.Context
	v, p, dest operand
	first      int // keys that row 0 attends to
}

func (c *weighing) item(s *scratch, item int) {
	o, width := c.o, c.o.KVHeads*c.o.Dim
	iBlocks := blocks(width, columnBlock)
	t0, t1 := span(item/iBlocks, o.Rows(), valueTokens)
	i0, i1 := span(item%iBlocks, width, columnBlock)
	sums := s.floats(4, lanes*o.Heads/o.KVHeads*(t1-t0)*(i1-i0+lanes*o.KVHeads))
	clear(sums)
	for j0 := 0; j0 < c.first+t1-1; j0 += valueBlock {
		left := sums
		for i := i0; i < i1; {
			end := min(i1, (i/o.Dim+1)*o.Dim) // of the KV head
			left = c.sum(s, left, j0, t0, t1, i, end)
			i = end
		}
	}
}

// sum adds the values of block j0 to columns [i0, i1), of one KV head, of all heads that share it, for tokens [t0, t1). sums hold the lanes of
// the sums that are not finished, in the order [head, token]; what is left of them is returned.
func (c *weighing) sum(s *scratch, sums []float32, j0, t0, t1, i0, i1 int) []float32 {
	rows, group, kv := c.o.Rows(), c.o.Heads/c.o.KVHeads, i0/c.o.Dim
	width := blocks(i1-i0, lanes) * lanes
	size, tokens := lanes*width, t1-t0
	value := c.v.values(s, 2, j0, min(c.first+t1-1, j0+valueBlock), i0, i1-i0, width)
	for g := range group {
		// add adds values [from, to) to the sums of count tokens from t on.
		add := func(t, count, from, to int) {
			weights := c.p.rows(s, 3, (kv*group+g)*rows+t, count, j0+from, to-from)
			part := kernel.Floats{Data: sums[(g*tokens+t-t0)*size:], Stride: size}
			c.kernels.Weigh(part, weights, count, kernel.Floats{Data: value.Data[from*value.Stride:], Stride: value.Stride}, to-from, width, 0, lanes, 0)
		}
		all := c.seen(t0, j0) / lanes * lanes // the first token attends to the fewest
		add(t0, tokens, 0, all)
		for t := t0 + 1; t < t1; t++ {
			if n := c.seen(t, j0) / lanes * lanes; n > all {
				add(t, 1, all, n)
			}
		}
		for t := t0; t < t1; t++ {
			if n := c.seen(t, j0); n > 0 && j0+n == c.first+t {
				c.end(s, sums[(g*tokens+t-t0)*size:], value, kv*group+g, t, j0, n, i0, i1)
			}
		}
	}
	return sums[group*tokens*size:]
}

// seen is how many values of block j0 token t attends to.
func (c *weighing) seen(t, j0 int) int { return max(0, min(c.first+t-j0, valueBlock)) }

// end finishes the sums of head h and token t, with what the first n values have beyond whole eights.
func (c *weighing) end(s *scratch, sums []float32, value kernel.Floats, h, t, j0, n, i0, i1 int) {
	whole := n / lanes * lanes
	weight := c.p.row(s, 3, h*c.o.Rows()+t, j0+whole, n-whole)
	y := s.floats(1, blocks(i1-i0, lanes)*lanes)
	value.Data = value.Data[min(len(value.Data), whole*value.Stride):]
	c.kernels.EndSum(y, weight, value, sums)
	i := h*c.o.Dim + i0%c.o.Dim
	row := c.dest.room(s, 0, t, 1, i, i1-i0)
	copy(row.Data, y[:i1-i0])
	c.dest.put(row, t, 1, i, i1-i0)
}

// rows gives n elements, from element i on, of count rows from r on: where they lie, or widened to the thread's array number slot.
func (o operand) rows(s *scratch, slot, r, count, i, n int) kernel.Floats {
	if o.dtype == num.Float32 {
		return kernel.Floats{Data: kernel.FloatsOf(o.from(r, i)), Stride: o.Stride}
	}
	f := kernel.Floats{Data: s.floats(slot, count*n), Stride: n}
	for k := range count {
		o.read(f.Data[k*n:][:n], r+k, i)
	}
	return f
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
