package hostmetal

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

const saxpy = `// saxpy.metal
#include <metal_stdlib>
using namespace metal;

struct Args { uint n; float a; };

kernel void saxpy(device float *y [[buffer(0)]], device const float *x [[buffer(1)]],
                  constant Args &args [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    if (i < args.n) y[i] += args.a * x[i];
}
`

func TestElementwise(t *testing.T) {
	g := newGPU(t, saxpy, precise)
	const n = 1000
	x, y := make([]float32, n), make([]float32, n)
	for i := range x {
		x[i], y[i] = float32(i), 1
	}
	bx, by := buffer(g, x), buffer(g, y)
	g.must(command{"saxpy", line(n), line(64), 0, []any{by, bx, []uint32{n, math.Float32bits(2)}}})
	for i, v := range contents[float32](by, n) {
		if v != 1+2*float32(i) {
			t.Fatalf("y[%d] = %v", i, v)
		}
	}
}

func TestDevice(t *testing.T) {
	metal(t)
	d := objc.device()
	defer release(d)
	all := objc.devices()
	defer release(all)
	if n := count(all, "count"); n != 1 || objc.sendUint(all, objc.sel("objectAtIndex:"), 0) != uint64(d) {
		t.Errorf("%d devices", n)
	}
	if text(send(d, "name")) == "" || !objc.truth(d, objc.sel("hasUnifiedMemory")) {
		t.Error("the device has no name or no unified memory")
	}
	if n := count(d, "maxThreadgroupMemoryLength"); n != 32768 {
		t.Errorf("threadgroup memory %d", n)
	}
	for family, want := range map[uint64]bool{1001: true, 1007: true, 1008: false, 2002: true, 3003: true, 5001: true, 5002: false} {
		if got := objc.sendUint(d, objc.sel("supportsFamily:"), family)&0xff != 0; got != want {
			t.Errorf("family %d: %v", family, got)
		}
	}
	if count(d, "maxBufferLength") == 0 || count(d, "recommendedMaxWorkingSetSize") == 0 {
		t.Error("no memory")
	}
}

func TestBuffer(t *testing.T) {
	metal(t)
	d := objc.device()
	defer release(d)
	newBuffer := objc.sel("newBufferWithLength:options:")
	before := count(d, "currentAllocatedSize")
	for _, n := range []uint64{1, 16, 17, 4095, 4096, 1 << 20} {
		b := objc.two(d, newBuffer, n, 0)
		if got := count(b, "length"); got != n {
			t.Errorf("length %d, want %d", got, n)
		}
		if uintptr(objc.ptr(b, objc.sel("contents")))%16 != 0 {
			t.Errorf("%d bytes are not aligned to 16", n)
		}
		for i, v := range contents[byte](b, int(n)) {
			if v != 0 {
				t.Fatalf("byte %d of a fresh buffer is %d", i, v)
			}
		}
		if count(d, "currentAllocatedSize") < before+n {
			t.Errorf("%d bytes are not counted", n)
		}
		objc.sendID(b, objc.sel("setLabel:"), str("weights"))
		if got := text(send(b, "label")); got != "weights" {
			t.Errorf("label %q", got)
		}
		release(b)
	}
	if after := count(d, "currentAllocatedSize"); after != before {
		t.Errorf("%d bytes stay allocated", after-before)
	}
	for _, n := range []uint64{0, 1 << 60} {
		if objc.two(d, newBuffer, n, 0) != 0 {
			t.Errorf("a buffer of %d bytes", n)
		}
	}
}

