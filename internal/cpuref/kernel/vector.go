package kernel

import (
	"math"
	"slices"
	"unsafe"

	"llmrun/internal/num"
)

// theNaN is the NaN that is stored for any.
var theNaN = math.Float32frombits(0x7fc00000)

func stored(v float32) float32 {
	if v != v {
		return theNaN
	}
	return v
}

// genericVectors are the specification; the other forms leave them the last n%8 elements.
var genericVectors = vectorFuncs{
	add:    binary32(func(a, b float32) float32 { return a + b }),
	mul:    binary32(func(a, b float32) float32 { return a * b }),
	scale:  scalar32(func(a, s float32) float32 { return a * s }),
	divide: scalar32(func(a, s float32) float32 { return a / s }),
	normalize: func(out, x, w *float32, inv, offset float32, n int) {
		y, gain := unsafe.Slice(out, n), unsafe.Slice(w, n)
		for i, v := range unsafe.Slice(x, n) {
			y[i] = stored(float32(float32(v*inv) * float32(offset+gain[i])))
		}
	},
	rotate: func(outA, outB, a, b, cos, sin *float32, n int) {
		for i := range n {
			a, b, c, s := *move(a, 4*i), *move(b, 4*i), *move(cos, 4*i), *move(sin, 4*i)
			*move(outA, 4*i) = stored(float32(float32(a*c) - float32(b*s)))
			*move(outB, 4*i) = stored(float32(float32(b*c) + float32(a*s)))
		}
	},
	largest: func(x *float32, n int, kept *float32) {
		l := unsafe.Slice(kept, lanes)
		for i := range l {
			l[i] = float32(math.Inf(-1))
		}
		for i, v := range unsafe.Slice(x, n) {
			l[i%lanes] = max(l[i%lanes], v)
		}
	},
	expSum: func(out, x *float32, top float32, n int, kept *float32) {
		y, l := unsafe.Slice(out, n), unsafe.Slice(kept, lanes)
		clear(l)
		for i, v := range unsafe.Slice(x, n) {
			y[i] = exp(v, top)
			l[i%lanes] += y[i]
		}
	},
	silu:     unary32(silu),
	geluTanh: unary32(geluTanh),
	softCap: func(out, x *float32, bound float32, n int) {
		y, b := unsafe.Slice(out, n), float64(bound)
		for i, v := range unsafe.Slice(x, n) {
			y[i] = stored(float32(b * num.Tanh(float64(v)/b)))
		}
	},
}

func exp(x, top float32) float32 { return float32(num.Exp(float64(x) - float64(top))) }

// silu and geluTanh are in float64, every product rounded by itself. The constants are those of CTranslate2, rounded to float64.
func silu(x float64) float64 { return x / (1 + num.Exp(-x)) }

func geluTanh(x float64) float64 {
	inner := x + float64(0.044715*float64(x*float64(x*x)))
	return float64(float64(0.5*x) * (1 + num.Tanh(float64(math.Sqrt2/math.SqrtPi*inner))))
}

func binary32(f func(a, b float32) float32) func(out, a, b *float32, n int) {
	return func(out, a, b *float32, n int) {
		y, second := unsafe.Slice(out, n), unsafe.Slice(b, n)
		for i, v := range unsafe.Slice(a, n) {
			y[i] = stored(f(v, second[i]))
		}
	}
}

func scalar32(f func(a, s float32) float32) func(out, a *float32, s float32, n int) {
	return func(out, a *float32, s float32, n int) {
		y := unsafe.Slice(out, n)
		for i, v := range unsafe.Slice(a, n) {
			y[i] = stored(f(v, s))
		}
	}
}

func unary32(f func(x float64) float64) func(out, x *float32, n int) {
	return func(out, x *float32, n int) {
		y := unsafe.Slice(out, n)
		for i, v := range unsafe.Slice(x, n) {
			y[i] = stored(float32(f(float64(v))))
		}
	}
}

