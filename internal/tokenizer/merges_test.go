package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

// TestTwoReaders reads the same tokenizer from files whose merges the second reader finds, misses, or takes other things for.
func TestTwoReaders(t *testing.T) {
	for _, family := range families {
		data, err := os.ReadFile(filepath.Join("testdata", "reduced_"+family+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var model struct{ Model map[string]json.RawMessage }
		var merges []json.RawMessage
		unmarshal(t, data, &model)
		unmarshal(t, model.Model["merges"], &merges)
		pairs, lines := make([][2]string, len(merges)), make([]string, len(merges))
		for i, m := range merges {
			left, right, _ := (&mergeReader{reader: &reader{data: string(m)}}).merge()
			pairs[i], lines[i] = [2]string{left, right}, left+" "+right
			if strings.Contains(left+right, " ") {
				lines = nil // no line can tell where such a pair is cut
				break
			}
		}
		for _, form := range []any{pairs, lines} {
			list := marshal(t, form)
			if bytes.Equal(list, []byte("null")) {
				continue
			}
			text := string(bytes.Replace(data, model.Model["merges"], list, 1))
			vocab := string(model.Model["vocab"])
			first := strings.Replace(text, `"vocab":`+vocab, `"ignored":0`, 1)
			first = strings.Replace(first, `"merges":`+string(list), `"merges":`+string(list)+`,"vocab":`+vocab, 1)
			if !strings.HasPrefix(text[strings.LastIndex(text, `"merges":`):], `"merges":`+string(list)) || !strings.Contains(first, `,"vocab":`) {
				t.Fatal("the file was not changed")
			}
			trap := strings.Repeat(`["x","x"],"x x",`, len(list)/8)
			for name, text := range map[string]string{
				"in one line":       text,
				"indented":          indent(t, text),
				"vocabulary behind": indent(t, first),
				"other lists":       indent(t, strings.TrimSuffix(text, "}\n")+`,"trap":[`+trap+`0]}`),
			} {
				t.Run(fmt.Sprintf("%s %T %s", family, form, name), func(t *testing.T) {
					checkGolden(t, parse(t, text), family)
				})
			}
		}
	}
}

func indent(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Indent(&b, []byte(text), "", "  "); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestMergeErrors: the place of an error does not depend on who found it.
func TestMergeErrors(t *testing.T) {
	for _, bad := range []int{0, 1, 49, 50, 51, 98, 99} {
		var lines []string
		for i := range 100 {
			line := `["a", "b"]`
			if i == bad {
				line = `["b", "a"]`
			}
			lines = append(lines, line)
		}
		_, err := Parse("t.json", "{\"model\": {\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\n"+strings.Join(lines, ",\n")+"\n]}}")
		if want := fmt.Sprintf(`t.json: model.merges[%d]: token "ba" is not in model.vocab`, bad); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestMergeTwice: the last place of a merge counts, as in Hugging Face's tokenizers.
func TestMergeTwice(t *testing.T) {
	for merges, want := range map[string][]int{`"a b", "b c"`: {3, 2}, `"a b", "b c", "a b"`: {0, 4}} {
		tok := parse(t, `{"model": {"vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4}, "merges": [`+merges+`]}}`)
		if got := tok.Encode("abc", false); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", merges, got, want)
		}
	}
}

// TestParseKeepsNothing: Load unmaps the file that Parse has read. TestCases does so with every component.
func TestParseKeepsNothing(t *testing.T) {
	for _, family := range families {
		data, err := os.ReadFile(filepath.Join("testdata", "reduced_"+family+".json"))
		if err != nil {
			t.Fatal(err)
		}
		tok := parse(t, unsafe.String(&data[0], len(data)))
		clear(data)
		checkGolden(t, tok, family)
	}
}
