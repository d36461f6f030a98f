// Package metal is the Metal backend. It drives Metal through an Objective-C seam of its own over purego: on macOS the
// symbols are Apple's, elsewhere hostmetal's, and nothing else differs.
//
// From bottom to top: objc.go and selectors.go call objc_msgSend; objects.go has one small type for each Metal object,
// and is the only file that retains or releases; thread.go owns the OS thread and its autorelease pools; device.go and
// pipeline.go choose a device and compile the shaders; buffer.go, backend.go and ops.go are engine.Backend.
package metal

import (
	"fmt"
	"os"
	"reflect"
	"sync"

	"github.com/ebitengine/purego"
)

// Objective-C's names for an object, a selector and a class.
type (
	id    uintptr
	sel   uintptr
	class uintptr
)

// size is MTLSize. It is passed by value: copied onto the stack on amd64, by a pointer to a copy on arm64; purego does both.
type size struct{ Width, Height, Depth uint }

// method is a selector of one class or protocol with the Go type of the function that sends it.
// call is objc_msgSend itself under that type: the convention of a variadic function would be wrong on arm64.
type method[F any] struct {
	owner, name string
	optional    bool // newer than minimumMacOS: ask respondsToSelector: first
	sel         sel
	call        F
}

// binder is a method of any type.
type binder interface{ bind(msgSend uintptr) }

// methods is the table in selectors.go, for bind and for the test that holds it to Apple's headers.
var methods []binder

func declare[F any](owner, name string) *method[F] {
	m := &method[F]{owner: owner, name: name}
	methods = append(methods, m)
	return m
}

// declareNewer declares a method that minimumMacOS does not have.
func declareNewer[F any](owner, name string) *method[F] {
	m := declare[F](owner, name)
	m.optional = true
	return m
}

func (m *method[F]) bind(msgSend uintptr) {
	m.sel = registerName(m.name)
	m.call = signature[F](msgSend)
}

// signatures holds objc_msgSend under every Go type in use, so that each is registered once.
var signatures = map[reflect.Type]any{}

func signature[F any](msgSend uintptr) F {
	t := reflect.TypeFor[F]()
	if f, ok := signatures[t]; ok {
		return f.(F)
	}
	var f F
	register(&f, msgSend)
	signatures[t] = f
	return f
}

// The C functions in use.
var (
	registerName   func(string) sel
	getClass       func(string) class
	poolPush       func() uintptr
	poolPop        func(uintptr)
	defaultDevice  func() id
	copyAllDevices func() id
	functions      = map[string]any{
		"sel_registerName":             &registerName,
		"objc_getClass":                &getClass,
		"objc_autoreleasePoolPush":     &poolPush,
		"objc_autoreleasePoolPop":      &poolPop,
		"MTLCreateSystemDefaultDevice": &defaultDevice,
		"MTLCopyAllDevices":            &copyAllDevices,
	}
)

// Environment variables. validateVariable, set to 1, makes the device check all that it is asked to do: like Apple's own, for the whole
// process, before the first device is opened. seedVariable is the order in which the host device then runs threads.
const (
	validateVariable = "LLMRUN_METAL_VALIDATE"
	seedVariable     = "LLMRUN_METAL_SEED"
)

// Validate turns the device's checks on for the backends that are opened from now on, as LLMRUN_METAL_VALIDATE=1 does. On a Mac they are
// Apple's, and the first backend decides for all.
func Validate() { os.Setenv(validateVariable, "1") }

// Validates tells whether the checks were asked for.
func Validates() bool { return os.Getenv(validateVariable) == "1" }

// source says where the symbols come from.
type source struct {
	handles  []uintptr // of the libraries, as Dlopen gave them
	host     bool      // hostmetal, not Apple's Metal
	compiler string    // host only: what compiles the shaders
	cache    string    // host only: the folder of what was compiled
}

func (s source) symbol(name string) (uintptr, error) {
	var err error
	for _, h := range s.handles {
		var p uintptr
		if p, err = purego.Dlsym(h, name); err == nil {
			return p, nil
		}
	}
	return 0, fmt.Errorf("metal: no symbol %s: %w", name, err)
}

// load opens the libraries and binds all functions and methods, once for the process.
var load = sync.OnceValues(func() (source, error) {
	s, err := openLibraries()
	if err != nil {
		return s, err
	}
	for name, f := range functions {
		p, err := s.symbol(name)
		if err != nil {
			return s, err
		}
		register(f, p)
	}
	msgSend, err := s.symbol("objc_msgSend")
	if err != nil {
		return s, err
	}
	for _, m := range methods {
		m.bind(msgSend)
	}
	return s, nil
})
