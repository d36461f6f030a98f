package ctconv

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"slices"
)

// Safetensors is the header of a safetensors file: header_length:u64, so many bytes of JSON, then the data. Nothing
// aligns the data; a header whose length is odd puts every float32 array off its alignment.
// Source: the format's description at the safetensors repository, README.md.
type Safetensors struct {
	File        string             `json:"file"`
	Bytes       int64              `json:"bytes"`
	HeaderBytes int64              `json:"header_bytes"` // of the JSON
	DataStart   int64              `json:"data_start"`   // 8 + HeaderBytes
	Tensors     []SafetensorsEntry `json:"tensors"`
	Alignment   Alignment          `json:"alignment"`
}

// SafetensorsEntry is one array of the file.
type SafetensorsEntry struct {
	Name   string  `json:"name"`
	DType  string  `json:"dtype"` // the format's own names: F32, BF16, I64 …
	Shape  []int64 `json:"shape"`
	Offset int64   `json:"offset"` // from the start of the file
	Mod    Mod     `json:"mod"`
	Off    bool    `json:"off_element_size"` // mapped as an array, its elements would lie off their alignment

	end int64 // from the start of the file
}

// maxHeader is the format's own limit of the JSON's length.
const maxHeader = 100_000_000

// safetensorsBits is the number of bits of an element.
var safetensorsBits = map[string]uint64{
	"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F4": 4, "C64": 64,
	"I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}

// OpenSafetensors reads and checks the header of a file; it does not read the data.
func OpenSafetensors(file string) (*Safetensors, error) {
	info, err := os.Stat(file) // before open, which would wait for the writer of a pipe
	if err != nil {
		return nil, fmt.Errorf("open safetensors: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, &Error{File: file, Offset: -1, Defect: "want a regular file, this is none"}
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("open safetensors: %w", err)
	}
	defer f.Close()
	return ReadSafetensors(file, f, info.Size())
}

// ReadSafetensors reads and checks the header of a file of so many bytes; file is its name in errors.
func ReadSafetensors(file string, r io.ReaderAt, size int64) (*Safetensors, error) {
	fail := func(offset int64, format string, args ...any) error {
		return &Error{File: file, Offset: offset, Defect: fmt.Sprintf(format, args...)}
	}
	var length [8]byte
	if size < int64(len(length)) {
		return nil, fail(0, "short file: want 8 bytes (the header's length), %d left", size)
	}
	if _, err := r.ReadAt(length[:], 0); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeader {
		return nil, fail(0, "want a header of at most %d bytes, file says %d", maxHeader, n)
	} else if n > uint64(size-8) {
		return nil, fail(0, "short file: want a header of %d bytes, %d left", n, size-8)
	}
	s := &Safetensors{File: file, Bytes: size, HeaderBytes: int64(n), DataStart: 8 + int64(n), Tensors: []SafetensorsEntry{}}
	if err := s.header(io.NewSectionReader(r, 8, int64(n))); err != nil {
		return nil, err
	}
	if err := s.filled(); err != nil {
		return nil, err
	}
	return s, nil
}

// filled holds the arrays to the format's rule that they fill the file without holes and do not overlap.
func (s *Safetensors) filled() error {
	order := slices.Clone(s.Tensors)
	slices.SortFunc(order, func(a, b SafetensorsEntry) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.end, b.end))
	})
	at := s.DataStart
	for _, e := range order {
		if e.Offset != at {
			return &Error{File: s.File, Variable: e.Name, Offset: e.Offset, Defect: fmt.Sprintf("want the array to begin at byte %d, where the one before ends", at)}
		}
		at = e.end
	}
	if at != s.Bytes {
		return &Error{File: s.File, Offset: at, Defect: fmt.Sprintf("want the end of the file, %d bytes belong to no array", s.Bytes-at)}
	}
	return nil
}

// header decodes entry by entry, so that a hostile header costs no more than its honest part.
func (s *Safetensors) header(r io.Reader) error {
	d := json.NewDecoder(r)
	fail := func(err error) error {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("it ends too soon")
		}
		return &Error{File: s.File, Offset: 8 + d.InputOffset(), Err: err, Defect: fmt.Sprintf("want a JSON object of arrays as header: %v", err)}
	}
	if open, err := d.Token(); err != nil {
		return fail(err)
	} else if open != json.Delim('{') {
		return fail(fmt.Errorf("found %v", open))
	}
	seen := map[string]bool{}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return fail(err)
		}
		key := name.(string) // what More announces in an object is a key
		if key == "__metadata__" {
			var metadata map[string]string
			if err := d.Decode(&metadata); err != nil {
				return fail(err)
			}
			continue
		}
		if seen[key] || !printable([]byte(key)) {
			return fail(fmt.Errorf("want distinct and printable names, found %.40q", key))
		}
		seen[key] = true
		var e struct {
			DType   string   `json:"dtype"`
			Shape   []int64  `json:"shape"`
			Offsets [2]int64 `json:"data_offsets"`
		}
		if err := d.Decode(&e); err != nil {
			return fail(err)
		}
		if err := s.add(key, e.DType, e.Shape, e.Offsets); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return fail(err)
	}
	if more, err := d.Token(); err == nil {
		return fail(fmt.Errorf("%v follows it", more))
	} else if err != io.EOF {
		return fail(err)
	}
	return nil
}

func (s *Safetensors) add(name, dtype string, shape []int64, offsets [2]int64) error {
	fail := func(format string, args ...any) error {
		return &Error{File: s.File, Variable: name, Offset: -1, Defect: fmt.Sprintf(format, args...)}
	}
	width, ok := safetensorsBits[dtype]
	if !ok {
		return fail("want a type that the format knows, file has %.20q", dtype)
	}
	begin, end := offsets[0], offsets[1]
	if data := s.Bytes - s.DataStart; begin < 0 || end < begin || end > data {
		return fail("want data within 0 to %d, the header says %d to %d", data, begin, end)
	}
	elements := width
	for _, dim := range shape {
		hi, lo := bits.Mul64(elements, uint64(dim))
		if dim < 0 || hi != 0 {
			return fail("shape %v overflows", shape)
		}
		elements = lo
	}
	if want := elements / 8; uint64(end-begin) != want {
		return fail("want %d bytes of data for %s %v, the header says %d", want, dtype, shape, end-begin)
	}
	e := SafetensorsEntry{Name: name, DType: dtype, Shape: shape, Offset: s.DataStart + begin, Mod: ModOf(s.DataStart + begin), end: s.DataStart + end}
	size := int64(max(width/8, 1))
	if dtype == "C64" {
		size = 4 // a pair of float32
	}
	s.Alignment.add(e.Offset, int(size))
	e.Off = e.Offset%size != 0
	s.Tensors = append(s.Tensors, e)
	return nil
}
