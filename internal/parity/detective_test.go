package parity

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// investigated compares with shadow and substitution.
func investigated(t *testing.T, model string, reference, candidate engine.Backend, o Options, prompts ...Prompt) *Comparison {
	t.Helper()
	if o.MaxTokens == 0 {
		o.MaxTokens = 5
	}
	if o.Shadow == ShadowOff {
		o.Shadow = ShadowAuto
	}
	o.Substitute = true
	if len(prompts) == 0 {
		prompts = []Prompt{short}
	}
	c, err := Compare(t.Context(), golden(t, model), reference, candidate, prompts, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// wrong is a CPU whose op at a site is wrong in one element.
func wrong(t *testing.T, at engine.Site, change func(float32) float32) engine.Backend {
	return altered{cpu(t), func(op engine.Op, out []float32) []float32 {
		if op.Site() != at {
			return nil
		}
		i := 2 % len(out)
		out[i] = change(out[i])
		return out
	}}
}

func half(v float32) float32  { return v/2 + 0.25 }
func toNaN(_ float32) float32 { return nan32 }

// TestBirthInEachFamily: one wrong element at one site of one step is found there, whether it is seen in the tokens or not, and is healed by its
// family alone.
func TestBirthInEachFamily(t *testing.T) {
	for _, test := range []struct {
		model  string
		site   engine.Site
		family engine.Family
		heals  string
	}{
		{"m_gemma2", engine.Site{Step: 1, Layer: -1, Name: "embed"}, engine.FamilyEmbed, "embed → cpu"},
		{"m_gemma2", engine.Site{Step: 2, Layer: 0, Name: "attn_norm"}, engine.FamilyNorm, "norms → cpu"},
		{"m_gemma2", engine.Site{Step: 2, Layer: 1, Name: "qkv"}, engine.FamilyLinear, "linear → cpu"},
		{"m_gemma2", engine.Site{Step: 0, Layer: 1, Name: "k_rope"}, engine.FamilyRoPE, "rope → cpu"},
		{"m_gemma2", engine.Site{Step: 3, Layer: 0, Name: "kv_write"}, engine.FamilyKV, "kv → cpu"},
		{"m_gemma2", engine.Site{Step: 2, Layer: 0, Name: "scores"}, engine.FamilyScores, "scores → cpu"},
		{"m_gemma2", engine.Site{Step: 2, Layer: 1, Name: "softmax"}, engine.FamilySoftmax, "softmax → cpu"},
		{"m_gemma2", engine.Site{Step: 4, Layer: 1, Name: "context"}, engine.FamilyContext, "context → cpu"},
		{"m_gemma2", engine.Site{Step: 2, Layer: 1, Name: "act"}, engine.FamilyActivation, "act → cpu"},
		{"m_gemma2", engine.Site{Step: 5, Layer: 0, Name: "layer_out"}, engine.FamilyResidual, "residual → cpu"},
		{"m_llama", engine.Site{Step: 2, Layer: -1, Name: "lm_head"}, engine.FamilyLMHead, "lm_head → cpu"},
		{"m_softcap", engine.Site{Step: 2, Layer: -1, Name: "logits"}, engine.FamilyLMHead, "lm_head → cpu"},
	} {
		for name, change := range map[string]func(float32) float32{"half": half, "NaN": toNaN} {
			t.Run(test.site.String()+" "+name, func(t *testing.T) {
				c := investigated(t, test.model, cpu(t), wrong(t, test.site, change), Options{Shadow: ShadowAll})
				c.expect(t, Diverged, ExitDiverged)
				x := c.Culprit
				if x == nil {
					t.Fatalf("no culprit: %s", c.Reason)
				}
				at := engine.Site{Step: x.Step, Layer: x.Layer, Name: x.Site}
				if x.Side != candidateSide || at != test.site || x.Family != string(test.family) || x.Between != nil || x.Bad != 1 || x.Others != 0 {
					t.Errorf("culprit %s %v: %+v", x.Side, at, x)
				}
				if name == "NaN" && x.NonFinite != 1 {
					t.Errorf("%d are not finite", x.NonFinite)
				}
				if !x.Confirmed || !slices.Equal(x.Heals, []string{test.heals}) {
					t.Errorf("confirmed %t by %v; %+v", x.Confirmed, x.Heals, c.Substitution)
				}
				if len(c.Shadow) != 2 || len(c.Shadow[1].Findings) != 0 || c.Shadow[1].Side != referenceSide || c.Shadow[0].Ops != c.Shadow[1].Ops {
					t.Errorf("%+v", c.Shadow)
				}
			})
		}
	}
}

// TestAutoLooksWhereItMust: judged are the first steps and the suspicious one; and all up to it, if those say nothing.
func TestAutoLooksWhereItMust(t *testing.T) {
	flip := func(at engine.Site) engine.Backend { return wrong(t, at, func(float32) float32 { return 40 }) }
	for _, test := range []struct {
		site  engine.Site
		steps []int
	}{
		{engine.Site{Step: 4, Layer: 1, Name: "down"}, []int{0, 1, 4}},
		{engine.Site{Step: 2, Layer: 0, Name: "k_rope"}, nil}, // seen in the tokens at once or later, from the cache
	} {
		c := investigated(t, "m_gemma2", cpu(t), flip(test.site), Options{})
		c.expect(t, Diverged, ExitDiverged)
		if x := c.Culprit; x == nil || x.Step != test.site.Step || x.Site != test.site.Name || x.Layer != test.site.Layer {
			t.Errorf("%v: %+v", test.site, x)
		}
		if test.steps != nil && !slices.Equal(c.Shadow[0].Steps, test.steps) {
			t.Errorf("judged at %v, want %v", c.Shadow[0].Steps, test.steps)
		}
	}
	c := investigated(t, "m_gemma2", cpu(t), cpu(t), Options{})
	c.expect(t, Match, ExitMatch)
	if s := c.Shadow[0]; !slices.Equal(s.Steps, []int{0, 1, 2}) || s.Worst == nil || !(s.Worst.Ratio <= 1) || len(c.Substitution) > 0 || c.Culprit != nil {
		t.Errorf("%+v", s)
	}
	// Small, late and in the second prompt: only --shadow all looks there.
	late := altered{cpu(t), func(op engine.Op, out []float32) []float32 {
		if op.Site() != (engine.Site{Step: 4, Layer: 0, Name: "gate"}) || op.Pass().Pos != 3+3 {
			return nil
		}
		out[0] += 0x1p-14
		return out
	}}
	prompts := []Prompt{short, {ID: "second", IDs: []int{1, 90, 17, 5}, BOS: 1}}
	investigated(t, "m_gemma2", cpu(t), late, Options{}, prompts...).expect(t, Match, ExitMatch)
	c = investigated(t, "m_gemma2", cpu(t), late, Options{Shadow: ShadowAll}, prompts...)
	c.expect(t, Diverged, ExitDiverged)
	if x := c.Culprit; x == nil || x.Prompt != "second" || x.Site != "gate" || x.Step != 4 || !x.Confirmed || len(c.Shadow) != 4 {
		t.Errorf("%+v", x)
	}
}

// shifted rotates queries and keys one position too far.
type shifted struct{ engine.Backend }

func (b shifted) Run(op engine.Op) {
	if o, ok := op.(*engine.RoPE); ok {
		moved, pass := *o, *o.In
		pass.Pos++
		moved.In = &pass
		op = &moved
	}
	b.Backend.Run(op)
}

// TestEqualTokensAreNoExcuse: scores depend on relative positions only, so no token shows the shift.
func TestEqualTokensAreNoExcuse(t *testing.T) {
	c := investigated(t, "m_llama", cpu(t), shifted{cpu(t)}, Options{})
	c.expect(t, Diverged, ExitDiverged)
	if r := c.Prompts[0]; r.Matched != 5 || r.Beyond != 0 {
		t.Fatalf("the test wants equal tokens: %+v", r)
	}
	x := c.Culprit
	if x == nil || x.Step != 0 || x.Layer != 0 || x.Site != "q_rope" || x.Others == 0 || !x.Confirmed || !slices.Equal(x.Heals, []string{"rope → cpu"}) {
		t.Fatalf("%+v %+v", x, c.Substitution)
	}
	for _, s := range c.Substitution {
		if !s.Heals && !strings.HasPrefix(s.Note, "tokens agree; q_rope is still ") {
			t.Errorf("%+v", s)
		}
	}
	if !strings.HasPrefix(c.Reason, "short: q_rope (rope) at layer 0, born at step 0") && !strings.HasPrefix(c.Reason, "short: q_rope at layer 0, born at step 0") {
		t.Error(c.Reason)
	}
}

// TestStrayWrite: an op changes the cache, with which it has nothing to do.
func TestStrayWrite(t *testing.T) {
	candidate := altered{cpu(t), func(op engine.Op, _ []float32) []float32 {
		if o, ok := op.(*engine.Scores); ok && o.Site() == (engine.Site{Step: 3, Layer: 1, Name: "scores"}) {
			host, err := o.K.Host()
			if err != nil {
				t.Error(err)
			}
			num.PutFloat32(num.Float32, host, 0, 3)
		}
		return nil
	}}
	c := investigated(t, "m_gemma2", cpu(t), candidate, Options{Shadow: ShadowAll})
	c.expect(t, Diverged, ExitDiverged)
	x := c.Culprit
	if x == nil || x.Between == nil || x.Step != 3 || x.Layer != 1 || x.Site != "scores" || !strings.Contains(x.Between.Writer, "kv_write") || x.Bad != 1 {
		t.Fatalf("%+v %+v", x, x.Between)
	}
	if !x.Confirmed || !slices.Contains(x.Heals, "scores → cpu") {
		t.Errorf("%v %+v", x.Heals, c.Substitution)
	}
}

// TestReferenceAccused: the reference's own op is wrong and the candidate's is not.
func TestReferenceAccused(t *testing.T) {
	for name, change := range map[string]func(float32) float32{"flip": func(float32) float32 { return 40 }, "NaN": toNaN} {
		c := investigated(t, "m_gemma2", wrong(t, engine.Site{Step: 2, Layer: 1, Name: "act"}, change), cpu(t), Options{})
		c.expect(t, Diverged, ExitDiverged)
		x := c.Culprit
		if x == nil || x.Side != referenceSide || x.Step != 2 || x.Layer != 1 || x.Site != "act" || !x.Confirmed || !slices.Equal(x.Heals, []string{"act → cpu"}) {
			t.Fatalf("%s: %+v %+v", name, x, c.Substitution)
		}
		if !strings.HasPrefix(x.Where(), "the reference: act (gelu_tanh) at layer 1, born at step 2") {
			t.Error(x.Where())
		}
	}
}

// TestUnconfirmed: with two mistakes in two families, moving either heals nothing, and that is said.
func TestUnconfirmed(t *testing.T) {
	first := wrong(t, engine.Site{Step: 2, Layer: 0, Name: "attn_norm"}, func(float32) float32 { return 40 })
	second := altered{first, func(op engine.Op, out []float32) []float32 {
		if op.Site() != (engine.Site{Step: 2, Layer: 1, Name: "act"}) {
			return nil
		}
		out[0] = 40
		return out
	}}
	c := investigated(t, "m_gemma2", cpu(t), second, Options{})
	c.expect(t, Diverged, ExitDiverged)
	x := c.Culprit
	if x == nil || x.Site != "attn_norm" || x.Others != 1 || x.Confirmed || len(x.Heals) > 0 || len(c.Substitution) < 8 {
		t.Errorf("%+v", x)
	}
}

// TestUnexplained: the tokens differ, and no op is to blame for it.
func TestUnexplained(t *testing.T) {
	reference := logits(t, func(step int, l []float32) { winner(l, 6+step) })
	c := investigated(t, "m_llama", reference, logits(t, func(step int, l []float32) { winner(l, 7+step) }), Options{Shadow: ShadowOff})
	if c.Culprit == nil || c.Culprit.Site != "lm_head" {
		t.Fatalf("%+v", c.Culprit)
	}
	c.Culprit, c.Why = nil, ""
	if why := c.unexplained(); why == "" {
		t.Error("nothing is said of a divergence without a culprit")
	}
}

// TestTooSmallType: an infinity that no op is to blame for is the type's.
func TestTooSmallType(t *testing.T) {
	born := func(value string, own bool) *Comparison {
		return &Comparison{Candidate: Backend{ComputeType: "float16"}, Shadow: []Shadow{{Side: "candidate", Prompt: "short", Steps: []int{0, 1}}},
			Prompts: []Result{{ID: "short", NonFinite: []NonFinite{{Side: "candidate", Step: 1, Own: own, Birth: &Birth{Step: 0, Layer: 7, Site: "layer_out", Value: value}}}}}}
	}
	for name, c := range map[string]struct {
		c    *Comparison
		says bool
	}{
		"Inf": {born("Inf", false), true}, "-Inf": {born("-Inf", false), true}, "NaN": {born("NaN", false), false}, "own tokens": {born("Inf", true), false},
	} {
		if why := c.c.tooSmallType(); strings.Contains(why, "step 0 layer 7 layer_out is beyond 65504") != c.says {
			t.Errorf("%s: %q", name, why)
		}
	}
	for name, change := range map[string]func(*Comparison){
		"a culprit": func(c *Comparison) { c.Culprit = &Culprit{} }, "float32": func(c *Comparison) { c.Candidate.ComputeType = "float32" },
		"another step judged": func(c *Comparison) { c.Shadow[0].Steps = []int{1} }, "the reference judged": func(c *Comparison) { c.Shadow[0].Side = "reference" },
	} {
		c := born("Inf", false)
		if change(c); c.tooSmallType() != "" {
			t.Errorf("%s: want no word of the type, got %q", name, c.tooSmallType())
		}
	}
}

// TestFamiliesAsked: --substitute with names moves these and no others.
func TestFamiliesAsked(t *testing.T) {
	c := investigated(t, "m_gemma2", cpu(t), wrong(t, engine.Site{Step: 2, Layer: 1, Name: "act"}, toNaN),
		Options{Families: []engine.Family{engine.FamilyNorm, engine.FamilyActivation}})
	names := []string{}
	for _, s := range c.Substitution {
		names = append(names, s.Name)
	}
	if !slices.Equal(names, []string{"norms → cpu", "act → cpu"}) || !c.Culprit.Confirmed {
		t.Errorf("%v %+v", names, c.Culprit)
	}
}

func TestSampler(t *testing.T) {
	lastOfTies := func(l []float32) int {
		best := 0
		for id, x := range l {
			if x >= l[best] {
				best = id
			}
		}
		return best
	}
	tied := func(step int, l []float32) {
		if step == 2 {
			winner(l, 6)
			l[9] = 8
		}
	}
	tie := func() engine.Backend { return logits(t, tied) }
	// Both sides have the same logits, which the oracle does not know of: what counts here is the step's last finding.
	sampled := func(c *Comparison, which string) *Shadow {
		for i := range c.Shadow {
			if c.Shadow[i].Side == which {
				return &c.Shadow[i]
			}
		}
		t.Fatal("no shadow")
		return nil
	}
	c := investigated(t, "m_llama", tie(), tie(), Options{Candidate: Side{Choose: lastOfTies}})
	c.expect(t, Diverged, ExitDiverged)
	findings := sampled(c, candidateSide).Findings
	last := findings[len(findings)-1]
	if last.Site != "sample" || last.Family != "sample" || last.Step != 2 || last.Worst.Want != 6 || last.Worst.Got != 9 || !strings.Contains(last.Why[0], "the lowest id wins") {
		t.Errorf("%+v", last)
	}
	if f := sampled(c, referenceSide).Findings; len(f) > 0 && f[len(f)-1].Site == "sample" {
		t.Errorf("the reference's sampler: %+v", f)
	}

	// A sampler alone: every op is right.
	c = investigated(t, "m_llama", cpu(t), cpu(t), Options{Candidate: Side{Choose: func(l []float32) int { return (engine.Greedy(l) + 1) % len(l) }}})
	c.expect(t, Diverged, ExitDiverged)
	if x := c.Culprit; x == nil || x.Site != "sample" || x.Step != 1 || !x.Confirmed || !slices.Equal(x.Heals, []string{"greedy sampler"}) {
		t.Errorf("%+v %+v", x, c.Substitution)
	}

	// NaN laundered into id 0.
	c = investigated(t, "m_llama", cpu(t), logits(t, spoil(2, nan32)), Options{Candidate: Side{Choose: func(l []float32) int {
		if engine.CountNonFinite(l) > 0 {
			return 0
		}
		return engine.Greedy(l)
	}}})
	c.expect(t, Diverged, ExitDiverged)
	findings = sampled(c, candidateSide).Findings
	if x := c.Culprit; x == nil || x.Site != "lm_head" || x.Step != 2 || x.NonFinite != 1 || x.Others != 1 {
		t.Errorf("%+v", x)
	}
	if last := findings[len(findings)-1]; last.Site != "sample" || last.NonFinite != 1 || !strings.Contains(last.Why[0], "id 0 was chosen from logits of which 1 are NaN") {
		t.Errorf("%+v", last)
	}
}

// TestReportedLogits: what a step gives must be what its last op wrote.
func TestReportedLogits(t *testing.T) {
	r, err := newRun(golden(t, "m_llama"), cpu(t), cpu(t), []Prompt{short}, Options{MaxTokens: 2})
	if err != nil {
		t.Fatal(err)
	}
	f := follow(r.candidate, r.reference, short.IDs)
	defer f.stop()
	if err := f.prefill(t.Context(), short.IDs); err != nil {
		t.Fatal(err)
	}
	l, err := f.step(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.sample(1, l)
	if found := f.findings(); len(found) > 0 {
		t.Errorf("%+v", found)
	}
	l[41] = -l[41]
	f.sample(1, l)
	found := f.findings()
	if len(found) != 1 || found[0].Site != "sample" || found[0].Between == nil || found[0].Between.Writer != "step 1 lm_head" || found[0].Bad != 1 || found[0].Worst.Col != 41 {
		t.Errorf("%+v", found)
	}
}

// TestFedOtherwise: the candidate is not fed the prompt.
func TestFedOtherwise(t *testing.T) {
	c := investigated(t, "m_llama", cpu(t), cpu(t), Options{Candidate: Side{Prompt: func(ids []int) []int { return ids[1:] }}})
	c.expect(t, Diverged, ExitDiverged)
	x := c.Culprit
	if x == nil || x.Between == nil || x.Between.Writer != "the prompt" || x.Site != "embed" || !x.Confirmed || !slices.Equal(x.Heals, []string{"the prompt as it is"}) {
		t.Errorf("%+v %+v", x, c.Substitution)
	}
}

// TestNotCleared: the candidate does not forget the text before.
func TestNotCleared(t *testing.T) {
	c := investigated(t, "m_llama", cpu(t), cpu(t), Options{Candidate: Side{Reset: func(*engine.Session) error { return nil }}},
		short, Prompt{ID: "second", IDs: []int{1, 2, 3}, BOS: 1})
	c.expect(t, Diverged, ExitDiverged)
	x := c.Culprit
	if x == nil || x.Prompt != "second" || x.Between == nil || x.Family != "kv" || !x.Confirmed || !slices.Contains(x.Heals, "an empty cache") {
		t.Errorf("%+v %+v", x, c.Substitution)
	}
}

// failsAt fails at a site, and stays failed.
type failsAt struct {
	engine.Backend
	at  engine.Site
	err error
}

func (b *failsAt) Run(op engine.Op) {
	if op.Site() == b.at && b.err == nil {
		b.err = &engine.OpError{Site: b.at, Kernel: "kernel gelu", Err: errDevice}
	}
	b.Backend.Run(op)
}

func (b *failsAt) Sync() error { return b.err }

func (b *failsAt) NewBuffer(d num.DType, n int) (engine.Buffer, error) {
	buffer, err := b.Backend.NewBuffer(d, n)
	return failedBuffer{buffer, b}, err
}

// failedBuffer cannot be read once its backend has failed.
type failedBuffer struct {
	engine.Buffer
	b *failsAt
}

func (f failedBuffer) Host() ([]byte, error) {
	if f.b.err != nil {
		return nil, f.b.err
	}
	return f.Buffer.Host()
}

// TestBackendFails: a failure of an op is a divergence at that op, if the other side could run.
func TestBackendFails(t *testing.T) {
	at := engine.Site{Step: 2, Layer: 1, Name: "act"}
	open := func(string) (engine.Backend, error) { return &failsAt{Backend: cpu(t), at: at}, nil }
	first, _ := open("")
	c := investigated(t, "m_gemma2", cpu(t), first, Options{Open: open, Legs: LegNames})
	c.expect(t, Diverged, ExitDiverged)
	x := c.Culprit
	if x == nil || x.Step != 2 || x.Layer != 1 || x.Site != "act" || x.Family != "activation" || x.Op != "kernel gelu" || !strings.Contains(c.Why, "the device is gone") {
		t.Fatalf("%+v, %s", x, c.Why)
	}
	if !x.Confirmed || !slices.Equal(x.Heals, []string{"act → cpu"}) {
		t.Errorf("%+v", c.Substitution)
	}
	for _, l := range c.Legs {
		if l.Side == candidateSide && (l.State != LegUnmeasured || l.Why != "the backend has failed") {
			t.Errorf("%+v", l)
		}
	}

	alone, _ := open("")
	c = investigated(t, "m_gemma2", cpu(t), alone, Options{})
	c.expect(t, Diverged, ExitDiverged)
	if x := c.Culprit; x == nil || x.Site != "act" || x.Confirmed || c.Substitution[0].Note == "" {
		t.Errorf("%+v", x)
	}

	reference, _ := open("")
	c = investigated(t, "m_gemma2", reference, cpu(t), Options{Open: open})
	c.expect(t, Diverged, ExitDiverged)
	if x := c.Culprit; x == nil || x.Side != referenceSide || x.Site != "act" {
		t.Errorf("%+v", x)
	}

	both, _ := open("")
	other, _ := open("")
	if _, err := Compare(t.Context(), golden(t, "m_gemma2"), both, other, []Prompt{short}, Options{MaxTokens: 4}); !errors.Is(err, errDevice) {
		t.Errorf("neither side can run: %v", err)
	}
}

// TestNaNNeverPasses: whatever is NaN, wherever, on whatever side: no match.
func TestNaNNeverPasses(t *testing.T) {
	spoiled := func(sites ...string) engine.Backend {
		return altered{cpu(t), func(op engine.Op, out []float32) []float32 {
			if len(sites) > 0 && !slices.Contains(sites, op.Site().Name) {
				return nil
			}
			for i := range out {
				out[i] = nan32
			}
			return out
		}}
	}
	for _, sites := range [][]string{nil, {"embed"}, {"softmax"}, {"kv_write"}, {"lm_head"}, {"final_norm"}} {
		for _, mode := range []ShadowMode{ShadowAuto, ShadowAll} {
			for _, test := range [][2]engine.Backend{{cpu(t), spoiled(sites...)}, {spoiled(sites...), cpu(t)}, {spoiled(sites...), spoiled(sites...)}} {
				c := investigated(t, "m_gemma2", test[0], test[1], Options{Shadow: mode, MaxTokens: 3, Legs: DefaultLegs, AllowVacuous: true})
				if c.Verdict != Diverged || c.Exit != ExitDiverged || c.Culprit == nil || c.Culprit.NonFinite == 0 {
					t.Errorf("%v: %s, exit %d, %+v", sites, c.Verdict, c.Exit, c.Culprit)
				}
			}
		}
	}
}

// forgetful does not run an op: what it should write is what was there.
type forgetful struct {
	engine.Backend
	at engine.Site
}

func (b forgetful) Run(op engine.Op) {
	if op.Site() != b.at {
		b.Backend.Run(op)
	}
}

// TestNotWritten: right rows that another substitution left in the cache do not make the others heal.
func TestNotWritten(t *testing.T) {
	c := investigated(t, "m_gemma2", cpu(t), forgetful{cpu(t), engine.Site{Step: 1, Layer: 1, Name: "kv_write"}}, Options{})
	c.expect(t, Diverged, ExitDiverged)
	x := c.Culprit
	if x == nil || x.Step != 1 || x.Layer != 1 || x.Site != "kv_write" || !x.Confirmed || !slices.Equal(x.Heals, []string{"kv → cpu"}) {
		t.Errorf("%+v %+v", x, c.Substitution)
	}
}

// TestInterruptedInvestigation: what was found until then is reported.
func TestInterruptedInvestigation(t *testing.T) {
	broken := wrong(t, engine.Site{Step: 2, Layer: 1, Name: "act"}, toNaN)
	for _, test := range []struct {
		at        string
		candidate engine.Backend
		verdict   Verdict
		culprit   bool
	}{
		{"shadow of short", cpu(t), Inconclusive, false},
		{"legs: cache on candidate cpu", cpu(t), Inconclusive, false},
		{"shadow of short", broken, Diverged, false}, // the tokens have shown it
		{"substitution: norms → cpu", broken, Diverged, true},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		c, err := Compare(ctx, golden(t, "m_gemma2"), cpu(t), test.candidate, []Prompt{short}, Options{MaxTokens: 4, Shadow: ShadowAuto, Substitute: true, Legs: DefaultLegs,
			Working: func(what string, done, total int) {
				if done > total || done < 0 {
					t.Errorf("%s: %d of %d", what, done, total)
				}
				if what == test.at {
					cancel()
				}
			}})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		c.expect(t, test.verdict, ExitInterrupted)
		if (c.Culprit != nil) != test.culprit || test.culprit && c.Culprit.Confirmed {
			t.Errorf("%s: %+v", test.at, c.Culprit)
		}
		if test.verdict == Inconclusive && c.Reason != "interrupted before the ops were judged and the legs tested" {
			t.Error(c.Reason)
		}
	}
}

// misloaded changes one element of a tensor as it is loaded.
type misloaded struct {
	engine.Backend
	tensor  string
	element int
}

func (b misloaded) Upload(t ctconv.Tensor) (engine.Buffer, error) {
	if t.Name == b.tensor {
		t.Data = slices.Clone(t.Data)
		num.PutFloat32(t.DType, t.Data, b.element, num.Float32At(t.DType, t.Data, b.element)+2)
	}
	return b.Backend.Upload(t)
}

// TestMisloaded: a weight is not what the file holds, on either side; moving its readers, with the file's weight, heals.
func TestMisloaded(t *testing.T) {
	const qkv, embedding = "decoder/layer_1/self_attention/linear_0/weight", "decoder/embeddings/weight"
	for _, test := range []struct {
		tensor  string
		element int
		layer   int
		site    string
		heals   string
	}{
		{qkv, 3, 1, "qkv", "linear → cpu"},
		{embedding, 0, engine.NoLayer, "embed", "embed → cpu"}, // of a token that the text does not have: nothing is seen but the bytes
	} {
		for _, which := range []string{candidateSide, referenceSide} {
			sides := []engine.Backend{cpu(t), misloaded{cpu(t), test.tensor, test.element}}
			if which == referenceSide {
				slices.Reverse(sides)
			}
			c := investigated(t, "m_llama", sides[0], sides[1], Options{})
			c.expect(t, Diverged, ExitDiverged)
			x := c.Culprit
			if x == nil || x.Side != which || x.Between == nil || x.Between.Writer != "the file" || x.Layer != test.layer || x.Site != test.site || x.Bad != 1 || x.Operand != "w" {
				t.Errorf("%s of the %s: %+v", test.tensor, which, x)
				continue
			}
			if !x.Confirmed || !slices.Contains(x.Heals, test.heals) {
				t.Errorf("%s of the %s: heals %v; %+v", test.tensor, which, x.Heals, c.Substitution)
			}
		}
	}
}
