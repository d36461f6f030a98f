package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// amd64 writes the kernels for AVX2 with FMA and F16C, which has 16 vector registers of 8 float32 lanes. (With more than 16
// vectors alive, avo would turn to registers that need AVX-512. A test looks for them.)
func amd64() {
	ConstraintExpr("amd64")
	storedNaN = GLOBL("storedNaN", RODATA|NOPTR)
	DATA(0, U32(0x7fc00000))
	for _, t := range types {
		dotRows(t)
	}
	for _, t := range types {
		dotTile(t)
	}
	int8Kernels()
	scoreKeys()
	endSum()
	weigh("weighThree", 3, 4)
	weigh("weighTwo", 2, 4)
	weigh("weighOne", 1, 8)
	weigh("weighEight", 1, 1)
	elementwise()
	largest()
	exponentials()
	readFour()
	fetch()
	Generate()
}

func ymm() VecVirtual { return YMM() }

func zero(v VecVirtual) { VXORPS(v, v, v) }

// at is element i + disp of an array of elements of size bytes.
func at(base, i Register, size, disp int) Mem {
	return Mem{Base: base, Index: i, Scale: uint8(size), Disp: disp * size}
}

// widened makes float32 of as many elements as the register holds.
func widened(t elem, from Mem, to Register) {
	switch t.name {
	case "F32":
		VMOVUPS(from, to)
	case "F16":
		VCVTPH2PS(from, to)
	case "BF16":
		VPMOVZXWD(from, to)
		VPSLLD(Imm(16), to, to)
	case "I8":
		VPMOVSXBD(from, to)
		VCVTDQ2PS(to, to)
	}
}

// load8 widens 8 weights to float32. scale, for int8, is their row's scale in 8 lanes, in a register or in memory.
func load8(t elem, from Mem, scale Op, to Register) {
	widened(t, from, to)
	if t.name == "I8" {
		VMULPS(scale, to, to)
	}
}

// lanesIn gives the accumulators their first values: +0, or what an earlier call left.
func lanesIn[R Register](name string, acc []R) {
	mode := Load(Param("mode"), GP64())
	TESTQ(U32(modeContinue), mode)
	JNE(LabelRef(name + "_continue"))
	for _, a := range acc {
		VXORPS(a, a, a)
	}
	JMP(LabelRef(name + "_sum"))
	Label(name + "_continue")
	lanes := Load(Param("lanes"), GP64())
	for i, a := range acc {
		VMOVUPS(Mem{Base: lanes, Disp: int(a.Size()) * i}, a)
	}
	Label(name + "_sum")
}

// lanesOut leaves the accumulators to a later call and goes on at done, if the mode says so.
func lanesOut[R Register](name, done string, acc []R) {
	mode := Load(Param("mode"), GP64())
	TESTQ(U32(modeLeave), mode)
	JE(LabelRef(name + "_reduce"))
	lanes := Load(Param("lanes"), GP64())
	for i, a := range acc {
		VMOVUPS(a, Mem{Base: lanes, Disp: int(a.Size()) * i})
	}
	JMP(LabelRef(done))
	Label(name + "_reduce")
}

// advance adds bytes to a pointer among the arguments.
func advance(param string, bytes int) {
	p := Load(Param(param), GP64())
	ADDQ(U32(uint32(bytes)), p)
	Store(p, Param(param))
}

// sumLanes is neighbours with one NaN for any.
func sumLanes(a, b, c, d VecVirtual) Register {
	sums := neighbours(a, b, c, d)
	oneNaN(sums)
	return sums
}

// neighbours gives, in the 4 lanes of an X register, the sums of a, b, c and d by the tree of neighbours.
func neighbours(a, b, c, d VecVirtual) Register {
	pairs := func(a, b VecVirtual) {
		odd := ymm()
		VSHUFPS(Imm(0xdd), b, a, odd)
		VSHUFPS(Imm(0x88), b, a, a)
		VADDPS(odd, a, a)
	}
	pairs(a, b)
	pairs(c, d)
	pairs(a, c)
	high := XMM()
	VEXTRACTF128(Imm(1), a, high)
	sums := a.AsX()
	VADDPS(high, sums, sums)
	return sums
}

