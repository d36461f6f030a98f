package metal

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"llmrun/internal/num"
	"llmrun/shaders"
)

const simdWidth = 32

// languageVersion is the MTLLanguageVersion that the shaders need: 3.0, or 3.1 where activations are bfloat. Left alone it would follow
// the SDK that Go names in its binaries: 2.4.
func languageVersion(activations num.DType) uint {
	if activations == num.BFloat16 {
		return 3<<16 | 1
	}
	return 3 << 16
}

// Metal's enumerations MTLMathMode and MTLMathFloatingPointFunctions, by value.
var (
	mathModes     = []string{"safe", "relaxed", "fast"}
	functionModes = []string{"fast", "precise"}
)

// mathOptions asks for safe, precise math (or for fast math), and puts down in info what Metal then says it will do.
func mathOptions(activations num.DType, fast bool, info *Info) (compileOptions, error) {
	o, language := newCompileOptions(), languageVersion(activations)
	mode, functions := 0, 1 // safe, precise
	if fast {
		mode, functions = 2, 0
	}
	o.setLanguageVersion(language)
	o.setFastMath(fast)
	ok := true
	if o.hasMathMode() {
		o.setMathMode(mode)
		o.setFunctions(functions)
		info.MathMode, info.Functions = nameOf(mathModes, o.mathMode()), nameOf(functionModes, o.functions())
		ok = o.mathMode() == mode && o.functions() == functions
	}
	v := o.languageVersion()
	info.LanguageVersion, info.FastMath = fmt.Sprintf("%d.%d", v>>16, v&0xffff), o.fastMath()
	if !ok || v != language || o.fastMath() != fast {
		o.release()
		return o, fmt.Errorf("metal: compile options: want MSL %d.%d, fast math %t; Metal says MSL %s, fast math %t, mode %q, functions %q",
			language>>16, language&0xffff, fast, info.LanguageVersion, info.FastMath, info.MathMode, info.Functions)
	}
	return o, nil
}

func nameOf(names []string, i int) string {
	if i < 0 || i >= len(names) {
		return fmt.Sprint(i)
	}
	return names[i]
}

// compileAll compiles every shader, several at once, by file name without its extension. edit, if not nil, may change the text of a file first.
func compileAll(d device, o compileOptions, edit func(file, source string) (string, error)) (map[string]library, error) {
	files := shaders.Files()
	sources, compiled, errs := make([]string, len(files)), make([]library, len(files)), make([]error, len(files))
	for i, file := range files {
		var err error
		if sources[i], err = shaders.Source(file, edit); err != nil {
			return nil, err
		}
	}
	var next atomic.Int32
	var wait sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(files)) {
		wait.Go(func() {
			t := newThread()
			defer t.stop()
			t.do(func() {
				for i := int(next.Add(1)) - 1; i < len(files); i = int(next.Add(1)) - 1 {
					compiled[i], errs[i] = d.newLibrary(sources[i], o)
				}
			})
		})
	}
	wait.Wait()
	libraries := map[string]library{}
	var err error
	for i, file := range files {
		if lib := compiled[i]; !lib.isNil() {
			libraries[strings.TrimSuffix(file, ".metal")] = lib
		} else if err == nil {
			err = fmt.Errorf("metal: compile %s: %w", file, errs[i])
		}
	}
	return libraries, err
}

// kernel is a compiled kernel.
type kernel struct {
	name       string // in the shader, such as linear_f16_bf16
	pipeline   pipeline
	label      nsString // name
	maxThreads uint     // in a threadgroup
}

func (k *kernel) release() {
	k.pipeline.release()
	k.label.release()
}

// kernelKey says which kernel an op needs: its shader's name, a variant's suffix, and the type of the weight.
type kernelKey struct {
	shader, variant string
	weight          num.DType // noWeight where the kernel has no matrix
}

const noWeight = num.NumDTypes

var suffixes = map[num.DType]string{num.Float32: "_f32", num.Float16: "_f16", num.BFloat16: "_bf16", num.Int8: "_i8", noWeight: ""}

// name is the kernel's name in the shader.
func (k kernelKey) name(activations num.DType) string {
	return k.shader + k.variant + suffixes[activations] + suffixes[k.weight]
}

// newKernel makes a kernel of a library.
func newKernel(d device, lib library, name string) (*kernel, error) {
	f := lib.newFunction(name)
	if f.isNil() {
		return nil, fmt.Errorf("the library has no kernel %s", name)
	}
	defer f.release()
	p, err := d.newPipeline(f)
	if p.isNil() {
		return nil, fmt.Errorf("make pipeline: %w", err)
	}
	if w := p.executionWidth(); w != simdWidth {
		p.release()
		return nil, fmt.Errorf("want simdgroups of %d threads, the device has %d", simdWidth, w)
	}
	return &kernel{name, p, newString(name), p.maxThreads()}, nil
}
