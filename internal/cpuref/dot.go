package cpuref

import (
	"encoding/binary"
	"fmt"
	"math"

	"llmrun/internal/num"
)

// lanes is the number of partial sums of every sum.
const lanes = 8

// plus gives p + c as a float64 that converts to the correctly rounded float32. p is a product of two float32 values,
// which float64 holds exactly, and c a float32 value; so float32(plus(p, c)) is their fused multiply-add.
//
// The sum's rounding to float64 matters to the later rounding to float32 only if it made a tie. A tie between two float32
// neighbours is a 1 followed by zeros: 28 of them at least, more among the subnormals. Such sums are done again with care.
func plus(p, c float64) (s float64) {
	if s = p + c; math.Float64bits(s)<<(64-28) == 0 {
		return num.RoundOddSum(p, c)
	}
	return
}

// dot sums a·b in the eight-lane order. Both hold float32 values and are equally long.
func dot(a, b []float64) float32 {
	b = b[:len(a)]
	var padA, padB [lanes]float64
	var l0, l1, l2, l3, l4, l5, l6, l7 float32
	for len(a) > 0 {
		if len(a) < lanes {
			copy(padA[:], a)
			copy(padB[:], b)
			a, b = padA[:], padB[:]
		}
		a8, b8 := (*[lanes]float64)(a), (*[lanes]float64)(b)
		l0 = float32(plus(a8[0]*b8[0], float64(l0)))
		l1 = float32(plus(a8[1]*b8[1], float64(l1)))
		l2 = float32(plus(a8[2]*b8[2], float64(l2)))
		l3 = float32(plus(a8[3]*b8[3], float64(l3)))
		l4 = float32(plus(a8[4]*b8[4], float64(l4)))
		l5 = float32(plus(a8[5]*b8[5], float64(l5)))
		l6 = float32(plus(a8[6]*b8[6], float64(l6)))
		l7 = float32(plus(a8[7]*b8[7], float64(l7)))
		a, b = a[lanes:], b[lanes:]
	}
	return float32(float32(l0+l1)+float32(l2+l3)) + float32(float32(l4+l5)+float32(l6+l7))
}

// widen reads len(dst) elements of type d from b, which has no alignment. scale is for int8 alone.
func widen(dst []float64, d num.DType, b []byte, scale float32) {
	b = b[:len(dst)*d.Size()]
	switch d {
	case num.Float32:
		for len(dst) >= lanes && len(b) >= 4*lanes {
			dst[0], dst[1], dst[2], dst[3] = float32At(b, 0), float32At(b, 1), float32At(b, 2), float32At(b, 3)
			dst[4], dst[5], dst[6], dst[7] = float32At(b, 4), float32At(b, 5), float32At(b, 6), float32At(b, 7)
			dst, b = dst[lanes:], b[4*lanes:]
		}
		for i := range dst {
			dst[i] = float32At(b, i)
		}
	case num.Float16:
		for len(dst) >= 4 && len(b) >= 8 {
			u := binary.LittleEndian.Uint64(b)
			dst[0], dst[1], dst[2], dst[3] = float16(u), float16(u>>16), float16(u>>32), float16(u>>48)
			if (u&0x7c007c007c007c00+0x0400040004000400)&0x8000800080008000 != 0 { // an infinity or a NaN among them
				float16s(dst[:4], b)
			}
			dst, b = dst[4:], b[8:]
		}
		float16s(dst, b)
	case num.BFloat16:
		for len(dst) >= 4 && len(b) >= 8 {
			u := binary.LittleEndian.Uint64(b)
			dst[0], dst[1] = bfloat16(u), bfloat16(u>>16)
			dst[2], dst[3] = bfloat16(u>>32), bfloat16(u>>48)
			dst, b = dst[4:], b[8:]
		}
		for i := range dst {
			dst[i] = bfloat16(uint64(binary.LittleEndian.Uint16(b[2*i:])))
		}
	case num.Int8:
		for i := range dst {
			dst[i] = float64(float32(float32(int8(b[i])) * scale))
		}
	default:
		panic(fmt.Sprintf("BUG: a matrix of %v", d))
	}
}

func float32At(b []byte, i int) float64 {
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
}

// float16 widens a finite half, the low 16 bits of u. The sign goes to bit 63 and the rest to the lower bits of the exponent
// and down: that is the value times 2^(15-1023), subnormals included, which an exact product mends.
func float16(u uint64) float64 {
	return math.Float64frombits(u<<48&(1<<63)|u&0x7fff<<42) * 0x1p1008
}

func float16s(dst []float64, b []byte) {
	for i := range dst {
		dst[i] = float64(num.Float16ToFloat32(binary.LittleEndian.Uint16(b[2*i:])))
	}
}

func bfloat16(u uint64) float64 { return float64(math.Float32frombits(uint32(u) << 16)) }
