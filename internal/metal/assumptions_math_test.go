package metal

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"llmrun/internal/num"
)

// floats32 are n random floats of all exponents from 2^low to 2^high, of both signs.
func floats32(r *rand.Rand, n, low, high int) []uint32 {
	x := make([]uint32, n)
	for i := range x {
		v := math.Ldexp(1+r.Float64(), low+r.IntN(high-low))
		if r.IntN(2) == 0 {
			v = -v
		}
		x[i] = math.Float32bits(float32(v))
	}
	return x
}

// TestAssumeRounding: under safe math + - · / √ and fma of float are rounded correctly, where no subnormal is near.
func TestAssumeRounding(t *testing.T) {
	const n = 1 << 14
	l := newLab(t)
	l.kernels(`kernel void rounding(device float *out [[buffer(0)]], device const float *a [[buffer(1)]], device const float *b [[buffer(2)]],
                  device const float *c [[buffer(3)]], constant uint &n [[buffer(4)]], uint i [[thread_position_in_grid]]) {
    out[i] = a[i] + b[i];
    out[n + i] = a[i] - b[i];
    out[2 * n + i] = a[i] * b[i];
    out[3 * n + i] = a[i] / b[i];
    out[4 * n + i] = precise::sqrt(abs(a[i]));
    out[5 * n + i] = fma(a[i], b[i], c[i]);
}`, "rounding")
	r := rand.New(rand.NewPCG(8, 1))
	// The widest exponents whose products and quotients are normal; half of the pairs are close enough for sums to round.
	a, b, c := floats32(r, n, -60, 60), floats32(r, n, -60, 60), floats32(r, n, -60, 60)
	for i := range n / 2 {
		e := math.Float32frombits(a[i])
		b[i] = math.Float32bits(float32(r.NormFloat64()*8) * e)
		c[i] = math.Float32bits(float32(r.NormFloat64()) * e * math.Float32frombits(b[i]))
		if x := math.Float32frombits(c[i]); !(math.Abs(float64(x)) > 0x1p-100) {
			c[i] = math.Float32bits(1)
		}
	}
	out := l.words(make([]uint32, 6*n))
	l.run("rounding", size{n, 1, 1}, size{256, 1, 1}, n, out, l.words(a), l.words(b), l.words(c))
	names := []string{"+", "-", "*", "/", "sqrt", "fma"}
	for i, bits := range l.read(out) {
		x, y, z := math.Float32frombits(a[i%n]), math.Float32frombits(b[i%n]), math.Float32frombits(c[i%n])
		want := []float32{x + y, x - y, x * y, x / y, float32(math.Sqrt(math.Abs(float64(x)))), num.FMA(x, y, z)}[i/n]
		if math.Abs(float64(want)) < 0x1p-120 || math.IsInf(float64(want), 0) {
			continue
		}
		if bits != math.Float32bits(want) {
			t.Fatalf("%g %s %g (%g): got %g, want %g", x, names[i/n], y, z, math.Float32frombits(bits), want)
		}
	}
}

