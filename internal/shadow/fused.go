package shadow

import (
	"math"

	"llmrun/internal/cpuref/oracle"
	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
)

// FamilyFused is the family of what a fused kernel wrote.
const FamilyFused = "fused"

// Attention judges what a fused kernel has written in place of scores, softmax and context, with nothing in between to look at; nil: it is
// within its bound. f is that kernel.
func Attention(f engine.Fusion, s *engine.Scores, c *engine.Context) (*Finding, error) {
	judged, err := oracle.JudgeAttention(s, c)
	if err != nil {
		return nil, err
	}
	got, err := judged.Got()
	if err != nil {
		return nil, err
	}
	r := judged.Compare(got)
	if r.OK() {
		return nil, nil
	}
	v := verdict{op: c, Judged: judged, Report: r, got: got}
	found := fusedFinding(f, s.Site(), "out", v.Elements, v.Bad, v.WorstIndex, v.cols(), v.Want[v.WorstIndex], got[v.WorstIndex], v.Allowed[v.WorstIndex])
	found.NonFinite, found.Ratio = v.nonFinite(), ctconv.Number(v.WorstRatio)
	return found, nil
}

// Apart is the finding of a row of l's output that is not, bit for bit, what it is without the fused kernel f, which comes between it and the product before;
// nil: it is.
func Apart(f engine.Fusion, l *engine.Linear, plain, fused []float32) *Finding {
	bad, nonFinite, at := 0, 0, 0
	worst := -1.0
	for i, want := range plain {
		got := fused[i]
		if math.Float32bits(want) == math.Float32bits(got) {
			continue
		}
		bad++
		d := math.Abs(float64(got) - float64(want))
		if math.IsNaN(d) || math.IsInf(float64(got), 0) {
			nonFinite++
			d = math.Inf(1)
		}
		if d > worst {
			worst, at = d, i
		}
	}
	if bad == 0 {
		return nil
	}
	found := fusedFinding(f, l.Site(), "out", len(plain), bad, at, len(plain), float64(plain[at]), float64(fused[at]), 0)
	found.NonFinite, found.Ratio = nonFinite, ctconv.Number(math.Inf(1))
	return found
}

func fusedFinding(f engine.Fusion, at engine.Site, operand string, elements, bad, worst, cols int, want, got, allowed float64) *Finding {
	return &Finding{Step: at.Step, Layer: at.Layer, Site: "fused " + f.Name, Family: FamilyFused, Op: f.Ops, Operand: operand, Elements: elements, Bad: bad,
		Worst: Worst{Row: worst / cols, Col: worst % cols, Inputs: []Input{}, Want: ctconv.Number(want), Got: ctconv.Number(got),
			Error: ctconv.Number(math.Abs(got - want)), Allowed: ctconv.Number(allowed)}}
}
