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

var _ engine.Fuser = (*Backend)(nil)
