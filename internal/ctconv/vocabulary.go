package ctconv

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// readVocabulary reads vocabulary.json, or vocabulary.txt as converters wrote it before June 2023.
func (m *Model) readVocabulary(dir fs.FS) error {
	name, parse := "vocabulary.json", vocabularyJSON
	data, err := fs.ReadFile(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		name, parse = "vocabulary.txt", vocabularyText
		data, err = fs.ReadFile(dir, name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return &Error{File: m.Dir, Offset: -1, Err: err, Defect: "want vocabulary.json or vocabulary.txt, the directory has neither"}
	}
	file := path.Join(m.Dir, name)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	if m.Vocabulary, err = parse(file, data); err != nil {
		return err
	}
	t, err := m.Want(embeddings, -1, -1)
	if err != nil {
		return err
	}
	if len(m.Vocabulary) != t.Shape[0] {
		return &Error{File: file, Offset: -1, Defect: fmt.Sprintf("want %d tokens, one for each row of %s, file has %d", t.Shape[0], embeddings, len(m.Vocabulary))}
	}
	return nil
}

func vocabularyJSON(file string, data []byte) ([]string, error) {
	if list, ok := plainStrings(string(data)); ok {
		return list, nil
	}
	var tokens []*string // a null is no token, and a plain string would hide it
	if err := json.Unmarshal(data, &tokens); err != nil {
		return nil, jsonError(file, "an array of strings", err)
	}
	list := make([]string, len(tokens))
	for id, token := range tokens {
		if token == nil {
			return nil, &Error{File: file, Offset: -1, Defect: fmt.Sprintf("want an array of strings, token %d is null", id)}
		}
		list[id] = *token
	}
	return list, nil
}

// plainStrings reads an array of strings that is as converters write it, in a tenth of encoding/json's time: 256,000 tokens are read with
// every run. The strings share text's memory. What is not so, or no JSON, is left to encoding/json.
func plainStrings(text string) (list []string, ok bool) {
	if !utf8.ValidString(text) {
		return nil, false
	}
	i := 0
	take := func(c byte) bool {
		for i < len(text) && strings.IndexByte(" \t\r\n", text[i]) >= 0 {
			i++
		}
		if i == len(text) || text[i] != c {
			return false
		}
		i++
		return true
	}
	if !take('[') {
		return nil, false
	}
	list = make([]string, 0, strings.Count(text, `"`)/2)
	for more := true; more; more = take(',') {
		if !take('"') {
			return nil, false
		}
		start, escaped := i, false
		for ; i < len(text) && text[i] != '"'; i++ {
			if text[i] < ' ' {
				return nil, false
			}
			if text[i] == '\\' {
				escaped = true
				i++
			}
		}
		if i >= len(text) {
			return nil, false
		}
		token := text[start:i]
		if escaped {
			if token, ok = unescape(token); !ok {
				return nil, false
			}
		}
		list = append(list, token)
		i++
	}
	return list, take(']') && !take(']') && i == len(text) // take has stepped over white space
}

// unescape is the text of a JSON string with escapes. It leaves alone what only encoding/json would understand.
func unescape(s string) (string, bool) {
	text := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			text = append(text, s[i])
			continue
		}
		i++
		if at := strings.IndexByte(`"\/bfnrt`, s[i]); at >= 0 {
			text = append(text, "\"\\/\b\f\n\r\t"[at])
			continue
		}
		if s[i] != 'u' || i+5 > len(s) {
			return "", false
		}
		unit, err := strconv.ParseUint(s[i+1:i+5], 16, 16)
		if err != nil || utf16.IsSurrogate(rune(unit)) {
			var text string
			err := json.Unmarshal([]byte(`"`+s+`"`), &text)
			return text, err == nil
		}
		text = utf8.AppendRune(text, rune(unit))
		i += 4
	}
	return string(text), true
}

// vocabularyText takes one token a line. A carriage return belongs to the token, unless every line ends with one
// (CTranslate2, src/vocabulary.cc).
func vocabularyText(_ string, data []byte) ([]string, error) {
	if len(data) == 0 {
		return nil, nil
	}
	list := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	for _, token := range list {
		if !strings.HasSuffix(token, "\r") {
			return list, nil
		}
	}
	for id, token := range list {
		list[id] = strings.TrimSuffix(token, "\r")
	}
	return list, nil
}

// TokenID is the id of a token string: its first place in the vocabulary. CTranslate2 appends an unk_token that the
// list lacks and so gives it an id beyond the embedding (src/vocabulary.cc); here such a token has no id.
func (m *Model) TokenID(token string) (id int, ok bool) {
	id = slices.Index(m.Vocabulary, token)
	return id, id >= 0
}
