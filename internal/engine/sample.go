package engine

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"llmrun/internal/num"
)

// Greedy is the id of the highest logit; among equals, the lowest id. The logits must be finite: see CountNonFinite.
func Greedy(logits []float32) int {
	best := 0
	for id, x := range logits {
		if x > logits[best] {
			best = id
		}
	}
	return best
}

// CountNonFinite counts NaN and infinities, on the raw bits.
func CountNonFinite(x []float32) (n int) {
	for _, v := range x {
		if nonFinite(v) {
			n++
		}
	}
	return n
}

func nonFinite(v float32) bool { return math.Float32bits(v)&0x7f800000 == 0x7f800000 }

// Sampler draws a token. The same seed gives the same draws on every machine.
type Sampler struct {
	Temperature float64 // 0: Greedy
	TopK        int     // keep so many; 0: all
	TopP        float64 // then keep the most probable until their sum reaches this; 0 or 1: all
	Rand        *rand.Rand
}

// NewSampler seeds a sampler.
func NewSampler(temperature float64, topK int, topP float64, seed uint64) *Sampler {
	return &Sampler{temperature, topK, topP, rand.New(rand.NewPCG(seed, 0))}
}

// Sample follows CTranslate2's order: the top k, divided by the temperature, softmax, the top p of it, one draw.
func (s *Sampler) Sample(logits []float32) int {
	if s.Temperature == 0 || s.TopK == 1 {
		return Greedy(logits)
	}
	type candidate struct {
		id int
		p  float64
	}
	all := make([]candidate, len(logits))
	for id, x := range logits {
		all[id] = candidate{id, float64(x) / s.Temperature}
	}
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Or(cmp.Compare(b.p, a.p), cmp.Compare(a.id, b.id)) })
	if s.TopK > 0 {
		all = all[:min(s.TopK, len(all))]
	}
	top, sum := all[0].p, 0.0
	for i := range all {
		all[i].p = num.Exp(all[i].p - top)
		sum += all[i].p
	}
	if s.TopP > 0 && s.TopP < 1 {
		kept := 0.0
		for i := range all {
			if kept >= s.TopP*sum { // what comes before is enough
				all, sum = all[:i], kept
				break
			}
			kept += all[i].p
		}
	}
	draw := s.Rand.Float64() * sum
	for _, c := range all {
		if draw -= c.p; draw < 0 {
			return c.id
		}
	}
	return all[len(all)-1].id
}
