package tokenizer

import (
	"encoding/json"
	"flag"
	"maps"
	"slices"
	"testing"
	"unsafe"
)

var casesFile = flag.String("cases", "testdata/cases.json", "what scripts/oracles/tokenizer_cases.py wrote")

// TestCases holds every supported component, and every flag of added tokens, to Hugging Face's tokenizers library on
// small tokenizers.
func TestCases(t *testing.T) {
	file := readJSON[struct {
		Models map[string]json.RawMessage
		Cases  []struct {
			Name, Model string
			Added       json.RawMessage `json:"added_tokens"`
			Components  map[string]json.RawMessage
			Texts       []struct {
				Text        string
				IDs         []int
				WithSpecial []int `json:"ids_special"`
			}
			Lists []struct {
				IDs         []int
				Text        string
				SkipSpecial string `json:"text_skip"`
			}
		}
	}](t, *casesFile)
	if len(file.Cases) == 0 {
		t.Fatal("no cases")
	}
	for _, c := range file.Cases {
		t.Run(c.Name, func(t *testing.T) {
			parts := map[string]json.RawMessage{"added_tokens": c.Added, "model": file.Models[c.Model]}
			maps.Copy(parts, c.Components)
			data := marshal(t, parts)
			tok, err := Parse(c.Name, unsafe.String(&data[0], len(data)))
			if err != nil {
				t.Fatal(err)
			}
			clear(data)
			for _, x := range c.Texts {
				if got := tok.Encode(x.Text, false); !slices.Equal(got, x.IDs) {
					t.Errorf("Encode(%q, false)\n got %v\nwant %v", x.Text, got, x.IDs)
				}
				if got := tok.Encode(x.Text, true); !slices.Equal(got, x.WithSpecial) {
					t.Errorf("Encode(%q, true)\n got %v\nwant %v", x.Text, got, x.WithSpecial)
				}
			}
			for _, x := range c.Lists {
				if got := tok.Decode(x.IDs, false); got != x.Text {
					t.Errorf("Decode(%v, false)\n got %q\nwant %q", x.IDs, got, x.Text)
				}
				if got := tok.Decode(x.IDs, true); got != x.SkipSpecial {
					t.Errorf("Decode(%v, true)\n got %q\nwant %q", x.IDs, got, x.SkipSpecial)
				}
			}
		})
	}
}
