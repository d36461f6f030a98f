package parity

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"llmrun/internal/engine"
)

func TestMatch(t *testing.T) {
	c := compare(t, cpu(t), cpu(t), Options{}, short, Prompt{ID: "one", IDs: []int{1}, BOS: 1})
	c.expect(t, Match, ExitMatch)
	for _, r := range c.Prompts {
		if r.Matched != 8 || r.Compared != 8 || r.FirstFlip != nil || len(r.Vacuous) > 0 || len(r.NonFinite) > 0 {
			t.Errorf("%s: %+v", r.ID, r)
		}
		if !slices.Equal(r.ReferenceIDs, r.CandidateIDs) {
			t.Errorf("%s: %v, %v", r.ID, r.ReferenceIDs, r.CandidateIDs)
		}
		// Float32 rounding moves logits of size 1 by more than one rounding, and by far less than a margin.
		if !(r.Noise > 0x1p-24 && r.Noise < 1e-3) {
			t.Errorf("%s: noise %v", r.ID, r.Noise)
		}
		for i, s := range r.Steps {
			if s.Step != i+1 || s.Class != ClassMatch || s.MaxAbs != 0 || s.KL != 0 || s.Top != topK || s.Gap != 0 || !(s.Margin > 0) {
				t.Errorf("%s: %+v", r.ID, s)
			}
		}
	}
	for _, g := range c.Gates {
		if !g.OK {
			t.Errorf("%+v", g)
		}
	}
}

func TestFlip(t *testing.T) {
	c := compare(t, cpu(t), logits(t, func(step int, l []float32) {
		if step == 3 {
			l[5] = 100
		}
	}), Options{}, short)
	c.expect(t, Diverged, ExitDiverged)
	r := c.Prompts[0]
	if r.FirstFlip == nil || *r.FirstFlip != 3 || r.Steps[2].CandidateID != 5 || !(r.Steps[2].Gap > 0) {
		t.Errorf("first flip %v: %+v", r.FirstFlip, r.Steps[2])
	}
	// The candidate goes on with the reference's tokens, so the steps after it agree; by itself it says something else.
	if r.Matched != 7 || r.Compared != 8 {
		t.Errorf("%d of %d steps match, want 7 of 8", r.Matched, r.Compared)
	}
	if len(r.CandidateIDs) != 8 || !slices.Equal(r.CandidateIDs[:2], r.ReferenceIDs[:2]) || r.CandidateIDs[2] != 5 {
		t.Errorf("the candidate alone: %v, the reference %v", r.CandidateIDs, r.ReferenceIDs)
	}
	if !strings.HasPrefix(c.Reason, "short: step 3: flip: id 5, want") {
		t.Error(c.Reason)
	}
}

// near puts two ids on top at step 2, id 9 above id 6 by so much.
func near(gap float32) func(int, []float32) {
	return func(step int, l []float32) {
		if step == 2 {
			winner(l, 6)
			l[9] = 8 + gap
		}
	}
}

func TestTies(t *testing.T) {
	for _, test := range []struct {
		name                 string
		reference, candidate float32
		class                Class
	}{
		{"near tie", 0x1p-20, -0x1p-20, ClassNearTie},
		{"exact tie", 0, 0x1p-20, ClassExactTie},
		{"both exact: the lowest id, twice", 0, 0, ClassMatch},
		{"too far for rounding", 0x1p-5, -0x1p-5, ClassFlip},
		{"exact, and too far for rounding", 0, 0x1p-5, ClassFlip},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, strict := range []bool{false, true} {
				c := compare(t, logits(t, near(test.reference)), logits(t, near(test.candidate)), Options{Strict: strict}, short)
				r := c.Prompts[0]
				if r.Steps[1].Class != test.class {
					t.Errorf("strict %t: %+v, allowed %v", strict, r.Steps[1], r.Allowed)
				}
				if test.class == ClassFlip || strict && test.class != ClassMatch {
					c.expect(t, Diverged, ExitDiverged)
				} else {
					c.expect(t, Match, ExitMatch)
				}
			}
		})
	}
}

// TestNoExcuse: a candidate that is wrong at every step does not turn its flips into near ties, nor equal tokens into a match.
func TestNoExcuse(t *testing.T) {
	for seed := range uint64(5) {
		random := rand.New(rand.NewPCG(seed, 0))
		c := compare(t, cpu(t), logits(t, func(_ int, l []float32) {
			for i := range l {
				l[i] += float32(random.NormFloat64())
			}
		}), Options{MaxTokens: 24}, short)
		if c.Verdict == Match {
			t.Errorf("seed %d: %s", seed, c.Verdict)
		}
		for _, s := range c.Prompts[0].Steps {
			if s.Class == ClassNearTie || s.Class == ClassExactTie {
				t.Errorf("seed %d: %+v", seed, s)
			}
		}
	}
}

