package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// weighted sums rows of v, each with its weight: eight lanes by row, eight columns at a time.
func weighted() {
	const name = "weightedSum"
	TEXT(name, NOSPLIT, "func(v *float32, ldv int, p *float32, n int, y *float32, d int, lanes *float32, mode int)")
	Doc("weightedSum: see weightedSumFunc.")
	Pragma("noescape")
	v, ldv := Load(Param("v"), GP64()), Load(Param("ldv"), GP64())
	y, d := Load(Param("y"), GP64()), Load(Param("d"), GP64())
	ldv3 := GP64()
	LEAQ(Mem{Base: ldv, Index: ldv, Scale: 2}, ldv3)
	low, high, p, left := GP64(), GP64(), GP64(), GP64()
	row := func(r int) Mem {
		base := low
		if r >= 4 {
			base = high
		}
		switch r % 4 {
		case 1:
			return Mem{Base: base, Index: ldv, Scale: 1}
		case 2:
			return Mem{Base: base, Index: ldv, Scale: 2}
		case 3:
			return Mem{Base: base, Index: ldv3, Scale: 1}
		}
		return Mem{Base: base}
	}

	Label(name + "_columns")
	acc := make([]VecVirtual, 8)
	for a := range acc {
		acc[a] = ymm()
	}
	weight := ymm()
	term := func(r int) {
		VBROADCASTSS(Mem{Base: p, Disp: 4 * r}, weight)
		VFMADD231PS(row(r), weight, acc[r])
	}
	lanesIn(name, acc)
	MOVQ(v, low)
	LEAQ(Mem{Base: v, Index: ldv, Scale: 4}, high)
	Load(Param("p"), p)
	Load(Param("n"), left)
	JMP(LabelRef(name + "_test"))
	Label(name + "_rows")
	for r := range acc {
		term(r)
	}
	LEAQ(Mem{Base: low, Index: ldv, Scale: 8}, low)
	LEAQ(Mem{Base: high, Index: ldv, Scale: 8}, high)
	ADDQ(Imm(32), p)
	SUBQ(Imm(8), left)
	Label(name + "_test")
	CMPQ(left, Imm(8))
	JGE(LabelRef(name + "_rows"))
	TESTQ(left, left)
	JE(LabelRef(name + "_whole"))
	// The last rows, then the terms 0·0 that fill the eight.
	for r := 0; r < 7; r++ {
		term(r)
		zero(weight)
		CMPQ(left, Imm(uint64(r+1)))
		JE(LabelRef(fmt.Sprintf("%s_pad%d", name, r+1)))
	}
	for r := 1; r < 8; r++ {
		Label(fmt.Sprintf("%s_pad%d", name, r))
		VADDPS(weight, acc[r], acc[r])
	}
	Label(name + "_whole")
	lanesOut(name, name+"_next", acc)
	for step := 1; step < 8; step *= 2 {
		for a := 0; a < 8; a += 2 * step {
			VADDPS(acc[a+step], acc[a], acc[a])
		}
	}
	VCMPPS(Imm(3), acc[0], acc[0], acc[1])
	VBLENDVPS(acc[1], theNaN(), acc[0], acc[0])
	VMOVUPS(acc[0], Mem{Base: y})
	Label(name + "_next")
	advance("lanes", 32*8)
	ADDQ(Imm(32), v)
	ADDQ(Imm(32), y)
	SUBQ(Imm(8), d)
	JG(LabelRef(name + "_columns"))
	VZEROUPPER()
	RET()
}

// weigh adds rows of v to the lanes of several weighted sums at once, lane by lane: so many sums of so many times eight columns stay in registers.
func weigh(name string, sums, columns int) {
	TEXT(name, NOSPLIT, "func(v *float32, ldv int, p *float32, ldp, n int, lanes *float32, ldl, d int)")
	Doc(fmt.Sprintf("%s: see weighFunc.", name))
	Pragma("noescape")
	v, ldv, n := pointer("v"), pointer("ldv"), pointer("n")
	strided := func(first, stride string) []Register {
		rows := []Register{pointer(first)}
		for r := 1; r < sums; r++ {
			p := GP64()
			MOVQ(rows[r-1], p)
			ADDQ(argument(stride), p)
			rows = append(rows, p)
		}
		return rows
	}
	p, lanes := strided("p", "ldp"), strided("lanes", "ldl")
	acc, weight, value := make([]VecVirtual, sums*columns), make([]VecVirtual, sums), ymm()
	for a := range acc {
		acc[a] = ymm()
	}
	for s := range weight {
		weight[s] = ymm()
	}
	kept := func(a int) Mem { return Mem{Base: lanes[a/columns], Disp: 256 * (a % columns)} }
	row, lane, j := GP64(), GP64(), GP64()

	Label(name + "_columns")
	XORQ(lane, lane)
	Label(name + "_lane")
	for a := range acc {
		VMOVUPS(kept(a), acc[a])
	}
	MOVQ(lane, row)
	IMULQ(ldv, row)
	ADDQ(v, row)
	MOVQ(lane, j)
	Label(name + "_row")
	for s := range weight {
		VBROADCASTSS(at(p[s], j, 4, 0), weight[s])
	}
	for c := range columns {
		if sums == 1 {
			VFMADD231PS(Mem{Base: row, Disp: 32 * c}, weight[0], acc[c])
			continue
		}
		VMOVUPS(Mem{Base: row, Disp: 32 * c}, value)
		for s := range weight {
			VFMADD231PS(value, weight[s], acc[s*columns+c])
		}
	}
	LEAQ(Mem{Base: row, Index: ldv, Scale: 8}, row)
	ADDQ(Imm(8), j)
	CMPQ(j, n)
	JLT(LabelRef(name + "_row"))
	for a := range acc {
		VMOVUPS(acc[a], kept(a))
	}
	for _, l := range lanes {
		ADDQ(Imm(32), l)
	}
	INCQ(lane)
	CMPQ(lane, Imm(8))
	JLT(LabelRef(name + "_lane"))
	ADDQ(U32(uint32(32*columns)), v)
	for _, l := range lanes {
		ADDQ(U32(uint32(256*(columns-1))), l)
	}
	d := pointer("d")
	SUBQ(U32(uint32(8*columns)), d)
	Store(d, Param("d"))
	JG(LabelRef(name + "_columns"))
	end()
}

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

// fetch reads 4·n rows of bytes, a byte of each line of memory, those of four streams in turn.
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
	ADDQ(Imm(64), i)
	CMPQ(i, bytes)
	JLT(LabelRef("fetch_line"))
	for _, p := range stream {
		ADDQ(near, p)
	}
	DECQ(n)
	JNE(LabelRef("fetch_row"))
	RET()
}
