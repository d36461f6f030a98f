package parity

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
)

const (
	referenceSide = "reference"
	candidateSide = "candidate"
)

// run holds the sessions of a comparison. They are reused from prompt to prompt.
type run struct {
	Options
	vocabulary []string
	prompts    int
	reference  side
	rounded    side // the reference again, with roundoff as its tap
	candidate  side
	roundoff   *roundoff
}

// side is a session with a name for errors.
type side struct {
	name string
	*engine.Session
}

func newRun(m *ctconv.Model, reference, candidate engine.Backend, prompts []Prompt, o Options) (*run, error) {
	capacity := 0
	for _, p := range prompts {
		if len(p.IDs) == 0 {
			return nil, fmt.Errorf("prompt %s: want at least one token, got none", p.ID)
		}
		capacity = max(capacity, len(p.IDs)+o.MaxTokens)
	}
	if capacity == 0 {
		return nil, errors.New("compare: want at least one prompt, got none")
	}
	r := &run{Options: o, vocabulary: m.Vocabulary, prompts: len(prompts)}
	refDecoder, err := engine.Load(m, reference)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", referenceSide, reference.Name(), err)
	}
	candDecoder, err := engine.Load(m, candidate)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", candidateSide, candidate.Name(), err)
	}
	for _, s := range []struct {
		to      *side
		name    string
		decoder *engine.Decoder
	}{
		{&r.reference, referenceSide + " " + reference.Name(), refDecoder},
		{&r.rounded, referenceSide + " " + reference.Name() + ", rounded", refDecoder},
		{&r.candidate, candidateSide + " " + candidate.Name(), candDecoder},
	} {
		session, err := s.decoder.NewSession(capacity)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		*s.to = side{s.name, session}
	}
	r.roundoff = newRoundoff(reference.Activations(), candidate.Activations())
	r.rounded.Tap = r.roundoff.tap
	return r, nil
}

// start feeds a prompt but its last token.
func (s side) start(ctx context.Context, prompt []int) error {
	if err := s.Reset(); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	if err := s.Prefill(ctx, prompt[:len(prompt)-1], nil); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

func (s side) step(id int) ([]float32, error) {
	logits, err := s.Step(id)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	return logits, nil
}

// prompt decodes one prompt on all sides, step by step, so that no more than one row of logits a side is kept.
func (r *run) prompt(ctx context.Context, p Prompt, index int) (*Result, error) {
	result := &Result{ID: p.ID, IDs: p.IDs, ReferenceIDs: []int{}, CandidateIDs: []int{}, Vacuous: []string{}, NonFinite: []NonFinite{}, Steps: []Step{}}
	if p.BOS >= 0 && p.IDs[0] != p.BOS {
		result.bos = fmt.Sprintf("%s=%d", r.token(p.BOS), p.BOS)
	}
	r.roundoff.reset()
	for _, s := range []side{r.reference, r.rounded, r.candidate} {
		if err := s.start(ctx, p.IDs); err != nil {
			return nil, err
		}
	}
	parted, err := r.decode(ctx, p, index*r.MaxTokens, result)
	if err != nil {
		return nil, err
	}
	if parted {
		// Only then: as long as the candidate chooses the reference's tokens, decoding freely is the same computation.
		if err := r.decodeFreely(ctx, p, result); err != nil {
			return nil, err
		}
	}
	for i := range result.NonFinite {
		if err := r.findBirth(ctx, p, result, &result.NonFinite[i]); err != nil {
			return nil, err
		}
	}
	r.progress(p.ID, (index+1)*r.MaxTokens)
	return result, nil
}

// decode lets the reference choose and all sides follow, until the reference ends or stops. done steps came before; parted tells
// whether the candidate chose another token anywhere.
func (r *run) decode(ctx context.Context, p Prompt, done int, result *Result) (parted bool, err error) {
	next, stopped := p.IDs[len(p.IDs)-1], false
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
		r.Progress(prompt, done, r.prompts*r.MaxTokens)
	}
}

// step feeds one token to all sides that have not stopped, and measures.
func (r *run) step(result *Result, number, id int, stopped bool) (Step, error) {
	nan := ctconv.Number(math.NaN())
	s := Step{Step: number, ReferenceID: NoToken, CandidateID: NoToken, Margin: nan, Gap: nan, KL: nan, MaxAbs: nan, Noise: nan}
	reference, err := r.reference.step(id)
	if err != nil {
		return s, err
	}
	if s.ReferenceNonFinite = engine.CountNonFinite(reference); s.ReferenceNonFinite == 0 {
		s.ReferenceID = engine.Greedy(reference)
		s.Margin = ctconv.Number(margin(reference))
		rounded, err := r.rounded.step(id)
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
	candidate, err := r.candidate.step(id)
	if err != nil {
		return s, err
	}
	if s.CandidateNonFinite = engine.CountNonFinite(candidate); s.CandidateNonFinite > 0 {
		result.NonFinite = append(result.NonFinite, NonFinite{Side: candidateSide, Step: number, Count: s.CandidateNonFinite, Of: len(candidate)})
	} else if s.ReferenceNonFinite == 0 {
		s.measure(reference, candidate)
	}
	return s, nil
}

// decodeFreely lets the candidate go its own way.
func (r *run) decodeFreely(ctx context.Context, p Prompt, result *Result) error {
	if err := r.candidate.Reset(); err != nil {
		return fmt.Errorf("%s: %w", r.candidate.name, err)
	}
	ids, _, err := engine.Generate(ctx, r.candidate.Session, p.IDs, engine.GenerateOptions{MaxTokens: r.MaxTokens, EOS: r.EOS})
	result.CandidateIDs = ids
	var bad *engine.NonFiniteError
	if errors.As(err, &bad) {
		result.NonFinite = append(result.NonFinite, NonFinite{Side: candidateSide, Step: bad.Step, Count: bad.Count, Of: bad.Of, Own: true})
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", r.candidate.name, err)
	}
	return nil
}

// token is how the model's vocabulary spells an id.
func (r *run) token(id int) string {
	if id < len(r.vocabulary) {
		return r.vocabulary[id]
	}
	return "BOS"
}
