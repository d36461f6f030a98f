package report

import (
	"fmt"
	"math"
	"strings"

	"llmrun/internal/parity"
	"llmrun/internal/shadow"
)

// shadow shows where the error was born, and what was judged.
func (t *text) shadow() {
	label := "shadow"
	if c := t.Culprit; c != nil {
		parts := []string{fmt.Sprintf("step %d", c.Step), c.Site}
		if c.Layer >= 0 {
			parts = []string{parts[0], fmt.Sprintf("layer %d", c.Layer), c.Site}
		}
		if c.Op != "" && c.Op != c.Site {
			parts = append(parts, c.Op)
		}
		if c.Side == "reference" {
			parts = append([]string{t.color(red, "the reference")}, parts...)
		}
		t.line(label, append(parts, birthOf(&c.Finding), worstOf(&c.Finding))...)
		label = ""
	}
	for i := range t.Shadow {
		if s := &t.Shadow[i]; len(t.Shadow) <= 2 { // with --shadow all, only their sum
			t.line(label, t.name(&parity.Result{ID: s.Prompt}), t.side(s.Side)+": "+judged(s))
			label = ""
		}
	}
	if len(t.Shadow) > 2 {
		for _, which := range []string{"candidate", "reference"} {
			t.line(label, t.side(which)+": "+judged(t.sum(which)))
			label = ""
		}
	}
}

// birthOf says how much of an operand is wrong.
func birthOf(f *shadow.Finding) string {
	switch {
	case f.Between != nil:
		return changed(f)
	case f.NonFinite == f.Bad && f.Bad > 0:
		return fmt.Sprintf("%d NaN or Inf of %d at birth", f.NonFinite, f.Elements)
	case f.NonFinite > 0:
		return fmt.Sprintf("%d of %d beyond their bounds, %d of them NaN or Inf", f.Bad, f.Elements, f.NonFinite)
	}
	return fmt.Sprintf("%d of %d beyond their bounds", f.Bad, f.Elements)
}

// worstOf is the worst element, from what it was made of to what it should be.
func worstOf(f *shadow.Finding) string {
	w := &f.Worst
	s := fmt.Sprintf("worst [%d %d]:", w.Row, w.Col)
	for _, in := range w.Inputs {
		s += fmt.Sprintf(" %s %s,", in.Name, number(in.Value))
	}
	if !math.IsNaN(float64(w.Want)) || !math.IsNaN(float64(w.Got)) {
		s += fmt.Sprintf(" want %s, got %s", number(w.Want), number(w.Got))
	}
	if r := float64(f.Ratio); !math.IsInf(r, 0) && !math.IsNaN(r) {
		s += fmt.Sprintf(", %.3g × its bound", r)
	}
	return strings.TrimSuffix(s, ":")
}

// judged sums up what a side's watch saw.
func judged(s *parity.Shadow) string {
	line := fmt.Sprintf("%d ops judged", s.Ops)
	if len(s.Steps) > 0 {
		line += " at " + stepList(s.Steps)
	}
	switch n := len(s.Findings); {
	case n == 0:
		line += ", none beyond its bound"
	case n == 1:
		line += ", 1 wrong by itself; all others only hand on what they are given"
	default:
		line += fmt.Sprintf(", %d wrong by themselves; all others only hand on what they are given", n)
	}
	if s.Worst != nil && len(s.Findings) == 0 {
		line += "; worst error " + worstShare(s.Worst)
	}
	return line
}

// stepList is "step 2", "steps 0, 1, 2" or "steps 0–23".
func stepList(steps []int) string {
	n := len(steps)
	switch {
	case n == 1:
		return fmt.Sprintf("step %d", steps[0])
	case n > 3 && steps[n-1]-steps[0] == n-1:
		return fmt.Sprintf("steps %d–%d", steps[0], steps[n-1])
	}
	return "steps " + strings.Join(strings.Fields(strings.Trim(fmt.Sprint(steps), "[]")), ", ")
}

// worstShare is "0.62 of its bound (layer 25 lm_head)".
func worstShare(c *shadow.Cell) string {
	where := c.Site
	if c.Layer >= 0 {
		where = fmt.Sprintf("layer %d %s", c.Layer, c.Site)
	}
	return fmt.Sprintf("%.2g of its bound (%s)", float64(c.Ratio), where)
}

