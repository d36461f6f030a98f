package models

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"llmrun/internal/ctconv"
)

// isolate points every place to folders below a fresh directory, and returns it.
func isolate(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	t.Setenv("HOME", filepath.Join(root, "home"))
	t.Setenv("LLMRUN_MODELS", filepath.Join(root, "models"))
	t.Setenv("XDG_DATA_HOME", filepath.Join(root, "data"))
	t.Setenv("HF_HUB_CACHE", filepath.Join(root, "hub"))
	t.Chdir(root)
	return root
}

// put copies an embedded model to dir, without the files named.
func put(t *testing.T, dir string, without ...string) {
	t.Helper()
	model := Source{Name: "tiny-qwen2", Embedded: true}
	for _, name := range []string{"model.bin", "config.json", "vocabulary.json", "tokenizer.json"} {
		if slices.Contains(without, name) {
			continue
		}
		data, err := model.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), data)
	}
}

func write(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestEmbedded(t *testing.T) {
	isolate(t)
	type prompt struct {
		ID      string `json:"id"`
		Text    string `json:"text"`
		IDs     []int  `json:"ids"`
		Greedy  []int  `json:"greedy"`
		Decoded string `json:"decoded"`
	}
	data, err := os.ReadFile(golden(t))
	if err != nil {
		t.Fatal(err)
	}
	var want map[string][]prompt
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	if got := embeddedNames(); !slices.Equal(got, []string{"tiny-gemma2", "tiny-qwen2"}) || !slices.Contains(got, Default) {
		t.Fatalf("embedded models are %v", got)
	}
	for _, name := range embeddedNames() {
		m, s, err := Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		tok, err := s.Tokenizer()
		if err != nil {
			t.Fatal(err)
		}
		if tok.VocabSize() != m.Vocabulary.Len() {
			t.Errorf("%s: the tokenizer has %d ids, the model %d", name, tok.VocabSize(), m.Vocabulary.Len())
		}
		for id, token := range m.Vocabulary.All() {
			if got, _ := tok.Token(id); got != token {
				t.Errorf("%s: id %d is %q in the tokenizer, %q in the model", name, id, got, token)
			}
		}
		if len(want[name]) == 0 {
			t.Errorf("%s: no golden prompts", name)
		}
		for _, p := range want[name] {
			if got := tok.Encode(p.Text, p.ID != "nobos"); !slices.Equal(got, p.IDs) {
				t.Errorf("%s %s: ids\n got %v\nwant %v", name, p.ID, got, p.IDs)
			}
			if got := tok.Decode(p.Greedy, false); got != p.Decoded {
				t.Errorf("%s %s: text\n got %q\nwant %q", name, p.ID, got, p.Decoded)
			}
		}
	}
}

// golden is the absolute path of golden.json: tests run in other folders.
func golden(t *testing.T) string {
	t.Helper()
	return filepath.Join(packageDir, "testdata", "golden.json")
}

var packageDir = func() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	return dir
}()

