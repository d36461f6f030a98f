// Package tokenizer turns text into token ids and back, as a tokenizer.json says.
//
// It reads the byte-pair encodings of that format: byte-level ones (GPT-2, Llama 3, Qwen, SmolLM2) and those with
// byte fallback (Gemma). A text goes through
//
//	added tokens → normalizer → pre-tokenizer → model → post-processor
//
// and ids go back through the decoder. A kind of component that is not supported is refused by name when the
// file is read, and never ignored. Truncation and padding are not applied.
package tokenizer

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"unsafe"

	"llmrun/internal/mapped"
)

// A Tokenizer is safe for use by several goroutines.
type Tokenizer struct {
	model     *model
	added     map[int32]addedToken
	addedIDs  map[string]int32
	asTyped   addedSet // found in the text before it is normalized
	inNormal  addedSet // found in the normalized text
	normalize normalizer
	split     splitter
	before    []int32 // what the post-processor puts in front of every text
	after     []int32 // and behind it
	decoder   decoder
	size      int
}

// maxFile is how many bytes a tokenizer.json may have, so that places in its texts fit into 32 bits.
const maxFile = math.MaxInt32

// Load reads a tokenizer.json: path is that file, or a directory that holds it. An error that the file is
// missing wraps fs.ErrNotExist.
func Load(path string) (*Tokenizer, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "tokenizer.json")
	}
	file, err := mapped.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return Parse(path, unsafe.String(unsafe.SliceData(file.Data), len(file.Data)))
}

// Parse reads the contents of a tokenizer.json, of which it keeps nothing. Its errors begin with name and the place in the file, such as
// "tokenizer.json: added_tokens[3].id: …".
func Parse(name, data string) (*Tokenizer, error) {
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: want at most %d bytes, found %d", name, maxFile, len(data))
	}
	f, err := readFile(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	t, err := f.build()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return t, nil
}

func (f *file) build() (t *Tokenizer, err error) {
	t = &Tokenizer{
		model:     f.model,
		added:     make(map[int32]addedToken, len(f.added)),
		addedIDs:  make(map[string]int32, len(f.added)),
		normalize: func(s string) string { return s },
		split:     func(s string, emit func(string)) { emit(s) },
	}
	if f.normalizer != nil {
		if t.normalize, err = f.normalizer.normalizer(); err != nil {
			return nil, err
		}
	}
	if f.preTokenizer != nil {
		if t.split, err = f.preTokenizer.splitter(); err != nil {
			return nil, err
		}
	}
	if t.decoder, err = f.decoder.decoder(); err != nil {
		return nil, err
	}
	if f.postProcessor != nil {
		if err = f.postProcessor.postProcessor(t); err != nil {
			return nil, err
		}
	}
	if err := t.addTokens(f.added); err != nil {
		return nil, err
	}
	for _, id := range slices.Concat(t.before, t.after) {
		if _, ok := t.Token(int(id)); !ok {
			return nil, at(f.postProcessor.path, "adds id %d, which is not in the vocabulary", id)
		}
	}
	return t, t.checkUnknown()
}

// addTokens takes the added tokens in. One that the model's vocabulary has too must have the same id there.
func (t *Tokenizer) addTokens(tokens []addedToken) error {
	v := t.model.vocabulary
	if n := len(v.ids); n > 0 {
		t.size = int(v.ids[n-1]) + 1
	}
	for i, a := range tokens {
		at := func(format string, args ...any) error { return at(fmt.Sprintf("added_tokens[%d]", i), format, args...) }
		if id, ok := v.id(a.content); ok && id != a.id {
			return at("%q has id %d, but id %d in model.vocab", a.content, a.id, id)
		}
		if token, ok := v.byID(a.id); ok && token != a.content {
			return at("%q has id %d, which is %q in model.vocab", a.content, a.id, token)
		}
		if other, ok := t.added[a.id]; ok {
			return at("%q has id %d, which is %q already", a.content, a.id, other.content)
		}
		if id, ok := t.addedIDs[a.content]; ok {
			return at("%q has id %d, but id %d already", a.content, a.id, id)
		}
		set := &t.asTyped
		a.text = a.content
		if a.normalized {
			set = &t.inNormal
			a.text = t.normalize(a.content)
		}
		set.add(a)
		t.added[a.id] = a
		t.addedIDs[a.content] = a.id
		t.size = max(t.size, int(a.id)+1)
	}
	return nil
}

