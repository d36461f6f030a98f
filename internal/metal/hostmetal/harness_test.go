package hostmetal

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
)

// A small client of the library, through the same symbols that internal/metal uses.

type id uintptr
type selector uintptr

type size struct{ w, h, d uint64 }

var objc struct {
	sel      func(string) selector
	class    func(string) id
	push     func() uintptr
	pop      func(uintptr)
	device   func() id
	devices  func() id
	alive    func() map[string]int // objects by class
	live     func() int
	validate func(on bool, seed uint64) error
	send     func(id, selector) id
	sendVoid func(id, selector)
	sendID   func(id, selector, id) id
	sendUint func(id, selector, uint64) uint64
	two      func(id, selector, uint64, uint64) id
	double   func(id, selector) float64
	truth    func(id, selector) bool
	setTruth func(id, selector, bool)
	ptr      func(id, selector) unsafe.Pointer
	bytes    func(id, selector, unsafe.Pointer, uint64, uint64) id
	buffer   func(id, selector, id, uint64, uint64)
	library  func(id, selector, id, id, *id) id
	pipeline func(id, selector, id, *id) id
	dispatch func(id, selector, size, size)
	fence    func(id, selector, *id, uint64)
}

var load = sync.OnceValue(func() error {
	info, err := Library()
	if err != nil {
		return err
	}
	lib, err := purego.Dlopen(info.Path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return err
	}
	if err := Attach(lib); err != nil {
		return err
	}
	objc.validate = func(on bool, seed uint64) error { return Validate(lib, on, seed) }
	objc.alive = func() map[string]int {
		alive, err := Alive(lib)
		if err != nil {
			panic(err)
		}
		return alive
	}
	objc.live = func() (n int) {
		for _, k := range objc.alive() {
			n += k
		}
		return n
	}
	for name, fn := range map[string]any{
		"sel_registerName": &objc.sel, "objc_getClass": &objc.class, "objc_autoreleasePoolPush": &objc.push,
		"objc_autoreleasePoolPop": &objc.pop, "MTLCreateSystemDefaultDevice": &objc.device,
		"MTLCopyAllDevices": &objc.devices,
	} {
		purego.RegisterLibFunc(fn, lib, name)
	}
	for _, fn := range []any{&objc.send, &objc.sendVoid, &objc.sendID, &objc.sendUint, &objc.two, &objc.double, &objc.truth,
		&objc.setTruth, &objc.ptr, &objc.bytes, &objc.buffer, &objc.library, &objc.pipeline, &objc.dispatch, &objc.fence} {
		purego.RegisterLibFunc(fn, lib, "objc_msgSend")
	}
	return nil
})

// metal loads the library, or skips the test where there is no compiler. The test then runs inside
// an autorelease pool, and must leave as many objects as it found.
func metal(t testing.TB) {
	t.Helper()
	err := load()
	var none *NoCompilerError
	if errors.As(err, &none) && os.Getenv("LLMRUN_REQUIRE_METAL") != "1" {
		t.Skipf("%v; %s", err, none.Hint())
	}
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	live, pool := objc.live(), objc.push()
	t.Cleanup(func() {
		objc.pop(pool)
		if n := objc.live(); n != live {
			t.Errorf("%d objects leaked", n-live)
		}
		runtime.UnlockOSThread()
	})
}

// validate turns the checked mode on until the end of the test.
func validate(t testing.TB, seed uint64) {
	t.Helper()
	if err := objc.validate(true, seed); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { objc.validate(false, 0) })
}

// needRestart skips the test where this program cannot start itself again: in an emulator of another
// processor.
func needRestart(t *testing.T) {
	t.Helper()
	if err := exec.Command(os.Args[0], "-test.run=^$").Run(); errors.Is(err, syscall.ENOEXEC) {
		t.Skip(err)
	}
}

func send(o id, name string) id { return objc.send(o, objc.sel(name)) }
func release(o id)              { objc.sendVoid(o, objc.sel("release")) }
func count(o id, name string) uint64 {
	return uint64(send(o, name))
}

// str makes an autoreleased NSString.
func str(s string) id {
	o := send(objc.class("NSString"), "alloc")
	o = objc.bytes(o, objc.sel("initWithBytes:length:encoding:"), unsafe.Pointer(unsafe.StringData(s)), uint64(len(s)), 4)
	return send(o, "autorelease")
}

