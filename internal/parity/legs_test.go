package parity

import (
	"strings"
	"testing"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// tested runs legs, and gives the candidate's; the reference's must hold to the bit.
func tested(t *testing.T, model string, candidate engine.Backend, o Options, prompts ...Prompt) (*Comparison, map[string]Leg) {
	t.Helper()
	if o.MaxTokens == 0 {
		o.MaxTokens = 6
	}
	if o.Legs == nil {
		o.Legs = LegNames
	}
	if len(prompts) == 0 {
		prompts = []Prompt{short}
	}
	c, err := Compare(t.Context(), golden(t, model), cpu(t), candidate, prompts, o)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]Leg{}
	for _, l := range c.Legs {
		if l.Side == candidateSide {
			found[l.Name] = l
		} else if l.State == LegBroken || l.State == LegHolds && !l.Bits {
			t.Errorf("the reference: %+v", l)
		}
	}
	return c, found
}

// gpu is a backend that is not the reference, so that rounding is allowed to it.
type gpu struct{ engine.Backend }

func (gpu) Name() string { return "gpu" }

func opener(t *testing.T) func(string) (engine.Backend, error) {
	return func(string) (engine.Backend, error) { return cpu(t), nil }
}

func TestLegsHold(t *testing.T) {
	for _, b := range []engine.Backend{cpu(t), gpu{cpu(t)}} {
		c, legs := tested(t, "m_gemma2", b, Options{Open: opener(t), LegsAsked: true})
		c.expect(t, Match, ExitMatch)
		for _, name := range LegNames {
			if name == fuseLegName {
				continue // see fuse_test.go
			}
			if l := legs[name]; l.State != LegHolds || !l.Bits || l.Backend != b.Name() || l.What == "" {
				t.Errorf("%+v", l)
			}
		}
	}
}

// expectBroken wants one leg broken, and the divergence that comes from it.
func expectBroken(t *testing.T, c *Comparison, legs map[string]Leg, name, why string) {
	t.Helper()
	c.expect(t, Diverged, ExitDiverged)
	for _, l := range legs {
		if broken := l.State == LegBroken; broken != (l.Name == name) {
			t.Errorf("%+v", l)
		}
	}
	if !strings.Contains(legs[name].Why, why) || !strings.HasPrefix(c.Reason, "leg "+name+": ") || c.Culprit != nil {
		t.Errorf("%+v: %s", legs[name], c.Reason)
	}
}

// TestCacheLegBroken: keys are wrong where a prompt has more tokens than any of the comparison.
func TestCacheLegBroken(t *testing.T) {
	candidate := altered{cpu(t), func(op engine.Op, out []float32) []float32 {
		if op.Site().Name != "k_rope" || op.Site().Layer != 1 || op.Pass().Rows < 3 {
			return nil
		}
		out[0] += 3
		return out
	}}
	c, legs := tested(t, "m_gemma2", candidate, Options{Legs: []string{"cache", "warm", "probe"}})
	expectBroken(t, c, legs, "cache", "max|Δlogit|")
}

func TestRowsLegBroken(t *testing.T) {
	for _, b := range []engine.Backend{cpu(t), gpu{cpu(t)}} {
		candidate := altered{b, func(op engine.Op, out []float32) []float32 {
			if s := op.Site(); s.Name != "up" || s.Layer != 1 || op.Pass().Rows != 5 {
				return nil
			}
			out[7] += 0.125
			return out
		}}
		c, legs := tested(t, "m_gemma2", candidate, Options{Legs: []string{"m1", "probe"}})
		expectBroken(t, c, legs, "m1", "layer 1 up: M=5, row 0: 1 of ")
	}
}

// TestRowsLegRounding: the reference promises the same bits; any other backend may round differently, and it is said.
func TestRowsLegRounding(t *testing.T) {
	round := func(b engine.Backend) engine.Backend {
		return altered{b, func(op engine.Op, out []float32) []float32 {
			if op.Family() != engine.FamilyLinear || op.Pass().Rows != 33 {
				return nil
			}
			for i := range out {
				out[i] *= 1 + 0x1p-23
			}
			return out
		}}
	}
	c, legs := tested(t, "m_gemma2", round(gpu{cpu(t)}), Options{Legs: []string{"m1"}})
	c.expect(t, Match, ExitMatch)
	if l := legs["m1"]; l.State != LegHolds || l.Bits {
		t.Errorf("%+v", l)
	}
	c, legs = tested(t, "m_gemma2", round(cpu(t)), Options{Legs: []string{"m1"}})
	expectBroken(t, c, legs, "m1", "layer 0 qkv: M=33, row 0: ")
}

func TestRowsLegNaN(t *testing.T) {
	nan := altered{gpu{cpu(t)}, func(op engine.Op, out []float32) []float32 {
		if op.Site().Name != "o_proj" || op.Pass().Step != 1 || op.Pass().Pos != 0 { // which only the leg has
			return nil
		}
		out[0] = nan32 // alone and among others: the same bits, and no result
		return out
	}}
	c, legs := tested(t, "m_gemma2", nan, Options{Legs: []string{"m1"}})
	expectBroken(t, c, legs, "m1", "layer 0 o_proj: M=2, row 0: 1 of ")
}

