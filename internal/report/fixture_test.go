package report

import (
	"fmt"
	"math"
	"strings"

	"llmrun/internal/ctconv"
	"llmrun/internal/parity"
	"llmrun/internal/shadow"
)

// The comparisons that all faces are tested with. None of them was measured; each is of a kind that can be.

// hostile are token texts that a careless page, XML file or terminal would obey.
var hostile = []string{"</script><img src=x onerror=alert(1)>", "<style>*{display:none}</style>", `" onmouseover="x`, "]]>", "\x1b[2J", "\u202egnp.exe", "%0A::error::x", "`|", "a\nb", " the"}

func decodeHostile(ids []int) string {
	var s strings.Builder
	for _, id := range ids {
		if id >= 0 {
			s.WriteString(hostile[id%len(hostile)])
		}
	}
	return s.String()
}

// fixture is a comparison of n steps whose tokens agree, with its gates and legs.
func fixture(n int, prompts ...string) *parity.Comparison {
	c := &parity.Comparison{Schema: parity.Schema, Verdict: parity.Match, MaxTokens: n, Prompts: []parity.Result{},
		Model:        parity.Model{Name: "tiny", SHA256: strings.Repeat("0f", 32), Spec: "TransformerDecoderSpec", Revision: 8},
		Reference:    parity.Backend{Backend: "cpu", ComputeType: "float32"},
		Candidate:    parity.Backend{Backend: "metal", Device: "host device, g++ 12.2", ComputeType: "float16", Host: true},
		Env:          map[string]any{"cores": 2},
		Shadow:       []parity.Shadow{},
		Substitution: []parity.Substitution{},
		Legs: []parity.Leg{
			{Name: "cache", What: "cached ≡ recomputed", Side: "reference", Backend: "cpu", State: parity.LegHolds, Bits: true},
			{Name: "cache", What: "cached ≡ recomputed", Side: "candidate", Backend: "metal", State: parity.LegHolds},
			{Name: "m1", What: "M=1 ≡ M=2..9", Side: "candidate", Backend: "metal", State: parity.LegUnmeasured, Why: "there is no time"},
		},
	}
	for _, name := range []string{"BOS", "output varied", "reference finite", "something compared", "margins above noise", "logits within rounding"} {
		c.Gates = append(c.Gates, parity.Gate{Name: name, OK: true})
	}
	for _, id := range prompts {
		r := parity.Result{ID: id, IDs: []int{2, 9, 8}, Noise: 2e-5, Allowed: 1.6e-4, Vacuous: []string{}, NonFinite: []parity.NonFinite{}, Matched: n, Compared: n}
		for i := range n {
			token := 3 + (i*7+len(id))%5
			r.ReferenceIDs, r.CandidateIDs = append(r.ReferenceIDs, token), append(r.CandidateIDs, token)
			r.Steps = append(r.Steps, parity.Step{Step: i + 1, ReferenceID: token, CandidateID: token, Margin: ctconv.Number(0.5 + float64(i%6)),
				KL: 1e-12, MaxAbs: ctconv.Number(1e-6 * (1 + float64(i%9))), Noise: ctconv.Number(1e-5 * (1 + float64(i%3)/2)), Top: 5, Class: parity.ClassMatch})
		}
		c.Prompts = append(c.Prompts, r)
		c.Kept++
	}
	return c
}

// follow gives a side that was followed through all steps and layers, with nothing beyond its bound.
func follow(side, prompt string, steps, layers int) parity.Shadow {
	s := parity.Shadow{Side: side, Prompt: prompt, Ops: steps * (layers*18 + 3), Findings: []shadow.Finding{}}
	for step := range steps {
		s.Steps = append(s.Steps, step)
		for layer := -1; layer < layers; layer++ {
			r := math.Pow(10, -2.3+2*float64((step*5+layer*3)%10)/10)
			s.Cells = append(s.Cells, shadow.Cell{Step: step, Layer: layer, Ratio: ctconv.Number(r), Site: "gate"})
		}
	}
	s.Worst = &s.Cells[len(s.Cells)/2]
	return s
}

func good() *parity.Comparison {
	c := fixture(24, "once", "fox", "nobos")
	tie := &c.Prompts[1]
	tie.Steps[2].CandidateID, tie.Steps[2].Gap, tie.Steps[2].Class, tie.Matched = 1, 0.00012, parity.ClassNearTie, 23
	tie.CandidateIDs = append([]int{}, tie.CandidateIDs...)
	tie.CandidateIDs[2] = 1
	c.Prompts[2].Vacuous = []string{"the prompt has no BOS and the model has <bos>=2"}
	c.Kept = 2
	c.Shadow = []parity.Shadow{follow("candidate", "once", 25, 26), follow("reference", "once", 3, 26)}
	return c
}

