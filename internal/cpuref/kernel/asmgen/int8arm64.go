package main

const (
	smullB, smlal2B, sadalpH = 0x0e20c000, 0x4e208000, 0x4e606800 // eight bytes each, to int16; pairs of int16 added to int32
	sdotB                    = 0x4e809400                         // four bytes each, added to int32
	addpS, umaxS             = 0x4ea0bc00, 0x6ea06400
	fcvtnsS                  = 0x4e21a800 // to the nearest integer, ties to even
	xtnS, xtn2S, xtnH        = 0x0e612800, 0x4e612800, 0x0e212800
)

// int8Kernels are written twice: for every arm64, and for those with the instruction SDOT.
func (a *arm) int8Kernels() {
	for _, dot := range []bool{false, true} {
		a.rowsInt8(dot)
		a.tileInt8(dot)
	}

	const x, s, most = 0, 4, 2
	a.function("magnitude", "x *float32", "n int", "lanes *float32")
	a.args("x R0", "lanes R1")
	a.p("MOVD $0x7fffffff, R15")
	a.p("VDUP R15, V%d.S4", s)
	a.zero(most)
	a.zero(most + 1)
	a.eachEight("magnitude", 8, func() { // by bits, which have the order of the numbers, and NaNs above all
		a.p("VLD1.P 32(R0), %s", list(x, 2, "S4"))
		for h := range 2 {
			a.p("VAND V%d.B16, V%d.B16, V%d.B16", s, x+h, x+h)
			a.v(umaxS, most+h, most+h, x+h)
		}
	})
	a.p("VST1 %s, (R1)", list(most, 2, "S4"))
	a.p("RET")

	a.function("quantize8", "q *int8", "x *float32", "a float32", "n int")
	a.args("q R0", "x R1")
	a.number("a", s)
	a.eachEight("quantize8", 8, func() {
		a.p("VLD1.P 32(R1), %s", list(x, 2, "S4"))
		for h := range 2 {
			a.v(fmulS, x+h, x+h, s)
			a.v(fcvtnsS, x+h, x+h, 0)
		}
		a.v(xtnS, x, x, 0)
		a.v(xtn2S, x, x+1, 0)
		a.v(xtnH, x, x, 0)
		a.p("VST1.P [V%d.B8], 8(R0)", x)
	})
	a.p("RET")

	a.function("rescale", "out *float32", "sum *int32", "divisor *float32", "inverse float32", "n int")
	a.args("out R0", "sum R1", "divisor R2")
	a.number("inverse", s)
	a.theNaN()
	a.eachEight("rescale", 8, func() {
		a.p("VLD1.P 32(R1), %s", list(x, 2, "S4"))
		a.p("VLD1.P 32(R2), %s", list(most, 2, "S4"))
		for h := range 2 {
			a.v(scvtfS, x+h, x+h, 0)
			a.v(fmulS, x+h, x+h, s)
			a.v(fdivS, x+h, x+h, most+h)
			a.stored(x+h, 6)
		}
		a.p("VST1.P %s, 32(R0)", list(x, 2, "S4"))
	})
	a.p("RET")
}

// products adds the products of sixteen int8 of x and of w to four int32. Without SDOT pairs meet in an int16, which holds 2·127·128; temp is lost.
func (a *arm) products(dot bool, acc, x, w, temp int) {
	if dot {
		a.v(sdotB, acc, x, w)
		return
	}
	a.v(smullB, temp, x, w)
	a.v(smlal2B, temp, x, w)
	a.v(sadalpH, acc, temp, 0)
}

func dotName(name string, dot bool) string {
	if dot {
		return name + "Dot"
	}
	return name
}

func (a *arm) rowsInt8(dot bool) {
	const acc, w, x, temp = 0, 4, 8, 16
	name := dotName("rowsInt8", dot)
	a.function(name, "w *byte", "near int", "far int", "x *int8", "k int", "sum *int32", "skip int", "n int")
	a.args("w R0", "far R4", "near R5", "x R6", "k R8", "sum R9", "skip R10", "n R11")
	rows := []string{"R0", "R1", "R2", "R3"}
	a.spaced("R4", rows)
	a.p("SUB R8, R5, R5") // from a row's end to the next row

	a.label(name + "_row")
	a.p("MOVD R6, R7")
	for r := range rows {
		a.zero(acc + r)
	}
	a.sumLoop(name, 16, func() {
		a.p("VLD1.P 16(R7), %s", list(x, 1, "B16"))
		for r, p := range rows {
			a.p("VLD1.P 16(%s), %s", p, list(w+r, 1, "B16"))
			a.products(dot, acc+r, x, w+r, temp+r)
		}
	})
	a.v(addpS, acc, acc, acc+1)
	a.v(addpS, acc+1, acc+2, acc+3)
	a.v(addpS, acc, acc, acc+1)
	a.p("MOVD R9, R14")
	for r := range 4 {
		a.p("VST1 V%d.S[%d], (R14)", acc, r)
		a.p("ADD R10, R14")
	}
	for _, p := range rows {
		a.p("ADD R5, %s", p)
	}
	a.p("ADD $4, R9")
	a.p("SUBS $1, R11, R11")
	a.p("BNE %s_row", name)
	a.p("RET")
}

func (a *arm) tileInt8(dot bool) {
	const M, N, w, x, temp = 4, 3, 12, 15, 16
	name := dotName("tileInt8", dot)
	a.function(name, "x *int8", "ldx int", "w *byte", "ldw int", "k int", "sum *int32", "ld int", "n int", "lanes *float32", "mode int", "wide *int16", "ahead *byte")
	a.args("x R0", "ldx R14", "w R4", "ldw R7", "k R8", "sum R9", "ld R10", "n R11", "lanes R12", "mode R13")
	xs, ws := []string{"R0", "R1", "R2", "R3"}, []string{"R4", "R5", "R6"}
	a.spaced("R14", xs)

	a.label(name + "_tile")
	a.spaced("R7", ws)
	a.lanesIn(name, 0, M*N)
	a.sumLoop(name, 16, func() {
		for r, p := range ws {
			a.p("VLD1.P 16(%s), %s", p, list(w+r, 1, "B16"))
		}
		for m, p := range xs {
			a.p("VLD1.P 16(%s), %s", p, list(x, 1, "B16"))
			for r := range ws {
				a.products(dot, m*N+r, x, w+r, temp+m*N+r)
			}
		}
	})
	a.lanesOut(name, name+"_next", 0, M*N)
	a.p("MOVD R9, R14")
	for m := range M {
		s := m * N
		a.v(addpS, s, s, s+1)
		a.v(addpS, s+1, s+2, s+2)
		a.v(addpS, s, s, s+1)
		a.p("FMOVD F%d, (R14)", s)
		a.p("ADD $8, R14, R21")
		a.p("VST1 V%d.S[2], (R21)", s)
		a.p("ADD R10, R14")
	}
	a.label(name + "_next")
	for _, p := range xs {
		a.p("SUB R8, %s", p)
	}
	a.p("SUB R8, R6, R4")
	a.p("ADD R7, R4")
	a.p("ADD $%d, R12", 16*M*N)
	a.p("ADD $%d, R9", 4*N)
	a.p("SUBS $1, R11, R11")
	a.p("BNE %s_tile", name)
	a.p("RET")
}
