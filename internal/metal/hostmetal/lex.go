package hostmetal

import (
	"fmt"
	"strings"
)

// A token of Metal source. Comments and preprocessor lines are not tokens.
type token struct {
	kind tokenKind
	text string
	at   int    // byte offset in the source
	line int    // from 1, or as #line says
	file string // that #line names; else empty
}

type tokenKind byte

const (
	identifier tokenKind = iota
	number
	quoted
	punctuation // one byte, or one of [[ ]] :: ->
)

func (t token) end() int { return t.at + len(t.text) }

// lex cuts Metal source into tokens, and returns beside them the bodies of its macros by name.
// It never fails: what is no Metal is left to the compiler, which reports it better.
func lex(src string) (tokens []token, macros map[string]string) {
	macros = map[string]string{}
	line, fresh, file := 1, true, "" // fresh: only blanks since the line began
	for i := 0; i < len(src); {
		c, rest := src[i], src[i:]
		n := 0
		switch {
		case c == '\n':
			line, fresh = line+1, true
			i++
			continue
		case c == ' ' || c == '\t' || c == '\r' || c == '\\':
			i++
			continue
		case strings.HasPrefix(rest, "//"):
			i += lengthUntil(rest, "\n")
			continue
		case strings.HasPrefix(rest, "/*"):
			n = 2 + lengthUntil(rest[2:], "*/")
			n = min(n+2, len(rest))
			line += strings.Count(rest[:n], "\n")
			i += n
			continue
		case c == '#' && fresh:
			n = directiveLength(rest)
			name, body, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(rest[1:n], "define")), " ")
			name, _, _ = strings.Cut(name, "(")
			if strings.HasPrefix(strings.TrimSpace(rest[1:n]), "define") {
				macros[name] += body + "\n"
			}
			line += strings.Count(rest[:n], "\n")
			if at, name, ok := lineDirective(rest[:n]); ok {
				line, file = at-1, name
			}
			i += n
			continue
		}
		fresh = false
		kind := punctuation
		switch {
		case isLetter(c):
			kind, n = identifier, 1
			for n < len(rest) && (isLetter(rest[n]) || isDigit(rest[n])) {
				n++
			}
		case isDigit(c) || c == '.' && len(rest) > 1 && isDigit(rest[1]):
			kind, n = number, 1
			for n < len(rest) && (isLetter(rest[n]) || isDigit(rest[n]) || rest[n] == '.' ||
				(rest[n] == '-' || rest[n] == '+') && strings.IndexByte("eEpP", rest[n-1]) >= 0) {
				n++
			}
		case c == '"' || c == '\'':
			kind, n = quoted, quotedLength(rest)
		case strings.HasPrefix(rest, "[[") || strings.HasPrefix(rest, "]]") || strings.HasPrefix(rest, "::") || strings.HasPrefix(rest, "->"):
			n = 2
		default:
			n = 1
		}
		tokens = append(tokens, token{kind, rest[:n], i, line, file})
		i += n
	}
	return splitBrackets(tokens), macros
}

func isLetter(c byte) bool {
	return c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= 0x80
}
func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// lengthUntil returns the number of bytes before the first sep, or all.
func lengthUntil(s, sep string) int {
	if i := strings.Index(s, sep); i >= 0 {
		return i
	}
	return len(s)
}

// directiveLength returns the length of a preprocessor line with its continuations, without the
// last newline.
func directiveLength(s string) int {
	for i := range len(s) {
		if s[i] == '\n' && s[i-1] != '\\' {
			return i
		}
	}
	return len(s)
}

// lineDirective reads #line 12 "file.metal": the number and the name of the next line.
func lineDirective(s string) (line int, file string, ok bool) {
	_, err := fmt.Sscanf(s, "#line %d %q", &line, &file)
	return line, file, err == nil
}

func quotedLength(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case s[0], '\n':
			return i + 1
		}
	}
	return len(s)
}

// splitBrackets turns each ]] that closes two subscripts, as in a[b[i]], into two tokens.
func splitBrackets(in []token) []token {
	out := make([]token, 0, len(in))
	var open []string
	for _, t := range in {
		switch t.text {
		case "[", "[[":
			open = append(open, t.text)
		case "]":
			open = open[:max(0, len(open)-1)]
		case "]]":
			if n := len(open); n > 0 && open[n-1] == "[[" {
				open = open[:n-1]
				break
			}
			open = open[:max(0, len(open)-2)]
			out = append(out, token{punctuation, "]", t.at, t.line, t.file})
			t = token{punctuation, "]", t.at + 1, t.line, t.file}
		}
		out = append(out, t)
	}
	return out
}
