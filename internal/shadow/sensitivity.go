package shadow

import (
	"math"
	"slices"

	"llmrun/internal/cpuref/oracle"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// Sensitivity is how small an error in a single element is seen, at one kind of op.
//
// Errors are counted in units of an element's own rounding: the last bit, in the type that the result is stored in, of the result or of the
// largest value that is rounded on the way to it, whichever is larger. See size.
type Sensitivity struct {
	Op       string
	Elements int     // that were tried
	Clean    float64 // the worst error over what is allowed, before anything is injected
	// Median, Most and All are the units that are seen at half of the elements, at 99.9 % and at every one: 1, 2, 3, 4, 6, 8, 12, 16 and so on.
	Median, Most, All float64
}

// Meter measures the sensitivity of every op that a session runs, by errors of growing size in every element of what was written.
type Meter struct {
	kinds map[string]*tally
	order []string
	err   error
}

// tally counts the elements of a kind of op by the magnitude that is seen there.
type tally struct {
	clean float64
	seen  [magnitudes + 1]int
}

const magnitudes = 60

// magnitude gives 1, 2, 3, 4, 6, 8, 12, 16 …
func magnitude(i int) float64 {
	if i == 0 {
		return 1
	}
	return math.Exp2(float64((i+1)/2)) * (1 + 0.5*float64((i+1)%2))
}

// NewMeter gives a meter. Its Tap is a session's.
func NewMeter() *Meter { return &Meter{kinds: map[string]*tally{}} }

// Tap measures op, which has just run.
func (m *Meter) Tap(op engine.Op) {
	if m.err == nil {
		m.err = m.measure(op)
	}
}

// Table lists what was measured, in the order in which the ops were first seen, or the first error.
func (m *Meter) Table() ([]Sensitivity, error) {
	var list []Sensitivity
	for _, kind := range m.order {
		t := m.kinds[kind]
		s := Sensitivity{Op: kind, Clean: t.clean}
		for _, n := range t.seen {
			s.Elements += n
		}
		at := func(share float64) float64 {
			n := 0
			for e, seen := range t.seen {
				if n += seen; float64(n) >= share*float64(s.Elements) {
					return magnitude(e)
				}
			}
			return math.Inf(1)
		}
		s.Median, s.Most, s.All = at(0.5), at(0.999), at(1)
		list = append(list, s)
	}
	return list, m.err
}

func (m *Meter) measure(op engine.Op) error {
	judged, err := oracle.Judge(op)
	if err != nil {
		return err
	}
	in, err := read(op)
	if err != nil {
		return err
	}
	name := kind(op)
	t := m.kinds[name]
	if t == nil {
		t = &tally{}
		m.kinds[name] = t
		m.order = append(m.order, name)
	}
	for _, j := range judged {
		got, err := j.Got()
		if err != nil {
			return err
		}
		t.clean = max(t.clean, j.Compare(got).WorstRatio)
		d, sum := j.Operand.Buffer.DType(), sumSize(op, in)
		for i, v := range got {
			if math.IsNaN(j.Want[i]) || math.IsInf(j.Want[i], 0) || math.IsInf(j.Allowed[i], 0) {
				continue
			}
			unit := lastBit(d, max(math.Abs(j.Want[i]), size(op, in, sum, i/j.Operand.Cols, i%j.Operand.Cols)))
			seen := func(units float64) bool {
				return j.Strays(i, d.Round(v+units*unit)) > 1 && j.Strays(i, d.Round(v-units*unit)) > 1
			}
			e := 0
			for e < magnitudes && !seen(magnitude(e)) {
				e++
			}
			t.seen[e]++
		}
	}
	return nil
}

// lastBit is the distance of the values of type d around v.
func lastBit(d num.DType, v float64) float64 {
	p := d.Precision()
	if v == 0 {
		return p.Least
	}
	_, e := math.Frexp(v) // v = f·2^e, f in [½, 1)
	return max(math.Ldexp(1, e-p.Digits), p.Least)
}

// size is the largest value that is rounded on the way to element (r, c), where that may be much larger than the element itself: a sum's
// terms cancel, and its partial sums are as large as the root of the sum of their squares. sum is op's sumSize.
func size(op engine.Op, in reader, sum func(r, c int) (size, n float64), r, c int) float64 {
	switch o := op.(type) {
	case *engine.Linear:
		s := 0.0
		if !o.Quantized { // that sum is exact
			s, _ = sum(r, c)
		}
		if bias := in["bias"]; bias.exists() {
			s = max(s, math.Abs(bias.at(0, c)))
		}
		return s
	case *engine.Scores:
		if a := attending(o.Attention, o.In); c >= a.first+r%a.rows { // masked: exactly 0
			return 0
		}
		s, _ := sum(r, c)
		return s
	case *engine.Context:
		s, _ := sum(r, c)
		return s
	case *engine.RoPE:
		if c%o.Dim >= o.RotaryDim {
			return 0
		}
		first, second, i := pair(o, c)
		x, table := in["x"], in["table"]
		cos, sin := table.at(r, i), table.at(r, o.RotaryDim/2+i)
		if c == first {
			return max(math.Abs(x.at(r, first)*cos), math.Abs(x.at(r, second)*sin))
		}
		return max(math.Abs(x.at(r, second)*cos), math.Abs(x.at(r, first)*sin))
	case *engine.Activate:
		if !slices.Contains([]engine.Function{engine.GELU, engine.GELUTanh}, o.F) {
			return 0
		}
		// ½x·(1 + tanh): the sum cancels where x is negative.
		s := math.Abs(in["gate"].at(r, c)) / 2
		if up := in["up"]; up.exists() {
			s *= math.Abs(up.at(r, c))
		}
		return s
	case *engine.LayerNorm:
		x, w, bias, n := in["x"], in["w"], in["bias"], float64(o.Dim)
		mean, variance, size := 0.0, 0.0, 0.0
		for i := range o.Dim {
			mean += x.at(r, i) / n
			size += math.Abs(x.at(r, i)) / n
		}
		for i := range o.Dim {
			variance += (x.at(r, i) - mean) * (x.at(r, i) - mean) / n
		}
		scale := math.Abs(w.at(0, c)) / math.Sqrt(variance+float64(o.Eps))
		return max(max(math.Abs(x.at(r, c)), size)*scale, math.Abs(bias.at(0, c)))
	case *engine.Softmax: // exp passes the rounding of its argument on
		a, x := attending(o.Attention, o.In), in["x"]
		n := a.first + r%a.rows
		if c >= n {
			return 0
		}
		top, sum := math.Inf(-1), 0.0
		for j := range n {
			top = max(top, x.at(r, j))
		}
		for j := range n {
			sum += math.Exp(x.at(r, j) - top)
		}
		return math.Exp(x.at(r, c)-top) / sum * (top - x.at(r, c))
	}
	return 0
}
