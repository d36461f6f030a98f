package oracle

import "math"

const (
	unit       = 0x1p-24  // the most that rounding to float32 moves a normal value, relative to it; an ulp is two units at most
	tiny       = 0x1p-126 // the smallest normal float32: what lies below may be flushed to zero, on the way in and out
	maxFloat32 = math.MaxFloat32
)

// approx is a value computed in float64 and how far from it float32 arithmetic may end, by running error analysis
// (Wilkinson, "Rounding Errors in Algebraic Processes", 1963): an operation hands on the errors of its operands, by
// its derivative over all they may be, and adds its own. The err of a NaN or an infinity is 0 and has no meaning.
//
// The operations' own errors are those of Metal's precise functions (Metal Shading Language Specification, tables 8.1 and 8.2): + - · / √
// correctly rounded, 1 unit; exp 4 ulp, tanh 5 ulp.
type approx struct{ v, err float64 }

// rounded is a value that an operation gave with so many units of rounding.
func rounded(v, err, units float64) approx {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return approx{v, 0}
	}
	size := math.Abs(v) + err
	if math.Abs(v)-err < tiny { // a subnormal result may be flushed, or rounded: never by more than itself
		return approx{v, err + units*unit*size + min(tiny, size)}
	}
	return approx{v, err + units*unit*size}
}

// exact is an input. A subnormal one may be read as zero.
func exact(v float64) approx {
	if math.Abs(v) < tiny {
		return approx{v, math.Abs(v)}
	}
	return approx{v, 0}
}

// constant is a number that a program holds rounded to float32.
func constant(v float64) approx { return rounded(v, 0, 1) }

func (a approx) add(b approx) approx { return rounded(a.v+b.v, a.err+b.err, 1) }

func (a approx) mul(b approx) approx {
	err := math.Abs(a.v)*b.err + math.Abs(b.v)*a.err + a.err*b.err
	if math.IsNaN(err) { // an infinite bound times 0
		err = math.Inf(1)
	}
	return rounded(a.v*b.v, err, 1)
}

// div is a/b, or a·(1/b), which rounds twice.
func (a approx) div(b approx) approx {
	v, least := a.v/b.v, math.Abs(b.v)-b.err
	err := math.Inf(1) // the divisor may be zero
	switch {
	case math.IsInf(b.v, 0):
		err = 0
	case least > 0:
		err = (math.Abs(v)*b.err + a.err) / least
	}
	if math.Abs(b.v)+b.err > maxFloat32 { // the divisor may overflow, and the quotient be zero
		err += math.Abs(v)
	}
	return rounded(v, err, 2)
}

// sqrt: √x - √v = (x-v) / (√x + √v).
func (a approx) sqrt() approx {
	v := math.Sqrt(a.v)
	if a.err == 0 {
		return rounded(v, 0, 1)
	}
	return rounded(v, a.err/(v+math.Sqrt(max(0, a.v-a.err))), 1)
}

func (a approx) exp() approx {
	v := math.Exp(a.v)
	return rounded(v, math.Exp(a.v+a.err)-v, 2*4)
}

// tanh: its slope is 1/cosh², greatest at the argument nearest to zero; no two values of it are farther apart than 2.
func (a approx) tanh() approx {
	c := math.Cosh(max(0, math.Abs(a.v)-a.err))
	return rounded(math.Tanh(a.v), min(2, a.err/(c*c)), 2*5)
}

// erf: Metal has none, and those written for it stay within 2^-22 of it. Its slope is 2/√π · exp(-x²).
func (a approx) erf() approx {
	near := max(0, math.Abs(a.v)-a.err)
	return rounded(math.Erf(a.v), min(2, a.err*2/math.SqrtPi*math.Exp(-near*near)+0x1p-22), 1)
}

// terms is a sum Σ aₖ·bₖ of n terms, and what is needed to say how far it may stray.
type terms struct {
	n            int
	v            float64 // the sum
	size         float64 // Σ|aₖ·bₖ|
	squares      float64 // Σ(aₖ·bₖ)²
	path         float64 // Σsₖ² of the partial sums sₖ in the order of k, each 16th standing for 16
	sizeA, sizeB float64 // Σ|aₖ|, Σ|bₖ|
}

