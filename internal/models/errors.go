package models

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"llmrun/internal/near"
)

// copied are the files that belong beside a converted model.
const copied = "--copy_files tokenizer.json tokenizer_config.json"

// NotFound says that no model has that name.
type NotFound struct {
	Name   string
	Looked []string // every place looked at
	Near   []string // names spelled nearly so, of models that are there or that Hint can make; the nearest first
}

func notFound(name string) error {
	what := "no directory with model.bin"
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		what = "a directory without model.bin"
	} else if err == nil {
		what = "a file; a model is a directory with model.bin"
	}
	looked := []string{name + " (" + what + ")", "embedded (" + strings.Join(embeddedNames(), ", ") + ")"}
	for _, p := range places() {
		where := p.dir
		if where == "" {
			where = "not set"
		} else if _, err := os.Stat(where); err != nil {
			where += ", missing"
		}
		looked = append(looked, fmt.Sprintf("%s (%s)", p.label, where))
	}
	return &NotFound{Name: name, Looked: looked, Near: nearNames(name)}
}

func (e *NotFound) Error() string {
	near := ""
	if len(e.Near) > 0 {
		near = "; did you mean " + strings.Join(e.Near, " or ") + "?"
	}
	return fmt.Sprintf("model %q: not found; looked at %s%s", e.Name, strings.Join(e.Looked, "; "), near)
}

// Unwrap makes errors.Is(err, fs.ErrNotExist) true.
func (e *NotFound) Unwrap() error { return fs.ErrNotExist }

// Hint is a command that would help: one that makes the model, or the one probably meant, if its origin is known.
func (e *NotFound) Hint() string {
	for _, name := range append([]string{e.Name}, e.Near...) {
		name = strings.ToLower(name)
		if id, ok := known[name]; ok {
			return convert(id, filepath.Join(makeIn(), name))
		}
	}
	return "llmrun models"
}

// Unconverted says that a model is there as a Hugging Face checkpoint only.
type Unconverted struct{ Dir, Name string }

func (e *Unconverted) Error() string {
	return fmt.Sprintf("model %q: want a directory with model.bin, %s is a Hugging Face checkpoint", e.Name, e.Dir)
}

// Hint is the command that converts it.
func (e *Unconverted) Hint() string {
	name := filepath.Base(filepath.Clean(e.Name))
	if name == "." || name == ".." {
		name = "converted"
	}
	return convert(e.Dir, filepath.Join(makeIn(), name))
}

func convert(from, to string) string {
	return fmt.Sprintf("ct2-transformers-converter --model %s --output_dir %s --quantization float16 %s", quote(from), quote(to), copied)
}

// makeIn is the folder to put a new model in: the first that is set.
func makeIn() string {
	for _, p := range places() {
		if p.dir != "" && !p.cache {
			return p.dir
		}
	}
	return "."
}

// quote makes a path one word for a shell.
func quote(path string) string {
	if !strings.ContainsAny(path, " '\"$\\&;()<>|*?") {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// NoTokenizer says that no tokenizer.json lies beside the model.
type NoTokenizer struct {
	Source Source
	err    error
}

func (e *NoTokenizer) Error() string {
	return fmt.Sprintf("model %s: no tokenizer.json beside it: give the prompt as --ids, or the tokenizer as --tokenizer FILE|DIR", e.Source)
}

// Unwrap makes errors.Is(err, fs.ErrNotExist) true.
func (e *NoTokenizer) Unwrap() error { return e.err }

// Hint is the command line that works without a tokenizer.
func (e *NoTokenizer) Hint() string {
	return "llmrun generate --model " + quote(e.Source.String()) + " --ids 2,651,6037"
}

func embeddedNames() (names []string) {
	for _, s := range embeddedModels() {
		names = append(names, s.Name)
	}
	return names
}

// nearNames are at most three names that are spelled nearly like name: of models that exist, and of known ones unless it is one.
func nearNames(name string) []string {
	if _, err := os.Stat(name); err == nil { // it was no name
		return nil
	}
	var names []string
	for _, f := range List() {
		names = append(names, f.Name)
	}
	if known[strings.ToLower(name)] == "" {
		names = append(names, slices.Sorted(maps.Keys(known))...)
	}
	names = near.Names(name, names)
	return names[:min(len(names), 3)]
}
