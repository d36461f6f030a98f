package tokenizer

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

var update = flag.Bool("update", false, "rewrite testdata/reduced_*.json from the tokenizers in LLMRUN_TOKENIZERS")

// families are the tokenizers of testdata: oracle_NAME.json and rand_NAME.json hold what Hugging Face's tokenizers
// library says, reduced_NAME.json as much of the tokenizer as those need (see reduce_test.go).
// gemini is the vocabulary of Gemma 1 and 2; Qwen3 has the vocabulary and pattern of Qwen2 and Qwen2.5.
var families = []string{"gemini", "gemma3", "llama3", "qwen3"}

// An encoding is a text with its ids, and what those decode to.
type encoding struct {
	Text        string `json:"s"`
	IDs         []int  `json:"ids"`  // without what the post-processor adds
	WithSpecial []int  `json:"ids2"` // with it
	Decoded     string `json:"dec"`
	SkipSpecial string `json:"decskip"`
}

// A decoding is a list of random ids with its text.
type decoding struct {
	IDs     []int  `json:"ids"`
	Decoded string `json:"dec"`
}

func readJSON[T any](t *testing.T, path string) (v T) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func oracle(t *testing.T, family string) ([]encoding, []decoding) {
	t.Helper()
	return readJSON[[]encoding](t, filepath.Join("testdata", "oracle_"+family+".json")),
		readJSON[[]decoding](t, filepath.Join("testdata", "rand_"+family+".json"))
}

// fullTokenizer loads a published tokenizer from the folder that scripts/oracles/tokenizers.sh fills.
func fullTokenizer(t *testing.T, family string) *Tokenizer {
	t.Helper()
	dir := os.Getenv("LLMRUN_TOKENIZERS")
	if dir == "" {
		if os.Getenv("LLMRUN_REQUIRE_TOKENIZERS") == "1" {
			t.Fatal("LLMRUN_TOKENIZERS is not set, and LLMRUN_REQUIRE_TOKENIZERS=1")
		}
		t.Skip("LLMRUN_TOKENIZERS is not set: scripts/oracles/tokenizers.sh makes that folder")
	}
	tok, err := Load(filepath.Join(dir, family))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestGolden(t *testing.T) {
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			tok, err := Load(filepath.Join("testdata", "reduced_"+family+".json"))
			if err != nil {
				t.Fatal(err)
			}
			checkGolden(t, tok, family)
		})
	}
}

func TestGoldenFull(t *testing.T) {
	for _, family := range families {
		t.Run(family, func(t *testing.T) { checkGolden(t, fullTokenizer(t, family), family) })
	}
}

func checkGolden(t *testing.T, tok *Tokenizer, family string) {
	encodings, decodings := oracle(t, family)
	for _, e := range encodings {
		if got := tok.Encode(e.Text, false); !slices.Equal(got, e.IDs) {
			t.Errorf("Encode(%q, false)\n got %v\nwant %v", e.Text, got, e.IDs)
		}
		if got := tok.Encode(e.Text, true); !slices.Equal(got, e.WithSpecial) {
			t.Errorf("Encode(%q, true)\n got %v\nwant %v", e.Text, got, e.WithSpecial)
		}
		if got := tok.Decode(e.IDs, false); got != e.Decoded {
			t.Errorf("Decode(%v, false)\n got %q\nwant %q", e.IDs, got, e.Decoded)
		}
		if got := tok.Decode(e.IDs, true); got != e.SkipSpecial {
			t.Errorf("Decode(%v, true)\n got %q\nwant %q", e.IDs, got, e.SkipSpecial)
		}
	}
	for _, d := range decodings {
		if got := tok.Decode(d.IDs, false); got != d.Decoded {
			t.Errorf("Decode(%v, false)\n got %q\nwant %q", d.IDs, got, d.Decoded)
		}
	}
	t.Logf("%d texts, %d id lists", len(encodings), len(decodings))
}
