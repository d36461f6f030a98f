package hostmetal

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"llmrun/internal/num"
)

// unary applies functions of one float; which function is the argument f.
const unary = `// unary.metal
#include <metal_stdlib>
using namespace metal;

kernel void unary(device float *y [[buffer(0)]], device const float *x [[buffer(1)]], constant uint &f [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
    float v = x[i], c;
    switch (f) {
    case 0: y[i] = exp(v); break;
    case 1: y[i] = exp2(v); break;
    case 2: y[i] = exp10(v); break;
    case 3: y[i] = log(v); break;
    case 4: y[i] = log2(v); break;
    case 5: y[i] = log10(v); break;
    case 6: y[i] = sin(v); break;
    case 7: y[i] = cos(v); break;
    case 8: y[i] = tan(v); break;
    case 9: y[i] = tanh(v); break;
    case 10: y[i] = sinh(v); break;
    case 11: y[i] = cosh(v); break;
    case 12: y[i] = sqrt(v); break;
    case 13: y[i] = rsqrt(v); break;
    case 14: y[i] = round(v); break;
    case 15: y[i] = sincos(v, c) + c; break;
    case 16: y[i] = precise::tanh(v); break;
    case 17: y[i] = fast::tanh(v); break;
    case 18: y[i] = divide(1.0, v); break;
    case 19: y[i] = v * 0.5; break;
    }
}

kernel void power(device float *y [[buffer(0)]], device const float *a [[buffer(1)]], device const float *b [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
    y[i] = pow(a[i], b[i]);
}
`

// The float64 functions that the float ones must round to.
var unaryOracle = []func(float64) float64{
	math.Exp, math.Exp2, func(x float64) float64 { return math.Pow(10, x) }, math.Log, math.Log2, math.Log10,
	math.Sin, math.Cos, math.Tan, math.Tanh, math.Sinh, math.Cosh, math.Sqrt,
	func(x float64) float64 { return 1 / math.Sqrt(x) }, math.Round,
}

// arguments are edges, then n floats of every magnitude, of every exponent down to denormals.
func arguments(n int) []float32 {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	x := []float32{0, float32(math.Copysign(0, -1)), 1, -1, 0.5, 2.5, -2.5, 88.72, 88.73, -87.33, -103.97, -104, 127, 128, -149, -150, 38.53, 38.54,
		9.01, 9.02, 1e-5, 3.1415927, 1.5707964, 1e5, 1048575, 1048576, 1e10, 16367173, 3.4028235e38, 1e-45, 1.17549435e-38,
		float32(math.SmallestNonzeroFloat32), inf, -inf, nan}
	r := rand.New(rand.NewPCG(1, 2))
	for range n {
		x = append(x, float32(r.NormFloat64()*math.Exp(r.Float64()*12-6)), math.Float32frombits(r.Uint32()&^(1<<30)), math.Float32frombits(r.Uint32()))
	}
	return x
}

// ulps is the distance from got to the float64 want in units of the float's last place.
func ulps(got float32, want float64) float64 {
	if math.IsNaN(want) {
		if got != got {
			return 0
		}
		return math.Inf(1)
	}
	if math.IsInf(float64(got), 0) || math.IsInf(float64(float32(want)), 0) {
		if got == float32(want) {
			return 0
		}
		return math.Inf(1)
	}
	return math.Abs(float64(got)-want) / ulp(want)
}
func ulp(x float64) float64 {
	_, e := math.Frexp(x)
	return math.Ldexp(1, max(e-24, -149))
}

// Precise functions err by rounding alone: the double in between is good to 2⁻²⁸ relative, 1/16 of
// the float's half ulp, and the oracle's own error is far below. And they have the same bits
// with every compiler (TestPreciseBits).
func TestPreciseFunctions(t *testing.T) {
	g := newGPU(t, unary, precise)
	x := arguments(20000)
	in, out := buffer(g, x), buffer(g, x)
	for f, oracle := range unaryOracle {
		g.must(command{"unary", line(len(x)), line(256), 0, []any{out, in, uint32(f)}})
		worst, at := 0.0, 0
		for i, got := range contents[float32](out, len(x)) {
			if e := ulps(got, oracle(float64(x[i]))); !(e <= worst) {
				worst, at = e, i
			}
		}
		if !(worst <= 0.53) {
			t.Errorf("function %d: f(%v) = %v, want %v: %.3f ulp", f, x[at], contents[float32](out, len(x))[at], oracle(float64(x[at])), worst)
		}
	}
}

