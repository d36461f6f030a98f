package parity

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

func TestTop(t *testing.T) {
	for _, test := range []struct {
		logits []float32
		want   []int
		margin float64
	}{
		{[]float32{3}, []int{0}, math.Inf(1)},
		{[]float32{1, 1, 1}, []int{0, 1, 2}, 0},
		{[]float32{-1, 5, 2, 5, 4, 3, 5}, []int{1, 3, 6, 4, 5}, 0},
		{[]float32{1, 2, 3, 4, 5, 6.5, 7}, []int{6, 5, 4, 3, 2}, 0.5},
	} {
		if got := top(test.logits); !slices.Equal(got, test.want) {
			t.Errorf("%v: want %v, got %v", test.logits, test.want, got)
		}
		if got := margin(test.logits); got != test.margin {
			t.Errorf("%v: want margin %v, got %v", test.logits, test.margin, got)
		}
	}
}

func TestMaxAbs(t *testing.T) {
	if got := maxAbs([]float32{1, -2, 3}, []float32{1.5, 2, 3}); got != 4 {
		t.Errorf("want 4, got %v", got)
	}
	for _, b := range [][]float32{{nan32, 0, 9}, {0, 0, nan32}} {
		if got := maxAbs([]float32{1, 2, 3}, b); got == got {
			t.Errorf("%v: want NaN, got %v", b, got)
		}
	}
}

func TestKL(t *testing.T) {
	// Two outcomes with log-odds 0 and ln 3: KL = ½·ln(½/¼) + ½·ln(½/¾), and a shift of all logits changes nothing.
	want := 0.5*math.Log(2) + 0.5*math.Log(2.0/3)
	if got := kl([]float32{70, 70}, []float32{-5, float32(math.Log(3)) - 5}); math.Abs(got-want) > 1e-6 { // ln 3 - 5 in float32
		t.Errorf("want %v, got %v", want, got)
	}
	random := rand.New(rand.NewPCG(1, 0))
	p, q := make([]float32, 500), make([]float32, 500)
	for range 50 {
		for i := range p {
			p[i] = float32(20 * random.NormFloat64())
			q[i] = p[i] + float32(0x1p-20*random.NormFloat64())
		}
		if got := kl(p, q); !(got >= 0 && got < 1e-9) { // at most the square of the largest difference
			t.Errorf("KL %v", got)
		}
		if got := kl(p, p); got != 0 {
			t.Errorf("KL of a distribution from itself: %v", got)
		}
	}
}

// TestPerturb: every element moves, none further than its bound; zeros stay; the same draws every time.
func TestPerturb(t *testing.T) {
	row := make([]float32, 400)
	random := rand.New(rand.NewPCG(2, 0))
	squares := 0.0
	for i := range row {
		if i%8 != 0 {
			row[i] = float32(random.NormFloat64())
		}
		squares += float64(row[i]) * float64(row[i])
	}
	r := newRoundoff(num.Float32, num.Float16)
	moved, again := slices.Clone(row), slices.Clone(row)
	r.perturb(moved, 100)
	r.reset()
	r.perturb(again, 100)
	if !slices.Equal(moved, again) {
		t.Error("two runs differ")
	}
	largest := 0.0
	for i, v := range row {
		d := math.Abs(float64(moved[i]) - float64(v))
		bound := 0x1p-11*math.Abs(float64(v)) + 0x1p-24*10*math.Sqrt(squares/400)
		bound += 0x1p-24 * math.Abs(float64(v)) // of the float32 result
		if !(d <= bound) || v == 0 && d != 0 {
			t.Errorf("element %d: %v moved by %v, bound %v", i, v, d, bound)
		}
		if v != 0 {
			largest = max(largest, d/bound)
		}
	}
	if largest < 0.9 { // 350 draws from -1 to 1
		t.Errorf("the largest move is %v of its bound", largest)
	}
}

// TestNoiseFollowsType: float16 rounds 2¹³ times as coarsely as float32, and the noise on the logits says so.
func TestNoiseFollowsType(t *testing.T) {
	noise := func(d num.DType) float64 {
		b := typed{cpu(t), d}
		return float64(compare(t, cpu(t), b, Options{}, short).Prompts[0].Noise)
	}
	// The sums' part, √n·2⁻²⁴, is a few times the rounding of a float32 output, and nothing beside that of a float16 one.
	if ratio := noise(num.Float16) / noise(num.Float32); !(ratio > 0x1p9 && ratio < 0x1p13) {
		t.Errorf("ratio %v", ratio)
	}
}

type typed struct {
	engine.Backend
	d num.DType
}

func (b typed) Activations() num.DType { return b.d }

func (b typed) NewBuffer(d num.DType, n int) (engine.Buffer, error) {
	if d == b.d { // the reference computes on float32 only
		d = num.Float32
	}
	return b.Backend.NewBuffer(d, n)
}
