package ctconv

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
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
