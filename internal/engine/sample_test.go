package engine_test

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// sorted draws as a Sampler says that it does, from a list that is sorted to its end.
func sorted(logits []float32, temperature float64, k int, p, draw float64) int {
	ids := make([]int, len(logits))
	for id := range ids {
		ids[id] = id
	}
	slices.SortFunc(ids, func(a, b int) int { return cmp.Or(cmp.Compare(logits[b], logits[a]), cmp.Compare(a, b)) })
	if k > 0 {
		ids = ids[:min(k, len(ids))]
	}
	weight := func(id int) float64 {
		return num.Exp(float64(logits[id])/temperature - float64(logits[ids[0]])/temperature)
	}
	sum, kept := 0.0, 0.0
	for _, id := range ids {
		sum += weight(id)
	}
	for i, id := range ids {
		if kept >= p*sum {
			ids, sum = ids[:i], kept
			break
		}
		kept += weight(id)
	}
	draw *= sum
	for _, id := range ids {
		if draw -= weight(id); draw < 0 {
			return id
		}
	}
	return ids[len(ids)-1]
}

func TestSamplerSortsNoMoreThanItNeeds(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 20))
	for range 300 {
		logits := make([]float32, 1+r.IntN(300))
		for id := range logits {
			logits[id] = float32(r.IntN(40)) / 4 // many are equal
		}
		temperature, k, p, seed := 0.2+r.Float64(), r.IntN(8), 0.3+0.7*r.Float64(), r.Uint64()
		if k == 1 {
			k = 0
		}
		s, draws := engine.NewSampler(temperature, k, p, seed), rand.New(rand.NewPCG(seed, 0))
		for range 3 {
			if want, got := sorted(logits, temperature, k, p, draws.Float64()), s.Sample(logits); got != want {
				t.Fatalf("%d logits, temperature %v, top-k %d, top-p %v: want id %d, got %d", len(logits), temperature, k, p, want, got)
			}
		}
	}
}

func TestSamplerMakesNoGarbage(t *testing.T) {
	logits := make([]float32, 1000)
	for id := range logits {
		logits[id] = float32(id*7919%1000) / 100
	}
	for _, s := range []*engine.Sampler{engine.NewSampler(1, 0, 1, 1), engine.NewSampler(0.8, 40, 0.9, 1)} {
		if n := testing.AllocsPerRun(10, func() { s.Sample(logits) }); n != 0 {
			t.Errorf("top-k %d, top-p %v: %v allocations per draw", s.TopK, s.TopP, n)
		}
	}
}

// BenchmarkSample draws from as many logits as Qwen2.5 has.
func BenchmarkSample(b *testing.B) {
	r := rand.New(rand.NewPCG(6, 21))
	logits := make([]float32, 151936)
	for id := range logits {
		logits[id] = float32(3 * r.NormFloat64())
	}
	for _, c := range []struct {
		name           string
		temperature, p float64
		k              int
	}{{"greedy", 0, 1, 0}, {"all", 1, 1, 0}, {"top-k", 1, 1, 50}, {"top-p", 1, 0.9, 0}} {
		b.Run(c.name, func(b *testing.B) {
			s := engine.NewSampler(c.temperature, c.k, c.p, 1)
			for b.Loop() {
				s.Sample(logits)
			}
		})
	}
}

// A decoded token makes no garbage, whatever the decoder's ops and the weights' types.
func TestDecodeMakesNoGarbage(t *testing.T) {
	for _, c := range []struct {
		model     string
		quantized bool
	}{{"m_llama", false}, {"m_f16", true}, {"m_gemma1", false}, {"v2", false}} {
		s := session(t, loadAs(t, c.model, cpu(t, 2), c.quantized), 64)
		for range 4 {
			if _, err := s.Step(1); err != nil {
				t.Fatal(err)
			}
		}
		n := testing.AllocsPerRun(20, func() {
			logits, err := s.Step(1)
			if err != nil || engine.CountNonFinite(logits) > 0 {
				t.Fatal(err)
			}
			engine.Greedy(logits)
		})
		if n != 0 {
			t.Errorf("%s, quantized: %v: %v allocations per token", c.model, c.quantized, n)
		}
	}
}

// Greedy and CountNonFinite look at several elements at once: every length and place of what they look for.
func TestGreedyAndCountNonFinitePlaces(t *testing.T) {
	rest := []float32{-3, float32(math.Copysign(0, -1)), 0, math.MaxFloat32, -math.MaxFloat32, 1e-45}
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for n := 1; n < 36; n++ {
		x := make([]float32, n)
		for at := range n {
			for i := range x {
				x[i] = rest[(i+n)%len(rest)]
			}
			if got := engine.CountNonFinite(x); got != 0 {
				t.Fatalf("%v: want 0 that are not finite, got %d", x, got)
			}
			for k, bad := range []float32{nan, inf, -inf} {
				x[at], x[n-1-at] = bad, bad
				want := 2
				if n-1-at == at {
					want = 1
				}
				if got := engine.CountNonFinite(x); got != want {
					t.Fatalf("%v: want %d that are not finite, got %d (value %d)", x, want, got, k)
				}
			}
			for i := range x {
				x[i] = -float32(i % 3)
			}
			x[at], x[n-1-at] = 1, 1
			if got, want := engine.Greedy(x), min(at, n-1-at); got != want {
				t.Fatalf("%v: want %d, got %d", x, want, got)
			}
		}
	}
}
