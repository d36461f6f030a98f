package metal

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// living gives an object of every class and protocol that selectors.go names, to f on the Metal thread.
func (l lab) living(f func(objects map[string]object) error) {
	l.Helper()
	l.kernels("kernel void touch(device uint *x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = 1; }", "touch")
	l.do(func() error {
		options := newCompileOptions()
		defer options.release()
		text, all := newString("text"), devices()
		defer text.release()
		defer all.release()
		broken := newString("kernel void broken(")
		defer broken.release()
		var e id
		if lib := (owned{object{msgNewLibrary.call(l.b.device.id, msgNewLibrary.sel, broken.id, options.id, &e)}}); !lib.isNil() || e == 0 {
			lib.release()
			return errors.New("a source that is none compiles, or fails without an error")
		}
		m := l.b.device.newBuffer(16)
		defer m.release()
		function := l.b.libraries["assumption touch"].newFunction("touch")
		defer function.release()
		commands := l.b.queue.commandBuffer()
		encoder := commands.computeEncoder()
		defer encoder.endEncoding()
		if err := loadMPS(); err != nil {
			return err
		}
		matrix, multiplication := newMatrix(m, 0, 2, 2, 4, mpsTypes[num.Float32]), newMultiplication(l.b.device, 2, 2, 2)
		defer matrix.release()
		defer multiplication.release()
		return f(map[string]object{"NSObject": options.object, "NSString": text.object, "NSError": {e}, "NSArray": all.object,
			"MTLDevice": l.b.device.object, "MTLCompileOptions": options.object, "MTLLibrary": l.b.libraries["assumption touch"].object,
			"MTLComputePipelineState": l.b.kernels[plain("touch")].pipeline.object, "MTLCommandQueue": l.b.queue.object,
			"MTLCommandBuffer": commands.object, "MTLComputeCommandEncoder": encoder.object, "MTLCommandEncoder": encoder.object,
			"MTLBuffer": m.object, "MPSMatrixDescriptor": {id(getClass("MPSMatrixDescriptor"))}, "MPSMatrix": matrix.object,
			"MPSMatrixMultiplication": multiplication.object})
	})
}

// eachMethod calls f for every selector in use, with the object it is sent to.
func eachMethod(objects map[string]object, f func(owner, name string, optional bool, o object, s sel) error) error {
	for _, m := range methods {
		owner, name, optional, _ := m.(interface {
			entry() (string, string, bool, reflect.Type)
		}).entry()
		o, ok := objects[owner]
		if !ok {
			return fmt.Errorf("no object of %s to ask", owner)
		}
		if name == "alloc" {
			o = object{id(getClass("NSString"))}
		}
		if err := f(owner, name, optional, o, registerName(name)); err != nil {
			return err
		}
	}
	return nil
}

// TestAssumeSelectors: the objects of this system answer to every selector, but for those that are asked for first.
func TestAssumeSelectors(t *testing.T) {
	newLab(t).living(func(objects map[string]object) error {
		return eachMethod(objects, func(owner, name string, optional bool, o object, s sel) error {
			if !optional && !o.respondsTo(s) {
				t.Errorf("%s does not respond to %s", owner, name)
			}
			return nil
		})
	})
}

// TestAssumeTypeEncodings compares what the methods of this system say of their arguments and results with what Apple's headers say. The
// offsets in the stack, the qualifiers and BOOL's two spellings are left out.
func TestAssumeTypeEncodings(t *testing.T) {
	l := newLab(t)
	if l.b.info.Host {
		t.Skip("the host device's methods carry no types")
	}
	s, err := load()
	if err != nil {
		t.Fatal(err)
	}
	var classOf func(id) class
	var method func(class, sel) uintptr
	var encoding func(uintptr) *byte
	for name, f := range map[string]any{"object_getClass": &classOf, "class_getInstanceMethod": &method, "method_getTypeEncoding": &encoding} {
		p, err := s.symbol(name)
		if err != nil {
			t.Fatal(err)
		}
		purego.RegisterFunc(f, p)
	}
	want := map[string]string{}
	text, err := os.ReadFile("testdata/metal-api.tsv")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(line, "\t"); f[0] == "selector" {
			want[f[1]+" "+f[2]] = f[9]
		}
	}
	plainText := strings.NewReplacer("r", "", "V", "", "n", "", "o", "", "N", "", "O", "", "R", "", "c", "B",
		"0", "", "1", "", "2", "", "3", "", "4", "", "5", "", "6", "", "7", "", "8", "", "9", "")
	structs := strings.NewReplacer("{MTLSize=", "{?=", "{_NSRange=", "{?=")
	normal := func(e string) string { return plainText.Replace(structs.Replace(e)) }
	l.living(func(objects map[string]object) error {
		return eachMethod(objects, func(owner, name string, optional bool, o object, s sel) error {
			m := method(classOf(o.id), s)
			if m == 0 {
				if !optional {
					t.Errorf("%s has no method %s", owner, name)
				}
				return nil
			}
			if got, want := unix.BytePtrToString(encoding(m)), want[owner+" "+name]; normal(got) != normal(want) {
				t.Errorf("%s %s: encoded %s, Apple's headers say %s", owner, name, got, want)
			}
			return nil
		})
	})
}

