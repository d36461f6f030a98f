package oracle

import (
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"regexp"
	"testing"

	"llmrun/internal/num"
)

// lengths have no whole block, some, and rests of all kinds.
var lengths = []int{0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 100, 257, 896, 2304}

// The sums are as near to the exact ones as their comment says: a term passes n/8 + 4 roundings at most, its product's beside.
func TestSumsAreNearlyExact(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 1))
	for _, n := range lengths {
		a, b := make([]float64, n), make([]float64, n)
		for k := range a {
			a[k], b[k] = r.NormFloat64()*math.Exp2(float64(r.IntN(40))), r.NormFloat64()*math.Exp2(float64(r.IntN(40)))
		}
		v, size, squares, path := new(big.Float).SetPrec(400), new(big.Float).SetPrec(400), new(big.Float).SetPrec(400), new(big.Float).SetPrec(400)
		for k := range a {
			p := new(big.Float).SetPrec(400).SetFloat64(a[k])
			p.Mul(p, big.NewFloat(b[k]))
			v.Add(v, p)
			size.Add(size, new(big.Float).Abs(p))
			squares.Add(squares, new(big.Float).SetPrec(400).Mul(p, p))
			if k%16 == 15 {
				s := new(big.Float).SetPrec(400).Mul(v, v)
				path.Add(path, s.Mul(s, big.NewFloat(16)))
			}
		}
		got := dot(measured(a), measured(b))
		terms, _ := size.Float64()
		rounding := float64(n/8+5) * 0x1p-53
		for _, c := range []struct {
			name    string
			got     float64
			want    *big.Float
			allowed float64
		}{
			{"sum", got.v, v, rounding * terms},
			{"size", got.size, size, rounding * terms},
			{"squares", got.squares, squares, 3 * rounding * terms * terms},
			{"path", got.path, path, 4 * float64(n) * rounding * terms * terms},
		} {
			want, _ := c.want.Float64()
			if !(math.Abs(c.got-want) <= c.allowed) {
				t.Errorf("%d terms: %s: want %g, got %g, which strays %g, allowed %g", n, c.name, want, c.got, math.Abs(c.got-want), c.allowed)
			}
		}
	}
}

// special are bits of each type that widening may get wrong: zeros, subnormals, the least, the greatest, infinities, NaNs.
var special = map[num.DType][]uint32{
	num.Float32:  {0, 1 << 31, 1, 0x807fffff, 0x800000, 0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001},
	num.Float16:  {0, 1 << 15, 1, 0x83ff, 0x400, 0x7bff, 0x7c00, 0xfc00, 0x7e00, 0x7c01},
	num.BFloat16: {0, 1 << 15, 1, 0x807f, 0x80, 0x7f7f, 0x7f80, 0xff80, 0x7fc0, 0x7f81},
	num.Int8:     {0, 1, 127, 128, 255},
	num.Int16:    {0, 1, 0x7fff, 0x8000, 0xffff},
	num.Int32:    {0, 1, 0x7fffffff, 1 << 31, 0xffffffff},
}

// payload is n elements of type d, some of them special, at an odd address.
func payload(r *rand.Rand, d num.DType, n int) []byte {
	data := make([]byte, n*d.Size()+1)[1:]
	for i := range n {
		bits := r.Uint32()
		if list := special[d]; r.IntN(3) == 0 {
			bits = list[r.IntN(len(list))]
		}
		for b := range d.Size() {
			data[i*d.Size()+b] = byte(bits >> (8 * b))
		}
	}
	return data
}

func TestWidenEveryType(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 2))
	for d := range num.NumDTypes {
		for _, n := range lengths {
			data, wide := payload(r, d, n), make([]float64, n+1)
			wide[n] = 42
			Widen(wide[:n], d, data)
			for i := range n {
				if want := float64(num.Float32At(d, data, i)); !same(want, wide[i]) {
					t.Fatalf("%v, element %d of %d: want %g, got %g", d, i, n, want, wide[i])
				}
			}
			if wide[n] != 42 {
				t.Fatalf("%v: more than %d elements were written", d, n)
			}
			if d != num.Int8 {
				continue
			}
			for _, scale := range []float32{1, 0.3, -0x1p-140, float32(math.Inf(1)), float32(math.NaN())} {
				scaled(wide[:n], data, scale)
				for i := range n {
					if want := float64(float32(int8(data[i])) * scale); !same(want, wide[i]) {
						t.Fatalf("%d times %g: want %g, got %g", int8(data[i]), scale, want, wide[i])
					}
				}
			}
		}
	}
}

// same is equality to the last bit, but for those of a NaN.
func same(a, b float64) bool {
	return math.Float64bits(a) == math.Float64bits(b) || a != a && b != b
}

// Registers beyond the sixteenth, and masks, need AVX-512: the generator takes them silently when it runs out.
func TestAssemblyNeedsNoAVX512(t *testing.T) {
	text, err := os.ReadFile("sums_amd64.s")
	if err != nil {
		t.Fatal(err)
	}
	if found := regexp.MustCompile(`\b([XYZ](1[6-9]|2\d|3[01])|Z\d+|K[0-7])\b`).Find(text); found != nil {
		t.Errorf("sums_amd64.s uses %s", found)
	}
}

// A row of weights as linear meets it: widened, measured, multiplied by one token.
func BenchmarkRow(b *testing.B) {
	const n = 2304
	r := rand.New(rand.NewPCG(6, 4))
	x := make([]float64, n)
	for k := range x {
		x[k] = r.NormFloat64()
	}
	token := measured(x)
	for _, d := range []num.DType{num.Float32, num.Float16, num.BFloat16, num.Int8} {
		b.Run(d.String(), func(b *testing.B) {
			data, row := make([]byte, n*d.Size()), make([]float64, n)
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				Widen(row, d, data)
				dot(token, measured(row))
			}
		})
	}
}
