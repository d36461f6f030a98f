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
	work    []scratch        // one for the caller, one for each worker
	caller  sleeper          // until the op is done
	workers []*sleeper       // until there is an op
	idle    func(worker int) // what a worker does again and again until then, while it is awake
	least   int              // work that is worth sharing

	task   task
	items  int
	left   atomic.Uint64 // the op's number in the upper half; items that nobody has taken in the lower
	done   atomic.Int64  // items
	closed atomic.Bool
	wait   sync.WaitGroup
}

// task is an op at work. item does number i of its items, with a thread's memory.
type task interface {
	item(s *scratch, i int)
}

func newPool(threads int, idle func(worker int)) *pool {
	p := &pool{work: make([]scratch, threads), caller: newSleeper(), idle: idle, least: small}
	for i := range threads - 1 {
		w := newSleeper()
		p.workers = append(p.workers, &w)
		p.wait.Go(func() { p.serve(&w, i) })
	}
	return p
}

// small is the work, in multiply-adds or about as much, below which an op stays with its caller.
const small = 1 << 15

// each does every item of [0, items), and returns when all are finished. work is that of all items together.
func (p *pool) each(items, work int, t task) {
	if len(p.workers) == 0 || items < 2 || work < p.least {
		for i := range items {
			t.item(&p.work[0], i)
		}
		return
	}
	p.task, p.items = t, items
	p.done.Store(0)
	p.left.Store((p.left.Load()>>32+1)<<32 | uint64(items))
	for _, w := range p.workers {
		w.rouse()
	}
	p.help(&p.work[0])
	p.caller.until(func() bool { return p.done.Load() == int64(items) })
}

func (p *pool) close() {
	p.closed.Store(true)
	for _, w := range p.workers {
		w.rouse()
	}
	p.wait.Wait()
}

// help takes items until none is left. Who has taken one may read task and items until it is done.
func (p *pool) help(s *scratch) {
	for {
		left := p.left.Load()
		if uint32(left) == 0 {
			return
		}
		if !p.left.CompareAndSwap(left, left-1) {
			continue
		}
		items := p.items
		p.task.item(s, items-int(uint32(left)))
		if p.done.Add(1) == int64(items) {
			p.caller.rouse()
		}
	}
}

func (p *pool) serve(w *sleeper, worker int) {
	ready := func() bool {
		if uint32(p.left.Load()) > 0 || p.closed.Load() {
			return true
		}
		p.idle(worker)
		return false
	}
	for {
		w.until(ready)
		if p.closed.Load() {
			return
		}
		p.help(&p.work[worker+1])
	}
}

// sleeper is a goroutine that waits for others: first it looks again and again, then it parks. Waking a parked thread takes 50 to 200 µs,
// as long as a small op; looking takes about as long before it parks. When the machine is busy with other things, a parked caller leaves its core to
// its own workers.
type sleeper struct {
	parked atomic.Bool
	wake   chan struct{}
}

const (
	yield = 100  // looks before the thread offers its core to others
	spins = 1000 // offers before it parks
)

func newSleeper() sleeper { return sleeper{wake: make(chan struct{}, 1)} }

// until returns when ready says so. Who makes it so must rouse the sleeper afterwards.
func (w *sleeper) until(ready func() bool) {
	for {
		for range spins {
			for range yield {
				if ready() {
					return
				}
			}
			runtime.Gosched()
		}
		w.parked.Store(true)
		// What is ready since then has either been said by one who saw parked, and wakes, or it is seen here.
		if ready() && w.parked.CompareAndSwap(true, false) {
			return
		}
		<-w.wake
	}
}

func (w *sleeper) rouse() {
	if w.parked.CompareAndSwap(true, false) {
		w.wake <- struct{}{}
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
