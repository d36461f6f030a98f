package fault

import (
	"slices"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// wrapped is a backend with a mistake around it. Buffers are the backend's own, but for a fault that says otherwise.
type wrapped struct {
	engine.Backend
	run    func(engine.Op)
	upload func(ctconv.Tensor) (engine.Buffer, error)
}

func (w *wrapped) Run(op engine.Op) { w.run(op) }

func (w *wrapped) Upload(t ctconv.Tensor) (engine.Buffer, error) { return w.upload(t) }

// running wraps a backend whose ops go through what around gives: a function that has a memory of its own.
func running(around func(b engine.Backend) func(engine.Op)) func(engine.Backend) engine.Backend {
	return func(b engine.Backend) engine.Backend { return &wrapped{b, around(b), b.Upload} }
}

// changing is running for ops that are exchanged for others: change gives the op to run, or nil for none.
func changing(change func(engine.Op) engine.Op) func(engine.Backend) engine.Backend {
	return running(func(b engine.Backend) func(engine.Op) {
		return func(op engine.Op) {
			if op = change(op); op != nil {
				b.Run(op)
			}
		}
	})
}

// after is running with something done to what op wrote. It waits for the op.
func after(f func(op engine.Op)) func(engine.Backend) engine.Backend {
	return running(func(b engine.Backend) func(engine.Op) {
		return func(op engine.Op) {
			b.Run(op)
			f(op)
		}
	})
}

// uploading wraps a backend that is given other bytes for the tensor of that name. keep sees every tensor before.
func uploading(name string, misread func(t ctconv.Tensor, others map[string]ctconv.Tensor) []byte) func(engine.Backend) engine.Backend {
	return func(b engine.Backend) engine.Backend {
		others := map[string]ctconv.Tensor{}
		return &wrapped{b, b.Run, func(t ctconv.Tensor) (engine.Buffer, error) {
			others[t.Name] = t
			if t.Name == name {
				t.Data = misread(t, others)
			}
			return b.Upload(t)
		}}
	}
}

// at tells whether op runs at a site of a layer.
func at(op engine.Op, layer int, site string) bool {
	s := op.Site()
	return s.Layer == layer && s.Name == site
}

// moved is a copy of a pass at another position.
func moved(p *engine.Pass, by int) *engine.Pass {
	q := *p
	q.Pos += by
	return &q
}

// bytesOf gives a buffer's bytes. Where the backend has failed there are none, and Sync will say so.
func bytesOf(b engine.Buffer) []byte {
	host, err := b.Host()
	if err != nil {
		return nil
	}
	return host
}

// clone gives a copy of a buffer's bytes.
func clone(b engine.Buffer) []byte { return slices.Clone(bytesOf(b)) }

// each changes elements from, from+stride, … of a buffer, count of them.
func each(b engine.Buffer, from, stride, count int, f func(float32) float32) {
	host, d := bytesOf(b), b.DType()
	if host == nil {
		return
	}
	for i := range count {
		at := (from + i*stride) * d.Size()
		num.PutFloat32s(d, host[at:], []float32{f(num.Float32At(d, host[at:], 0))})
	}
}
