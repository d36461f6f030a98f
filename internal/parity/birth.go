package parity

import (
	"context"
	"fmt"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// findBirth runs the side that stopped once more, on the tokens that it was fed, and looks at every op's output in order:
// all ops before the first bad one were finite.
func (r *run) findBirth(ctx context.Context, p Prompt, result *Result, bad *NonFinite) error {
	s, ids := r.candidate, result.ReferenceIDs
	switch {
	case bad.Side == referenceSide:
		s = r.reference
	case bad.Own:
		ids = result.CandidateIDs
	}
	ids = ids[:bad.Step-1] // step 1 was fed the prompt's last token
	found, err := engine.FindNonFinite(ctx, s.Session, p.IDs, ids)
	if err != nil {
		return fmt.Errorf("%s: look for the first NaN: %w", s.name, err)
	}
	if found == nil {
		return nil
	}
	bad.Birth = &Birth{Step: found.Site.Step, Layer: found.Site.Layer, Site: found.Site.Name, Family: string(found.Op.Family()),
		Count: found.Count, Of: found.Of, First: found.First}
	if op, ok := found.Op.(*engine.Activate); ok {
		bad.Birth.Op = op.F.String()
		bad.Birth.Inputs, err = r.inputs(ctx, s, p.IDs, ids, found)
	}
	return err
}

// inputs runs the text again to read what the op was given at the first bad index: the next layer writes to the same buffers.
func (r *run) inputs(ctx context.Context, s side, prompt, ids []int, found *engine.Birth) (inputs []Input, err error) {
	tap := s.Tap
	defer func() { s.Tap = tap }()
	s.Tap = func(op engine.Op) {
		if inputs != nil || err != nil || op.Site() != found.Site {
			return
		}
		out, in := op.Operands()
		var v float32
		// A long prompt passes the site more than once in step 0; the pass that was bad is the one.
		if v, err = element(out[0], found.First); err != nil || engine.CountNonFinite([]float32{v}) == 0 {
			return
		}
		for _, o := range in {
			if v, err = element(o, found.First); err != nil {
				return
			}
			inputs = append(inputs, Input{o.Name, ctconv.Number(v)})
		}
	}
	if err := s.start(ctx, prompt); err != nil {
		return nil, err
	}
	for _, id := range append([]int{prompt[len(prompt)-1]}, ids...) {
		if inputs != nil || err != nil || ctx.Err() != nil {
			break
		}
		if _, err := s.step(id); err != nil {
			return nil, err
		}
	}
	return inputs, err
}

// element reads element i of an operand, rows one after the other; 0 if this pass has fewer.
func element(o engine.Operand, i int) (float32, error) {
	if i >= o.Rows*o.Cols {
		return 0, nil
	}
	host, err := o.Buffer.Host()
	if err != nil {
		return 0, err
	}
	return num.Float32At(o.Buffer.DType(), host, o.Offset+i/o.Cols*o.Stride+i%o.Cols), nil
}