// sum adds up what the watches of one side saw.
func (t *text) sum(which string) *parity.Shadow {
	all := &parity.Shadow{Side: which}
	for i := range t.Shadow {
		s := &t.Shadow[i]
		if s.Side != which {
			continue
		}
		all.Ops += s.Ops
		all.Findings = append(all.Findings, s.Findings...)
		if s.Worst != nil && (all.Worst == nil || !(s.Worst.Ratio <= all.Worst.Ratio)) {
			all.Worst = s.Worst
		}
	}
	return all
}

// side is what a side is called.
func (t *text) side(which string) string {
	reference, candidate := names(t.Comparison)
	if which == "reference" {
		return reference
	}
	return candidate
}

const rowWidth = 110 // of the columns after the label; what does not fit begins a new line

// substitution is the table of what heals and what does not.
func (t *text) substitution() {
	label := "substitution"
	var notes []string // of what does not heal
	rows := map[string][]string{}
	for _, s := range t.Substitution {
		cell := fmt.Sprintf("%s  %d/%d", s.Name, s.Matched, s.Compared)
		if !s.Heals {
			if rows[s.Note] == nil {
				notes = append(notes, s.Note)
			}
			rows[s.Note] = append(rows[s.Note], cell)
			continue
		}
		cell += " " + t.color(green, "✓") + " heals"
		if s.Note != "" {
			cell += " (" + s.Note + ")"
		}
		t.line(label, cell)
		label = ""
	}
	for _, note := range notes {
		t.wrap(label, rows[note])
		if label = ""; note != "" {
			t.line(label, "✗ "+note)
		}
	}
	if t.Culprit != nil && len(t.Substitution) > 0 && !t.Culprit.Confirmed {
		t.line(label, t.color(yellow, "not confirmed")+": "+unconfirmed(t.Culprit))
	}
}

// wrap fills lines with cells.
func (t *text) wrap(label string, cells []string) {
	for len(cells) > 0 {
		n, width := 0, 0
		for n < len(cells) && (n == 0 || width+len([]rune(cells[n])) <= rowWidth) {
			width += len([]rune(cells[n])) + len(gap)
			n++
		}
		t.line(label, cells[:n]...)
		label, cells = "", cells[n:]
	}
}

// unconfirmed says what speaks against a culprit.
func unconfirmed(c *parity.Culprit) string {
	if len(c.Heals) == 0 {
		return "nothing that was moved heals"
	}
	return "what heals also moves innocent ops: " + strings.Join(c.Heals, ", ")
}

// legs shows each backend against itself, and where it breaks.
func (t *text) legs() {
	var cells, whys []string
	for i := 0; i < len(t.Legs); {
		cell := t.Legs[i].What + ":"
		for what := t.Legs[i].What; i < len(t.Legs) && t.Legs[i].What == what; i++ {
			l := &t.Legs[i]
			mark := t.color(green, "✓")
			switch l.State {
			case parity.LegBroken:
				mark = t.color(red, "✗")
			case parity.LegUnmeasured:
				mark = string(l.State)
			case parity.LegHolds:
				if !l.Bits {
					mark += " (within rounding)"
				}
			}
			cell += " " + t.side(l.Side) + " " + mark
			if l.Why != "" {
				whys = append(whys, fmt.Sprintf("%s, %s: %s", l.Name, t.side(l.Side), l.Why))
			}
		}
		cells = append(cells, cell)
	}
	t.wrap("legs", cells)
	for _, why := range whys {
		t.line("", why)
	}
}

// why shows what the numbers prove.
func (t *text) why() {
	if t.Culprit == nil {
		if t.Why != "" {
			t.line("why", t.Why)
		}
		return
	}
	label := "why"
	for _, why := range t.Culprit.Why {
		t.line(label, why)
		label = ""
	}
	if len(t.Culprit.Why) == 0 {
		t.line(label, "the numbers prove no reason")
	}
	if n := t.Culprit.Others; n > 0 {
		more := "1 more op is beyond its bound by itself"
		if n > 1 {
			more = fmt.Sprintf("%d more ops are beyond their bounds by themselves", n)
		}
		t.line("", more)
	}
}
