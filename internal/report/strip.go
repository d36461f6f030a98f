package report

import (
	"fmt"
	"strconv"
	"strings"

	"llmrun/internal/parity"
)

// strip is one prompt: its tokens in columns, what each side wrote, and how far the logits were apart.
type strip struct {
	*parity.Result
	Open            bool
	Label, Tone     string // how it ended, in a word, and that word's colour
	Summary         string
	Prompt          string
	RefText         string
	CandText        string // as it decodes by itself; "" if it is the same
	RefEnd, CandEnd string // why a side stopped
	Tokens          []token
	Before, After   int // steps that are not shown
	Chart           *chart
}

// token is one column of a strip.
type token struct {
	Step            int
	Class           parity.Class
	Ref, Cand, Mark string
	Title           string
	Margin          int  // percent of the prompt's largest
	Thin            bool // rounding could undo it
}

// maxTokens is how many columns a strip shows, around the first difference.
const maxTokens = 200

func (p *page) strip(r *parity.Result) strip {
	s := strip{Result: r, Prompt: p.prose(r.IDs), RefText: p.prose(r.ReferenceIDs), Chart: newChart(r)}
	s.Label, s.Tone = outcome(r)
	s.Open = r.Diverged() || len(p.Prompts) == 1
	s.Summary = summary(r)
	if text := p.prose(r.CandidateIDs); text != s.RefText {
		s.CandText = text
	}
	for _, n := range r.NonFinite {
		end := fmt.Sprintf("%d of %d logits are NaN or infinite at step %d", n.Count, n.Of, n.Step)
		if n.Birth != nil {
			end += ", born at " + n.Birth.Where()
		}
		if n.Side == "reference" {
			s.RefEnd = end
		} else {
			s.CandEnd = end
		}
	}
	from := 0
	if r.FirstFlip != nil {
		from = max(0, *r.FirstFlip-1-maxTokens/2)
	}
	to := min(len(r.Steps), from+maxTokens)
	s.Before, s.After = from, len(r.Steps)-to
	largest := 0.0
	for _, step := range r.Steps {
		largest = max(largest, float64(step.Margin)) // NaN is never larger
	}
	for i := from; i < to; i++ {
		s.Tokens = append(s.Tokens, p.token(r, i, largest))
	}
	return s
}

// summary is a prompt in a line.
func summary(r *parity.Result) string {
	first := fmt.Sprintf("%d of %d tokens agree", r.Matched, len(r.Steps))
	if r.FirstFlip != nil {
		first = fmt.Sprintf("first difference at step %d of %d", *r.FirstFlip, len(r.Steps))
	}
	return strings.Join(append([]string{first}, ties(r)...), ", ")
}

// outcome is how a prompt ended, and its colour.
func outcome(r *parity.Result) (label, tone string) {
	switch {
	case r.Diverged():
		return "diverges", "diverged"
	case len(r.Vacuous) > 0:
		return "left out", "inconclusive"
	case r.Beyond > 0:
		return "beyond rounding", "inconclusive"
	}
	return "agrees", "match"
}

// marks say what the colours of a token say.
var marks = map[parity.Class]string{parity.ClassMatch: "", parity.ClassNearTie: "≈", parity.ClassExactTie: "=", parity.ClassFlip: "✗",
	parity.ClassNonFinite: "✗", parity.ClassUnmeasured: ""}

func (p *page) token(r *parity.Result, i int, largest float64) token {
	step := &r.Steps[i]
	before := r.IDs[len(r.IDs)-1:] // the token that both sides were fed at this step
	if i > 0 {
		before = []int{r.Steps[i-1].ReferenceID}
	}
	t := token{Step: step.Step, Class: step.Class, Mark: marks[step.Class],
		Ref: p.after(before, step.ReferenceID, step.ReferenceNonFinite), Cand: p.after(before, step.CandidateID, step.CandidateNonFinite),
		Thin: !(step.Margin > 2*r.Allowed), // two logits may move by Allowed each
	}
	if largest > 0 && step.Margin > 0 {
		t.Margin = max(2, int(24*float64(step.Margin)/largest))
	}
	t.Title = fmt.Sprintf("step %d: %s; %s id %d, %s id %d; margin %s, max|Δlogit| %s", step.Step, step.Class,
		p.Ref, step.ReferenceID, p.Cand, step.CandidateID, number(step.Margin), number(step.MaxAbs))
	return t
}

// after is the text of one token behind another.
func (p *page) after(before []int, id, nonFinite int) string {
	switch {
	case nonFinite > 0:
		return "NaN"
	case id == parity.NoToken:
		return "–"
	case len(before) == 1 && before[0] == parity.NoToken:
		return p.piece([]int{id}, 0)
	}
	return p.piece(append(before[:len(before):len(before)], id), 1)
}

func commas(ids []int) string {
	var s []byte
	for i, id := range ids {
		if i > 0 {
			s = append(s, ',')
		}
		s = strconv.AppendInt(s, int64(id), 10)
	}
	return string(s)
}