func TestCompileOptions(t *testing.T) {
	metal(t)
	o := send(objc.class("MTLCompileOptions"), "new")
	defer release(o)
	check := func(fast bool, mode, functions uint64) {
		t.Helper()
		if f, m, n := objc.truth(o, objc.sel("fastMathEnabled")), count(o, "mathMode"), count(o, "mathFloatingPointFunctions"); f != fast || m != mode || n != functions {
			t.Errorf("fastMathEnabled %v, mathMode %d, mathFloatingPointFunctions %d; want %v %d %d", f, m, n, fast, mode, functions)
		}
	}
	check(true, 2, 0)
	objc.setTruth(o, objc.sel("setFastMathEnabled:"), false)
	check(false, 0, 1)
	objc.sendUint(o, objc.sel("setMathFloatingPointFunctions:"), 0)
	check(false, 0, 0)
	objc.sendUint(o, objc.sel("setMathMode:"), 1)
	check(false, 1, 0)
	objc.sendUint(o, objc.sel("setLanguageVersion:"), 3<<16)
	if v := count(o, "languageVersion"); v != 3<<16 {
		t.Errorf("languageVersion %#x", v)
	}
}

func TestLibrary(t *testing.T) {
	g := newGPU(t, `#include <metal_stdlib>
using namespace metal;
template <typename T> [[kernel]] void twice(device T *x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = x[i] + x[i]; }
template [[host_name("twice_f32")]] [[kernel]] decltype(twice<float>) twice<float>;
template [[host_name("twice_f16")]] kernel void twice<half>(device half *, uint);
[[kernel, max_total_threads_per_threadgroup(64)]] void small(device float *x [[buffer(0)]]) { x[0] = 1; }
`, unset)
	names := send(g.library, "functionNames")
	var got []string
	for i := range count(names, "count") {
		got = append(got, text(id(objc.sendUint(names, objc.sel("objectAtIndex:"), i))))
	}
	if fmt.Sprint(got) != "[twice_f32 twice_f16 small]" {
		t.Errorf("functionNames %v", got)
	}
	f := objc.sendID(g.library, objc.sel("newFunctionWithName:"), str("twice_f16"))
	if text(send(f, "name")) != "twice_f16" {
		t.Errorf("name %q", text(send(f, "name")))
	}
	release(f)
	if objc.sendID(g.library, objc.sel("newFunctionWithName:"), str("twice")) != 0 {
		t.Error("a template is no function")
	}
	p := g.pipeline("small")
	defer release(p)
	if n, w := count(p, "maxTotalThreadsPerThreadgroup"), count(p, "threadExecutionWidth"); n != 64 || w != 32 {
		t.Errorf("maxTotalThreadsPerThreadgroup %d, threadExecutionWidth %d", n, w)
	}
	b := buffer(g, []uint16{0x3c00, 0x0001}) // 1 and the smallest half
	g.must(command{"twice_f16", line(2), line(32), 0, []any{b}})
	if v := contents[uint16](b, 2); v[0] != 0x4000 {
		t.Errorf("2 × 1 is %#04x", v[0])
	}
}

// The text is the compiler's, at the place in the Metal source.
func TestCompileErrors(t *testing.T) {
	metal(t)
	d := objc.device()
	defer release(d)
	const head = "#include <metal_stdlib>\nusing namespace metal;\n"
	for _, c := range []struct{ source, want string }{
		{"// bad.metal\n" + head + "kernel void f(device float *y [[buffer(0)]]) {\n  y[0] = precise::rqsrt(y[0]);\n}\n", "bad.metal:5:19: error: "},
		{head + "kernel void f(device float *y [[buffer(0)]]) { y[0] = erf(y[0]); }\n", "program_source:3:"},
		{head + "kernel void f(device float *y [[buffer(0)]]) { y[0] = 1 }", "program_source:3:"},
		{head + "kernel void f(device float *y) { }", `program_source:3:15: error: kernel parameter "y" has no attribute`},
		{head + "kernel void f(float *y [[buffer(0)]]) { }", `buffer parameter "y" must be in the device or constant address space`},
		{head + "kernel void f(device float *y [[buffer(0)]], device float *x [[buffer(0)]]) { }", `[[buffer(0)]] is used twice, by "y" and "x"`},
		{head + "kernel void f(device float *y [[buffer(31)]]) { }", "buffer index 31 is out of bounds"},
		{head + "kernel void f(uint i [[thread_index_in_quadgroup]]) { }", "unknown attribute [[thread_index_in_quadgroup]]"},
		{head + "constant bool b [[function_constant(0)]];\n", "function constants are not served"},
		{head + "kernel void f() { }\nkernel void g() { }\ntemplate [[host_name(\"h\")]] [[kernel]] decltype(k<int>) k<int>;", "instantiation of k, which is no kernel"},
		{head + "kernel void f(device float *y [[buffer(0)]]) { float a[4096]; for (uint i = 0; i < 4096; i++) a[uint(y[i])] = y[i]; y[0] = a[uint(y[1])]; threadgroup_barrier(mem_flags::mem_none); }", "frame size"},
	} {
		lib, failure := newLibrary(d, c.source, precise)
		if lib != 0 {
			release(lib)
			t.Errorf("compiled:\n%s", c.source)
		} else if !strings.Contains(failure, c.want) {
			t.Errorf("got %q, want %q", failure, c.want)
		}
	}
}

