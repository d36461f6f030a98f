package parity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"llmrun/internal/engine"
	"llmrun/internal/shadow"
)

// leg is a test of a backend against itself. An *unmeasured says why it could not be told.
type leg struct {
	name, what string
	test       func(*run, context.Context, *side, *legText) (outcome, error)
}

// outcome is what a leg has shown.
type outcome struct {
	broken string // where it breaks; "": it holds
	bits   bool   // to the last bit
	note   string

	finding *shadow.Finding // what broke it, if that is known
}

var legs = []leg{
	{"cache", "cached ≡ recomputed", (*run).cacheLeg},
	{"m1", "M=1 ≡ M=2..9, 33", (*run).rowsLeg},
	{"warm", "warm ≡ fresh", (*run).warmLeg},
	{"probe", "probe on ≡ probe off", (*run).probeLeg},
	{"concurrent", "two at once ≡ one by one", (*run).concurrentLeg},
	{fuseLegName, "fused ≡ one by one", (*run).fuseLeg},
}

const fuseLegName = "fuse" // of those backends alone that fuse ops

// LegNames lists the legs; DefaultLegs those that are tested unless others are asked for.
var (
	LegNames    = []string{"cache", "m1", "warm", "probe", "concurrent", fuseLegName}
	DefaultLegs = []string{"cache", "m1", fuseLegName}
)

// unmeasured is the reason why a leg could not be measured.
type unmeasured struct{ why string }

func (e *unmeasured) Error() string { return e.why }

// legSteps is how many tokens the legs decode.
const legSteps = 8

// legText is what the legs of a side decode: a prompt, and tokens after it.
type legText struct {
	prompt  []int
	chosen  []int
	allowed float64 // max|Δlogit| that rounding explains
}

// test runs the legs that are asked for, on both backends.
func (r *run) test(ctx context.Context, c *Comparison) error {
	for _, l := range legs {
		if !slices.Contains(r.Legs, l.name) {
			continue
		}
		for _, s := range []*side{r.reference, r.candidate} {
			if l.name == fuseLegName && len(fusions(s.backend)) == 0 {
				continue
			}
			if r.Working != nil {
				r.Working("legs: "+l.name+" on "+s.name, len(c.Legs), 2*len(r.Legs))
			}
			result := Leg{Name: l.name, What: l.what, Side: s.which, Backend: s.backend.Name(), State: LegHolds}
			found, err := r.testLeg(ctx, c, l, s)
			var reason *unmeasured
			switch {
			case errors.As(err, &reason):
				result.State, result.Why = LegUnmeasured, reason.why
			case err != nil && ctx.Err() != nil:
				return err
			case err != nil:
				result.State, result.Why = LegUnmeasured, err.Error()
			case found.broken != "":
				result.State, result.Why = LegBroken, found.broken
				if found.finding != nil && c.Culprit == nil {
					c.accuseFused(s.which, found.finding)
				}
			default:
				result.Bits, result.Why = found.bits, found.note
			}
			c.Legs = append(c.Legs, result)
		}
	}
	return nil
}

func (r *run) testLeg(ctx context.Context, c *Comparison, l leg, s *side) (outcome, error) {
	if s.dead {
		return outcome{}, &unmeasured{"the backend has failed"}
	}
	if err := s.Session.Reset(); err != nil {
		return outcome{}, s.failed(err)
	}
	if err := s.scrub(); err != nil {
		return outcome{}, err
	}
	own := s.own
	s.own = Side{} // the backend is tested, not what it is fed
	defer func() { s.own = own }()
	if l.name == fuseLegName {
		return l.test(r, ctx, s, c.fusedText())
	}
	return l.test(r, ctx, s, c.legText(s))
}

