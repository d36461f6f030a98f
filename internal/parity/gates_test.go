package parity

import (
	"slices"
	"strings"
	"testing"
)

// constant makes every step choose id.
func constant(id int) func(int, []float32) {
	return func(_ int, l []float32) { winner(l, id) }
}

// flat makes all logits so large and so equal that their distances are below float32 rounding.
func flat(_ int, l []float32) {
	for i := range l {
		l[i] = 4096
	}
	l[7] = 4096 + 0x1p-11
}

func TestVacuous(t *testing.T) {
	special := func(id int) bool { return id < 3 }
	varied := func(step int, l []float32) { winner(l, 3+step) }
	for _, test := range []struct {
		name   string
		logits func(int, []float32)
		prompt Prompt
		gate   string
		why    string
	}{
		{"no BOS", varied, Prompt{ID: "p", IDs: []int{90}, BOS: 1}, "BOS", "the prompt has no BOS and the model has t1=1"},
		{"one id", constant(6), short, "output varied", "both sides emitted id 6 8 times"},
		{"special ids", func(step int, l []float32) { winner(l, step%3) }, short, "output varied", "both sides emitted only special tokens (8, the first is id 1)"},
		{"two ids", func(step int, l []float32) { winner(l, 6+step%2) }, short, "output varied", "both sides emitted the same 2 ids over and over"},
		{"no margin", flat, short, "margins above noise", "the median margin 0.00049 is not above what rounding does to two logits, "},
	} {
		t.Run(test.name, func(t *testing.T) {
			reference, candidate := logits(t, test.logits), logits(t, test.logits)
			o := Options{Special: special}
			c := compare(t, reference, candidate, o, test.prompt)
			c.expect(t, Inconclusive, ExitInconclusive)
			if r := c.Prompts[0]; !slices.ContainsFunc(r.Vacuous, func(s string) bool { return strings.HasPrefix(s, test.why) }) {
				t.Errorf("want %q, got %q", test.why, r.Vacuous)
			}
			for _, g := range c.Gates {
				if g.Name == test.gate && g.OK {
					t.Errorf("%+v", g)
				}
			}
			if !strings.HasSuffix(c.Reason, ": this run could not have failed") {
				t.Error(c.Reason)
			}
			o.AllowVacuous = true
			compare(t, reference, candidate, o, test.prompt).expect(t, Inconclusive, ExitMatch)
		})
	}
}

// TestLeftOut: one poor prompt is named and left out.
func TestLeftOut(t *testing.T) {
	nobos := Prompt{ID: "nobos", IDs: []int{90, 2}, BOS: 1}
	c := compare(t, cpu(t), cpu(t), Options{}, nobos, short)
	c.expect(t, Match, ExitMatch)
	if len(c.Prompts[0].Vacuous) != 1 || len(c.Prompts[1].Vacuous) != 0 || c.Kept != 1 {
		t.Errorf("%q, %q, %d kept", c.Prompts[0].Vacuous, c.Prompts[1].Vacuous, c.Kept)
	}
	for _, g := range c.Gates {
		if !g.OK {
			t.Errorf("%+v: it is about the prompts that decide", g)
		}
	}
	c = compare(t, cpu(t), cpu(t), Options{RequireAll: true}, nobos, short)
	c.expect(t, Inconclusive, ExitInconclusive)
	if c.Gates[0].OK || c.Gates[0].Why != "nobos: the prompt has no BOS and the model has t1=1" {
		t.Errorf("%+v", c.Gates[0])
	}
}

// TestVacuousDivergence: that a prompt could not have failed is no excuse when it did.
func TestVacuousDivergence(t *testing.T) {
	nobos := Prompt{ID: "nobos", IDs: []int{90}, BOS: 1}
	for _, wrong := range []func(int, []float32){spoil(3, nan32), func(step int, l []float32) {
		if step == 3 {
			l[5] = 100
		}
	}} {
		for _, all := range []bool{false, true} {
			c := compare(t, cpu(t), logits(t, wrong), Options{AllowVacuous: true, RequireAll: all}, nobos)
			c.expect(t, Diverged, ExitDiverged)
		}
	}
}

// TestOneSidedBabble: only the candidate repeats itself; that is a divergence and no vacuity.
func TestOneSidedBabble(t *testing.T) {
	c := compare(t, cpu(t), logits(t, constant(6)), Options{}, short)
	c.expect(t, Diverged, ExitDiverged)
	if len(c.Prompts[0].Vacuous) != 0 {
		t.Errorf("%q", c.Prompts[0].Vacuous)
	}
}

func TestMonotony(t *testing.T) {
	special := func(id int) bool { return id == 0 }
	for _, test := range []struct {
		ids  []int
		want string
	}{
		{nil, ""},
		{[]int{5}, ""},
		{[]int{0}, "only special tokens (1, the first is id 0)"},
		{[]int{5, 5, 5, 5, 5, 5, 5}, ""}, // too short to tell
		{[]int{5, 5, 5, 5, 5, 5, 5, 5}, "id 5 8 times"},
		{[]int{5, 6, 5, 5, 5, 6, 6, 5, 6, 5, 5, 6, 5, 6, 6, 6}, "only 2 different ids in 16 tokens"},
		{[]int{1, 2, 3, 4, 5, 6, 5, 6, 5, 6, 5, 6, 5, 6, 5, 6}, "the same 2 ids over and over"},
		{[]int{1, 2, 3, 4, 9, 5, 6, 7, 5, 6, 7, 5, 6, 7, 5, 6}, ""}, // the loop fills less than three quarters
		{[]int{9, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3}, "the same 3 ids over and over"},
		{[]int{1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8}, ""}, // twice is no loop
	} {
		if got := monotony(test.ids, special); got != test.want {
			t.Errorf("%v: want %q, got %q", test.ids, test.want, got)
		}
	}
}

// A prompt is kept if all its ops were judged on both sides, whatever its margins.
func TestOpsDecide(t *testing.T) {
	for _, c := range []struct {
		what   string
		shadow ShadowMode
		sides  int
		want   Verdict
	}{
		{"all ops", ShadowAll, 2, Match},
		{"one side", ShadowAll, 1, Inconclusive},
		{"the first steps", ShadowAuto, 2, Inconclusive},
	} {
		r := Result{ID: "p", IDs: []int{1}, ReferenceIDs: []int{3, 4}, CandidateIDs: []int{3, 4}}
		for i := range 2 {
			r.Steps = append(r.Steps, Step{Step: i + 1, ReferenceID: 3 + i, CandidateID: 3 + i, Margin: 1, Noise: 2, MaxAbs: 1})
		}
		o := Options{Shadow: c.shadow}
		got := Comparison{Prompts: []Result{r}}
		got.classify(o)
		if got.Kept != 0 {
			t.Fatalf("%s: kept before its ops were judged", c.what)
		}
		for range c.sides {
			got.Shadow = append(got.Shadow, Shadow{Prompt: "p"})
		}
		got.judge(o, 1)
		if got.Verdict != c.want || (got.Kept == 1) != (c.want == Match) {
			t.Errorf("%s: want %s, got %s (%s), %d kept", c.what, c.want, got.Verdict, got.Reason, got.Kept)
		}
	}
}
