package parity

import (
	"fmt"
	"slices"
	"strings"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// classify names every step, and the prompts that could not have failed.
func (c *Comparison) classify(o Options) {
	for i := range c.Prompts {
		r := &c.Prompts[i]
		r.classify(o.Strict)
	}
	c.keep(&o)
}

// keep leaves out the prompts that could not have failed.
func (c *Comparison) keep(o *Options) {
	c.Kept = 0
	for i := range c.Prompts {
		r := &c.Prompts[i]
		r.Vacuous = []string{}
		for _, g := range gates {
			if why := g.fails(r, o); why != "" && g.vacuous {
				r.Vacuous = append(r.Vacuous, why)
			}
		}
		if len(r.Vacuous) == 0 {
			c.Kept++
		}
	}
}

// opsDecide keeps prompts of which every op of every step was judged, on both sides: such a run could have failed by any of them, though
// its tokens may prove nothing.
func (c *Comparison) opsDecide(o *Options) {
	for i := range c.Prompts {
		r := &c.Prompts[i]
		sides := 0
		for _, s := range c.Shadow {
			if s.Prompt == r.ID {
				sides++
			}
		}
		r.judged = sides == 2
	}
	c.keep(o)
}

// judge fills in what follows from the measurements. prompts is how many were asked for.
func (c *Comparison) judge(o Options, prompts int) {
	if o.Shadow == ShadowAll {
		c.opsDecide(&o)
	}
	vacuous := c.Kept == 0 || o.RequireAll && c.Kept < len(c.Prompts)
	c.applyGates(&o, vacuous)
	if c.Why == "" {
		c.Why = c.tooSmallType()
	}
	c.Verdict, c.Reason = c.conclude(&o, vacuous, prompts)
	switch {
	case c.Interrupted:
		c.Exit = ExitInterrupted
	case c.Verdict == Diverged:
		c.Exit = ExitDiverged
	case c.Verdict == Inconclusive && !(o.AllowVacuous && c.onlyVacuous(&o)):
		c.Exit = ExitInconclusive
	default:
		c.Exit = ExitMatch
	}
}

// classify names each step and counts.
func (r *Result) classify(strict bool) {
	for _, s := range r.Steps {
		if n := s.Noise; s.ReferenceNonFinite == 0 && (n > r.Noise || n != n) { // once NaN, it stays
			r.Noise = n
		}
	}
	r.Allowed = allowance * r.Noise
	for i := range r.Steps {
		s := &r.Steps[i]
		s.Class = s.classify(r)
		if s.Class != ClassNonFinite && s.Class != ClassUnmeasured {
			r.Compared++
		}
		if s.Class == ClassMatch {
			r.Matched++
			if !(s.MaxAbs <= r.Allowed) {
				r.Beyond++
			}
		}
		if r.FirstFlip == nil && s.diverged(strict) {
			r.FirstFlip = &s.Step
		}
	}
}

func (s *Step) classify(r *Result) Class {
	switch {
	case s.ReferenceNonFinite > 0 || s.CandidateNonFinite > 0:
		return ClassNonFinite
	case s.CandidateID == NoToken:
		return ClassUnmeasured
	case s.CandidateID == s.ReferenceID:
		return ClassMatch
	case !(s.MaxAbs <= r.Allowed):
		return ClassFlip
	case s.Gap == 0: // the reference chose the lower id
		return ClassExactTie
	}
	return ClassNearTie
}

// diverged tells whether the step counts against the candidate.
func (s *Step) diverged(strict bool) bool {
	switch s.Class {
	case ClassFlip:
		return true
	case ClassNearTie, ClassExactTie:
		return strict
	case ClassNonFinite:
		return s.ReferenceNonFinite == 0
	}
	return false
}

// Diverged tells whether the prompt shows that the candidate is wrong, vacuous or not.
func (r *Result) Diverged() bool {
	if r.FirstFlip != nil {
		return true
	}
	for _, n := range r.NonFinite {
		if n.Own { // after a near tie, on tokens that the reference did not see
			return true
		}
	}
	return false
}

// applyGates judges the gates over the prompts that decide.
func (c *Comparison) applyGates(o *Options, all bool) {
	for _, g := range gates {
		result := Gate{Name: g.name, OK: true}
		if len(c.Prompts) == 0 {
			result = Gate{Name: g.name, Why: "no prompt was finished"}
		}
		for i := range c.Prompts {
			r := &c.Prompts[i]
			if why := g.fails(r, o); why != "" && result.OK && (all || len(r.Vacuous) == 0 || !g.vacuous) {
				result.OK, result.Why = false, r.ID+": "+why
			}
		}
		c.Gates = append(c.Gates, result)
	}
}

// onlyVacuous tells whether vacuity is all that keeps the run from a match.
func (c *Comparison) onlyVacuous(o *Options) bool {
	for i := range c.Prompts {
		if c.Prompts[i].Beyond > 0 {
			return false
		}
	}
	_, missing := c.legs(o)
	return !c.Interrupted && missing == ""
}

// conclude gives the verdict and the reason for it. A culprit is a divergence though all tokens agree: an op that is wrong by itself, or bytes that
// changed on their way, are no rounding.
func (c *Comparison) conclude(o *Options, vacuous bool, prompts int) (Verdict, string) {
	var diverged, poor, beyond []string
	for i := range c.Prompts {
		r := &c.Prompts[i]
		if r.Diverged() {
			diverged = append(diverged, r.ID+": "+r.divergence())
		}
		if len(r.Vacuous) > 0 {
			poor = append(poor, r.ID+": "+strings.Join(r.Vacuous, "; "))
		}
		if why := beyondRounding(r, nil); why != "" {
			beyond = append(beyond, r.ID+": "+why)
		}
	}
	broken, missing := c.legs(o)
	switch {
	case len(diverged) == 0 && c.Culprit != nil:
		return Diverged, c.Culprit.Prompt + ": " + c.Culprit.text()
	case len(diverged) == 1:
		return Diverged, diverged[0] + c.unexplained()
	case len(diverged) > 1:
		return Diverged, fmt.Sprintf("%s (%d of %d prompts diverge)%s", diverged[0], len(diverged), len(c.Prompts), c.unexplained())
	case broken != "":
		return Diverged, broken
	case c.Interrupted && len(c.Prompts) == prompts:
		return Inconclusive, "interrupted before the ops were judged and the legs tested"
	case c.Interrupted:
		return Inconclusive, fmt.Sprintf("interrupted after %d of %d prompts", len(c.Prompts), prompts)
	case len(beyond) > 0:
		return Inconclusive, strings.Join(beyond, "; ") + c.unexplained()
	case missing != "":
		return Inconclusive, missing
	case vacuous:
		return Inconclusive, strings.Join(poor, "; ") + ": this run could not have failed"
	}
	return Match, ""
}

// legs says which leg is broken, and which one that was asked for could not be measured.
func (c *Comparison) legs(o *Options) (broken, missing string) {
	for _, l := range c.Legs {
		says := fmt.Sprintf("leg %s: %s on %s: %s", l.Name, l.What, l.Backend, l.Why)
		switch {
		case l.State == LegBroken && broken == "":
			broken = says
		case l.State == LegUnmeasured && missing == "" && o.LegsAsked:
			missing = says + " (" + string(LegUnmeasured) + ")"
		}
	}
	return broken, missing
}

// unexplained says that the ops were judged and none was found to be wrong, unless c.Why says why that is so.
func (c *Comparison) unexplained() string {
	if c.Culprit != nil || len(c.Shadow) == 0 || c.Why != "" {
		return ""
	}
	return "; unexplained: no op that was judged is beyond its own bound"
}

// tooSmallType explains infinities of the candidate that no op is to blame for: an op that was judged and is within its bound bore one, so
// the right result is beyond the type.
func (c *Comparison) tooSmallType() string {
	if c.Culprit != nil || !strings.HasSuffix(c.Candidate.ComputeType, num.Float16.String()) {
		return ""
	}
	for i := range c.Prompts {
		for _, n := range c.Prompts[i].NonFinite {
			b := n.Birth
			if n.Side != candidateSide || n.Own || b == nil || !strings.HasSuffix(b.Value, "Inf") {
				continue
			}
			judged := func(s Shadow) bool {
				return s.Side == candidateSide && s.Prompt == c.Prompts[i].ID && slices.Contains(s.Steps, b.Step)
			}
			if slices.ContainsFunc(c.Shadow, judged) {
				return fmt.Sprintf("the right result of %s is beyond 65504, float16's largest number: the arithmetic is right, "+
					"the type cannot hold what this model computes; --compute-type float32 can", b.Where())
			}
		}
	}
	return ""
}

// Where names the site, its layer and the step: "act (gelu_tanh) at layer 7, born at step 2".
func (c *Culprit) Where() string {
	s := c.Site
	if c.Op != "" && c.Op != c.Site && c.Op != c.Family {
		s += " (" + c.Op + ")"
	}
	if c.Layer != engine.NoLayer {
		s += fmt.Sprintf(" at layer %d", c.Layer)
	}
	s += fmt.Sprintf(", born at step %d", c.Step)
	if c.Between != nil {
		s += fmt.Sprintf(", between %s and %s", c.Between.Writer, c.Between.Reader)
	}
	if c.Side == referenceSide {
		s = "the reference: " + s
	}
	return s
}

// text says in words what is wrong.
func (c *Culprit) text() string {
	what := "beyond their bounds"
	if c.Between != nil {
		what = "changed on their way"
	}
	return fmt.Sprintf("%s: %d of %d elements of %s %s", c.Where(), c.Bad, c.Elements, c.Operand, what)
}

// divergence says in words what the first one is.
func (r *Result) divergence() string {
	if r.FirstFlip != nil {
		if s := r.Steps[*r.FirstFlip-1]; s.Class != ClassNonFinite {
			return fmt.Sprintf("step %d: %s: id %d, want %d: gap %.2g, max|Δlogit| %.2g, rounding explains %.2g",
				s.Step, s.Class, s.CandidateID, s.ReferenceID, s.Gap, s.MaxAbs, r.Allowed)
		}
	}
	for _, n := range r.NonFinite { // in order: those on the reference's tokens come first
		if n.Side == candidateSide {
			return n.String()
		}
	}
	panic("BUG: a divergence without a flip or a stop")
}

func (n NonFinite) String() string {
	s := fmt.Sprintf("step %d: %d of %d logits of the %s are NaN or infinite", n.Step, n.Count, n.Of, n.Side)
	if n.Own {
		s += ", on its own tokens"
	}
	if b := n.Birth; b != nil {
		s += ", born at " + b.Where()
	}
	return s
}

// Where names the site, with the function of an activation.
func (b *Birth) Where() string {
	s := engine.Site{Step: b.Step, Layer: b.Layer, Name: b.Site}.String()
	if b.Op != "" {
		s += " (" + b.Op + ")"
	}
	return s
}