// legText is the first prompt whose logits are finite on the side, with as many tokens as that one has.
func (c *Comparison) legText(s *side) *legText {
	var best *legText
	for i := range c.Prompts {
		r := &c.Prompts[i]
		n := len(r.ReferenceIDs)
		for _, bad := range r.NonFinite {
			if bad.Side == s.which {
				n = min(n, bad.Step-1)
			}
		}
		if n = min(n, legSteps); n > 0 && (best == nil || n > len(best.chosen)) {
			best = &legText{r.IDs, r.ReferenceIDs[:n], c.allowed(r)}
		}
	}
	return best
}

var errNoText = &unmeasured{"no prompt has finite logits"}

// decodeRows feeds a text and gives a row of logits for each chosen token.
func (s *side) decodeRows(ctx context.Context, t *legText) ([][]float32, error) {
	if err := s.start(ctx, t.prompt); err != nil {
		return nil, err
	}
	rows := make([][]float32, 0, len(t.chosen))
	for i := range t.chosen {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		next := 0
		if i > 0 {
			next = t.chosen[i-1]
		}
		logits, err := s.step(i+1, next)
		if err != nil {
			return nil, err
		}
		rows = append(rows, slices.Clone(logits))
	}
	return rows, nil
}

// same holds a row of logits to another of the same backend: the reference guarantees its bits; any other may round differently.
func (t *legText) same(s *side, step int, want, got []float32) (broken string, bits bool) {
	if equalBits(want, got) && engine.CountNonFinite(want) == 0 {
		return "", true
	}
	allowed := t.allowed
	if s.backend.Name() == "cpu" {
		allowed = 0
	}
	if d := maxAbs(want, got); !(d <= allowed) {
		return fmt.Sprintf("step %d: max|Δlogit| %.2g, allowed %.2g", step, d, allowed), false
	}
	return "", false
}

// equalBits: the same bits, NaNs included.
func equalBits(x, y []float32) bool {
	return slices.EqualFunc(x, y, func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) })
}

// sameRows holds rows to rows; the first difference is told.
func (t *legText) sameRows(s *side, want, got [][]float32) outcome {
	all := outcome{bits: true}
	for i := range want {
		broken, bits := t.same(s, i+1, want[i], got[i])
		if broken != "" {
			return outcome{broken: broken}
		}
		all.bits = all.bits && bits
	}
	return all
}

// prefillsAsDecoded is the most tokens of which CTranslate2 computes the same in one piece as one by one, and what is otherwise beyond.
func (s *side) prefillsAsDecoded() (most int, why string) {
	most = math.MaxInt
	for _, op := range s.Session.Program() {
		if o, ok := op.(*engine.Scores); ok && o.Window > 0 && o.Window < most {
			most, why = o.Window, fmt.Sprintf("sees all of itself as it is prefilled, and no more than %d while CTranslate2 decodes", o.Window)
		}
	}
	if chunk := s.decoder.Chunk; chunk > 0 && chunk <= most {
		most, why = chunk, fmt.Sprintf("is fed in chunks of %d, where CTranslate2 masks otherwise than while it decodes", chunk)
	}
	return most, why
}

// cacheLeg: the text so far, prefilled anew, gives the logits that decoding it token by token gave.
func (r *run) cacheLeg(ctx context.Context, s *side, t *legText) (outcome, error) {
	if t == nil {
		return outcome{}, errNoText
	}
	longest, why := s.prefillsAsDecoded()
	if len(t.prompt) > longest {
		return outcome{}, &unmeasured{fmt.Sprintf("a prompt of %d tokens %s", len(t.prompt), why)}
	}
	cached, err := s.decodeRows(ctx, t)
	if err != nil {
		return outcome{}, err
	}
	bits := true
	for _, step := range []int{2, len(cached)/2 + 1, len(cached)} {
		if step < 2 || step > len(cached) {
			continue
		}
		whole := text(t.prompt, t.chosen[:step-1])
		if len(whole)-1 > longest {
			if step == 2 {
				return outcome{}, &unmeasured{fmt.Sprintf("a text of %d tokens %s", len(whole)-1, why)}
			}
			break
		}
		if err := s.start(ctx, whole); err != nil {
			return outcome{}, err
		}
		logits, err := s.step(1, 0)
		if err != nil {
			return outcome{}, err
		}
		broken, same := t.same(s, step, cached[step-1], logits)
		if broken != "" {
			return outcome{broken: broken}, nil
		}
		bits = bits && same
	}
	if len(cached) < 2 {
		return outcome{}, &unmeasured{"nothing was decoded after the first token"}
	}
	return outcome{bits: bits}, nil
}

