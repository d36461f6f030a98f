package engine

import (
	"fmt"
	"slices"

	"llmrun/internal/num"
)

// rotary is how a layer turns positions into angles (CTranslate2, src/layers/attention_layer.cc).
type rotary struct {
	dim         int // leading elements of a head that are rotated
	interleaved bool
	base        float32
	scaling     rotaryScaling
	factor      float32 // linear, llama3
	low, high   float32 // llama3
	original    int     // positions that the model was first trained on: su, llama3
	maximum     int     // su
}

type rotaryScaling int

const (
	unscaled     rotaryScaling = -1
	linearScaled rotaryScaling = 0
	suScaled     rotaryScaling = 1 // longrope
	llama3Scaled rotaryScaling = 2
)

// angles reads a layer's rotary options; scope is the layer's self_attention. Without rotary positions, dim is 0.
func (w *weights) angles(scope string, headDim int) angles {
	name := func(option string) string { return scope + "/rotary_" + option }
	if !w.has(name("dim")) {
		return angles{}
	}
	r := angles{rotary: rotary{
		dim:         w.integer(name("dim"), 0),
		interleaved: w.flag(name("interleave"), true),
		base:        w.float(name("base"), 10000),
		scaling:     rotaryScaling(w.integer(name("scaling_type"), int(unscaled))),
		factor:      w.float(name("scaling_factor"), 1),
		low:         w.float(name("low_freq_factor"), 1),
		high:        w.float(name("high_freq_factor"), 4),
		original:    w.integer(scope+"/original_max_position_embeddings", 0),
		maximum:     w.integer(scope+"/max_position_embeddings", 0),
	}}
	if r.dim == 0 {
		r.dim = headDim
	}
	if r.dim < 0 || r.dim > headDim || r.dim%2 != 0 {
		w.fail(fmt.Errorf("%s: %s: want an even number up to the head size %d, file has %d", w.m.Dir, name("dim"), headDim, r.dim))
	}
	switch r.scaling {
	case unscaled, linearScaled, llama3Scaled:
	case suScaled:
		r.longFactors = w.floats(name("scaling_long_factor"), r.dim/2)
		r.shortFactors = w.floats(name("scaling_short_factor"), r.dim/2)
	default:
		w.refuse(name("scaling_type"), fmt.Sprintf("rotary scaling %d", r.scaling))
	}
	return r
}

// angles computes the table of RoPE: for each position, dim/2 cosines and dim/2 sines.
type angles struct {
	rotary
	longFactors, shortFactors []float32 // su: [dim/2]
}

// equal tells whether two layers can share a table.
func (a *angles) equal(b *angles) bool {
	return a.rotary == b.rotary && slices.Equal(a.longFactors, b.longFactors) && slices.Equal(a.shortFactors, b.shortFactors)
}

// rows is the number of rows of CTranslate2's own table once it has had to serve so many positions, starting from a table
// of have rows: it begins with 2048 and grows by at least 2048. Su scaling switches on it, not on the length of the text.
func (a *angles) rows(have, need int) int {
	if need <= have {
		return have
	}
	return max(need, have+2048)
}

// switchesAt tells whether growing from one table size to the other changes the angles.
func (a *angles) switchesAt(before, after int) bool {
	return a.scaling == suScaled && (before > a.original) != (after > a.original)
}

// table writes the cosines and sines of all positions that dst [positions, dim] has room for; ct2Rows is the size that CTranslate2's
// own table would have. Everything is float32, as there; sine and cosine are those of the rounded angle.
func (a *angles) table(dst []byte, positions, ct2Rows int) {
	half := a.dim / 2
	inverse := a.inverseFrequencies(ct2Rows)
	magnitude := a.magnitude()
	for p := range positions {
		position := float32(p)
		if a.scaling == linearScaled {
			position /= a.factor
		}
		for i, inv := range inverse {
			angle := float64(position * inv)
			num.PutFloat32(num.Float32, dst, p*a.dim+i, float32(num.Cos(angle))*magnitude)
			num.PutFloat32(num.Float32, dst, p*a.dim+half+i, float32(num.Sin(angle))*magnitude)
		}
	}
}

// inverseFrequencies gives the angle per position of each pair.
func (a *angles) inverseFrequencies(ct2Rows int) []float32 {
	inverse := make([]float32, a.dim/2)
	factors := a.shortFactors
	if ct2Rows > a.original {
		factors = a.longFactors
	}
	for i := range inverse {
		power := float32(num.Pow(float64(a.base), float64(float32(2*i)/float32(a.dim))))
		switch a.scaling {
		case suScaled:
			inverse[i] = 1 / (factors[i] * power)
		case llama3Scaled:
			inverse[i] = a.llama3(1 / power)
		default:
			inverse[i] = 1 / power
		}
	}
	return inverse
}

// llama3 slows down the long waves, leaves the short ones, and blends between. A file of the shipped converter stores neither
// factor nor original length, and then this changes nothing (the converter's omission, not ours).
func (a *angles) llama3(inv float32) float32 {
	length := float32(a.original)
	wave := float32(2*3.14159265358979323846) / inv
	switch {
	case wave < length/a.high:
		return inv
	case wave > length/a.low:
		return inv / a.factor
	}
	blend := (length/wave - a.low) / (a.high - a.low)
	return float32((1-blend)*inv/a.factor) + float32(blend*inv)
}

// magnitude is what su scaling multiplies sines and cosines by. CTranslate2 divides the two lengths as integers, and does
// this for every type but llama3 whenever both are stored.
func (a *angles) magnitude() float32 {
	if a.scaling == llama3Scaled || a.original == 0 || a.maximum/a.original <= 1 {
		return 1
	}
	ratio := num.Log(float64(a.maximum/a.original)) / num.Log(float64(a.original))
	return sqrt32(1 + float32(ratio))
}