// oneNaN makes any NaN in 4 lanes the one that is stored.
func oneNaN(v Register) {
	odd, nan := XMM(), XMM()
	VBROADCASTSS(storedNaN, nan)
	VCMPPS(Imm(3), v, v, odd) // unordered
	VBLENDVPS(odd, nan, v, v)
}

// scatter stores 4 lanes to, skip bytes apart. to is lost.
func scatter(v, to Register, skip Op) {
	VMOVSS(v, Mem{Base: to})
	for r := 1; r < 4; r++ {
		ADDQ(skip, to)
		VEXTRACTPS(Imm(uint64(r)), v, Mem{Base: to})
	}
}

// storedNaN is where the bits of the NaN lie that is stored for any.
var storedNaN Mem

// sumLoop counts i to k, a multiple of step, by four steps while it can and by one then. body does the elements of the step from i + step·u on.
func sumLoop(name string, i, k Register, step int, body func(u int)) {
	limit := GP64()
	XORQ(i, i)
	LEAQ(Mem{Base: k, Disp: -4 * step}, limit)
	JMP(LabelRef(name + "_long_test"))
	Label(name + "_long")
	for u := range 4 {
		body(u)
	}
	ADDQ(Imm(uint64(4*step)), i)
	Label(name + "_long_test")
	CMPQ(i, limit)
	JLE(LabelRef(name + "_long"))
	JMP(LabelRef(name + "_short_test"))
	Label(name + "_short")
	body(0)
	ADDQ(Imm(uint64(step)), i)
	Label(name + "_short_test")
	CMPQ(i, k)
	JLT(LabelRef(name + "_short"))
}

// spaced is pointers to rows: the first, and each the stride after the one before.
func spaced(first, stride Register, rows int) []Register {
	row := []Register{first}
	for r := 1; r < rows; r++ {
		p := GP64()
		LEAQ(Mem{Base: row[r-1], Index: stride, Scale: 1}, p)
		row = append(row, p)
	}
	return row
}

// nextTile ends a tile of M rows of x times the rows wr of w, whose results go to the parameter out, and goes on with the next rows of w.
func nextTile(name, out string, M int, wr []Register, ldw, w, n Register) {
	Label(name + "_next")
	advance("lanes", 32*M*len(wr))
	advance(out, 4*len(wr))
	LEAQ(Mem{Base: wr[len(wr)-1], Index: ldw, Scale: 1}, w)
	DECQ(n)
	JNE(LabelRef(name + "_tile"))
	VZEROUPPER()
	RET()
}

// dotRows walks four rows at once, far apart, so that memory serves four streams.
func dotRows(t elem) {
	name := "dotRows" + t.name
	TEXT(name, NOSPLIT, "func(w *byte, near, far int, scale, x *float32, k int, y *float32, skip, n int, lanes *float32, mode int)")
	Doc(fmt.Sprintf("%s: see dotRowsFunc.", name))
	Pragma("noescape")
	row := spaced(Load(Param("w"), GP64()), Load(Param("far"), GP64()), 4)
	near, n := Load(Param("near"), GP64()), Load(Param("n"), GP64())
	x, k := Load(Param("x"), GP64()), Load(Param("k"), GP64())
	y, skip := Load(Param("y"), GP64()), Load(Param("skip"), GP64())
	i := GP64()
	// A long x takes so much of the first cache that weights of 16 bits, which are as fast as x, come too late to it: 2 KiB before, the second is told.
	// Where x is short, the first is told itself, without help.
	const long, early = 2560, 2048
	ahead := GP64()
	if t.size == 2 {
		XORQ(ahead, ahead)
		CMPQ(k, U32(long))
		JL(LabelRef(name + "_row"))
		MOVQ(U32(uint32(early/t.size)), ahead)
	}

	Label(name + "_row")
	var acc, scale [4]VecVirtual
	for r := range acc {
		acc[r] = ymm()
	}
	if t.name == "I8" {
		s := Load(Param("scale"), GP64())
		for r := range scale {
			scale[r] = ymm()
			VBROADCASTSS(Mem{Base: s}, scale[r])
			if r < 3 {
				ADDQ(skip, s)
			}
		}
		advance("scale", 4)
	}
	lanesIn(name, acc[:])
	sumLoop(name, i, k, 8, func(u int) {
		if t.size == 2 && u == 0 {
			next := GP64()
			LEAQ(at(i, ahead, 1, 0), next)
			for _, p := range row {
				PREFETCHT1(at(p, next, t.size, 0))
			}
		}
		xv := ymm()
		VMOVUPS(at(x, i, 4, 8*u), xv)
		for r := range acc {
			from := at(row[r], i, t.size, 8*u)
			if t.name == "F32" {
				VFMADD231PS(from, xv, acc[r])
				continue
			}
			w := ymm()
			load8(t, from, scale[r], w)
			VFMADD231PS(xv, w, acc[r])
		}
	})
	lanesOut(name, name+"_next", acc[:])
	sums := sumLanes(acc[0], acc[1], acc[2], acc[3])
	out := GP64()
	MOVQ(y, out)
	scatter(sums, out, skip)
	Label(name + "_next")
	advance("lanes", 32*4)
	for _, p := range row {
		ADDQ(near, p)
	}
	ADDQ(Imm(4), y)
	DECQ(n)
	JNE(LabelRef(name + "_row"))
	VZEROUPPER()
	RET()
}

