package cpuref

import (
	"llmrun/internal/cpuref/kernel"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

func (b *Backend) kvWrite(o *engine.KVWrite, out, in operands) {
	b.rowwise(o, out.get("kcache"), in.get("k"), operand{})
	b.rowwise(o, out.get("vcache"), in.get("v"), operand{})
}

// Attention's work is cut into blocks of tokens and keys (or columns of values), so that what is read serves all tokens of the
// block and all heads that share a KV head. A single token reads the cache once: its blocks are whole rows of the cache, or as much of
// them as there are threads, because memory is fast along a row only; and a block is first read from memory in the order that memory likes, then used.
const (
	keyBlock    = 48 // keys that many tokens are multiplied with
	valueBlock  = 64 // values that stay in a core's cache while all heads and tokens sum them
	valueTokens = 6
	columnBlock = 64
	cacheBlock  = 256 << 10 // bytes of keys, or of values, that stay in a core's cache for a single token
)

type scores struct {
	*Backend
	o           *engine.Scores
	q           kernel.Floats
	k, dest     operand
	first, keys int // that row 0 attends to, and the last row
	block       int // keys of an item
}

func (b *Backend) scores(o *engine.Scores, out, in operands) {
	c := &b.now.scores
	*c = scores{Backend: b, o: o, q: b.floats(in.get("q")), k: in.get("k"), dest: out.get("out"), block: keyBlock}
	_, c.first, c.keys = o.Keys(o.Pass())
	items := o.Heads * blocks(o.Rows(), tokenBlock)
	if o.Rows() == 1 {
		items, c.block = 1, b.pool.share(c.keys, o.KVHeads*o.Dim*c.k.dtype.Size(), cacheBlock)
	}
	b.pool.each(items*blocks(c.keys, c.block), o.Heads*o.Rows()*c.keys*o.Dim, c)
}

func (c *scores) item(s *scratch, item int) {
	o, rows, group, jBlocks := c.o, c.o.Rows(), c.o.Heads/c.o.KVHeads, blocks(c.keys, c.block)
	j0, j1 := span(item%jBlocks, c.keys, c.block)
	if rows == 1 { // the heads are the rows
		c.fetch(c.k, j0, j1, 0, o.KVHeads*o.Dim)
		for ; j0 < j1; j0 += keyBlock {
			for kv := range o.KVHeads {
				c.product(s, kv*group, group, kv*group*o.Dim, o.Dim, kv, j0, min(j1, j0+keyBlock))
			}
		}
		return
	}
	tBlocks := blocks(rows, tokenBlock)
	h := item / (tBlocks * jBlocks)
	t0, t1 := span(item/jBlocks%tBlocks, rows, tokenBlock)
	c.product(s, h*rows+t0, t1-t0, t0*c.q.Stride+h*o.Dim, c.q.Stride, h/group, j0, j1)
}

// product computes the scores of n rows of the output from row r on, whose queries are stride apart from q0 on, with keys [j0, j1).
func (c *scores) product(s *scratch, r, n, q0, stride, kv, j0, j1 int) {
	o, rows := c.o, c.o.Rows()
	key := kernel.Matrix{Data: c.k.from(j0, kv*o.Dim), DType: c.k.dtype, Cols: o.Dim, Stride: c.k.Stride * c.k.dtype.Size()}
	key.Rows = max(0, min(j1, c.first+(r+n-1)%rows)-j0) // what the last of these tokens attends to
	y := c.dest.room(s, 0, r, n, j0, j1-j0)
	c.kernels.Product(&s.Temp, y, kernel.Floats{Data: c.q.Data[q0:], Stride: stride}, n, key)
	for i := range n {
		row := y.Data[i*y.Stride:][:j1-j0]
		seen := min(len(row), max(0, c.first+(r+i)%rows-j0))
		c.kernels.Scale(row[:seen], row[:seen], o.Scale)
		clear(row[seen:])
	}
	c.dest.put(y, r, n, j0, j1-j0)
}

type softmax struct {
	*Backend
	o           *engine.Softmax
	x, dest     operand
	first, keys int
}

func (b *Backend) softmax(o *engine.Softmax, out, in operands) {
	m := &b.now.softmax
	*m = softmax{Backend: b, o: o, x: in.get("x"), dest: out.get("out")}
	_, m.first, m.keys = o.Keys(o.Pass())
	b.pool.each(m.x.Rows, 8*m.x.Rows*m.keys, m) // an exp is worth some eight multiply-adds
}

func (m *softmax) item(s *scratch, r int) {
	n := m.first + r%m.o.Rows()
	row := m.dest.room(s, 0, r, 1, 0, m.keys)
	m.kernels.Softmax(&s.Temp, row.Data[:n], m.x.row(s, 1, r, 0, n))
	clear(row.Data[n:])
	m.dest.put(row, r, 1, 0, m.keys)
}

// weighing is a Context op at work.
type weighing struct {
	*Backend
	o                *engine.Context
	v, p, dest       operand
	first            int // keys that row 0 attends to
	columns, fetched int // of an item, and values that it reads from memory at a time
}

const lanes = 8 // of a sum

func (b *Backend) context(o *engine.Context, out, in operands) {
	_, first, keys := o.Keys(o.Pass())
	c := &b.now.context
	*c = weighing{b, o, in.get("v"), in.get("p"), out.get("out"), first, columnBlock, valueBlock}
	width := o.KVHeads * o.Dim
	if o.Rows() == 1 {
		const line = 16 // floats that memory gives at once
		c.columns = blocks(blocks(width, len(b.pool.work)), line) * line
		c.fetched *= blocks(cacheBlock, 4*c.columns*valueBlock)
	}
	b.pool.each(blocks(o.Rows(), valueTokens)*blocks(width, c.columns), o.Heads*o.Rows()*keys*o.Dim, c)
}

func (c *weighing) item(s *scratch, item int) {
	o, width := c.o, c.o.KVHeads*c.o.Dim
	iBlocks := blocks(width, c.columns)
	t0, t1 := span(item/iBlocks, o.Rows(), valueTokens)
	i0, i1 := span(item%iBlocks, width, c.columns)
	sums := s.floats(4, lanes*o.Heads/o.KVHeads*(t1-t0)*(i1-i0+lanes*o.KVHeads))
	for j0 := 0; j0 < c.first+t1-1; j0 += valueBlock {
		if j0%c.fetched == 0 {
			c.fetch(c.v, j0, min(c.first+t1-1, j0+c.fetched), i0, i1-i0)
		}
		left := sums
		for i := i0; i < i1; {
			end := min(i1, (i/o.Dim+1)*o.Dim) // of the KV head
			left = c.sum(s, left, j0, t0, t1, i, end)
			i = end
		}
	}
}

// fetch reads columns [i, i+n) of rows [from, to) of a cache from memory.
func (b *Backend) fetch(cache operand, from, to, i, n int) {
	if size := cache.dtype.Size(); from < to {
		b.kernels.Fetch(cache.from(from, i), cache.Stride*size, to-from, n*size)
	}
}

// sum adds the values of block j0 to columns [i0, i1), of one KV head, of all heads that share it, for tokens [t0, t1). sums hold the lanes of
// the sums that are not finished, in the order [head, token]; what is left of them is returned.
func (c *weighing) sum(s *scratch, sums []float32, j0, t0, t1, i0, i1 int) []float32 {
	rows, group, kv := c.o.Rows(), c.o.Heads/c.o.KVHeads, i0/c.o.Dim
	width := blocks(i1-i0, lanes) * lanes
	size, tokens := lanes*width, t1-t0
	value := c.v.values(s, 2, j0, min(c.first+t1-1, j0+valueBlock), i0, i1-i0, width)
	// add adds whole eights of the first n values to count sums, whose weights are every stride-th row from r on.
	add := func(sums []float32, n, count, r, stride int) {
		n = n / lanes * lanes
		c.kernels.Weigh(sums, c.p.rows(s, 3, r, count, stride, j0, n), count, value, n, width, j0 == 0)
	}
	if tokens == 1 { // the heads are the rows
		add(sums, c.seen(t0, j0), group, kv*group*rows+t0, rows)
	}
	for g := range group {
		for t := t0; t < t1 && tokens > 1; {
			n, count := c.seen(t, j0), 1
			if n == valueBlock {
				count = t1 - t
			}
			add(sums[(g*tokens+t-t0)*size:], n, count, (kv*group+g)*rows+t, 1)
			t += count
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
	c.kernels.WeightedSum(y, weight, value, sums, j0 == 0 && whole == 0, true)
	i := h*c.o.Dim + i0%c.o.Dim
	row := c.dest.room(s, 0, t, 1, i, i1-i0)
	copy(row.Data, y[:i1-i0])
	c.dest.put(row, t, 1, i, i1-i0)
}

// rows gives n elements, from element i on, of count rows, every stride-th from r on: where they lie, or widened to the thread's array number slot.
func (o operand) rows(s *scratch, slot, r, count, stride, i, n int) kernel.Floats {
	if o.dtype == num.Float32 {
		return kernel.Floats{Data: kernel.FloatsOf(o.from(r, i)), Stride: stride * o.Stride}
	}
	f := kernel.Floats{Data: s.floats(slot, count*n), Stride: n}
	for k := range count {
		o.read(f.Data[k*n:][:n], r+k*stride, i)
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
