package prompts

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestBuiltin(t *testing.T) {
	ids := func(model string) (all []string) {
		for _, p := range Builtin(model) {
			all = append(all, p.ID)
		}
		return all
	}
	everywhere := "once faces fox hen woman word token bytes long"
	if got := strings.Join(ids("tiny-gemma2"), " "); got != everywhere+" nobos" {
		t.Errorf("tiny-gemma2 has %s", got)
	}
	if got := strings.Join(ids("another"), " "); got != everywhere {
		t.Errorf("another model has %s", got)
	}
	all := Builtin("tiny-gemma2")
	want := Prompt{ID: "nobos", Text: "The fox said to the", BOS: BOSOff, Models: []string{"tiny-gemma2"}, Expect: ExpectVacuous}
	if got := all[len(all)-1]; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	want = Prompt{ID: "once", Text: "Once upon a time", BOS: BOSAuto, Expect: ExpectMatch}
	if !reflect.DeepEqual(all[0], want) {
		t.Errorf("got %+v, want %+v", all[0], want)
	}
}

// TestGoldenPrompts holds the texts to those that the embedded models' expected ids were made from.
func TestGoldenPrompts(t *testing.T) {
	data, err := os.ReadFile("../internal/models/testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden map[string][]struct{ ID, Text, Expect string }
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	for _, model := range []string{"tiny-gemma2", "tiny-qwen2"} {
		got := Builtin(model)
		if len(got) != len(golden[model]) {
			t.Errorf("%s: %d prompts, golden.json has %d", model, len(got), len(golden[model]))
			continue
		}
		for i, want := range golden[model] {
			if p := got[i]; p.ID != want.ID || p.Text != want.Text || p.Expect != want.Expect {
				t.Errorf("%s: got %+v, want %+v", model, p, want)
			}
		}
	}
}

func TestLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.yaml")
	load := func(text string) ([]Prompt, error) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return Load(file)
	}
	got, err := load("- id: a\n  ids: [2, 651]\n- {id: b, text: \"\", bos: on}\n")
	want := []Prompt{{ID: "a", IDs: []int{2, 651}, BOS: BOSAuto, Expect: ExpectMatch}, {ID: "b", BOS: BOSOn, Expect: ExpectMatch}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	for _, c := range []struct{ text, want string }{
		{"", ": want a list of prompts, the file is empty"},
		{"id: a", ":1: want a list of prompts"},
		{"[]", ":1: want a list of prompts"},
		{"- a", ":1: want a prompt with id and text"},
		{"- id: a\n  text: x\n---\n- id: b\n", ":3: want one document, found a second"},
		{"- id: a\n  txt: x\n", `:2: unknown key "txt" (want id, text, ids, bos, models, expect)`},
		{"- id: a\n  text: x\n  text: y\n", `:3: key "text" is there twice`},
		{"- text: x\n", ":1: prompt without an id"},
		{"- id: a\n", `:1: prompt "a": want either text or ids`},
		{"- id: a\n  text: x\n  ids: [1]\n", `:1: prompt "a": want either text or ids`},
		{"- id: a\n  ids: []\n", `:1: prompt "a": ids is empty`},
		{"- id: a\n  ids: [x]\n", ":2: ids: want a list of token ids"},
		{"- id: a\n  ids: [1, -1]\n", `:1: prompt "a": token id -1 is negative`},
		{"- id: a\n  ids: [1]\n  bos: on\n", `:1: prompt "a": bos is for text, ids are taken as they are`},
		{"- id: a\n  text: [x]\n", ":2: text: want a string"},
		{"- id: a\n  text: x\n  bos: maybe\n", `:1: prompt "a": bos: want auto, on or off, found "maybe"`},
		{"- id: a\n  text: x\n  expect: luck\n", `:1: prompt "a": expect: want match or vacuous, found "luck"`},
		{"- id: a\n  text: x\n- id: a\n  text: y\n", `:3: id "a" is taken by the prompt in line 1`},
		{"- id: \"a\n", ": line 2: found unexpected end of stream"},
	} {
		if _, err := load(c.text); err == nil || err.Error() != file+c.want {
			t.Errorf("%q\n got %v\nwant %s%s", c.text, err, file, c.want)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}