// TestEqualTokensWrongLogits: one logit that no one chooses is wrong.
func TestEqualTokensWrongLogits(t *testing.T) {
	c := compare(t, cpu(t), logits(t, func(step int, l []float32) {
		if step == 4 {
			l[engine.Greedy(l)] += 0.25
		}
	}), Options{AllowVacuous: true}, short)
	c.expect(t, Inconclusive, ExitInconclusive) // the run is not vacuous, so AllowVacuous excuses nothing
	if r := c.Prompts[0]; r.Matched != 8 || r.Beyond != 1 {
		t.Errorf("%d match, %d beyond rounding", r.Matched, r.Beyond)
	}
	if !strings.HasPrefix(c.Reason, "short: max|Δlogit| 0.25 at step 4 with equal tokens, rounding explains ") {
		t.Error(c.Reason)
	}
}

func TestEOSEnds(t *testing.T) {
	full := compare(t, cpu(t), cpu(t), Options{}, short).Prompts[0].ReferenceIDs
	c := compare(t, cpu(t), cpu(t), Options{EOS: []int{full[2]}}, short)
	c.expect(t, Match, ExitMatch)
	if r := c.Prompts[0]; !slices.Equal(r.ReferenceIDs, full[:3]) || r.Compared != 3 {
		t.Errorf("%d steps, %v", r.Compared, r.ReferenceIDs)
	}
}

func TestInterrupted(t *testing.T) {
	for _, wrong := range []bool{false, true} {
		ctx, cancel := context.WithCancel(context.Background())
		candidate := logits(t, func(step int, l []float32) {
			if wrong && step == 3 {
				l[5] = 100
			}
		})
		steps := 0
		c, err := Compare(ctx, golden(t, "m_llama"), cpu(t), candidate, []Prompt{short, {ID: "second", IDs: []int{1, 2}, BOS: 1}}, Options{
			MaxTokens: 4,
			Progress: func(prompt string, done, total int) {
				steps = done
				if prompt == "second" {
					cancel()
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		verdict := Inconclusive
		if wrong {
			verdict = Diverged
		}
		c.expect(t, verdict, ExitInterrupted)
		if len(c.Prompts) != 1 || !c.Interrupted || steps != 5 {
			t.Errorf("%d prompts, interrupted %t, %d steps", len(c.Prompts), c.Interrupted, steps)
		}
		if !wrong && c.Reason != "interrupted after 1 of 2 prompts" {
			t.Error(c.Reason)
		}
	}
}

// Sides that decode together find what they find in turn.
func TestTogether(t *testing.T) {
	for _, change := range []func(step int, l []float32){
		func(int, []float32) {},
		func(step int, l []float32) {
			if step == 3 {
				l[5] = 100
			}
		},
		func(step int, l []float32) {
			if step == 2 {
				l[7] = nan32
			}
		},
	} {
		var found [2][]byte
		for i := range found {
			worked := 0 // ops
			c := compare(t, cpu(t), logits(t, change), Options{Together: i == 1, Shadow: ShadowAll, Working: func(what string, done, total int) {
				if what == "shadow of "+short.ID {
					if worked++; done != worked || done > total {
						t.Errorf("after %d ops it was told of %d of %d", worked, done, total)
					}
				}
			}}, short)
			if worked == 0 {
				t.Error("nobody was told of the ops")
			}
			var err error
			if found[i], err = json.Marshal(c); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(found[0], found[1]) {
			t.Errorf("in turn %s\ntogether %s", found[0], found[1])
		}
	}
	if _, err := Compare(t.Context(), golden(t, "m_llama"), cpu(t), failing{cpu(t)}, []Prompt{short}, Options{MaxTokens: 4, Together: true}); !errors.Is(err, errDevice) {
		t.Errorf("want %v, got %v", errDevice, err)
	}
}

func TestInterruptedAtOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c, err := Compare(ctx, golden(t, "m_llama"), cpu(t), cpu(t), []Prompt{short}, Options{MaxTokens: 4})
	if err != nil {
		t.Fatal(err)
	}
	c.expect(t, Inconclusive, ExitInterrupted)
	for _, g := range c.Gates {
		if g.OK {
			t.Errorf("%+v: nothing was finished", g)
		}
	}
}

// failing is a backend whose Sync fails.
type failing struct{ engine.Backend }

var errDevice = errors.New("the device is gone")

func (failing) Sync() error { return errDevice }

func TestErrors(t *testing.T) {
	for _, test := range []struct {
		candidate engine.Backend
		prompts   []Prompt
		want      string
	}{
		{cpu(t), nil, "compare: want at least one prompt, got none"},
		{cpu(t), []Prompt{{ID: "empty"}}, "prompt empty: want at least one token, got none"},
		{cpu(t), []Prompt{{ID: "far", IDs: []int{1, 97}, BOS: -1}}, "prompt far: reference cpu: token 1: want an id from 0 to 96, got 97"},
		{failing{cpu(t)}, []Prompt{short}, "candidate cpu: the device is gone"},
	} {
		c, err := Compare(context.Background(), golden(t, "m_llama"), cpu(t), test.candidate, test.prompts, Options{MaxTokens: 4})
		if err == nil || err.Error() != test.want || c != nil {
			t.Errorf("want %q, got %v", test.want, err)
		}
	}
}
