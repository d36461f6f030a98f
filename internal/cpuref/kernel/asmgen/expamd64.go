package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

var constants = map[float64]Mem{}

// constant is where a float64 lies.
func constant(v float64) Mem {
	m, known := constants[v]
	if !known {
		panic(fmt.Sprintf("constant %v is not declared", v))
	}
	return m
}

// declare lays out the constants of exp and of those who call it, each so many times.
func declare(times int) {
	m := GLOBL("float64s", RODATA|NOPTR)
	for i, v := range append([]float64{lowest, highest, log2E, ln2Hi, ln2Lo, integer, math.Copysign(0, -1), 22, 3, 1e-4, gelu3, geluRoot}, expSeries[:11]...) {
		for l := range times {
			DATA(8*(times*i+l), U64(math.Float64bits(v))) // avo would write 22 as an integer
		}
		constants[v] = m.Offset(8 * times * i)
	}
}

const (
	log2E = math.Log2E
	ln2Hi = 0x1.62e42feep-1
	ln2Lo = 0x1.a39ef35793c76p-33
	// Beyond these, the float32 made of e^x is what it is here: 0, or 1 when 1 is added; and infinite.
	lowest, highest = -708, 709
	// Adding it rounds to an integer, with its bits at the bottom of the sum's.
	integer  = 3 << 51
	exponent = integer + 1023
	gelu3    = 0.044715
	geluRoot = math.Sqrt2 / math.SqrtPi
)

var expSeries = []float64{1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1, 1}

// A chain of dependent instructions computes exp of four float64. One alone would wait for itself: as many as there are registers for go side by side,
// and fewer for the last elements.
const expChains, tanhChains, fewChains = 12, 8, 2

// exps is num.Exp of four float64 in so many chains, operation by operation. x gives those of a chain.
func exps(chains int, x func(chain int) VecVirtual) []VecVirtual {
	p, k, r := make([]VecVirtual, chains), spill[0], spill[1]
	for i := range p {
		v, whole := x(i), ymm()
		VMOVUPD(constant(highest), whole)
		VMINPD(v, whole, whole) // a NaN comes through
		VMOVUPD(constant(lowest), v)
		VMAXPD(whole, v, v)
		VMULPD(constant(log2E), v, whole)
		VADDPD(constant(integer), whole, whole) // to nearest even
		VMOVUPD(whole, k[i])
		VSUBPD(constant(integer), whole, whole)
		VFNMADD231PD(constant(ln2Hi), whole, v) // the product is exact
		VMULPD(constant(ln2Lo), whole, whole)
		VSUBPD(whole, v, v)
		VMOVUPD(v, r[i])
		p[i] = ymm()
		VMULPD(constant(expSeries[0]), v, p[i])
		VADDPD(constant(expSeries[1]), p[i], p[i])
	}
	coefficient := ymm()
	for _, c := range expSeries[2:] {
		VMOVUPD(constant(c), coefficient)
		for i := range p {
			VMULPD(r[i], p[i], p[i])
			VADDPD(coefficient, p[i], p[i])
		}
	}
	for i := range p {
		power := ymm()
		VMOVUPD(k[i], power)
		VPSLLQ(Imm(52), power, power)
		VPADDQ(power, p[i], p[i]) // to the exponent
	}
	return p
}

// spill is memory of the function that is being written, for three vectors of each chain.
var spill [3][expChains]Mem

// signOf gives the sign bits of v, and v without them.
func signOf(v VecVirtual) (sign, magnitude VecVirtual) {
	sign, magnitude = ymm(), ymm()
	VMOVUPD(constant(math.Copysign(0, -1)), sign)
	VANDNPD(v, sign, magnitude)
	VANDPD(v, sign, sign)
	return sign, magnitude
}

// tanhs is num.Tanh of four float64 in so many chains.
func tanhs(chains int, x func(chain int) VecVirtual) []VecVirtual {
	kept := spill[2]
	all := exps(chains, func(i int) VecVirtual {
		v := x(i)
		VMOVUPD(v, kept[i])
		_, a := signOf(v)
		VADDPD(a, a, a)
		return a
	})
	for i, e := range all {
		v, up := ymm(), ymm()
		VMOVUPD(kept[i], v)
		sign, a := signOf(v)
		VADDPD(constant(1), e, up)
		one := ymm()
		VMOVUPD(constant(1), one)
		VSUBPD(one, e, e)
		VDIVPD(up, e, e)
		// 1 beyond 22.
		which := ymm()
		VCMPPD(Imm(0x1e), constant(22), a, which) // greater than
		VBLENDVPD(which, one, e, e)
		VORPD(sign, e, e)
		// x - x³/3 below 1e-4.
		small := ymm()
		VMULPD(v, v, small)
		VMULPD(small, v, small)
		VDIVPD(constant(3), small, small)
		VSUBPD(small, v, small)
		VCMPPD(Imm(0x11), constant(1e-4), a, which) // less than
		VBLENDVPD(which, small, e, e)
	}
	return all
}

// wide is the four float32 of a chain, from element i on, as float64.
func wide(x, i Register, chain int) VecVirtual {
	v := ymm()
	VCVTPS2PD(at(x, i, 4, 4*chain), v)
	return v
}

