package num

import (
	"encoding/binary"
	"math"
	"testing"
)

// half is the value of a half's bits, from the definition of IEEE 754 binary16.
func half(h uint16) float64 {
	sign, exp, frac := 1.0, int(h>>10&31), float64(h&0x3ff)
	if h&0x8000 != 0 {
		sign = -1
	}
	switch exp {
	case 31:
		if frac != 0 {
			return math.NaN()
		}
		return sign * math.Inf(1)
	case 0:
		return sign * math.Ldexp(frac, -24)
	}
	return sign * math.Ldexp(1+frac/1024, exp-15)
}

func TestFloat16EveryValue(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		want, got := half(h), Float16ToFloat32(h)
		if math.IsNaN(want) != math.IsNaN(float64(got)) || !math.IsNaN(want) && want != float64(got) {
			t.Fatalf("half %#04x: want %v, got %v", h, want, got)
		}
		if back := Float32ToFloat16(got); back != h && !(math.IsNaN(want) && back == h|0x200) {
			t.Fatalf("half %#04x: comes back as %#04x", h, back)
		}
	}
}

// Between two neighbouring halves lies one tie: it goes to the even one, and its neighbours to the nearer one.
func TestFloat32ToFloat16Ties(t *testing.T) {
	for i := range 0x7bff {
		lo, hi := uint16(i), uint16(i+1)
		tie := float32((half(lo) + half(hi)) / 2)
		even := lo + lo&1
		for _, c := range []struct {
			v    float32
			want uint16
		}{
			{math.Nextafter32(tie, 0), lo}, {tie, even}, {math.Nextafter32(tie, float32(math.Inf(1))), hi},
		} {
			if got := Float32ToFloat16(c.v); got != c.want {
				t.Fatalf("%v between %#04x and %#04x: want %#04x, got %#04x", c.v, lo, hi, c.want, got)
			}
			if got := Float32ToFloat16(-c.v); got != c.want|0x8000 {
				t.Fatalf("%v: want %#04x, got %#04x", -c.v, c.want|0x8000, got)
			}
		}
	}
	for v, want := range map[float32]uint16{65519.996: 0x7bff, 65520: 0x7c00, 1e9: 0x7c00} {
		if got := Float32ToFloat16(v); got != want {
			t.Errorf("%v: want %#04x, got %#04x", v, want, got)
		}
	}
}

func TestBFloat16EveryValue(t *testing.T) {
	for i := range 1 << 16 {
		b := uint16(i)
		f := BFloat16ToFloat32(b)
		if back := Float32ToBFloat16(f); back != b && !(f != f && back == b|0x40) {
			t.Fatalf("bfloat16 %#04x: comes back as %#04x", b, back)
		}
	}
	for v, want := range map[float32]uint16{0x1.01p0: 0x3f80, 0x1.03p0: 0x3f82, 0x1.010002p0: 0x3f81} {
		if got := Float32ToBFloat16(v); got != want {
			t.Errorf("%x: want %#04x, got %#04x", v, want, got)
		}
	}
}

// TestPrecision: what a type's precision says is where its rounding changes.
func TestPrecision(t *testing.T) {
	for _, d := range []DType{Float32, Float16, BFloat16} {
		p := d.Precision()
		last := math.Ldexp(1, 1-p.Digits) // of 1
		for _, c := range []struct{ v, want float64 }{
			{1 + last, 1 + last}, {1 + last/2, 1}, {1 + 3*last/2, 1 + 2*last},
			{p.Least, p.Least}, {p.Least / 2, 0}, {3 * p.Least / 2, 2 * p.Least}, {p.Overflow, math.Inf(1)},
		} {
			if got := d.Round(c.v); got != c.want {
				t.Errorf("%v: %x rounds to %x, want %x", d, c.v, got, c.want)
			}
		}
		if got := d.Round(p.Overflow * (1 - last/8)); math.IsInf(got, 0) {
			t.Errorf("%v: a number below %x rounds to infinity", d, p.Overflow)
		}
	}
}

func TestFloat32sKeepsBits(t *testing.T) {
	bits := []uint32{0x7f800001, 0xffc12345, 0x80000000, 1, 0x3f800000}
	data := make([]byte, 1+4*len(bits)) // not aligned
	for i, b := range bits {
		binary.LittleEndian.PutUint32(data[1+4*i:], b)
	}
	got := make([]float32, len(bits))
	for n := range len(bits) + 1 {
		clear(got)
		Float32s(got[:n], Float32, data[1:])
		for i, v := range got {
			if want := bits[i]; i < n && math.Float32bits(v) != want || i >= n && v != 0 {
				t.Errorf("element %d of %d: want %#08x, got %#08x", i, n, want, math.Float32bits(v))
			}
		}
	}
}
