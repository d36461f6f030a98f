package metal

// How the parts of each fused kernel have to be joined. A join looks at what the parts were bound to and at their args, and at nothing else: those
// are all that a kernel knows, too.

type attentionArgs struct {
	first, rows, group, dim, qStride, kStride uint32
	scale                                     float32
}

// What attention.metal is made for.
const (
	maxAttentionDim   = 256 // of a head
	maxAttentionSimds = 8   // simdgroups of a threadgroup
	keysPerSimdgroup  = 128 // at least, for a single query: one block
	keysPerSimdgroup4 = 64  // and for four: two blocks
)

func joinAttention(b *Backend, parts []dispatch) (d dispatch, ok bool) {
	scores, softmax, context := &parts[0], &parts[1], &parts[2]
	s, x, c := argsOf[scoresArgs](scores), argsOf[softmaxArgs](softmax), argsOf[contextArgs](context)
	out, q, k, v := context.slots[0], scores.slots[1], scores.slots[2], context.slots[2]
	keys, rows, heads := uint32(scores.grid.Width), uint32(scores.grid.Height), uint32(scores.grid.Depth)
	if softmax.slots[1] != scores.slots[0] || context.slots[1] != softmax.slots[0] || *x != (softmaxArgs{s.first, keys}) ||
		*c != (contextArgs{s.first, keys, s.group, s.dim, s.kStride}) || s.dim > maxAttentionDim ||
		!apart([]slot{out, scores.slots[0], softmax.slots[0]}, []slot{q, k, v}) {
		return d, false
	}
	kvHeads, queries := heads/s.group, rows*s.group
	key, tiles, block := plain("attention"), int(queries), keysPerSimdgroup
	if rows > 1 {
		key.variant, tiles, block = "4", ceil(int(queries), 4), keysPerSimdgroup4
	}
	group := size{uint(min(ceil(int(keys), block), maxAttentionSimds)) * simdWidth, 1, 1}
	b.lose(scores.slots[0], softmax.slots[0])
	return newDispatch(scores.site, key, size{uint(kvHeads) * group.Width, uint(tiles), 1}, group,
		attentionArgs{s.first, rows, s.group, s.dim, s.qStride, s.kStride, s.scale}, out, q, k, v), true
}

type residualArgs struct {
	dim, hasBefore, hasAfter         uint32
	eps, offset, nextEps, nextOffset float32
}

// wholeRows tells whether a norm is one of whole rows that lie one after the other.
func wholeRows(norm *dispatch) bool {
	n := argsOf[rmsNormArgs](norm)
	return norm.grid.Width == simdWidth && n.stride == n.dim
}

func joinNormAdd(b *Backend, parts []dispatch) (d dispatch, ok bool) {
	norm, add := &parts[0], &parts[1]
	n := argsOf[rmsNormArgs](norm)
	y, normed, x, w, a := add.slots[0], norm.slots[0], norm.slots[1], norm.slots[2], add.slots[1]
	if add.slots[2] != normed || !wholeRows(norm) || n.dim != argsOf[addArgs](add).dim || norm.grid.Height != add.grid.Height ||
		!apart([]slot{y, normed}, []slot{a, x}) {
		return d, false
	}
	b.lose(normed)
	return newDispatch(norm.site, plain("residual"), norm.grid, simdgroup, residualArgs{n.dim, 1, 0, n.eps, n.offset, 0, 0}, y, y, a, x, w, w), true
}

func joinAddNorm(_ *Backend, parts []dispatch) (d dispatch, ok bool) {
	add, norm := &parts[0], &parts[1]
	y, a, x, next, w := add.slots[0], add.slots[1], add.slots[2], norm.slots[0], norm.slots[2]
	n := argsOf[rmsNormArgs](norm)
	if norm.slots[1] != y || !wholeRows(norm) || n.dim != argsOf[addArgs](add).dim || norm.grid.Height != add.grid.Height || !apart([]slot{y, next}, []slot{a, x}) {
		return d, false
	}
	return newDispatch(add.site, plain("residual"), norm.grid, simdgroup, residualArgs{n.dim, 0, 1, 0, 0, n.eps, n.offset}, y, next, a, x, w, w), true
}

func joinResidualNorm(_ *Backend, parts []dispatch) (d dispatch, ok bool) {
	first, norm := &parts[0], &parts[1]
	r, n := *argsOf[residualArgs](first), argsOf[rmsNormArgs](norm)
	y, a, x, w, next, nextW := first.slots[0], first.slots[2], first.slots[3], first.slots[4], norm.slots[0], norm.slots[2]
	if r.hasAfter != 0 || norm.slots[1] != y || !wholeRows(norm) || n.dim != r.dim || norm.grid.Height != first.grid.Height || !apart([]slot{y, next}, []slot{a, x}) {
		return d, false
	}
	r.hasAfter, r.nextEps, r.nextOffset = 1, n.eps, n.offset
	return newDispatch(first.site, plain("residual"), norm.grid, simdgroup, r, y, next, a, x, w, nextW), true
}

type ropeKVArgs struct{ dim, rotaryDim, interleaved, heads, kvHeads, qStride, kStride, vStride uint32 }