// narrow is two chains' results as eight float32.
func narrow(a, b VecVirtual) VecVirtual {
	low, high, whole := XMM(), XMM(), ymm()
	VCVTPD2PSY(a, low)
	VCVTPD2PSY(b, high)
	VINSERTF128(Imm(1), high, low.AsY(), whole)
	return whole
}

// inChains writes a function whose loops do four elements in each of so many chains at a time, and in each of a few what is left.
func inChains(name, signature string, chains int, body func() func(i Register, chains int)) {
	TEXT(name, 0, signature) // too much memory for a NOSPLIT
	Doc(fmt.Sprintf("%s: see vectorFuncs.", name))
	Pragma("noescape")
	local, base := AllocLocal(32*len(spill)*chains+32), GP64() // aligned, since no vector should lie in two lines
	LEAQ(local.Offset(31), base)
	ANDQ(I8(-32), base)
	for i := range spill {
		for chain := range chains {
			spill[i][chain] = Mem{Base: base, Disp: 32 * (i*chains + chain)}
		}
	}
	loop := body()
	left, i := Load(Param("n"), GP64()), GP64()
	XORQ(i, i)
	SUBQ(Imm(uint64(4*chains)), left)
	JL(LabelRef(name + "_rest"))
	Label(name + "_many")
	loop(i, chains)
	ADDQ(Imm(uint64(4*chains)), i)
	SUBQ(Imm(uint64(4*chains)), left)
	JGE(LabelRef(name + "_many"))
	Label(name + "_rest")
	ADDQ(Imm(uint64(4*chains)), left)
	JE(LabelRef(name + "_done"))
	Label(name + "_few")
	loop(i, fewChains)
	ADDQ(Imm(4*fewChains), i)
	SUBQ(Imm(4*fewChains), left)
	JG(LabelRef(name + "_few"))
	Label(name + "_done")
}

func exponentials() {
	declare(4)

	var acc VecVirtual
	inChains("expSum", "func(out, x *float32, top float32, n int, lanes *float32)", expChains, func() func(Register, int) {
		out, x, most := pointer("out"), pointer("x"), ymm()
		VCVTPS2PD(broadcast("top").AsX(), most)
		acc = ymm()
		zero(acc)
		return func(i Register, chains int) {
			all := exps(chains, func(c int) VecVirtual {
				v := wide(x, i, c)
				VSUBPD(most, v, v)
				return v
			})
			for c := 0; c < chains; c += 2 {
				v := narrow(all[c], all[c+1])
				VADDPS(v, acc, acc)
				VMOVUPS(v, at(out, i, 4, 4*c))
			}
		}
	})
	VMOVUPS(acc, Mem{Base: pointer("lanes")})
	end()

	function := func(name, signature string, f func() func(x func(chain int) VecVirtual, chains int) []VecVirtual) {
		inChains(name, signature, tanhChains, func() func(Register, int) {
			out, x, nan := pointer("out"), pointer("x"), theNaN()
			results := f()
			return func(i Register, chains int) {
				all := results(func(c int) VecVirtual { return wide(x, i, c) }, chains)
				for c := 0; c < chains; c += 2 {
					storeTo(at(out, i, 4, 4*c), narrow(all[c], all[c+1]), nan)
				}
			}
		})
		end()
	}
	function("silu8", "func(out, x *float32, n int)", func() func(func(int) VecVirtual, int) []VecVirtual {
		return func(x func(int) VecVirtual, chains int) []VecVirtual {
			all := exps(chains, func(c int) VecVirtual {
				v := x(c)
				VXORPD(constant(math.Copysign(0, -1)), v, v)
				return v
			})
			for c, e := range all {
				VADDPD(constant(1), e, e)
				VDIVPD(e, x(c), e)
			}
			return all
		}
	})
	function("geluTanh8", "func(out, x *float32, n int)", func() func(func(int) VecVirtual, int) []VecVirtual {
		return func(x func(int) VecVirtual, chains int) []VecVirtual {
			all := tanhs(chains, func(c int) VecVirtual {
				v, inner := x(c), ymm()
				VMULPD(v, v, inner)
				VMULPD(inner, v, inner)
				VMULPD(constant(gelu3), inner, inner)
				VADDPD(inner, v, inner)
				VMULPD(constant(geluRoot), inner, inner)
				return inner
			})
			for c, t := range all {
				v := x(c)
				VADDPD(constant(1), t, t)
				VMULPD(constant(0.5), v, v)
				VMULPD(t, v, t)
			}
			return all
		}
	})
	function("softCap8", "func(out, x *float32, bound float32, n int)", func() func(func(int) VecVirtual, int) []VecVirtual {
		bound := ymm()
		VCVTPS2PD(broadcast("bound").AsX(), bound)
		return func(x func(int) VecVirtual, chains int) []VecVirtual {
			all := tanhs(chains, func(c int) VecVirtual {
				v := x(c)
				VDIVPD(bound, v, v)
				return v
			})
			for _, t := range all {
				VMULPD(t, bound, t)
			}
			return all
		}
	})
}
