package models

import (
	"cmp"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// A place is a folder that may hold models.
type place struct {
	label string // as messages call it
	dir   string // "" if it is not set
	cache bool   // laid out as a Hugging Face cache: models--ORG--NAME/snapshots/REVISION
}

// places are the folders to look in, in order.
func places() []place {
	home, _ := os.UserHomeDir()
	hub := cmp.Or(os.Getenv("HF_HUB_CACHE"),
		below(os.Getenv("HF_HOME"), "hub"),
		below(os.Getenv("XDG_CACHE_HOME"), "huggingface", "hub"),
		below(home, ".cache", "huggingface", "hub"))
	return []place{
		{label: "$LLMRUN_MODELS", dir: os.Getenv("LLMRUN_MODELS")},
		{label: "data folder", dir: dataFolder(home)},
		{label: "Hugging Face cache", dir: hub, cache: true},
	}
}

func dataFolder(home string) string {
	if runtime.GOOS == "darwin" {
		return below(home, "Library", "Application Support", "llmrun", "models")
	}
	data := cmp.Or(os.Getenv("XDG_DATA_HOME"), below(home, ".local", "share"))
	return below(data, "llmrun", "models")
}

// below joins a path, or returns "" if its root is not known.
func below(root string, parts ...string) string {
	if root == "" {
		return ""
	}
	return filepath.Join(append([]string{root}, parts...)...)
}

// candidates are the directories where the place would hold a model of that name.
func (p place) candidates(name string) []string {
	if p.dir == "" || !filepath.IsLocal(name) {
		return nil
	}
	if !p.cache {
		return []string{filepath.Join(p.dir, name)}
	}
	var dirs []string
	for _, r := range p.repositories() {
		if r.matches(name) {
			dirs = append(dirs, r.snapshots()...)
		}
	}
	return dirs
}

// models are the directories of the place that hold a model, converted or not, with the name to call each by.
func (p place) models() (all []Source) {
	if p.dir == "" {
		return nil
	}
	if !p.cache {
		entries, _ := os.ReadDir(p.dir)
		for _, e := range entries {
			if dir := filepath.Join(p.dir, e.Name()); isModel(dir) || isCheckpoint(dir) {
				all = append(all, Source{Name: e.Name(), Dir: dir})
			}
		}
		return all
	}
	for _, r := range p.repositories() {
		for _, dir := range r.snapshots() {
			if isModel(dir) || isCheckpoint(dir) {
				all = append(all, Source{Name: r.id, Dir: dir})
				break
			}
		}
	}
	return all
}

// A repository is a model in a Hugging Face cache.
type repository struct{ id, dir string } // id is ORG/NAME, or NAME alone

func (p place) repositories() (all []repository) {
	entries, _ := os.ReadDir(p.dir)
	for _, e := range entries {
		if id, ok := strings.CutPrefix(e.Name(), "models--"); ok {
			all = append(all, repository{strings.ReplaceAll(id, "--", "/"), filepath.Join(p.dir, e.Name())})
		}
	}
	return all
}

// matches compares without regard to case: with the whole id, with its last part, and with the id that a known
// name stands for; -ct2 behind the repository's name is what converted copies are usually called.
func (r repository) matches(name string) bool {
	id, name := plain(r.id), plain(name)
	if id == name || lastPart(id) == name {
		return true
	}
	stands := known[name]
	return stands != "" && lastPart(id) == lastPart(plain(stands))
}

func plain(name string) string { return strings.TrimSuffix(strings.ToLower(name), "-ct2") }

func lastPart(id string) string { return id[strings.LastIndexByte(id, '/')+1:] }

// snapshots are the revisions in the cache, the one that refs/main names first.
func (r repository) snapshots() []string {
	main, _ := os.ReadFile(filepath.Join(r.dir, "refs", "main"))
	entries, _ := os.ReadDir(filepath.Join(r.dir, "snapshots"))
	var dirs []string
	for _, e := range entries {
		dirs = append(dirs, filepath.Join(r.dir, "snapshots", e.Name()))
	}
	first := filepath.Join(r.dir, "snapshots", strings.TrimSpace(string(main)))
	slices.SortStableFunc(dirs, func(a, b string) int {
		switch {
		case a == first && b != first:
			return -1
		case b == first && a != first:
			return 1
		}
		return 0
	})
	return dirs
}

// known are names that the documentation uses, and the Hugging Face checkpoints they stand for.
var known = map[string]string{
	"distilgpt2":            "distilbert/distilgpt2",
	"gemma2-2b":             "google/gemma-2-2b",
	"gemma2-2b-it":          "google/gemma-2-2b-it",
	"gemma3-270m":           "google/gemma-3-270m",
	"qwen2.5-0.5b":          "Qwen/Qwen2.5-0.5B",
	"qwen2.5-0.5b-instruct": "Qwen/Qwen2.5-0.5B-Instruct",
	"smollm2-135m":          "HuggingFaceTB/SmolLM2-135M-Instruct",
}

// Found is a model that List has found.
type Found struct {
	Source
	Place     string // "embedded", or the folder: "$LLMRUN_MODELS", "data folder", "Hugging Face cache"
	Size      int64  // of model.bin in bytes; 0 if it was not converted
	Tokenizer bool   // tokenizer.json lies beside it
}

// Converted reports whether there is a model.bin.
func (f Found) Converted() bool { return f.Size > 0 }

// List returns every model that Open could find by name, in the order in which it looks; checkpoints that were not
// converted are among them.
func List() []Found {
	var all []Found
	add := func(s Source, place string) {
		f := Found{Source: s, Place: place}
		f.Size, _ = s.has("model.bin")
		_, f.Tokenizer = s.has("tokenizer.json")
		all = append(all, f)
	}
	for _, s := range embeddedModels() {
		add(s, "embedded")
	}
	for _, p := range places() {
		for _, s := range p.models() {
			add(s, p.label)
		}
	}
	return all
}
