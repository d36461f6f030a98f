package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"regexp"
	"strings"
	"testing"

	"llmrun/internal/parity"
)

// TestSameWord: every face says the comparison's verdict, and no face says another.
func TestSameWord(t *testing.T) {
	verdicts := regexp.MustCompile(`MATCH|DIVERGED|INCONCLUSIVE`)
	for name, c := range fixtures() {
		var text, object, page, junit, notes, summary bytes.Buffer
		for _, err := range []error{Text(&text, c, Options{}), JSON(&object, c), HTML(&page, c, PageOptions{}), JUnit(&junit, c),
			Annotations(&notes, c), Summary(&summary, c)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		for face, said := range map[string]string{"text": text.String(), "JSON": object.String(), "HTML": page.String(),
			"JUnit": junit.String(), "annotations": notes.String(), "summary": summary.String()} {
			words := verdicts.FindAllString(said, -1)
			if len(words) == 0 {
				t.Errorf("%s: %s says no verdict", name, face)
			}
			for _, word := range words {
				if word != string(c.Verdict) {
					t.Errorf("%s: %s says %s", name, face, word)
				}
			}
		}
	}
}

// TestJUnit reads the file as a build server does.
func TestJUnit(t *testing.T) {
	type result struct {
		Message string `xml:"message,attr"`
	}
	type suite struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Errors   int `xml:"errors,attr"`
		Skipped  int `xml:"skipped,attr"`
		Cases    []struct {
			Class    string   `xml:"classname,attr"`
			Name     string   `xml:"name,attr"`
			Failures []result `xml:"failure"`
			Errors   []result `xml:"error"`
			Skips    []result `xml:"skipped"`
		} `xml:"testcase"`
	}
	for name, c := range fixtures() {
		var b bytes.Buffer
		if err := JUnit(&b, c); err != nil {
			t.Fatal(err)
		}
		var file struct {
			XMLName xml.Name `xml:"testsuites"`
			Suites  []suite  `xml:"testsuite"`
		}
		if err := xml.Unmarshal(b.Bytes(), &file); err != nil || len(file.Suites) != 1 {
			t.Fatalf("%s: %d suites, %v", name, len(file.Suites), err)
		}
		s, seen, kinds := file.Suites[0], map[string]bool{}, map[string]int{}
		failures, failed, skipped := 0, 0, 0
		for _, test := range s.Cases {
			if seen[test.Class+test.Name] || test.Name == "" {
				t.Errorf("%s: test %s %q twice, or without a name", name, test.Class, test.Name)
			}
			seen[test.Class+test.Name] = true
			kinds[test.Class]++
			failures, failed, skipped = failures+len(test.Failures), failed+len(test.Errors), skipped+len(test.Skips)
			for _, r := range append(append(test.Failures, test.Errors...), test.Skips...) {
				if r.Message == "" {
					t.Errorf("%s: %s %s ended without a message", name, test.Class, test.Name)
				}
			}
			if len(test.Failures)+len(test.Errors)+len(test.Skips) > 1 {
				t.Errorf("%s: %s %s ended in two ways", name, test.Class, test.Name)
			}
		}
		if s.Tests != len(s.Cases) || s.Failures != failures || s.Errors != failed || s.Skipped != skipped {
			t.Errorf("%s: counts %d %d %d %d, want %d %d %d %d", name, s.Tests, s.Failures, s.Errors, s.Skipped, len(s.Cases), failures, failed, skipped)
		}
		if kinds["llmrun.prompt"] != len(c.Prompts) || kinds["llmrun.gate"] != len(c.Gates) || kinds["llmrun.leg"] != len(c.Legs) ||
			kinds["llmrun.shadow"] != 1 || kinds["llmrun.verdict"] != 1 {
			t.Errorf("%s: tests %v", name, kinds)
		}
		// A build is green exactly if the program would exit 0, and red for a failure exactly if the sides part.
		if (failures > 0) != (c.Verdict == parity.Diverged) || (failures+failed == 0) != (c.Exit == parity.ExitMatch) {
			t.Errorf("%s: exit %d with %d failures and %d errors", name, c.Exit, failures, failed)
		}
	}
}

// TestAnnotations: one line per annotation, whatever the texts hold.
func TestAnnotations(t *testing.T) {
	levels := map[parity.Verdict]string{parity.Match: "::notice ", parity.Diverged: "::error ", parity.Inconclusive: "::warning "}
	for name, c := range fixtures() {
		var b bytes.Buffer
		if err := Annotations(&b, c); err != nil {
			t.Fatal(err)
		}
		lines := strings.SplitAfter(strings.TrimSuffix(b.String(), "\n"), "\n")
		if !strings.HasPrefix(lines[0], levels[c.Verdict]+"title=llmrun compare%3A "+string(c.Verdict)+"::") {
			t.Errorf("%s: the first annotation is %q", name, lines[0])
		}
		for _, line := range lines {
			if !regexp.MustCompile(`^::(notice|warning|error) title=[^:,\r]+::[^\r]+$`).MatchString(strings.TrimSuffix(line, "\n")) {
				t.Errorf("%s: annotation %q", name, line)
			}
		}
		if len(lines) > 1+len(c.Prompts) || len(lines) > maxAnnotations {
			t.Errorf("%s: %d annotations", name, len(lines))
		}
	}
	var b bytes.Buffer
	if err := Annotations(&b, long()); err != nil || !strings.Contains(b.String(), "%0A%3A%3Aerror%3A%3A") && !strings.Contains(b.String(), "flip 100%25") {
		t.Errorf("%v: %q", err, b.String())
	}
}

// TestSummary: what the texts hold stays within its cell and is no markup.
func TestSummary(t *testing.T) {
	for name, c := range fixtures() {
		var b bytes.Buffer
		if err := Summary(&b, c); err != nil {
			t.Fatal(err)
		}
		if regexp.MustCompile("<|(^|[^\\\\])`").MatchString(b.String()) {
			t.Errorf("%s: markup in\n%s", name, b.String())
		}
		for _, line := range strings.Split(b.String(), "\n") {
			if cells := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|"); cells != 0 && cells != 4 {
				t.Errorf("%s: %d bars in %q", name, cells, line)
			}
		}
	}
	var b bytes.Buffer
	if err := Summary(&b, gelu()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"## ✗ DIVERGED: llmrun compare tiny\n", "wanted −11.782, found NaN, beyond any bound", "| act → cpu | 24 of 24 | ✓ heals |", "| once | diverges | first difference at step 2 of 24 |",
		"cached ≡ recomputed, candidate metal: broken: step 2: layer 7 act"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("want %q in\n%s", want, b.String())
		}
	}
}

// TestNumbersOfJSON: NaN and infinities are strings.
func TestNumbersOfJSON(t *testing.T) {
	var b bytes.Buffer
	if err := JSON(&b, gelu()); err != nil {
		t.Fatal(err)
	}
	var c struct {
		Culprit struct {
			Ratio any
			Worst struct{ Want, Got any }
		}
	}
	if err := json.Unmarshal(b.Bytes(), &c); err != nil || c.Culprit.Ratio != "Inf" || c.Culprit.Worst.Got != "NaN" || c.Culprit.Worst.Want != -11.782 {
		t.Errorf("%v: %+v", err, c)
	}
}
