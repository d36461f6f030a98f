package engine

import (
	"llmrun/internal/ctconv"
	"llmrun/internal/num"
)

// Buffer is memory that every backend can use, as on a machine whose GPU shares the CPU's memory.
type Buffer interface {
	DType() num.DType
	Len() int // elements
	// Host waits until everything that was run before has finished, and gives the bytes, little-endian, without any
	// alignment. They are good until the next op is run; what is written to them, later ops see. There is no
	// other way to the bytes, so nobody can read what is not finished. The error is the backend's first failure.
	Host() ([]byte, error)
}

// View is rows of a buffer: row r begins at element Offset + r*Stride.
type View struct {
	Buffer         Buffer
	Offset, Stride int // elements
}

// Matrix is a weight [Rows, Cols], row-major, in the type that the file stores.
type Matrix struct {
	Buffer     Buffer // float32, float16, bfloat16 or int8
	Scale      Buffer // int8 only: float32 [Rows]; the weight is float32(q)·Scale[row], rounded to float32, but see Linear
	Rows, Cols int
}

// Backend runs ops on its memory. One goroutine uses it at a time.
//
// Vectors (norm weights, biases, row scales, rotary tables) are float32 on every backend; matrices stay as the file stores them;
// everything that ops hand to each other has the type Activations, but for token ids (int32).
type Backend interface {
	Name() string           // "cpu" or "metal"
	Activations() num.DType // float32, float16 or bfloat16: the type of hidden states, KV cache and logits
	// NewBuffer gives n zeroed elements.
	NewBuffer(d num.DType, n int) (Buffer, error)
	// Upload gives a weight's bytes as they lie in the file, in place where the backend can read them there:
	// t.Data must stay valid until Close.
	Upload(t ctconv.Tensor) (Buffer, error)
	// Run queues an op, or runs it at once. A failure is kept for Sync; ops after it are not run.
	// The op belongs to the caller and may change after Run returns.
	Run(op Op)
	// Sync waits for all ops run so far and returns the first failure, which names the op's site. It stays failed.
	Sync() error
	Close() error
}

// Fuser is a backend that can run several ops as one kernel. Whoever looks at buffers between two ops sees them as without: then no
// kernel is fused over that place. Who looks later finds NaN where such a kernel has not written what its ops hand to each other.
type Fuser interface {
	// Fusions lists the fused kernels that are in use.
	Fusions() []Fusion
	// SetFusion says whether one of them is used from the next op on.
	SetFusion(name string, on bool)
}

// Fusion is a fused kernel.
type Fusion struct {
	Name  string
	Ops   string // that it stands for, by site: "scores+softmax+context"; a norm is any
	Exact bool   // it gives the bits that they give
}

// Router is a backend made of two: ops that Move names run on To, all others on Backend, all on Backend's buffers.
// It is the staircase on which a backend is debugged: one family, layer or site at a time is moved to the reference.
type Router struct {
	Backend
	To   Backend
	Move func(Op) bool
}

// Run runs op on the backend that Move chooses. To reaches the buffers through Host, which waits for Backend.
func (r *Router) Run(op Op) {
	if r.Move(op) {
		r.To.Run(op)
		return
	}
	r.Backend.Run(op)
}

// Sync waits for both; the first failure of either.
func (r *Router) Sync() error {
	if err := r.To.Sync(); err != nil {
		return err
	}
	return r.Backend.Sync()
}
