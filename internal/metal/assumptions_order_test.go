package metal

import (
	"fmt"
	"testing"

	"llmrun/internal/num"
)

// encoded is a command buffer of one dispatch of a kernel over x, with an encoder that has ended.
func (l lab) encoded(name string, threads uint, args []byte, x ...slot) (commandBuffer, owned) {
	commands := l.b.queue.commandBuffer()
	kept := commands.retain()
	e := commands.computeEncoder()
	e.setPipeline(l.b.kernels[plain(name)].pipeline)
	for i, s := range x {
		e.setBuffer(s.mtl, s.offset, i)
	}
	e.setBytes(args, len(x))
	e.dispatchThreads(size{threads, 1, 1}, size{threads, 1, 1})
	e.endEncoding()
	return commands, kept
}

// TestAssumeLateWrites: what the CPU writes into shared memory after the encoder has ended, and before the commit, the command buffer sees: in
// this job of the Metal thread or in a later one.
func TestAssumeLateWrites(t *testing.T) {
	l := newLab(t)
	l.kernels(`kernel void plus(device uint *out [[buffer(0)]], device const uint *x [[buffer(1)]], constant uint &by [[buffer(2)]],
                 uint i [[thread_position_in_grid]]) {
    out[i] = x[i] + by;
}`, "plus")
	out, x := l.words(make([]uint32, 8)), l.words(make([]uint32, 8))
	host, slots := l.host(x), []slot{l.b.typed(out, num.Int32), l.b.typed(x, num.Int32)}
	for round := range byte(100) {
		var commands commandBuffer
		var kept owned
		l.do(func() error {
			commands, kept = l.encoded("plus", 8, []byte{1, 0, 0, 0}, slots...)
			return nil
		})
		host[4*7] = round // the last word of x
		l.do(func() error {
			defer kept.release()
			commands.commit()
			commands.wait()
			return commands.error()
		})
		l.want(fmt.Sprint("round ", round), out, func(i int) uint32 {
			if i == 7 {
				return uint32(round) + 1
			}
			return 1
		})
	}
}

// TestAssumeCommitOrder: command buffers run in the order in which they are committed, whatever the order in which they were encoded, each sees
// what those before it wrote, and one that is never committed does nothing.
func TestAssumeCommitOrder(t *testing.T) {
	l := newLab(t)
	l.kernels(`kernel void digit(device uint *x [[buffer(0)]], constant uint &d [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    x[i] = x[i] * 10 + d;
}`, "digit")
	x := l.words(make([]uint32, 32))
	l.do(func() error {
		var commands [6]commandBuffer
		for i := range commands {
			var kept owned
			commands[i], kept = l.encoded("digit", 32, []byte{byte(i), 0, 0, 0}, l.b.typed(x, num.Int32))
			defer kept.release()
		}
		for _, i := range []int{3, 1, 4, 2, 5} { // and never 0
			commands[i].commit()
		}
		commands[5].wait()
		for i, c := range commands {
			if done := c.status() == statusCompleted; done != (i != 0) || c.error() != nil {
				return fmt.Errorf("command buffer %d: status %d, error %v", i, c.status(), c.error())
			}
		}
		return nil
	})
	l.want("digits", x, func(int) uint32 { return 31425 })
}

// TestAssumeBindingsStay: an encoder keeps its pipeline, its buffers and its bytes from dispatch to dispatch, its buffers and bytes from pipeline to
// pipeline, and the last thing that was bound to an index counts. So what it knows need not be sent again.
func TestAssumeBindingsStay(t *testing.T) {
	l := newLab(t)
	l.kernels(`kernel void append1(device uint *x [[buffer(0)]], constant uint &d [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    x[i] = x[i] * 10 + d;
}
kernel void append2(device uint *x [[buffer(0)]], device const uint *y [[buffer(1)]], constant uint &d [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    x[i] = x[i] * 100 + y[i] * 10 + d;
}`, "append1", "append2")
	nine := make([]uint32, 8)
	for i := range nine {
		nine[i] = 9
	}
	x, y := l.words(make([]uint32, 8)), l.words(nine)
	a, b := l.b.typed(x, num.Int32), l.b.typed(y, num.Int32)
	eight := size{8, 1, 1}
	l.queue("append1", eight, eight, 3, a)
	l.queue("append1", eight, eight, 3, a)    // nothing is sent
	l.queue("append2", eight, eight, 3, a, b) // the bytes move on, a buffer takes their place
	l.queue("append1", eight, eight, 3, a)    // and back
	l.queue("append1", eight, eight, 4, a)
	l.sync()
	l.want("what was bound last", x, func(int) uint32 { return 339334 })
}