func TestPower(t *testing.T) {
	g := newGPU(t, unary, precise)
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	edges := []float32{0, float32(math.Copysign(0, -1)), 1, -1, 2, -2, 3, -3, 0.5, -0.5, inf, -inf, nan, 1e30, 1e-30}
	var a, b []float32
	for _, p := range edges {
		for _, q := range edges {
			a, b = append(a, p), append(b, q)
		}
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range 10000 {
		a, b = append(a, float32(math.Exp(r.NormFloat64()*5))), append(b, float32(r.NormFloat64()*8))
	}
	out := buffer(g, a)
	g.must(command{"power", line(len(a)), line(256), 0, []any{out, buffer(g, a), buffer(g, b)}})
	for i, got := range contents[float32](out, len(a)) {
		want := math.Pow(float64(a[i]), float64(b[i]))
		if e := ulps(got, want); !(e <= 0.53) || math.Signbit(float64(got)) != math.Signbit(want) && want == want {
			t.Errorf("pow(%v, %v) = %v, want %v", a[i], b[i], got, want)
		}
	}
}

// Safe math has the same bits with every compiler, C library and processor.
func TestPreciseBits(t *testing.T) {
	g := newGPU(t, unary+`
template <typename T>
[[kernel]] void mixture(device uint *y [[buffer(0)]], device const float *x [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    T a = T(x[i]), b = T(x[i + 1]), c = T(x[i + 2]);
    float4 v = float4(float(a + b), float(a * b), float(a / b - c), float(fma(a, b, c)));
    v = v * 1.7 + float4(float2(float(a), float(b)), v.zw) / 3.0;
    float s = simd_sum(v.x + v.y * v.z - v.w);
    y[i] = as_type<uint>(s * precise::rsqrt(fabs(v.x) + 1.0) + sincos(v.y, s) * s);
    if ((y[i] & 0x7fffffff) > 0x7f800000) y[i] = 0x7fc00000;
}
template [[host_name("mixture_f32")]] [[kernel]] decltype(mixture<float>) mixture<float>;
template [[host_name("mixture_f16")]] [[kernel]] decltype(mixture<half>) mixture<half>;
template [[host_name("mixture_bf16")]] [[kernel]] decltype(mixture<bfloat>) mixture<bfloat>;
`, precise)
	x := arguments(3000)
	n := len(x) - 2
	in, out := buffer(g, x), buffer(g, x)
	h := fnv.New64a()
	sum := func(bits []uint32) {
		for _, b := range bits {
			if b&0x7fffffff > 0x7f800000 {
				b = 0x7fc00000 // the sign and payload of a NaN are free
			}
			binary.Write(h, binary.LittleEndian, b)
		}
	}
	for f := range 16 {
		g.must(command{"unary", line(n), line(256), 0, []any{out, in, uint32(f)}})
		sum(contents[uint32](out, n))
	}
	for _, k := range []string{"mixture_f32", "mixture_f16"} {
		g.must(command{k, line(n), line(128), 0, []any{out, in}})
		sum(contents[uint32](out, n))
	}
	if got, want := h.Sum64(), uint64(0xda0c293ea05d95ea); got != want {
		t.Errorf("bits %#x, want %#x", got, want)
	}
}

// The formulas of fast math: tanh overflows to NaN, its reciprocal is flushed just before, and
// denormals are zero. Named precise, a function stays precise.
func TestFastFunctions(t *testing.T) {
	for _, m := range []mode{fast, unset} {
		g := newGPU(t, unary, m)
		x := []float32{0.5, 20, 43.8, 44.5, 1e30, 1e-39}
		in, out := buffer(g, x), buffer(g, x)
		value := func(f uint32) []float32 {
			g.must(command{"unary", line(len(x)), line(32), 0, []any{out, in, f}})
			return contents[float32](out, len(x))
		}
		for _, f := range []uint32{9, 17} {
			y := value(f)
			if math.Abs(float64(y[0])-math.Tanh(0.5)) > 1e-6 || y[1] != 1 || y[2] != 0 || y[3] == y[3] || y[4] == y[4] {
				t.Errorf("fast tanh(%v) = %v", x, y)
			}
		}
		if y := value(16); y[3] != 1 || y[4] != 1 {
			t.Errorf("precise tanh(%v) = %v", x, y)
		}
		if y := value(19); y[5] != 0 {
			t.Errorf("a denormal was not flushed: %v", y[5])
		}
	}
	g := newGPU(t, unary, precise)
	x := []float32{1e-39, 100}
	in, out := buffer(g, x), buffer(g, x)
	g.must(command{"unary", line(2), line(2), 0, []any{out, in, uint32(19)}})
	if y := contents[float32](out, 2); y[0] != x[0]/2 {
		t.Errorf("safe math flushed a denormal: %v", y[0])
	}
	g.must(command{"unary", line(2), line(2), 0, []any{out, in, uint32(9)}})
	if y := contents[float32](out, 2); y[1] != 1 {
		t.Errorf("safe tanh(100) = %v", y[1])
	}
}

// Every operation on halves rounds once, to nearest even. Each is held to float64, where sum,
// product and fma of halves are exact or, in the quotient and the fma, too fine to matter: for
// those the nearest half is found by comparing exactly.
func TestHalfOperations(t *testing.T) {
	var source strings.Builder
	source.WriteString("#include <metal_stdlib>\nusing namespace metal;\n")
	source.WriteString(`kernel void halves(device half *y [[buffer(0)]], device const half *x [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    half a = x[3 * i], b = x[3 * i + 1], c = x[3 * i + 2], r;
    y += 8 * i;
    y[0] = a + b; y[1] = a - b; y[2] = a * b; y[3] = a / b; y[4] = fma(a, b, c); y[5] = sqrt(a);
    r = a; r += b; r *= c; y[6] = r;
    half4 v = half4(a, b, c, 2.0h) * half4(b); y[7] = v.z;
}`)
	g := newGPU(t, source.String(), precise)
	r := rand.New(rand.NewPCG(5, 6))
	const n = 40000
	x := make([]uint16, 3*n)
	for i := range x {
		x[i] = uint16(r.Uint32())
		if r.IntN(4) > 0 { // near each other, so that sums cancel and products meet them
			x[i] = x[i]&0x83ff | uint16(12+r.IntN(6))<<10
		}
	}
	out := buffer(g, make([]uint16, 8*n))
	g.must(command{"halves", line(n), line(256), 0, []any{out, buffer(g, x)}})
	half := func(v float64) uint16 { return num.Float32ToFloat16(float32(oddFloat32(v, 0))) }
	for i, y := range contents[[8]uint16](out, n) {
		a, b, c := float64(num.Float16ToFloat32(x[3*i])), float64(num.Float16ToFloat32(x[3*i+1])), float64(num.Float16ToFloat32(x[3*i+2]))
		p, s := a*b, a*b+c
		v := s - p
		sum := float64(num.Float16ToFloat32(half(a + b)))
		want := [8]uint16{half(a + b), half(a - b), half(p), half(a / b), num.Float32ToFloat16(oddFloat32(s, (p-(s-v))+(c-v))),
			half(math.Sqrt(a)), half(sum * c), half(c * b)}
		for k := range want {
			got, w := num.Float16ToFloat32(y[k]), num.Float16ToFloat32(want[k])
			if y[k] != want[k] && (got == got || w == w) {
				t.Fatalf("operation %d on %v %v %v: %v, want %v", k, a, b, c, got, w)
			}
		}
	}
}

// oddFloat32 rounds v + rest, rest being below v's last place, to float32 so that rounding the
// result to half is exact: towards zero, with the last bit set if anything was lost.
func oddFloat32(v, rest float64) float32 {
	if v != v || math.IsInf(v, 0) {
		return float32(v)
	}
	f := float32(v)
	if d := float64(f) - v; (d > 0) == (v > 0) && d != 0 || d == 0 && rest != 0 && (rest > 0) != (v > 0) {
		f = math.Nextafter32(f, 0)
	}
	if float64(f) != v || rest == rest && rest != 0 {
		f = math.Float32frombits(math.Float32bits(f) | 1)
	}
	return f
}
