package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// oracleAMD64 writes the loops of package oracle for AVX2 with F16C: float64, four lanes a register. Nothing is fused, so that they have the
// bits of the plain loops. Each does n elements, a positive multiple of block.
func oracleAMD64() {
	ConstraintExpr("amd64")
	magnitude = GLOBL("magnitude", RODATA|NOPTR)
	DATA(0, U64(1<<63-1))
	for _, t := range types {
		widen(t)
	}
	widenScaled()
	absolute()
	dotWide()
	Generate()
}

// block is how many elements the loops of package oracle do at once.
const block = 16

// magnitude is where the mask lies that leaves a float64 without its sign.
var magnitude Mem

// each counts i from 0 to n by blocks.
func each(name string, i, n Register, body func()) {
	XORQ(i, i)
	Label(name + "_block")
	body()
	ADDQ(Imm(block), i)
	CMPQ(i, n)
	JLT(LabelRef(name + "_block"))
}

// widen gives elements of the weights' types in float64.
func widen(t elem) {
	name := "widen" + t.name
	TEXT(name, NOSPLIT, "func(wide *float64, data *byte, n int)")
	Doc(name + " puts n elements of data into wide.")
	Pragma("noescape")
	wide, data, n, i := pointer("wide"), pointer("data"), pointer("n"), GP64()
	each(name, i, n, func() {
		for u := 0; u < block; u += 4 {
			from, v := at(data, i, t.size, u), ymm()
			if t.name == "F32" {
				VCVTPS2PD(from, v)
			} else {
				single := XMM()
				widened(t, from, single)
				VCVTPS2PD(single, v)
			}
			VMOVUPD(v, at(wide, i, 8, u))
		}
	})
	VZEROUPPER()
	RET()
}

// widenScaled gives int8 times a scale, rounded to float32.
func widenScaled() {
	const name = "widenScaled"
	TEXT(name, NOSPLIT, "func(wide *float64, data *byte, scale float32, n int)")
	Doc(name + " puts n elements of data, int8, times scale in float32 into wide.")
	Pragma("noescape")
	wide, data, n, i := pointer("wide"), pointer("data"), pointer("n"), GP64()
	scale := XMM()
	VBROADCASTSS(argument("scale"), scale)
	each(name, i, n, func() {
		for u := 0; u < block; u += 4 {
			single, v := XMM(), ymm()
			widened(elem{"I8", 1}, at(data, i, 1, u), single)
			VMULPS(scale, single, single)
			VCVTPS2PD(single, v)
			VMOVUPD(v, at(wide, i, 8, u))
		}
	})
	VZEROUPPER()
	RET()
}

// absolute adds magnitudes in eight lanes.
func absolute() {
	const name = "absoluteLanes"
	TEXT(name, NOSPLIT, "func(a *float64, n int, lanes *[8]float64)")
	Doc(name + " adds |a| to lanes, by index modulo 8.")
	Pragma("noescape")
	a, n, lanes, i := pointer("a"), pointer("n"), pointer("lanes"), GP64()
	mask, sum := ymm(), wideLanes(lanes)
	VBROADCASTSD(magnitude, mask)
	each(name, i, n, func() {
		for u := 0; u < block; u += 4 {
			v := ymm()
			VANDPD(at(a, i, 8, u), mask, v)
			VADDPD(v, sum[u/4%2], sum[u/4%2])
		}
	})
	putLanes(sum, lanes)
	VZEROUPPER()
	RET()
}

// wideLanes loads eight lanes into two registers, putLanes stores them.
func wideLanes(from Register) [2]VecVirtual {
	lanes := [2]VecVirtual{ymm(), ymm()}
	for h, v := range lanes {
		VMOVUPD(Mem{Base: from, Disp: 32 * h}, v)
	}
	return lanes
}

func putLanes(lanes [2]VecVirtual, to Register) {
	for h, v := range lanes {
		VMOVUPD(v, Mem{Base: to, Disp: 32 * h})
	}
}

// dotWide adds products, their magnitudes and their squares, each in eight lanes, and the squares of the partial sums at the ends of blocks.
func dotWide() {
	const name = "dotLanes"
	TEXT(name, NOSPLIT, "func(a, b *float64, n int, v, size, squares *[8]float64, path *float64)")
	Doc(name + " adds n terms, as the method add of sums does.")
	Pragma("noescape")
	a, b, n, i := pointer("a"), pointer("b"), pointer("n"), GP64()
	var sums [3][2]VecVirtual
	for s, name := range []string{"v", "size", "squares"} {
		sums[s] = wideLanes(pointer(name))
	}
	mask, path := ymm(), XMM()
	VBROADCASTSD(magnitude, mask)
	VMOVSD(Mem{Base: pointer("path")}, path)
	each(name, i, n, func() {
		for u := 0; u < block; u += 4 {
			p, m := ymm(), ymm()
			VMOVUPD(at(a, i, 8, u), p)
			VMULPD(at(b, i, 8, u), p, p)
			VANDPD(p, mask, m)
			square := ymm()
			VMULPD(p, p, square)
			for s, term := range []VecVirtual{p, m, square} {
				sum := sums[s][u/4%2]
				VADDPD(term, sum, sum)
			}
		}
		t, high, odd := ymm(), XMM(), XMM()
		VADDPD(sums[0][1], sums[0][0], t)
		VEXTRACTF128(Imm(1), t, high)
		VADDPD(high, t.AsX(), high)
		VUNPCKHPD(high, high, odd)
		VADDSD(odd, high, high)
		VMULSD(high, high, high)
		VADDSD(high, path, path)
	})
	for s, name := range []string{"v", "size", "squares"} {
		putLanes(sums[s], pointer(name))
	}
	VMOVSD(path, Mem{Base: pointer("path")})
	VZEROUPPER()
	RET()
}
