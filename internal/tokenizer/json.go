package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth is how deep the values of a tokenizer.json may nest; real ones stay below ten.
const maxDepth = 100

// A reader is a cursor over JSON text that knows the path of the value it stands on. It exists because
// a vocabulary of 256,000 entries and half a million merges take encoding/json more than a second, and
// because errors should name their place in the file.
//
// The first error sticks in err; from then on every method returns a zero value at once.
type reader struct {
	data []byte
	pos  int
	path []segment
	err  error
}

// A segment is one step of a path: a key of an object, or an index of an array when index ≥ 0.
type segment struct {
	key   string
	index int
}

// where spells the path of the current value, such as added_tokens[3].id; empty at the top.
func (r *reader) where() string {
	var b strings.Builder
	for _, s := range r.path {
		switch {
		case s.index >= 0:
			fmt.Fprintf(&b, "[%d]", s.index)
		case !isPlainKey(s.key):
			fmt.Fprintf(&b, "[%q]", s.key)
		default:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(s.key)
		}
	}
	return b.String()
}

func isPlainKey(key string) bool {
	for _, c := range []byte(key) {
		if c != '_' && (c < 'a' || c > 'z') {
			return false
		}
	}
	return key != ""
}

// fail records an error about the current value.
func (r *reader) fail(format string, args ...any) {
	if r.err != nil {
		return
	}
	r.err = at(r.where(), format, args...)
}

// at is an error about the value at path.
func at(path, format string, args ...any) error {
	if path != "" {
		path += ": "
	}
	return errors.New(path + fmt.Sprintf(format, args...))
}

// want fails with what was expected and what stands here instead.
func (r *reader) want(what string) {
	r.fail("want %s, found %s at byte %d", what, r.found(), r.pos)
}

// found names what stands at the cursor.
func (r *reader) found() string {
	if r.pos >= len(r.data) {
		return "the end of the file"
	}
	switch c := r.data[r.pos]; {
	case c == '{':
		return "an object"
	case c == '[':
		return "an array"
	case c == '"':
		return "a string"
	case c == '-' || c >= '0' && c <= '9':
		return "a number"
	case bytes.HasPrefix(r.data[r.pos:], []byte("true")), bytes.HasPrefix(r.data[r.pos:], []byte("false")):
		return "a boolean"
	case bytes.HasPrefix(r.data[r.pos:], []byte("null")):
		return "null"
	}
	c, _ := utf8.DecodeRune(r.data[r.pos:])
	return strconv.QuoteRune(c)
}

// next skips white space and returns the byte at the cursor, or 0 at the end or after an error.
func (r *reader) next() byte {
	if r.err != nil {
		return 0
	}
	for r.pos < len(r.data) {
		switch c := r.data[r.pos]; c {
		case ' ', '\t', '\n', '\r':
			r.pos++
		default:
			return c
		}
	}
	return 0
}

// take steps over c if it comes next.
func (r *reader) take(c byte) bool {
	if r.next() != c {
		return false
	}
	r.pos++
	return true
}

// word steps over a literal such as null if it comes next.
func (r *reader) word(literal string) bool {
	if r.next() == 0 || !bytes.HasPrefix(r.data[r.pos:], []byte(literal)) {
		return false
	}
	r.pos += len(literal)
	return true
}

// null steps over null and reports whether it was there.
func (r *reader) null() bool { return r.word("null") }

// object calls field for each key, with the cursor before the key's value, which field must read.
func (r *reader) object(field func(key string)) {
	if !r.take('{') {
		r.want("an object")
		return
	}
	for first := true; r.separator('}', first); first = false {
		key := r.string()
		if !r.take(':') {
			r.want("':'")
			return
		}
		r.enter(segment{key: key, index: -1})
		field(key)
		r.leave()
	}
}

// array calls element for each index, with the cursor before the element, which element must read.
func (r *reader) array(element func(i int)) {
	if !r.take('[') {
		r.want("an array")
		return
	}
	for i := 0; r.separator(']', i == 0); i++ {
		r.enter(segment{index: i})
		element(i)
		r.leave()
	}
}

func (r *reader) enter(s segment) {
	r.path = append(r.path, s)
	if len(r.path) > maxDepth {
		r.err = fmt.Errorf("values nest deeper than %d at byte %d", maxDepth, r.pos)
	}
}

func (r *reader) leave() { r.path = r.path[:len(r.path)-1] }

// separator reports whether another member follows, stepping over the comma between members or the closing byte.
func (r *reader) separator(closing byte, first bool) bool {
	if r.take(closing) || r.err != nil {
		return false
	}
	if first {
		return true
	}
	if !r.take(',') {
		r.want(fmt.Sprintf("',' or %q", closing))
	}
	return r.err == nil
}

func (r *reader) string() string { return string(r.text()) }

// text reads a string and returns its bytes, which must not be changed.
func (r *reader) text() []byte {
	if r.next() != '"' {
		r.want("a string")
		return nil
	}
	start, escaped := r.pos, false
	for i := start + 1; i < len(r.data); i++ {
		switch c := r.data[i]; {
		case c == '\\':
			escaped = true
			i++
		case c < ' ':
			r.fail("control character %#02x inside a string at byte %d", c, i)
			return nil
		case c == '"':
			r.pos = i + 1
			return r.unquote(r.data[start:r.pos], escaped)
		}
	}
	r.fail("string at byte %d never ends", start)
	return nil
}

func (r *reader) unquote(quoted []byte, escaped bool) []byte {
	if !utf8.Valid(quoted) {
		r.fail("string before byte %d is not UTF-8", r.pos)
		return nil
	}
	if !escaped {
		return quoted[1 : len(quoted)-1]
	}
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		r.fail("bad escape in the string before byte %d", r.pos)
	}
	return []byte(s)
}

func (r *reader) bool() bool {
	if r.word("true") {
		return true
	}
	if !r.word("false") {
		r.want("true or false")
	}
	return false
}

// number reads a number and returns its text.
func (r *reader) number() string {
	if c := r.next(); c != '-' && (c < '0' || c > '9') {
		r.want("a number")
		return "0"
	}
	start := r.pos
	for r.pos < len(r.data) && strings.IndexByte("+-.0123456789eE", r.data[r.pos]) >= 0 {
		r.pos++
	}
	return string(r.data[start:r.pos])
}

// int reads an integer from 0 to 2³¹-1, which is what a token id or a count may be.
func (r *reader) int() int32 {
	s := r.number()
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		r.fail("want an integer from 0 to %d, found %s", 1<<31-1, s)
	}
	return int32(n)
}

// skip reads any value and forgets it.
func (r *reader) skip() {
	switch c := r.next(); {
	case c == '{':
		r.object(func(string) { r.skip() })
	case c == '[':
		r.array(func(int) { r.skip() })
	case c == '"':
		r.text()
	case r.word("true"), r.word("false"), r.null():
	case c == '-' || c >= '0' && c <= '9':
		if s := r.number(); !json.Valid([]byte(s)) {
			r.fail("bad number %s", s)
		}
	default:
		r.want("a value")
	}
}
