package tokenizer

import (
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
// The first error sticks in err; from then on every method returns a zero value at once. Keys, texts and numbers lie in data, which may go
// away when all has been read.
type reader struct {
	data string
	pos  int
	path []segment
	err  error

	comma, colon gap // before and behind the keys of objects
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

// failIn records an error about a member of the current value.
func (r *reader) failIn(key, format string, args ...any) {
	r.enter(segment{key: key, index: -1})
	r.fail(format, args...)
	r.leave()
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
	case strings.HasPrefix(r.data[r.pos:], "true"), strings.HasPrefix(r.data[r.pos:], "false"):
		return "a boolean"
	case strings.HasPrefix(r.data[r.pos:], "null"):
		return "null"
	}
	c, _ := utf8.DecodeRuneInString(r.data[r.pos:])
	return strconv.QuoteRune(c)
}

// next skips white space and returns the byte at the cursor, or 0 at the end or after an error.
func (r *reader) next() byte {
	if r.err != nil {
		return 0
	}
	for i := r.pos; i < len(r.data); i++ {
		switch c := r.data[i]; c {
		case ' ', '\t', '\n', '\r':
		default:
			r.pos = i
			return c
		}
	}
	r.pos = len(r.data)
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
	if r.next() == 0 || !strings.HasPrefix(r.data[r.pos:], literal) {
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
	for more := r.separator('}', true); more; more = r.comma.step(r, func() bool { return r.separator('}', false) }) {
		key := r.text()
		if !r.colon.step(r, func() bool { return r.take(':') }) {
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

// A gap is what stood in some place, such as between two members of an object, the last time. Nearly always the same stands there the next
// time, and to compare is faster than to read.
type gap string

// step steps over the gap, or has it read.
func (g *gap) step(r *reader, read func() bool) bool {
	if r.err == nil && *g != "" && strings.HasPrefix(r.data[r.pos:], string(*g)) {
		r.pos += len(*g)
		return true
	}
	start := r.pos
	if !read() {
		return false
	}
	r.next()
	*g = gap(r.data[start:r.pos])
	return true
}

// string reads a string to keep.
func (r *reader) string() string { return strings.Clone(r.text()) }

// text reads a string, which lies in data.
func (r *reader) text() string {
	s := r.raw()
	if !utf8.ValidString(s) {
		r.fail("string before byte %d is not UTF-8", r.pos)
		return ""
	}
	return s
}

// raw reads a string that need not be UTF-8.
func (r *reader) raw() string {
	if r.next() != '"' {
		r.want("a string")
		return ""
	}
	start, escaped := r.pos+1, false
	for i := start; i < len(r.data); i++ {
		switch c := r.data[i]; {
		case c > '\\':
		case c == '"':
			r.pos = i + 1
			if escaped {
				return r.unescape(r.data[start:i])
			}
			return r.data[start:i]
		case c == '\\':
			escaped = true
			i++
		case c < ' ':
			r.fail("control character %#02x inside a string at byte %d", c, i)
			return ""
		}
	}
	r.fail("string at byte %d never ends", r.pos)
	return ""
}

func (r *reader) unescape(s string) (text string) {
	if !utf8.ValidString(s) { // which encoding/json would hide
		return s
	}
	if err := json.Unmarshal([]byte(`"`+s+`"`), &text); err != nil {
		r.fail("bad escape in the string before byte %d", r.pos)
	}
	return text
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
	for r.pos < len(r.data) && (isDigit(r.data[r.pos]) || strings.IndexByte("+-.eE", r.data[r.pos]) >= 0) {
		r.pos++
	}
	return r.data[start:r.pos]
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

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
