package tokenizer

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// A normalizer rewrites a text before it is cut into words.
type normalizer func(string) string

func (c *component) normalizer() (normalizer, error) {
	switch c.kind {
	case "Sequence":
		var all []normalizer
		for i := range c.parts {
			n, err := c.parts[i].normalizer()
			if err != nil {
				return nil, err
			}
			all = append(all, n)
		}
		return func(s string) string {
			for _, n := range all {
				s = n(s)
			}
			return s
		}, nil
	case "NFC":
		return func(s string) string { return normalForm(norm.NFC, s) }, nil
	case "NFD":
		return func(s string) string { return normalForm(norm.NFD, s) }, nil
	case "NFKC":
		return func(s string) string { return normalForm(norm.NFKC, s) }, nil
	case "NFKD":
		return func(s string) string { return normalForm(norm.NFKD, s) }, nil
	case "Replace":
		return c.replacer()
	case "Prepend":
		return func(s string) string {
			if s == "" {
				return s
			}
			return c.prepend + s
		}, nil
	case "Strip":
		return func(s string) string {
			if c.stripLeft {
				s = strings.TrimLeftFunc(s, unicode.IsSpace)
			}
			if c.stripRight {
				s = strings.TrimRightFunc(s, unicode.IsSpace)
			}
			return s
		}, nil
	}
	return nil, at(c.path, "normalizer %q is not supported (Sequence, NFC, NFD, NFKC, NFKD, Replace, Prepend, Strip are)", c.kind)
}

// replacer replaces every match of the pattern by the content as it stands.
func (c *component) replacer() (func(string) string, error) {
	find, err := c.finder()
	if err != nil {
		return nil, err
	}
	if !c.pattern.regex {
		old := c.pattern.text
		return func(s string) string {
			if old == "" {
				return s
			}
			return strings.ReplaceAll(s, old, c.content)
		}, nil
	}
	return func(s string) string {
		var b strings.Builder
		from := 0
		find(s, func(start, end int) {
			b.WriteString(s[from:start])
			b.WriteString(c.content)
			from = end
		})
		b.WriteString(s[from:])
		return b.String()
	}, nil
}

// streamSafe is the longest run of combining marks that x/text normalizes as Unicode says; it breaks longer ones
// with U+034F (UAX #15, stream-safe text), which no tokenizer does.
const streamSafe = 30

func normalForm(form norm.Form, s string) string {
	if !hasLongRun(s) {
		return form.String(s)
	}
	chars := decomposed(s, form == norm.NFKC || form == norm.NFKD)
	if form == norm.NFC || form == norm.NFKC {
		chars = composed(chars)
	}
	return string(chars)
}

// hasLongRun reports whether s decomposes to a run of marks that x/text would break; now and then it says so of
// others, which costs time only.
func hasLongRun(s string) bool {
	marks := 0
	for i := range s {
		p := norm.NFKD.PropertiesString(s[i:])
		n := max(1, utf8.RuneCount(p.Decomposition()))
		if p.LeadCCC() == 0 {
			marks = n - 1
		} else {
			marks += n
		}
		if marks > streamSafe {
			return true
		}
	}
	return false
}

func class(r rune) uint8 { return norm.NFD.PropertiesString(string(r)).CCC() }

// decomposed is the canonical (or compatibility) decomposition of s, marks sorted by combining class.
func decomposed(s string, compatibility bool) []rune {
	form := norm.NFD
	if compatibility {
		form = norm.NFKD
	}
	var chars []rune
	for _, r := range s {
		chars = append(chars, []rune(form.String(string(r)))...)
	}
	for i := 0; i < len(chars); {
		if class(chars[i]) == 0 {
			i++
			continue
		}
		end := i
		for end < len(chars) && class(chars[end]) != 0 {
			end++
		}
		slices.SortStableFunc(chars[i:end], func(a, b rune) int { return int(class(a)) - int(class(b)) })
		i = end
	}
	return chars
}

// composed joins each starter with the marks after it that have a composed form and are not blocked by
// another mark of the same or a higher class (UAX #15, D115–D117).
func composed(chars []rune) []rune {
	out := chars[:0]
	starter := -1
	for _, c := range chars {
		if starter >= 0 {
			last := class(out[len(out)-1])
			adjacent := starter == len(out)-1
			if adjacent || last != 0 && last < class(c) {
				if pair := []rune(norm.NFC.String(string([]rune{out[starter], c}))); len(pair) == 1 {
					out[starter] = pair[0]
					continue
				}
			}
		}
		if class(c) == 0 {
			starter = len(out)
		}
		out = append(out, c)
	}
	return out
}
