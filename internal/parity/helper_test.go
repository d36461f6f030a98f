package parity

import (
	"context"
	"math"
	"testing"

	"llmrun/internal/cpuref"
	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

var (
	nan32 = float32(math.NaN())
	inf32 = float32(math.Inf(1))
)

// altered is the CPU reference with a mistake: after looks at each op once it has run, and may change its output.
type altered struct {
	engine.Backend
	after func(op engine.Op, out []float32) []float32
}

func (b altered) Run(op engine.Op) {
	b.Backend.Run(op)
	outs, _ := op.Operands(nil, nil)
	o := outs[0]
	host, err := o.Buffer.Host()
	if err != nil {
		return // Sync tells
	}
	row := make([]float32, o.Cols)
	at := host[o.Offset*o.Buffer.DType().Size():]
	num.Float32s(row, o.Buffer.DType(), at)
	if row = b.after(op, row); row != nil {
		num.PutFloat32s(o.Buffer.DType(), at, row)
	}
}

// logits is a CPU reference whose logits change: at each step of a prompt, by name of the step.
func logits(t *testing.T, change func(step int, logits []float32)) engine.Backend {
	return altered{cpu(t), func(op engine.Op, out []float32) []float32 {
		if op.Site().Name != "lm_head" {
			return nil
		}
		change(op.Site().Step, out)
		return out
	}}
}

func cpu(t *testing.T) engine.Backend {
	b := cpuref.Open(cpuref.Options{Threads: 1})
	t.Cleanup(func() { b.Close() })
	return b
}

// golden opens one of the committed models of random weights: 97 tokens, t0 unk, t1 bos, t2 eos.
func golden(t *testing.T, name string) *ctconv.Model {
	t.Helper()
	m, err := ctconv.Open("../../testdata/golden/" + name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// short is a prompt that the random models answer with varied tokens and wide margins.
var short = Prompt{ID: "short", IDs: []int{1, 90}, BOS: 1}

func compare(t *testing.T, reference, candidate engine.Backend, o Options, prompts ...Prompt) *Comparison {
	t.Helper()
	if o.MaxTokens == 0 {
		o.MaxTokens = 8
	}
	c, err := Compare(context.Background(), golden(t, "m_llama"), reference, candidate, prompts, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *Comparison) expect(t *testing.T, verdict Verdict, exit int) {
	t.Helper()
	if c.Verdict != verdict || c.Exit != exit {
		t.Errorf("want %s, exit %d; got %s, exit %d: %s", verdict, exit, c.Verdict, c.Exit, c.Reason)
	}
}

func (r *Result) classes() (list []Class) {
	for _, s := range r.Steps {
		list = append(list, s.Class)
	}
	return list
}

// winner makes id the highest logit of a step, by a wide margin over the rest.
func winner(logits []float32, id int) {
	for i := range logits {
		logits[i] = float32(i%7) * 0.25
	}
	logits[id] = 8
}
