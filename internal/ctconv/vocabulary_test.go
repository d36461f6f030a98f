package ctconv

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func tokens(v Vocabulary) (list []string) {
	for _, token := range v.All() {
		list = append(list, token)
	}
	return list
}

// plainStrings reads what encoding/json reads, or leaves it to it.
func TestPlainStrings(t *testing.T) {
	for text, plain := range map[string]bool{
		`["a", "b"]`:                              true,
		"[\n  \"<pad>\",\n  \"▁the\"\n]\n":        true,
		"[\t\"\"\r\n]":                            true,
		`["\"", "\\", "\\\"", "\u2581\n", "a\/"]`: true,
		`["\ud83d\ude00", "\ud800", "🙂"]`:         true,
		`["[", "]", ",", "a\"]"]`:                 true,
		`[]`:                                      false,
		`["a", null]`:                             false,
		`[null, "a"]`:                             false,
		`["a" "b"]`:                               false,
		`["a",]`:                                  false,
		`["a"`:                                    false,
		`["a`:                                     false,
		`["a\`:                                    false,
		`["a\"]`:                                  false,
		`["\x"]`:                                  false,
		`["a"] x`:                                 false,
		`["a"]]`:                                  false,
		"[\"a\nb\"]":                              false,
		"[\"a\xff\"]":                             false,
		` ["a"] `:                                 true,
		`["\b\f\n\r\t\/\u00e9\u0000\uFFFF"]`:      true,
		`["\u12"]`:                                false,
		`["\u12x4"]`:                              false,
		`["\u+123"]`:                              false,
		`["\u"]`:                                  false,
		"[\"a\"]\x00":                             false,
		`["a", 1]`:                                false,
		`{"a": "b"}`:                              false,
		``:                                        false,
		`[`:                                       false,
	} {
		v, ok := plainStrings([]byte(text))
		got := tokens(v)
		if ok != plain {
			t.Errorf("%s: want plain: %v, got %v", text, plain, ok)
		}
		var want []string
		if err := json.Unmarshal([]byte(text), &want); ok && (err != nil || !slices.Equal(got, want)) {
			t.Errorf("%s: want %q (%v), got %q", text, want, err, got)
		}
	}
}

func BenchmarkVocabulary(b *testing.B) {
	tokens := make([]string, 256000)
	for id := range tokens {
		tokens[id] = strings.Repeat("▁", id%3) + strings.Repeat("e", id%11)
	}
	text, err := json.MarshalIndent(tokens, "", "  ")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := vocabularyJSON("vocabulary.json", text); err != nil {
			b.Fatal(err)
		}
	}
}
