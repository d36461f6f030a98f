// Package num holds what every room needs of numbers: element types and their conversions, and
// elementary functions that give the same bits on every machine.
package num

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"
)

// DType is an element type. The values are the type ids of CTranslate2's model.bin (version 4 and later).
type DType uint8

// The element types a converted model can hold.
const (
	Float32 DType = iota
	Int8
	Int16
	Int32
	Float16  // IEEE 754 binary16
	BFloat16 // the upper half of a float32
	NumDTypes
)

var dtypes = [NumDTypes]struct {
	name string
	size int
}{
	Float32: {"float32", 4}, Int8: {"int8", 1}, Int16: {"int16", 2}, Int32: {"int32", 4},
	Float16: {"float16", 2}, BFloat16: {"bfloat16", 2},
}

// Size is the number of bytes of one element.
func (d DType) Size() int { return dtypes[d].size }

func (d DType) String() string {
	if d >= NumDTypes {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return dtypes[d].name
}

// IsFloat tells whether the elements are floating-point numbers.
func (d DType) IsFloat() bool { return d == Float32 || d == Float16 || d == BFloat16 }

// Precision is how finely a floating-point type can tell numbers apart.
type Precision struct {
	Digits   int     // of the significand, the leading bit too: rounding errs by 2^-Digits, relative
	Least    float64 // the smallest number above 0
	Overflow float64 // from here on rounding gives infinity: half a last bit above the largest number
}

// Precision gives a floating-point type's.
func (d DType) Precision() Precision {
	switch d {
	case Float32:
		return Precision{24, 0x1p-149, 0x1.ffffffp127}
	case Float16:
		return Precision{11, 0x1p-24, 65520}
	case BFloat16:
		return Precision{8, 0x1p-133, 0x1.ffp127}
	}
	panic(fmt.Sprintf("BUG: %v is no floating-point type", d))
}

// Round gives v as an element of a floating-point type holds it, rounded to float32 first.
func (d DType) Round(v float64) float64 {
	var b [4]byte
	PutFloat32(d, b[:], 0, float32(v))
	return float64(Float32At(d, b[:], 0))
}

// Float16ToFloat32 widens an IEEE half, exactly; a NaN keeps its payload.
func Float16ToFloat32(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	rest := uint32(h & 0x7fff)
	if rest >= 0x7c00 { // infinity or NaN: the exponent of float32 is all ones too
		return math.Float32frombits(sign | rest<<13 | 0x7f800000)
	}
	// The bits read as a float32 are the value times 2^-112, subnormals included: one exact product mends it.
	return math.Float32frombits(sign | math.Float32bits(math.Float32frombits(rest<<13)*0x1p112))
}

// Float32ToFloat16 rounds to the nearest half, ties to even; beyond 65504 (65520 and up) it is an infinity.
func Float32ToFloat16(f float32) uint16 {
	bits := math.Float32bits(f)
	sign := uint16(bits >> 16 & 0x8000)
	bits &= 0x7fffffff
	switch {
	case bits > 0x7f800000: // NaN: keep the upper payload, stay a NaN, quiet
		return sign | 0x7e00 | uint16(bits>>13&0x3ff)
	case bits >= 0x477ff000: // 65520 rounds to infinity
		return sign | 0x7c00
	case bits < 0x38800000: // below 2^-14: a multiple of 2^-24, by adding 0.5, whose last bit is 2^-24
		return sign | uint16(math.Float32bits(math.Float32frombits(bits)+0.5)-math.Float32bits(0.5))
	}
	bits += 0xfff + bits>>13&1 // round to nearest even at bit 13
	return sign | uint16((bits-0x38000000)>>13)
}

// BFloat16ToFloat32 widens a bfloat16, exactly.
func BFloat16ToFloat32(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// Float32ToBFloat16 rounds to the nearest bfloat16, ties to even.
func Float32ToBFloat16(f float32) uint16 {
	bits := math.Float32bits(f)
	if bits&0x7fffffff > 0x7f800000 {
		return uint16(bits>>16) | 0x40
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

// Float32At reads element i of little-endian bytes of type d as a float32. Integers are converted by value.
// The bytes need no alignment: payloads of model.bin have none.
func Float32At(d DType, b []byte, i int) float32 {
	switch d {
	case Float32:
		return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	case Float16:
		return Float16ToFloat32(binary.LittleEndian.Uint16(b[2*i:]))
	case BFloat16:
		return BFloat16ToFloat32(binary.LittleEndian.Uint16(b[2*i:]))
	case Int8:
		return float32(int8(b[i]))
	case Int16:
		return float32(int16(binary.LittleEndian.Uint16(b[2*i:])))
	case Int32:
		return float32(int32(binary.LittleEndian.Uint32(b[4*i:])))
	}
	panic(fmt.Sprintf("BUG: no float32 of %v", d))
}

// PutFloat32 stores v as element i of little-endian bytes of floating-point type d, rounding to nearest even.
func PutFloat32(d DType, b []byte, i int, v float32) {
	switch d {
	case Float32:
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
	case Float16:
		binary.LittleEndian.PutUint16(b[2*i:], Float32ToFloat16(v))
	case BFloat16:
		binary.LittleEndian.PutUint16(b[2*i:], Float32ToBFloat16(v))
	default:
		panic(fmt.Sprintf("BUG: %v is no floating-point type", d))
	}
}

// Float32s widens (or converts, for integers) the first len(dst) elements of b into dst.
func Float32s(dst []float32, d DType, b []byte) {
	if d == Float32 {
		copy(Bytes(dst), b[:4*len(dst)])
		return
	}
	for i := range dst {
		dst[i] = Float32At(d, b, i)
	}
}

// PutFloat32s stores src as floating-point type d at the front of b.
func PutFloat32s(d DType, b []byte, src []float32) {
	for i, v := range src {
		PutFloat32(d, b, i, v)
	}
}

// Bytes is the memory of a, whose elements are little-endian as the machine is.
func Bytes(a []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(a))), 4*len(a))
}
