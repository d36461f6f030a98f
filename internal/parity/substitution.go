package parity

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"llmrun/internal/engine"
	"llmrun/internal/shadow"
)

// substitutionTime is how long the proof may take. Rows that do not heal end at their first wrong token, so it is those
// that heal which take time: the culprit's is measured, and if all would take too long the others compare fewer steps.
const substitutionTime = time.Minute

// substitute decodes the culprit's prompt again, with one thing changed at a time.
func (r *run) substitute(ctx context.Context, c *Comparison) error {
	if c.Culprit == nil || !r.Substitute {
		return nil
	}
	result := &c.Prompts[c.accused]
	t := &trial{run: r, result: result, culprit: c.Culprit, prompt: r.prompts[c.accused], allowed: c.allowed(result)}
	t.s, t.other = r.candidate, r.reference
	if c.Culprit.Side == referenceSide {
		t.s, t.other = r.reference, r.candidate
	}
	t.quiet = !result.Diverged() && result.Beyond == 0 && !t.s.dead && len(result.NonFinite) == 0
	t.steps = max(len(result.Steps), c.Culprit.Step, 1)
	if t.quiet {
		t.steps = max(c.Culprit.Step, 1)
	}
	list := r.alterations(c.Culprit, t.other, map[engine.Buffer]engine.Buffer{})
	refuted := false
	for i, a := range list {
		if a.wider && c.Culprit.Confirmed {
			continue
		}
		if r.Working != nil {
			r.Working("substitution: "+a.Name, i, len(list))
		}
		began := time.Now()
		if err := t.try(ctx, &a); err != nil {
			c.Culprit.Confirmed = false // what should not heal was not tried
			return err
		}
		c.Substitution = append(c.Substitution, a.Substitution)
		if a.Heals {
			c.Culprit.Heals = append(c.Culprit.Heals, a.Name)
			c.Culprit.Confirmed = c.Culprit.Confirmed || a.culprit
			// Any move waits and copies, which may well cure bytes that change on their way; and it rounds otherwise, so that the tie is gone
			// that a sampler broke wrongly. Neither says anything against them.
			refuted = refuted || !a.culprit && c.Culprit.Between == nil && c.Culprit.Site != "sample"
		}
		t.hurry(time.Since(began), len(list)-i-1)
	}
	c.Culprit.Confirmed = c.Culprit.Confirmed && !refuted
	return nil
}

// allowed is the max|Δlogit| that rounding explains on a prompt; if the reference never got to show it, that of any prompt, or else any.
func (c *Comparison) allowed(r *Result) float64 {
	if r.Allowed != 0 {
		return float64(r.Allowed)
	}
	most := 0.0
	for i := range c.Prompts {
		most = max(most, float64(c.Prompts[i].Allowed))
	}
	if most == 0 {
		return math.Inf(1)
	}
	return most
}

// trial is what all substitutions have in common.
type trial struct {
	*run
	result   *Result
	prompt   Prompt
	culprit  *Culprit
	s, other *side // the accused, and the side that leads
	quiet    bool  // tokens and logits do not show the culprit: only its own site does
	steps    int
	capped   bool
	allowed  float64
}

// hurry lowers the number of steps if so many rows more like the last one would take too long.
func (t *trial) hurry(last time.Duration, rows int) {
	if most := int(float64(t.steps) * float64(substitutionTime) / float64(last) / float64(max(rows, 1))); !t.capped && most < t.steps {
		t.steps, t.capped = min(t.steps, max(most, t.culprit.Step+1)), true
	}
}

