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
	found, err := engine.FindNonFinite(ctx, s.Session, s.own.prompt(p.IDs), ids)
	if err != nil {
		return s.failed(fmt.Errorf("look for the first NaN: %w", err))
	}
	if found == nil {
		return nil
	}
	bad.Birth = &Birth{Step: found.Site.Step, Layer: found.Site.Layer, Site: found.Site.Name, Family: string(found.Op.Family()),
		Count: found.Count, Of: found.Of, First: found.First}
	if op, ok := found.Op.(*engine.Activate); ok {
		bad.Birth.Op = op.F.String()
	}
	return r.readOperands(ctx, s, p.IDs, ids, found.Site, bad.Birth)
}

// readOperands runs the text again to read the first bad element and what the op made it of: by the end of the step, later layers
// have written to the same buffers.
func (r *run) readOperands(ctx context.Context, s *side, prompt, ids []int, site engine.Site, b *Birth) (err error) {
	tap := s.Tap
	defer func() { s.Tap = tap }()
	s.Tap = func(op engine.Op) {
		// A long prompt passes the site more than once in step 0; the pass that was bad is the one.
		if b.Value == "" && err == nil && op.Site() == site {
			err = b.read(op)
		}
	}
	if err := s.start(ctx, prompt); err != nil {
		return err
	}
	for i, id := range append([]int{0}, ids...) {
		if b.Value != "" || err != nil || ctx.Err() != nil {
			break
		}
		if _, err := s.step(i+1, id); err != nil {
			return err
		}
	}
	return err
}

// read takes down the op's first bad element, if it is bad in this pass, and its inputs.
func (b *Birth) read(op engine.Op) error {
	outs, ins := op.Operands(nil, nil)
	for _, o := range outs {
		if v, err := element(o, b.First); err != nil {
			return err
		} else if b.Value == "" && engine.CountNonFinite([]float32{v}) > 0 {
			b.Value = ctconv.Number(v).String()
		}
	}
	if b.Value == "" {
		return nil
	}
	switch op.(type) {
	case *engine.Activate, *engine.Add, *engine.SoftCap:
		for _, o := range ins {
			v, err := element(o, b.First)
			if err != nil {
				return err
			}
			b.Inputs = append(b.Inputs, Input{o.Name, ctconv.Number(v)})
		}
	}
	return nil
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
