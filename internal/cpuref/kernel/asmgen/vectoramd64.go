package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// eachEight writes a function whose loop does eight elements at a time; n is a positive multiple of 8. body gets the index of the first.
func eachEight(name, signature string, body func() func(i Register)) {
	TEXT(name, NOSPLIT, signature)
	Doc(fmt.Sprintf("%s: see vectorFuncs.", name))
	Pragma("noescape")
	loop := body()
	n, i := Load(Param("n"), GP64()), GP64()
	XORQ(i, i)
	Label(name + "_loop")
	loop(i)
	ADDQ(Imm(8), i)
	CMPQ(i, n)
	JLT(LabelRef(name + "_loop"))
}

func end() {
	VZEROUPPER()
	RET()
}

func pointer(name string) Register { return Load(Param(name), GP64()) }

// argument is where it lies.
func argument(name string) Mem {
	m, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return m.Addr
}

func broadcast(param string) VecVirtual {
	v := ymm()
	VBROADCASTSS(argument(param), v)
	return v
}

func load(p, i Register) VecVirtual {
	v := ymm()
	VMOVUPS(at(p, i, 4, 0), v)
	return v
}

// theNaN is the NaN that is stored for any.
func theNaN() VecVirtual {
	v := ymm()
	VBROADCASTSS(storedNaN, v)
	return v
}

// store puts v, with theNaN for any other.
func store(v VecVirtual, p, i Register, nan VecVirtual) { storeTo(at(p, i, 4, 0), v, nan) }

func storeTo(to Mem, v, nan VecVirtual) {
	odd := ymm()
	VCMPPS(Imm(3), v, v, odd) // unordered
	VBLENDVPS(odd, nan, v, v)
	VMOVUPS(v, to)
}

func elementwise() {
	binary := func(name string, op func(...Op)) {
		eachEight(name, "func(out, a, b *float32, n int)", func() func(Register) {
			out, a, b, nan := pointer("out"), pointer("a"), pointer("b"), theNaN()
			return func(i Register) {
				v := load(a, i)
				op(at(b, i, 4, 0), v, v)
				store(v, out, i, nan)
			}
		})
		end()
	}
	binary("addVectors", VADDPS)
	binary("mulVectors", VMULPS)
	scalar := func(name string, op func(...Op)) {
		eachEight(name, "func(out, a *float32, s float32, n int)", func() func(Register) {
			out, a, s, nan := pointer("out"), pointer("a"), broadcast("s"), theNaN()
			return func(i Register) {
				v := load(a, i)
				op(s, v, v)
				store(v, out, i, nan)
			}
		})
		end()
	}
	scalar("scaleVector", VMULPS)
	scalar("divideVector", VDIVPS)

	eachEight("normalize", "func(out, x, w *float32, inv, offset float32, n int)", func() func(Register) {
		out, x, w, nan := pointer("out"), pointer("x"), pointer("w"), theNaN()
		inv, offset := broadcast("inv"), broadcast("offset")
		return func(i Register) {
			v, gain := load(x, i), ymm()
			VMULPS(inv, v, v)
			VADDPS(at(w, i, 4, 0), offset, gain)
			VMULPS(gain, v, v)
			store(v, out, i, nan)
		}
	})
	end()

	eachEight("rotate", "func(outA, outB, a, b, cos, sin *float32, n int)", func() func(Register) {
		outA, outB, a, b := pointer("outA"), pointer("outB"), pointer("a"), pointer("b")
		cos, sin, nan := pointer("cos"), pointer("sin"), theNaN()
		return func(i Register) {
			av, bv, c, s := load(a, i), load(b, i), load(cos, i), load(sin, i)
			ac, bs, bc, as := ymm(), ymm(), ymm(), ymm()
			VMULPS(c, av, ac)
			VMULPS(s, bv, bs)
			VSUBPS(bs, ac, ac)
			VMULPS(c, bv, bc)
			VMULPS(s, av, as)
			VADDPS(as, bc, bc)
			store(ac, outA, i, nan)
			store(bc, outB, i, nan)
		}
	})
	end()
}

// largest leaves in eight lanes the maximum of every eighth element, or a NaN if there is one.
func largest() {
	var most, odd VecVirtual
	eachEight("largest", "func(x *float32, n int, lanes *float32)", func() func(Register) {
		x := pointer("x")
		most, odd = ymm(), ymm()
		bits := GP32()
		MOVL(U32(0xff800000), bits)
		first := most.AsX()
		VMOVD(bits, first)
		VPBROADCASTD(first, most)
		zero(odd)
		return func(i Register) {
			v, not := load(x, i), ymm()
			VCMPPS(Imm(3), v, v, not)
			VORPS(not, odd, odd)
			VMAXPS(v, most, most)
		}
	})
	VORPS(odd, most, most) // all bits set are a NaN
	VMOVUPS(most, Mem{Base: pointer("lanes")})
	end()
}

// readFour reads four streams of n bytes, stride apart: as fast as memory can be read. n is a multiple of 64.
func readFour() {
	TEXT("readFour", NOSPLIT, "func(p *byte, stride, n int, sum *float32)")
	Doc("readFour: see readFunc.")
	Pragma("noescape")
	stride, n, i := pointer("stride"), pointer("n"), GP64()
	stream := spaced(pointer("p"), stride, 4)
	var acc [8]VecVirtual
	for a := range acc {
		acc[a] = ymm()
		zero(acc[a])
	}
	XORQ(i, i)
	Label("readFour_loop")
	for a := range acc {
		VADDPS(at(stream[a/2], i, 1, 32*(a%2)), acc[a], acc[a])
	}
	ADDQ(Imm(64), i)
	CMPQ(i, n)
	JLT(LabelRef("readFour_loop"))
	for step := 4; step >= 1; step /= 2 {
		for a := range step {
			VADDPS(acc[a+step], acc[a], acc[a])
		}
	}
	sum, high := acc[0], XMM()
	VHADDPS(sum, sum, sum)
	VHADDPS(sum, sum, sum)
	VEXTRACTF128(Imm(1), sum, high)
	VADDSS(high, sum.AsX(), sum.AsX())
	VMOVSS(sum.AsX(), Mem{Base: pointer("sum")})
	end()
}

// fetch reads 4·n rows of bytes, two bytes of each line of memory, those of four streams in turn. With one byte of each it takes a quarter longer:
// memory looks less far ahead then.
func fetch() {
	TEXT("fetch", NOSPLIT, "func(p *byte, near, far, n, bytes int)")
	Doc("fetch: see fetchFunc.")
	Pragma("noescape")
	near, far, n, bytes, i := pointer("near"), pointer("far"), pointer("n"), pointer("bytes"), GP64()
	stream := spaced(pointer("p"), far, 4)
	Label("fetch_row")
	XORQ(i, i)
	Label("fetch_line")
	for _, p := range stream {
		MOVBLZX(at(p, i, 1, 0), GP32())
	}
	ADDQ(Imm(32), i)
	CMPQ(i, bytes)
	JLT(LabelRef("fetch_line"))
	for _, p := range stream {
		ADDQ(near, p)
	}
	DECQ(n)
	JNE(LabelRef("fetch_row"))
	RET()
}