// TestAssumeNil: a message to nil does nothing and gives 0.
func TestAssumeNil(t *testing.T) {
	l := newLab(t)
	l.do(func() error {
		var none device
		none.release()
		if none.name() != "" || none.maxBufferLength() != 0 || none.hasUnifiedMemory() {
			return errors.New("a message to nil has an answer")
		}
		return nil
	})
}

// TestAssumeFamilies: a device supports all families of Apple's up to its highest, so that describe finds it by counting.
func TestAssumeFamilies(t *testing.T) {
	l := newLab(t)
	l.do(func() error {
		for f := 1; f <= 32; f++ {
			if got, want := l.b.device.supportsFamily(familyApple+f), f <= l.b.info.Family; got != want {
				return fmt.Errorf("family Apple%d: %t, the highest is %d", f, got, l.b.info.Family)
			}
		}
		return nil
	})
}

// TestAssumeLimits: the limits that allocate holds to leave room for a model: none is 0 or beyond an int.
func TestAssumeLimits(t *testing.T) {
	l := newLab(t)
	if i := l.b.info; i.MaxBuffer < 256<<20 || i.WorkingSet < i.MaxBuffer/2 || i.WorkingSet > 1<<50 {
		t.Errorf("longest buffer %d bytes, working set %d", i.MaxBuffer, i.WorkingSet)
	}
}

// TestAssumeAllocatedSize: currentAllocatedSize counts a buffer as soon as it is made, so that allocate can keep within the working set.
func TestAssumeAllocatedSize(t *testing.T) {
	const n = 8 << 20
	l := newLab(t)
	l.do(func() error {
		before := l.b.device.allocated()
		m := l.b.device.newBuffer(n)
		defer m.release()
		if after := l.b.device.allocated(); after < before+n {
			return fmt.Errorf("%d bytes allocated, %d after a buffer of %d more", before, after, n)
		}
		return nil
	})
}

// TestAssumeContents: the pointer to a buffer's memory is there at once and never changes, the length is what was asked for, what the CPU
// writes before a command buffer the GPU sees, and what the GPU writes the CPU sees once it has completed.
func TestAssumeContents(t *testing.T) {
	const n = 1 << 16
	l := newLab(t)
	l.kernels(`kernel void next(device uint *x [[buffer(0)]], constant uint &by [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    x[i] = x[i] * 3 + by;
}`, "next")
	for _, length := range []int{2, 4, 100, 16384, 16385, 1<<20 + 3} {
		l.do(func() error {
			m := l.b.device.newBuffer(length)
			defer m.release()
			if m.length() != length {
				return fmt.Errorf("a buffer of %d bytes has %d", length, m.length())
			}
			return nil
		})
	}
	x := l.words(make([]uint32, n))
	host, want := l.host(x), make([]uint32, n)
	for round := range uint32(50) {
		host[4*round] += byte(round) // the CPU writes between command buffers
		want[round] = want[round]&^0xff | (want[round]+round)&0xff
		l.run("next", size{n, 1, 1}, size{256, 1, 1}, round, x)
		for i := range want {
			want[i] = want[i]*3 + round
		}
		l.do(func() error {
			if now := x.(*buffer).mtl.contents(); &now[0] != &host[0] {
				return fmt.Errorf("round %d: the memory has moved", round)
			}
			return nil
		})
		l.want(fmt.Sprint("round ", round), x, func(i int) uint32 { return want[i] })
	}
}

// TestAssumeSetBytes: setBytes copies, so that the Go memory may change before the command buffer is committed.
func TestAssumeSetBytes(t *testing.T) {
	l := newLab(t)
	l.kernels(`struct Eight { uint v[8]; };
kernel void unpack(device uint *x [[buffer(0)]], constant Eight &args [[buffer(1)]], uint i [[thread_position_in_grid]]) { x[i] = args.v[i]; }`, "unpack")
	x := l.words(make([]uint32, 8))
	l.do(func() error {
		commands := l.b.queue.commandBuffer()
		e := commands.computeEncoder()
		args := bytes.Repeat([]byte{7}, maxArgs)
		e.setPipeline(l.b.kernels[plain("unpack")].pipeline)
		e.setBuffer(x.(*buffer).mtl, 0, 0)
		e.setBytes(args, 1)
		clear(args)
		e.dispatchThreads(size{8, 1, 1}, size{8, 1, 1})
		e.setBytes(args, 1) // for a dispatch that never comes
		e.endEncoding()
		if s := commands.status(); s >= statusCompleted {
			return fmt.Errorf("status %d before the commit", s)
		}
		commands.commit()
		commands.wait()
		if s, err := commands.status(), commands.error(); s != statusCompleted || err != nil {
			return fmt.Errorf("status %d, %w", s, err)
		}
		return nil
	})
	l.want("bytes", x, func(int) uint32 { return 0x07070707 })
}

