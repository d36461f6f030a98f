// Package models finds a converted model by name: embedded in the program, below the folders that hold models, or
// in a Hugging Face cache. Nothing is ever downloaded.
package models

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"llmrun/internal/ctconv"
	"llmrun/internal/tokenizer"
)

// Default is the name of the model that is used when none is named.
const Default = "tiny-gemma2"

// The embedded models; scripts/tiny-models made them, and its README says how.
//
//go:embed embedded
var embedded embed.FS

// A Source is where a model's files lie.
type Source struct {
	Name     string // as the user may type it
	Dir      string // "" when embedded
	Embedded bool
}

// Open finds a model and opens it.
func Open(nameOrDir string) (*ctconv.Model, Source, error) {
	s, err := Find(nameOrDir)
	if err != nil {
		return nil, Source{}, err
	}
	m, err := s.Open()
	if err != nil {
		return nil, Source{}, err
	}
	return m, s, nil
}

// Open opens the model.
func (s Source) Open() (*ctconv.Model, error) {
	if s.Embedded {
		return ctconv.OpenFS(s.files(), ".")
	}
	return ctconv.Open(s.Dir)
}

// Find finds a model. nameOrDir is, in this order: a directory with model.bin; an embedded model; a
// model below $LLMRUN_MODELS, the user's data folder or a Hugging Face cache. The error of a name that leads
// nowhere is a *NotFound, which wraps fs.ErrNotExist; a checkpoint that was never converted is a *Unconverted.
func Find(nameOrDir string) (Source, error) {
	if dir, file := filepath.Split(nameOrDir); file == "model.bin" { // its directory is meant
		nameOrDir = filepath.Clean(dir)
	}
	if isModel(nameOrDir) {
		return directory(nameOrDir)
	}
	for _, s := range embeddedModels() {
		if s.Name == nameOrDir {
			return s, nil
		}
	}
	checkpoint := ""
	if isCheckpoint(nameOrDir) {
		checkpoint = nameOrDir
	}
	for _, p := range places() {
		for _, dir := range p.candidates(nameOrDir) {
			if isModel(dir) {
				return Source{Name: nameOrDir, Dir: dir}, nil
			}
			if checkpoint == "" && isCheckpoint(dir) {
				checkpoint = dir
			}
		}
	}
	if checkpoint != "" {
		return Source{}, &Unconverted{Dir: checkpoint, Name: nameOrDir}
	}
	return Source{}, notFound(nameOrDir)
}

// directory is the source of a directory that the user named, "." and ".." included.
func directory(dir string) (Source, error) {
	full, err := filepath.Abs(dir)
	if err != nil {
		return Source{}, fmt.Errorf("open model %s: %w", dir, err)
	}
	return Source{Name: filepath.Base(full), Dir: dir}, nil
}

func embeddedModels() (all []Source) {
	entries, err := embedded.ReadDir("embedded")
	if err != nil {
		panic("BUG: no embedded models: " + err.Error())
	}
	for _, e := range entries {
		all = append(all, Source{Name: e.Name(), Embedded: true})
	}
	return all
}

// files is the model's directory.
func (s Source) files() fs.FS {
	if !s.Embedded {
		return os.DirFS(s.Dir)
	}
	sub, err := fs.Sub(embedded, path.Join("embedded", s.Name))
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return sub
}

// ReadFile reads a file beside the model, such as tokenizer_config.json.
func (s Source) ReadFile(name string) ([]byte, error) {
	data, err := fs.ReadFile(s.files(), name)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", s, err)
	}
	return data, nil
}

// Tokenizer reads the tokenizer.json beside the model. If there is none, the error is a *NoTokenizer.
func (s Source) Tokenizer() (*tokenizer.Tokenizer, error) {
	const name = "tokenizer.json"
	if s.Embedded {
		data, err := s.ReadFile(name)
		if err != nil {
			return nil, err
		}
		return tokenizer.Parse(path.Join(s.Name, name), string(data))
	}
	t, err := tokenizer.Load(filepath.Join(s.Dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &NoTokenizer{Source: s, err: err}
	}
	return t, err
}

// String is the directory, or the name of an embedded model.
func (s Source) String() string {
	if s.Embedded {
		return s.Name
	}
	return s.Dir
}

// has reports whether the model's directory holds a file, and its size.
func (s Source) has(name string) (size int64, ok bool) {
	info, err := fs.Stat(s.files(), name)
	if err != nil || !info.Mode().IsRegular() {
		return 0, false
	}
	return info.Size(), true
}

func isModel(dir string) bool {
	_, ok := Source{Dir: dir}.has("model.bin")
	return dir != "" && ok
}

// isCheckpoint reports whether dir holds a Hugging Face checkpoint: weights that no converter has seen.
func isCheckpoint(dir string) bool {
	if dir == "" {
		return false
	}
	for _, pattern := range []string{"*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin"} {
		if found, _ := fs.Glob(os.DirFS(dir), pattern); len(found) > 0 {
			return true
		}
	}
	return false
}
