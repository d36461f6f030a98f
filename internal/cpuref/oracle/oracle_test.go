package oracle

import (
	"math"
	"math/rand/v2"
	"testing"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

type buffer struct{ dtype num.DType }

func (b buffer) DType() num.DType      { return b.dtype }
func (b buffer) Len() int              { return 0 }
func (b buffer) Host() ([]byte, error) { return nil, nil }

func TestCompare(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		dtype              num.DType
		want, allowed, got float64
		ratio              float64
	}{
		{num.Float32, 1, 0.5, 1.25, 0.5},
		{num.Float32, 1, 0.5, 0, 2},
		{num.Float32, 1, 0, 1, 0},
		{num.Float32, 1, 0, 1 + 0x1p-23, inf},
		{num.Float32, 0, 0, math.Copysign(0, -1), 0},
		{num.Float32, 1, 0.5, nan, inf},
		{num.Float32, 1, inf, nan, inf}, // a NaN where there is none is wrong, whatever is allowed
		{num.Float32, 1, 0.5, inf, inf},
		{num.Float32, 1, inf, 1e30, 0},
		{num.Float32, nan, 0, nan, 0},
		{num.Float32, nan, 0, 1, inf},
		{num.Float32, inf, 0, inf, 0},
		{num.Float32, inf, 0, -inf, inf},
		{num.Float32, inf, 0, nan, inf},
		{num.Float32, inf, 0, math.MaxFloat32, inf},
		{num.Float32, 1e39, 1e32, inf, 0},
		{num.Float32, -1e39, 1e32, inf, inf},
		{num.Float32, 65520, 1, inf, inf},
		{num.Float16, 65520, 1, inf, 0}, // what rounds to infinity in a half
		{num.Float16, 65519, 0.5, inf, inf},
		{num.Float16, 65519, 1, inf, 0},
		{num.Float16, 70000, 16, 65504, 281},
		{num.Float16, -70000, 16, -inf, 0},
	} {
		j := Judged{engine.Operand{Buffer: buffer{c.dtype}, Cols: 2}, []float64{0, c.want}, []float64{0, c.allowed}}
		r := j.Compare([]float64{0, c.got})
		bad, nonFinite := 0, 0
		if c.ratio > 1 {
			bad = 1
		}
		if math.IsNaN(c.got) || math.IsInf(c.got, 0) {
			nonFinite = 1
		}
		if r.WorstRatio != c.ratio || r.Bad != bad || r.OK() != (bad == 0) || r.NonFinite != nonFinite || c.ratio > 0 && r.WorstIndex != 1 {
			t.Errorf("%v: want %g within %g, got %g: want ratio %g, got %+v", c.dtype, c.want, c.allowed, c.got, c.ratio, r)
		}
	}
}

// orders are ways to sum that backends have: one after the other, backwards, by halves, in 32 lanes; with and without fused steps.
var orders = map[string]func(a, b []float32) float32{
	"in order": func(a, b []float32) (s float32) {
		for k := range a {
			s = float32(s + float32(a[k]*b[k]))
		}
		return s
	},
	"backwards, fused": func(a, b []float32) (s float32) {
		for k := len(a) - 1; k >= 0; k-- {
			s = num.FMA(a[k], b[k], s)
		}
		return s
	},
	"by halves": pairwise,
	"32 lanes": func(a, b []float32) (s float32) {
		var lane [32]float32
		for k := range a {
			lane[k%32] = num.FMA(a[k], b[k], lane[k%32])
		}
		for _, l := range lane {
			s = float32(s + l)
		}
		return s
	},
}

func pairwise(a, b []float32) float32 {
	if len(a) == 1 {
		return float32(a[0] * b[0])
	}
	half := len(a) / 2
	return float32(pairwise(a[:half], b[:half]) + pairwise(a[half:], b[half:]))
}

func TestSumBoundsAnyOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	for _, n := range []int{1, 2, 8, 33, 257, 2304} {
		for _, size := range []float64{1, 1e15, 1e-20, 1e-38} { // the products of the last two are subnormal, or their factors
			for _, cancel := range []bool{false, true} {
				a, b := make([]float32, n), make([]float32, n)
				wide := [2][]float64{make([]float64, n), make([]float64, n)}
				for k := range a {
					a[k], b[k] = float32(r.NormFloat64()*size), float32(r.NormFloat64()*size)
					if cancel && k%2 == 1 { // the sum is far smaller than its terms
						a[k], b[k] = a[k-1], -b[k-1]*(1+0x1p-20)
					}
					wide[0][k], wide[1][k] = float64(a[k]), float64(b[k])
				}
				all := dot(measured(wide[0]), measured(wide[1]))
				s, likely := all.worst(0), all.likely(0)
				if likely.v != s.v || !(likely.err <= s.err) || n > 2000 && size == 1 && likely.err > s.err/10 {
					t.Errorf("%d terms: likely %v, worst %v", n, likely, s)
				}
				for name, order := range orders {
					if got := float64(order(a, b)); !(math.Abs(got-s.v) <= likely.err) {
						t.Errorf("%s, %d terms of size %g², cancelling %v: %g strays %g from %g, allowed %g", name, n, size, cancel, got, math.Abs(got-s.v), s.v, likely.err)
					}
				}
			}
		}
	}
}