func joinRopeKV(b *Backend, parts []dispatch) (d dispatch, ok bool) {
	if d, ok = ropeKV(parts); ok {
		b.lose(parts[1].slots[0])
	}
	return d, ok
}

// ropeKV joins rope, rope and kv_write.
func ropeKV(parts []dispatch) (d dispatch, ok bool) {
	query, key, write := &parts[0], &parts[1], &parts[2]
	q, k, w := *argsOf[ropeArgs](query), *argsOf[ropeArgs](key), argsOf[kvWriteArgs](write)
	out, x, table, turned, y := query.slots[0], query.slots[1], query.slots[2], key.slots[0], key.slots[1]
	kCache, vCache, v := write.slots[0], write.slots[1], write.slots[3]
	heads, kvHeads, rows := uint32(query.grid.Height), uint32(key.grid.Height), query.grid.Depth
	same := ropeArgs{q.dim, q.rotaryDim, k.stride, q.interleaved}
	if write.slots[2] != turned || k != same || key.slots[2] != table || w.width != kvHeads*k.dim || w.kStride != w.width ||
		key.grid.Depth != rows || write.grid.Height != rows || !apart([]slot{out, kCache, vCache, turned}, []slot{x, y, v}) {
		return d, false
	}
	grid, group := elements(int(q.dim), int(heads+2*kvHeads), int(rows))
	return newDispatch(query.site, plain("rope_kv"), grid, group,
		ropeKVArgs{q.dim, q.rotaryDim, q.interleaved, heads, kvHeads, q.stride, k.stride, w.vStride}, out, kCache, vCache, x, y, v, table), true
}

type normRopeKVArgs struct {
	dim, rotaryDim, interleaved, heads, kvHeads, qStride, kStride, vStride uint32
	eps, offset                                                            float32
}

func joinNormRopeKV(b *Backend, parts []dispatch) (d dispatch, ok bool) {
	qNorm, kNorm := &parts[0], &parts[1]
	q, k := argsOf[rmsNormArgs](qNorm), argsOf[rmsNormArgs](kNorm)
	inner, ok := ropeKV(parts[2:])
	r := *argsOf[ropeKVArgs](&inner)
	heads := func(norm *dispatch) uint32 { return uint32(norm.grid.Width / simdWidth) }
	out, kCache, vCache, v, table := inner.slots[0], inner.slots[1], inner.slots[2], inner.slots[5], inner.slots[6]
	x, y, qNormed, kNormed, turned := qNorm.slots[1], kNorm.slots[1], qNorm.slots[0], kNorm.slots[0], parts[3].slots[0]
	if !ok || inner.slots[3] != qNormed || inner.slots[4] != kNormed || r.qStride != r.heads*r.dim || r.kStride != r.kvHeads*r.dim ||
		heads(qNorm) != r.heads || heads(kNorm) != r.kvHeads || q.dim != r.dim || k.dim != r.dim || q.eps != k.eps || q.offset != k.offset ||
		qNorm.grid.Height != parts[2].grid.Depth || kNorm.grid.Height != qNorm.grid.Height ||
		!apart([]slot{out, kCache, vCache, qNormed, kNormed, turned}, []slot{x, y, v}) {
		return d, false
	}
	b.lose(qNormed, kNormed, turned)
	args := normRopeKVArgs{r.dim, r.rotaryDim, r.interleaved, r.heads, r.kvHeads, q.stride, k.stride, r.vStride, q.eps, q.offset}
	return newDispatch(qNorm.site, plain("norm_rope_kv"), simdgroups(int(r.heads+2*r.kvHeads), int(qNorm.grid.Height)), simdgroup,
		args, out, kCache, vCache, x, y, v, table, qNorm.slots[2], kNorm.slots[2]), true
}

type gateUpArgs struct{ rows, cols, function uint32 }

// joinGateUp is for one token. With more, the products are more than what is around them.
func joinGateUp(b *Backend, parts []dispatch) (d dispatch, ok bool) {
	gate, up, activate := &parts[0], &parts[1], &parts[2]
	g, a := *argsOf[linearArgs](gate), argsOf[activateArgs](activate)
	out, x := activate.slots[0], gate.slots[1]
	if gate.key != up.key || *argsOf[linearArgs](up) != g || g.tokens != 1 || g.hasBias != 0 || up.slots[1] != x || a.hasUp == 0 || a.dim != g.rows ||
		activate.slots[1] != gate.slots[0] || activate.slots[2] != up.slots[0] || activate.grid.Height != 1 || !apart([]slot{out, gate.slots[0], up.slots[0]}, []slot{x}) {
		return d, false
	}
	b.lose(gate.slots[0], up.slots[0])
	group := size{4 * simdWidth, 1, 1}
	grid := size{uint(ceil(int(g.rows), 4*4)) * group.Width, 1, 1}
	return newDispatch(gate.site, kernelKey{"gate_up", "", gate.key.weight}, grid, group, gateUpArgs{g.rows, g.cols, a.function},
		out, x, gate.slots[2], gate.slots[3], up.slots[2], up.slots[3]), true
}
