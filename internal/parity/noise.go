package parity

import (
	"math"
	"math/rand/v2"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// How far may a right candidate's logits be from the reference's? The differences themselves cannot say: whenever the candidate
// chooses another token, the reference's gap between the two is at most 2·max|Δlogit| of that step, by algebra, so a broken candidate
// would excuse itself. Its differences at other steps are no better: who is wrong everywhere is wrong there, too.
//
// So the candidate is not asked. The reference decodes a second time, on the same tokens, and what each op writes is moved at random
// within the rounding of an innocent backend of the candidate's type (stochastic arithmetic: Vignes 1974; Parker 1997). What
// that does to the logits through all layers and the KV cache, on this model, prompt and step, is the noise.
// Its largest value over a prompt's steps, times allowance, is the max|Δlogit| that rounding explains. Within it, a different
// token is a near tie; beyond it, it is a flip. NaN is within nothing.

// allowance is how many times the noise a right candidate may show. The noise is one draw, and so is the candidate; single steps
// reach 2 or 3 times their neighbours, where something in the model is nearly undecided, and need not do so in both. The rest, a
// factor of about 3, is for sums in the least favourable order (one lane) and functions a little worse than perturb has
// them. Measured: right backends show 0.1 to 0.4 of the noise in float32 and 0.6 to 1.1 in float16 and bfloat16, so logits
// alone cannot tell a defect of a few roundings from an innocent backend.
const allowance = 8

// roundoff moves what ops write.
type roundoff struct {
	unit float64 // largest relative rounding error of the candidate's type
	rand *rand.Rand
	err  error // the first
}

func newRoundoff(reference, candidate num.DType) *roundoff {
	r := &roundoff{unit: max(unitRoundoff(reference), unitRoundoff(candidate))}
	r.reset()
	return r
}

// reset makes a prompt's draws independent of the prompts before it.
func (r *roundoff) reset() { r.rand = rand.New(rand.NewPCG(1, 2)) }

// unitRoundoff is half the distance of 1 from the next number.
func unitRoundoff(d num.DType) float64 { return math.Ldexp(1, -d.Precision().Digits) }

// tap is for a session of the reference: it perturbs each op's output in place.
func (r *roundoff) tap(op engine.Op) {
	terms := terms(op)
	if terms == 0 || r.err != nil {
		return
	}
	outs, _ := op.Operands(nil, nil)
	for _, o := range outs {
		host, err := o.Buffer.Host()
		if err != nil {
			r.err = err
			return
		}
		row := make([]float32, o.Cols)
		d := o.Buffer.DType()
		for i := range o.Rows {
			at := host[(o.Offset+i*o.Stride)*d.Size():]
			num.Float32s(row, d, at)
			r.perturb(row, terms)
			num.PutFloat32s(d, at, row)
		}
	}
}

// perturb moves each v of a row by a random share, -1 to 1, of
//
//	unit·|v| + 2⁻²⁴·√terms·rms(row)
//
// The first part is the rounding of the output to the candidate's type. The second is a float32 sum of so many terms in
// another order: its error is about √n·2⁻²⁴ times the size that the sum has when the terms' signs are random
// (Higham and Mary 2019, SIAM J. Sci. Comput. 41, A2815), which is the size of its neighbours, not its own, where
// terms cancel. Zeros are masks, and stay.
func (r *roundoff) perturb(row []float32, terms int) {
	squares := 0.0
	for _, v := range row {
		squares += float64(float64(v) * float64(v)) // the conversion keeps arm64 from fusing: the same draws everywhere
	}
	sum := 0x1p-24 * math.Sqrt(float64(terms)*squares/float64(len(row)))
	for i, v := range row {
		if v != 0 {
			error := float64(r.unit*math.Abs(float64(v))) + sum
			row[i] = float32(float64(v) + float64((2*r.rand.Float64()-1)*error))
		}
	}
}

// terms is how many float32 terms an op adds up; 0: it only copies. Functions count 16, for their 4 units in the last place.
func terms(op engine.Op) int {
	switch o := op.(type) {
	case *engine.KVWrite:
		return 0
	case *engine.Linear:
		if o.Quantized {
			return 4 // its sum is exact; what rounds comes after
		}
		return o.W.Cols
	case *engine.Scores:
		return o.Attention.Dim
	case *engine.Context:
		_, _, keys := o.Keys(o.In)
		return keys
	case *engine.Softmax, *engine.Activate, *engine.SoftCap:
		return 16
	case *engine.RoPE:
		return 2
	}
	return 1
}
