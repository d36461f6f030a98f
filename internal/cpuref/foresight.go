package cpuref

import (
	"runtime"
	"sync/atomic"

	"llmrun/internal/cpuref/kernel"
	"llmrun/internal/engine"
)

// foresight knows which weights come next, and has workers with nothing to do read them: small ops leave memory idle, and what a worker has read
// waits in its cache. It changes no result.
type foresight struct {
	kernels *kernel.Set
	workers []*reader
	weights []foreseen   // of the pass's linear ops of one token, in their order
	first   int64        // number of weights[0]
	next    atomic.Int64 // number of those that come next, counted since the backend was opened
	open    atomic.Bool  // weights may be read
}

// foreseen are weights that will be read, in blocks of rows.
type foreseen struct {
	kernel.Matrix
	block int
}

// reader is how far a worker has read what comes next.
type reader struct {
	number int64
	piece  int         // of those weights; -1: it has enough of them
	busy   atomic.Bool // it may be reading
}

const (
	aheadBytes = 384 << 10 // that a worker reads of the same weights at most: they are to stay in its core's second cache
	pieceBytes = 4 << 10   // of each of four streams, before the worker looks for work again
)

// Foresee is documented at engine.Foreseer.
func (b *Backend) Foresee(ops []engine.Op) {
	f := &b.foresight
	if len(f.workers) == 0 {
		return
	}
	f.open.Store(false)
	for _, w := range f.workers {
		for w.busy.Load() {
			runtime.Gosched()
		}
	}
	f.weights, f.first = f.weights[:0], f.next.Load()
	for _, op := range ops {
		l, ok := op.(*engine.Linear)
		if !ok || l.Rows() != 1 {
			continue
		}
		data, err := l.W.Buffer.Host()
		if err != nil {
			return
		}
		w := kernel.Matrix{Data: data, Rows: l.W.Rows, Stride: l.W.Cols * l.W.Buffer.DType().Size()}
		_, block := b.pool.cut(1, w)
		f.weights = append(f.weights, foreseen{w, block})
	}
	f.open.Store(len(f.weights) > 0)
}

// read reads a piece of what a worker will probably need, if there is one that it has not read. The caller takes the first block of weights, and the
// workers those after it.
func (f *foresight) read(worker int) {
	w, number := f.workers[worker], f.next.Load()
	if w.number != number {
		w.number, w.piece = number, 0
	}
	if w.piece < 0 || !f.open.Load() {
		return
	}
	w.busy.Store(true)
	if i := number - f.first; f.open.Load() && i >= 0 && i < int64(len(f.weights)) {
		next := f.weights[i]
		from, to := span(worker+1, next.Rows, next.block)
		quarter, count := (to-from)/4, max(1, pieceBytes/next.Stride)
		if at := w.piece * count; at+count <= quarter && 4*at*next.Stride < aheadBytes {
			f.kernels.Fetch(next.Span(from+at, to).Data, next.Stride, quarter*next.Stride, count, next.Stride)
			w.piece++
		} else {
			w.piece = -1
		}
	}
	w.busy.Store(false)
}
