package shadow

import (
	"fmt"
	"math"
	"strings"

	"llmrun/internal/cpuref/oracle"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

const (
	maxExp32 = 88.72283905206835 // ln of the greatest float32: exp overflows beyond
	maxExp16 = 11.089866488461016
	maxHalf  = 65504
)

// beyondRange explains NaNs and infinities by an intermediate value that leaves the range of float32 or float16: by one that does so for
// all bad elements and for no good one.
func (v *verdict) beyondRange(in reader) []string {
	any := false
	for i, got := range v.got {
		if v.bad(i) {
			any = any || math.IsNaN(got) || math.IsInf(got, 0)
			if !math.IsNaN(got) && !math.IsInf(got, 0) && got != 0 { // exp(2u) that vanishes or overflows may leave a 0 too
				return nil
			}
		}
	}
	if !any {
		return nil
	}
	w := v.WorstIndex
	for _, c := range v.intermediates(in) {
		smallest := math.Inf(1) // among the bad
		greatest := 0.0         // among the good
		for i := range v.got {
			size := math.Abs(c.at(i/v.cols(), i%v.cols()))
			if v.bad(i) {
				smallest = min(smallest, size)
			} else if math.Abs(v.Want[i]) > 0 {
				greatest = max(greatest, size)
			}
		}
		for _, limit := range c.limits {
			if smallest >= limit.at*(1-0.02) && greatest <= limit.at*(1+0.02) {
				value := c.at(w/v.cols(), w%v.cols())
				return []string{fmt.Sprintf(c.text, c.name, value) + ": " + limit.text}
			}
		}
	}
	return nil
}

// limit is where an intermediate value leaves a type's range.
type limit struct {
	at   float64
	text string
}

// intermediate is a value on the way to an element.
type intermediate struct {
	name, text string
	at         func(r, c int) float64
	limits     []limit
}

func (v *verdict) intermediates(in reader) []intermediate {
	tanh := []limit{
		{maxExp32 / 2, "exp(2u) leaves float32 above u = 44.36, and Inf/Inf is NaN. Clamp it to ±15."},
		{maxExp16 / 2, "exp(2u) leaves float16 above u = 5.545, and Inf/Inf is NaN. Clamp it to ±5."},
	}
	exp := []limit{
		{maxExp32, "exp leaves float32 above 88.72, and Inf/Inf is NaN. Subtract the maximum, or take exp of the negative."},
		{maxExp16, "exp leaves float16 above 11.09, and Inf/Inf is NaN. Subtract the maximum, or take exp of the negative."},
	}
	half := []limit{{maxHalf, "float16 ends at 65504."}}
	const argument = "%s's argument is %.4g"
	switch o := v.op.(type) {
	case *engine.Activate:
		gate := in["gate"]
		name := o.F.String()
		switch o.F {
		case engine.GELUTanh:
			return []intermediate{
				{name, argument, func(r, c int) float64 {
					x := gate.at(r, c)
					return math.Sqrt(2/math.Pi) * (x + 0.044715*x*x*x)
				}, tanh},
				{"x³", "%s is %.4g", func(r, c int) float64 { return math.Pow(gate.at(r, c), 3) }, half},
			}
		case engine.Tanh:
			return []intermediate{{name, argument, gate.at, tanh}}
		case engine.SiLU, engine.Sigmoid:
			return []intermediate{{name, argument, gate.at, exp}}
		case engine.GELUSigmoid:
			return []intermediate{{name, argument, func(r, c int) float64 { return 1.702 * gate.at(r, c) }, exp}}
		}
	case *engine.SoftCap:
		x := in["x"]
		return []intermediate{{"tanh", argument, func(r, c int) float64 { return x.at(r, c) / float64(o.Cap) }, tanh}}
	case *engine.Softmax:
		a, x := attending(o.Attention, o.In), in["x"]
		return []intermediate{{"exp", "%s's greatest argument in the row is %.4g", func(r, _ int) float64 {
			top := 0.0
			for j := range a.first + r%a.rows {
				top = max(top, x.at(r, j))
			}
			return top
		}, exp}}
	case *engine.Scores:
		scale := float64(o.Scale)
		return []intermediate{{"q·k", "%s is %.4g before it is scaled", func(r, c int) float64 { return v.Want[r*v.cols()+c] / scale }, half}}
	case *engine.Linear:
		if x := in["x"]; o.Quantized {
			infinite := []limit{{math.MaxFloat32, "there it has to be 1, or 0 times infinity makes a NaN of a row of zeros."}}
			return []intermediate{{"127/max|x|", "%s is %.4g", func(r, _ int) float64 { return 127 / largest(row(x, r, o.W.Cols)) }, infinite}}
		}
	case *engine.RMSNorm:
		head := in["x"].pieces(o.Dim)
		return []intermediate{{"the sum of squares", "%s is %.4g", func(r, c int) float64 {
			head := head(r, c/o.Dim*o.Dim)
			sum, _, _ := oracle.Sum(head, head)
			return sum
		}, half}}
	}
	return nil
}

// factor finds that every element is the right one times a constant, and names the constant.
func (v *verdict) factor() []string {
	best, slack := -1, math.Inf(1) // the element that tells the ratio best
	for i, want := range v.Want {
		if s := v.Allowed[i] / math.Abs(want); v.bad(i) && s < slack {
			best, slack = i, s
		}
	}
	if best < 0 || v.Bad < 3 {
		return nil
	}
	ratio := v.got[best] / v.Want[best]
	if math.IsNaN(ratio) || math.IsInf(ratio, 0) || ratio == 0 || math.Abs(ratio-1) <= 4*slack { // rounding makes a factor near 1, too
		return nil
	}
	all := true
	for i, want := range v.Want {
		allowed := (math.Abs(ratio) + 1) * (2*v.Allowed[i] + slack*math.Abs(want))
		if math.Abs(v.got[i]-ratio*want) <= allowed {
			continue
		}
		if v.bad(i) {
			return nil
		}
		all = false
	}
	which := "every element is"
	if !all {
		which = "every wrong element is"
	}
	line := fmt.Sprintf("%s the right one times %.5g", which, ratio)
	if off := ratio - 1; math.Abs(off) < 5e-4 { // five digits would not show it
		return []string{fmt.Sprintf("%s the right one times 1 %+.3g", which, off)}
	}
	if name := v.constant(ratio, 4*slack+0x1p-20); name != "" && !strings.HasSuffix(line, " "+name) {
		line += " = " + name
	}
	return []string{line}
}

// constant names a ratio by the sizes of the op, if one of the usual mistakes makes it; tolerance is relative.
func (v *verdict) constant(ratio, tolerance float64) string {
	is := func(x float64) bool { return math.Abs(math.Abs(ratio)-x) <= tolerance*x }
	sign := ""
	if ratio < 0 {
		sign = "-"
	}
	for e := -10; e <= 10; e++ {
		if is(math.Exp2(float64(e))) {
			if e >= 0 {
				return fmt.Sprintf("%s%g", sign, math.Exp2(float64(e)))
			}
			return fmt.Sprintf("%s1/%g", sign, math.Exp2(float64(-e)))
		}
	}
	sizes := v.sizes()
	for _, n := range sizes {
		for _, c := range []struct {
			value float64
			text  string
		}{{math.Sqrt(float64(n)), "√%d"}, {1 / math.Sqrt(float64(n)), "1/√%d"}, {float64(n), "%d"}, {1 / float64(n), "1/%d"}} {
			if is(c.value) {
				return sign + fmt.Sprintf(c.text, n)
			}
		}
	}
	for q := 1; q <= 12; q++ {
		for p := 1; p <= 12; p++ {
			if gcd(p, q) == 1 && is(float64(p)/float64(q)) {
				return fmt.Sprintf("%s%d/%d", sign, p, q)
			}
		}
	}
	for _, n := range sizes {
		for _, m := range sizes {
			if n != m && is(math.Sqrt(float64(n)/float64(m))) {
				return fmt.Sprintf("%s√(%d/%d)", sign, n, m)
			}
		}
	}
	return ""
}

// sizes are the widths that an op may have confused, its own and those that models have.
func (v *verdict) sizes() (list []int) {
	switch o := v.op.(type) {
	case *engine.Scores:
		list = []int{o.Dim, o.Heads, o.KVHeads, o.Heads / o.KVHeads, o.Heads * o.Dim}
	case *engine.Context:
		list = []int{o.Dim, o.Heads, o.KVHeads, o.Heads / o.KVHeads}
	case *engine.RMSNorm:
		list = []int{o.Dim, o.Heads, o.Heads * o.Dim}
	case *engine.Linear:
		list = []int{o.W.Cols, o.W.Rows}
	case *engine.Embed:
		list = []int{o.W.Cols}
	default:
		list = []int{v.cols()}
	}
	return append(list, 64, 80, 96, 128, 144, 192, 256)
}

// rounded finds sums or results that were kept in fewer bits than the buffer has.
func (v *verdict) rounded(in reader) []string {
	if v.Operand.Buffer.DType() == num.Float32 {
		half, brain := v.Bad >= 3, v.Bad >= 3
		for i, got := range v.got {
			if v.bad(i) {
				f := float32(got)
				half = half && num.Float16ToFloat32(num.Float32ToFloat16(f)) == f
				brain = brain && num.BFloat16ToFloat32(num.Float32ToBFloat16(f)) == f
			}
		}
		switch {
		case half:
			return []string{"every wrong element is a float16 value: the result, or its sum, was kept in float16"}
		case brain:
			return []string{"every wrong element is a bfloat16 value: the result, or its sum, was kept in bfloat16"}
		}
	}
	return v.halfSums(in)
}

// halfSums finds errors that are what the rounding of a sum's steps to float16 makes: no greater than n roundings of the root of the sum of
// its squared terms, not much smaller, and of both signs.
func (v *verdict) halfSums(in reader) []string {
	size := sumSize(v.op, in)
	if size == nil {
		return nil
	}
	up, down, largest := 0, 0, 0.0
	for i, got := range v.got {
		if !v.bad(i) {
			continue
		}
		steps, n := size(i/v.cols(), i%v.cols())
		e := (got - v.Want[i]) / (0x1p-11 * steps)
		if !(math.Abs(e) <= max(8, math.Sqrt(n))) {
			return nil
		}
		if e > 0 {
			up++
		} else {
			down++
		}
		largest = max(largest, math.Abs(e))
	}
	if up+down < 8 || min(up, down)*5 < up+down || largest < 0.1 {
		return nil
	}
	return []string{fmt.Sprintf("the errors have the size of a float16's rounding, up to %.2g times that of the sum, and both signs: sums are kept in float16", largest)}
}

// sumSize tells of the sum that makes an element the size of its steps, √Σ(aₖbₖ)², and how many they are; nil: the op has no sum.
func sumSize(op engine.Op, in reader) func(r, c int) (size, n float64) {
	of := func(a, b []float64) (float64, float64) {
		_, _, squares := oracle.Sum(a, b)
		return math.Sqrt(squares), float64(len(a))
	}
	switch o := op.(type) {
	case *engine.Linear:
		x, w := in["x"].pieces(o.W.Cols), in["w"].pieces(o.W.Cols)
		return func(r, c int) (float64, float64) { return of(x(r, 0), w(c, 0)) }
	case *engine.Scores:
		a, q, k := attending(o.Attention, o.In), in["q"].pieces(o.Dim), in["k"].pieces(o.Dim)
		return func(r, c int) (float64, float64) {
			h, t := r/a.rows, r%a.rows
			s, n := of(q(t, h*o.Dim), k(c, h/(o.Heads/o.KVHeads)*o.Dim))
			return s * math.Abs(float64(o.Scale)), n
		}
	case *engine.Context:
		a, p, val := attending(o.Attention, o.In), in["p"], in["v"]
		return func(r, c int) (float64, float64) {
			h := c / o.Dim
			weights, seen := make([]float64, a.first+r), make([]float64, a.first+r)
			p.widen(weights, h*a.rows+r, 0)
			for j := range seen {
				seen[j] = val.at(j, h/(o.Heads/o.KVHeads)*o.Dim+c%o.Dim)
			}
			return of(weights, seen)
		}
	}
	return nil
}

// why says how changed bytes differ from those that were written, where that is plain.
func (c *change) why(host []byte) (lines []string) {
	d, s := c.record.buffer.DType(), c.first
	is := func(i int) float64 { return float64(num.Float32At(d, host, i)) }
	was := func(i int) float64 { return float64(num.Float32At(d, c.record.bytes, i)) }
	changed := func(i int) bool { return is(i) != was(i) && !(math.IsNaN(is(i)) && math.IsNaN(was(i))) }
	whole := extent{s.from, min(s.to, len(c.record.bytes)/d.Size())}
	if c.bad == 1 || c.at.to > whole.to { // it is the worst, or goes beyond what one op wrote
		return nil
	}
	if line := c.pattern(whole, is, was, changed); line != "" {
		lines = append(lines, line)
	}
	rows := (whole.to - whole.from) / s.cols
	if at := shape(rows, s.cols, c.bad, func(i int) bool { return changed(whole.from + i) }); at != "" && rows*s.cols == whole.to-whole.from {
		lines = append(lines, "changed: "+at)
	}
	return lines
}

// pattern: all changed elements are 0, or their neighbours, or the right ones times a constant.
func (c *change) pattern(e extent, is, was func(i int) float64, changed func(i int) bool) string {
	every := func(same func(i int) bool) bool {
		n := 0
		for i := e.from; i < e.to; i++ {
			if changed(i) {
				if !same(i) {
					return false
				}
				n++
			}
		}
		return n > 1
	}
	if every(func(i int) bool { return is(i) == 0 }) {
		return "all changed elements are 0"
	}
	if value := is(c.index); every(func(i int) bool { return is(i) == value }) {
		return fmt.Sprintf("all changed elements are %g", value)
	}
	for _, by := range []int{1, -1, c.first.cols, -c.first.cols} {
		if every(func(i int) bool { return i+by < e.from || i+by >= e.to || is(i) == was(i+by) }) {
			return fmt.Sprintf("they are the elements %d %s", max(by, -by), map[bool]string{true: "after", false: "before"}[by > 0])
		}
	}
	cols := c.first.cols
	if rows := (e.to - e.from) / cols; rows > 1 && every(func(i int) bool { return is(i) == was(e.from+(i-e.from)%rows*cols+(i-e.from)/rows) }) {
		return "they are transposed"
	}
	ratio := is(c.index) / was(c.index)
	if !math.IsNaN(ratio) && !math.IsInf(ratio, 0) && every(func(i int) bool { return math.Abs(is(i)-ratio*was(i)) <= 0x1p-9*math.Abs(ratio*was(i)) }) {
		return strings.TrimSpace(fmt.Sprintf("they are the right ones times %.4g", ratio))
	}
	return ""
}
