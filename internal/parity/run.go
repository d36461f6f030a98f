package parity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
)

// run holds the sides of a comparison. They are reused from prompt to prompt.
type run struct {
	Options
	model     *ctconv.Model
	prompts   []Prompt
	capacity  int // tokens of every session
	reference *side
	rounded   *side // the reference again, with roundoff as its tap
	candidate *side
	file      *side // see twin; nil until it is needed
	roundoff  *roundoff
}

func newRun(m *ctconv.Model, reference, candidate engine.Backend, prompts []Prompt, o Options) (*run, error) {
	r := &run{Options: o, model: m, prompts: prompts}
	for _, p := range prompts {
		if len(p.IDs) == 0 {
			return nil, fmt.Errorf("prompt %s: want at least one token, got none", p.ID)
		}
		for _, own := range []Side{o.Reference, o.Candidate} {
			r.capacity = max(r.capacity, len(own.prompt(p.IDs))+o.MaxTokens)
		}
	}
	if r.capacity == 0 {
		return nil, errors.New("compare: want at least one prompt, got none")
	}
	var err error
	if r.reference, err = r.open(referenceSide, reference, o.Reference); err != nil {
		return nil, err
	}
	if r.candidate, err = r.open(candidateSide, candidate, o.Candidate); err != nil {
		return nil, err
	}
	rounded := *r.reference // the same weights; fed as the reference is
	rounded.name += ", rounded"
	if rounded.Session, err = rounded.decoder.NewSession(r.capacity); err != nil {
		return nil, rounded.failed(err)
	}
	r.rounded = &rounded
	r.roundoff = newRoundoff(reference.Activations(), candidate.Activations())
	r.rounded.Tap = r.roundoff.tap
	return r, nil
}

// prompt decodes one prompt on all sides, step by step, so that no more than one row of logits a side is kept.
// What was measured is returned with an error, too.
func (r *run) prompt(ctx context.Context, p Prompt, index int) (*Result, error) {
	result := &Result{ID: p.ID, IDs: p.IDs, ReferenceIDs: []int{}, CandidateIDs: []int{}, Vacuous: []string{}, NonFinite: []NonFinite{}, Steps: []Step{}}
	if p.BOS >= 0 && p.IDs[0] != p.BOS {
		result.bos = fmt.Sprintf("%s=%d", r.token(p.BOS), p.BOS)
	}
	r.roundoff.reset()
	r.reference.Tap, r.candidate.Tap = r.Trace.Tap(referenceSide, p.ID), r.Trace.Tap(candidateSide, p.ID)
	defer func() { r.reference.Tap, r.candidate.Tap = nil, nil }()
	err := r.together(func() error {
		if err := r.reference.start(ctx, p.IDs); err != nil {
			return err
		}
		return r.rounded.start(ctx, p.IDs)
	}, func() error { return r.candidate.start(ctx, p.IDs) })
	if err != nil {
		return result, err
	}
	parted, err := r.decode(ctx, p, index*r.MaxTokens, result)
	if err != nil {
		return result, err
	}
	r.reference.Tap, r.candidate.Tap = nil, nil
	if parted {
		// Only then: as long as the candidate chooses the reference's tokens, decoding freely is the same computation.
		if err := r.decodeFreely(ctx, p, result); err != nil {
			return result, err
		}
	}
	for i := range result.NonFinite {
		if err := r.findBirth(ctx, p, result, &result.NonFinite[i]); err != nil {
			return result, err
		}
	}
	r.progress(p.ID, (index+1)*r.MaxTokens)
	return result, nil
}

// together runs tasks of one side each: at the same time if the sides may, or else one after the other, up to one that fails. The first task's
// error is told first.
func (r *run) together(tasks ...func() error) error {
	if !r.Together || r.Trace != nil { // a trace has one order
		for _, task := range tasks {
			if err := task(); err != nil {
				return err
			}
		}
		return nil
	}
	errs := make([]error, len(tasks))
	var wait sync.WaitGroup
	for i, task := range tasks {
		wait.Go(func() { errs[i] = task() })
	}
	wait.Wait()
	return cmp.Or(errs...)
}

