package report

import (
	"fmt"
	"math"
	"strings"

	"llmrun/internal/parity"
)

// chart is max|Δlogit| of each step, beside what rounding explains, on a logarithmic axis. All places are in percent.
type chart struct {
	Points  []point
	Grid    []gridLine
	Allowed float64 // from the top; negative: rounding explains nothing, so there is no line
	Limit   string  // the number at that line
	Ticks   []gridLine
	Label   string // the chart in a sentence
}

type point struct {
	X, Y   float64
	Noise  float64 // what rounding did to the reference; negative: none
	Class  string  // "in", "out", or "nan", which sits at the top
	Title  string
	FromX  float64 // of the point before it, to draw the line between
	FromY  float64
	Joined bool
}

type gridLine struct {
	At   float64
	Text string
}

// newChart is nil if no step was measured.
func newChart(r *parity.Result) *chart {
	low, high := math.Inf(1), math.Inf(-1)
	for _, s := range r.Steps {
		for _, v := range []float64{float64(s.MaxAbs), float64(s.Noise), float64(r.Allowed)} {
			if v > 0 && !math.IsInf(v, 1) {
				low, high = min(low, v), max(high, v)
			}
		}
	}
	if math.IsInf(low, 1) {
		return nil
	}
	// Whole decades, with room above for NaN.
	low, high = math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Floor(math.Log10(high))+1)
	y := func(v float64) float64 { return 10 + 0.9*(100-percent(v, low, high)) }
	c := &chart{Allowed: -1}
	if r.Allowed > 0 {
		c.Allowed, c.Limit = y(float64(r.Allowed)), fmt.Sprintf("%.1e", float64(r.Allowed))
	}
	decades := int(math.Round(math.Log10(high / low)))
	for i := 0; i <= decades; i += max(1, decades/5) {
		v := low * math.Pow(10, float64(i))
		c.Grid = append(c.Grid, gridLine{y(v), power(int(math.Round(math.Log10(v))))})
	}
	beyond := 0
	every := max(1, (len(r.Steps)+11)/12)
	for i, s := range r.Steps {
		x := 9 + 89*(float64(i)+0.5)/float64(len(r.Steps))
		if i%every == 0 {
			c.Ticks = append(c.Ticks, gridLine{x, fmt.Sprint(s.Step)})
		}
		if s.Class == parity.ClassUnmeasured {
			continue
		}
		p := point{X: x, Noise: -1, Class: "in", Title: fmt.Sprintf("step %d: max|Δlogit| %s, rounding explains %s", s.Step, number(s.MaxAbs), number(r.Allowed))}
		v := float64(s.MaxAbs)
		switch {
		case math.IsNaN(v) || math.IsInf(v, 0):
			p.Class, p.Y = "nan", 0
		case v <= 0: // the same bits: below every decade
			p.Y = 100
		default:
			p.Y = y(v)
		}
		if p.Class == "in" && !(s.MaxAbs <= r.Allowed) {
			p.Class = "out"
		}
		if p.Class != "in" {
			beyond++
		}
		if n := float64(s.Noise); n > 0 && !math.IsInf(n, 1) {
			p.Noise = y(n)
		}
		if n := len(c.Points); n > 0 && p.Class != "nan" && c.Points[n-1].Class != "nan" {
			p.Joined, p.FromX, p.FromY = true, c.Points[n-1].X, c.Points[n-1].Y
		}
		c.Points = append(c.Points, p)
	}
	c.Label = fmt.Sprintf("The largest difference of any logit at each of %d steps: %d beyond what rounding explains, %s.",
		len(c.Points), beyond, number(r.Allowed))
	return c
}

// power writes 10 to the n.
func power(n int) string {
	return "10" + strings.Map(func(r rune) rune {
		if r == '-' {
			return '⁻'
		}
		return []rune("⁰¹²³⁴⁵⁶⁷⁸⁹")[r-'0']
	}, fmt.Sprint(n))
}