func text(o id) string {
	if o == 0 {
		return ""
	}
	p := (*byte)(objc.ptr(o, objc.sel("UTF8String")))
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

// A gpu is a device with a queue and a compiled library.
type gpu struct {
	t                      testing.TB
	device, queue, library id
}

// mode chooses compile options.
type mode int

const (
	precise mode = iota
	fast
	unset // Metal's default
)

func newLibrary(device id, source string, m mode) (id, string) {
	options := id(0)
	if m != unset {
		options = send(objc.class("MTLCompileOptions"), "new")
		objc.setTruth(options, objc.sel("setFastMathEnabled:"), m == fast)
		defer release(options)
	}
	var err id
	lib := objc.library(device, objc.sel("newLibraryWithSource:options:error:"), str(source), options, &err)
	if lib != 0 {
		return lib, ""
	}
	return 0, text(send(err, "localizedDescription"))
}

func newGPU(t testing.TB, source string, m mode) *gpu {
	t.Helper()
	metal(t)
	g := &gpu{t: t, device: objc.device()}
	g.queue = send(g.device, "newCommandQueue")
	lib, failure := newLibrary(g.device, source, m)
	if lib == 0 {
		t.Fatal(failure)
	}
	g.library = lib
	t.Cleanup(func() {
		release(g.library)
		release(g.queue)
		release(g.device)
	})
	return g
}

// buffer copies v to a new buffer, which is released at the end of the test.
func buffer[T any](g *gpu, v []T) id {
	g.t.Helper()
	n := len(v) * int(unsafe.Sizeof(v[0]))
	b := objc.two(g.device, objc.sel("newBufferWithLength:options:"), uint64(n), 0)
	if b == 0 {
		g.t.Fatalf("no buffer of %d bytes", n)
	}
	copy(contents[T](b, len(v)), v)
	g.t.Cleanup(func() { release(b) })
	return b
}

func contents[T any](b id, n int) []T {
	return unsafe.Slice((*T)(objc.ptr(b, objc.sel("contents"))), n)
}

// A command is one dispatch: buffers are bound in order, values of other types by setBytes.
type command struct {
	kernel  string
	threads size // of the grid
	group   size
	tg      int // bytes of [[threadgroup(0)]]
	args    []any
}

func (g *gpu) pipeline(name string) id {
	g.t.Helper()
	f := objc.sendID(g.library, objc.sel("newFunctionWithName:"), str(name))
	if f == 0 {
		g.t.Fatalf("no kernel %s", name)
	}
	defer release(f)
	var err id
	return objc.pipeline(g.device, objc.sel("newComputePipelineStateWithFunction:error:"), f, &err)
}

// encode writes the commands into a new command buffer, which is autoreleased.
func (g *gpu) encode(commands ...command) id {
	g.t.Helper()
	cb := send(g.queue, "commandBuffer")
	e := send(cb, "computeCommandEncoder")
	for _, c := range commands {
		g.dispatch(e, c)
	}
	objc.sendVoid(e, objc.sel("endEncoding"))
	return cb
}

// dispatch writes a command into an encoder.
func (g *gpu) dispatch(e id, c command) {
	g.t.Helper()
	p := g.pipeline(c.kernel)
	objc.sendID(e, objc.sel("setComputePipelineState:"), p)
	release(p)
	for i, a := range c.args {
		switch a := a.(type) {
		case id:
			objc.buffer(e, objc.sel("setBuffer:offset:atIndex:"), a, 0, uint64(i))
		case uint32:
			objc.bytes(e, objc.sel("setBytes:length:atIndex:"), unsafe.Pointer(&a), 4, uint64(i))
		case []uint32:
			objc.bytes(e, objc.sel("setBytes:length:atIndex:"), unsafe.Pointer(&a[0]), uint64(4*len(a)), uint64(i))
		default:
			g.t.Fatalf("argument %d has type %T", i, a)
		}
	}
	if c.tg > 0 {
		objc.two(e, objc.sel("setThreadgroupMemoryLength:atIndex:"), uint64(c.tg), 0)
	}
	objc.dispatch(e, objc.sel("dispatchThreads:threadsPerThreadgroup:"), c.threads, c.group)
}

// run executes the commands and returns the error's text, "" for none.
func (g *gpu) run(commands ...command) string {
	g.t.Helper()
	return g.finish(g.encode(commands...))
}

// finish commits a command buffer, waits for it, and returns its error's text.
func (g *gpu) finish(cb id) string {
	g.t.Helper()
	objc.sendVoid(cb, objc.sel("commit"))
	objc.sendVoid(cb, objc.sel("waitUntilCompleted"))
	err := send(cb, "error")
	if s := count(cb, "status"); (s == 4) != (err == 0) || s != 4 && s != 5 {
		g.t.Fatalf("status %d with error %q", s, text(send(err, "localizedDescription")))
	}
	return text(send(err, "localizedDescription"))
}

// must fails the test if the commands do.
func (g *gpu) must(commands ...command) {
	g.t.Helper()
	if failure := g.run(commands...); failure != "" {
		g.t.Fatal(failure)
	}
}

func line(n int) size { return size{uint64(n), 1, 1} }
