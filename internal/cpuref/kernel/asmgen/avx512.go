package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// avx512 writes what gains from AVX-512 with VNNI. A register of sixteen float32 holds the eight lanes of two sums, so the bits stay; there are
// 32 of them, all named here, because avo knows too little about which instructions can reach which.
func avx512() {
	ConstraintExpr("amd64")
	storedNaN = GLOBL("storedNaN", RODATA|NOPTR)
	DATA(0, U32(0x7fc00000))
	halved = GLOBL("halved", RODATA|NOPTR)
	for i := range 32 {
		DATA(i, U8(i/2))
	}
	for _, t := range types {
		wideTile(t)
	}
	flipped = GLOBL("flipped", RODATA|NOPTR)
	DATA(0, U32(0x80808080))
	rowsVNNI()
	tileVNNI()
	weighWide("weighSeven", 7)
	weighWide("weighSix", 6)
	weighWide("weighFour", 4)
	wideExponentials()
	Generate()
}

var zmm = []VecPhysical{
	Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15,
	Z16, Z17, Z18, Z19, Z20, Z21, Z22, Z23, Z24, Z25, Z26, Z27, Z28, Z29, Z30, Z31,
}

// A tile is 6 rows of x times 8 rows of weights. Its sums are in 24 registers.
const (
	wideRows    = 6
	wideWeights = 8
)

var (
	tileSums = zmm[8:]
	spare    = zmm[:8]
)

// loadTwo widens 8 weights of each of two rows to float32. scale, for int8, has the rows' scales in 8 lanes each.
func loadTwo(t elem, from, scale [2]Mem, to VecPhysical) {
	if t.name == "BF16" { // words go where every second one is
		VMOVDQU(from[0], to.AsX())
		VINSERTI128(Imm(1), from[1], to.AsY(), to.AsY())
		VPERMW_Z(to, spare[6], K2, to)
		return
	}
	load8(t, from[0], scale[0], to.AsY())
	if t.name == "F32" {
		VINSERTF32X8(Imm(1), from[1], to, to)
		return
	}
	high := spare[6].AsY()
	load8(t, from[1], scale[1], high)
	VINSERTF32X8(Imm(1), high, to, to)
}

// rows4 reaches four rows from their first, by the stride and three times the stride.
func rows4(first, stride, stride3 Register, r, disp int) Mem {
	m := Mem{Base: first, Disp: disp}
	switch r {
	case 1, 2:
		m.Index, m.Scale = stride, uint8(r)
	case 3:
		m.Index, m.Scale = stride3, 1
	}
	return m
}

// tripled is three times a stride.
func tripled(stride Register) Register {
	t := GP64()
	LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, t)
	return t
}

// steps does body count times, two by two while it can, and moves the pointers behind each: by the bytes of a step. body does step u from them on.
func steps(name string, count Register, pointers []Register, bytes []int, body func(u int)) {
	move := func(n int) {
		for i, p := range pointers {
			ADDQ(Imm(uint64(n*bytes[i])), p)
		}
	}
	SUBQ(Imm(2), count)
	JL(LabelRef(name + "_one"))
	Label(name + "_two")
	body(0)
	body(1)
	move(2)
	SUBQ(Imm(2), count)
	JGE(LabelRef(name + "_two"))
	Label(name + "_one")
	ADDQ(Imm(2), count)
	JE(LabelRef(name + "_end"))
	body(0)
	move(1)
	Label(name + "_end")
}

