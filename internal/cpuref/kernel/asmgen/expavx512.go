package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// The functions of expamd64.go, operation by operation, with eight float64 in a register and the constants in memory once. More chains side by side
// than there would be no registers for.
const wideChains, wideTanhChains = 8, 6

func zmms(n int) []VecVirtual {
	v := make([]VecVirtual, n)
	for i := range v {
		v[i] = ZMM()
	}
	return v
}

func spread(v float64) VecVirtual {
	z := ZMM()
	VBROADCASTSD(constant(v), z)
	return z
}

// wideExps makes e^v of each v.
func wideExps(v []VecVirtual) []VecVirtual {
	n := len(v)
	p, k, t, top, bottom := zmms(n), zmms(n), ZMM(), spread(highest), spread(lowest)
	for i := range v {
		VMINPD(v[i], top, v[i]) // a NaN comes through
		VMAXPD(v[i], bottom, v[i])
		VMULPD_BCST(constant(log2E), v[i], k[i])
		VADDPD_BCST(constant(integer), k[i], k[i]) // to nearest even
		VSUBPD_BCST(constant(integer), k[i], t)
		VFNMADD231PD_BCST(constant(ln2Hi), t, v[i]) // the product is exact
		VMULPD_BCST(constant(ln2Lo), t, t)
		VSUBPD(t, v[i], v[i])
	}
	first := spread(expSeries[0])
	for step, c := range expSeries[1:] {
		term := spread(c)
		for i := range p {
			if step == 0 {
				VMULPD(v[i], first, p[i])
			} else {
				VMULPD(v[i], p[i], p[i])
			}
			VADDPD(term, p[i], p[i])
		}
	}
	for i := range p {
		VPSLLQ(Imm(52), k[i], k[i])
		VPADDQ(k[i], p[i], p[i]) // to the exponent
	}
	return p
}

// wideTanhs makes tanh v of each v.
func wideTanhs(v []VecVirtual) []VecVirtual {
	twice, signs := zmms(len(v)), spread(math.Copysign(0, -1))
	for i, d := range twice {
		VANDNPD(v[i], signs, d)
		VADDPD(d, d, d)
	}
	all, one := wideExps(twice), spread(1)
	for i, e := range all {
		x, a, up, small, which := v[i], ZMM(), ZMM(), ZMM(), K()
		VANDNPD(x, signs, a)
		VADDPD(one, e, up)
		VSUBPD(one, e, e)
		VDIVPD(up, e, e)
		VCMPPD_BCST(Imm(0x1e), constant(22), a, which) // greater than
		VMOVAPD(one, which, e)
		VPTERNLOGQ(Imm(0xf8), signs, x, e) // with x's sign
		// x - x³/3 below 1e-4.
		VMULPD(x, x, small)
		VMULPD(small, x, small)
		VDIVPD_BCST(constant(3), small, small)
		VSUBPD(small, x, small)
		VCMPPD_BCST(Imm(0x11), constant(1e-4), a, which) // less than
		VMOVAPD(small, which, e)
	}
	return all
}

// inWideChains writes a function whose loop does eight elements in each chain at a time: first while there are as many, without masks, which slow
// the stores; then those that are left, and of those beyond n nothing. body says, after what comes before the loops, what to compute of x, chain by chain; and what
// to do with eight results, or with those that the mask has if there is one, before they are stored.
func inWideChains(name, signature string, chains int, body func() (compute func(x func(chain int) VecVirtual) []VecVirtual, put func(v VecVirtual, mask Register))) {
	TEXT(name, NOSPLIT, signature)
	Doc(fmt.Sprintf("%s: see vectorFuncs.", name))
	Pragma("noescape")
	out, from, left := pointer("out"), pointer("x"), pointer("n")
	compute, put := body()
	bytes, elements := U32(uint32(32*chains)), U32(uint32(8*chains))
	SUBQ(elements, left)
	JL(LabelRef(name + "_rest"))
	Label(name + "_loop")
	for c, v := range compute(func(c int) VecVirtual {
		v := ZMM()
		VCVTPS2PD(Mem{Base: from, Disp: 32 * c}, v)
		return v
	}) {
		eight := YMM()
		VCVTPD2PS(v, eight)
		put(eight, nil)
		VMOVUPS(eight, Mem{Base: out, Disp: 32 * c})
	}
	ADDQ(bytes, from)
	ADDQ(bytes, out)
	SUBQ(elements, left)
	JGE(LabelRef(name + "_loop"))
	Label(name + "_rest")
	ADDQ(elements, left)
	JE(LabelRef(name + "_end"))
	bits := GP64()
	MOVQ(I64(-1), bits)
	BZHIQ(left, bits, bits)
	mask := func(chain int) Register {
		b, k := GP64(), K()
		MOVQ(bits, b)
		SHRQ(Imm(uint64(8*chain)), b)
		KMOVB(b.As32(), k)
		return k
	}
	for c, v := range compute(func(c int) VecVirtual {
		v := ZMM()
		VMOVUPS_Z(Mem{Base: from, Disp: 32 * c}, mask(c), v.AsY())
		VCVTPS2PD(v.AsY(), v)
		return v
	}) {
		eight, m := YMM(), mask(c)
		VCVTPD2PS(v, eight)
		put(eight, m)
		VMOVUPS(eight, m, Mem{Base: out, Disp: 32 * c})
	}
	Label(name + "_end")
}