// Committed command buffers run one after another, without anyone waiting for the first.
func TestOrder(t *testing.T) {
	g := newGPU(t, `#include <metal_stdlib>
using namespace metal;
kernel void step(device uint *x [[buffer(0)]], constant uint &k [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    x[i] = x[i] * 3 + k;
}
`, precise)
	const n = 5000
	b := buffer(g, make([]uint32, n))
	var want uint32
	var last id
	for k := range uint32(40) {
		last = g.encode(command{"step", line(n), line(256), 0, []any{b, k}}, command{"step", line(n), line(64), 0, []any{b, k + 1}})
		objc.sendVoid(last, objc.sel("commit"))
		want = (want*3+k)*3 + k + 1
	}
	objc.sendVoid(last, objc.sel("waitUntilCompleted"))
	if s := count(last, "status"); s != 4 {
		t.Fatalf("status %d", s)
	}
	for i, v := range contents[uint32](b, n) {
		if v != want {
			t.Fatalf("x[%d] = %d, want %d", i, v, want)
		}
	}
	if start, end := objc.double(last, objc.sel("GPUStartTime")), objc.double(last, objc.sel("GPUEndTime")); start <= 0 || end < start {
		t.Errorf("GPU time from %v to %v", start, end)
	}
}

func TestStatus(t *testing.T) {
	g := newGPU(t, saxpy, precise)
	b := buffer(g, make([]float32, 64))
	cb := g.encode(command{"saxpy", line(64), line(64), 0, []any{b, b, []uint32{64, 0}}})
	if s := count(cb, "status"); s != 0 {
		t.Errorf("status %d before commit", s)
	}
	if objc.double(cb, objc.sel("GPUEndTime")) != 0 {
		t.Error("an end before the beginning")
	}
	objc.sendVoid(cb, objc.sel("commit"))
	if s := count(cb, "status"); s < 2 {
		t.Errorf("status %d after commit", s)
	}
	objc.sendVoid(cb, objc.sel("waitUntilCompleted"))
	if s := count(cb, "status"); s != 4 {
		t.Errorf("status %d at the end", s)
	}
}