const (
	dotTileSignature  = "func(x *float32, ldx int, w *byte, ldw int, scale *float32, k int, y *float32, ldy, n int, lanes *float32, mode int, ahead *byte)"
	tileInt8Signature = "func(x *int8, ldx int, w *byte, ldw, k int, sum *int32, ld, n int, lanes *float32, mode int, wide *int16, ahead *byte)"
)

// dotTile multiplies four rows of x by n·3 rows of w: twelve sums at a time, from seven loads.
func dotTile(t elem) {
	const M, N = 4, 3
	name := "dotTile" + t.name
	TEXT(name, NOSPLIT, dotTileSignature)
	Doc(fmt.Sprintf("%s: see dotTileFunc.", name))
	Pragma("noescape")
	xr := spaced(Load(Param("x"), GP64()), Load(Param("ldx"), GP64()), M)
	w, ldw := Load(Param("w"), GP64()), Load(Param("ldw"), GP64())
	k, n, ahead := Load(Param("k"), GP64()), Load(Param("n"), GP64()), Load(Param("ahead"), GP64())
	i := GP64()
	var scale Mem
	if t.name == "I8" {
		scale = AllocLocal(32 * N)
	}

	Label(name + "_tile")
	wr := spaced(w, ldw, N)
	if t.name == "I8" {
		s := Load(Param("scale"), GP64())
		for r := range N {
			v := ymm()
			VBROADCASTSS(Mem{Base: s, Disp: 4 * r}, v)
			VMOVUPS(v, scale.Offset(32*r))
		}
		advance("scale", 4*N)
	}
	acc := make([]VecVirtual, M*N)
	for a := range acc {
		acc[a] = ymm()
	}
	lanesIn(name, acc)
	sumLoop(name, i, k, 8, func(u int) {
		if u == 0 {
			ask(ahead)
		}
		var wv [N]VecVirtual
		for r := range wv {
			wv[r] = ymm()
			load8(t, at(wr[r], i, t.size, 8*u), scale.Offset(32*r), wv[r])
		}
		for m := range M {
			xv := ymm()
			VMOVUPS(at(xr[m], i, 4, 8*u), xv)
			for r := range wv {
				VFMADD231PS(xv, wv[r], acc[m*N+r])
			}
		}
	})
	lanesOut(name, name+"_next", acc)
	out, ldy := Load(Param("y"), GP64()), Load(Param("ldy"), GP64())
	for m := range M {
		sums := sumLanes(acc[m*N], acc[m*N+1], acc[m*N+2], acc[m*N+2])
		VMOVLPS(sums, Mem{Base: out})
		VEXTRACTPS(Imm(2), sums, Mem{Base: out, Disp: 8})
		if m < M-1 {
			ADDQ(ldy, out)
		}
	}
	nextTile(name, "y", M, wr, ldw, w, n)
}
