package report

import (
	"bytes"
	"encoding/xml"
	"io"
	"regexp"
	"strings"
	"testing"

	"llmrun/internal/engine"
	"llmrun/internal/parity"
)

func render(t *testing.T, c *parity.Comparison) string {
	t.Helper()
	var b bytes.Buffer
	o := PageOptions{Decode: decodeHostile, Command: "llmrun compare", Replay: "llmrun compare", Machine: [][2]string{{"system", "linux"}}}
	if err := HTML(&b, c, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// void elements have no end.
var void = map[string]bool{"meta": true, "br": true}

// TestPageIsClosed: whatever the tokens say, the page has the elements that the template has, properly nested, and
// nothing that runs, loads or leads elsewhere.
func TestPageIsClosed(t *testing.T) {
	for name, c := range fixtures() {
		page := render(t, c)
		d := xml.NewDecoder(strings.NewReader(strings.Replace(page, "<!doctype html>", "", 1)))
		d.Strict, d.Entity, d.AutoClose = false, xml.HTMLEntity, []string{"meta"}
		var open []string
		for {
			token, err := d.RawToken()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			switch e := token.(type) {
			case xml.StartElement:
				tag := e.Name.Local
				if regexp.MustCompile(`^(script|img|iframe|object|embed|link|base|form|image|use|a|audio|video|source)$`).MatchString(tag) {
					t.Errorf("%s: element %s", name, tag)
				}
				for _, a := range e.Attr {
					if strings.HasPrefix(a.Name.Local, "on") || a.Name.Local == "src" || a.Name.Local == "href" || a.Name.Local == "srcset" {
						t.Errorf("%s: attribute %s of %s", name, a.Name.Local, tag)
					}
				}
				if !void[tag] {
					open = append(open, tag)
				}
			case xml.EndElement:
				if len(open) == 0 || open[len(open)-1] != e.Name.Local {
					t.Fatalf("%s: </%s> within %v", name, e.Name.Local, open)
				}
				open = open[:len(open)-1]
			}
		}
		if len(open) > 0 {
			t.Errorf("%s: still open: %v", name, open)
		}
		for _, bad := range []string{"http", "url(", "@import", "ZgotmplZ", "%!", "\x1b", "\u202e", "<no value>"} {
			if strings.Contains(strings.ReplaceAll(page, "http-equiv", ""), bad) {
				t.Errorf("%s: the page has %q", name, bad)
			}
		}
	}
}

// TestPageShows: what a comparison has is on its page, and what it has not is left out.
func TestPageShows(t *testing.T) {
	for _, test := range []struct {
		c         *parity.Comparison
		has, lack []string
	}{
		{good(), []string{"<b>metal</b> on prompt “once”", "<b>cpu</b> on prompt “once”", "≈", "Proves nothing: the prompt has no BOS", "? UNMEASURED", ": there is no time"},
			[]string{"The culprit", "Proof by substitution"}},
		{gelu(), []string{"the activation of the feed-forward network, in layer 7, the last one, when the 2nd new token was computed",
			"<b>−11.782</b>", "<b>NaN</b>", "beyond any bound", "exp(2u) leaves float32", "✓ Confirmed.</span> What heals the run: act → cpu. Nothing", "3 more ops are", "llmrun compare --ids 2,9,8",
			`<td class="bad" title="step 2, layer 7: act is the worst, beyond any bound; 1 beyond: act">N</td>`, "mistake made on purpose: <b>gelu-unclamped</b>",
			"✗ 96 of 96 logits are NaN or infinite at step 2, born at step 2 layer 7 act (gelu_tanh)", "✗ broken"}, nil},
		{custody(), []string{"The candidate (metal) changes or loses data between the write of keys and values to the cache (kv_write) and the attention scores, queries times keys (scores).", "12 of 256 elements of keys that scores read are not what kv_write wrote.", "? Not confirmed.</span> No substitution heals the run."},
			[]string{"<dt>Why</dt>"}},
		{accused(), []string{"The reference (cpu) goes wrong first in the lookup", "on the reference (cpu)", "41000 × the bound"}, []string{"Proof by substitution", "op by op"}},
		{vacuous(), []string{"This run cannot tell whether the candidate (metal) is right.", "✗ no", "Begin the prompts with the model&#39;s own token: --bos on.", "Proves nothing: the prompt has no BOS and the model has &lt;bos&gt;=2; both sides"}, []string{"The culprit", "op by op"}},
		{interrupted(), []string{"The run was interrupted before it could tell.", "No prompt was finished.", "Exit code 130."}, nil},
		{interruptedDiverged(), []string{"Interrupted: what was finished is below. Exit code 130.", "<td>the activation is still beyond its bound</td>"}, nil},
		{long(), []string{"Steps 1 to 299 are not shown", "101 more steps are not shown", `<th scope="col">…</th>`, `<th scope="col">400</th>`}, nil},
	} {
		page := render(t, test.c)
		for _, want := range test.has {
			if !strings.Contains(page, want) {
				t.Errorf("%s %s: want %q on the page", test.c.Verdict, test.c.Reason, want)
			}
		}
		for _, no := range test.lack {
			if strings.Contains(page, no) {
				t.Errorf("%s %s: %q is on the page", test.c.Verdict, test.c.Reason, no)
			}
		}
	}
}

// TestWordsForAll: no site and no gate is left without words.
func TestWordsForAll(t *testing.T) {
	if got := siteName("fused attention"); got != "the fused attention kernel" {
		t.Errorf("a fused kernel is called %q", got)
	}
	for _, site := range append([]string{"sample"}, engine.Sites...) {
		if siteWords[site] == "" {
			t.Errorf("no words for site %s", site)
		}
	}
	for _, g := range good().Gates {
		if gateWords[g.Name].asks == "" {
			t.Errorf("no words for gate %s", g.Name)
		}
	}
}

func TestOrdinal(t *testing.T) {
	for n, want := range map[int]string{1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 12: "12th", 13: "13th", 21: "21st", 112: "112th"} {
		if got := ordinal(n); got != want {
			t.Errorf("want %s, got %s", want, got)
		}
	}
}
