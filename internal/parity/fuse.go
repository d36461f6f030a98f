package parity

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"llmrun/internal/engine"
	"llmrun/internal/num"
	"llmrun/internal/shadow"
)

// Whoever looks between two ops sees no fused kernel, so what such a kernel does wrong no shadow finds. The fuse leg does: it decodes with and
// without, and looks where fused kernels end.

// fusions lists a backend's fused kernels that are in use.
func fusions(b engine.Backend) []engine.Fusion {
	if f, ok := b.(engine.Fuser); ok {
		return f.Fusions()
	}
	return nil
}

// only leaves those fusions on.
func (s *side) only(on ...engine.Fusion) {
	for _, f := range fusions(s.backend) {
		s.backend.(engine.Fuser).SetFusion(f.Name, slices.Contains(on, f))
	}
}

// fusedText is what the fuse leg decodes: the suspicious prompt, up to the step that is, and a few steps at least.
func (c *Comparison) fusedText() *legText {
	if len(c.Prompts) == 0 {
		return nil
	}
	at := c.suspect()
	r := &c.Prompts[at.prompt]
	n := min(len(r.ReferenceIDs), max(legSteps, at.step))
	if n == 0 {
		return nil
	}
	return &legText{r.IDs, r.ReferenceIDs[:n], c.allowed(r)}
}

// fuseLeg: attention is what its inputs make it and changes logits by rounding alone, and all other fused kernels change no bit.
func (r *run) fuseLeg(ctx context.Context, s *side, t *legText) (outcome, error) {
	if t == nil {
		return outcome{}, errNoText
	}
	all := fusions(s.backend)
	defer s.only(all...)
	s.only()
	plain, err := s.decodeRows(ctx, t)
	if err != nil {
		return outcome{}, err
	}
	s.only(all...)
	judge := newAttentionJudge(all)
	fused, err := s.tapped(ctx, t, judge.tap)
	if err := cmp.Or(judge.err, err); err != nil {
		return outcome{}, err
	}
	if judge.found != nil {
		return outcome{broken: judge.found.Site, finding: judge.found}, nil
	}
	exact := slices.DeleteFunc(slices.Clone(all), func(f engine.Fusion) bool { return !f.Exact })
	s.only(exact...)
	bits, err := s.decodeRows(ctx, t)
	if err != nil {
		return outcome{}, err
	}
	if !sameBits(plain, bits) {
		return s.guilty(ctx, t, plain, exact)
	}
	return outcome{broken: t.rounding(plain, fused), bits: len(exact) == len(all), note: judge.note()}, nil
}

// accuseFused names a fused kernel. Its parts are right: they were followed, or decode as they have to.
func (c *Comparison) accuseFused(which string, f *shadow.Finding) {
	f.Why = []string{"its parts, one by one, give other results: --metal-fuse off"}
	c.accuse(which, c.suspect().prompt, []shadow.Finding{*f})
	c.Culprit.Heals, c.Culprit.Confirmed = []string{"--metal-fuse off"}, true
}

// rounding holds rows of fused kernels to those of plain ones, as long as the plain ones are finite.
func (t *legText) rounding(plain, fused [][]float32) (broken string) {
	for i := range plain {
		if engine.CountNonFinite(plain[i]) > 0 {
			break // float16 scores have left their type, where a fused kernel has none
		}
		if d := maxAbs(plain[i], fused[i]); !(d <= t.allowed) {
			return fmt.Sprintf("step %d: max|Δlogit| %.2g, allowed %.2g", i+1, d, t.allowed)
		}
	}
	return ""
}

func sameBits(x, y [][]float32) bool { return slices.EqualFunc(x, y, equalBits) }

// guilty finds the first exact fusion that changes bits by itself, and the first product that was given other ones.
func (s *side) guilty(ctx context.Context, t *legText, plain [][]float32, exact []engine.Fusion) (outcome, error) {
	for _, f := range exact {
		s.only(f)
		alone, err := s.decodeRows(ctx, t)
		if err != nil {
			return outcome{}, err
		}
		if sameBits(plain, alone) {
			continue
		}
		p := &products{fusion: f, inside: strings.Split(f.Ops, "+")}
		for _, on := range [][]engine.Fusion{nil, {f}} {
			s.only(on...)
			p.at = 0
			if _, err := s.tapped(ctx, t, p.tap); cmp.Or(p.err, err) != nil {
				return outcome{}, cmp.Or(p.err, err)
			}
			p.compare = true
		}
		return outcome{broken: "fused " + f.Name + " changes bits", finding: p.found}, nil
	}
	return outcome{broken: "no fused kernel changes bits alone, together they do"}, nil
}

// tapped decodes under a tap.
func (s *side) tapped(ctx context.Context, t *legText, tap func(engine.Op)) ([][]float32, error) {
	s.Tap = tap
	defer func() { s.Tap = nil }()
	return s.decodeRows(ctx, t)
}

// attentionTime is how long attention may be judged on one backend. A large model's layers are alike.
const attentionTime = 20 * time.Second

// attentionJudge is a tap that looks where attention ends, and so leaves it in one piece.
type attentionJudge struct {
	fusion   engine.Fusion
	scores   *engine.Scores
	deadline time.Time
	seen     int // attention ops
	judged   int
	found    *shadow.Finding // the first
	err      error
}

func newAttentionJudge(all []engine.Fusion) *attentionJudge {
	j := &attentionJudge{deadline: time.Now().Add(attentionTime)}
	if i := slices.IndexFunc(all, func(f engine.Fusion) bool { return !f.Exact }); i >= 0 {
		j.fusion = all[i]
	}
	return j
}

func (j *attentionJudge) tap(op engine.Op) {
	if o, ok := op.(*engine.Scores); ok {
		j.scores = o
	}
	o, ok := op.(*engine.Context)
	if !ok || j.fusion.Name == "" || j.found != nil || j.err != nil {
		return
	}
	if j.seen++; time.Now().Before(j.deadline) {
		j.judged++
		j.found, j.err = shadow.Attention(j.fusion, j.scores, o)
	}
}

func (j *attentionJudge) note() string {
	if j.judged == j.seen {
		return ""
	}
	return fmt.Sprintf("attention judged %d of %d times, in %v", j.judged, j.seen, attentionTime)
}

// products is a tap that keeps the last row of each product that a fused kernel has no part in; the second time it compares.
type products struct {
	fusion  engine.Fusion
	inside  []string // sites of the fusion
	compare bool
	at      int
	rows    [][]float32
	found   *shadow.Finding // the first
	err     error
}

func (p *products) tap(op engine.Op) {
	o, ok := op.(*engine.Linear)
	if !ok || slices.Contains(p.inside, o.Name) || p.err != nil || p.found != nil {
		return
	}
	host, err := o.Out.Host()
	if err != nil {
		p.err = err
		return
	}
	d, row := o.Out.DType(), make([]float32, o.W.Rows)
	num.Float32s(row, d, host[(o.Rows()-1)*o.W.Rows*d.Size():])
	if !p.compare {
		p.rows = append(p.rows, row)
		return
	}
	p.found = shadow.Apart(p.fusion, o, p.rows[p.at], row)
	p.at++
}