func TestOpenOrder(t *testing.T) {
	root := isolate(t)
	snapshot := func(repo, revision string) string {
		return filepath.Join(root, "hub", "models--"+strings.ReplaceAll(repo, "/", "--"), "snapshots", revision)
	}
	check := func(name, dir string) {
		t.Helper()
		m, s, err := Open(name)
		if err != nil {
			t.Errorf("Open(%q): %v", name, err)
			return
		}
		defer m.Close()
		if s.Dir != dir || s.Embedded != (dir == "") {
			t.Errorf("Open(%q) found %q, want %q", name, s.Dir, dir)
		}
	}
	// From the last place to the first, each hides the one before.
	put(t, snapshot("someone/gemma-2-2b-ct2", "old"))
	check("gemma2-2b", snapshot("someone/gemma-2-2b-ct2", "old"))
	check("gemma-2-2b", snapshot("someone/gemma-2-2b-ct2", "old"))
	check("someone/gemma-2-2b-ct2", snapshot("someone/gemma-2-2b-ct2", "old"))
	put(t, snapshot("someone/gemma-2-2b-ct2", "new"))
	write(t, filepath.Join(root, "hub", "models--someone--gemma-2-2b-ct2", "refs", "main"), []byte("old\n"))
	check("gemma2-2b", snapshot("someone/gemma-2-2b-ct2", "old"))
	put(t, filepath.Join(root, "data/llmrun/models/gemma2-2b"))
	if dataFolder("") == filepath.Join(root, "data/llmrun/models") { // macOS has another
		check("gemma2-2b", filepath.Join(root, "data/llmrun/models/gemma2-2b"))
	}
	put(t, filepath.Join(root, "models/gemma2-2b"))
	check("gemma2-2b", filepath.Join(root, "models/gemma2-2b"))
	put(t, filepath.Join(root, "models/tiny-gemma2"))
	check("tiny-gemma2", "")
	put(t, filepath.Join(root, "tiny-gemma2"))
	check("tiny-gemma2", "tiny-gemma2")
	check("./tiny-gemma2", "./tiny-gemma2")
	t.Chdir(filepath.Join(root, "tiny-gemma2"))
	check(".", ".")
	if _, s, _ := Open("."); s.Name != "tiny-gemma2" {
		t.Errorf("the name of . is %q, want tiny-gemma2", s.Name)
	}
}

func TestNotFound(t *testing.T) {
	root := isolate(t)
	t.Setenv("LLMRUN_MODELS", "")
	data := dataFolder(filepath.Join(root, "home"))
	for _, c := range []struct{ name, near, hint string }{
		{"tiny-gema2", "; did you mean tiny-gemma2?", "llmrun models"},
		{"zebra", "", "llmrun models"},
		{"../models/x", "", "llmrun models"},
		{"", "", "llmrun models"},
		{"gemma2-2b", "", "ct2-transformers-converter --model google/gemma-2-2b --output_dir " + data + "/gemma2-2b" +
			" --quantization float16 --copy_files tokenizer.json tokenizer_config.json"},
		{"distilgtp2", "; did you mean distilgpt2?", "ct2-transformers-converter --model distilbert/distilgpt2 --output_dir " + data + "/distilgpt2" +
			" --quantization float16 --copy_files tokenizer.json tokenizer_config.json"},
	} {
		_, _, err := Open(c.name)
		var e *NotFound
		if !errors.As(err, &e) || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Open(%q): %v, want a NotFound", c.name, err)
			continue
		}
		want := `model "` + c.name + `": not found; looked at ` + c.name + ` (no directory with model.bin); embedded (tiny-gemma2, tiny-qwen2); ` +
			`$LLMRUN_MODELS (not set); data folder (` + data + `, missing); Hugging Face cache (` + root + `/hub, missing)` + c.near
		if err.Error() != want {
			t.Errorf("Open(%q)\n got %s\nwant %s", c.name, err, want)
		}
		if e.Hint() != c.hint {
			t.Errorf("Open(%q) hint\n got %s\nwant %s", c.name, e.Hint(), c.hint)
		}
	}
}

func TestUnconverted(t *testing.T) {
	root := isolate(t)
	write(t, filepath.Join(root, "my model", "model.safetensors"), nil)
	write(t, filepath.Join(root, "hub/models--google--gemma-2-2b/snapshots/r1/model-00001-of-00003.safetensors"), nil)
	to := filepath.Join(root, "models")
	for _, c := range []struct{ name, dir, hint string }{
		{"my model", "my model", "--model 'my model' --output_dir '" + to + "/my model'"},
		{"gemma2-2b", root + "/hub/models--google--gemma-2-2b/snapshots/r1",
			"--model " + root + "/hub/models--google--gemma-2-2b/snapshots/r1 --output_dir " + to + "/gemma2-2b"},
	} {
		_, _, err := Open(c.name)
		var e *Unconverted
		if !errors.As(err, &e) {
			t.Errorf("Open(%q): %v, want an Unconverted", c.name, err)
			continue
		}
		if want := `model "` + c.name + `": want a directory with model.bin, ` + c.dir + ` is a Hugging Face checkpoint`; err.Error() != want {
			t.Errorf("Open(%q)\n got %s\nwant %s", c.name, err, want)
		}
		want := "ct2-transformers-converter " + c.hint + " --quantization float16 --copy_files tokenizer.json tokenizer_config.json"
		if e.Hint() != want {
			t.Errorf("Open(%q) hint\n got %s\nwant %s", c.name, e.Hint(), want)
		}
	}
}