// wideTile multiplies 6 rows of x by n·8 rows of w. Row r of w shares its registers with row r+4.
func wideTile(t elem) {
	name := "wideTile" + t.name
	TEXT(name, NOSPLIT, dotTileSignature)
	Doc(fmt.Sprintf("%s: see dotTileFunc.", name))
	Pragma("noescape")
	ldx, ldw, ahead := pointer("ldx"), pointer("ldw"), pointer("ahead")
	ldw3 := tripled(ldw)
	var scale Mem
	if t.name == "I8" {
		scale = AllocLocal(32 * wideWeights)
	}
	nan := spare[7]
	VBROADCASTSS(storedNaN, nan)
	if t.name == "BF16" {
		odd := GP64()
		MOVQ(U32(0xaaaaaaaa), odd)
		KMOVD(odd.As32(), K2)
		VPMOVZXBW(halved, spare[6])
	}

	Label(name + "_tile")
	x, w := pointer("x"), pointer("w")
	x3, w4 := GP64(), GP64()
	LEAQ(Mem{Base: x, Index: ldx, Scale: 2}, x3)
	ADDQ(ldx, x3)
	LEAQ(Mem{Base: w, Index: ldw, Scale: 4}, w4)
	if t.name == "I8" {
		s := pointer("scale")
		for r := range wideWeights {
			v := spare[0].AsY()
			VBROADCASTSS(Mem{Base: s, Disp: 4 * r}, v)
			VMOVUPS(v, scale.Offset(32*r))
		}
		advance("scale", 4*wideWeights)
	}
	lanesIn(name, tileSums)
	count := pointer("k")
	SHRQ(Imm(3), count)
	steps(name+"_sums", count, []Register{x, x3, w, w4}, []int{32, 32, 8 * t.size, 8 * t.size}, func(u int) {
		if u == 0 {
			ask(ahead)
		}
		weights, from := spare[:4], 8*t.size*u
		for r, v := range weights {
			rows := [2]Mem{rows4(w, ldw, ldw3, r, from), rows4(w4, ldw, ldw3, r, from)}
			loadTwo(t, rows, [2]Mem{scale.Offset(32 * r), scale.Offset(32 * (r + 4))}, v)
		}
		for m := range wideRows {
			base, xv := x, spare[4+m%2]
			if m >= 3 {
				base = x3
			}
			VBROADCASTF32X8(rows4(base, ldx, nil, m%3, 32*u), xv)
			for r, v := range weights {
				VFMADD231PS(xv, v, tileSums[4*m+r])
			}
		}
	})
	lanesOut(name, name+"_next", tileSums)
	y, ldy := pointer("y"), pointer("ldy")
	for m := 0; m < wideRows; m += 2 {
		a, b := quarters(tileSums[4*m:], VADDPS), quarters(tileSums[4*m+4:], VADDPS)
		sums, odd := spare[0], spare[1]
		VSHUFF32X4(Imm(0x88), b, a, sums)
		VSHUFF32X4(Imm(0xdd), b, a, odd)
		VADDPS(odd, sums, sums)
		VCMPPS(Imm(3), sums, sums, K1) // unordered
		VMOVAPS(nan, K1, sums)
		VMOVUPS(sums.AsY(), Mem{Base: y})
		VEXTRACTF32X8(Imm(1), sums, Mem{Base: y, Index: ldy, Scale: 1})
		LEAQ(Mem{Base: y, Index: ldy, Scale: 2}, y)
	}
	Label(name + "_next")
	advance("lanes", 64*len(tileSums))
	advance("y", 4*wideWeights)
	nextRows("w", ldw, wideWeights)
	n := pointer("n")
	DECQ(n)
	Store(n, Param("n"))
	JNE(LabelRef(name + "_tile"))
	end()
}

// halved is the numbers from 0 to 31, halved.
var halved Mem

// ask asks memory for the next line of what will be needed, so seldom that it does not wait.
func ask(ahead Register) {
	PREFETCHT1(Mem{Base: ahead})
	ADDQ(Imm(64), ahead)
}

// nextRows moves a pointer among the arguments by 4 or 8 rows.
func nextRows(param string, stride Register, rows int) {
	p := pointer(param)
	for range rows / 4 {
		LEAQ(Mem{Base: p, Index: stride, Scale: 4}, p)
	}
	Store(p, Param(param))
}

// quarters gives, in each four lanes, the sums of those four lanes of each of v[0], …, v[3], neighbours first.
func quarters(v []VecPhysical, add func(...Op)) VecPhysical {
	neighbours := func(a, b, even VecPhysical) {
		VSHUFPS(Imm(0x88), b, a, even)
		VSHUFPS(Imm(0xdd), b, a, a)
		add(even, a, a)
	}
	neighbours(v[0], v[1], spare[0])
	neighbours(v[2], v[3], spare[1])
	neighbours(v[0], v[2], spare[0])
	return v[0]
}