// Each operation is carried out on operands that stray as far as they may, and its own rounding goes as far as it may: the
// result must be within what approx says.
func TestOperationsBound(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 2))
	operations := []struct {
		name  string
		units float64 // what the operation itself may stray: the accuracies stated at approx
		f     func(x, y float64) float64
		a     func(x, y approx) approx
	}{
		{"add", 1, func(x, y float64) float64 { return x + y }, approx.add},
		{"mul", 1, func(x, y float64) float64 { return x * y }, approx.mul},
		{"div", 1, func(x, y float64) float64 { return x / y }, approx.div},
		{"sqrt", 1, func(x, _ float64) float64 { return math.Sqrt(math.Abs(x)) }, func(x, _ approx) approx { return approx{math.Abs(x.v), x.err}.sqrt() }},
		{"exp", 8, func(x, _ float64) float64 { return math.Exp(x) }, func(x, _ approx) approx { return x.exp() }},
		{"tanh", 10, func(x, _ float64) float64 { return math.Tanh(x) }, func(x, _ approx) approx { return x.tanh() }},
		{"erf", 1, func(x, _ float64) float64 { return math.Erf(x) }, func(x, _ approx) approx { return x.erf() }},
	}
	const slack = 0x1p-50 // relative to all that takes part: float64's own errors, a few last bits
	for range 20000 {
		x := approx{r.NormFloat64() * math.Exp2(float64(r.IntN(10)-5)), 0}
		y := approx{r.NormFloat64() * math.Exp2(float64(r.IntN(10)-5)), 0}
		x.err, y.err = math.Abs(x.v)*math.Exp2(-float64(2+r.IntN(24))), math.Abs(y.v)*math.Exp2(-float64(2+r.IntN(24)))
		for _, op := range operations {
			bound := op.a(x, y)
			for corner := range 8 {
				sign := func(bit int) float64 { return float64(corner>>bit&1*2 - 1) }
				got := op.f(x.v+sign(0)*x.err, y.v+sign(1)*y.err) * (1 + sign(2)*op.units*unit)
				if strayed := math.Abs(got - bound.v); !(strayed <= bound.err+slack*(math.Abs(x.v)+math.Abs(y.v)+math.Abs(bound.v)+bound.err)) {
					t.Fatalf("%s of %v and %v: strays %g from %g, allowed %g", op.name, x, y, strayed, bound.v, bound.err)
				}
			}
		}
	}
}

// What overflows or vanishes on the way must be allowed to, and no more.
func TestEdgesOfFloat32(t *testing.T) {
	for _, x := range []float64{-87, -88.5, -88.8, -89, -95, -100, -1e4} {
		bound := activation(engine.SiLU, x)
		e := float32(math.Exp(-x)) // an infinity from 88.73 on, which makes the quotient 0
		got := float32(x) / (1 + e)
		if !(math.Abs(float64(got)-bound.v) <= bound.err) {
			t.Errorf("silu(%g): float32 gives %g, want %g within %g", x, got, bound.v, bound.err)
		}
		if bound.err > 0x1p-120 {
			t.Errorf("silu(%g): %g is allowed", x, bound.err)
		}
	}
	if s := dot(measured([]float64{0x1p-130}), measured([]float64{1024})).worst(0); s.err < 0x1p-120 || s.err > 0x1p-114 {
		t.Errorf("2^-130 · 1024 may be read as zero; its error is %g", s.err)
	}
	if a := exact(0x1p-130); a.err != 0x1p-130 {
		t.Errorf("a subnormal input may be read as zero; its error is %g", a.err)
	}
	if a := exact(1e-30).mul(exact(1e-30)); a.err < 1e-60 || a.err > 1e-59 {
		t.Errorf("1e-60 becomes zero in float32; its error is %g", a.err)
	}
}

// A bound that is infinite times 0 is infinite, not NaN.
func TestInfiniteBoundTimesZero(t *testing.T) {
	for _, p := range []approx{approx{0, 0}.mul(approx{1, math.Inf(1)}), approx{2, math.Inf(1)}.mul(approx{0, 0})} {
		if !math.IsInf(p.err, 1) || p.v != 0 {
			t.Errorf("want 0 with an infinite bound, got %+v", p)
		}
	}
}
