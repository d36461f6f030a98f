package engine

import (
	"context"
	"fmt"
	"slices"

	"llmrun/internal/num"
)

// GenerateOptions says how a text goes on.
type GenerateOptions struct {
	MaxTokens int
	EOS       []int    // ids that end the text; the end token is part of the ids
	Sampler   *Sampler // nil: Greedy
	Progress  func(promptTokens int)
	// Emit, if set, sees each token as it is chosen, with the logits that it was chosen from; false ends the text.
	Emit func(id int, logits []float32) bool
}

// Finish is why a text ended.
type Finish string

// The reasons.
const (
	FinishLength Finish = "length"
	FinishEOS    Finish = "eos"
	FinishStop   Finish = "stop"
)

// NonFiniteError reports logits that are NaN or infinite. They never become a token.
type NonFiniteError struct {
	Step      int
	Count, Of int
}

func (e *NonFiniteError) Error() string {
	return fmt.Sprintf("step %d: %d of %d logits are NaN or infinite", e.Step, e.Count, e.Of)
}

// Generate feeds a prompt to an empty session and decodes. The ids chosen so far are returned with an error, too.
func Generate(ctx context.Context, s *Session, prompt []int, o GenerateOptions) (ids []int, finish Finish, err error) {
	if len(prompt) == 0 {
		return nil, "", fmt.Errorf("want a prompt of at least one token, got none")
	}
	last := len(prompt) - 1
	if err := s.Prefill(ctx, prompt[:last], o.Progress); err != nil {
		return nil, "", err
	}
	choose := Greedy
	if o.Sampler != nil {
		choose = o.Sampler.Sample
	}
	for next := prompt[last]; len(ids) < o.MaxTokens; {
		if err := ctx.Err(); err != nil {
			return ids, "", err
		}
		step := s.step
		logits, err := s.Step(next)
		if err != nil {
			return ids, "", err
		}
		if n := CountNonFinite(logits); n > 0 {
			return ids, "", &NonFiniteError{max(step, 1), n, len(logits)}
		}
		next = choose(logits)
		ids = append(ids, next)
		if o.Emit != nil && !o.Emit(next, logits) {
			return ids, FinishStop, nil
		}
		if slices.Contains(o.EOS, next) {
			return ids, FinishEOS, nil
		}
	}
	return ids, FinishLength, nil
}

// Birth is the first op of a run whose output has a NaN or an infinity.
type Birth struct {
	Site      Site
	Op        Op // as it was: its Pass has moved on
	Count, Of int
	First     int // index of the first one in the output, rows one after the other
}

// FindNonFinite runs a text again, all but its last token as prompt's prefill and steps were, and looks at every output.
// prompt is prefilled but for its last token; then that token and ids are fed one by one. It returns nil if all is finite.
func FindNonFinite(ctx context.Context, s *Session, prompt, ids []int) (birth *Birth, err error) {
	tap := s.Tap
	defer func() { s.Tap = tap }()
	if err := s.Reset(); err != nil {
		return nil, err
	}
	s.Tap = func(op Op) {
		if birth == nil && err == nil {
			birth, err = nonFiniteOutput(op)
		}
	}
	last := len(prompt) - 1
	if e := s.Prefill(ctx, prompt[:last], nil); e != nil {
		return nil, e
	}
	for _, id := range append([]int{prompt[last]}, ids...) {
		if _, e := s.Step(id); e != nil {
			return nil, e
		}
		if birth != nil || err != nil || ctx.Err() != nil {
			break
		}
	}
	return birth, err
}

// nonFiniteOutput looks at what op wrote just now.
func nonFiniteOutput(op Op) (*Birth, error) {
	outs, _ := op.Operands(nil, nil)
	for _, o := range outs {
		host, err := o.Buffer.Host()
		if err != nil {
			return nil, err
		}
		b := &Birth{Site: op.Site(), Op: op, Of: o.Rows * o.Cols}
		row := make([]float32, o.Cols)
		size := o.Buffer.DType().Size()
		for r := range o.Rows {
			num.Float32s(row, o.Buffer.DType(), host[(o.Offset+r*o.Stride)*size:])
			if n := CountNonFinite(row); n > 0 {
				if b.Count == 0 {
					b.First = r*o.Cols + slices.IndexFunc(row, nonFinite)
				}
				b.Count += n
			}
		}
		if b.Count > 0 {
			return b, nil
		}
	}
	return nil, nil
}
