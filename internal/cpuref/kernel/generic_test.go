package kernel

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"llmrun/internal/num"
)

// exactFMA is a·b + c rounded once, by arithmetic of unlimited precision.
func exactFMA(a, b, c float32) float32 {
	p := float64(a) * float64(b) // exact
	if s := p + float64(c); math.IsNaN(s) || math.IsInf(s, 0) || s == 0 {
		return float32(s) // infinite operands, and zeros, whose sign the sum gets right
	}
	// Bits from 2^128 down to 2^-298 hold any such sum.
	sum := new(big.Float).SetPrec(500).SetFloat64(p)
	f, _ := sum.Add(sum, new(big.Float).SetFloat64(float64(c))).Float32()
	return f
}

func sameFloat(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

func checkFMA(t *testing.T, a, b, c float32) {
	t.Helper()
	got := float32(plus(float64(a)*float64(b), float64(c)))
	if want := exactFMA(a, b, c); !sameFloat(got, want) {
		t.Fatalf("%x·%x + %x: want %x, got %x", a, b, c, want, got)
	}
}

func TestFMAIsExact(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	inf, tiny, least := float32(math.Inf(1)), float32(0x1p-126), float32(0x1p-149)
	special := []float32{0, 1, inf, float32(math.NaN()), least, tiny, tiny - least, 3 * least, math.MaxFloat32,
		0x1p-75, 0x1.000002p-75, 0x1.8p-75, 1 + 0x1p-23, 1 - 0x1p-24, 0x1p64, 0x1.fffffep63, 0x1p-24, 0x1p-25, 0x1.000002p-25, 0x1p103, 0x1p24 + 2}
	for _, a := range special {
		for _, b := range special {
			for _, c := range special {
				for sign := range 8 {
					flip := func(v float32, bit int) float32 {
						if sign>>bit&1 == 1 {
							return -v
						}
						return v
					}
					checkFMA(t, flip(a, 0), flip(b, 1), flip(c, 2))
				}
			}
		}
	}
	// Sums of like size, sums that cancel, any bits at all.
	for range 200000 {
		a, b := float32(r.NormFloat64()), float32(r.NormFloat64())
		checkFMA(t, a, b, float32(r.NormFloat64()))
		checkFMA(t, a, b, -float32(a*b))
		checkFMA(t, math.Float32frombits(r.Uint32()), math.Float32frombits(r.Uint32()), math.Float32frombits(r.Uint32()))
	}
	// Just off a tie: the product is half of c's last bit, or one part in 2^46 less, which float64 has no room for beside c. Among
	// the subnormals the last bit is 2^-149.
	const less, more = 1 - 0x1p-23, 1 + 0x1p-23
	for range 200000 {
		c := math.Float32frombits(r.Uint32()&0x807fffff | uint32(1+r.IntN(253))<<23)
		half := float32(math.Ldexp(1, max(-150, math.Ilogb(float64(c))-24)+75))
		subnormal := least * float32(r.IntN(1<<23))
		for _, sign := range []float32{1, -1} {
			for _, f := range [][2]float32{{1, 1}, {1, more}, {1, less}, {more, less}} {
				checkFMA(t, sign*half*f[0], 0x1p-75*f[1], c)
				checkFMA(t, sign*0x1p-75*f[0], 0x1p-75*f[1], subnormal)
			}
		}
	}
}

// reference is dot as doc.go states it, one step at a time.
func reference(a, b []float32) float32 {
	var lane [lanes]float32
	for k := range (len(a) + lanes - 1) / lanes * lanes {
		var x, y float32
		if k < len(a) {
			x, y = a[k], b[k]
		}
		lane[k%lanes] = exactFMA(x, y, lane[k%lanes])
	}
	return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]))
}

// The plain form is held to the specification; the others are held to the plain form.
func TestDotIsTheStatedSum(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 2))
	for n := range 100 {
		for _, scale := range []float64{1, 1e-24, 1e18} { // the products of the second are subnormal, sums of the third overflow
			a, b := make([]float32, n), make([]float32, n)
			for i := range n {
				a[i], b[i] = float32(r.NormFloat64()*scale), float32(r.NormFloat64()*scale)
			}
			for _, s := range Sets() {
				if want, got := reference(a, b), s.Dot(new(Temp), a, b); !sameFloat(want, got) {
					t.Errorf("%s: %d terms of size %g²: want %x, got %x", s.Name, n, scale, want, got)
				}
			}
		}
	}
}

// Products that round to -0 leave -0 in each lane; a term 0·0 of the padding makes it +0.
func TestDotPadsWithZeros(t *testing.T) {
	for n, want := range map[int]float64{15: 0, 16: math.Copysign(0, -1)} {
		a, b := make([]float32, n), make([]float32, n)
		for i := range n {
			a[i], b[i] = 0x1p-100, -0x1p-100
		}
		for _, s := range Sets() {
			if got := s.Dot(new(Temp), a, b); !sameFloat(got, float32(want)) {
				t.Errorf("%s: %d products of -2^-200: want %g, got %g", s.Name, n, want, got)
			}
		}
	}
}

func TestWidenIsExact(t *testing.T) {
	for _, d := range []num.DType{num.Float32, num.Float16, num.BFloat16, num.Int8} {
		n := 1 << 16
		raw := make([]byte, n*d.Size()+1)[1:] // off its alignment
		r := rand.New(rand.NewPCG(3, 3))
		for i := range n {
			switch d.Size() {
			case 4:
				binary.LittleEndian.PutUint32(raw[4*i:], r.Uint32())
			case 2:
				binary.LittleEndian.PutUint16(raw[2*i:], uint16(i))
			case 1:
				raw[i] = byte(i)
			}
		}
		for _, count := range []int{n, 1, 2, 3, 5} {
			wide := make([]float64, count)
			widen(wide, d, raw, 0.3)
			for i, got := range wide {
				want := num.Float32At(d, raw, i)
				if d == num.Int8 {
					want = float32(want * 0.3)
				}
				if !sameFloat(float32(got), want) || got == got && got != float64(want) {
					t.Fatalf("%v, element %d of %d: want %x, got %x", d, i, count, want, got)
				}
			}
		}
	}
}