// flipped is a byte's highest bit, in each of four.
var flipped Mem

// VPDPBUSD multiplies unsigned bytes by signed ones and adds groups of four to int32, without any loss. Weights are made unsigned by adding 128 to
// them, which flips their highest bit; from the sum, 128 times the sum of x is taken.
func dotBytes(x, weights, sums VecPhysical) {
	Instruction(&ir.Instruction{Opcode: "VPDPBUSD", Operands: []Op{x, weights, sums}, Inputs: []Op{x, weights, sums}, Outputs: []Op{sums}})
}

// masked loads 64 bytes, or as many as K1 has bits.
func masked(tail bool, from Mem, to VecPhysical) {
	if tail {
		VMOVDQU8_Z(from, K1, to)
	} else {
		VMOVDQU8(from, to)
	}
}

// inBytes does body for k bytes, 64 at a time, and moves the pointers behind them; then for the rest, with their number of bits in K1.
func inBytes(name string, k Register, pointers []Register, body func(tail bool)) {
	rest := GP64()
	MOVQ(k, rest)
	SUBQ(Imm(64), rest)
	JL(LabelRef(name + "_rest"))
	Label(name + "_whole")
	body(false)
	for _, p := range pointers {
		ADDQ(Imm(64), p)
	}
	SUBQ(Imm(64), rest)
	JGE(LabelRef(name + "_whole"))
	Label(name + "_rest")
	ADDQ(Imm(64), rest)
	JE(LabelRef(name + "_end"))
	bits := GP64()
	MOVQ(I64(-1), bits)
	BZHIQ(rest, bits, bits)
	KMOVQ(bits, K1)
	body(true)
	Label(name + "_end")
}

// negated gives -128·Σx in parts, for each row of x that the pointers reach.
func negated(name string, k Register, pointers []Register, row func(r int) Mem, flip VecPhysical, to []VecPhysical) {
	for _, v := range to {
		VPXORD(v, v, v)
	}
	inBytes(name, k, pointers, func(tail bool) {
		for r, v := range to {
			masked(tail, row(r), spare[1])
			dotBytes(spare[1], flip, v)
		}
	})
	VPXORD(spare[1], spare[1], spare[1])
	for _, v := range to {
		VPSUBD(v, spare[1], v)
	}
}

// rowsVNNI walks four rows at once, far apart, as dotRows does.
func rowsVNNI() {
	const name = "rowsVNNI"
	TEXT(name, NOSPLIT, "func(w *byte, near, far int, x *int8, k int, sum *int32, skip, n int)")
	Doc(name + ": see int8Funcs.")
	Pragma("noescape")
	far, near, k, sum, skip := pointer("far"), pointer("near"), pointer("k"), pointer("sum"), pointer("skip")
	far3, w, x := tripled(far), GP64(), pointer("x")
	flip, first := spare[7], spare[6]
	VPBROADCASTD(flipped, flip)
	negated(name+"_x", k, []Register{x}, func(int) Mem { return Mem{Base: x} }, flip, []VecPhysical{first})

	Label(name + "_row")
	Load(Param("x"), x)
	Load(Param("w"), w)
	sums := tileSums[:4]
	for _, v := range sums {
		VMOVDQA32(first, v)
	}
	inBytes(name, k, []Register{x, w}, func(tail bool) {
		masked(tail, Mem{Base: x}, spare[2])
		for r, v := range sums {
			weights := spare[3+r%2]
			masked(tail, rows4(w, far, far3, r, 0), weights)
			VPXORD(flip, weights, weights)
			dotBytes(spare[2], weights, v)
		}
	})
	four := quarters(sums, VPADDD)
	VEXTRACTI32X8(Imm(1), four, spare[0].AsY())
	VPADDD(spare[0].AsY(), four.AsY(), spare[0].AsY())
	VEXTRACTI128(Imm(1), spare[0].AsY(), spare[1].AsX())
	VPADDD(spare[1].AsX(), spare[0].AsX(), spare[0].AsX())
	out := GP64()
	MOVQ(sum, out)
	for r := range sums {
		VPEXTRD(Imm(uint64(r)), spare[0].AsX(), Mem{Base: out})
		if r < 3 {
			ADDQ(skip, out)
		}
	}
	ADDQ(near, argument("w"))
	ADDQ(Imm(4), sum)
	n := pointer("n")
	DECQ(n)
	Store(n, Param("n"))
	JNE(LabelRef(name + "_row"))
	end()
}