// An access outside of a buffer is an error of the command buffer that names kernel, buffer, byte,
// threadgroup and thread; the process lives on, and so does Go's own handling of faults.
func TestOutOfBounds(t *testing.T) {
	g := newGPU(t, `// oob.metal
#include <metal_stdlib>
using namespace metal;
kernel void reads(device float *y [[buffer(0)]], device const float *x [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    y[i] = x[i + 1];
}
kernel void writes(device float *y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    y[i + 16] = simd_sum(1.0f);
}
kernel void far(device float *y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[100000000000ul] = i; }
`, precise)
	y, x := buffer(g, make([]float32, 64)), buffer(g, make([]float32, 64))
	for _, c := range []struct {
		command command
		want    string
	}{
		{command{"reads", line(64), line(32), 0, []any{y, x}}, "kernel reads (oob.metal:4): access to byte 256 of buffer(1) x, which has 256 bytes; threadgroup [1 0 0], thread [31 0 0]"},
		{command{"writes", line(64), line(32), 0, []any{y}}, "kernel writes (oob.metal:7): access to byte 316 of buffer(0) y, which has 256 bytes; threadgroup [1 0 0], thread [31 0 0]"},
		{command{"far", line(1), line(1), 0, []any{y}}, "far from every bound buffer; threadgroup [0 0 0], thread [0 0 0]"},
	} {
		for range 3 {
			if got := g.run(c.command); !strings.HasSuffix(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		}
		g.must(command{"reads", line(63), line(32), 0, []any{y, x}})
	}
	defer func() {
		if recover() == nil {
			t.Error("Go's own nil dereference was lost")
		}
	}()
	var p *int
	*p = 1
}

func TestErrorIsOfOneCommandBuffer(t *testing.T) {
	g := newGPU(t, saxpy, precise)
	b, small := buffer(g, make([]float32, 4096)), buffer(g, make([]float32, 4))
	bad := g.encode(command{"saxpy", line(4096), line(64), 0, []any{b, small, []uint32{4096, 0}}})
	good := g.encode(command{"saxpy", line(4096), line(64), 0, []any{b, b, []uint32{4096, 0}}})
	for _, cb := range []id{bad, good} {
		objc.sendVoid(cb, objc.sel("commit"))
	}
	objc.sendVoid(good, objc.sel("waitUntilCompleted"))
	err := send(bad, "error")
	if count(bad, "status") != 5 || count(good, "status") != 4 || send(good, "error") != 0 {
		t.Fatalf("statuses %d and %d", count(bad, "status"), count(good, "status"))
	}
	if domain, code := text(send(err, "domain")), count(err, "code"); domain != "MTLCommandBufferErrorDomain" || code != 3 {
		t.Errorf("error %s %d", domain, code)
	}
	if d := text(send(err, "description")); !strings.HasPrefix(d, "Error Domain=MTLCommandBufferErrorDomain Code=3 \"kernel saxpy") {
		t.Errorf("description %s", d)
	}
}

// Names that are newer than the language version are errors, and __METAL_VERSION__ tells it.
func TestLanguageVersion(t *testing.T) {
	metal(t)
	d := objc.device()
	defer release(d)
	for _, c := range []struct {
		version uint64
		body    string
		want    string // in the error; empty: compiles
	}{
		{3 << 16, "bfloat b = bfloat(x[0]); x[0] = float(b);", "program_source:4:3: error: a name that Metal 3.0 does not have"},
		{3<<16 | 1, "bfloat b = bfloat(x[0]); x[0] = float(b);", ""},
		{2<<16 | 4, "reinterpret_cast<device atomic_float *>(x);", "program_source:4:27: error: a name that Metal 2.4 does not have"},
		{2<<16 | 2, "simdgroup_float8x8 m; simdgroup_load(m, x);", "program_source:4:3: error: a name that Metal 2.2 does not have"},
		{3 << 16, "static_assert(__METAL_VERSION__ == 300);", ""},
		{3<<16 | 2, "static_assert(__METAL_VERSION__ == 320);", ""},
	} {
		o := send(objc.class("MTLCompileOptions"), "new")
		objc.sendUint(o, objc.sel("setLanguageVersion:"), c.version)
		var err id
		lib := objc.library(d, objc.sel("newLibraryWithSource:options:error:"),
			str("#include <metal_stdlib>\nusing namespace metal;\nkernel void f(device float *x [[buffer(0)]]) {\n  "+c.body+"\n}\n"), o, &err)
		failure := text(send(err, "localizedDescription"))
		if (lib == 0) != (c.want != "") || !strings.Contains(failure, c.want) {
			t.Errorf("%s in %#x: %q, want %q", c.body, c.version, failure, c.want)
		}
		if lib != 0 {
			release(lib)
		}
		release(o)
	}
}
