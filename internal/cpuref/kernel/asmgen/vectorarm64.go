package main

import (
	"fmt"
	"math"
)

// The number of the register that holds the NaN that is stored for any.
const nan = 31

func (a *arm) theNaN() {
	a.p("MOVD $0x7fc00000, R21")
	a.p("VDUP R21, V%d.S4", nan)
}

// stored makes any NaN in d that one. temp is lost.
func (a *arm) stored(d, temp int) {
	a.v(fcmeqS, temp, d, d)
	a.v(bif, d, nan, temp)
}

// eachEight is a loop over n elements, n in R14.
func (a *arm) eachEight(name string, step int, body func()) {
	a.args("n R14")
	a.label(name + "_loop")
	body()
	a.p("SUBS $%d, R14, R14", step)
	a.p("BGT %s_loop", name)
}

func (a *arm) elementwise() {
	const x, y, s, temp = 0, 2, 4, 6
	end := func() {
		for h := range 2 {
			a.stored(x+h, temp)
		}
		a.p("VST1.P %s, 32(R0)", list(x, 2, "S4"))
	}
	binary := func(name string, op int) {
		a.function(name, "out *float32", "a *float32", "b *float32", "n int")
		a.args("out R0", "a R1", "b R2")
		a.theNaN()
		a.eachEight(name, 8, func() {
			a.p("VLD1.P 32(R1), %s", list(x, 2, "S4"))
			a.p("VLD1.P 32(R2), %s", list(y, 2, "S4"))
			for h := range 2 {
				a.v(op, x+h, x+h, y+h)
			}
			end()
		})
		a.p("RET")
	}
	binary("addVectors", faddS)
	binary("mulVectors", fmulS)
	scalar := func(name string, op int) {
		a.function(name, "out *float32", "a *float32", "s float32", "n int")
		a.args("out R0", "a R1")
		a.number("s", s)
		a.theNaN()
		a.eachEight(name, 8, func() {
			a.p("VLD1.P 32(R1), %s", list(x, 2, "S4"))
			for h := range 2 {
				a.v(op, x+h, x+h, s)
			}
			end()
		})
		a.p("RET")
	}
	scalar("scaleVector", fmulS)
	scalar("divideVector", fdivS)

	a.function("normalize", "out *float32", "x *float32", "w *float32", "inv float32", "offset float32", "n int")
	a.args("out R0", "x R1", "w R2")
	a.number("inv", s)
	a.number("offset", s+1)
	a.theNaN()
	a.eachEight("normalize", 8, func() {
		a.p("VLD1.P 32(R1), %s", list(x, 2, "S4"))
		a.p("VLD1.P 32(R2), %s", list(y, 2, "S4"))
		for h := range 2 {
			a.v(fmulS, x+h, x+h, s)
			a.v(faddS, y+h, y+h, s+1)
			a.v(fmulS, x+h, x+h, y+h)
		}
		end()
	})
	a.p("RET")

	a.function("rotate", "outA *float32", "outB *float32", "a *float32", "b *float32", "cos *float32", "sin *float32", "n int")
	a.args("outA R0", "outB R1", "a R2", "b R3", "cos R4", "sin R5")
	a.theNaN()
	a.eachEight("rotate", 4, func() {
		for r := range 4 {
			a.p("VLD1.P 16(R%d), [V%d.S4]", 2+r, r)
		}
		a.v(fmulS, 4, 0, 2)
		a.v(fmulS, 5, 1, 3)
		a.v(fsubS, 4, 4, 5)
		a.v(fmulS, 5, 1, 2)
		a.v(fmulS, 6, 0, 3)
		a.v(faddS, 5, 5, 6)
		a.stored(4, 6)
		a.stored(5, 6)
		a.p("VST1.P [V4.S4], 16(R0)")
		a.p("VST1.P [V5.S4], 16(R1)")
	})
	a.p("RET")
}

func (a *arm) largest() {
	a.function("largest", "x *float32", "n int", "lanes *float32")
	a.args("x R0", "lanes R1")
	a.p("MOVD $0xff800000, R15")
	a.p("VDUP R15, V2.S4")
	a.p("VDUP R15, V3.S4")
	a.eachEight("largest", 8, func() {
		a.p("VLD1.P 32(R0), [V0.S4, V1.S4]")
		a.v(fmaxS, 2, 2, 0) // a NaN stays
		a.v(fmaxS, 3, 3, 1)
	})
	a.p("VST1 [V2.S4, V3.S4], (R1)")
	a.p("RET")
}

