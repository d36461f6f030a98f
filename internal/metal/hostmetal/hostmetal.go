// Package hostmetal serves the subset of Apple's Metal that llmrun uses on machines without Metal.
//
// It is a shared library, built from the embedded native folder by the machine's C++ compiler into
// the user's cache at first use, that exports the C symbols of Apple's libraries: objc_msgSend,
// sel_registerName, objc_getClass, the autorelease pools, MTLCreateSystemDefaultDevice. Behind them
// stand a miniature Objective-C runtime (native/runtime/objc.cpp), the Metal classes (device.cpp, command.cpp) and
// an executor that runs kernels on all cores (exec.cpp). Metal source is compiled by the same
// compiler: a pre-pass in Go (prepass.go) finds the kernels, and a metal_stdlib of our own
// (native/prelude) gives their words a meaning in C++.
//
// Its checked mode (Validate) compiles kernels so that they tell of each load and store (check.cpp), and says what would
// go wrong on a GPU: testdata/hazards has one of each.
//
// Results in safe math mode have the same bits on every machine and with every compiler.
package hostmetal

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// abiVersion is MSL_ABI of native/abi.h.
const abiVersion = 3

// Info describes the library that stands in for Metal.
type Info struct {
	Path     string // of the shared library
	Compiler string // "g++ 12.2"
}

// String is how reports name the device: "host device, g++ 12.2".
func (i Info) String() string { return "host device, " + i.Compiler }

// Library builds, or finds in the cache, the shared library that serves Metal's symbols. Without a
// compiler the error is a *NoCompilerError, with a cache that others could write to an
// *UnsafeCacheError; both have a Hint method. Load the library with purego.Dlopen, then call Attach.
func Library() (Info, error) {
	c, err := findCompiler()
	if err != nil {
		return Info{}, err
	}
	var inputs []string
	for _, name := range []string{"exec", "faults", "check", "tells", "guard", "objc", "device", "command", "mps"} {
		inputs = append(inputs, "native/runtime/"+name+".cpp")
	}
	flags := c.flags()
	path, err := cached(key("hostmetal", c, flags, "", ""), func(dir string) (string, error) {
		return "lib.so", c.run(dir, flags, nil, inputs, "lib.so", "-lpthread", "-ldl")
	})
	var failed *CompileError
	if errors.As(err, &failed) {
		err = fmt.Errorf("host Metal device: %s cannot compile its runtime: %w", c.name, failed)
	}
	return Info{Path: path, Compiler: c.name}, err
}

// key names a library after all that decides its content: text, and the native files but those in the folder skip.
func key(stem string, c *compiler, flags []string, text, skip string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d %s %s %q %q\n", abiVersion, runtime.GOOS, runtime.GOARCH, c.identity, flags)
	fs.WalkDir(native, ".", func(path string, d fs.DirEntry, err error) error {
		if path == skip {
			return fs.SkipDir
		}
		if err == nil && !d.IsDir() {
			b, _ := native.ReadFile(path)
			fmt.Fprintf(h, "%s %d\n%s", path, len(b), b)
		}
		return err
	})
	h.Write([]byte(text))
	return fmt.Sprintf("%s-%x", stem, h.Sum(nil)[:16])
}

// A dialect says how Metal source is compiled: by the two independent switches of MTLCompileOptions for what the compiler may change and
// which functions unqualified names mean, by its language version, and whether for the checked mode.
type dialect struct {
	fastMath, fastFunctions, checked bool
	language                         int // __METAL_VERSION__: 310 is 3.1
}

// compileMetal turns Metal source into a shared library in the cache.
func compileMetal(text string, d dialect) (path string, err error) {
	c, err := findCompiler()
	if err != nil {
		return "", err
	}
	s, err := parse(live(text, d.language))
	if err != nil {
		return "", &CompileError{err.Error()}
	}
	flags, unit := c.kernelFlags(d), s.cxx(d)
	stem := strings.TrimSuffix(s.file, ".metal")
	path, err = cached(key(stem, c, flags, unit, "native/runtime"), func(dir string) (string, error) {
		return "lib.so", c.run(dir, flags, map[string]string{"unit.cpp": unit}, []string{"unit.cpp"}, "lib.so", "-lm")
	})
	var failed *CompileError
	if errors.As(err, &failed) {
		failed.Text = poisoned.ReplaceAllString(failed.Text, fmt.Sprintf("a name that Metal %d.%d does not have", d.language/100, d.language/10%10))
	}
	return path, err
}

