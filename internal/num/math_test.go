package num

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// exactFMA rounds a·b + c once, from a sum of unlimited precision.
func exactFMA(a, b, c float32) float32 {
	p := new(big.Float).SetPrec(2000).Mul(big.NewFloat(float64(a)), big.NewFloat(float64(b)))
	p.Add(p, big.NewFloat(float64(c)))
	f, _ := p.Float32()
	return f
}

func TestFMA(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	check := func(a, b, c float32) {
		t.Helper()
		if want, got := exactFMA(a, b, c), FMA(a, b, c); want != got {
			t.Fatalf("FMA(%x, %x, %x): want %x, got %x", a, b, c, want, got)
		}
	}
	anyFloat := func() float32 {
		for {
			if f := math.Float32frombits(r.Uint32()); !math.IsInf(float64(f), 0) && f == f {
				return f
			}
		}
	}
	hard := 0 // arguments for which the short form float32(float64(a)*float64(b)+float64(c)) is wrong
	for range 200000 {
		check(anyFloat(), anyFloat(), anyFloat())
		// A product near a tie of the sum: c = 2^e, a·b about half an ulp of c, and a little more or less.
		a := 1 + float32(r.IntN(1<<23))*0x1p-23
		b := float32(1/float64(a)) * 0x1p-24
		c := 1 + float32(r.IntN(1<<10))*0x1p-23
		scale := float32(math.Ldexp(1, r.IntN(60)-30))
		for _, b := range []float32{b, math.Nextafter32(b, 1), math.Nextafter32(b, 0), -b, -math.Nextafter32(b, 1)} {
			check(a*scale, b, c*scale)
			if FMA(a, b, c) != float32(float64(a)*float64(b)+float64(c)) {
				hard++
			}
		}
		// Results among the subnormals.
		check(a*0x1p-100, b, float32(r.IntN(1<<12))*0x1p-149)
	}
	if hard == 0 {
		t.Error("no argument needed the slow path: this test could not have failed there")
	}
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range [][4]float32{{inf, 1, 1, inf}, {1, 1, -inf, -inf}, {math.MaxFloat32, 2, 0, inf}, {0, 5, 0, 0}, {-1, 1, 1, 0}} {
		if got := FMA(c[0], c[1], c[2]); got != c[3] {
			t.Errorf("FMA(%v, %v, %v): want %v, got %v", c[0], c[1], c[2], c[3], got)
		}
	}
	for _, c := range [][3]float32{{inf, 0, 1}, {inf, 1, -inf}, {nan, 1, 1}, {1, 1, nan}} {
		if got := FMA(c[0], c[1], c[2]); got == got {
			t.Errorf("FMA(%v, %v, %v): want NaN, got %v", c[0], c[1], c[2], got)
		}
	}
}

// The functions are held to math's, which are good to an ulp of float64; the bound is the one that the package states.
func TestFunctions(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, f := range []struct {
		name     string
		got      func(float64) float64
		want     func(float64) float64
		from, to float64
		absolute float64 // near a zero, only so much is asked for
	}{
		{"exp", Exp, math.Exp, -708, 709, 0},
		{"tanh", Tanh, math.Tanh, -25, 25, 0},
		{"tanh", Tanh, math.Tanh, -2e-3, 2e-3, 0},
		{"erf", Erf, math.Erf, -7, 7, 0},
		{"log", Log, math.Log, 1e-3, 1e7, 1e-15},
		{"10000^", func(x float64) float64 { return Pow(10000, x) }, func(x float64) float64 { return math.Pow(10000, x) }, 0, 1, 0},
		{"sin", Sin, math.Sin, -8, 8, 1e-15},
		{"cos", Cos, math.Cos, -131072, 131072, 1e-15},
		{"sin", Sin, math.Sin, -131072, 131072, 1e-15},
	} {
		// tanh near 1e-4 loses e-1's leading digits: 2^-53/2e-4 is the worst.
		const relative = 1e-12
		worst := 0.0
		for range 200000 {
			x := f.from + (f.to-f.from)*r.Float64()
			want, got := f.want(x), f.got(x)
			if diff := math.Abs(got - want); !(diff <= math.Abs(want)*relative+f.absolute) {
				t.Fatalf("%s(%v): want %v, got %v", f.name, x, want, got)
			} else if want != 0 {
				worst = max(worst, diff/math.Abs(want))
			}
		}
		t.Logf("%s on [%g, %g]: worst relative difference %.1e", f.name, f.from, f.to, worst)
	}
	for _, x := range []float64{math.Inf(1), math.NaN(), math.Inf(-1), 0, 1000, -1000} {
		for name, pair := range map[string][2]float64{"exp": {Exp(x), math.Exp(x)}, "tanh": {Tanh(x), math.Tanh(x)}, "erf": {Erf(x), math.Erf(x)}} {
			if pair[0] != pair[1] && !(math.IsNaN(pair[0]) && math.IsNaN(pair[1])) {
				t.Errorf("%s(%v): want %v, got %v", name, x, pair[1], pair[0])
			}
		}
	}
}

// The bits of the functions, so that another architecture cannot quietly differ.
func TestBits(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	hash := uint64(14695981039346656037)
	for range 20000 {
		x := (r.Float64() - 0.5) * 40
		for _, v := range []float64{Exp(x), Tanh(x), Tanh(x * 1e-3), Erf(x / 8), Sin(x * 1000), Cos(x * 1000)} {
			hash = (hash ^ math.Float64bits(v)) * 1099511628211
		}
	}
	if want := uint64(0x893438220210d058); hash != want {
		t.Errorf("want %#x, got %#x", want, hash)
	}
}
