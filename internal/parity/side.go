package parity

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/shadow"
)

const (
	referenceSide = "reference"
	candidateSide = "candidate"
)

// side is a session on a backend, and what it does in its own way.
type side struct {
	which string // referenceSide or candidateSide
	name  string // for errors: "candidate metal"
	*engine.Session
	own     Side
	backend engine.Backend
	decoder *engine.Decoder
	last    int  // of the prompt: the token that step 1 feeds
	dead    bool // the backend has failed, and stays so
}

// open loads the model on a backend.
func (r *run) open(which string, b engine.Backend, own Side) (*side, error) {
	s := &side{which: which, name: which + " " + b.Name(), own: own, backend: b}
	var err error
	if s.decoder, err = r.compute(b).Load(r.model, b); err == nil {
		s.Session, err = s.decoder.NewSession(r.capacity)
	}
	if err != nil {
		return nil, s.failed(err)
	}
	return s, nil
}

// reopen opens a side anew, on a backend of its own; close closes that.
func (r *run) reopen(s *side) (fresh *side, close func(), err error) {
	if r.Open == nil {
		return nil, nil, errors.New("no second backend can be opened")
	}
	b, err := r.Open(s.which)
	if err != nil {
		return nil, nil, fmt.Errorf("open a second backend: %w", err)
	}
	if fresh, err = r.open(s.which, b, s.own); err != nil {
		b.Close()
		return nil, nil, err
	}
	return fresh, func() { b.Close() }, nil
}

// prompt is what a side is fed.
func (own Side) prompt(ids []int) []int {
	if own.Prompt == nil {
		return ids
	}
	return own.Prompt(slices.Clone(ids))
}

// choose asks a side's sampler.
func (own Side) choose(logits []float32) int {
	if own.Choose == nil {
		return engine.Greedy(logits)
	}
	return own.Choose(logits)
}

// start feeds a prompt but its last token, to a side that has forgotten all before.
func (s *side) start(ctx context.Context, prompt []int) error {
	if err := s.forget(); err != nil {
		return err
	}
	return s.prefill(ctx, prompt)
}

func (s *side) forget() error {
	reset := s.Session.Reset
	if s.own.Reset != nil {
		reset = func() error { return s.own.Reset(s.Session) }
	}
	if err := reset(); err != nil {
		return s.failed(err)
	}
	if n := s.Len(); n > 0 {
		return s.failed(&staleError{n})
	}
	return nil
}

// staleError says that a side did not forget a text: its own mistake.
type staleError struct{ tokens int }

func (e *staleError) Error() string {
	return fmt.Sprintf("the cache still holds the %d tokens of the text before", e.tokens)
}

func (e *staleError) finding() shadow.Finding {
	inf := ctconv.Number(math.Inf(1))
	return shadow.Finding{Layer: engine.NoLayer, Site: "embed", Family: string(engine.FamilyKV), Op: "reset", Operand: "kcache",
		Between:  &shadow.Between{Writer: "the text before", Reader: "step 0 embed"},
		Elements: e.tokens, Bad: e.tokens, Ratio: inf, Worst: shadow.Worst{Error: ctconv.Number(e.tokens)}, Why: []string{e.Error()}}
}

func (s *side) prefill(ctx context.Context, prompt []int) error {
	ids := s.own.prompt(prompt)
	if len(ids) == 0 {
		return s.failed(errors.New("want a prompt of at least one token, got none"))
	}
	s.last = ids[len(ids)-1]
	if err := s.Prefill(ctx, ids[:len(ids)-1], nil); err != nil {
		return s.failed(err)
	}
	return nil
}

// scrub zeroes everything that ops write, as in a new session: what an earlier run left right must not hide what this one leaves out.
func (s *side) scrub() error {
	for _, op := range s.Program() {
		outs, _ := op.Operands(nil, nil)
		for _, o := range outs {
			host, err := o.Buffer.Host()
			if err != nil {
				return s.failed(err)
			}
			clear(host)
		}
	}
	return nil
}

// step feeds the token of a step. Step 1 feeds the prompt's last, whatever id is.
func (s *side) step(number, id int) ([]float32, error) {
	if number == 1 {
		id = s.last
	}
	logits, err := s.Step(id)
	if err != nil {
		return nil, s.failed(err)
	}
	return logits, nil
}

// sideError says which side failed.
type sideError struct {
	*side
	err error
}

func (s *side) failed(err error) error { return &sideError{s, err} }

func (e *sideError) Error() string { return e.name + ": " + e.err.Error() }

func (e *sideError) Unwrap() error { return e.err }