func wideExponentials() {
	declare(1)

	var acc VecVirtual
	inWideChains("expSumWide", "func(out, x *float32, top float32, n int, lanes *float32)", wideChains, func() (func(func(int) VecVirtual) []VecVirtual, func(VecVirtual, Register)) {
		most := ZMM()
		VCVTPS2PD(broadcast("top"), most)
		acc = YMM()
		zero(acc)
		return func(x func(int) VecVirtual) []VecVirtual {
				v := make([]VecVirtual, wideChains)
				for c := range v {
					v[c] = x(c)
					VSUBPD(most, v[c], v[c])
				}
				return wideExps(v)
			}, func(v VecVirtual, mask Register) {
				if mask == nil {
					VADDPS(v, acc, acc)
				} else {
					VADDPS(v, acc, mask, acc)
				}
			}
	})
	VMOVUPS(acc, Mem{Base: pointer("lanes")})
	end()

	function := func(name, signature string, chains int, f func() func(x func(int) VecVirtual) []VecVirtual) {
		inWideChains(name, signature, chains, func() (func(func(int) VecVirtual) []VecVirtual, func(VecVirtual, Register)) {
			nan, odd := theNaN(), K()
			return f(), func(v VecVirtual, _ Register) {
				VCMPPS(Imm(3), v, v, odd) // unordered
				VMOVAPS(nan, odd, v)
			}
		})
		end()
	}
	function("siluWide", "func(out, x *float32, n int)", wideChains, func() func(func(int) VecVirtual) []VecVirtual {
		one, signs := spread(1), spread(math.Copysign(0, -1))
		return func(x func(int) VecVirtual) []VecVirtual {
			v := make([]VecVirtual, wideChains)
			for c := range v {
				v[c] = x(c)
				VXORPD(signs, v[c], v[c])
			}
			all := wideExps(v)
			for c, e := range all {
				VADDPD(one, e, e)
				VDIVPD(e, x(c), e)
			}
			return all
		}
	})
	function("geluTanhWide", "func(out, x *float32, n int)", wideTanhChains, func() func(func(int) VecVirtual) []VecVirtual {
		return func(x func(int) VecVirtual) []VecVirtual {
			inner := zmms(wideTanhChains)
			for c, i := range inner {
				v := x(c)
				VMULPD(v, v, i)
				VMULPD(i, v, i)
				VMULPD_BCST(constant(gelu3), i, i)
				VADDPD(i, v, i)
				VMULPD_BCST(constant(geluRoot), i, i)
			}
			all := wideTanhs(inner)
			for c, t := range all {
				v := x(c)
				VADDPD_BCST(constant(1), t, t)
				VMULPD_BCST(constant(0.5), v, v)
				VMULPD(t, v, t)
			}
			return all
		}
	})
	function("softCapWide", "func(out, x *float32, bound float32, n int)", wideTanhChains, func() func(func(int) VecVirtual) []VecVirtual {
		bound := ZMM()
		VCVTPS2PD(broadcast("bound"), bound)
		return func(x func(int) VecVirtual) []VecVirtual {
			v := make([]VecVirtual, wideTanhChains)
			for c := range v {
				v[c] = x(c)
				VDIVPD(bound, v[c], v[c])
			}
			all := wideTanhs(v)
			for _, t := range all {
				VMULPD(t, bound, t)
			}
			return all
		}
	})
}