// poisoned is what compilers say of names that metal_stdlib poisons: those newer than the language version.
var poisoned = regexp.MustCompile(`attempt to use (a )?poisoned( identifier)?`)

// compileRequest mirrors CompileRequest in device.cpp.
type compileRequest struct {
	source                                    *byte
	bytes                                     uint64
	fastMath, fastFunctions, checked, version uint32
	out                                       *byte
	room, used                                uint64
}

// The codes of MTLLibraryError.
const (
	libraryErrorInternal       = 2
	libraryErrorCompileFailure = 3
)

// serve answers newLibraryWithSource:options:error:.
func serve(r *compileRequest) uintptr {
	text := string(unsafe.Slice(r.source, r.bytes))
	language := int(r.version>>16*100 + r.version&0xffff*10)
	answer, err := compileMetal(text, dialect{r.fastMath != 0, r.fastFunctions != 0, r.checked != 0, language})
	code := uintptr(0)
	var failed *CompileError
	switch {
	case errors.As(err, &failed):
		code, answer = libraryErrorCompileFailure, "Compilation failed:\n\n"+failed.Text
	case err != nil:
		code, answer = libraryErrorInternal, err.Error()
	}
	r.used = uint64(copy(unsafe.Slice(r.out, r.room-1), answer))
	return code
}

// threads is $LLMRUN_THREADS, or what Go would use.
func threads() uint32 {
	if n, err := strconv.Atoi(os.Getenv("LLMRUN_THREADS")); err == nil && n > 0 && n <= 1024 {
		return uint32(n)
	}
	return uint32(runtime.GOMAXPROCS(0))
}

var callbacks = sync.OnceValues(func() (compile, places uintptr) { return purego.NewCallback(serve), purego.NewCallback(servePlaces) })

// Attach connects the loaded library, a handle from purego.Dlopen, with the compiler. Call it before
// the first device is created; more calls change nothing.
func Attach(handle uintptr) error {
	fn, err := purego.Dlsym(handle, "hostmetal_attach")
	if err != nil {
		return fmt.Errorf("host Metal device: %w", err)
	}
	var attach func(threads uint32, compile, places uintptr) uint32
	purego.RegisterFunc(&attach, fn)
	compile, places := callbacks()
	if abi := attach(threads(), compile, places); abi != abiVersion {
		panic(fmt.Sprintf("BUG: the runtime has ABI %d, this package %d", abi, abiVersion))
	}
	return nil
}

// Validate turns the checked mode of the loaded library on or off. While it is on, compiled kernels and new buffers are checked for as long
// as they live: what a kernel may not do, on Metal or only on this device, is an error of its command buffer, with the line of the shader.
// Checked kernels run on one thread, in an order that seed decides; their results must not depend on it.
func Validate(handle uintptr, on bool, seed uint64) error {
	fn, err := purego.Dlsym(handle, "hostmetal_validate")
	if err != nil {
		return fmt.Errorf("host Metal device: %w", err)
	}
	var validate func(on bool, seed uint64)
	purego.RegisterFunc(&validate, fn)
	validate(on, seed)
	return nil
}

// Alive counts the objects of the loaded library that were not released, by class: what a leak makes grow. The handle is Attach's.
func Alive(handle uintptr) (map[string]int, error) {
	fn, err := purego.Dlsym(handle, "hostmetal_alive")
	if err != nil {
		return nil, fmt.Errorf("host Metal device: %w", err)
	}
	var class func(i uintptr, n *int64) string
	purego.RegisterFunc(&class, fn)
	alive := map[string]int{}
	for i := uintptr(0); ; i++ {
		var n int64
		name := class(i, &n)
		if name == "" {
			return alive, nil
		}
		if n != 0 {
			alive[name] = int(n)
		}
	}
}
