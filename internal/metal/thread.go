package metal

import (
	"runtime"
	"time"
)

// thread is the one OS thread that talks to Metal: an autorelease pool belongs to the thread that pushed it.
type thread struct {
	jobs  chan func()
	done  chan struct{}
	timer *time.Timer
	lost  bool // a job did not come back in time
}

// newThread starts the thread. It ends, and its OS thread with it, at stop.
func newThread() *thread {
	t := &thread{jobs: make(chan func()), done: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	t.timer.Stop()
	go func() {
		runtime.LockOSThread()
		for job := range t.jobs {
			pool := poolPush()
			job()
			poolPop(pool)
			t.done <- struct{}{} // has room: the thread ends even if nobody waits any more
		}
	}()
	return t
}

// do runs job on the thread, in an autorelease pool of its own, and waits for it. A thread that is lost runs nothing.
func (t *thread) do(job func()) {
	if !t.lost {
		t.jobs <- job
		<-t.done
	}
}

// within is do that waits no longer than d; false: the job has not ended, and the thread is lost to it.
func (t *thread) within(d time.Duration, job func()) bool {
	if t.lost {
		return false
	}
	t.jobs <- job
	t.timer.Reset(d)
	select {
	case <-t.done:
		t.timer.Stop()
	case <-t.timer.C:
		select {
		case <-t.done: // just in time
		default:
			t.lost = true
		}
	}
	return !t.lost
}

func (t *thread) stop() { close(t.jobs) }
