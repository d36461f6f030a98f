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
// block and all heads that share a KV head. A single token reads the cache once, as fast as memory gives it: see kernel.Scores and contextOfOne.
const (
	keyBlock    = 4 * kernel.WeightBlock // keys that many tokens are multiplied with
	keyTokens   = kernel.InputBlock / 5  // of them that are compared with the same keys, where causality hides some from the first
	valueBlock  = 256                    // values that stay in a core's cache while all heads and tokens sum them
	valueTokens = 6
	columnBlock = 64
)

type scores struct {
	*Backend
	o           *engine.Scores
	q           kernel.Floats
	k, dest     operand
	first, keys int  // that row 0 attends to, and the last row
	one         bool // a single token
	block       int  // keys of an item
}

func (b *Backend) scores(o *engine.Scores, out, in operands) {
	c := &b.now.scores
	*c = scores{Backend: b, o: o, q: b.floats(in.get("q")), k: in.get("k"), dest: out.get("out"), block: keyBlock}
	_, c.first, c.keys = o.Keys(o.Pass())
	items := o.Heads * blocks(o.Rows(), tokenBlock)
	if c.one = o.Rows() == 1 && o.Dim%lanes == 0 && c.k.dtype == num.Float32; c.one {
		items, c.block = 1, b.pool.share(c.keys, 4*o.KVHeads*o.Dim, streams)
	}
	b.pool.each(items*blocks(c.keys, c.block), o.Heads*o.Rows()*c.keys*o.Dim, c)
}

func (c *scores) item(s *scratch, item int) {
	o, rows, group, jBlocks := c.o, c.o.Rows(), c.o.Heads/c.o.KVHeads, blocks(c.keys, c.block)
	j0, j1 := span(item%jBlocks, c.keys, c.block)
	if c.one {
		k := kernel.Matrix{Data: c.k.from(j0, 0), Rows: j1 - j0, Cols: o.KVHeads * o.Dim, Stride: 4 * c.k.Stride}
		y := c.dest.room(s, 0, 0, o.Heads, j0, j1-j0)
		c.kernels.Scores(y, c.q.Data, k, o.KVHeads, group, o.Dim, o.Scale)
		c.dest.put(y, 0, o.Heads, j0, j1-j0)
		return
	}
	tBlocks := blocks(rows, tokenBlock)
	h := item / (tBlocks * jBlocks)
	t0, t1 := span(item/jBlocks%tBlocks, rows, tokenBlock)
	key := kernel.Matrix{Data: c.k.from(j0, h/group*o.Dim), DType: c.k.dtype, Cols: o.Dim, Stride: c.k.Stride * c.k.dtype.Size()}
	y := c.dest.room(s, 0, h*rows+t0, t1-t0, j0, j1-j0)
	for t := t0; t < t1; {
		n := t1 - t
		if c.first+t < j1 {
			n = min(n, keyTokens)
		}
		key.Rows = max(0, min(j1, c.first+t+n-1)-j0) // what the last of these tokens attends to
		part := kernel.Floats{Data: y.Data[(t-t0)*y.Stride:], Stride: y.Stride}
		c.kernels.Product(&s.Temp, part, kernel.Floats{Data: c.q.Data[t*c.q.Stride+h*o.Dim:], Stride: c.q.Stride}, n, key)
		t += n
	}
	for t := t0; t < t1; t++ {
		row := y.Data[(t-t0)*y.Stride:][:j1-j0]
		seen := min(len(row), max(0, c.first+t-j0))
		c.kernels.Scale(row[:seen], row[:seen], o.Scale)
		clear(row[seen:])
	}
	c.dest.put(y, h*rows+t0, t1-t0, j0, j1-j0)
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
