package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"llmrun/internal/parity"
)

// The elements of a JUnit file, as far as Jenkins, GitLab and their kin agree on them.
type (
	junitSuites struct {
		XMLName xml.Name     `xml:"testsuites"`
		Name    string       `xml:"name,attr"`
		Suites  []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name       string          `xml:"name,attr"`
		Tests      int             `xml:"tests,attr"`
		Failures   int             `xml:"failures,attr"`
		Errors     int             `xml:"errors,attr"`
		Skipped    int             `xml:"skipped,attr"`
		Properties []junitProperty `xml:"properties>property"`
		Cases      []junitCase     `xml:"testcase"`
	}
	junitProperty struct {
		Name  string `xml:"name,attr"`
		Value string `xml:"value,attr"`
	}
	junitCase struct {
		Class   string       `xml:"classname,attr"`
		Name    string       `xml:"name,attr"`
		Failure *junitResult `xml:"failure"`
		Error   *junitResult `xml:"error"`
		Skipped *junitResult `xml:"skipped"`
	}
	junitResult struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr,omitempty"`
		Text    string `xml:",chardata"`
	}
)

// JUnit writes the comparison as one test suite: a test for the verdict, and one for each prompt, gate and leg and for shadow
// execution. A failure is a divergence, so only DIVERGED has one; where the run could not tell, tests are errors, or skipped
// if --allow-vacuous lets it pass.
func JUnit(w io.Writer, c *parity.Comparison) error {
	s := &suite{Comparison: c}
	s.Name = "llmrun compare " + c.Model.Name
	for _, p := range [][2]string{{"verdict", string(c.Verdict)}, {"exit", fmt.Sprint(c.Exit)}, {"reference", backend(c.Reference)},
		{"candidate", backend(c.Candidate)}, {"fault", c.Fault}} {
		if p[1] != "" {
			s.Properties = append(s.Properties, junitProperty{p[0], p[1]})
		}
	}
	s.verdict()
	for i := range c.Prompts {
		s.prompt(&c.Prompts[i])
	}
	for _, g := range c.Gates {
		if g.OK {
			s.pass("gate", g.Name)
		} else {
			s.undecided("gate", g.Name, g.Why)
		}
	}
	for i := range c.Legs {
		s.leg(&c.Legs[i])
	}
	s.shadow()
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(junitSuites{Name: "llmrun", Suites: []junitSuite{s.junitSuite}}); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

type suite struct {
	junitSuite
	*parity.Comparison
}

func (s *suite) add(class, name string) *junitCase {
	s.Tests++
	s.Cases = append(s.Cases, junitCase{Class: "llmrun." + class, Name: name})
	return &s.Cases[len(s.Cases)-1]
}

func (s *suite) pass(class, name string) { s.add(class, name) }

func (s *suite) fail(class, name, message, text string) {
	s.Failures++
	s.add(class, name).Failure = &junitResult{message, string(parity.Diverged), text}
}

func (s *suite) skip(class, name, why string) {
	s.Skipped++
	s.add(class, name).Skipped = &junitResult{Message: why}
}

// undecided is for what keeps a run from telling.
func (s *suite) undecided(class, name, why string) {
	if s.Verdict == parity.Diverged || s.Exit == parity.ExitMatch { // it told, or may pass
		s.skip(class, name, why)
		return
	}
	s.Errors++
	s.add(class, name).Error = &junitResult{Message: why, Type: string(parity.Inconclusive)}
}

func (s *suite) verdict() {
	switch s.Verdict {
	case parity.Match:
		s.pass("verdict", string(parity.Match))
	case parity.Diverged:
		s.fail("verdict", string(parity.Diverged), because(s.Comparison), sentence(s.Comparison))
	default:
		s.undecided("verdict", string(parity.Inconclusive), s.Reason)
	}
}

func (s *suite) prompt(r *parity.Result) {
	switch label, tone := outcome(r); tone {
	case "match":
		s.pass("prompt", r.ID)
	case "diverged":
		s.fail("prompt", r.ID, label+": "+summary(r), fmt.Sprintf("reference_ids %s\ncandidate_ids %s", commas(r.ReferenceIDs), commas(r.CandidateIDs)))
	default:
		if len(r.Vacuous) > 0 {
			s.skip("prompt", r.ID, label+": "+strings.Join(r.Vacuous, "; "))
			return
		}
		s.undecided("prompt", r.ID, label+": "+summary(r))
	}
}

func (s *suite) leg(l *parity.Leg) {
	name := l.Side + " (" + l.Backend + "): " + l.What
	switch {
	case l.State == parity.LegHolds:
		s.pass("leg", name)
	case l.State == parity.LegBroken && s.Verdict == parity.Diverged:
		s.fail("leg", name, l.Why, "")
	default:
		s.undecided("leg", name, string(l.State)+": "+l.Why)
	}
}

func (s *suite) shadow() {
	switch {
	case s.Culprit != nil:
		s.fail("shadow", "shadow", s.Culprit.Side+": "+where(s.Comparison), strings.Join(s.Culprit.Why, "\n"))
	case len(s.Shadow) == 0:
		s.skip("shadow", "shadow", "no side was followed")
	default:
		s.pass("shadow", "shadow")
	}
}
