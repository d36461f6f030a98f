package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"llmrun/internal/num"
)

// generic is the plain form: the specification as a program, and the test of the other forms.
var generic = &Set{
	Name:      "generic",
	dotRows:   byType(genericRows),
	tilers:    []tiler{{4, 3, byType(genericTile), genericTileInt8}},
	int8:      genericInt8,
	scoreKeys: genericScoreKeys,
	endSum:    genericEndSum,
	weigh:     []weigher{{1, lanes, genericWeigh}},
	read:      genericRead,
	fetch:     func(_ *byte, _, _, _, _ int) {},
	vector:    genericVectors,
}

func byType[F any](f func(num.DType) F) (table [num.NumDTypes]F) {
	for _, d := range []num.DType{num.Float32, num.Float16, num.BFloat16, num.Int8} {
		table[d] = f(d)
	}
	return table
}

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

// sum adds the products of a and b, a multiple of 8, to their lanes. Both hold float32 values.
func sum(l *[lanes]float32, a, b []float64) {
	l0, l1, l2, l3, l4, l5, l6, l7 := l[0], l[1], l[2], l[3], l[4], l[5], l[6], l[7]
	for len(a) > 0 {
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
	*l = [lanes]float32{l0, l1, l2, l3, l4, l5, l6, l7}
}

// tree sums the lanes.
func tree(l *[lanes]float32) float32 {
	return float32(float32(l[0]+l[1])+float32(l[2]+l[3])) + float32(float32(l[4]+l[5])+float32(l[6]+l[7]))
}

// begin gives lanes their first values; end, their last use.
func begin(l *[lanes]float32, kept *float32, i, mode int) {
	*l = [lanes]float32{}
	if mode&modeContinue != 0 {
		copy(l[:], unsafe.Slice(move(kept, 4*lanes*i), lanes))
	}
}

func end(l *[lanes]float32, kept *float32, i, mode int, y *float32) {
	if mode&modeLeave != 0 {
		copy(unsafe.Slice(move(kept, 4*lanes*i), lanes), l[:])
		return
	}
	*y = stored(tree(l))
}

// move is p moved by so many bytes, or nil if p is.
func move[T any](p *T, bytes int) *T {
	if p == nil {
		return nil
	}
	return (*T)(unsafe.Add(unsafe.Pointer(p), bytes))
}

// strided is a number of rows, some bytes apart.
type strided[T any] struct {
	first  *T
	stride int
	rows   int
}

// dots adds to the lanes of the products of rows of x with rows of w, in the order [x, w], piece by piece: what is widened serves all.
// scales are those of w.
func dots(l [][lanes]float32, x strided[float32], d num.DType, w strided[byte], scales strided[float32], k int) {
	const piece = 256
	var wide [piece]float64
	var wideX [4][piece]float64
	for k0 := 0; k0 < k; k0 += piece {
		n := min(piece, k-k0)
		for m := range x.rows {
			from := (*byte)(unsafe.Pointer(move(x.first, m*x.stride+4*k0)))
			widen(wideX[m][:n], num.Float32, unsafe.Slice(from, 4*n), 1)
		}
		for r := range w.rows {
			scale := float32(1)
			if d == num.Int8 {
				scale = *move(scales.first, r*scales.stride)
			}
			widen(wide[:n], d, unsafe.Slice(move(w.first, r*w.stride+k0*d.Size()), n*d.Size()), scale)
			for m := range x.rows {
				sum(&l[m*w.rows+r], wide[:n], wideX[m][:n])
			}
		}
	}
}

func genericRows(d num.DType) dotRowsFunc {
	return func(w *byte, near, far int, scale, x *float32, k int, y *float32, skip, n int, kept *float32, mode int) {
		var l [4][lanes]float32
		for i := range n {
			for r := range l {
				begin(&l[r], kept, 4*i+r, mode)
			}
			dots(l[:], strided[float32]{x, 0, 1}, d, strided[byte]{move(w, i*near), far, 4}, strided[float32]{move(scale, 4*i), skip, 4}, k)
			for r := range l {
				end(&l[r], kept, 4*i+r, mode, move(y, 4*i+r*skip))
			}
		}
	}
}

func genericTile(d num.DType) dotTileFunc {
	return func(x *float32, ldx int, w *byte, ldw int, scale *float32, k int, y *float32, ldy, n int, kept *float32, mode int, _ *byte) {
		var l [4 * 3][lanes]float32
		for i := range n {
			for a := range l {
				begin(&l[a], kept, 12*i+a, mode)
			}
			dots(l[:], strided[float32]{x, ldx, 4}, d, strided[byte]{move(w, 3*i*ldw), ldw, 3}, strided[float32]{move(scale, 12*i), 4, 3}, k)
			for a := range l {
				end(&l[a], kept, 12*i+a, mode, move(y, a/3*ldy+4*(3*i+a%3)))
			}
		}
	}
}

func genericScoreKeys(k *float32, gap, far int, q *float32, heads, group, dim int, scale float32, y *float32, ldy, skip, n int) {
	for i := range n {
		for h := range heads * group {
			var l [4][lanes]float32
			key := (*byte)(unsafe.Pointer(move(k, i*(4*heads*dim+gap)+h/group*4*dim)))
			dots(l[:], strided[float32]{move(q, 4*h*dim), 0, 1}, num.Float32, strided[byte]{key, far, 4}, strided[float32]{}, dim)
			for r := range l {
				*move(y, h*ldy+r*skip+4*i) = stored(float32(tree(&l[r]) * scale))
			}
		}
	}
}

func genericEndSum(v *float32, ldv int, p *float32, n int, y *float32, d int, kept *float32) {
	for i := range d {
		var l [lanes]float32
		for lane := range l {
			l[lane] = *move(kept, 4*(i/8*64+lane*8+i%8))
			if n == 0 {
				continue
			}
			product := 0.0
			if lane < n {
				product = float64(*move(p, 4*lane)) * float64(*move(v, lane*ldv+4*i))
			}
			l[lane] = float32(plus(product, float64(l[lane])))
		}
		*move(y, 4*i) = stored(tree(&l))
	}
}

func genericWeigh(v *float32, ldv int, p *float32, _, n int, kept *float32, _, d, count, _ int) {
	for i := range d {
		for lane := range count {
			l := move(kept, 4*(i/8*64+lane*8+i%8))
			for j := lane; j < n; j += lanes {
				*l = float32(plus(float64(*move(p, 4*j))*float64(*move(v, j*ldv+4*i)), float64(*l)))
			}
		}
	}
}

func genericRead(p *byte, stride, n int, sum *float32) {
	for r := range 4 {
		for _, v := range unsafe.Slice((*float32)(unsafe.Pointer(move(p, r*stride))), n/4) {
			*sum += v
		}
	}
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
