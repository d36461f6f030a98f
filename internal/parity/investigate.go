package parity

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/shadow"
)

// suspicion is where to look: at a step of a prompt, on the tokens that led there.
type suspicion struct {
	prompt int   // index
	step   int   // 0: nothing is suspicious, and the first steps are looked at
	chosen []int // tokens after the prompt
}

// suspect finds the first step that tokens speak against; without one, the first whose logits do.
func (c *Comparison) suspect() suspicion {
	for i := range c.Prompts {
		r := &c.Prompts[i]
		for j := range r.Steps {
			if s := &r.Steps[j]; s.sampled || s.Class == ClassNonFinite || s.diverged(c.Strict) {
				return suspicion{i, s.Step, r.ReferenceIDs}
			}
		}
		for _, n := range r.NonFinite {
			if n.Own {
				return suspicion{i, n.Step, r.CandidateIDs}
			}
		}
	}
	for i := range c.Prompts {
		r := &c.Prompts[i]
		for j := range r.Steps {
			if s := &r.Steps[j]; s.Class == ClassMatch && !(s.MaxAbs <= r.Allowed) {
				return suspicion{i, s.Step, r.ReferenceIDs}
			}
		}
	}
	for i := range c.Prompts {
		if len(c.Prompts[i].Vacuous) == 0 {
			return suspicion{i, 0, c.Prompts[i].ReferenceIDs}
		}
	}
	return suspicion{0, 0, c.Prompts[0].ReferenceIDs}
}

// firstSteps are judged whatever is suspected: the prompt, the first token, and the first one that reads what was cached one by one.
const firstSteps = 3

// investigate follows both sides and finds the culprit.
func (r *run) investigate(ctx context.Context, c *Comparison) error {
	if r.Shadow == ShadowOff || len(c.Prompts) == 0 {
		return nil
	}
	if r.Shadow == ShadowAll {
		for i := range c.Prompts {
			at := suspicion{prompt: i, chosen: c.Prompts[i].ReferenceIDs}
			if err := r.look(ctx, c, at, math.MaxInt, func(int) bool { return true }); err != nil {
				return err
			}
		}
		return nil
	}
	at := c.suspect()
	if at.step == 0 {
		return r.look(ctx, c, at, firstSteps-1, func(int) bool { return true })
	}
	err := r.look(ctx, c, at, at.step, func(step int) bool { return step < firstSteps-1 || step == at.step })
	if err == nil && c.Culprit == nil && at.step > firstSteps-1 {
		// Born in between: what is cached lives on.
		c.Shadow = nil
		err = r.look(ctx, c, at, at.step, func(int) bool { return true })
	}
	return err
}

// look follows both sides through a text up to a step, and adds what it sees.
func (r *run) look(ctx context.Context, c *Comparison, at suspicion, last int, judge func(step int) bool) error {
	p := r.prompts[at.prompt]
	last = min(last, len(at.chosen)+1, r.MaxTokens)
	var sides []*followed
	fed := text(p.IDs, at.chosen[:last-1])
	file, err := r.twin()
	if err != nil {
		return err
	}
	for _, s := range []*side{r.reference, r.candidate} {
		if err := s.forget(); err != nil {
			return err
		}
		f := follow(s, file, fed)
		defer f.stop()
		sides = append(sides, f)
	}
	r.showOps(p.ID, sides, last, judge)
	if err := r.feed(ctx, file, sides, p.IDs, at.chosen[:last-1], judge); err != nil {
		return err
	}
	steps := []int{}
	for step := range last + 1 {
		if judge(step) && !(step == 0 && len(p.IDs) == 1) {
			steps = append(steps, step)
		}
	}
	slices.Reverse(sides) // the candidate is accused first
	for _, f := range sides {
		findings := f.findings()
		c.Shadow = append(c.Shadow, Shadow{Side: f.which, Prompt: p.ID, Steps: steps, Ops: f.watch.Ops(),
			Findings: append([]shadow.Finding{}, findings...), Cells: append([]shadow.Cell{}, f.watch.Cells()...), Worst: f.watch.Worst()})
		if c.Culprit == nil && len(findings) > 0 {
			c.accuse(f.which, at.prompt, findings)
		}
	}
	return nil
}

// accuse names the first of a side's findings.
func (c *Comparison) accuse(which string, prompt int, findings []shadow.Finding) {
	c.Culprit = &Culprit{Side: which, Prompt: c.Prompts[prompt].ID, Finding: findings[0], Others: len(findings) - 1, Heals: []string{}}
	c.accused = prompt
	if why := findings[0].Why; len(why) > 0 {
		c.Why = why[0]
	}
}

