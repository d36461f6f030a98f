//go:build amd64 || arm64

package oracle

import (
	"math"
	"math/rand/v2"
	"testing"

	"llmrun/internal/num"
)

// The loops in vector registers have the bits of the plain ones, on whatever numbers.
func TestVectorsHaveThePlainBits(t *testing.T) {
	if !vectors {
		t.Skip("this machine has no AVX2 with F16C, or LLMRUN_CPU asks for the plain loops")
	}
	defer func() { vectors = true }()
	r := rand.New(rand.NewPCG(6, 3))
	for _, n := range lengths {
		for round := range 30 {
			a, b := make([]float64, n), make([]float64, n)
			switch round % 3 {
			case 0: // as operands are
				Widen(a, num.Float32, payload(r, num.Float32, n))
				Widen(b, num.Float16, payload(r, num.Float16, n))
			case 1: // any finite sizes
				for k := range a {
					a[k], b[k] = r.NormFloat64()*math.Exp2(float64(r.IntN(600)-300)), r.NormFloat64()*math.Exp2(float64(r.IntN(600)-300))
				}
			case 2: // one infinity or NaN among them
				for k := range a {
					a[k], b[k] = r.NormFloat64(), r.NormFloat64()
				}
				if n > 0 {
					a[r.IntN(n)] = []float64{math.Inf(1), math.Inf(-1), math.NaN()}[round/3%3]
				}
			}
			vectors = true
			fast, fastSize := multiply(a, b), absolute(a)
			vectors = false
			plain, plainSize := multiply(a, b), absolute(a)
			if fast.n != plain.n || !same(fast.v, plain.v) || !same(fast.size, plain.size) || !same(fast.squares, plain.squares) || !same(fast.path, plain.path) || !same(fastSize, plainSize) {
				t.Fatalf("%d terms, round %d: plain %+v and %g, in vector registers %+v and %g", n, round, plain, plainSize, fast, fastSize)
			}
		}
	}
}
