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

// pieceBytes are what a worker reads in each of four streams, before it looks for work again.
const pieceBytes = 4 << 10

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

// readAhead reads a piece of what a worker will probably need, if there is one that it has not read. The caller takes the first block of weights, and the
// workers those after it.
func (b *Backend) readAhead(worker int) {
	f := &b.foresight
	w, number := f.workers[worker], f.next.Load()
	if w.number != number {
		w.number, w.piece = number, 0
	}
	if w.piece < 0 || !f.open.Load() {
		return
	}
	w.busy.Store(true)
	if f.open.Load() { // and stays so while this worker is busy
		w.piece = b.fetchAhead(worker, number-f.first, w.piece)
	}
	w.busy.Store(false)
}

// fetchAhead reads a piece of foreseen weights number i and gives the number of the next, or -1. A worker reads no more of them than stays in its core's cache.
func (b *Backend) fetchAhead(worker int, i int64, piece int) int {
	if i < 0 || i >= int64(len(b.foresight.weights)) {
		return piece // they are not known yet
	}
	w := b.foresight.weights[i]
	from, to := span(worker+1, w.Rows, w.block)
	quarter, count := (to-from)/4, max(1, pieceBytes/w.Stride)
	at := piece * count
	if at+count > quarter || 4*at*w.Stride >= cacheBlock {
		return -1
	}
	b.kernels.Fetch(w.Span(from+at, to).Data, w.Stride, quarter*w.Stride, count, w.Stride)
	return piece + 1
}