// feed decodes on sides under watch, in lock step, and judges the steps that judge names. Their twin is always there first.
func (r *run) feed(ctx context.Context, twin *side, sides []*followed, prompt, chosen []int, judge func(step int) bool) error {
	if err := twin.prefill(ctx, prompt); err != nil {
		return err
	}
	err := r.each(sides, func(f *followed) error {
		f.watch.Judge(judge(0))
		return f.prefill(ctx, prompt)
	})
	if err != nil {
		return err
	}
	for i, id := range append([]int{0}, chosen...) {
		if _, err := twin.step(i+1, id); err != nil {
			return err
		}
		err := r.each(sides, func(f *followed) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			f.watch.Judge(judge(i + 1))
			logits, err := f.step(i+1, id)
			if err != nil {
				return err
			}
			if err := f.watch.Err(); err != nil {
				return f.failed(err)
			}
			f.sample(i+1, logits)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// each calls step for every side.
func (r *run) each(sides []*followed, step func(*followed) error) error {
	var tasks []func() error
	for _, f := range sides {
		tasks = append(tasks, func() error { return step(f) })
	}
	return r.together(tasks...)
}

// showOps tells Working of the ops that have been judged on all sides.
func (r *run) showOps(prompt string, sides []*followed, last int, judge func(step int) bool) {
	if r.Working == nil {
		return
	}
	total, done := 0, 0
	var lock sync.Mutex // of done and Working
	for _, f := range sides {
		for step := range last + 1 {
			if judge(step) {
				total += len(f.Program())
			}
		}
	}
	for _, f := range sides {
		told := 0
		f.watch.Progress = func(ops int) {
			lock.Lock()
			defer lock.Unlock()
			done, told = done+ops-told, ops
			r.Working("shadow of "+prompt, done, total)
		}
	}
}

// failure turns a side's failure at an op into a culprit; false if it is none: then the comparison could not run.
func (r *run) failure(ctx context.Context, c *Comparison, prompt int, err error) bool {
	var at *sideError
	var stale *staleError
	if errors.As(err, &at) && errors.As(err, &stale) {
		c.accuse(at.which, prompt, []shadow.Finding{stale.finding()})
		return true
	}
	var op *engine.OpError
	if !errors.As(err, &at) || !errors.As(err, &op) || at.which == referenceSide && !r.survives(ctx, prompt, op.Site.Step) {
		return false
	}
	s := r.reference
	if at.which == candidateSide {
		s = r.candidate
	}
	s.dead = true
	if exact := r.localise(ctx, s, prompt, c.Prompts[prompt].ReferenceIDs); exact != nil {
		op = exact
	}
	c.accuse(s.which, prompt, []shadow.Finding{s.failedAt(op)})
	return true
}

// survives tells whether the candidate, on which the reference's failure came first, can do what the reference could not.
func (r *run) survives(ctx context.Context, prompt, step int) bool {
	if err := r.candidate.start(ctx, r.prompts[prompt].IDs); err != nil {
		return false
	}
	next := 0
	for number := range step {
		logits, err := r.candidate.step(number+1, next)
		if err != nil || engine.CountNonFinite(logits) > 0 {
			return false
		}
		next = r.candidate.own.choose(logits)
	}
	return true
}

// localise decodes once more on a fresh backend that waits for every op, so that the op that fails is known: a queue of many
// fails as a whole. It is nil if there is no other backend, or if nothing fails on it.
func (r *run) localise(ctx context.Context, s *side, prompt int, chosen []int) *engine.OpError {
	fresh, done, err := r.reopen(s)
	if err != nil {
		return nil
	}
	defer done()
	fresh.Backend = synced{fresh.backend}
	var op *engine.OpError
	if err := fresh.start(ctx, r.prompts[prompt].IDs); errors.As(err, &op) {
		return op
	}
	for i, id := range append([]int{0}, chosen...) {
		if _, err := fresh.step(i+1, id); err != nil {
			errors.As(err, &op)
			return op
		}
	}
	return nil
}

// failedAt is the finding that an op failed. What it would have written nobody knows.
func (s *side) failedAt(e *engine.OpError) shadow.Finding {
	nan := ctconv.Number(math.NaN())
	f := shadow.Finding{Step: e.Site.Step, Layer: e.Site.Layer, Site: e.Site.Name, Op: e.Kernel, Operand: "out", Ratio: ctconv.Number(math.Inf(1)),
		Worst: shadow.Worst{Want: nan, Got: nan, Error: nan, Allowed: nan}, Why: []string{fmt.Sprintf("the op failed: %v", e.Err)}}
	for _, op := range s.Program() {
		if at := op.Site(); at.Layer == e.Site.Layer && at.Name == e.Site.Name {
			f.Family = string(op.Family())
			outs, _ := op.Operands(nil, nil)
			f.Operand, f.Elements = outs[0].Name, outs[0].Rows*outs[0].Cols
		}
	}
	f.Bad = f.Elements
	return f
}
