package num

import "math"

// The functions below compute in float64 with operations whose result IEEE 754 fixes, in a fixed order, and spell every
// product as float64(a*b), which the language forbids to fuse with a following addition. So they give the same bits
// on every machine, which math.Exp and its kin do not promise. Their relative error is below 1e-12 (TestFunctions), so
// a result rounded to float32 is the correctly rounded one but for about one argument in 10^5.

// FMA is a·b + c rounded once to float32, exactly, whatever the machine offers.
func FMA(a, b, c float32) float32 {
	p := float64(a) * float64(b) // exact: 48 bits
	s := p + float64(c)
	// Rounding s again, to float32, is harmless unless the first rounding made a tie of it, or float32 has fewer
	// bits there than 24 (subnormals).
	if bits := math.Float64bits(s); bits&0x1fffffff != 0x10000000 && bits&(1<<63-1) >= minNormal32 {
		return float32(s)
	}
	return float32(RoundOddSum(p, float64(c)))
}

const minNormal32 = 0x3810000000000000 // the bits of 2^-126 as a float64

// RoundOddSum is a + b rounded to odd: the exact sum cut off towards zero, with the last bit set if anything was cut.
// Rounding that to float32 equals rounding the exact sum once (Boldo and Melquiond, "Emulation of FMA and correctly
// rounded sums: proved algorithms using rounding to odd", 2008).
func RoundOddSum(a, b float64) float64 {
	s := a + b
	if math.IsInf(s, 0) || s != s {
		return s
	}
	// Knuth's TwoSum: a+b = s+e exactly.
	bb := s - a
	e := (a - (s - bb)) + (b - bb)
	bits := math.Float64bits(s)
	if e == 0 || bits&1 == 1 {
		return s
	}
	if (e > 0) == (s > 0) {
		return math.Float64frombits(bits + 1)
	}
	return math.Float64frombits(bits - 1)
}

// Exp is e^x.
func Exp(x float64) float64 {
	switch {
	case x != x:
		return x
	case x > 709:
		return math.Inf(1)
	case x < -745:
		return 0
	}
	const ( // ln 2 in two parts; the first has 32 bits, so that k·ln2Hi is exact
		ln2Hi = 0x1.62e42feep-1
		ln2Lo = 0x1.a39ef35793c76p-33
	)
	k := math.RoundToEven(float64(x * math.Log2E))
	r := float64(x-float64(k*ln2Hi)) - float64(k*ln2Lo)
	// Taylor to r^11: |r| ≤ 0.3466, the rest is below 7e-15.
	p := 1.0 / 39916800
	for _, c := range [...]float64{1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120,
		1.0 / 24, 1.0 / 6, 0.5, 1, 1} {
		p = float64(p*r) + c
	}
	if k < -1000 {
		return math.Ldexp(p, int(k)) // a subnormal result
	}
	return float64(p * math.Float64frombits(uint64(1023+int(k))<<52))
}

// Log is the natural logarithm of a positive, normal x.
func Log(x float64) float64 {
	m, e := math.Frexp(x) // x = m·2^e, m in [0.5, 1)
	if m < math.Sqrt2/2 {
		m, e = 2*m, e-1
	}
	// ln m = 2·atanh(s), s = (m-1)/(m+1), |s| ≤ 0.1716: the series' rest after s^21 is below 1e-18.
	s := (m - 1) / (m + 1)
	z := float64(s * s)
	p := 1.0 / 21
	for n := 19.0; n > 0; n -= 2 {
		p = float64(p*z) + 1/n
	}
	return float64(float64(e)*math.Ln2) + float64(float64(2*s)*p)
}

// Pow is base^exponent for a positive, normal base.
func Pow(base, exponent float64) float64 { return Exp(float64(exponent * Log(base))) }

// Tanh is the hyperbolic tangent. It never forms a quotient of infinities, whatever x is.
func Tanh(x float64) float64 {
	a := math.Abs(x)
	switch {
	case a > 22: // 1 - 2e^(-44) rounds to 1
		return math.Copysign(1, x)
	case a < 1e-4: // x - x³/3, the rest is below x·2e-17
		return x - float64(x*float64(x*x))/3
	}
	e := Exp(float64(2 * a))
	return math.Copysign((e-1)/(e+1), x) // x NaN: NaN
}

// Erf is the error function, by the series 2/√π · e^(-x²) · Σ 2ⁿx²ⁿ⁺¹/(1·3·…·(2n+1)), whose terms are all of one sign.
func Erf(x float64) float64 {
	a := math.Abs(x)
	switch {
	case x != x:
		return x
	case a > 6: // 1 - 2e-17
		return math.Copysign(1, x)
	}
	square := float64(x * x)
	term, sum := x, x
	for n := 1.0; math.Abs(term) > float64(math.Abs(sum)*0x1p-54); n++ {
		term = float64(term*float64(2*square)) / float64(2*n+1)
		sum += term
	}
	return float64(float64(2/math.SqrtPi) * float64(Exp(-square)*sum))
}

// Sin and Cos take an angle in radians, |x| ≤ 1.6e6; beyond, the reduction to a quarter turn loses accuracy.
func Sin(x float64) float64 { s, _ := sincos(x); return s }

// Cos: see Sin.
func Cos(x float64) float64 { _, c := sincos(x); return c }

func sincos(x float64) (sin, cos float64) {
	const ( // π/2 in three parts; the first two have 33 bits, so that k·part is exact for k < 2^20
		part1 = 0x1.921fb544p+0
		part2 = 0x1.0b4611a6p-34
		part3 = 0x1.3198a2e037073p-69
	)
	k := math.RoundToEven(float64(x * (2 / math.Pi)))
	r := float64(float64(x-float64(k*part1))-float64(k*part2)) - float64(k*part3)
	z := float64(r * r)
	// Taylor to r^17 and r^16: |r| ≤ π/4, the rest is below 2e-18.
	s, c := 1.0/355687428096000, 1.0/20922789888000
	for _, f := range [...]float64{-1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6, 1} {
		s = float64(s*z) + f
	}
	for _, f := range [...]float64{-1.0 / 87178291200, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24, -0.5, 1} {
		c = float64(c*z) + f
	}
	s = float64(s * r)
	switch int64(k) & 3 {
	case 0:
		return s, c
	case 1:
		return c, -s
	case 2:
		return -s, -c
	}
	return -c, s
}