// TestAssumePrecise: the precise functions keep to the table of the Metal Shading Language Specification (8.1), over all of the range that
// shaders reach. An ulp is that of the wanted value; results below the normal ones may be flushed.
func TestAssumePrecise(t *testing.T) {
	const n = 1 << 15
	l := newLab(t)
	l.kernels(`kernel void functions(device float *out [[buffer(0)]], device const float *x [[buffer(1)]], device const float *wide [[buffer(2)]],
                      constant uint &n [[buffer(3)]], uint i [[thread_position_in_grid]]) {
    out[i] = precise::exp(x[i]);
    out[n + i] = precise::tanh(x[i]);
    out[2 * n + i] = precise::rsqrt(abs(wide[i]));
    out[3 * n + i] = tanh(x[i]);
}`, "functions")
	r := rand.New(rand.NewPCG(8, 2))
	x, wide := floats32(r, n, -20, 7), floats32(r, n, -120, 120)
	out := l.words(make([]uint32, 4*n))
	l.run("functions", size{n, 1, 1}, size{256, 1, 1}, n, out, l.words(x), l.words(wide))
	functions := []struct {
		name string
		ulp  float64
		of   func(x float64) float64
		at   []uint32
	}{
		// The table has rsqrt rounded correctly; the oracle counts on no more than the roundings of √ and of a division.
		{"precise::exp", 4, math.Exp, x}, {"precise::tanh", 5, math.Tanh, x},
		{"precise::rsqrt", 1.5, func(x float64) float64 { return 1 / math.Sqrt(math.Abs(x)) }, wide},
		{"tanh under safe math", 5, math.Tanh, x},
	}
	worst := make([]float64, len(functions))
	for i, bits := range l.read(out) {
		f, arg := functions[i/n], float64(math.Float32frombits(functions[i/n].at[i%n]))
		want, got := f.of(arg), float64(math.Float32frombits(bits))
		if want > math.MaxFloat32 {
			if !math.IsInf(got, 1) {
				t.Errorf("%s(%g): got %g, want +Inf", f.name, arg, got)
			}
			continue
		}
		if math.Abs(want) < 0x1p-126 {
			if !(math.Abs(got) <= 0x1p-126) {
				t.Errorf("%s(%g): got %g, want %g or 0", f.name, arg, got, want)
			}
			continue
		}
		_, e := math.Frexp(want)
		ulps := math.Abs(got-want) / math.Ldexp(1, e-24)
		if !(ulps <= f.ulp) {
			t.Fatalf("%s(%g): got %g, want %g: %.2f ulp, the table allows %g", f.name, arg, got, want, ulps, f.ulp)
		}
		worst[i/n] = max(worst[i/n], ulps)
	}
	for i, f := range functions {
		t.Logf("%-21s %.3f ulp at worst, %g allowed", f.name, worst[i], f.ulp)
	}
}

// TestAssumeNonFinite: under safe math NaN and infinities are what IEEE 754 makes of them, and comparisons with NaN are false.
func TestAssumeNonFinite(t *testing.T) {
	l := newLab(t)
	l.kernels(`kernel void special(device float *out [[buffer(0)]], device const float *x [[buffer(1)]], constant uint &n [[buffer(2)]],
                    uint i [[thread_position_in_grid]]) {
    float nan = x[0], inf = x[1], one = x[2], zero = x[3];
    float all[15] = {nan + one, inf - inf, one / zero, -one / zero, zero / zero, fma(inf, zero, one), precise::exp(nan), precise::exp(-inf),
        precise::exp(inf), precise::tanh(inf), precise::tanh(nan), precise::rsqrt(inf), nan > one ? one : nan < one ? one : zero, max(one, inf),
        precise::exp(-3.4028235e38f * one)};
    out[i] = all[i];
}`, "special")
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	in := l.buffer(num.Float32, 4)
	num.PutFloat32s(num.Float32, l.host(in), []float32{nan, inf, 1, 0})
	out := l.buffer(num.Float32, 15)
	l.run("special", size{15, 1, 1}, size{15, 1, 1}, 0, out, in)
	for i, want := range []float32{nan, nan, inf, -inf, nan, nan, nan, 0, inf, 1, nan, 0, 0, inf, 0} {
		if got := floats(t, out)[i]; got != want && !(got != got && want != want) {
			t.Errorf("case %d: got %v, want %v", i, got, want)
		}
	}
}

