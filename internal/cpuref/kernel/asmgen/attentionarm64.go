package main

import "fmt"

// scoreKeys walks four rows of keys, and multiplies up to three of a KV head's queries with its four keys at a time.
func (a *arm) scoreKeys() {
	const name = "scoreKeys"
	a.function(name, "k *float32", "gap int", "far int", "q *float32", "heads int", "group int", "dim int", "scale float32",
		"y *float32", "ldy int", "skip int", "n int")
	a.args("k R0", "gap R4", "far R5", "group R6", "dim R8", "y R9", "ldy R10", "skip R11", "n R12")
	keys := []string{"R0", "R1", "R2", "R3"}
	a.spaced("R5", keys)
	a.offset(4, "R16")

	a.label(name + "_row")
	a.args("q R20", "heads R13")
	a.p("MOVD R9, R17")
	a.label(name + "_head")
	a.p("MOVD R6, R19")
	a.p("B %s_test", name)
	for n := 3; n > 0; n-- {
		part := fmt.Sprintf("%s_%d", name, n)
		a.label(part)
		a.scoreQueries(part, n, keys)
		a.p("SUB $%d, R19", n)
		if n == 3 {
			a.label(name + "_test")
			a.p("CMP $3, R19")
			a.p("BGE %s", part)
			a.p("CMP $1, R19")
			a.p("BEQ %s_1", name)
			a.p("BLT %s_next", name)
		} else {
			a.p("B %s_next", name)
		}
	}
	a.label(name + "_next")
	for _, p := range keys {
		a.p("ADD R16, %s", p)
	}
	a.p("SUBS $1, R13, R13")
	a.p("BNE %s_head", name)
	for _, p := range keys {
		a.p("ADD R4, %s", p)
	}
	a.p("ADD $4, R9")
	a.p("SUBS $1, R12, R12")
	a.p("BNE %s_row", name)
	a.p("RET")
}

// scoreQueries does n queries from R20 on, and moves it, and R17 past their results. Registers from 0 on hold the sums, two for each query and key;
// 24 to 29 are for queries, 30 for half of a key.
func (a *arm) scoreQueries(name string, n int, keys []string) {
	const query, key, scale, temp = 24, 30, 24, 25
	queries := []string{"R20", "R21", "R22"}[:n]
	a.spaced("R16", queries)
	for r := range 8 * n {
		a.zero(r)
	}
	a.sumLoop(name, 8, func() {
		for r, p := range queries {
			a.p("VLD1.P 32(%s), %s", p, list(query+2*r, 2, "S4"))
		}
		for c, p := range keys {
			for half := range 2 {
				a.p("VLD1.P 16(%s), [V%d.S4]", p, key)
				for r := range queries {
					a.fma(8*r+2*c+half, key, query+2*r+half)
				}
			}
		}
	})
	for _, p := range keys {
		a.p("SUB R16, %s", p)
	}
	if n > 1 {
		a.p("MOVD %s, R20", queries[n-1])
	}
	a.theNaN()
	a.number("scale", scale)
	for r := range queries {
		sums := 8 * r
		for c := range keys {
			a.v(faddpS, sums+c, sums+2*c, sums+2*c+1)
		}
		a.v(faddpS, sums, sums, sums+1)
		a.v(faddpS, sums+1, sums+2, sums+3)
		a.v(faddpS, sums, sums, sums+1)
		a.v(fmulS, sums, sums, scale)
		a.stored(sums, temp)
		a.p("MOVD R17, R14")
		for c := range keys {
			a.p("VST1 V%d.S[%d], (R14)", sums, c)
			a.p("ADD R11, R14")
		}
		a.p("ADD R10, R17")
	}
}