// The functions below hold all their constants in registers from 8 on, and do two float64 at a time in registers 0 to 7.
var armConstants = []float64{lowest, highest, log2E, ln2Hi, ln2Lo, exponent,
	expSeries[0], expSeries[1], expSeries[2], expSeries[3], expSeries[4], expSeries[5], expSeries[6], expSeries[7], expSeries[8], 0.5, 1,
	22, 3, 1e-4, gelu3, geluRoot}

const firstConstant, expConstants = 8, 17

// c is the register of a constant.
func c(v float64) int {
	for i, known := range armConstants {
		if v == known {
			return firstConstant + i
		}
	}
	panic(fmt.Sprintf("constant %v is not declared", v))
}

// load the first n constants.
func (a *arm) constants(n int) {
	a.p("MOVD $float64s<>(SB), R15")
	for i := range n {
		a.p("VLD1R.P 8(R15), [V%d.D2]", firstConstant+i)
	}
}

// exp is num.Exp of the two float64 in x, operation by operation. The registers k, p and t are lost; p is the result.
func (a *arm) exp(x, p, k, t int) {
	a.v(fminD, x, x, c(highest)) // a NaN stays
	a.v(fmaxD, x, x, c(lowest))
	a.v(fmulD, k, x, c(log2E))
	a.v(frintnD, k, k, 0) // to nearest even
	a.v(fmulD, t, k, c(ln2Hi))
	a.v(fsubD, x, x, t)
	a.v(fmulD, t, k, c(ln2Lo))
	a.v(fsubD, x, x, t)
	for i, coefficient := range expSeries[1:] {
		if i == 0 {
			a.v(fmulD, p, c(expSeries[0]), x)
		} else {
			a.v(fmulD, p, p, x)
		}
		a.v(faddD, p, p, c(coefficient))
	}
	a.v(faddD, k, k, c(exponent))
	a.v(shl52D, k, k, 0)
	a.v(fmulD, p, p, k)
}

// tanh is num.Tanh of the two float64 in x, which stay; y is the result. The three registers from temp on are lost.
func (a *arm) tanh(x, y, temp int) {
	abs, k, t := temp, temp+1, temp+2
	a.v(fabsD, abs, x, 0)
	a.v(faddD, abs, abs, abs)
	a.exp(abs, y, k, t)
	a.v(faddD, t, y, c(1))
	a.v(fsubD, y, y, c(1))
	a.v(fdivD, y, y, t)
	// 1 beyond 22.
	a.v(fabsD, abs, x, 0)
	a.v(fcmgtD, t, abs, c(22))
	a.v(bit, y, c(1), t)
	// The sign of x.
	a.v(fnegD, k, abs, 0)
	a.p("VEOR V%d.B16, V%d.B16, V%d.B16", k, abs, k) // the sign bit
	a.v(bit, y, x, k)
	// x - x³/3 below 1e-4.
	a.v(fcmgtD, abs, c(1e-4), abs)
	a.v(fmulD, t, x, x)
	a.v(fmulD, t, x, t)
	a.v(fdivD, t, t, c(3))
	a.v(fsubD, t, x, t)
	a.v(bit, y, t, abs)
}

