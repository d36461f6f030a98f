package metal

import (
	"fmt"
	"slices"
	"unsafe"

	"llmrun/internal/engine"
)

// Fusion is a peephole over the dispatches that wait for Sync: where the last ones are the parts of a fused kernel, in order, and each hands on
// what the one before wrote, that kernel takes their place. Whoever looks at an op's output in between makes the backend sync, and so
// never sees a fused kernel: the parts run. A fused kernel gives the bits that its parts give, but for attention, which
// rounds otherwise (see oracle.JudgeAttention).
//
// What the parts hand to each other a fused kernel does not write: those buffers are lost until they are written again. An op that reads
// a lost buffer fails, and Host of it gives NaN.

// fusion is a way to a fused kernel. A kernel may have several, for what is joined may be joined to more.
type fusion struct {
	name  string   // of the kernel
	parts []string // the shaders of its parts
	// join gives the dispatch that does what the parts do, if they are joined as they have to be, and says what it does not write.
	join func(b *Backend, parts []dispatch) (d dispatch, ok bool)
}

// fusions by precedence: the longer of two with one end comes first.
var fusions = []fusion{
	{"attention", []string{"scores", "softmax", "context"}, joinAttention},
	{"residual", []string{"rmsnorm", "add"}, joinNormAdd},
	{"residual", []string{"add", "rmsnorm"}, joinAddNorm},
	{"residual", []string{"residual", "rmsnorm"}, joinResidualNorm},
	{"norm_rope_kv", []string{"rmsnorm", "rmsnorm", "rope", "rope", "kv_write"}, joinNormRopeKV},
	{"rope_kv", []string{"rope", "rope", "kv_write"}, joinRopeKV},
	{"gate_up", []string{"linear", "linear", "activate"}, joinGateUp},
}

// fusedKernels are the kernels of the fusions.
var fusedKernels = []engine.Fusion{
	{Name: "attention", Ops: "scores+softmax+context"},
	{Name: "residual", Ops: "norm+residual+norm", Exact: true},
	{Name: "rope_kv", Ops: "q_rope+k_rope+kv_write", Exact: true},
	{Name: "norm_rope_kv", Ops: "q_norm+k_norm+q_rope+k_rope+kv_write", Exact: true},
	{Name: "gate_up", Ops: "gate+up+act", Exact: true},
}

// Fusions is documented at engine.Fuser.
func (b *Backend) Fusions() []engine.Fusion {
	if !b.info.Fuse {
		return nil
	}
	return fusedKernels
}

// SetFusion is documented at engine.Fuser.
func (b *Backend) SetFusion(name string, on bool) {
	b.forget()
	for i, f := range fusions {
		if f.name == name {
			b.fuses[i] = on
		}
	}
}

// fuse puts a fused kernel in the place of the last dispatches, if they are its parts.
func (b *Backend) fuse() {
	for i, on := range b.fuses {
		f := &fusions[i]
		from := len(b.pending) - len(f.parts)
		if !on || from < 0 || !f.isOf(b.pending[from:]) {
			continue
		}
		if d, ok := f.join(b, b.pending[from:]); ok {
			b.pending[from] = d
			b.pending = b.pending[:from+1]
			return
		}
	}
}

func (f *fusion) isOf(parts []dispatch) bool {
	for i, p := range f.parts {
		if parts[i].key.shader != p {
			return false
		}
	}
	return true
}

// written takes note of what an op writes, and refuses what it reads if that is lost.
func (b *Backend) written(op engine.Op, out, in []engine.Operand) error {
	if len(b.lost) == 0 {
		return nil
	}
	for _, o := range in {
		if m := o.Buffer.(*buffer); b.lost[m.mtl] {
			return &engine.OpError{Site: op.Site(), Err: fmt.Errorf("metal: %s is lost: a fused kernel has taken the place of the op that would have written it", o.Name)}
		}
	}
	for _, o := range out {
		b.lost[o.Buffer.(*buffer).mtl] = false
	}
	return nil
}

