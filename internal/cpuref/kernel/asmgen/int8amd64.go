package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// int8Kernels multiply int8 by int8. Both are widened to int16, of which VPMADDWD multiplies and adds pairs without any loss; VPMADDUBSW does so
// from bytes, but saturates.
func int8Kernels() {
	rowsInt8()
	tileInt8()

	eachEight("magnitude", "func(x *float32, n int, lanes *float32)", func() func(Register) {
		x := pointer("x")
		mask, most := ymm(), ymm()
		VPCMPEQD(mask, mask, mask)
		VPSRLD(Imm(1), mask, mask)
		zero(most)
		magnitudeOf = most
		return func(i Register) { // by bits, which have the order of the numbers, and NaNs above all
			v := ymm()
			VPAND(at(x, i, 4, 0), mask, v)
			VPMAXUD(v, most, most)
		}
	})
	VMOVUPS(magnitudeOf, Mem{Base: pointer("lanes")})
	end()

	eachEight("quantize8", "func(q *int8, x *float32, a float32, n int)", func() func(Register) {
		q, x, a := pointer("q"), pointer("x"), broadcast("a")
		return func(i Register) {
			v, high := ymm(), XMM()
			VMULPS(at(x, i, 4, 0), a, v)
			VCVTPS2DQ(v, v)
			VEXTRACTI128(Imm(1), v, high)
			VPACKSSDW(high, v.AsX(), high)
			VPACKSSWB(high, high, high)
			VMOVQ(high, Mem{Base: q, Index: i, Scale: 1})
		}
	})
	end()

	eachEight("rescale", "func(out *float32, sum *int32, divisor *float32, inverse float32, n int)", func() func(Register) {
		out, sum, divisor, inverse, nan := pointer("out"), pointer("sum"), pointer("divisor"), broadcast("inverse"), theNaN()
		return func(i Register) {
			v := ymm()
			VCVTDQ2PS(at(sum, i, 4, 0), v)
			VMULPS(inverse, v, v)
			VDIVPS(at(divisor, i, 4, 0), v, v)
			store(v, out, i, nan)
		}
	})
	end()
}

var magnitudeOf VecVirtual

// sumInt8 gives, in the 4 lanes of an X register, the sums of the lanes of a, b, c and d.
func sumInt8(a, b, c, d VecVirtual) Register {
	VPHADDD(b, a, a)
	VPHADDD(d, c, c)
	VPHADDD(c, a, a)
	high, sums := XMM(), a.AsX()
	VEXTRACTI128(Imm(1), a, high)
	VPADDD(high, sums, sums)
	return sums
}

// rowsInt8 walks four rows at once, far apart, as dotRows does.
func rowsInt8() {
	const name = "rowsInt8"
	TEXT(name, NOSPLIT, "func(w *byte, near, far int, x *int8, k int, sum *int32, skip, n int)")
	Doc(name + ": see int8Funcs.")
	Pragma("noescape")
	row := spaced(Load(Param("w"), GP64()), Load(Param("far"), GP64()), 4)
	near, n := Load(Param("near"), GP64()), Load(Param("n"), GP64())
	x, k := Load(Param("x"), GP64()), Load(Param("k"), GP64())
	sum, skip := Load(Param("sum"), GP64()), Load(Param("skip"), GP64())
	i := GP64()

	Label(name + "_row")
	var acc [4]VecVirtual
	for r := range acc {
		acc[r] = ymm()
		zero(acc[r])
	}
	sumLoop(name, i, k, 16, func(u int) {
		xv := ymm()
		VPMOVSXBW(at(x, i, 1, 16*u), xv)
		for r := range acc {
			w := ymm()
			VPMOVSXBW(at(row[r], i, 1, 16*u), w)
			VPMADDWD(xv, w, w)
			VPADDD(w, acc[r], acc[r])
		}
	})
	sums := sumInt8(acc[0], acc[1], acc[2], acc[3])
	out := GP64()
	MOVQ(sum, out)
	for r := range acc {
		VPEXTRD(Imm(uint64(r)), sums, Mem{Base: out})
		if r < 3 {
			ADDQ(skip, out)
		}
	}
	for _, p := range row {
		ADDQ(near, p)
	}
	ADDQ(Imm(4), sum)
	DECQ(n)
	JNE(LabelRef(name + "_row"))
	VZEROUPPER()
	RET()
}

// tileInt8 multiplies four rows of x by n·3 rows of w. It widens x first, once for all tiles: 16 columns of each of the four rows, one
// after the other.
func tileInt8() {
	const name, M, N = "tileInt8", 4, 3
	TEXT(name, NOSPLIT, tileInt8Signature)
	Doc(name + ": see int8Funcs.")
	Pragma("noescape")
	k, wide, i := Load(Param("k"), GP64()), Load(Param("wide"), GP64()), GP64()
	xr := spaced(Load(Param("x"), GP64()), Load(Param("ldx"), GP64()), M)
	XORQ(i, i)
	Label(name + "_widen")
	for m, p := range xr {
		v := ymm()
		VPMOVSXBW(at(p, i, 1, 0), v)
		VMOVDQU(v, Mem{Base: wide, Index: i, Scale: 8, Disp: 32 * m})
	}
	ADDQ(Imm(16), i)
	CMPQ(i, k)
	JLT(LabelRef(name + "_widen"))
	w, ldw, n, ahead := Load(Param("w"), GP64()), Load(Param("ldw"), GP64()), Load(Param("n"), GP64()), Load(Param("ahead"), GP64())

	Label(name + "_tile")
	wr := spaced(w, ldw, N)
	acc := make([]VecVirtual, M*N)
	for a := range acc {
		acc[a] = ymm()
	}
	lanesIn(name, acc)
	sumLoop(name, i, k, 16, func(u int) {
		if u == 0 {
			ask(ahead)
		}
		var wv [N]VecVirtual
		for r := range wv {
			wv[r] = ymm()
			VPMOVSXBW(at(wr[r], i, 1, 16*u), wv[r])
		}
		for m := range M {
			for r := range wv {
				p := ymm()
				VPMADDWD(Mem{Base: wide, Index: i, Scale: 8, Disp: 128*u + 32*m}, wv[r], p)
				VPADDD(p, acc[m*N+r], acc[m*N+r])
			}
		}
	})
	lanesOut(name, name+"_next", acc)
	out, ld := Load(Param("sum"), GP64()), Load(Param("ld"), GP64())
	for m := range M {
		sums := sumInt8(acc[m*N], acc[m*N+1], acc[m*N+2], acc[m*N+2])
		VMOVQ(sums, Mem{Base: out})
		VPEXTRD(Imm(2), sums, Mem{Base: out, Disp: 8})
		if m < M-1 {
			ADDQ(ld, out)
		}
	}
	nextTile(name, "sum", M, wr, ldw, w, n)
}