// gelu is the story of the tanh that overflowed, with all that an investigation finds.
func gelu() *parity.Comparison {
	c := fixture(24, "once", "fox")
	r, at := &c.Prompts[0], 2
	c.Verdict, c.Exit, c.Fault = parity.Diverged, parity.ExitDiverged, "gelu-unclamped"
	c.Reason = "culprit: act (gelu_tanh) at layer 7, born at step 2"
	r.FirstFlip, r.Matched, r.Compared, r.CandidateIDs = &at, 1, 1, r.ReferenceIDs[:1]
	for i := range r.Steps[1:] {
		s := &r.Steps[i+1]
		s.CandidateID, s.Gap, s.KL, s.MaxAbs, s.Top, s.Class = parity.NoToken, nan, nan, nan, 0, parity.ClassUnmeasured
	}
	r.Steps[1].CandidateNonFinite, r.Steps[1].Class = 96, parity.ClassNonFinite
	r.NonFinite = []parity.NonFinite{{Side: "candidate", Step: 2, Count: 96, Of: 96, Birth: &parity.Birth{Step: 2, Layer: 7, Site: "act",
		Family: "activation", Op: "gelu_tanh", Count: 1, Of: 352, First: 107, Value: "NaN", Inputs: []parity.Input{{Name: "gate", Value: 11.7562}}}}}
	inf := ctconv.Number(math.Inf(1))
	f := shadow.Finding{Step: 2, Layer: 7, Site: "act", Family: "activation", Op: "gelu_tanh", Operand: "out", Elements: 352, Bad: 1, NonFinite: 1, Ratio: inf,
		Worst: shadow.Worst{Col: 107, Inputs: []shadow.Input{{Name: "gate", Value: 11.7562}, {Name: "up", Value: -1.0022}}, Want: -11.782, Got: nan, Error: nan, Allowed: 2.4e-6},
		Why:   []string{"gelu_tanh's argument is 67.4: exp(2u) leaves float32 above u = 44.36, and Inf/Inf is NaN"}}
	s := follow("candidate", "once", 3, 8)
	s.Findings = []shadow.Finding{f}
	for i := range s.Cells {
		if cell := &s.Cells[i]; cell.Step == 2 && cell.Layer == 7 {
			cell.Bad, cell.Ratio, cell.Site, s.Worst = 1, inf, "act", cell
		}
	}
	c.Shadow = []parity.Shadow{s, follow("reference", "once", 3, 8)}
	c.Culprit = &parity.Culprit{Side: "candidate", Prompt: "once", Finding: f, Others: 3, Confirmed: true, Heals: []string{"act → cpu"}}
	c.Why = f.Why[0]
	for i, name := range []string{"act → cpu", "qkv,o_proj,gate,up,down,lm_head → cpu", "norms → cpu", "rope → cpu", "sync after every op"} {
		c.Substitution = append(c.Substitution, parity.Substitution{Name: name, Families: []string{"activation"}, Matched: 24, Compared: 24, Heals: i == 0})
		if i > 0 {
			c.Substitution[i].Matched = 2
		}
	}
	c.Legs[1].State, c.Legs[1].Why = parity.LegBroken, "step 2: layer 7 act"
	return c
}

// custody is a flip whose cause lies between two ops, not confirmed.
func custody() *parity.Comparison {
	c := gelu()
	c.Fault, c.Why = "", ""
	f := shadow.Finding{Step: 1, Layer: 3, Site: "scores", Family: "scores", Op: "scores", Operand: "keys", Elements: 256, Bad: 12, Ratio: ctconv.Number(math.Inf(1)),
		Between: &shadow.Between{Writer: "kv_write", Reader: "scores"}, Worst: shadow.Worst{Row: 1, Col: 4, Inputs: []shadow.Input{}, Want: 0.25, Got: -0.5, Error: 0.75}, Why: []string{}}
	c.Culprit = &parity.Culprit{Side: "candidate", Prompt: "once", Finding: f, Heals: []string{}}
	c.Shadow[0].Findings = []shadow.Finding{f}
	c.Reason = "culprit: between kv_write and scores at layer 3, step 1"
	return c
}

// accused is a comparison whose reference is the wrong side.
func accused() *parity.Comparison {
	c := fixture(8, "once")
	c.Verdict, c.Exit, c.Reason = parity.Diverged, parity.ExitDiverged, "the reference is wrong"
	r, at := &c.Prompts[0], 3
	r.FirstFlip, r.Matched, r.CandidateIDs = &at, 7, append([]int{}, r.CandidateIDs...)
	r.Steps[2].CandidateID, r.Steps[2].Gap, r.Steps[2].MaxAbs, r.Steps[2].Class = 1, 2.5, 3, parity.ClassFlip
	r.CandidateIDs[2] = 1
	c.Culprit = &parity.Culprit{Side: "reference", Prompt: "once", Finding: shadow.Finding{Step: 0, Layer: -1, Site: "embed", Family: "embed", Op: "embed", Operand: "out", Elements: 96, Bad: 96,
		Ratio: 41000, Worst: shadow.Worst{Inputs: []shadow.Input{}, Want: 1, Got: 1.15, Error: 0.15, Allowed: 3.6e-6}, Why: []string{}}, Heals: []string{}}
	return c
}

