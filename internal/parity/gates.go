package parity

import (
	"fmt"
	"slices"

	"llmrun/internal/ctconv"
)

// gate is a condition on one prompt. fails says what is wrong, or nothing.
type gate struct {
	name    string
	vacuous bool // a prompt that fails could not have shown a difference; it is left out
	fails   func(*Result, *Options) string
}

// Vacuity is about agreement: a prompt that could not have failed proves nothing by not failing. A flip or a NaN on such a
// prompt is a divergence all the same.
var gates = []gate{
	{"BOS", true, missingBOS},
	{"output varied", true, degenerate},
	{"reference finite", true, referenceNonFinite},
	{"something compared", true, nothingCompared},
	{"margins above noise", true, marginsBelowNoise},
	{"logits within rounding", false, beyondRounding},
}

// missingBOS: a model that was trained with a BOS token and gets none may babble the same garbage on every backend.
func missingBOS(r *Result, _ *Options) string {
	if r.bos == "" {
		return ""
	}
	return fmt.Sprintf("the prompt has no BOS and the model has %s", r.bos)
}

func degenerate(r *Result, o *Options) string {
	what := monotony(r.ReferenceIDs, o.Special)
	if what == "" || monotony(r.CandidateIDs, o.Special) == "" {
		return ""
	}
	return "both sides emitted " + what
}

const (
	minOutput = 8 // the fewest tokens that say anything about variety
	maxPeriod = 8 // tokens; a small model may well repeat whole sentences
)

// monotony says what makes ids a poor witness, or nothing: only special tokens; at most one id per eight tokens; or a
// text of up to maxPeriod tokens that fills the last three quarters of the output, three times or more.
func monotony(ids []int, special func(int) bool) string {
	n := len(ids)
	if n > 0 && special != nil && !slices.ContainsFunc(ids, func(id int) bool { return !special(id) }) {
		return fmt.Sprintf("only special tokens (%d, the first is id %d)", n, ids[0])
	}
	if n < minOutput {
		return ""
	}
	distinct := slices.Compact(slices.Sorted(slices.Values(ids)))
	if len(distinct) == 1 {
		return fmt.Sprintf("id %d %d times", ids[0], n)
	}
	if len(distinct)*8 <= n {
		return fmt.Sprintf("only %d different ids in %d tokens", len(distinct), n)
	}
	for period := 1; period <= min(n/4, maxPeriod); period++ {
		if tail := ids[n/4:]; slices.Equal(tail[period:], tail[:len(tail)-period]) {
			return fmt.Sprintf("the same %d ids over and over", period)
		}
	}
	return ""
}

func referenceNonFinite(r *Result, _ *Options) string {
	for _, s := range r.Steps {
		if s.ReferenceNonFinite > 0 {
			return fmt.Sprintf("the reference has %d NaN or infinite logits at step %d", s.ReferenceNonFinite, s.Step)
		}
	}
	return ""
}

func nothingCompared(r *Result, _ *Options) string {
	if r.Compared > 0 {
		return ""
	}
	return "no step was compared"
}

// marginsBelowNoise: a token changes when two logits move towards each other by their distance. If rounding does that at half of the
// steps or more, equal tokens are luck and different ones are nobody's fault.
//
// There the ops themselves decide, if all of them were judged. In int8 that is usual: where an activation stands at a tie, the smallest
// difference is a whole step, and the next ops make of it other ties.
func marginsBelowNoise(r *Result, o *Options) string {
	if r.judged {
		return ""
	}
	var margins []ctconv.Number
	for _, s := range r.Steps {
		if s.ReferenceNonFinite == 0 {
			margins = append(margins, s.Margin)
		}
	}
	if len(margins) == 0 {
		return ""
	}
	slices.Sort(margins)
	if median := margins[len(margins)/2]; !(median > 2*r.Noise) {
		says := fmt.Sprintf("the median margin %.2g is not above what rounding does to two logits, %.2g (--shadow all: every op is judged, and decides", median, 2*r.Noise)
		if o.Quantized {
			says += "; --compute-type float32: the same weights without int8's steps"
		}
		return says + ")"
	}
	return ""
}

// beyondRounding: the tokens agree, but rounding does not explain the logits. That is no match, however many tokens agree;
// and as the noise is an estimate, it is no proof of a defect either.
func beyondRounding(r *Result, _ *Options) string {
	if r.Beyond == 0 {
		return ""
	}
	worst := r.worst()
	return fmt.Sprintf("max|Δlogit| %.2g at step %d with equal tokens, rounding explains %.2g", worst.MaxAbs, worst.Step, r.Allowed)
}

// worst is the step with the same token and the largest max|Δlogit|; nil if there is none.
func (r *Result) worst() (worst *Step) {
	for i := range r.Steps {
		if s := &r.Steps[i]; s.Class == ClassMatch && (worst == nil || s.MaxAbs > worst.MaxAbs) {
			worst = s
		}
	}
	return worst
}
