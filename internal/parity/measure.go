package parity

import (
	"math"
	"slices"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

const topK = 5

// measure compares two rows of finite logits, of which both sides have chosen.
func (s *Step) measure(reference, candidate []float32) {
	s.Gap = ctconv.Number(float64(reference[s.ReferenceID]) - float64(reference[s.CandidateID]))
	s.MaxAbs = ctconv.Number(maxAbs(reference, candidate))
	s.KL = ctconv.Number(kl(reference, candidate))
	best := top(candidate)
	for _, id := range top(reference) {
		if slices.Contains(best, id) {
			s.Top++
		}
	}
}

// margin is the highest logit minus the second; infinite if there is only one.
func margin(logits []float32) float64 {
	best := top(logits)
	if len(best) < 2 {
		return math.Inf(1)
	}
	return float64(logits[best[0]]) - float64(logits[best[1]])
}

// top gives the topK highest logits' ids, the highest first, among equals the lowest id.
func top(logits []float32) []int {
	best := make([]int, 0, topK+1)
	for id, x := range logits {
		if len(best) == topK && x <= logits[best[topK-1]] {
			continue
		}
		i := len(best)
		for i > 0 && x > logits[best[i-1]] {
			i--
		}
		best = slices.Insert(best, i, id)
		best = best[:min(len(best), topK)]
	}
	return best
}

// maxAbs is max|a-b|; NaN if any difference is.
func maxAbs(a, b []float32) (m float64) {
	for i := range a {
		if d := math.Abs(float64(a[i]) - float64(b[i])); d > m || d != d {
			m = d
		}
	}
	return m
}

// kl is Σ p·ln(p/q) over the distributions p and q that softmax makes of two rows of logits, in nats.
func kl(p, q []float32) float64 {
	logP, logQ := logSum(p), logSum(q)
	sum := 0.0
	for i := range p {
		lp := float64(p[i]) - logP
		sum += float64(num.Exp(lp) * (lp - (float64(q[i]) - logQ))) // not fused, on any machine
	}
	return max(0, sum) // never negative but for rounding; NaN stays
}

// logSum is ln Σ exp(x).
func logSum(x []float32) float64 {
	highest, sum := float64(x[engine.Greedy(x)]), 0.0
	for _, v := range x {
		sum += num.Exp(float64(v) - highest)
	}
	return highest + num.Log(sum)
}