func vacuous() *parity.Comparison {
	c := fixture(24, "prompt")
	c.Verdict, c.Exit, c.Kept = parity.Inconclusive, parity.ExitInconclusive, 0
	c.Prompts[0].Vacuous = []string{"the prompt has no BOS and the model has <bos>=2", "both sides emitted id 5 24 times"}
	c.Reason = "prompt: both sides emitted id 5 24 times: this run could not have failed"
	c.Gates[0] = parity.Gate{Name: "BOS", Why: "prompt: the prompt has no BOS and the model has <bos>=2"}
	return c
}

func allowedVacuous() *parity.Comparison {
	c := vacuous()
	c.Exit = parity.ExitMatch
	return c
}

// broken has a reference without finite logits.
func broken() *parity.Comparison {
	c := fixture(4, "prompt")
	c.Verdict, c.Exit, c.Kept = parity.Inconclusive, parity.ExitInconclusive, 0
	r := &c.Prompts[0]
	r.ReferenceIDs, r.CandidateIDs, r.Steps, r.Matched, r.Compared = []int{}, []int{}, r.Steps[:1], 0, 0
	s := &r.Steps[0]
	s.ReferenceID, s.CandidateID, s.Margin, s.Gap, s.KL, s.MaxAbs, s.Noise = parity.NoToken, parity.NoToken, nan, nan, nan, nan, nan
	s.ReferenceNonFinite, s.CandidateNonFinite, s.Class = 96, 96, parity.ClassNonFinite
	r.Noise, r.Allowed = 0, 0
	r.Vacuous = []string{"the reference has 96 NaN or infinite logits at step 1", "no step was compared"}
	r.NonFinite = []parity.NonFinite{{Side: "reference", Step: 1, Count: 96, Of: 96}}
	c.Reason = "prompt: the reference has 96 NaN or infinite logits at step 1: this run could not have failed"
	c.Gates[2] = parity.Gate{Name: "reference finite", Why: "prompt: the reference has 96 NaN or infinite logits at step 1"}
	return c
}

func beyond() *parity.Comparison {
	c := fixture(8, "once")
	c.Verdict, c.Exit = parity.Inconclusive, parity.ExitInconclusive
	c.Prompts[0].Steps[4].MaxAbs, c.Prompts[0].Beyond = 0.02, 1
	c.Reason = "once: max|Δlogit| 0.02 at step 5 with equal tokens, rounding explains 0.00016"
	c.Gates[5] = parity.Gate{Name: "logits within rounding", Why: c.Reason}
	return c
}

// interrupted was stopped before its first prompt was finished.
func interrupted() *parity.Comparison {
	c := fixture(24)
	c.Verdict, c.Exit, c.Interrupted, c.Reason = parity.Inconclusive, parity.ExitInterrupted, true, "interrupted after 0 of 10 prompts"
	c.Legs = []parity.Leg{}
	for i := range c.Gates {
		c.Gates[i] = parity.Gate{Name: c.Gates[i].Name, Why: "no prompt was finished"}
	}
	return c
}

func interruptedDiverged() *parity.Comparison {
	c := gelu()
	c.Exit, c.Interrupted = parity.ExitInterrupted, true
	c.Substitution[1].Note = "the activation is still beyond its bound"
	return c
}

// long is more than a strip and a heatmap have room for, with a hostile name.
func long() *parity.Comparison {
	c := fixture(600, "</title>\n| `x` ::error::")
	r, at := &c.Prompts[0], 400
	c.Verdict, c.Exit, c.Reason = parity.Diverged, parity.ExitDiverged, "</script>\n::error::step 400: flip 100%"
	r.FirstFlip, r.Matched = &at, 599
	r.Steps[399].CandidateID, r.Steps[399].Gap, r.Steps[399].MaxAbs, r.Steps[399].Class = 1, 2.5, 3, parity.ClassFlip
	s := follow("candidate", r.ID, 3, 4)
	s.Steps[2] = 400
	for i := range s.Cells {
		if s.Cells[i].Step == 2 {
			s.Cells[i].Step = 400
		}
	}
	c.Shadow = []parity.Shadow{s}
	return c
}

// fixtures are all of them, by name.
func fixtures() map[string]*parity.Comparison {
	all := map[string]*parity.Comparison{}
	for i, c := range []*parity.Comparison{good(), gelu(), custody(), accused(), vacuous(), allowedVacuous(), broken(), beyond(), interrupted(), interruptedDiverged(), long()} {
		all[fmt.Sprintf("%d %s", i, c.Verdict)] = c
	}
	return all
}