// TestWarmLegBroken: after so many passes the backend forgets how to add.
func TestWarmLegBroken(t *testing.T) {
	passes := 0
	tired := altered{cpu(t), func(op engine.Op, out []float32) []float32 {
		if op.Site().Name == "embed" {
			passes++
		}
		if op.Site().Name != "final_norm" || passes <= 10 {
			return nil
		}
		out[3] += 0.5
		return out
	}}
	c, legs := tested(t, "m_gemma2", tired, Options{Legs: []string{"warm"}, Open: opener(t)})
	expectBroken(t, c, legs, "warm", "step 1: max|Δlogit|")
}

// shy is wrong when it was looked at.
type shy struct {
	engine.Backend
	looked *int // since the last op
}

type shyBuffer struct {
	engine.Buffer
	b *shy
}

func (b *shy) NewBuffer(d num.DType, n int) (engine.Buffer, error) {
	buffer, err := b.Backend.NewBuffer(d, n)
	return shyBuffer{buffer, b}, err
}

func (b shyBuffer) Host() ([]byte, error) {
	*b.b.looked++
	return b.Buffer.Host()
}

func (b *shy) Run(op engine.Op) {
	looked := *b.looked
	b.Backend.Run(op)
	*b.looked = 0
	if _, ok := op.(*engine.Activate); !ok || looked < 3 {
		return
	}
	outs, _ := op.Operands(nil, nil)
	host, err := outs[0].Buffer.Host()
	if err == nil {
		num.PutFloat32(num.Float32, host, 0, 9)
	}
	*b.looked = 0
}

func TestProbeLegBroken(t *testing.T) {
	c, legs := tested(t, "m_gemma2", &shy{cpu(t), new(int)}, Options{Legs: []string{"probe", "cache", "warm"}})
	expectBroken(t, c, legs, "probe", "step 1: max|Δlogit|")
}

// TestConcurrentLegBroken: a second backend disturbs the first.
func TestConcurrentLegBroken(t *testing.T) {
	disturbed := false
	candidate := altered{cpu(t), func(op engine.Op, out []float32) []float32 {
		if op.Site().Name != "final_norm" || !disturbed {
			return nil
		}
		out[3] += 0.5
		return out
	}}
	open := func(side string) (engine.Backend, error) {
		disturbed = side == candidateSide
		return cpu(t), nil
	}
	c, legs := tested(t, "m_gemma2", candidate, Options{Legs: []string{"probe", "concurrent"}, Open: open})
	expectBroken(t, c, legs, "concurrent", "step 1: max|Δlogit|")
}

func TestLegsUnmeasured(t *testing.T) {
	for _, asked := range []bool{false, true} {
		c, legs := tested(t, "m_gemma2", cpu(t), Options{Legs: []string{"m1", "concurrent"}, LegsAsked: asked})
		if l := legs["concurrent"]; l.State != LegUnmeasured || l.Bits || l.Why != "no second backend can be opened" {
			t.Errorf("%+v", l)
		}
		if !asked {
			c.expect(t, Match, ExitMatch)
			continue
		}
		c.expect(t, Inconclusive, ExitInconclusive)
		if want := "leg concurrent: two at once ≡ one by one on cpu: no second backend can be opened (UNMEASURED)"; c.Reason != want {
			t.Error(c.Reason)
		}
	}
	// A window of 8: the prompt of 12 is fed in chunks, where CTranslate2 masks otherwise.
	long := Prompt{ID: "long", IDs: []int{1, 17, 33, 4, 80, 5, 61, 12, 9, 30, 31, 90}, BOS: 1}
	c, legs := tested(t, "m_llama_w8", cpu(t), Options{Legs: []string{"cache"}, LegsAsked: true}, long)
	if l := legs["cache"]; l.State != LegUnmeasured || !strings.HasPrefix(l.Why, "a prompt of 12 tokens is fed in chunks of 8") {
		t.Errorf("%+v", l)
	}
	if c.Verdict != Inconclusive {
		t.Errorf("%s: %s", c.Verdict, c.Reason)
	}
	_, legs = tested(t, "m_llama_w8", cpu(t), Options{Legs: []string{"cache"}})
	if l := legs["cache"]; l.State != LegHolds || !l.Bits { // 2 tokens and 6 more: within the window
		t.Errorf("%+v", l)
	}
	// A window of 8 in some layers, and no chunks: a prompt sees all of itself, decoding does not.
	_, legs = tested(t, "m_gemma3_d0", cpu(t), Options{Legs: []string{"cache"}}, long)
	if l := legs["cache"]; l.State != LegUnmeasured || !strings.HasPrefix(l.Why, "a prompt of 12 tokens sees all of itself as it is prefilled, and no more than 8") {
		t.Errorf("%+v", l)
	}
	_, legs = tested(t, "m_gemma3_d0", cpu(t), Options{Legs: []string{"cache"}}, Prompt{ID: "short", IDs: long.IDs[:6], BOS: 1})
	if l := legs["cache"]; l.State != LegHolds || !l.Bits { // until the window is full
		t.Errorf("%+v", l)
	}
	// Logits that are NaN from the first step on.
	_, legs = tested(t, "m_llama", logits(t, spoil(1, nan32)), Options{Legs: []string{"cache", "probe"}})
	for _, l := range legs {
		if l.State != LegUnmeasured || l.Why != "no prompt has finite logits" {
			t.Errorf("%+v", l)
		}
	}
}
