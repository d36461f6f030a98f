package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// scoreKeys walks four rows of keys at once, far apart, so that memory serves four streams. Up to three of a KV head's queries are
// multiplied with its four keys at a time: twelve sums from seven loads. Memory is told a little before what will be needed; it knows by itself, but
// later. Told a page before, it does worse than if it were not told.
func scoreKeys() {
	const name, early = "scoreKeys", 1024 // bytes
	TEXT(name, NOSPLIT, "func(k *float32, gap, far int, q *float32, heads, group, dim int, scale float32, y *float32, ldy, skip, n int)")
	Doc(name + ": see scoreKeysFunc.")
	Pragma("noescape")
	key := spaced(pointer("k"), pointer("far"), 4)
	dim := pointer("dim")
	q, y, heads, left, i := GP64(), GP64(), GP64(), GP64(), GP64()

	Label(name + "_row")
	Load(Param("q"), q)
	Load(Param("y"), y)
	Load(Param("heads"), heads)
	Label(name + "_head")
	Load(Param("group"), left)
	JMP(LabelRef(name + "_test"))
	for queries := 3; queries > 0; queries-- {
		part := fmt.Sprintf("%s_%d", name, queries)
		Label(part)
		query := []Register{q}
		for r := 1; r < queries; r++ {
			query = append(query, GP64())
			LEAQ(at(q, dim, 4*r, 0), query[r])
		}
		acc := make([]VecVirtual, 4*queries)
		for a := range acc {
			acc[a] = ymm()
			zero(acc[a])
		}
		sumLoop(part, i, dim, 8, func(u int) {
			var x [3]VecVirtual
			for r := range query {
				x[r] = ymm()
				VMOVUPS(at(query[r], i, 4, 8*u), x[r])
			}
			for c := range key {
				if queries == 3 && u%2 == 0 { // what is less work has no need of it
					PREFETCHT1(at(key[c], i, 4, 8*u).Offset(early))
				}
				if queries == 1 {
					VFMADD231PS(at(key[c], i, 4, 8*u), x[0], acc[c])
					continue
				}
				k := ymm()
				VMOVUPS(at(key[c], i, 4, 8*u), k)
				for r := range query {
					VFMADD231PS(k, x[r], acc[4*r+c])
				}
			}
		})
		for r := range query {
			sums, scale := neighbours(acc[4*r], acc[4*r+1], acc[4*r+2], acc[4*r+3]), XMM()
			VBROADCASTSS(argument("scale"), scale)
			VMULPS(scale, sums, sums)
			oneNaN(sums)
			out := GP64()
			MOVQ(y, out)
			scatter(sums, out, argument("skip"))
			ADDQ(argument("ldy"), y)
		}
		for range queries {
			LEAQ(at(q, dim, 4, 0), q)
		}
		SUBQ(Imm(uint64(queries)), left)
		if queries == 3 {
			Label(name + "_test")
			CMPQ(left, Imm(3))
			JGE(LabelRef(part))
			CMPQ(left, Imm(1))
			JE(LabelRef(name + "_1"))
			JL(LabelRef(name + "_next"))
		} else {
			JMP(LabelRef(name + "_next"))
		}
	}
	Label(name + "_next")
	for _, p := range key {
		LEAQ(at(p, dim, 4, 0), p)
	}
	DECQ(heads)
	JNE(LabelRef(name + "_head"))
	for _, p := range key {
		ADDQ(argument("gap"), p)
	}
	advance("y", 4)
	DECQ(argument("n"))
	JNE(LabelRef(name + "_row"))
	end()
}

// endSum ends weighted sums, eight columns at a time.
func endSum() {
	const name = "endSum"
	TEXT(name, NOSPLIT, "func(v *float32, ldv int, p *float32, n int, y *float32, d int, lanes *float32)")
	Doc(name + ": see endSumFunc.")
	Pragma("noescape")
	v, ldv, p, n, y, d, lanes := pointer("v"), pointer("ldv"), pointer("p"), pointer("n"), pointer("y"), pointer("d"), pointer("lanes")
	ldv3, v4 := tripled(ldv), GP64()
	LEAQ(Mem{Base: v, Index: ldv, Scale: 4}, v4)
	weight, acc := ymm(), make([]VecVirtual, 8)
	for a := range acc {
		acc[a] = ymm()
	}

	Label(name + "_columns")
	for a, v := range acc {
		VMOVUPS(Mem{Base: lanes, Disp: 32 * a}, v)
	}
	TESTQ(n, n)
	JE(LabelRef(name + "_whole"))
	// The last rows, then the terms 0·0 that fill the eight.
	for r := range 7 {
		VBROADCASTSS(Mem{Base: p, Disp: 4 * r}, weight)
		VFMADD231PS(rows4([]Register{v, v4}[r/4], ldv, ldv3, r%4, 0), weight, acc[r])
		zero(weight)
		CMPQ(n, Imm(uint64(r+1)))
		JE(LabelRef(fmt.Sprintf("%s_pad%d", name, r+1)))
	}
	for r := 1; r < 8; r++ {
		Label(fmt.Sprintf("%s_pad%d", name, r))
		VADDPS(weight, acc[r], acc[r])
	}
	Label(name + "_whole")
	for step := 1; step < 8; step *= 2 {
		for a := 0; a < 8; a += 2 * step {
			VADDPS(acc[a+step], acc[a], acc[a])
		}
	}
	VCMPPS(Imm(3), acc[0], acc[0], acc[1])
	VBLENDVPS(acc[1], theNaN(), acc[0], acc[0])
	VMOVUPS(acc[0], Mem{Base: y})
	ADDQ(U32(32*8), lanes)
	ADDQ(Imm(32), v)
	ADDQ(Imm(32), v4)
	ADDQ(Imm(32), y)
	SUBQ(Imm(8), d)
	JG(LabelRef(name + "_columns"))
	end()
}

// weigh adds rows of v to the lanes of several weighted sums at once, lane by lane: so many sums of so many times eight columns stay in registers.
func weigh(name string, sums, columns int) {
	TEXT(name, NOSPLIT, "func(v *float32, ldv int, p *float32, ldp, n int, lanes *float32, ldl, d, count, ahead int)")
	Doc(fmt.Sprintf("%s: see weighFunc.", name))
	Pragma("noescape")
	v, ldv, n, ahead := pointer("v"), pointer("ldv"), pointer("n"), pointer("ahead")
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
	acc, weight := make([]VecVirtual, sums*columns), make([]VecVirtual, sums)
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
	for c := 0; c < columns; c += 2 {
		PREFETCHT1(Mem{Base: row, Index: ahead, Scale: 1, Disp: 32 * c})
	}
	for s := range weight {
		VBROADCASTSS(at(p[s], j, 4, 0), weight[s])
	}
	for c := range columns {
		if sums == 1 {
			VFMADD231PS(Mem{Base: row, Disp: 32 * c}, weight[0], acc[c])
			continue
		}
		value := ymm()
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
	CMPQ(lane, argument("count"))
	JLT(LabelRef(name + "_lane"))
	ADDQ(U32(uint32(32*columns)), v)
	SHLQ(Imm(5), lane)
	for _, l := range lanes {
		SUBQ(lane, l)
		ADDQ(U32(uint32(256*columns)), l)
	}
	SUBQ(U32(uint32(8*columns)), argument("d"))
	JG(LabelRef(name + "_columns"))
	end()
}