func (a *arm) exponentials() {
	for i, v := range armConstants {
		fmt.Fprintf(&a.text, "\nDATA float64s<>+%d(SB)/8, $0x%016x", 8*i, math.Float64bits(v))
	}
	fmt.Fprintf(&a.text, "\nGLOBL float64s<>(SB), RODATA|NOPTR, $%d\n", 8*len(armConstants))

	const sums, top = firstConstant + expConstants, firstConstant + expConstants + 4
	a.function("expSum", "out *float32", "x *float32", "top float32", "n int", "lanes *float32")
	a.args("out R0", "x R1", "lanes R2")
	a.constants(expConstants)
	a.number("top", top)
	a.v(fcvtlS, top, top, 0)
	for i := range 4 {
		a.zero(sums + i)
	}
	a.eachEight("expSum", 8, func() {
		for i := range 4 {
			a.p("FMOVD.P 8(R1), F0")
			a.v(fcvtlS, 0, 0, 0)
			a.v(fsubD, 0, 0, top)
			a.exp(0, 1, 2, 3)
			a.v(fcvtnD, 1, 1, 0)
			a.v(faddS, sums+i, sums+i, 1)
			a.p("FMOVD.P F1, 8(R0)")
		}
	})
	for i := range 4 {
		a.p("FMOVD F%d, %d(R2)", sums+i, 8*i)
	}
	a.p("RET")

	// two begins an iteration of two elements, in register 0, and ends it.
	two := func(name string, body func(y int)) {
		a.theNaN()
		a.eachEight(name, 2, func() {
			a.p("FMOVD.P 8(R1), F0")
			a.v(fcvtlS, 0, 0, 0)
			body(1)
			a.v(fcvtnD, 1, 1, 0)
			a.stored(1, 2)
			a.p("FMOVD.P F1, 8(R0)")
		})
		a.p("RET")
	}
	a.function("silu8", "out *float32", "x *float32", "n int")
	a.args("out R0", "x R1")
	a.constants(expConstants)
	two("silu8", func(y int) {
		a.v(fnegD, 5, 0, 0)
		a.exp(5, y, 2, 3)
		a.v(faddD, y, y, c(1))
		a.v(fdivD, y, 0, y)
	})
	a.function("geluTanh8", "out *float32", "x *float32", "n int")
	a.args("out R0", "x R1")
	a.constants(len(armConstants))
	two("geluTanh8", func(y int) {
		a.v(fmulD, 2, 0, 0)
		a.v(fmulD, 2, 0, 2)
		a.v(fmulD, 2, c(gelu3), 2)
		a.v(faddD, 2, 0, 2)
		a.v(fmulD, 2, c(geluRoot), 2)
		a.tanh(2, y, 3)
		a.v(faddD, y, y, c(1))
		a.v(fmulD, 0, c(0.5), 0)
		a.v(fmulD, y, 0, y)
	})
	const bound = 30
	a.function("softCap8", "out *float32", "x *float32", "bound float32", "n int")
	a.args("out R0", "x R1")
	a.constants(len(armConstants))
	a.number("bound", bound)
	a.v(fcvtlS, bound, bound, 0)
	two("softCap8", func(y int) {
		a.v(fdivD, 0, 0, bound)
		a.tanh(0, y, 3)
		a.v(fmulD, y, bound, y)
	})
}

// readFour reads four streams of n bytes, a multiple of 64, stride apart.
func (a *arm) readFour() {
	a.function("readFour", "p *byte", "stride int", "n int", "sum *float32")
	a.args("p R0", "stride R1", "n R4", "sum R6")
	streams := []string{"R0", "R1", "R2", "R3"}
	a.p("ADD R1, R1, R3")
	a.p("ADD R0, R1, R1")
	a.p("ADD R0, R3, R2")
	a.p("ADD R1, R3, R3")
	for r := range 16 {
		a.zero(r)
	}
	a.label("readFour_loop")
	for i, p := range streams {
		a.p("VLD1.P 64(%s), %s", p, list(16, 4, "S4"))
		for r := range 4 {
			a.v(faddS, 4*i+r, 4*i+r, 16+r)
		}
	}
	a.p("SUBS $64, R4, R4")
	a.p("BGT readFour_loop")
	for step := 8; step >= 1; step /= 2 {
		for r := range step {
			a.v(faddS, r, r, r+step)
		}
	}
	a.v(faddpS, 0, 0, 0)
	a.v(faddpS, 0, 0, 0)
	a.p("FMOVS F0, (R6)")
	a.p("RET")
}

// fetch reads 4·n rows of bytes, a byte of each line of memory, those of four streams in turn.
func (a *arm) fetch() {
	a.function("fetch", "p *byte", "near int", "far int", "n int", "bytes int")
	a.args("p R0", "near R4", "far R5", "n R6", "bytes R7")
	streams := []string{"R0", "R1", "R2", "R3"}
	for r := 1; r < 4; r++ {
		a.p("ADD R5, %s, %s", streams[r-1], streams[r])
	}
	a.label("fetch_row")
	a.p("MOVD $0, R8")
	a.label("fetch_line")
	for _, p := range streams {
		a.p("MOVBU (%s)(R8), R9", p)
	}
	a.p("ADD $64, R8")
	a.p("CMP R7, R8")
	a.p("BLT fetch_line")
	for _, p := range streams {
		a.p("ADD R4, %s", p)
	}
	a.p("SUBS $1, R6, R6")
	a.p("BNE fetch_row")
	a.p("RET")
}