// TestAssumeHalf: every half, subnormal ones too, becomes the float that it is, and a float becomes the nearest half, ties to even, from
// 65520 on infinity. Shifted up, a bfloat16 is a float; its subnormal ones may be flushed.
func TestAssumeHalf(t *testing.T) {
	const n = 1 << 16
	l := newLab(t)
	l.kernels(`kernel void widen(device float *out [[buffer(0)]], device float *brain [[buffer(1)]], device const half *h [[buffer(2)]],
                  device const ushort *b [[buffer(3)]], constant uint &n [[buffer(4)]], uint i [[thread_position_in_grid]]) {
    out[i] = float(h[i]);
    brain[i] = as_type<float>(uint(b[i]) << 16);
}
kernel void narrow(device half *out [[buffer(0)]], device const float *x [[buffer(1)]], constant uint &n [[buffer(2)]],
                   uint i [[thread_position_in_grid]]) {
    out[i] = half(x[i]);
}`, "widen", "narrow")
	h, b, x := l.buffer(num.Float16, n), l.buffer(num.BFloat16, n), l.buffer(num.Float32, n)
	halves, brains, singles := l.host(h), l.host(b), l.host(x)
	r := rand.New(rand.NewPCG(8, 3))
	for i := range n {
		bits := uint16(i)
		binary.LittleEndian.PutUint16(halves[2*i:], bits)
		binary.LittleEndian.PutUint16(brains[2*i:], bits)
		low, high := float64(num.Float16ToFloat32(bits)), float64(num.Float16ToFloat32(bits+1))
		between := low + (high-low)/2 // a tie, where the two are neighbours
		if i%4 == 0 {
			between = low + (high-low)*r.Float64()
		}
		if math.Abs(low) == 65504 {
			between = math.Copysign(65520, low)
		}
		num.PutFloat32(num.Float32, singles, i, float32(between))
	}
	wide, brain, out := l.buffer(num.Float32, n), l.buffer(num.Float32, n), l.buffer(num.Float16, n)
	l.run("widen", size{n, 1, 1}, size{256, 1, 1}, n, wide, brain, h, b)
	l.run("narrow", size{n, 1, 1}, size{256, 1, 1}, n, out, x)
	same := func(a, b float32) bool { return a == b || a != a && b != b }
	from, wides, brainsWide, narrows := floats(t, x), floats(t, wide), floats(t, brain), floats(t, out)
	for i := range n {
		if want := num.Float16ToFloat32(uint16(i)); !same(wides[i], want) {
			t.Fatalf("half %#04x: got %g, want %g", i, wides[i], want)
		}
		if want := num.Float16ToFloat32(num.Float32ToFloat16(from[i])); !same(narrows[i], want) {
			t.Fatalf("%g as half: got %g, want %g", from[i], narrows[i], want)
		}
		if want := math.Float32frombits(uint32(i) << 16); !same(brainsWide[i], want) && !(math.Abs(float64(want)) < 0x1p-126 && brainsWide[i] == 0) {
			t.Fatalf("bfloat16 %#04x: got %g, want %g", i, brainsWide[i], want)
		}
	}
}

