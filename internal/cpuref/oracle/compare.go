package oracle

import (
	"fmt"
	"math"

	"llmrun/internal/engine"
)

// Judged is what one output operand of an op should hold: Rows·Cols elements, row after row. An element may stray Allowed from
// Want, the rounding to the buffer's type included.
type Judged struct {
	Operand       engine.Operand
	Want, Allowed []float64
}

// Report is what a comparison found.
type Report struct {
	Elements   int
	WorstRatio float64 // the greatest |got - want| / allowed; +Inf where that says nothing: a NaN, say
	WorstIndex int     // its element, Rows·Cols row after row
	Bad        int     // elements beyond what is allowed
	NonFinite  int     // NaNs and infinities found, wanted or not
}

// OK tells whether every element is within its bound.
func (r Report) OK() bool { return r.Bad == 0 }

// Got reads what the operand's buffer holds, once the ops before have finished.
func (j Judged) Got() ([]float64, error) {
	in, err := read(j.Operand)
	if err != nil {
		return nil, err
	}
	return in.all(), nil
}

// Strays is the error of element i over what is allowed, if it is got; beyond 1 it is bad. See Report.WorstRatio.
func (j Judged) Strays(i int, got float64) float64 {
	return strays(got, j.Want[i], j.Allowed[i], j.Operand.Buffer.DType().Precision().Overflow)
}

// Compare holds got to what was judged.
func (j Judged) Compare(got []float64) Report {
	r, limit := Report{Elements: len(j.Want)}, j.Operand.Buffer.DType().Precision().Overflow
	for i := range j.Want {
		if math.IsNaN(got[i]) || math.IsInf(got[i], 0) {
			r.NonFinite++
		}
		ratio := strays(got[i], j.Want[i], j.Allowed[i], limit)
		if ratio > 1 {
			r.Bad++
		}
		if ratio > r.WorstRatio {
			r.WorstRatio, r.WorstIndex = ratio, i
		}
	}
	return r
}

// strays is |got - want| / allowed. A NaN must be met by a NaN, an infinity by the same one; where want may be so large
// that rounding makes an infinity of it, an infinity is right too.
func strays(got, want, allowed, limit float64) float64 {
	switch {
	case got == want, math.IsNaN(got) && math.IsNaN(want):
		return 0
	case math.IsInf(got, 0) && math.Signbit(got) == math.Signbit(want) && math.Abs(want)+allowed >= limit:
		return 0
	case math.IsNaN(got), math.IsInf(got, 0), math.IsNaN(want), math.IsInf(want, 0), allowed == 0:
		return math.Inf(1)
	case math.IsNaN(allowed):
		panic(fmt.Sprintf("BUG: no bound beside %g", want))
	}
	return math.Abs(got-want) / allowed
}
