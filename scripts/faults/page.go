package main

import (
	"fmt"
	"os"
	"strings"
)

// tally counts.
type tally struct{ faults, named, clean, accused int }

func count(all []*run) (t tally) {
	for _, r := range all {
		switch {
		case r.f == nil:
			t.clean++
			if !r.good() {
				t.accused++
			}
		default:
			t.faults++
			if r.good() {
				t.named++
			}
		}
	}
	return t
}

func (t tally) String() string {
	return fmt.Sprintf("score: %d of %d faults named right, %d of %d unbroken runs accused", t.named, t.faults, t.accused, t.clean)
}

// table is Markdown: what each fault is, what was said, and what had to be.
func table(all []*run) string {
	var b strings.Builder
	b.WriteString("| fault | what | said | reason given | wanted | time |\n|---|---|---|---|---|---|\n")
	for _, r := range all {
		what, wanted := "nothing is broken", "no culprit"
		if r.f != nil {
			what, wanted = string(r.f.Kind)+": "+r.f.What, r.f.Want.String()
		}
		said := r.answer()
		if !r.good() {
			said = "**" + said + "**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %.1f s |\n", cell(r.name), cell(what), cell(said), cell(r.said.Reason()), cell(wanted), r.took.Seconds())
	}
	return b.String()
}

func cell(s string) string { return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(s) }

const begin, end = "<!-- score -->\n", "<!-- /score -->\n"

// page is docs/faults.md without its score.
type page struct{ before, after string }

func readPage() (page, error) {
	const file = "docs/faults.md"
	text, err := os.ReadFile(file)
	if err != nil {
		return page{}, err
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return page{}, fmt.Errorf("%s: want a line %s and a line %s", file, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return page{before, after}, nil
}

// write writes the page with a score.
func (p page) write(file, score string) error {
	return os.WriteFile(file, []byte(p.before+begin+score+end+p.after), 0o644)
}
