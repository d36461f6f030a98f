package parity

import (
	"slices"
	"testing"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
)

// spoil puts one value into the logits of a step, at an id that would not be chosen.
func spoil(at int, v float32) func(int, []float32) {
	return func(step int, l []float32) {
		if step == at {
			l[(engine.Greedy(l)+1)%len(l)] = v
		}
	}
}

// TestCandidateNonFinite: a single logit that is not finite stops the candidate, though Greedy would not choose it.
func TestCandidateNonFinite(t *testing.T) {
	for _, v := range []float32{nan32, inf32, -inf32} {
		for _, allow := range []bool{false, true} {
			c := compare(t, cpu(t), logits(t, spoil(3, v)), Options{AllowVacuous: allow}, short)
			c.expect(t, Diverged, ExitDiverged)
			r := c.Prompts[0]
			u := ClassUnmeasured
			if want := []Class{ClassMatch, ClassMatch, ClassNonFinite, u, u, u, u, u}; !slices.Equal(r.classes(), want) {
				t.Errorf("%v: %v", v, r.classes())
			}
			if len(r.ReferenceIDs) != 8 || !slices.Equal(r.CandidateIDs, r.ReferenceIDs[:2]) || r.Compared != 2 {
				t.Errorf("%v: reference %v, candidate %v, %d compared", v, r.ReferenceIDs, r.CandidateIDs, r.Compared)
			}
			if *r.FirstFlip != 3 || r.Steps[2].CandidateNonFinite != 1 || r.Steps[2].CandidateID != NoToken {
				t.Errorf("%v: first flip %d, %+v", v, *r.FirstFlip, r.Steps[2])
			}
			if s := r.Steps[2]; s.MaxAbs == s.MaxAbs || s.KL == s.KL {
				t.Errorf("%v: numbers of what cannot be compared: %+v", v, s)
			}
			if want := "short: step 3: 1 of 97 logits of the candidate are NaN or infinite, born at step 3 lm_head"; c.Reason != want {
				t.Errorf("%v: %s", v, c.Reason)
			}
		}
	}
}

func TestReferenceNonFinite(t *testing.T) {
	for _, test := range []struct {
		at       int // step of the reference's NaN
		compared int
		both     bool
	}{{3, 2, false}, {1, 0, false}, {3, 2, true}} {
		candidate := cpu(t)
		if test.both {
			candidate = logits(t, spoil(test.at, nan32))
		}
		c := compare(t, logits(t, spoil(test.at, nan32)), candidate, Options{}, short)
		c.expect(t, Inconclusive, ExitInconclusive)
		r := c.Prompts[0]
		if r.Compared != test.compared || len(r.Steps) != test.at || r.FirstFlip != nil || len(r.ReferenceIDs) != test.compared {
			t.Errorf("%+v: %+v", test, r)
		}
		if n := r.NonFinite[0]; n.Side != "reference" || n.Step != test.at || n.Birth.Site != "lm_head" {
			t.Errorf("%+v: %+v", test, n)
		}
		if c.Gates[2].OK || c.Gates[3].OK != (test.compared > 0) {
			t.Errorf("%+v: %+v", test, c.Gates)
		}
	}
}

// TestCandidateBeforeReference: the candidate stopped while the reference was still right.
func TestCandidateBeforeReference(t *testing.T) {
	c := compare(t, logits(t, spoil(5, nan32)), logits(t, spoil(3, nan32)), Options{}, short)
	c.expect(t, Diverged, ExitDiverged)
}

// TestOwnTokens: after a near tie the candidate is wrong where only its own tokens lead.
func TestOwnTokens(t *testing.T) {
	tie := near(-0x1p-20)
	candidate := altered{cpu(t), func(op engine.Op, out []float32) []float32 {
		switch site := op.Site(); site.Name {
		case "lm_head":
			tie(site.Step, out)
		case "embed":
			if out[0] == fed(t, 9) && site.Step == 3 {
				out[0] = nan32
			}
		default:
			return nil
		}
		return out
	}}
	c := compare(t, logits(t, near(-0x1p-20)), candidate, Options{}, short)
	c.expect(t, Match, ExitMatch) // both choose 6, and nothing leads to 9

	tie = near(0x1p-20)
	c = compare(t, logits(t, near(-0x1p-20)), candidate, Options{}, short)
	c.expect(t, Diverged, ExitDiverged)
	r := c.Prompts[0]
	if r.FirstFlip != nil || r.Steps[1].Class != ClassNearTie || r.Compared != 8 || len(r.CandidateIDs) != 2 {
		t.Errorf("%+v", r)
	}
	if n := r.NonFinite[0]; !n.Own || n.Step != 3 || n.Birth.Site != "embed" || n.Birth.Layer != engine.NoLayer {
		t.Errorf("%+v", n)
	}
}

// fed is the first element of an id's embedding.
func fed(t *testing.T, id int) (first float32) {
	w := golden(t, "m_llama")
	spy := altered{cpu(t), func(op engine.Op, out []float32) []float32 {
		if op.Site().Name == "embed" {
			first = out[0]
		}
		return nil
	}}
	d, err := engine.Load(w, spy)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewSession(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Step(id); err != nil {
		t.Fatal(err)
	}
	return first
}

// TestBirth: the NaN is born in an early layer; the layers after it overwrite the buffers that the op read.
func TestBirth(t *testing.T) {
	var gate, up float32
	candidate := altered{cpu(t), func(op engine.Op, out []float32) []float32 {
		a, ok := op.(*engine.Activate)
		if site := op.Site(); !ok || site.Layer != 0 || site.Step != 4 {
			return nil
		}
		_, in := a.Operands(nil, nil)
		gate, _ = element(in[0], 11)
		up, _ = element(in[1], 11)
		out[11], out[13] = nan32, inf32
		return out
	}}
	c, err := Compare(t.Context(), golden(t, "m_gemma2"), cpu(t), candidate, []Prompt{short}, Options{MaxTokens: 8})
	if err != nil {
		t.Fatal(err)
	}
	c.expect(t, Diverged, ExitDiverged)
	b := c.Prompts[0].NonFinite[0].Birth
	if b.Where() != "step 4 layer 0 act (gelu_tanh)" || b.Family != "activation" || b.Count != 2 || b.Of < 14 || b.First != 11 || b.Value != "NaN" {
		t.Errorf("%+v", b)
	}
	if c.Prompts[0].NonFinite[0].Count != 97 {
		t.Errorf("%+v", c.Prompts[0].NonFinite[0])
	}
	if !slices.Equal(b.Inputs, []Input{{"gate", ctconv.Number(gate)}, {"up", ctconv.Number(up)}}) || gate == 0 {
		t.Errorf("inputs %v, want gate %v, up %v", b.Inputs, gate, up)
	}
}
