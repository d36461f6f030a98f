// Package ctconv reads models that CTranslate2's converters wrote: a directory with model.bin, config.json and a
// vocabulary becomes named tensors (bytes, type, shape), options and a list of tokens. It also audits what the
// converter wrote: against the original config.json, and for payloads that no one may map as arrays.
//
// A tensor stays where it lies in the file, mapped read-only and unaligned: nothing here makes a []float32 of it.
package ctconv

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"

	"llmrun/internal/mapped"
	"llmrun/internal/num"
)

// Tensor is one variable of a model file.
type Tensor struct {
	Name    string
	DType   num.DType
	Shape   []int  // empty for a scalar; row-major
	Data    []byte // little-endian, in place in the file: unaligned and read-only
	Offset  int64  // of Data in the file, in bytes
	AliasOf string // the variable that holds the data when this is a second name of it, else ""
}

// Elements is the product of the dimensions; 1 for a scalar.
func (t Tensor) Elements() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Model is a converted model. Its tensors are valid until Close.
type Model struct {
	Dir        string
	Version    int    // binary version, 2 to 6
	Spec       string // always TransformerDecoderSpec
	Revision   int    // of Spec, 1 to 8
	Tensors    map[string]Tensor
	Config     Config
	Vocabulary Vocabulary // as long as the embedding has rows

	bin    []byte
	file   string
	dir    fs.FS        // for what lies beside model.bin
	mapped *mapped.File // holds bin; nil if it was read into memory
}

const (
	modelBin   = "model.bin"
	embeddings = "decoder/embeddings/weight"
)

// Open reads the model in directory dir. model.bin is mapped, not read; it is checked against its size as it is now,
// and must not be shortened while the model is open (the system would answer with SIGBUS).
func Open(dir string) (*Model, error) {
	if info, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	} else if !info.IsDir() {
		return nil, &Error{File: dir, Offset: -1, Defect: "want a directory with model.bin, this is a file"}
	}
	file, err := mapped.Open(filepath.Join(dir, modelBin))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missingModel(os.DirFS(dir), dir)
	} else if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	file.Sparse(true) // records lie between the data, half of which would be read with them
	m, err := open(os.DirFS(dir), dir, file.Data, file)
	file.Sparse(false)
	if err != nil {
		file.Close()
		return nil, err
	}
	return m, nil
}

// OpenFS reads the model in directory name of fsys, with all of model.bin in memory: for models embedded in the binary.
func OpenFS(fsys fs.FS, name string) (*Model, error) {
	sub, err := fs.Sub(fsys, name)
	if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	bin, err := fs.ReadFile(sub, modelBin)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missingModel(sub, name)
	} else if err != nil {
		return nil, fmt.Errorf("open model: %w", err)
	}
	return open(sub, name, bin, nil)
}

func open(dir fs.FS, name string, bin []byte, file *mapped.File) (*Model, error) {
	m, err := Parse(path.Join(name, modelBin), bin)
	if err != nil {
		return nil, err
	}
	m.Dir, m.dir, m.mapped = name, dir, file
	if err := m.readConfig(dir); err != nil {
		return nil, err
	}
	if err := m.readVocabulary(); err != nil {
		return nil, err
	}
	return m, nil
}

// beside gives the bytes of a file beside model.bin, until done is called.
func (m *Model) beside(name string) (data []byte, done func() error, err error) {
	if m.mapped == nil {
		data, err = fs.ReadFile(m.dir, name)
		return data, func() error { return nil }, err
	}
	file, err := mapped.Open(filepath.Join(m.Dir, name))
	if err != nil {
		return nil, nil, err
	}
	return file.Data, file.Close, nil
}

// missingModel explains a directory without model.bin, first of all the checkpoint that was never converted.
func missingModel(dir fs.FS, name string) error {
	e := &Error{File: name, Offset: -1, Defect: "want model.bin, the directory has none"}
	for _, pattern := range []string{"*.safetensors", "pytorch_model*.bin", "*.safetensors.index.json"} {
		if found, _ := fs.Glob(dir, pattern); len(found) > 0 {
			e.Defect = fmt.Sprintf("want a converted model (model.bin), this is a Hugging Face checkpoint (%s)", found[0])
			e.Advice = fmt.Sprintf("ct2-transformers-converter --model %[1]s --output_dir %[1]s-ct2 --copy_files tokenizer.json tokenizer_config.json", name)
			break
		}
	}
	return e
}