// found makes a lost buffer's bytes NaNs, in every type of activations.
func (b *buffer) found() {
	if b.backend.lost[b.mtl] {
		for i := range b.bytes {
			b.bytes[i] = 0xff
		}
		b.backend.lost[b.mtl] = false
	}
}

// lose takes note of what a fused kernel does not write.
func (b *Backend) lose(slots ...slot) {
	for _, s := range slots {
		b.lost[s.mtl] = true
	}
}

// apart tells whether what a fused kernel writes is in no buffer that it reads, or writes as something else: its threads are not in the
// order that the parts would keep.
func apart(out, in []slot) bool {
	for i, s := range out {
		other := func(x slot) bool { return x.mtl == s.mtl }
		if slices.ContainsFunc(in, other) || slices.ContainsFunc(out[i+1:], other) {
			return false
		}
	}
	return true
}

// argsOf gives a dispatch's args as the struct that it was queued with.
func argsOf[A any](d *dispatch) *A { return (*A)(unsafe.Pointer(&d.args)) }

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
		*c != (contextArgs{s.first, keys, s.group, s.dim, s.kStride}) || s.dim > maxAttentionDim || !apart([]slot{out}, []slot{q, k, v}) {
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
		a.mtl == normed.mtl || !apart([]slot{y}, []slot{a, x}) {
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
	b.lose(turned)
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
	inner, ok := joinRopeKV(b, parts[2:])
	r := *argsOf[ropeKVArgs](&inner)
	heads := func(norm *dispatch) uint32 { return uint32(norm.grid.Width / simdWidth) }
	x, y, v := qNorm.slots[1], kNorm.slots[1], inner.slots[5]
	if !ok || inner.slots[3] != qNorm.slots[0] || inner.slots[4] != kNorm.slots[0] || r.qStride != r.heads*r.dim || r.kStride != r.kvHeads*r.dim ||
		heads(qNorm) != r.heads || heads(kNorm) != r.kvHeads || q.dim != r.dim || k.dim != r.dim || q.eps != k.eps || q.offset != k.offset ||
		qNorm.grid.Height != parts[2].grid.Depth || kNorm.grid.Height != qNorm.grid.Height || !apart(inner.slots[:3], []slot{x, y, v}) {
		return d, false
	}
	b.lose(qNorm.slots[0], kNorm.slots[0])
	return newDispatch(qNorm.site, plain("norm_rope_kv"), simdgroups(int(r.heads+2*r.kvHeads), int(qNorm.grid.Height)), simdgroup,
		normRopeKVArgs{r.dim, r.rotaryDim, r.interleaved, r.heads, r.kvHeads, q.stride, k.stride, r.vStride, q.eps, q.offset}, inner.slots[0], inner.slots[1], inner.slots[2], x, y, v, inner.slots[6], qNorm.slots[2], kNorm.slots[2]), true
}

type gateUpArgs struct{ rows, cols, function uint32 }

// joinGateUp is for one token. With more, the products are more than what is around them.
func joinGateUp(b *Backend, parts []dispatch) (d dispatch, ok bool) {
	gate, up, activate := &parts[0], &parts[1], &parts[2]
	g, a := *argsOf[linearArgs](gate), argsOf[activateArgs](activate)
	out, x := activate.slots[0], gate.slots[1]
	if gate.key != up.key || *argsOf[linearArgs](up) != g || g.tokens != 1 || g.hasBias != 0 || up.slots[1] != x || a.hasUp == 0 || a.dim != g.rows ||
		activate.slots[1] != gate.slots[0] || activate.slots[2] != up.slots[0] || activate.grid.Height != 1 || !apart([]slot{out}, []slot{x}) {
		return d, false
	}
	b.lose(gate.slots[0], up.slots[0])
	group := size{4 * simdWidth, 1, 1}
	grid := size{uint(ceil(int(g.rows), 4*4)) * group.Width, 1, 1}
	return newDispatch(gate.site, kernelKey{"gate_up", "", gate.key.weight}, grid, group, gateUpArgs{g.rows, g.cols, a.function},
		out, x, gate.slots[2], gate.slots[3], up.slots[2], up.slots[3]), true
}

var _ engine.Fuser = (*Backend)(nil)