// try decodes with the alteration.
func (t *trial) try(ctx context.Context, a *alteration) error {
	s := t.s
	if s.dead {
		fresh, done, err := t.reopen(s)
		if err != nil {
			a.Note = err.Error()
			return nil
		}
		defer done()
		s = fresh
	}
	before, own := s.Session.Backend, s.own
	defer func() { s.Session.Backend, s.own = before, own }()
	if a.backend != nil {
		s.Session.Backend = a.backend(s, t.other)
	}
	if a.own != nil {
		a.own(&s.own)
		if s.Len() > 0 { // what a faulty reset left
			if err := s.Session.Reset(); err != nil {
				return s.failed(err)
			}
		}
	}
	if err := s.scrub(); err != nil {
		return err
	}
	a.Compared = t.steps
	if t.capped {
		a.Note = fmt.Sprintf("the first %d of %d steps, to keep to a minute", t.steps, len(t.result.Steps))
	}
	judged, err := t.decode(ctx, s, a)
	if err != nil && ctx.Err() == nil {
		a.Note, s.dead = err.Error(), s.backend.Sync() != nil
		return nil
	}
	if a.Heals = err == nil && a.Matched == a.Compared; a.Heals && judged != nil {
		if still := t.still(judged, a); still != "" {
			a.Heals, a.Note = false, still
		}
	}
	return err
}

// decode lets the other side lead and the accused follow, up to the first step that rounding does not explain. Where only the culprit's
// site can show a difference, the accused is watched.
func (t *trial) decode(ctx context.Context, s *side, a *alteration) (judged *followed, err error) {
	if err := t.other.start(ctx, t.prompt.IDs); err != nil {
		return nil, err
	}
	if err := s.forget(); err != nil {
		return nil, err
	}
	if t.quiet {
		judged = follow(s, t.other, t.prompt.IDs)
		defer judged.stop()
		judged.watch.Judge(t.culprit.Step == 0)
	}
	if err := s.prefill(ctx, t.prompt.IDs); err != nil {
		return nil, err
	}
	for step, next := 1, 0; step <= t.steps; step++ {
		if err := ctx.Err(); err != nil {
			return judged, err
		}
		lead, err := t.other.step(step, next)
		if err != nil {
			return judged, err
		}
		if engine.CountNonFinite(lead) > 0 {
			a.Compared = step - 1 // there is nothing to compare with
			break
		}
		if judged != nil {
			judged.watch.Judge(step == t.culprit.Step)
		}
		got, err := s.step(step, next)
		if err == nil {
			err = s.Session.Backend.Sync()
		}
		if err != nil {
			return judged, err
		}
		if judged != nil {
			judged.sample(step, got)
		}
		if next = t.other.own.choose(lead); !t.same(s, lead, got, next) {
			break
		}
		a.Matched++
		if t.own() && step <= len(t.result.CandidateIDs) {
			next = t.result.CandidateIDs[step-1]
		}
		if judged != nil {
			judged.watch.Text = append(judged.watch.Text, next)
		}
		if slices.Contains(t.EOS, next) {
			a.Compared = step
			break
		}
	}
	return judged, nil
}

// own tells whether only the candidate's own tokens lead to the culprit.
func (t *trial) own() bool {
	return t.result.FirstFlip == nil && slices.ContainsFunc(t.result.NonFinite, func(n NonFinite) bool { return n.Own })
}

// same tells whether rounding explains the difference of two rows of logits, and of the tokens.
func (t *trial) same(s *side, lead, got []float32, next int) bool {
	if engine.CountNonFinite(got) > 0 || !(maxAbs(lead, got) <= t.allowed) {
		return false
	}
	id := s.own.choose(got)
	return id == next || id == engine.Greedy(got) // different tokens within rounding: a tie
}

// still says what is left of the culprit at its site. Bytes that are not the file's stay where they are; they do no harm where all who read them
// have moved, and read the file's.
func (t *trial) still(f *followed, a *alteration) string {
	moved := len(t.readers(t.culprit)) > 0
	for _, family := range t.readers(t.culprit) {
		moved = moved && slices.Contains(a.Families, string(family))
	}
	for _, x := range f.findings() {
		if x.Step == t.culprit.Step && x.Layer == t.culprit.Layer && x.Site == t.culprit.Site && !(moved && x.Between != nil && x.Between.Writer == "the file") {
			return "tokens agree; " + remains(x)
		}
	}
	return ""
}

func remains(x shadow.Finding) string {
	switch {
	case x.Between != nil && x.Between.Writer == "the file":
		return x.Site + " still reads what is not the file's"
	case x.Between != nil:
		return "the bytes still change"
	}
	return fmt.Sprintf("%s is still %.3g × its bound", x.Site, float64(x.Ratio))
}
