package main

// oracleARM64 writes the loops of package oracle for NEON: float64, two lanes a register. See oracleAMD64.
func oracleARM64(a *arm) {
	for _, t := range types {
		name := "widen" + t.name
		a.function(name, "wide *float64", "data *byte", "n int")
		a.p("FMOVS $1.0, F%d", widenedScale)
		a.widen(name, t)
	}
	a.function("widenScaled", "wide *float64", "data *byte", "scale float32", "n int")
	a.number("scale", widenedScale)
	a.widen("widenScaled", elem{"I8", 1})
	a.absoluteLanes()
	a.dotLanes()
}

// widenedScale is the register of the scale, for int8.
const widenedScale = 24

// widen puts n elements into wide.
func (a *arm) widen(name string, t elem) {
	const single, wide = 0, 2
	a.args("wide R0", "data R1")
	a.eachEight(name, 8, func() {
		a.load8(t, "R1", single, widenedScale)
		for h := range 2 {
			a.v(fcvtlS, wide+2*h, single+h, 0)
			a.v(fcvtl2S, wide+2*h+1, single+h, 0)
		}
		a.p("VST1.P %s, 64(R0)", list(wide, 4, "D2"))
	})
	a.p("RET")
}

// absoluteLanes adds magnitudes in eight lanes.
func (a *arm) absoluteLanes() {
	const x, sum = 0, 16
	a.function("absoluteLanes", "a *float64", "n int", "lanes *[8]float64")
	a.args("a R0", "lanes R2")
	a.p("VLD1 (R2), %s", list(sum, 4, "D2"))
	a.eachEight("absoluteLanes", 8, func() {
		a.p("VLD1.P 64(R0), %s", list(x, 4, "D2"))
		for h := range 4 {
			a.v(fabsD, x+h, x+h, 0)
			a.v(faddD, sum+h, sum+h, x+h)
		}
	})
	a.p("VST1 %s, (R2)", list(sum, 4, "D2"))
	a.p("RET")
}

// dotLanes adds products, their magnitudes and their squares, each in eight lanes, and the squares of the partial sums at the ends of blocks.
func (a *arm) dotLanes() {
	const p, q, sum, size, squares, path = 0, 4, 16, 20, 24, 28
	a.function("dotLanes", "a *float64", "b *float64", "n int", "v *[8]float64", "size *[8]float64", "squares *[8]float64", "path *float64")
	a.args("a R0", "b R1", "v R2", "size R3", "squares R4", "path R5")
	sums := []int{sum, size, squares}
	for i, first := range sums {
		a.p("VLD1 (R%d), %s", i+2, list(first, 4, "D2"))
	}
	a.p("FMOVD (R5), F%d", path)
	a.eachEight("dotLanes", block, func() {
		for range block / 8 {
			a.p("VLD1.P 64(R0), %s", list(p, 4, "D2"))
			a.p("VLD1.P 64(R1), %s", list(q, 4, "D2"))
			for h := range 4 {
				a.v(fmulD, p+h, p+h, q+h)
				a.v(faddD, sum+h, sum+h, p+h)
				a.v(fabsD, q+h, p+h, 0)
				a.v(faddD, size+h, size+h, q+h)
				a.v(fmulD, p+h, p+h, p+h)
				a.v(faddD, squares+h, squares+h, p+h)
			}
		}
		a.v(faddD, p, sum, sum+2)
		a.v(faddD, q, sum+1, sum+3)
		a.v(faddD, p, p, q)
		a.v(faddpD, p, p, 0)
		a.p("FMULD F%d, F%d, F%d", p, p, p)
		a.p("FADDD F%d, F%d, F%d", p, path, path)
	})
	for i, first := range sums {
		a.p("VST1 %s, (R%d)", list(first, 4, "D2"), i+2)
	}
	a.p("FMOVD F%d, (R5)", path)
	a.p("RET")
}
