// Package report writes a finished comparison: text for people, JSON for programs. Both say the same word.
package report

import (
	"fmt"
	"io"
	"strings"

	"llmrun/internal/parity"
)

// Options says how text looks.
type Options struct {
	Color bool
	// Decode turns ids into text; nil: ids are shown as numbers.
	Decode func(ids []int) string
}

// Text writes the comparison for people. The last line begins with "verdict".
func Text(w io.Writer, c *parity.Comparison, o Options) error {
	t := &text{Comparison: c, Options: o, id: 5}
	for i := range c.Prompts {
		t.id = max(t.id, len([]rune(c.Prompts[i].ID)))
	}
	t.header()
	t.gates()
	t.tokens()
	t.births()
	t.shadow()
	t.substitution()
	t.legs()
	t.why()
	t.verdict()
	_, err := io.WriteString(w, t.String())
	return err
}

type text struct {
	strings.Builder
	*parity.Comparison
	Options
	id int // width of prompt ids
}

// color wraps s in an ANSI colour. The words say all without it.
func (t *text) color(code, s string) string {
	if !t.Color {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

const (
	green, red, yellow = "32", "31", "33"
	labelWidth         = 13
	gap                = "   "
)

func (t *text) line(label string, parts ...string) {
	s := fmt.Sprintf("%-*s %s", labelWidth, label, strings.Join(parts, gap))
	t.WriteString(strings.TrimRight(s, " ") + "\n")
}

func (t *text) header() {
	n := fmt.Sprintf("%d %s × %d steps", len(t.Prompts), plural(len(t.Prompts), "prompt"), t.MaxTokens)
	parts := []string{"compare " + t.Model.Name, "reference " + backend(t.Reference), "candidate " + backend(t.Candidate), n}
	if t.Fault != "" {
		parts = append(parts, "fault "+t.Fault)
	}
	t.WriteString(strings.Join(parts, gap) + "\n")
}

func backend(b parity.Backend) string {
	s := b.Backend + " " + b.ComputeType
	if b.Device != "" {
		s += " (" + b.Device + ")"
	}
	return s
}

func plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

// gates shows the gates, and the prompts that are left out. Where none is left the verdict says why; where there was none, no gate was looked at.
func (t *text) gates() {
	if len(t.Prompts) == 0 {
		return
	}
	var marks []string
	for _, g := range t.Gates {
		mark := t.color(green, "✓")
		if !g.OK {
			mark = t.color(red, "✗")
		}
		marks = append(marks, g.Name+" "+mark)
	}
	t.line("gates", marks...)
	if t.Kept == 0 && t.Verdict == parity.Inconclusive {
		return
	}
	label := "left out"
	for i := range t.Prompts {
		if r := &t.Prompts[i]; len(r.Vacuous) > 0 && !r.Diverged() {
			t.line(label, t.name(r), strings.Join(r.Vacuous, "; "))
			label = ""
		}
	}
}

func (t *text) name(r *parity.Result) string { return fmt.Sprintf("%-*s", t.id, r.ID) }

// tokens shows what the sides said where they differ, and numbers where they do not.
func (t *text) tokens() {
	label := "tokens"
	for i := range t.Prompts {
		r := &t.Prompts[i]
		if r.Diverged() {
			t.strips(label, r)
		} else {
			t.line(label, t.name(r), t.summary(r))
		}
		label = ""
	}
}

func (t *text) summary(r *parity.Result) string {
	low, high, worst := -1, -1, 0.0 // indices of steps
	for i, s := range r.Steps {
		if s.Class == parity.ClassNonFinite {
			continue
		}
		if low < 0 || s.Margin < r.Steps[low].Margin {
			low = i
		}
		if high < 0 || !(s.MaxAbs <= r.Steps[high].MaxAbs) {
			high = i
		}
		worst = max(worst, float64(s.KL))
	}
	parts := []string{fmt.Sprintf("%d/%d", r.Matched, r.Compared)}
	if high >= 0 {
		parts = append(parts,
			fmt.Sprintf("margins from %.2g", float64(r.Steps[low].Margin)),
			fmt.Sprintf("max|Δlogit| %.1e (rounding explains %.1e)", float64(r.Steps[high].MaxAbs), float64(r.Allowed)),
			fmt.Sprintf("KL to %.1e", worst))
	}
	return strings.Join(append(parts, ties(r)...), gap)
}

// ties names the steps whose tokens differ within rounding.
func ties(r *parity.Result) (list []string) {
	for _, s := range r.Steps {
		switch s.Class {
		case parity.ClassNearTie:
			list = append(list, fmt.Sprintf("near tie: step %d, gap %.2g", s.Step, float64(s.Gap)))
		case parity.ClassExactTie:
			list = append(list, fmt.Sprintf("exact tie: step %d", s.Step))
		}
	}
	return list
}

const (
	stripBefore = 8  // tokens shown before the first difference
	stripAfter  = 12 // and after it
)

// strips shows both sides' words around the first difference, one below the other.
func (t *text) strips(label string, r *parity.Result) {
	reference, candidate := t.Reference.Backend, t.Candidate.Backend
	if reference == candidate {
		reference, candidate = "reference", "candidate"
	}
	width := max(len(reference), len(candidate))
	from := 0
	for from < min(len(r.ReferenceIDs), len(r.CandidateIDs)) && r.ReferenceIDs[from] == r.CandidateIDs[from] {
		from++
	}
	from = max(0, from-stripBefore)
	what := ""
	switch n := stopped(r, "candidate"); {
	case r.FirstFlip != nil:
		what = gap + t.color(red, fmt.Sprintf("first flip: step %d", *r.FirstFlip))
	case n != nil:
		what = gap + t.color(red, fmt.Sprintf("stopped at step %d", n.Step))
	}
	t.line(label, t.name(r), fmt.Sprintf("%-*s  %s", width, reference, t.strip(r.ReferenceIDs, from, stopped(r, "reference"))))
	t.line("", t.name(&parity.Result{}), fmt.Sprintf("%-*s  %s%s", width, candidate, t.strip(r.CandidateIDs, from, stopped(r, "candidate")), what))
}

// stopped is the last time that a side stopped: for the candidate, the time on its own tokens, if there is one.
func stopped(r *parity.Result, side string) (last *parity.NonFinite) {
	for i := range r.NonFinite {
		if r.NonFinite[i].Side == side {
			last = &r.NonFinite[i]
		}
	}
	return last
}

func (t *text) strip(ids []int, from int, end *parity.NonFinite) string {
	to := min(len(ids), from+stripBefore+stripAfter)
	s := t.words(ids[min(from, to):to])
	if from > 0 {
		s = "…" + s
	}
	if to < len(ids) {
		return s + " …"
	}
	if end != nil {
		s += fmt.Sprintf(" ✗ %d of %d logits are NaN or infinite", end.Count, end.Of)
	}
	return strings.TrimLeft(s, " ")
}

// words shows ids as text on one line, with nothing in it that a terminal would obey.
func (t *text) words(ids []int) string {
	if t.Decode == nil {
		return strings.Trim(fmt.Sprint(ids), "[]")
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return '⏎'
		case r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0:
			return '�'
		}
		return r
	}, t.Decode(ids))
}

