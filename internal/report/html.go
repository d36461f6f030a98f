package report

import (
	"embed"
	"html/template"
	"io"
	"strings"
	"unicode/utf8"

	"llmrun/internal/parity"
)

// PageOptions says what the page shows beyond the comparison.
type PageOptions struct {
	Decode  func(ids []int) string // turns ids into text; nil: ids are shown as numbers
	Command string                 // that made the comparison
	Replay  string                 // the same without its prompts: with --ids behind it, it runs one prompt alone
	Machine [][2]string            // what it ran on: names and values
}

//go:embed page.html page.css
var assets embed.FS

var pageTemplate = template.Must(template.New("page.html").Funcs(template.FuncMap{
	"number": number, "short": short, "ratio": ratio, "site": siteName, "list": list,
	"semicolons": func(words []string) string { return strings.Join(words, "; ") },
	"share":      func(part, all int) int { return 100 * part / max(all, 1) },
	"pair": func(p *page, s strip) any {
		return struct {
			Page  *page
			Strip strip
		}{p, s}
	},
}).ParseFS(assets, "page.html"))

// HTML writes the comparison as one page that needs nothing else: no script, no font, no picture, no network.
func HTML(w io.Writer, c *parity.Comparison, o PageOptions) error {
	style, err := assets.ReadFile("page.css")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	p := &page{Comparison: c, PageOptions: o, Style: template.CSS(style)}
	p.Ref, p.Cand = names(c)
	p.Sentence, p.Because = sentence(c), because(c)
	for i := range c.Prompts {
		p.Strips = append(p.Strips, p.strip(&c.Prompts[i]))
	}
	for i := range c.Shadow {
		if len(c.Shadow[i].Cells) > 0 {
			p.Maps = append(p.Maps, newHeatmap(c, &c.Shadow[i]))
		}
	}
	return pageTemplate.Execute(w, p)
}

// page is what the template reads: the comparison, and what had to be worked out from it.
type page struct {
	*parity.Comparison
	PageOptions
	Style             template.CSS
	Ref, Cand         string // what the sides are called
	Sentence, Because string
	Strips            []strip
	Maps              []heatmap
}

// Mark is the verdict as a sign, so that colour is not alone.
func (p *page) Mark() string {
	return map[parity.Verdict]string{parity.Match: "✓", parity.Diverged: "✗", parity.Inconclusive: "?"}[p.Verdict]
}

// Tone names the verdict's colours in the style sheet.
func (p *page) Tone() string { return strings.ToLower(string(p.Verdict)) }

// Where says in plain language where the culprit is.
func (p *page) Where() string { return where(p.Comparison) }

// Changed says what is wrong with the bytes of a culprit between two ops.
func (p *page) Changed() string { return changed(&p.Culprit.Finding) }

// Meaning says what a gate asks.
func (p *page) Meaning(gate string) string { return gateWords[gate].asks }

// Next says what to try where the run could not tell.
func (p *page) Next() (list []string) {
	for _, g := range p.Gates {
		if next := gateWords[g.Name].next; !g.OK && next != "" && p.Verdict == parity.Inconclusive && !p.Interrupted {
			list = append(list, next)
		}
	}
	return list
}

// Accused is the side whose work is in question.
func (p *page) Accused() string {
	if p.Culprit == nil {
		return side(p.Comparison, "candidate")
	}
	return side(p.Comparison, p.Culprit.Side)
}

// Reasons are what the numbers prove of the culprit.
func (p *page) Reasons() []string {
	if len(p.Culprit.Why) > 0 || p.Why == "" {
		return p.Culprit.Why
	}
	return []string{p.Why}
}

// Alone is the command that runs the culprit's prompt, or the first that diverges, by itself.
func (p *page) Alone() string {
	if p.Replay == "" {
		return ""
	}
	id := ""
	if p.Culprit != nil {
		id = p.Culprit.Prompt
	}
	for i := range p.Prompts {
		if r := &p.Prompts[i]; r.ID == id || id == "" && r.Diverged() {
			return p.Replay + " --ids " + commas(r.IDs)
		}
	}
	return ""
}

// piece is the text of ids[i] as it stands behind the one before it, with spaces and line ends to be seen.
func (p *page) piece(ids []int, i int) string {
	if p.Decode == nil {
		return commas(ids[i : i+1])
	}
	s := ""
	if i > 0 {
		before, both := p.Decode(ids[i-1:i]), p.Decode(ids[i-1:i+1])
		s = strings.TrimPrefix(both, before)
		if s == both && before != "" { // they are one character, or the first one's space was dropped
			s = p.Decode(ids[i : i+1])
		}
	} else {
		s = p.Decode(ids[:1])
	}
	if s == "" {
		return "∅"
	}
	return visible(s, true)
}

// prose is a text of ids, shortened in its middle.
func (p *page) prose(ids []int) string {
	if p.Decode == nil {
		return commas(ids)
	}
	const most = 600 // runes
	s := []rune(strings.TrimSpace(visible(p.Decode(ids), false)))
	if len(s) > most {
		s = append(append(s[:most/2:most/2], []rune(" […] ")...), s[len(s)-most/2:]...)
	}
	return string(s)
}

// visible replaces what would not be seen. A space is marked where it stands for itself, in a token.
func visible(s string, spaces bool) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return '⏎'
		case r == '\t':
			return '⇥'
		case r == ' ' && spaces:
			return '␣'
		case r < ' ' || r >= 0x7f && r < 0xa0 || r == utf8.RuneError || turns(r):
			return '�'
		}
		return r
	}, s)
}

// turns tells whether r changes the direction of the text around it, or has no width.
func turns(r rune) bool {
	return r >= 0x200b && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2060 && r <= 0x2069 || r == 0xfeff
}

func list(words []string) string { return strings.Join(words, ", ") }