// TestAssumeNames: a kernel is found under its host_name alone, and a name that is none gives nil, not an exception.
func TestAssumeNames(t *testing.T) {
	l := newLab(t)
	l.kernels(`template <typename T>
[[kernel]] void fill(device T *x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = T(1); }
template [[host_name("fill_word")]] [[kernel]] decltype(fill<uint>) fill<uint>;
template [[host_name("fill_byte")]] [[kernel]] decltype(fill<uchar>) fill<uchar>;`, "fill_word", "fill_byte")
	l.do(func() error {
		for _, name := range []string{"fill", "fill_half", ""} {
			if f := l.b.libraries["assumption fill_word"].newFunction(name); !f.isNil() {
				f.release()
				return fmt.Errorf("the library has a kernel %q", name)
			}
		}
		return nil
	})
}

// TestAssumeWarnings: a source that compiles with warnings gives a library, whatever the error says.
func TestAssumeWarnings(t *testing.T) {
	l := newLab(t)
	l.kernels(`#pragma METAL unheard_of(yes)
kernel void warned(device uint *x [[buffer(0)]], uint i [[thread_position_in_grid]]) { int unused = 3; x[i] = 1; }`, "warned")
}

// TestAssumeTwoBackends: two backends, each with its thread, queue and reference to the device, do not disturb each other; one outlives the other.
func TestAssumeTwoBackends(t *testing.T) {
	const n = 5000
	failed := make(chan error)
	for range 2 {
		b, err := Open(Options{Activations: num.Float32})
		if err != nil {
			open(t, Options{Activations: num.Float32}) // skips, where there is none
			t.Fatal(err)
		}
		go func() { failed <- errors.Join(grow(b, n), b.Close()) }()
	}
	for range 2 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

// grow adds 1 to 1 a hundred times.
func grow(b *Backend, n int) error {
	x, err := b.NewBuffer(num.Float32, n)
	if err != nil {
		return err
	}
	host, err := x.Host()
	if err != nil {
		return err
	}
	copy(host, tensor("", n, 1).Data)
	one, err := b.Upload(tensor("one", n, 1))
	if err != nil {
		return err
	}
	out, err := b.NewBuffer(num.Float32, n)
	if err != nil {
		return err
	}
	for range 50 {
		for _, way := range [2][2]engine.Buffer{{out, x}, {x, out}} {
			b.Run(&engine.Add{Place: engine.Place{In: &engine.Pass{Rows: 1}}, Out: way[0], A: way[1], B: one, Dim: n})
		}
		if host, err = x.Host(); err != nil {
			return err
		}
	}
	if !bytes.Equal(host, tensor("", n, 101).Data) {
		return fmt.Errorf("1 and a hundred ones are %v", num.Float32At(num.Float32, host, 0))
	}
	return nil
}

// resident is the memory of this process, in bytes.
func resident(t *testing.T) int {
	out, err := exec.Command("ps", "-o", "rss=", "-p", strconv.Itoa(os.Getpid())).Output()
	if err != nil {
		t.Skipf("ps: %v", err)
	}
	kilobytes, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Skipf("ps: %v", err)
	}
	return kilobytes << 10
}

// TestAssumePoolsDrain: what a job makes dies with its pool. A command buffer with its encoder is some kilobytes: kept, 4,000 of them would be
// tens of megabytes.
func TestAssumePoolsDrain(t *testing.T) {
	l := newLab(t)
	buf := newBuffers(t, l.b)
	op := addOp(buf, buf(num.Float32, 4), buf(num.Float32, 4), 4)
	tokens := func(n int) {
		for range n {
			l.b.Run(op)
			l.sync()
		}
	}
	tokens(500) // what grows once, has
	before := resident(t)
	tokens(4000)
	if grown := resident(t) - before; grown > 16<<20 {
		t.Errorf("4,000 command buffers cost %d bytes", grown)
	}
}

// TestAssumeWatchdog: a display's watchdog lets a command buffer of maxWork multiply-adds pass.
func TestAssumeWatchdog(t *testing.T) {
	const cols, rows = 8192, 16384
	l := newLab(t)
	if l.b.info.Host {
		t.Skip("the host device has no watchdog, and needs minutes for this")
	}
	tokens := maxWork / cols / rows
	x, w := l.buffer(num.Float32, tokens*cols), l.buffer(num.Float16, rows*cols)
	copy(l.host(x), tensor("", tokens*cols, 1).Data)
	host := l.host(w)
	one := num.Float32ToFloat16(0x1p-13)
	for i := 0; i < len(host); i += 2 {
		host[i], host[i+1] = byte(one), byte(one>>8)
	}
	op := &engine.Linear{Place: engine.Place{In: &engine.Pass{Rows: tokens}}, Out: l.buffer(num.Float32, tokens*rows), X: x,
		W: engine.Matrix{Buffer: w, Rows: rows, Cols: cols}}
	l.b.Run(op)
	l.want("a sum of 8192 times 1/8192", op.Out, func(int) uint32 { return math.Float32bits(1) })
}
