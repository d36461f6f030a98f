package parity

import (
	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// fileBackend holds weights as the file has them and runs nothing. A session on it is the twin that both sides are held to: neither side's
// weights, vectors or rotary tables can then speak for the other's.
type fileBackend struct{}

func (fileBackend) Name() string           { return "file" }
func (fileBackend) Activations() num.DType { return num.Float32 }
func (fileBackend) Run(engine.Op)          {}
func (fileBackend) Sync() error            { return nil }
func (fileBackend) Close() error           { return nil }

func (fileBackend) NewBuffer(d num.DType, n int) (engine.Buffer, error) {
	return &fileBuffer{d, make([]byte, n*d.Size())}, nil
}

func (fileBackend) Upload(t ctconv.Tensor) (engine.Buffer, error) {
	return &fileBuffer{t.DType, t.Data}, nil
}

type fileBuffer struct {
	dtype num.DType
	bytes []byte
}

func (b *fileBuffer) DType() num.DType      { return b.dtype }
func (b *fileBuffer) Len() int              { return len(b.bytes) / b.dtype.Size() }
func (b *fileBuffer) Host() ([]byte, error) { return b.bytes, nil }

// twin gives the session on the file, which has forgotten all before.
func (r *run) twin() (*side, error) {
	if r.file == nil {
		file, err := r.open("file", fileBackend{}, Side{})
		if err != nil {
			return nil, err
		}
		r.file = file
	}
	return r.file, r.file.forget()
}
