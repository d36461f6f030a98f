package cpuref

import (
	"syscall"
	"testing"
	"time"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// foretold is a Linear op whose weights are memory of its own, which goes away with gone: who reads it afterwards ends the program.
func foretold(t *testing.T, b *Backend, rows, cols int) (op engine.Op, gone func()) {
	t.Helper()
	memory, err := syscall.Mmap(-1, 0, 4*rows*cols, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	w, err := b.Upload(ctconv.Tensor{Name: "w", DType: num.Float32, Shape: []int{rows, cols}, Data: memory})
	if err != nil {
		t.Fatal(err)
	}
	place := engine.Place{In: &engine.Pass{Rows: 1}}
	return &engine.Linear{Place: place, W: engine.Matrix{Buffer: w, Rows: rows, Cols: cols}}, func() {
		if err := syscall.Munmap(memory); err != nil {
			t.Error(err)
		}
	}
}

// Workers read what comes until Foresee(nil), and nothing then.
func TestForeseeNothing(t *testing.T) {
	b := Open(Options{Threads: 3})
	defer b.Close()
	for i := range 300 {
		op, gone := foretold(t, b, 1024, 1024)
		b.pool.least = 0
		b.pool.each(3, 0, make(counting, 3)) // the workers are awake
		b.Foresee([]engine.Op{op})
		for start := time.Now(); time.Since(start) < time.Duration(i%40)*time.Microsecond; {
		}
		b.Foresee(nil)
		gone()
	}
}

// A worker reads some of the weights, in a few pieces, none of those that it has no part in, and is told of the next ones.
func TestForesightEnds(t *testing.T) {
	for _, shape := range [][2]int{{1, 8}, {3, 4096}, {5, 8}, {40, 8}, {513, 24}, {4096, 64}, {4, 1 << 18}, {300, 5000}} {
		b := Open(Options{Threads: 4})
		b.pool.close() // and here the test is the workers
		op, gone := foretold(t, b, shape[0], shape[1])
		b.Foresee([]engine.Op{op, op})
		for range 2 {
			for i, w := range b.foresight.workers {
				pieces := 0
				for b.readAhead(i); w.piece > 0; b.readAhead(i) {
					pieces++
				}
				if limit := cacheBlock / (4 * 4 * shape[1]); w.piece != -1 || pieces > limit+1 {
					t.Errorf("%v, worker %d: %d pieces", shape, i, pieces)
				}
			}
			b.foresight.next.Add(1)
		}
		b.readAhead(0)
		if w := b.foresight.workers[0]; w.piece != 0 {
			t.Errorf("%v: piece %d of weights beyond the last", shape, w.piece)
		}
		b.Foresee(nil)
		gone()
	}
}
