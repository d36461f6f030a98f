package metal

import (
	"runtime"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// register makes *f, of a function type, the C function fn.
func register(f any, fn uintptr) {
	if !direct(f, fn) {
		purego.RegisterFunc(f, fn)
	}
}

// direct is register without reflection, which would allocate at every call. It knows the types of all that is called once per dispatch or
// per command buffer.
func direct(f any, fn uintptr) bool {
	switch p := f.(type) {
	case *func() uintptr:
		*p = func() uintptr { return call(fn) }
	case *func(uintptr):
		*p = func(x uintptr) { call(fn, x) }
	case *func(id, sel):
		*p = func(o id, s sel) { call(fn, uintptr(o), uintptr(s)) }
	case *func(id, sel) id:
		*p = func(o id, s sel) id { return id(call(fn, uintptr(o), uintptr(s))) }
	case *func(id, sel) uint:
		*p = func(o id, s sel) uint { return uint(call(fn, uintptr(o), uintptr(s))) }
	case *func(id, sel, id):
		*p = func(o id, s sel, x id) { call(fn, uintptr(o), uintptr(s), uintptr(x)) }
	case *func(id, sel, id, id, id, id):
		*p = func(o id, s sel, w, x, y, z id) {
			call(fn, uintptr(o), uintptr(s), uintptr(w), uintptr(x), uintptr(y), uintptr(z))
		}
	case *func(id, sel, id, uint, uint):
		*p = func(o id, s sel, x id, m, n uint) {
			call(fn, uintptr(o), uintptr(s), uintptr(x), uintptr(m), uintptr(n))
		}
	case *func(id, sel, unsafe.Pointer, uint, uint):
		*p = func(o id, s sel, x unsafe.Pointer, m, n uint) {
			call(fn, uintptr(o), uintptr(s), uintptr(x), uintptr(m), uintptr(n))
			runtime.KeepAlive(x)
		}
	case *func(id, sel, size, size):
		if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
			return false
		}
		*p = func(o id, s sel, a, b size) { callSizes(fn, uintptr(o), uintptr(s), a, b) }
	default:
		return false
	}
	return true
}

// frame is the arguments of a call. It is used again, because those of purego.SyscallN go to the heap.
type frame struct {
	words [12]uintptr
	sizes [2]size
}

var frames = sync.Pool{New: func() any { return new(frame) }}

// call calls fn with integers and pointers, which arm64 and amd64 pass alike for a caller who fills the registers first.
func call(fn uintptr, args ...uintptr) uintptr {
	f := frames.Get().(*frame)
	result, _, _ := purego.SyscallN(fn, f.words[:copy(f.words[:], args)]...)
	frames.Put(f)
	return result
}

// callSizes calls fn with two words and two structs of 24 bytes by value. arm64 passes a struct of more than 16 bytes as a pointer to a copy
// (AAPCS64, stage B.4); amd64 puts it on the stack, class MEMORY (System V ABI §3.2.3), and there purego puts what comes after six words.
func callSizes(fn, x, y uintptr, a, b size) {
	f := frames.Get().(*frame)
	n := 12
	if runtime.GOARCH == "arm64" {
		f.sizes = [2]size{a, b}
		n = copy(f.words[:], []uintptr{x, y, uintptr(unsafe.Pointer(&f.sizes[0])), uintptr(unsafe.Pointer(&f.sizes[1]))})
	} else {
		f.words = [12]uintptr{0: x, 1: y, 6: uintptr(a.Width), uintptr(a.Height), uintptr(a.Depth),
			uintptr(b.Width), uintptr(b.Height), uintptr(b.Depth)}
	}
	purego.SyscallN(fn, f.words[:n]...)
	frames.Put(f)
}
