package report

import (
	"fmt"
	"io"
	"strings"

	"llmrun/internal/parity"
)

// maxAnnotations is how many annotations of a kind GitHub shows for one step of a job.
const maxAnnotations = 10

// Annotations writes GitHub's workflow commands: the verdict, and the prompts that diverge.
// Source: docs.github.com, "Workflow commands for GitHub Actions".
func Annotations(w io.Writer, c *parity.Comparison) error {
	level := map[parity.Verdict]string{parity.Match: "notice", parity.Diverged: "error", parity.Inconclusive: "warning"}[c.Verdict]
	lines := []string{annotation(level, "llmrun compare: "+string(c.Verdict), c.Model.Name+": "+sentence(c)+" "+because(c))}
	for i := range c.Prompts {
		if r := &c.Prompts[i]; r.Diverged() && len(lines) < maxAnnotations {
			lines = append(lines, annotation("error", "llmrun compare: prompt "+r.ID, summary(r)))
		}
	}
	_, err := io.WriteString(w, strings.Join(lines, ""))
	return err
}

var (
	commandData     = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	commandProperty = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

func annotation(level, title, message string) string {
	return fmt.Sprintf("::%s title=%s::%s\n", level, commandProperty.Replace(title), commandData.Replace(message))
}

// Summary writes the comparison as Markdown for a job's summary page.
func Summary(w io.Writer, c *parity.Comparison) error {
	var b strings.Builder
	p := &page{Comparison: c}
	p.Ref, p.Cand = names(c)
	fmt.Fprintf(&b, "## %s %s: llmrun compare %s\n\n", p.Mark(), c.Verdict, markdown(c.Model.Name))
	fmt.Fprintf(&b, "%s against %s. %s\n\n%s\n\n", markdown(backend(c.Reference)), markdown(backend(c.Candidate)), markdown(sentence(c)), markdown(because(c)))
	if f := c.Culprit; f != nil {
		fmt.Fprintf(&b, "**Culprit** on the %s: %s. Worst element: wanted %s, found %s, %s.\n\n", markdown(p.Accused()), markdown(p.Where()),
			number(f.Worst.Want), number(f.Worst.Got), ratio(f.Ratio))
		for _, why := range p.Reasons() {
			fmt.Fprintf(&b, "**Why** %s\n\n", markdown(why))
		}
	}
	if len(c.Substitution) > 0 {
		b.WriteString("| changed | tokens that agree | |\n|---|---|---|\n")
		for _, s := range c.Substitution {
			heals := "does not heal"
			if s.Heals {
				heals = "✓ heals"
			}
			fmt.Fprintf(&b, "| %s | %d of %d | %s |\n", markdown(s.Name), s.Matched, s.Compared, heals)
		}
		b.WriteString("\n")
	}
	if len(c.Prompts) > 0 {
		b.WriteString("| prompt | outcome | |\n|---|---|---|\n")
	}
	for i := range c.Prompts {
		r := &c.Prompts[i]
		label, _ := outcome(r)
		fmt.Fprintf(&b, "| %s | %s | %s |\n", markdown(r.ID), label, markdown(strings.Join(append([]string{summary(r)}, r.Vacuous...), "; ")))
	}
	for _, l := range c.Legs {
		if l.State != parity.LegHolds {
			fmt.Fprintf(&b, "\n%s, %s %s: %s: %s\n", markdown(l.What), l.Side, markdown(l.Backend), l.State, markdown(l.Why))
		}
	}
	_, err := io.WriteString(w, b.String()+"\n")
	return err
}

// markdown makes s one line of plain text.
func markdown(s string) string {
	var b strings.Builder
	for _, r := range visible(s, false) {
		if strings.ContainsRune("\\`*_{}[]()#!|~$@", r) {
			b.WriteByte('\\')
		}
		switch r {
		case '<':
			b.WriteString("&lt;")
		case '>':
			b.WriteString("&gt;")
		case '&':
			b.WriteString("&amp;")
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
