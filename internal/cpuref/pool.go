package cpuref

import (
	"runtime"
	"sync"
	"sync/atomic"

	"llmrun/internal/cpuref/kernel"
)

// pool shares the items of an op among the caller and its workers. Who takes which item is chance: the items must not depend
// on each other, and none is ever split, so the result does not depend on it.
type pool struct {
	work    []scratch // one for the caller, one for each worker
	workers []*worker
	least   int // work that is worth sharing
	job     atomic.Pointer[job]
	wait    sync.WaitGroup
}

type worker struct {
	parked atomic.Bool
	wake   chan struct{}
}

type job struct {
	run        func(s *scratch, item int)
	items      int
	next, done atomic.Int64
	quit       bool
}

// Waking a parked thread takes 50 to 200 µs, as long as a small op: between ops workers spin for about as long, then park.
const (
	yield = 100  // loads of the job before the thread offers its core to others
	spins = 1000 // yields before it parks
)

func newPool(threads int) *pool {
	p := &pool{work: make([]scratch, threads), least: small}
	start := &job{}
	p.job.Store(start)
	for i := range threads - 1 {
		w := &worker{wake: make(chan struct{}, 1)}
		p.workers = append(p.workers, w)
		p.wait.Go(func() { p.serve(w, start, &p.work[i+1]) })
	}
	return p
}

// small is the work, in multiply-adds or about as much, below which an op stays with its caller.
const small = 1 << 15

// each calls run for every item in [0, items), and returns when all have finished. work is that of all items together.
func (p *pool) each(items, work int, run func(s *scratch, item int)) {
	if len(p.workers) == 0 || items < 2 || work < p.least {
		for i := range items {
			run(&p.work[0], i)
		}
		return
	}
	j := &job{run: run, items: items}
	p.post(j)
	j.help(&p.work[0])
	for spin := 1; j.done.Load() < int64(items); spin++ {
		if spin%yield == 0 {
			runtime.Gosched()
		}
	}
}

func (p *pool) post(j *job) {
	p.job.Store(j)
	for _, w := range p.workers {
		if w.parked.CompareAndSwap(true, false) {
			w.wake <- struct{}{}
		}
	}
}

func (p *pool) close() {
	p.post(&job{quit: true})
	p.wait.Wait()
}

// help takes items until none is left.
func (j *job) help(s *scratch) {
	for {
		i := j.next.Add(1) - 1
		if i >= int64(j.items) {
			return
		}
		j.run(s, int(i))
		j.done.Add(1)
	}
}

func (p *pool) serve(w *worker, last *job, s *scratch) {
	for {
		last = p.after(w, last)
		if last.quit {
			return
		}
		last.help(s)
	}
}

// after waits for a job other than last.
func (p *pool) after(w *worker, last *job) *job {
	for {
		for range spins {
			for range yield {
				if j := p.job.Load(); j != last {
					return j
				}
			}
			runtime.Gosched()
		}
		w.parked.Store(true)
		// A job posted since then has either seen parked, and wakes, or it is seen here.
		if p.job.Load() == last || !w.parked.CompareAndSwap(true, false) {
			<-w.wake
		}
	}
}

// blocks counts the blocks of size that n things are cut into; the last may be smaller.
func blocks(n, size int) int { return (n + size - 1) / size }

// share is how many of n rows are an item of about so many bytes, or less, where all threads have as many items.
func (p *pool) share(n, rowBytes, bytes int) int {
	threads := len(p.work)
	items := blocks(blocks(n*rowBytes, bytes), threads) * threads
	return blocks(blocks(n, items), 4) * 4
}

// span is block i of them.
func span(i, n, size int) (from, to int) { return i * size, min(n, (i+1)*size) }

// scratch is one thread's memory for rows that are no float32 or not finished. It grows to the largest op and stays.
type scratch struct {
	kernel.Temp
	f32 [5][]float32
}

// floats gives n elements of the thread's array number slot, with whatever they held.
func (s *scratch) floats(slot, n int) []float32 {
	if cap(s.f32[slot]) < n {
		s.f32[slot] = make([]float32, n)
	}
	return s.f32[slot][:n]
}
