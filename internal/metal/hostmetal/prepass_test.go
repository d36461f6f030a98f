package hostmetal

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	s, err := parse(`// norm.metal
#include <metal_stdlib>
using namespace metal;
#define SUM(x) \
    simd_sum(x)
struct Args { uint n; };
constant constexpr uint rows = 4;
inline float inner(float v) { return SUM(v); }
inline float outer(float v) { return inner(v); }
template <typename T, uint N>
[[kernel, max_total_threads_per_threadgroup(256)]] void norm(
    device T *out [[buffer(0)]], constant const Args &args [[buffer(2)]],
    threadgroup vec<float, 4> *shared [[threadgroup(1)]], uint2 at [[thread_position_in_grid]]) {
    threadgroup float a[N][rows], b[N];
    threadgroup float *p = a[0];
    out[at.x] = T(outer(p[at[0]]));
}
kernel void plain(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = 1; }
template [[host_name("norm_f32")]] [[kernel]] decltype(norm<float, 4>) norm<float, 4>;
template [[host_name("norm_f16")]] kernel void norm<half, 2>(device half *, constant Args &,
    threadgroup float4 *, uint2);
`)
	if err != nil {
		t.Fatal(err)
	}
	if s.file != "norm.metal" || len(s.kernels) != 2 || len(s.exports) != 3 {
		t.Fatalf("file %s, kernels %v, exports %v", s.file, s.kernels, s.exports)
	}
	norm, plain := s.kernels[0], s.kernels[1]
	if !norm.syncs || !norm.staticTG || !norm.template || norm.maxThreads != 256 || norm.line != 11 {
		t.Errorf("norm: %+v", norm)
	}
	if plain.syncs || plain.staticTG || plain.template {
		t.Errorf("plain: %+v", plain)
	}
	want := []param{{"out", "device", false, "buffer", 0}, {"args", "constant", true, "buffer", 2},
		{"shared", "threadgroup", false, "threadgroup", 1}, {"at", "", false, "thread_position_in_grid", 0}}
	for i, p := range norm.params {
		if p != want[i] {
			t.Errorf("parameter %d: %+v, want %+v", i, p, want[i])
		}
	}
	for i, e := range []export{{"norm_f32", "norm<float, 4>", "norm", 19}, {"norm_f16", "norm<half, 2>", "norm", 20}, {"plain", "plain", "plain", 18}} {
		if s.exports[i] != e {
			t.Errorf("export %+v, want %+v", s.exports[i], e)
		}
	}
	lines := strings.Split(s.text, "\n")
	for n, want := range map[int]string{
		11: "static",
		12: "constant       Args &args",
		14: "MSL_TG_VAR(a, float[N][rows]);MSL_TG_VAR(b, float[N]);",
		15: "threadgroup float *p = a[0];",
		18: "kernel void plain(device float *x",
		19: "",
		21: "",
	} {
		if got := lines[n-1]; !strings.Contains(got, want) || want == "" && strings.TrimSpace(got) != "" {
			t.Errorf("line %d: %q, want %q", n, got, want)
		}
	}
}

// No text may break the pre-pass; what it accepts keeps its lines.
func FuzzParse(f *testing.F) {
	f.Add(saxpy)
	f.Add(simdSource)
	for _, s := range []string{"kernel", "kernel void f(", "[[kernel", "[[kernel]] void f", "template [[host_name(", "template kernel f<", "threadgroup", "{threadgroup ;",
		"{threadgroup float a[", "kernel void f(device float *x [[buffer(", "kernel void f(,)", "kernel void f(x [[)", "kernel void f() {", "#", "#define", "#define x \\\n", "/*", "\"", "'\\", "a[b[c]]", "]]", "const constant", "template [[kernel]] x<y>;"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parse(text)
		if err != nil {
			return
		}
		if got, want := strings.Count(s.text, "\n"), strings.Count(text, "\n"); got != want {
			t.Errorf("%d lines became %d", want, got)
		}
		s.cxx(dialect{})
	})
}