// TestAssumeBFloat: under MSL 3.1, every bfloat becomes the float that it is, a float becomes the nearest bfloat, ties to even, NaN stays NaN, and
// + - · / of bfloats round once. Subnormal ones may be flushed.
func TestAssumeBFloat(t *testing.T) {
	const n = 1 << 16
	l := lab{t, open(t, Options{Activations: num.BFloat16})}
	l.kernels(`kernel void brains(device bfloat *out [[buffer(0)]], device float *wide [[buffer(1)]], device const bfloat *a [[buffer(2)]],
                   device const bfloat *b [[buffer(3)]], device const float *x [[buffer(4)]], constant uint &n [[buffer(5)]],
                   uint i [[thread_position_in_grid]]) {
    wide[i] = float(a[i]);
    out[i] = bfloat(x[i]);
    out[n + i] = a[i] + b[i];
    out[2 * n + i] = a[i] - b[i];
    out[3 * n + i] = a[i] * b[i];
    out[4 * n + i] = a[i] / b[i];
}`, "brains")
	a, b, x := l.buffer(num.BFloat16, n), l.buffer(num.BFloat16, n), l.buffer(num.Float32, n)
	left, right, singles := l.host(a), l.host(b), l.host(x)
	r := rand.New(rand.NewPCG(8, 4))
	brain := num.BFloat16ToFloat32
	for i := range n {
		bits := uint16(i)
		binary.LittleEndian.PutUint16(left[2*i:], bits)
		// Near enough for the sum to round, and for the product and the quotient to be numbers.
		other := bits&0x7f80 | uint16(r.IntN(1<<7)) | uint16(r.IntN(2))<<15
		if r.IntN(2) == 0 {
			other = 0x3f80 + uint16(r.IntN(1<<10))
		}
		binary.LittleEndian.PutUint16(right[2*i:], other)
		tie := uint32(bits)<<16 | 0x8000
		binary.LittleEndian.PutUint32(singles[4*i:], tie+uint32(r.IntN(3))-1)
	}
	out, wide := l.buffer(num.BFloat16, 5*n), l.buffer(num.Float32, n)
	l.run("brains", size{n, 1, 1}, size{256, 1, 1}, n, out, wide, a, b, x)
	tiny := func(v float32) bool { return math.Abs(float64(v)) < 0x1p-126 }
	same := func(got, want float32) bool {
		return got == want || got != got && want != want || tiny(want) && got == 0
	}
	outs, wides, as, bs, xs := floats(t, out), floats(t, wide), floats(t, a), floats(t, b), floats(t, x)
	for i := range n {
		if want := brain(uint16(i)); !same(wides[i], want) {
			t.Fatalf("bfloat %#04x: got %g, want %g", i, wides[i], want)
		}
		// In float32 the operations round so finely that rounding once more to 8 bits is as good as once: 24 >= 2·8 + 2.
		p, q := as[i], bs[i]
		for k, v := range []float32{xs[i], p + q, p - q, p * q, p / q} {
			if want := brain(num.Float32ToBFloat16(v)); !same(outs[k*n+i], want) && !(k > 0 && (tiny(p) || tiny(q))) && !(tiny(v) && tiny(outs[k*n+i])) {
				t.Fatalf("operation %d on %g and %g (%x): got %g, want %g", k, p, q, xs[i], outs[k*n+i], want)
			}
		}
	}
}

// TestAssumeFastTanh: where fast math is asked for, an unqualified tanh is (t-1)/(t+1), t = exp(2x), in float, though the file's pragma asks for
// safe math: 0 or 1 once t+1 has no normal reciprocal, at 43.67, and NaN once t is infinite, at 44.37. The first story stands on it; the
// host device claims the 0.
func TestAssumeFastTanh(t *testing.T) {
	l := lab{t, open(t, Options{Activations: num.Float32, FastMath: true})}
	l.kernels(`kernel void fast_tanh(device float *out [[buffer(0)]], device const float *x [[buffer(1)]], constant uint &n [[buffer(2)]],
                      uint i [[thread_position_in_grid]]) {
    out[i] = tanh(x[i]);
}`, "fast_tanh")
	in, out := l.buffer(num.Float32, 8), l.buffer(num.Float32, 8)
	args := []float32{-50, -1, 0.5, 15, 43, 44, 44.5, 60}
	num.PutFloat32s(num.Float32, l.host(in), args)
	l.run("fast_tanh", size{8, 1, 1}, size{8, 1, 1}, 0, out, in)
	for i, got := range floats(t, out) {
		x := float64(args[i])
		switch want := math.Tanh(x); {
		case x > 44.37:
			if got == got {
				t.Errorf("tanh(%g): got %g, want NaN", x, got)
			}
		case x > 43.67:
			if got != 0 && !(math.Abs(float64(got)-1) <= 1e-5) {
				t.Errorf("tanh(%g): got %g, want 0 (flushed) or 1", x, got)
			}
			t.Logf("tanh(%g) is %g", x, got)
		case !(math.Abs(float64(got)-want) <= 1e-5): // coarse: what is asked is the formula, not its last bit
			t.Errorf("tanh(%g): got %g, want %g", x, got, want)
		}
	}
}