// cut calls f, on the elements [from, from+n), with fast's functions for the whole eights and with the plain ones for the rest.
func (s *Set) cut(total int, f func(v *vectorFuncs, from, n int)) {
	whole := total &^ (lanes - 1)
	if whole > 0 {
		f(&s.vector, 0, whole)
	}
	if whole < total {
		f(&genericVectors, whole, total-whole)
	}
}

// Add gives out = a + b.
func (s *Set) Add(out, a, b []float32) {
	a, b = a[:len(out)], b[:len(out)]
	s.cut(len(out), func(v *vectorFuncs, i, n int) { v.add(&out[i], &a[i], &b[i], n) })
}

// Mul gives out = a · b.
func (s *Set) Mul(out, a, b []float32) {
	a, b = a[:len(out)], b[:len(out)]
	s.cut(len(out), func(v *vectorFuncs, i, n int) { v.mul(&out[i], &a[i], &b[i], n) })
}

// Scale gives out = a · f. With f = 1 it is a copy, but for NaNs.
func (s *Set) Scale(out, a []float32, f float32) {
	a = a[:len(out)]
	s.cut(len(out), func(v *vectorFuncs, i, n int) { v.scale(&out[i], &a[i], f, n) })
}

// Normalize gives out = (x · inv) · (offset + w).
func (s *Set) Normalize(out, x, w []float32, inv, offset float32) {
	x, w = x[:len(out)], w[:len(out)]
	s.cut(len(out), func(v *vectorFuncs, i, n int) { v.normalize(&out[i], &x[i], &w[i], inv, offset, n) })
}

// Rotate gives outA = a·cos - b·sin and outB = b·cos + a·sin.
func (s *Set) Rotate(outA, outB, a, b, cos, sin []float32) {
	a, b, cos, sin, outB = a[:len(outA)], b[:len(outA)], cos[:len(outA)], sin[:len(outA)], outB[:len(outA)]
	s.cut(len(outA), func(v *vectorFuncs, i, n int) {
		v.rotate(&outA[i], &outB[i], &a[i], &b[i], &cos[i], &sin[i], n)
	})
}

// SiLU gives out = x / (1 + e^-x).
func (s *Set) SiLU(out, x []float32) {
	x = x[:len(out)]
	s.cut(len(out), func(v *vectorFuncs, i, n int) { v.silu(&out[i], &x[i], n) })
}

// GELUTanh gives out = 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))).
func (s *Set) GELUTanh(out, x []float32) {
	x = x[:len(out)]
	s.cut(len(out), func(v *vectorFuncs, i, n int) { v.geluTanh(&out[i], &x[i], n) })
}

// SoftCap gives out = bound · tanh(x / bound). With bound = 1 it is tanh.
func (s *Set) SoftCap(out, x []float32, bound float32) {
	x = x[:len(out)]
	s.cut(len(out), func(v *vectorFuncs, i, n int) { v.softCap(&out[i], &x[i], bound, n) })
}

// Softmax gives out = e / Σe with e = exp(x - max x). The last terms are worked on in an eight of their own, filled up with -Inf, whose
// exponential is 0: plain loops would take as long as many vectors.
func (s *Set) Softmax(t *Temp, out, x []float32) {
	x = x[:len(out)]
	whole, v := len(x)&^(lanes-1), &s.vector
	most, rest := t.most[:lanes], t.most[lanes:]
	for i := range t.most {
		t.most[i] = float32(math.Inf(-1))
	}
	copy(rest, x[whole:])
	if whole > 0 {
		v.largest(&x[0], whole, &most[0])
	}
	v.largest(&most[0], len(t.most), &t.lanes[0])
	top := slices.Max(t.lanes[:])

	clear(t.sums[:])
	if whole > 0 {
		v.expSum(&out[0], &x[0], top, whole, &t.sums[0])
	}
	if whole < len(x) {
		v.expSum(&rest[0], &rest[0], top, lanes, &t.lanes[0])
		for l, e := range t.lanes {
			t.sums[l] += e
		}
	}
	sum := tree(&t.sums)
	if whole > 0 {
		v.divide(&out[0], &out[0], sum, whole)
	}
	if whole < len(x) {
		v.divide(&rest[0], &rest[0], sum, lanes)
		copy(out[whole:], rest)
	}
}