// decode lets the reference choose and all sides follow, until the reference ends or stops. done steps came before; parted tells
// whether the candidate chose another token anywhere.
func (r *run) decode(ctx context.Context, p Prompt, done int, result *Result) (parted bool, err error) {
	next, stopped := 0, false
	for i := range r.MaxTokens {
		if err := ctx.Err(); err != nil {
			return parted, err
		}
		s, err := r.step(result, i+1, next, stopped)
		if err != nil {
			return parted, err
		}
		result.Steps = append(result.Steps, s)
		r.progress(p.ID, done+i+1)
		if s.ReferenceID == NoToken {
			break
		}
		result.ReferenceIDs = append(result.ReferenceIDs, s.ReferenceID)
		if stopped = stopped || s.CandidateNonFinite > 0; !stopped {
			result.CandidateIDs = append(result.CandidateIDs, s.CandidateID)
			parted = parted || s.CandidateID != s.ReferenceID
		}
		if next = s.ReferenceID; slices.Contains(r.EOS, next) {
			break
		}
	}
	return parted, nil
}

func (r *run) progress(prompt string, done int) {
	if r.Progress != nil {
		r.Progress(prompt, done, len(r.prompts)*r.MaxTokens)
	}
}

// step feeds one token, which all know, to all sides that have not stopped, and measures.
func (r *run) step(result *Result, number, id int, stopped bool) (Step, error) {
	nan := ctconv.Number(math.NaN())
	s := Step{Step: number, ReferenceID: NoToken, CandidateID: NoToken, Margin: nan, Gap: nan, KL: nan, MaxAbs: nan, Noise: nan}
	follow := sync.OnceValues(func() ([]float32, error) { return r.candidate.step(number, id) })
	if r.Together && !stopped && r.Trace == nil { // see together
		go follow()
		defer follow() // until then the session is not ours
	}
	reference, err := r.reference.step(number, id)
	if err != nil {
		return s, err
	}
	if s.ReferenceNonFinite = engine.CountNonFinite(reference); s.ReferenceNonFinite == 0 {
		s.ReferenceID = r.reference.own.choose(reference)
		s.sampled = s.ReferenceID != engine.Greedy(reference)
		s.Margin = ctconv.Number(margin(reference))
		rounded, err := r.rounded.step(number, id)
		if err == nil {
			err = r.roundoff.err
		}
		if err != nil {
			return s, err
		}
		s.Noise = ctconv.Number(maxAbs(reference, rounded))
	} else {
		result.NonFinite = append(result.NonFinite, NonFinite{Side: referenceSide, Step: number, Count: s.ReferenceNonFinite, Of: len(reference)})
	}
	if stopped {
		return s, nil
	}
	candidate, err := follow()
	if err != nil {
		return s, err
	}
	if s.CandidateNonFinite = engine.CountNonFinite(candidate); s.CandidateNonFinite > 0 {
		result.NonFinite = append(result.NonFinite, NonFinite{Side: candidateSide, Step: number, Count: s.CandidateNonFinite, Of: len(candidate)})
	} else if s.ReferenceNonFinite == 0 {
		s.CandidateID = r.candidate.own.choose(candidate)
		s.sampled = s.sampled || s.CandidateID != engine.Greedy(candidate)
		s.measure(reference, candidate)
	}
	return s, nil
}

// decodeFreely lets the candidate go its own way.
func (r *run) decodeFreely(ctx context.Context, p Prompt, result *Result) error {
	if err := r.candidate.start(ctx, p.IDs); err != nil {
		return err
	}
	result.CandidateIDs = []int{}
	for number, next := 1, 0; number <= r.MaxTokens; number++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		logits, err := r.candidate.step(number, next)
		if err != nil {
			return err
		}
		if n := engine.CountNonFinite(logits); n > 0 {
			result.NonFinite = append(result.NonFinite, NonFinite{Side: candidateSide, Step: number, Count: n, Of: len(logits), Own: true})
			return nil
		}
		next = r.candidate.own.choose(logits)
		result.CandidateIDs = append(result.CandidateIDs, next)
		if slices.Contains(r.EOS, next) {
			return nil
		}
	}
	return nil
}

// token is how the model's vocabulary spells an id.
func (r *run) token(id int) string {
	if id < r.model.Vocabulary.Len() {
		return r.model.Vocabulary.Token(id)
	}
	return "BOS"
}
