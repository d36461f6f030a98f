package fault

import (
	"math"
	"reflect"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// instrumentFaults are mistakes of the measurement: what is fed, what is chosen, what looks on, and which side is right.
var instrumentFaults = []Fault{
	{ID: "bos-dropped", What: "the candidate is not fed the prompt's BOS token",
		Prompt: func(ids []int) []int { return ids[1:] }, Text: once, Want: changed(0, engine.NoLayer, embed, engine.FamilyEmbed, "the prompt", embed).healedBy("").because("without its first token")},
	{ID: "reset-forgotten", What: "the candidate's session is not told that a new text begins",
		Reset: func(*engine.Session) error { return nil },
		Want:  changed(0, engine.NoLayer, embed, kv, "the text before", embed).healedBy("")},
	{ID: "tie-to-last-id", What: "among equal logits the highest id is chosen, not the lowest",
		Choose: tieToLast, Model: golden + "v2", ComputeType: "float16", Text: "1,94,70", Want: born(1, engine.NoLayer, "sample", engine.FamilySample).healedBy("").because("same highest logit")},
	{ID: "nan-laundered", What: "NaN logits are replaced by 0 before the token is chosen, so that they become id 0",
		Edits: in("activation.h", "clamp(u, -15.0f, 15.0f)", "u"), FastMath: true,
		Wrap: after(func(op engine.Op) {
			if o, ok := op.(*engine.Linear); ok && op.Family() == engine.FamilyLMHead {
				each(o.Out, 0, 1, o.W.Rows, func(v float32) float32 {
					if v != v {
						return 0
					}
					return v
				})
			}
		}), Text: once, Want: born(2, 7, act, activation).because("exp(2u)")},
	{ID: "nan-in-one-logit", What: "one logit that never wins is NaN from step 3 on: a comparison by > and < does not see it",
		Wrap: after(func(op engine.Op) {
			if o, ok := op.(*engine.Linear); ok && op.Family() == engine.FamilyLMHead && o.In.Step >= 3 {
				each(o.Out, 7, 1, 1, func(float32) float32 { return float32(math.NaN()) })
			}
		}), Text: once, Want: born(3, engine.NoLayer, lmHead, engine.FamilyLMHead)},
	{ID: "probe-rounds", What: "whoever looks at what an op wrote leaves it rounded to half; the logits alone bear it, so only observed runs are wrong",
		Wrap: probed, Text: once, Want: born(0, engine.NoLayer, embed, engine.FamilyEmbed).healedBy("")},
	{ID: "vacuous-prompt", What: "the prompt has no BOS, and both sides babble one word whatever the arithmetic does",
		Text: "396,1092,399,355,339", Want: Want{Verdict: inconclusive}},
	{ID: "reference-broken", What: "the reference's own up projection in layer 4 is 15 % off in one channel",
		Wrap: after(func(op engine.Op) {
			if o, ok := op.(*engine.Linear); ok && at(op, 4, "up") {
				each(o.Out, 37, o.W.Rows, o.Rows(), func(v float32) float32 { return 1.15 * v })
			}
		}), Reference: true, Text: once, Want: referenceBroken},
	{ID: "reference-misloaded", What: "the reference's own gate projection in layer 5 is cut short; the candidate's is what the file holds",
		Wrap: uploading("decoder/layer_5/ffn/linear_0/weight", secondHalfZero), Reference: true, Text: once, Want: referenceMisloaded},
}

var referenceBroken = Want{Verdict: diverged, Side: "reference", Step: 0, Layer: 4, Site: "up", Family: string(linear), Heals: string(linear)}

var referenceMisloaded = Want{Verdict: diverged, Side: "reference", Step: 0, Layer: 5, Site: "gate", Family: string(linear),
	Between: Between{"the file", "gate"}, Heals: string(linear)}

func tieToLast(logits []float32) int {
	best := 0
	for id, x := range logits {
		if x >= logits[best] {
			best = id
		}
	}
	return best
}

// probed gives buffers that do not stand being looked at.
func probed(b engine.Backend) engine.Backend { return &probedBackend{b} }

type probedBackend struct{ engine.Backend }

type probedBuffer struct {
	engine.Buffer
	written bool // by an op other than the last
}

func (p *probedBackend) NewBuffer(d num.DType, n int) (engine.Buffer, error) {
	b, err := p.Backend.NewBuffer(d, n)
	if err != nil || d != p.Activations() {
		return b, err
	}
	return &probedBuffer{b, false}, nil
}

// Run runs op on the buffers themselves.
func (p *probedBackend) Run(op engine.Op) {
	outs, _ := op.Operands(nil, nil)
	for _, o := range outs {
		if b, ok := o.Buffer.(*probedBuffer); ok {
			b.written = op.Family() != engine.FamilyLMHead
		}
	}
	c := reflect.New(reflect.TypeOf(op).Elem())
	c.Elem().Set(reflect.ValueOf(op).Elem())
	unwrap(c.Elem())
	p.Backend.Run(c.Interface().(engine.Op))
}

// unwrap puts the buffers themselves into an op's fields.
func unwrap(v reflect.Value) {
	switch x := v.Addr().Interface().(type) {
	case *engine.Buffer:
		if p, ok := (*x).(*probedBuffer); ok {
			*x = p.Buffer
		}
		return
	case *engine.Place:
		return
	}
	if v.Kind() == reflect.Struct {
		for i := range v.NumField() {
			unwrap(v.Field(i))
		}
	}
}

// Host rounds what it gives.
func (p *probedBuffer) Host() ([]byte, error) {
	host, err := p.Buffer.Host()
	if err == nil && p.written {
		half := make([]byte, 2)
		for i := range p.Len() {
			num.PutFloat32(num.Float16, half, 0, num.Float32At(p.DType(), host, i))
			num.PutFloat32(p.DType(), host, i, num.Float32At(num.Float16, half, 0))
		}
	}
	return host, err
}
