package ctconv

import (
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"llmrun/internal/num"
)

// Header is what can be told of a model at a glance.
type Header struct {
	File       string         `json:"file"`
	Bytes      int64          `json:"bytes"`
	Version    int            `json:"version"`
	Spec       string         `json:"spec"`
	Revision   int            `json:"revision"`
	Variables  int            `json:"variables"`
	Aliases    int            `json:"aliases"`
	Layers     int            `json:"layers"`
	Parameters int            `json:"parameters"` // elements of all arrays, those with several names once
	DTypes     map[string]int `json:"dtypes"`     // arrays of each type
	Epsilon    *float64       `json:"layer_norm_epsilon"`
}

// Header summarizes the file.
func (m *Model) Header() Header {
	h := Header{File: m.file, Bytes: m.Size(), Version: m.Version, Spec: m.Spec, Revision: m.Revision, Layers: m.Layers(),
		DTypes: map[string]int{}, Epsilon: m.Config.LayerNormEpsilon}
	for _, t := range m.Tensors {
		if t.AliasOf != "" {
			h.Aliases++
			continue
		}
		h.Variables++
		if len(t.Shape) > 0 {
			h.Parameters += t.Elements()
			h.DTypes[t.DType.String()]++
		}
	}
	return h
}

// Sorted lists the tensors in the order of the file, an alias after what it is an alias of.
func (m *Model) Sorted() []Tensor {
	list := make([]Tensor, 0, len(m.Tensors))
	for _, t := range m.Tensors {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.AliasOf, b.AliasOf), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// Mod is a byte offset modulo the alignments that matter: of a float16, a float32, a vector, a cache line.
type Mod struct {
	By2  int64 `json:"2"`
	By4  int64 `json:"4"`
	By16 int64 `json:"16"`
	By64 int64 `json:"64"`
}

// ModOf reduces an offset.
func ModOf(offset int64) Mod { return Mod{offset % 2, offset % 4, offset % 16, offset % 64} }

// Alignment counts the arrays whose data starts off their element size: mapped as arrays they would be misread or
// fault. Arrays of one-byte elements cannot be off.
type Alignment struct {
	Arrays int `json:"arrays"`
	Off    int `json:"off_element_size"`
}

// Alignment looks at every array of the file.
func (m *Model) Alignment() Alignment {
	var a Alignment
	for _, t := range m.Tensors {
		if t.AliasOf == "" && len(t.Shape) > 0 {
			a.add(t.Offset, t.DType.Size())
		}
	}
	return a
}

func (a *Alignment) add(offset int64, size int) {
	a.Arrays++
	if offset%int64(size) != 0 {
		a.Off++
	}
}

// Special is a token with a role.
type Special struct {
	Token string `json:"token"`
	ID    *int   `json:"id"` // null if the vocabulary lacks it
}

// VocabularySummary tells what there is of tokens.
type VocabularySummary struct {
	Size       int      `json:"size"`
	BOS        Special  `json:"bos"`
	EOS        Special  `json:"eos"`
	Unk        Special  `json:"unk"`
	Duplicates []string `json:"duplicates"` // token strings that occur more than once; encoding gives the first id
	Padding    int      `json:"padding"`    // tokens that the converter made up to fill the matrix
	Tokenizer  []string `json:"tokenizer"`  // tokenizer files in the directory
}

// VocabularySummary looks through the tokens and for a tokenizer beside the model.
func (m *Model) VocabularySummary() VocabularySummary {
	v := VocabularySummary{Size: m.Vocabulary.Len(), BOS: m.special(m.Config.BOSToken), EOS: m.special(m.Config.EOSToken),
		Unk: m.special(m.Config.UnkToken), Duplicates: []string{}, Tokenizer: []string{}}
	count := make(map[string]int, m.Vocabulary.Len())
	for _, token := range m.Vocabulary.All() {
		if count[token]++; count[token] == 2 {
			v.Duplicates = append(v.Duplicates, token)
		}
		if strings.HasPrefix(token, "<extra_id_") || strings.HasPrefix(token, "madeupword") {
			v.Padding++
		}
	}
	for _, name := range []string{"tokenizer.json", "tokenizer.model", "tokenizer_config.json"} {
		if m.dir == nil { // parsed from bytes alone
			break
		}
		if _, err := fs.Stat(m.dir, name); err == nil {
			v.Tokenizer = append(v.Tokenizer, name)
		}
	}
	return v
}

func (m *Model) special(token string) Special {
	if id, ok := m.TokenID(token); ok {
		return Special{token, &id}
	}
	return Special{Token: token}
}

// Findings are remarks on what the file holds, worth a reader's attention whatever the original declared.
func (m *Model) Findings() []string {
	var list []string
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	v := m.VocabularySummary()
	for _, s := range []struct {
		name string
		Special
	}{{"bos_token", v.BOS}, {"eos_token", v.EOS}} {
		if s.Token == "" {
			add("%s is null or missing: CTranslate2 refuses to load the model", s.name)
		} else if s.ID == nil {
			add("%s %q is not in the vocabulary: CTranslate2 takes unk for it", s.name, s.Token)
		}
	}
	if v.Unk.ID == nil {
		add("unk_token %q is not in the vocabulary: CTranslate2 gives it id %d, one beyond the embedding; unknown tokens are refused here", v.Unk.Token, v.Size)
	}
	if n := len(v.Duplicates); n > 0 {
		add("%d tokens occur more than once in the vocabulary, first %q", n, v.Duplicates[0])
	}
	if !slices.ContainsFunc(v.Tokenizer, func(name string) bool { return name == "tokenizer.json" }) {
		add("no tokenizer.json: pass --tokenizer, or ids")
	}
	if n := m.Config.QuantizationType; n != 0 {
		add("quantization_type %d is AWQ, which has no CPU arithmetic in CTranslate2", n)
	}
	return append(list, m.variableFindings()...)
}

func (m *Model) variableFindings() []string {
	var list, inert []string
	layers, floats := m.Layers(), map[num.DType]int{}
	for _, t := range m.Sorted() {
		pattern, layer := layerOf(t.Name)
		if layer >= layers {
			list = append(list, fmt.Sprintf("%s is never read: layer_%d is missing", t.Name, layers))
		}
		if len(t.Shape) == 0 {
			if o := optionOf(pattern); o.effect == unknown && !strings.HasSuffix(t.Name, "_scale") && !m.moved(t.Name) {
				list = append(list, fmt.Sprintf("%s = %s has no meaning to CTranslate2 or llmrun", t.Name, m.show(t)))
			}
		} else if t.DType.IsFloat() && strings.HasSuffix(t.Name, "weight") {
			floats[t.DType]++
		}
		if strings.HasSuffix(t.Name, "/rotary_scaling_type") && m.inertScaling(t) {
			inert = append(inert, t.Name)
		}
	}
	if len(inert) > 0 {
		list = append(list, fmt.Sprintf("llama3 rotary scaling without a factor in %d layers: CTranslate2 computes as if there were none", len(inert)))
	}
	if len(floats) > 1 {
		list = append(list, "weights of several floating-point types: CTranslate2 picks one of them for all, by chance")
	}
	return list
}

func (m *Model) show(t Tensor) string {
	v, _, _, _ := m.scalar(t.Name)
	return option{}.show(v, t)
}

// inertScaling tells a llama3 scaling whose factor the converter did not store (CTranslate2,
// python/ctranslate2/specs/attention_spec.py): it divides by 1.
func (m *Model) inertScaling(kind Tensor) bool {
	v, _, _, err := m.scalar(kind.Name)
	factor, _ := m.Float(strings.TrimSuffix(kind.Name, "type")+"factor", 1)
	return err == nil && v == 2 && factor == 1
}
