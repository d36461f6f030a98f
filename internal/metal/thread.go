package metal

import "runtime"

// thread is the one OS thread that talks to Metal: an autorelease pool belongs to the thread that pushed it.
type thread struct {
	jobs chan func()
	done chan struct{}
}

// newThread starts the thread. It ends, and its OS thread with it, at stop.
func newThread() *thread {
	t := &thread{jobs: make(chan func()), done: make(chan struct{})}
	go func() {
		runtime.LockOSThread()
		for job := range t.jobs {
			pool := poolPush()
			job()
			poolPop(pool)
			t.done <- struct{}{}
		}
	}()
	return t
}

// do runs job on the thread, in an autorelease pool of its own, and waits for it.
func (t *thread) do(job func()) {
	t.jobs <- job
	<-t.done
}

func (t *thread) stop() { close(t.jobs) }