// endSum: register 2·lane and the next hold a lane of 8 columns.
func (a *arm) endSum() {
	const name, weight, value, zero = "endSum", 16, 18, 20
	a.function(name, "v *float32", "ldv int", "p *float32", "n int", "y *float32", "d int", "lanes *float32")
	a.args("v R0", "ldv R1", "p R2", "n R3", "y R4", "d R5", "lanes R12")
	a.zero(zero)
	a.label(name + "_columns")
	for r := 0; r < 16; r += 4 {
		a.p("VLD1.P 64(R12), %s", list(r, 4, "S4"))
	}
	a.p("CBZ R3, %s_whole", name)
	a.p("MOVD R0, R6")
	a.p("MOVD R2, R7")
	// The last rows, then the terms 0·0 that fill the eight.
	for lane := range 7 {
		a.p("VLD1R.P 4(R7), [V%d.S4]", weight)
		a.p("VLD1 (R6), %s", list(value, 2, "S4"))
		a.p("ADD R1, R6")
		a.fma(2*lane, value, weight)
		a.fma(2*lane+1, value+1, weight)
		a.p("CMP $%d, R3", lane+1)
		a.p("BEQ %s_pad%d", name, lane+1)
	}
	for lane := 1; lane < 8; lane++ {
		a.label(fmt.Sprintf("%s_pad%d", name, lane))
		a.v(faddS, 2*lane, 2*lane, zero)
		a.v(faddS, 2*lane+1, 2*lane+1, zero)
	}
	a.label(name + "_whole")
	for step := 1; step < 8; step *= 2 {
		for lane := 0; lane < 8; lane += 2 * step {
			for half := range 2 {
				a.v(faddS, 2*lane+half, 2*lane+half, 2*(lane+step)+half)
			}
		}
	}
	a.theNaN()
	for half := range 2 {
		a.stored(half, 2)
	}
	a.p("VST1 %s, (R4)", list(0, 2, "S4"))
	a.p("ADD $32, R0")
	a.p("ADD $32, R4")
	a.p("SUBS $8, R5, R5")
	a.p("BGT %s_columns", name)
	a.p("RET")
}

// weigh: registers from 0 on hold so many sums of columns eights, two for each eight; 24 to 27 are for values, 28 to 30 for weights.
func (a *arm) weigh(name string, sums, columns int) {
	const value, weight = 24, 28
	a.function(name, "v *float32", "ldv int", "p *float32", "ldp int", "n int", "lanes *float32", "ldl int", "d int", "count int", "ahead int")
	a.args("v R0", "ldv R1", "p R2", "ldp R3", "n R4", "lanes R5", "ldl R6", "d R7", "count R16", "ahead R17")
	a.p("LSL $3, R1, R8")
	a.p("SUB $%d, R8", 32*columns) // from a row's end to the next of its lane
	// kept moves the registers from or to the memory of a lane.
	kept := func(format string) {
		a.p("ADD R11<<5, R5, R9")
		for s := range sums {
			a.p("MOVD R9, R10")
			for c := range columns {
				a.p(format, list(2*(s*columns+c), 2, "S4"))
				a.p("ADD $256, R10")
			}
			a.p("ADD R6, R9")
		}
	}
	a.label(name + "_columns")
	a.p("MOVD $0, R11")
	a.label(name + "_lane")
	kept("VLD1 (R10), %s")
	a.p("MADD R1, R0, R11, R12") // the lane's first row
	a.p("ADD R11<<2, R2, R13")   // and weight
	a.p("SUB R11, R4, R14")
	a.label(name + "_row")
	a.p("ADD R17, R12, R15")
	for c := 0; c < columns; c += 2 {
		a.p("PRFM %d(R15), PLDL2KEEP", 32*c)
	}
	a.p("MOVD R13, R15")
	for s := range sums {
		a.p("VLD1R (R15), [V%d.S4]", weight+s)
		a.p("ADD R3, R15")
	}
	for half := 0; half < 2*columns; half += 4 {
		n := min(4, 2*columns-half)
		a.p("VLD1.P %d(R12), %s", 16*n, list(value, n, "S4"))
		for s := range sums {
			for h := range n {
				a.fma(2*s*columns+half+h, value+h, weight+s)
			}
		}
	}
	a.p("ADD R8, R12")
	a.p("ADD $32, R13")
	a.p("SUBS $8, R14, R14")
	a.p("BGT %s_row", name)
	kept("VST1 %s, (R10)")
	a.p("ADD $1, R11")
	a.p("CMP R16, R11")
	a.p("BLT %s_lane", name)
	a.p("ADD $%d, R0", 32*columns)
	a.p("ADD $%d, R5", 256*columns)
	a.p("SUBS $%d, R7, R7", 8*columns)
	a.p("BGT %s_columns", name)
	a.p("RET")
}
