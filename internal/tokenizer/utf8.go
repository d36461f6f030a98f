package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// byteChars is the alphabet of byte-level tokenizers (GPT-2): each byte is one printable character, itself where
// Latin-1 has one to print, and U+0100, U+0101, … in order for the others.
var byteChars, charBytes = func() (chars [256]rune, back map[rune]byte) {
	back = map[rune]byte{}
	next := rune(0x100)
	for b := range chars {
		c := rune(b)
		if !('!' <= c && c <= '~' || '¡' <= c && c <= '¬' || '®' <= c) {
			c = next
			next++
		}
		chars[b] = c
		back[c] = byte(b)
	}
	return chars, back
}()

// toByteLevel spells the bytes of s in the byte-level alphabet.
func toByteLevel(s string) string {
	b := make([]byte, 0, 2*len(s))
	for i := 0; i < len(s); i++ {
		b = utf8.AppendRune(b, byteChars[s[i]])
	}
	return string(b)
}

// appendByteLevel appends the bytes that a token spells; a token with a character from outside the alphabet
// stands for itself.
func appendByteLevel(dst []byte, token string) []byte {
	n := len(dst)
	for _, c := range token {
		b, ok := charBytes[c]
		if !ok {
			return append(dst[:n], token...)
		}
		dst = append(dst, b)
	}
	return dst
}

// valid turns bytes into UTF-8: each maximal subpart of an ill-formed sequence becomes one U+FFFD (Unicode 3.9,
// as in Rust and in browsers; strings.ToValidUTF8 would make one of a whole run). Unless final, a tail that
// could still become a character is returned in rest.
func valid(b []byte, final bool) (text string, rest []byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	var out strings.Builder
	for len(b) > 0 {
		if r, n := utf8.DecodeRune(b); r != utf8.RuneError || n > 1 {
			out.Write(b[:n])
			b = b[n:]
			continue
		}
		if !final && !utf8.FullRune(b) {
			return out.String(), b
		}
		out.WriteRune(utf8.RuneError)
		b = b[subpart(b):]
	}
	return out.String(), nil
}

// subpart returns the length of the maximal ill-formed subpart that b begins with: the longest prefix that
// begins some well-formed sequence, or else one byte.
func subpart(b []byte) int {
	n := 1
	for n < len(b) && n < utf8.UTFMax && !utf8.FullRune(b[:n]) {
		n++
	}
	// b[:n] is the shortest prefix that can no longer be completed; its last byte, if not its only one, is to blame.
	if n > 1 && utf8.FullRune(b[:n]) {
		n--
	}
	return n
}