// checkUnknown finds the token for unknown characters among the added ones if the model has none such.
func (t *Tokenizer) checkUnknown() error {
	m := t.model
	if m.unkText == "" || m.unk >= 0 {
		return nil
	}
	id, ok := t.addedIDs[m.unkText]
	if !ok {
		return at("model.unk_token", "%q is not in the vocabulary", m.unkText)
	}
	m.unk = id
	return nil
}

// postProcessor notes what the post-processor puts around a text.
func (c *component) postProcessor(t *Tokenizer) error {
	switch c.kind {
	case "Sequence":
		for i := range c.parts {
			if err := c.parts[i].postProcessor(t); err != nil {
				return err
			}
		}
		return nil
	case "ByteLevel": // corrects offsets, not ids
		return nil
	case "TemplateProcessing":
		return c.template(t)
	}
	return at(c.path, "post-processor %q is not supported (Sequence, ByteLevel, TemplateProcessing are)", c.kind)
}

func (c *component) template(t *Tokenizer) error {
	var around [2][]int32
	side := 0
	for i, p := range c.single {
		path := fmt.Sprintf("%s.single[%d]", c.path, i)
		switch {
		case p.special != "":
			ids := c.specials[p.special]
			if len(ids) == 0 {
				return at(path, "%q has no ids in special_tokens", p.special)
			}
			around[side] = append(around[side], ids...)
		case p.sequence != "A" || side == 1:
			return at(path, "want sequence A once, found sequence %q", p.sequence)
		default:
			side = 1
		}
	}
	if side == 0 {
		return at(c.path+".single", "want sequence A once, found none")
	}
	t.before = append(around[0], t.before...)
	t.after = append(t.after, around[1]...)
	return nil
}

// Encode returns the ids of text. With addSpecial, what the post-processor adds by itself stands around
// them, such as Gemma's <bos>. Added tokens that the text spells out, special ones too, become those tokens.
// Bytes that are not UTF-8 are read as U+FFFD.
func (t *Tokenizer) Encode(text string, addSpecial bool) []int {
	m := merger{model: t.model}
	if addSpecial {
		m.ids = append(m.ids, t.before...)
	}
	add := func(id int32) { m.ids = append(m.ids, id) }
	text, _ = valid([]byte(text), true)
	t.asTyped.split(text, func(s string) {
		t.inNormal.split(t.normalize(s), func(s string) { t.split(s, m.word) }, add)
	}, add)
	if addSpecial {
		m.ids = append(m.ids, t.after...)
	}
	ids := make([]int, len(m.ids))
	for i, id := range m.ids {
		ids[i] = int(id)
	}
	return ids
}

// Decode returns the text of ids. With skipSpecial, special tokens leave no text. An id that the vocabulary
// does not have shows as "<unknown id N>"; bytes that form no character show as U+FFFD.
func (t *Tokenizer) Decode(ids []int, skipSpecial bool) string {
	s := t.NewStream(skipSpecial)
	var text []byte
	for _, id := range ids {
		text = append(text, s.Push(id)...)
	}
	return string(append(text, s.Flush()...))
}

// Token returns how the vocabulary spells id, such as "▁the", "Ġthe" or "<bos>".
func (t *Tokenizer) Token(id int) (string, bool) {
	if id < 0 || id >= t.size {
		return "", false
	}
	if a, ok := t.added[int32(id)]; ok {
		return a.content, true
	}
	return t.model.vocabulary.byID(int32(id))
}

// ID returns the id of a token as the vocabulary spells it.
func (t *Tokenizer) ID(token string) (int, bool) {
	if id, ok := t.model.vocabulary.id(token); ok {
		return int(id), true
	}
	id, ok := t.addedIDs[token]
	return int(id), ok
}

// VocabSize is the highest id plus one: what an embedding must have rows for.
func (t *Tokenizer) VocabSize() int { return t.size }

// IsSpecial reports whether id is a special token, one that marks the text up and is no part of it.
func (t *Tokenizer) IsSpecial(id int) bool {
	return id >= 0 && id < t.size && t.added[int32(id)].special
}

// AddsBOS returns the id that Encode with addSpecial puts in front of every text, if it puts one there.
func (t *Tokenizer) AddsBOS() (id int, ok bool) {
	if len(t.before) == 0 {
		return 0, false
	}
	return int(t.before[0]), true
}
