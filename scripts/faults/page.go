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

// renew puts text between the page's two marks and leaves the rest of it alone.
func renew(file, text string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(page), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s: want a line %s and a line %s", file, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return os.WriteFile(file, []byte(before+begin+text+end+after), 0o644)
}