// births names the ops that made the first NaN or infinity.
func (t *text) births() {
	for i := range t.Prompts {
		r := &t.Prompts[i]
		for _, n := range r.NonFinite {
			t.line(birth(n, t.name(r)))
		}
	}
}

func birth(n parity.NonFinite, prompt string) (label, line string) {
	b := n.Birth
	if b == nil || b.Value == "" {
		return "not finite", prompt + gap + n.String() + "; it was not so when the text was run again"
	}
	var inputs []string
	for _, in := range b.Inputs {
		inputs = append(inputs, fmt.Sprintf("%s %.5g", in.Name, float64(in.Value)))
	}
	line = fmt.Sprintf("%s%s%s %s: %d of %d elements, [%d]", prompt, gap, n.Side, b.Where(), b.Count, b.Of, b.First)
	if len(inputs) > 0 {
		line += " from " + strings.Join(inputs, ", ")
	}
	return "first " + strings.TrimPrefix(b.Value, "-"), line
}

// verdict is the last line.
func (t *text) verdict() {
	code := map[parity.Verdict]string{parity.Match: green, parity.Diverged: red, parity.Inconclusive: yellow}[t.Verdict]
	parts := []string{t.color(code, string(t.Verdict))}
	switch {
	case t.Verdict == parity.Match:
		parts = append(parts, t.matchNumbers()...)
	case t.Culprit != nil:
		parts = append(parts, "culprit: "+t.Culprit.Where())
	default:
		parts = append(parts, t.Reason)
	}
	t.line("verdict", parts...)
}

// matchNumbers sums up the prompts that decide.
func (t *text) matchNumbers() []string {
	matched, compared, nearTies := 0, 0, []string{}
	worst, where := 0.0, ""
	for i := range t.Prompts {
		r := &t.Prompts[i]
		if len(r.Vacuous) > 0 {
			continue
		}
		matched += r.Matched
		compared += r.Compared
		for _, s := range r.Steps {
			if share := float64(s.MaxAbs) / float64(r.Allowed); share >= worst {
				worst, where = share, fmt.Sprintf("%s step %d", r.ID, s.Step)
			}
		}
		for _, tie := range ties(r) {
			nearTies = append(nearTies, r.ID+" "+tie)
		}
	}
	numbers := []string{
		fmt.Sprintf("%d/%d tokens", matched, compared),
		fmt.Sprintf("worst max|Δlogit| %.2g of what rounding explains (%s)", worst, where),
	}
	if s := t.sum("candidate"); s.Worst != nil {
		numbers[1] = "worst error " + worstShare(s.Worst)
	}
	return append(numbers, nearTies...)
}