func TestTornModel(t *testing.T) {
	root := isolate(t)
	write(t, filepath.Join(root, "torn", "model.bin"), []byte{6, 0})
	var e *ctconv.Error
	if _, _, err := Open("torn"); !errors.As(err, &e) {
		t.Errorf("a torn model: %v, want a ctconv.Error", err)
	}
}

func TestNoTokenizer(t *testing.T) {
	root := isolate(t)
	put(t, filepath.Join(root, "bare"), "tokenizer.json")
	m, s, err := Open("bare")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	_, err = s.Tokenizer()
	var e *NoTokenizer
	if !errors.As(err, &e) || !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("got %v, want a NoTokenizer", err)
	}
	if want := "model bare: no tokenizer.json beside it: give the prompt as --ids, or the tokenizer as --tokenizer FILE|DIR"; err.Error() != want {
		t.Errorf("got %s\nwant %s", err, want)
	}
	if want := "llmrun generate --model bare --ids 2,651,6037"; e.Hint() != want {
		t.Errorf("hint %s\nwant %s", e.Hint(), want)
	}
	write(t, filepath.Join(root, "bare", "tokenizer.json"), []byte("{}"))
	if _, err := s.Tokenizer(); err == nil || err.Error() != "bare/tokenizer.json: model is missing" {
		t.Errorf("an empty tokenizer.json: %v", err)
	}
	if _, err := s.ReadFile("nothing.json"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadFile of a missing file: %v", err)
	}
}

func TestList(t *testing.T) {
	root := isolate(t)
	put(t, filepath.Join(root, "models/mine"), "tokenizer.json")
	write(t, filepath.Join(root, "models/notes.txt"), nil)
	write(t, filepath.Join(root, "hub/models--google--gemma-2-2b/snapshots/r1/model.safetensors"), nil)
	write(t, filepath.Join(root, "hub/models--google--gemma-2-2b/snapshots/r1/tokenizer.json"), nil)
	var got []string
	for _, f := range List() {
		line := f.Place + " " + f.Name
		if f.Converted() {
			line += " converted"
		}
		if f.Tokenizer {
			line += " tokenizer"
		}
		got = append(got, line)
	}
	want := []string{
		"embedded tiny-gemma2 converted tokenizer",
		"embedded tiny-qwen2 converted tokenizer",
		"$LLMRUN_MODELS mine converted",
		"Hugging Face cache google/gemma-2-2b tokenizer",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A path that exists is no misspelled name.
func TestNotAModel(t *testing.T) {
	root := isolate(t)
	file := filepath.Join(root, "tiny-gemma3")
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{root: "(a directory without model.bin)", file: "(a file; a model is a directory with model.bin)"} {
		if _, _, err := Open(path); err == nil || !strings.Contains(err.Error(), path+" "+want) || strings.Contains(err.Error(), "did you mean") {
			t.Errorf("%s: want %q and no near names, got %v", path, want, err)
		}
	}
}

// The file is as good as its directory.
func TestOpenModelBin(t *testing.T) {
	m, s, err := Open(filepath.Join("embedded", "tiny-qwen2", "model.bin"))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if s.Dir != filepath.Join("embedded", "tiny-qwen2") || s.Name != "tiny-qwen2" {
		t.Errorf("%+v", s)
	}
}