// tileVNNI multiplies 6 rows of x by n·8 rows of w, four of them at a time.
func tileVNNI() {
	const name = "tileVNNI"
	TEXT(name, NOSPLIT, tileInt8Signature)
	Doc(name + ": see tileInt8Func.")
	Pragma("noescape")
	flip := spare[7]
	VPBROADCASTD(flipped, flip)
	first := AllocLocal(64 * wideRows)
	ldx, ldw, k, ahead := pointer("ldx"), pointer("ldw"), pointer("k"), pointer("ahead")
	ldw3, w, x, x3 := tripled(ldw), GP64(), GP64(), GP64()
	row := func(m int) Mem {
		if m >= 3 {
			return rows4(x3, ldx, nil, m-3, 0)
		}
		return rows4(x, ldx, nil, m, 0)
	}
	toRows := func() {
		Load(Param("x"), x)
		LEAQ(Mem{Base: x, Index: ldx, Scale: 2}, x3)
		ADDQ(ldx, x3)
	}
	toRows()
	negated(name+"_x", k, []Register{x, x3}, row, flip, tileSums[:wideRows])
	for m := range wideRows {
		VMOVDQU32(tileSums[m], first.Offset(64*m))
	}
	SHLQ(Imm(1), argument("n"))

	Label(name + "_tile")
	mode, lanes := pointer("mode"), pointer("lanes")
	for m := range wideRows {
		for r := range 4 {
			VMOVDQU32(first.Offset(64*m), tileSums[4*m+r])
		}
	}
	TESTQ(U32(modeContinue), mode)
	JE(LabelRef(name + "_sum"))
	for a, v := range tileSums {
		VMOVDQU(Mem{Base: lanes, Disp: 32 * a}, spare[0].AsY())
		VPADDD(spare[0], v, v)
	}
	Label(name + "_sum")
	toRows()
	Load(Param("w"), w)
	inBytes(name, k, []Register{x, x3, w}, func(tail bool) {
		ask(ahead)
		weights := spare[:4]
		for r, v := range weights {
			masked(tail, rows4(w, ldw, ldw3, r, 0), v)
			VPXORD(flip, v, v)
		}
		for m := range wideRows {
			xv := spare[4+m%2]
			masked(tail, row(m), xv)
			for r, v := range weights {
				dotBytes(xv, v, tileSums[4*m+r])
			}
		}
	})
	Load(Param("mode"), mode)
	TESTQ(U32(modeLeave), mode)
	JE(LabelRef(name + "_reduce"))
	Load(Param("lanes"), lanes)
	for a, v := range tileSums { // eight lanes of sixteen
		VEXTRACTI32X8(Imm(1), v, spare[a%2].AsY())
		VPADDD(spare[a%2].AsY(), v.AsY(), v.AsY())
		VMOVDQU32(v.AsY(), Mem{Base: lanes, Disp: 32 * a})
	}
	JMP(LabelRef(name + "_next"))
	Label(name + "_reduce")
	fold := func(a, b, to VecPhysical) VecPhysical {
		VSHUFI32X4(Imm(0x88), b, a, to)
		VSHUFI32X4(Imm(0xdd), b, a, spare[6])
		VPADDD(spare[6], to, to)
		return to
	}
	var part [wideRows]VecPhysical
	for m := range part {
		part[m] = quarters(tileSums[4*m:], VPADDD)
	}
	four := fold(fold(part[0], part[1], spare[0]), fold(part[2], part[3], spare[1]), spare[2])
	two := fold(fold(part[4], part[5], spare[0]), spare[0], spare[3])
	out, ld := pointer("sum"), pointer("ld")
	for m := range wideRows {
		v := four
		if m >= 4 {
			v = two
		}
		if m%4 == 0 {
			VMOVDQU32(v.AsX(), Mem{Base: out})
		} else {
			VEXTRACTI32X4(Imm(uint64(m%4)), v, Mem{Base: out})
		}
		ADDQ(ld, out)
	}
	Label(name + "_next")
	advance("lanes", 32*len(tileSums))
	advance("sum", 16)
	nextRows("w", ldw, 4)
	n := pointer("n")
	DECQ(n)
	Store(n, Param("n"))
	JNE(LabelRef(name + "_tile"))
	end()
}