// probeLeg: reading every op's output changes nothing.
func (r *run) probeLeg(ctx context.Context, s *side, t *legText) (outcome, error) {
	if t == nil {
		return outcome{}, errNoText
	}
	plain, err := s.decodeRows(ctx, t)
	if err != nil {
		return outcome{}, err
	}
	probe := &probe{}
	s.Before, s.Tap = probe.read, probe.read
	defer func() { s.Before, s.Tap = nil, nil }()
	probed, err := s.decodeRows(ctx, t)
	if err == nil {
		err = probe.err
	}
	if err != nil {
		return outcome{}, err
	}
	return t.sameRows(s, plain, probed), nil
}

// probe reads all that an op writes and reads.
type probe struct {
	sum byte // so that the bytes are looked at
	err error
}

func (p *probe) read(op engine.Op) {
	outs, ins := op.Operands(nil, nil)
	for _, o := range append(outs, ins...) {
		host, err := o.Buffer.Host()
		if err != nil {
			p.err = err
			return
		}
		size := o.Buffer.DType().Size()
		for r := range o.Rows {
			for _, b := range host[(o.Offset+r*o.Stride)*size:][:o.Cols*size] {
				p.sum ^= b
			}
		}
	}
}

// warmLeg: a session that has seen other texts says what a fresh one says; on a fresh backend, if one can be opened.
func (r *run) warmLeg(ctx context.Context, s *side, t *legText) (outcome, error) {
	if t == nil {
		return outcome{}, errNoText
	}
	for _, p := range r.prompts {
		if err := s.start(ctx, p.IDs); err != nil {
			return outcome{}, err
		}
		if _, err := s.step(1, 0); err != nil {
			return outcome{}, err
		}
	}
	warm, err := s.decodeRows(ctx, t)
	if err != nil {
		return outcome{}, err
	}
	fresh := *s
	if r.Open != nil {
		opened, done, err := r.reopen(s)
		if err != nil {
			return outcome{}, &unmeasured{err.Error()}
		}
		defer done()
		fresh = *opened
	} else if fresh.Session, err = s.decoder.NewSession(r.capacity); err != nil {
		return outcome{}, s.failed(err)
	}
	cold, err := fresh.decodeRows(ctx, t)
	if err != nil {
		return outcome{}, err
	}
	return t.sameRows(s, cold, warm), nil
}

// concurrentLeg: two backends that decode at once say what one says alone.
func (r *run) concurrentLeg(ctx context.Context, s *side, t *legText) (outcome, error) {
	if t == nil {
		return outcome{}, errNoText
	}
	alone, err := s.decodeRows(ctx, t)
	if err != nil {
		return outcome{}, err
	}
	twin, done, err := r.reopen(s)
	if err != nil {
		return outcome{}, &unmeasured{err.Error()}
	}
	defer done()
	other := make(chan error)
	var there [][]float32
	go func() {
		var err error
		there, err = twin.decodeRows(ctx, t)
		other <- err
	}()
	here, err := s.decodeRows(ctx, t)
	if e := <-other; err == nil {
		err = e
	}
	if err != nil {
		return outcome{}, err
	}
	one, two := t.sameRows(s, alone, here), t.sameRows(s, alone, there)
	return outcome{broken: cmp.Or(one.broken, two.broken), bits: one.bits && two.bits}, nil
}