// Close unmaps model.bin; the tensors must not be used after it.
func (m *Model) Close() error {
	if m.mapped == nil {
		return nil
	}
	return m.mapped.Close()
}

// ReadAhead reads what the system does not have in memory of model.bin; see mapped.File.ReadAhead. It does nothing for a model that was
// read into memory.
func (m *Model) ReadAhead(ctx context.Context, show func(done, total int64)) error {
	if m.mapped == nil {
		return nil
	}
	return m.mapped.ReadAhead(ctx, show)
}

// Forget lets the system take back the memory that holds a tensor's bytes in a mapped file, once they have been copied elsewhere.
// The bytes stay valid: who reads them again waits for the file. It does nothing for a model that was read into memory.
func (m *Model) Forget(t Tensor) {
	if m.mapped != nil {
		m.mapped.Forget(int(t.Offset), int(t.Offset)+len(t.Data))
	}
}

// Size is the length of model.bin in bytes.
func (m *Model) Size() int64 { return int64(len(m.bin)) }

// Tensor returns the variable called name, or the one it is an alias of.
func (m *Model) Tensor(name string) (Tensor, bool) {
	t, ok := m.Tensors[name]
	return t, ok
}

// Want returns the variable called name, which must have this shape; -1 stands for any length.
func (m *Model) Want(name string, shape ...int) (Tensor, error) {
	t, ok := m.Tensors[name]
	if !ok {
		return t, &Error{File: m.file, Variable: name, Offset: -1, Defect: fmt.Sprintf("want %s, file has no such variable", shapeString(shape))}
	}
	same := len(shape) == len(t.Shape)
	for i := 0; same && i < len(shape); i++ {
		same = shape[i] == -1 || shape[i] == t.Shape[i]
	}
	if !same {
		return t, m.defect(t, "want %s, file has %s", shapeString(shape), shapeString(t.Shape))
	}
	return t, nil
}

func (m *Model) defect(t Tensor, format string, args ...any) error {
	return &Error{File: m.file, Variable: t.Name, Offset: t.Offset, Defect: fmt.Sprintf(format, args...)}
}

func shapeString(shape []int) string {
	if len(shape) == 0 {
		return "a scalar"
	}
	return strings.ReplaceAll(fmt.Sprint(shape), "-1", "any")
}

// scalar reads a one-element variable of any type; CTranslate2 converts between all of them (src/storage_view.cc).
func (m *Model) scalar(name string) (v float64, t Tensor, ok bool, err error) {
	t, ok = m.Tensors[name]
	if !ok {
		return 0, t, false, nil
	}
	if t.Elements() != 1 {
		return 0, t, true, m.defect(t, "want a scalar, file has %s", shapeString(t.Shape))
	}
	if t.DType == num.Int32 { // float32 would round it
		return float64(int32(binary.LittleEndian.Uint32(t.Data))), t, true, nil
	}
	return float64(num.Float32At(t.DType, t.Data, 0)), t, true, nil
}

// Int is the scalar variable called name, of any type; absent if the file does not hold it.
func (m *Model) Int(name string, absent int) (int, error) {
	v, t, ok, err := m.scalar(name)
	if err != nil || !ok {
		return absent, err
	}
	if v != math.Trunc(v) || math.Abs(v) > math.MaxInt32+1 { // NaN differs from itself
		return absent, m.defect(t, "want a whole number, file has %v", v)
	}
	return int(v), nil
}

// Float is the scalar variable called name, of any type; absent if the file does not hold it.
func (m *Model) Float(name string, absent float32) (float32, error) {
	v, _, ok, err := m.scalar(name)
	if err != nil || !ok {
		return absent, err
	}
	return float32(v), nil
}

// Flag tells whether the scalar variable called name is other than zero; absent if the file does not hold it.
func (m *Model) Flag(name string, absent bool) (bool, error) {
	v, _, ok, err := m.scalar(name)
	if err != nil || !ok {
		return absent, err
	}
	return v != 0, nil
}