// weighWide adds rows of v to the lanes of so many weighted sums of 64 columns at once, as weigh does.
func weighWide(name string, sums int) {
	const columns = 4
	TEXT(name, NOSPLIT, "func(v *float32, ldv int, p *float32, ldp, n int, lanes *float32, ldl, d, count, ahead int)")
	Doc(name + ": see weighFunc.")
	Pragma("noescape")
	ldv, ldp, ldl, n, ahead := pointer("ldv"), pointer("ldp"), pointer("ldl"), pointer("n"), pointer("ahead")
	lane, row, j, p, p4, kept, ldp3 := GP64(), GP64(), GP64(), GP64(), GP64(), GP64(), tripled(ldp)
	values, sum := zmm[:columns], zmm[columns:]
	weight := func(s int) Mem {
		if s >= 4 {
			return rows4(p4, ldp, ldp3, s-4, 0)
		}
		return rows4(p, ldp, ldp3, s, 0)
	}
	Label(name + "_columns")
	XORQ(lane, lane)
	Label(name + "_lane")
	// Sixteen columns are two groups of eight, each with its eight lanes.
	halves := func(do func(acc VecPhysical, low, high Mem)) {
		Load(Param("lanes"), kept)
		for s := range sums {
			for c := range columns {
				low := Mem{Base: kept, Disp: 512 * c}
				do(sum[s*columns+c], low, low.Offset(256))
			}
			if s < sums-1 {
				ADDQ(ldl, kept)
			}
		}
	}
	halves(func(acc VecPhysical, low, high Mem) {
		VMOVUPS(low, acc.AsY())
		VINSERTF32X8(Imm(1), high, acc, acc)
	})
	MOVQ(lane, row)
	IMULQ(ldv, row)
	ADDQ(argument("v"), row)
	Load(Param("p"), p)
	LEAQ(Mem{Base: p, Index: lane, Scale: 4}, p)
	LEAQ(Mem{Base: p, Index: ldp, Scale: 4}, p4)
	MOVQ(lane, j)
	Label(name + "_row")
	for c, v := range values {
		PREFETCHT1(Mem{Base: row, Index: ahead, Scale: 1, Disp: 64 * c})
		VMOVUPS(Mem{Base: row, Disp: 64 * c}, v)
	}
	for s := range sums {
		for c, v := range values {
			VFMADD231PS_BCST(weight(s), v, sum[s*columns+c])
		}
	}
	LEAQ(Mem{Base: row, Index: ldv, Scale: 8}, row)
	ADDQ(Imm(32), p)
	ADDQ(Imm(32), p4)
	ADDQ(Imm(8), j)
	CMPQ(j, n)
	JLT(LabelRef(name + "_row"))
	halves(func(acc VecPhysical, low, high Mem) {
		VMOVUPS(acc.AsY(), low)
		VEXTRACTF32X8(Imm(1), acc, high)
	})
	advance("lanes", 32)
	INCQ(lane)
	CMPQ(lane, argument("count"))
	JLT(LabelRef(name + "_lane"))
	advance("v", 64*columns)
	advance("lanes", 512*columns)
	SHLQ(Imm(5), lane)
	SUBQ(lane, argument("lanes"))
	SUBQ(U32(16*columns), argument("d"))
	JG(LabelRef(name + "_columns"))
	end()
}
