package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// The patterns that most tokenizer.json files carry have a hand-written scanner, some five times as fast as the
// regular expression; it is chosen when the pattern is exactly this text.
const (
	gpt2Pattern   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	qwen2Pattern  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	llama3Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// A wordFunc returns the length in bytes of the word that s, which is not empty, begins with.
type wordFunc func(s string) int

var knownPatterns = map[string]wordFunc{
	gpt2Pattern:   gpt2Word,
	qwen2Pattern:  func(s string) int { return tiktokenWord(s, 1) },
	llama3Pattern: func(s string) int { return tiktokenWord(s, 3) },
}

func scan(s string, word wordFunc, emit func(string)) {
	for s != "" {
		n := word(s)
		emit(s[:n])
		s = s[n:]
	}
}

func isOther(r rune) bool {
	return !unicode.IsSpace(r) && !unicode.IsLetter(r) && !unicode.IsNumber(r)
}

func isNewline(r rune) bool { return r == '\r' || r == '\n' }

// run returns the length of the longest prefix of s whose characters all satisfy is.
func run(s string, is func(rune) bool) int {
	for i, r := range s {
		if !is(r) {
			return i
		}
	}
	return len(s)
}

// gpt2Word follows gpt2Pattern, alternative by alternative.
func gpt2Word(s string) int {
	if n := contraction(s, false); n > 0 {
		return n
	}
	space := 0
	if s[0] == ' ' {
		space = 1
	}
	for _, is := range [...]func(rune) bool{unicode.IsLetter, unicode.IsNumber, isOther} {
		if n := run(s[space:], is); n > 0 {
			return space + n
		}
	}
	return whiteSpace(s)
}

// tiktokenWord follows qwen2Pattern and llama3Pattern, which differ in the number of digits that stay together.
func tiktokenWord(s string, digits int) int {
	if n := contraction(s, true); n > 0 {
		return n
	}
	first, size := utf8.DecodeRuneInString(s)
	lead := 0
	if !isNewline(first) && !unicode.IsLetter(first) && !unicode.IsNumber(first) {
		lead = size
	}
	if n := run(s[lead:], unicode.IsLetter); n > 0 {
		return lead + n
	}
	if n := run(s, func(r rune) bool { digits--; return digits >= 0 && unicode.IsNumber(r) }); n > 0 {
		return n
	}
	space := 0
	if first == ' ' {
		space = 1
	}
	if n := run(s[space:], isOther); n > 0 {
		n += space
		return n + run(s[n:], isNewline)
	}
	n := run(s, unicode.IsSpace)
	for i := n; i > 0; i-- { // \s*[\r\n]+ ends after the last line break of the run
		if isNewline(rune(s[i-1])) {
			return i
		}
	}
	return whiteSpace(s)
}

// whiteSpace is \s+(?!\S)|\s+: a run of white space, without its last character if a word follows and
// something is left.
func whiteSpace(s string) int {
	n := run(s, unicode.IsSpace)
	if n == len(s) {
		return n
	}
	_, last := utf8.DecodeLastRuneInString(s[:n])
	if n > last {
		return n - last
	}
	return n
}

// contraction returns the length of 's, 't, 're, 've, 'm, 'll or 'd at the start of s, or 0.
func contraction(s string, anyCase bool) int {
	if s[0] != '\'' {
		return 0
	}
	var letters [2]rune
	var ends [2]int
	k := 0
	for i, r := range s[1:] {
		if k == 2 {
			break
		}
		letters[k], ends[k] = r, 1+i+utf8.RuneLen(r)
		if anyCase {
			letters[k] = fold(r)
		}
		k++
	}
	switch letters[0] {
	case 's', 't', 'm', 'd':
		return ends[0]
	case 'r', 'v':
		if letters[1] == 'e' {
			return ends[1]
		}
	case 'l':
		if letters[1] == 'l' {
			return ends[1]
		}
	}
	return 0
}

// fold is simple case folding as far as contractions need it: ſ, the long s, is an s too.
func fold(r rune) rune {
	switch {
	case r == 'ſ':
		return 's'
	case 'A' <= r && r <= 'Z':
		return r + 'a' - 'A'
	}
	return r
}