// worst bounds the sum in float32, in any order, fused or not: a term passes at most n roundings. extra counts roundings of a term before it
// is summed.
func (t terms) worst(extra int) approx { return t.within(float64(t.n + extra)) }

// inLanes bounds a sum that is made of partial sums.
func (t terms) inLanes() approx { return t.within(passed(t.n)) }

// passed is how many roundings a term of a norm's or a softmax's sum passes at most. Their terms have one sign, so it is what the result's accuracy hangs
// on. All backends sum them in lanes: eight on the CPU (package cpuref), a simdgroup's 32 on Metal; this allows for eight lanes, and for eight more
// roundings to add the lanes up.
func passed(n int) float64 { return float64(min(n, (n+7)/8+8)) }

// within bounds a sum whose terms pass at most so many roundings: the error is at most γ(n) · Σ|aₖ·bₖ|, γ(n) = n·u/(1-n·u)
// (Higham, "Accuracy and Stability of Numerical Algorithms", §3.1). One rounding more pays for the oracle's own sum.
//
// Subnormals: the product and the sum of each term may be flushed, and each factor may be read as zero. A sum that may overflow
// on its way (not every order does) may end anywhere.
func (t terms) within(roundings float64) approx {
	if math.IsNaN(t.v) || math.IsInf(t.v, 0) {
		return approx{t.v, 0}
	}
	gamma := (roundings + 1) * unit
	err := gamma/(1-gamma)*t.size + tiny*(2*float64(t.n)+t.sizeA+t.sizeB)
	if t.size+err > maxFloat32 {
		err = math.Inf(1)
	}
	return approx{t.v, err}
}

// likely is worst where that is less, or else a bound that no right sum exceeds in practice, for sums whose terms have signs that their order
// knows nothing of: a row of a weight, times activations. Never do thousands of roundings all go the same way, and worst would let
// errors pass that no right sum ever has.
//
// The error is Σδₖ·sₖ over the partial sums sₖ, of which each is rounded by |δₖ| ≤ u. Of k terms drawn from n, the sum has the mean square
// (k/n)²·v² + (k/n)·(1-k/n)·Q, Q = Σ(aₖ·bₖ)²; over one long chain, the worst of orders, Σsₖ² is n·(v²/3 + Q/6). Roundings spread
// evenly have the mean square u²/3, and are as good as independent (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019, and
// 42(5), 2020, for random data). So the error has the standard deviation σ = u·√(n·(v²/9 + Q/18)), and with what set adds
//
//	1.5·u·√n·(|v| + √Q) ≥ 4.5·σ at worst, where v dwarfs √Q, and 7·σ where they are alike, as they are in almost all sums.
//
// That is for one chain. In eight lanes and more (see passed) the partial sums are an eighth: σ is u·√(n·(v²/576 + Q/144)) and the bound 18·σ and more: no
// sum of 10¹⁰ comes near. One term that dwarfs all others is in the worst place if all partial sums of its lane hold it: σ = u·√(n/24)·√Q,
// and the bound is 14·σ; 7·σ for two such terms that cancel.
//
// One chain in the order of k is what a tile of a matrix product makes. There such terms, in a bad place, are in all partial sums, so what that order
// meets is looked at itself: 6·σ of it, σ² = u²/3·Σsₖ², if that is more (set makes 1.5 of 4).
func (t terms) likely(extra int) approx {
	a := t.worst(extra)
	spread := math.Sqrt(float64(t.n)+1+float64(extra)) * unit * (math.Abs(t.v) + math.Sqrt(t.squares))
	spread = max(spread, 6/1.5*unit*math.Sqrt(t.path/3)) + tiny*(2*float64(t.n)+t.sizeA+t.sizeB)
	if a.err > spread && !math.IsInf(a.err, 1) {
		a.err = spread
	}
	return a
}

// total is the sum of values that stray already. See worst.
func total(terms []approx) approx {
	var v, size, strayed float64
	for _, a := range terms {
		v += a.v
		size += math.Abs(a.v) + a.err
		strayed += a.err
	}
	gamma := (passed(len(terms)) + 1) * unit
	return rounded(v, strayed+gamma/(1-gamma)*size+float64(len(terms))*tiny, 0)
}
