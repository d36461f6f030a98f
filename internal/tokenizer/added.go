package tokenizer

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// An addedToken is a token that is cut out of the text before the model sees it.
type addedToken struct {
	id         int32
	content    string
	singleWord bool   // only where no letter or digit touches it
	lstrip     bool   // swallows the white space before it
	rstrip     bool   // swallows the white space after it
	normalized bool   // looked for in the normalized text, not in the text as typed
	special    bool   // can be left out when decoding
	text       string // content, normalized if normalized is set: what is found, and what ids decode to
}

// An addedSet finds added tokens in a text: from left to right, the longest where several begin.
type addedSet struct {
	tokens  map[string]addedToken
	lengths [256][]int // by first byte, the lengths in bytes of the tokens that begin with it, longest first
}

// add puts a token into the set. The first of two that read alike stays.
func (s *addedSet) add(a addedToken) {
	if _, ok := s.tokens[a.text]; ok || a.text == "" {
		return
	}
	if s.tokens == nil {
		s.tokens = map[string]addedToken{}
	}
	s.tokens[a.text] = a
	l := &s.lengths[a.text[0]]
	if !slices.Contains(*l, len(a.text)) {
		*l = append(*l, len(a.text))
		slices.SortFunc(*l, func(a, b int) int { return b - a })
	}
}

// split calls text for the stretches between added tokens and token for the added tokens, in order.
func (s *addedSet) split(in string, text func(string), token func(int32)) {
	from := 0
	for i := 0; i < len(in); {
		a, end := s.match(in, i)
		if end == 0 {
			i++
			continue
		}
		start, stop := i, end
		i = end
		if a.singleWord && (endsInWord(in[:start]) || startsWithWord(in[stop:])) {
			continue
		}
		if a.lstrip {
			start = max(from, len(strings.TrimRightFunc(in[:start], unicode.IsSpace)))
		}
		if a.rstrip {
			stop = len(in) - len(strings.TrimLeftFunc(in[stop:], unicode.IsSpace))
		}
		if from < start {
			text(in[from:start])
		}
		token(a.id)
		from = stop
	}
	if from < len(in) {
		text(in[from:])
	}
}

// match returns the longest token that begins at i and where it ends, or 0.
func (s *addedSet) match(in string, i int) (addedToken, int) {
	for _, n := range s.lengths[in[i]] {
		if i+n <= len(in) {
			if a, ok := s.tokens[in[i:i+n]]; ok {
				return a, i + n
			}
		}
	}
	return addedToken{}, 0
}

func endsInWord(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && isWord(r)
}

func startsWithWord(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && isWord(r)
}

// isWord is \w of Unicode TR18: alphabetic, mark, decimal digit, connector, join control.
func isWord(r rune) bool {
	const zeroWidthNonJoiner, zeroWidthJoiner = 0x200c, 0x200d
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic) ||
		r == zeroWidthNonJoiner || r == zeroWidthJoiner
}
