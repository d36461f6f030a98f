package tokenizer

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestReduce holds testdata/reduced_NAME.json to the published tokenizer; with -update it writes them.
//
// A reduced tokenizer keeps ids, merges in order and all components, but only what the oracles can reach:
// the tokens that occur inside the words their texts are cut into, the merges that make those, the tokens of
// the id lists, the tokens of single bytes, and the added tokens that occur in a text. A merge left out makes a token that
// occurs in no word, so it never applies, and every text is encoded by the same merges as in full.
func TestReduce(t *testing.T) {
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			full := fullTokenizer(t, family)
			data, err := os.ReadFile(filepath.Join(os.Getenv("LLMRUN_TOKENIZERS"), family, "tokenizer.json"))
			if err != nil {
				t.Fatal(err)
			}
			encodings, decodings := oracle(t, family)
			got := reduced(t, full, data, encodings, decodings)
			path := filepath.Join("testdata", "reduced_"+family+".json")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s is not what the published tokenizer reduces to; -update writes it", path)
			}
		})
	}
}

func reduced(t *testing.T, full *Tokenizer, data []byte, encodings []encoding, decodings []decoding) []byte {
	keep := map[string]bool{}
	texts := ""
	for _, e := range encodings {
		texts += e.Text + "\n"
		keepIDs(keep, full, e.WithSpecial)
		text := func(s string) { full.split(full.normalize(s), func(w string) { keepInside(keep, full.model, w) }) }
		full.asTyped.split(e.Text, text, func(int32) {})
	}
	for _, d := range decodings {
		keepIDs(keep, full, d.IDs)
	}
	for place := range full.model.vocabulary.ids {
		token := full.model.vocabulary.token(place)
		_, isByte := byteToken(token)
		if isByte || len(appendByteLevel(nil, token)) == 1 || token == full.model.unkText {
			keep[token] = true
		}
	}
	var top, model map[string]json.RawMessage
	var added []map[string]any
	var vocab map[string]int
	var merges []json.RawMessage
	unmarshal(t, data, &top)
	unmarshal(t, top["added_tokens"], &added)
	unmarshal(t, top["model"], &model)
	unmarshal(t, model["vocab"], &vocab)
	unmarshal(t, model["merges"], &merges)
	added = slices.DeleteFunc(added, func(a map[string]any) bool {
		content := a["content"].(string)
		return !keep[content] && !strings.Contains(texts, content)
	})
	for _, a := range added { // one that is in model.vocab stays there
		keep[a["content"].(string)] = true
	}
	for token := range vocab {
		if !keep[token] {
			delete(vocab, token)
		}
	}
	merges = slices.DeleteFunc(merges, func(m json.RawMessage) bool {
		left, right, _ := (&mergeReader{reader: &reader{data: string(m)}}).merge()
		_, l := vocab[left]
		_, r := vocab[right]
		_, joined := vocab[left+right]
		return !l || !r || !joined
	})
	model["vocab"], model["merges"] = marshal(t, vocab), marshal(t, merges)
	top["added_tokens"], top["model"] = marshal(t, added), marshal(t, model)
	return append(marshal(t, top), '\n')
}

func keepIDs(keep map[string]bool, t *Tokenizer, ids []int) {
	for _, id := range ids {
		if token, ok := t.Token(id); ok {
			keep[token] = true
		}
	}
}

// longestToken is more bytes than any token has that these vocabularies hold.
const longestToken = 256

// keepInside keeps every token that occurs in the word w.
func keepInside(keep map[string]bool, m *model, w string) {
	for i := range w {
		for j := i + 1; j <= min(len(w), i+longestToken); j++ {
			if _, ok := m.vocabulary.id(w[i:j]); ok {
				keep[w[i:j]] = true
			}
		}
	}
}

func unmarshal(t *testing.T, data []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatal(err)
	}
}

func marshal(t *testing.T, v any) json.RawMessage {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSpace(b.Bytes())
}
