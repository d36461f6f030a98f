package ctconv

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math"
	"path"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A Vocabulary is the list of a model's tokens, in the tokenizer's inner spelling. Its zero value has none.
type Vocabulary struct {
	text string   // the tokens, one behind the other: there are a quarter of a million of them
	ends []uint32 // by id: where the token ends in text; it begins where the one before it ends
}

// NewVocabulary has the tokens in the order of their ids.
func NewVocabulary(tokens ...string) Vocabulary {
	l := &tokenList{}
	for _, token := range tokens {
		l.text.WriteString(token)
		l.end()
	}
	return l.vocabulary()
}

// Len is the number of tokens, which the embedding has rows for.
func (v Vocabulary) Len() int { return len(v.ends) }

// Token is the one that has an id, which must be from 0 to Len()-1.
func (v Vocabulary) Token(id int) string {
	start := uint32(0)
	if id > 0 {
		start = v.ends[id-1]
	}
	return v.text[start:v.ends[id]]
}

// All gives each id with its token.
func (v Vocabulary) All() iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		for id := range v.ends {
			if !yield(id, v.Token(id)) {
				return
			}
		}
	}
}

// tokenList is a vocabulary in the making: text is written to, and end called behind each token.
type tokenList struct {
	text strings.Builder
	ends []uint32
}

func (l *tokenList) end() { l.ends = append(l.ends, uint32(l.text.Len())) }

func (l *tokenList) vocabulary() Vocabulary { return Vocabulary{l.text.String(), l.ends} }

// maxVocabulary is how many bytes of text a vocabulary may have, so that its ends fit.
const maxVocabulary = math.MaxInt32

// readVocabulary reads vocabulary.json, or vocabulary.txt as converters wrote it before June 2023.
func (m *Model) readVocabulary() error {
	name, parse := "vocabulary.json", vocabularyJSON
	data, done, err := m.beside(name)
	if errors.Is(err, fs.ErrNotExist) {
		name, parse = "vocabulary.txt", vocabularyText
		data, done, err = m.beside(name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return &Error{File: m.Dir, Offset: -1, Err: err, Defect: "want vocabulary.json or vocabulary.txt, the directory has neither"}
	}
	file := path.Join(m.Dir, name)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	defer done()
	if len(data) > maxVocabulary {
		return &Error{File: file, Offset: -1, Defect: fmt.Sprintf("want at most %d bytes, file has %d", maxVocabulary, len(data))}
	}
	if m.Vocabulary, err = parse(file, data); err != nil {
		return err
	}
	t, err := m.Want(embeddings, -1, -1)
	if err != nil {
		return err
	}
	if n := m.Vocabulary.Len(); n != t.Shape[0] {
		return &Error{File: file, Offset: -1, Defect: fmt.Sprintf("want %d tokens, one for each row of %s, file has %d", t.Shape[0], embeddings, n)}
	}
	return nil
}

func vocabularyJSON(file string, data []byte) (Vocabulary, error) {
	if v, ok := plainStrings(data); ok {
		return v, nil
	}
	var tokens []*string // a null is no token, and a plain string would hide it
	if err := json.Unmarshal(data, &tokens); err != nil {
		return Vocabulary{}, jsonError(file, "an array of strings", err)
	}
	list := make([]string, len(tokens))
	for id, token := range tokens {
		if token == nil {
			return Vocabulary{}, &Error{File: file, Offset: -1, Defect: fmt.Sprintf("want an array of strings, token %d is null", id)}
		}
		list[id] = *token
	}
	return NewVocabulary(list...), nil
}

// plainStrings reads an array of strings that is as converters write it, in a tenth of encoding/json's time: 256,000 tokens are read with
// every run. What is not so, or no JSON, is left to encoding/json.
func plainStrings(data []byte) (v Vocabulary, ok bool) {
	if !utf8.Valid(data) {
		return v, false
	}
	i := 0
	take := func(c byte) bool {
		for i < len(data) && (data[i] == ' ' || data[i] == '\n' || data[i] == '\t' || data[i] == '\r') {
			i++
		}
		if i == len(data) || data[i] != c {
			return false
		}
		i++
		return true
	}
	if !take('[') {
		return v, false
	}
	list := &tokenList{ends: make([]uint32, 0, bytes.Count(data, []byte{'"'})/2)}
	list.text.Grow(len(data) / 2)
	for more := true; more; more = take(',') {
		if !take('"') {
			return v, false
		}
		start := i
		for ; i < len(data) && data[i] != '"'; i++ {
			if data[i] < ' ' {
				return v, false
			}
			if data[i] == '\\' {
				list.text.Write(data[start:i])
				char, size := unescape(data[i:])
				if size == 0 {
					return v, false
				}
				list.text.WriteRune(char)
				start = i + size
				i = start - 1
			}
		}
		if i == len(data) {
			return v, false
		}
		list.text.Write(data[start:i])
		list.end()
		i++
	}
	return list.vocabulary(), take(']') && !take(']') && i == len(data) // take has stepped over white space
}

// unescape is the character of the escape that s begins with, and how long that is; 0 if it is none.
func unescape(s []byte) (char rune, size int) {
	if len(s) < 2 {
		return 0, 0
	}
	if s[1] != 'u' {
		if at := strings.IndexByte(`"\/bfnrt`, s[1]); at >= 0 {
			return rune("\"\\/\b\f\n\r\t"[at]), 2
		}
		return 0, 0
	}
	if char, size = unit(s); utf16.IsSurrogate(char) {
		low, _ := unit(s[size:])
		if char = utf16.DecodeRune(char, low); char != utf8.RuneError {
			size *= 2
		}
	}
	return char, size
}

// unit is the UTF-16 code unit of an escape \uNNNN; its size is 0 if there is none.
func unit(s []byte) (n rune, size int) {
	size = len(`\u0000`)
	if len(s) < size || s[0] != '\\' || s[1] != 'u' {
		return 0, 0
	}
	for _, c := range s[2:size] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, 0
		}
		n = n<<4 | rune(c)
	}
	return n, size
}

// vocabularyText takes one token a line. A carriage return belongs to the token, unless every line ends with one
// (CTranslate2, src/vocabulary.cc).
func vocabularyText(_ string, data []byte) (Vocabulary, error) {
	if len(data) == 0 {
		return Vocabulary{}, nil
	}
	list := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	for _, token := range list {
		if !strings.HasSuffix(token, "\r") {
			return NewVocabulary(list...), nil
		}
	}
	for id, token := range list {
		list[id] = strings.TrimSuffix(token, "\r")
	}
	return NewVocabulary(list...), nil
}

// TokenID is the id of a token string: its first place in the vocabulary. CTranslate2 appends an unk_token that the
// list lacks and so gives it an id beyond the embedding (src/vocabulary.cc); here such a token has no id.
func (m *Model) TokenID(token string) (id int, ok bool) {
	for id, t := range m.Vocabulary.All() {
		if t == token {
			return id, true
		}
	}
	return -1, false
}
