package ctconv

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"llmrun/internal/num"
)

// builder writes a model.bin field by field, so that each field can be wrong.
type builder []byte

func (b builder) u8(v byte) builder    { return append(b, v) }
func (b builder) u16(v uint16) builder { return binary.LittleEndian.AppendUint16(b, v) }
func (b builder) u32(v uint32) builder { return binary.LittleEndian.AppendUint32(b, v) }
func (b builder) str(s string) builder { return append(append(b.u16(uint16(len(s)+1)), s...), 0) }

// header starts a file of so many variables.
func header(version, variables uint32) builder {
	return builder{}.u32(version).str(specName).u32(8).u32(variables)
}

// record starts a variable, up to its type.
func (b builder) record(name string, shape ...uint32) builder {
	b = b.str(name).u8(byte(len(shape)))
	for _, d := range shape {
		b = b.u32(d)
	}
	return b
}

func (b builder) data(d num.DType, data []byte) builder {
	return append(b.u8(byte(d)).u32(uint32(len(data))), data...)
}

func (b builder) floats(name string, shape ...uint32) builder {
	n := uint32(1)
	for _, d := range shape {
		n *= d
	}
	return b.record(name, shape...).data(num.Float32, make([]byte, 4*n))
}

// tiny is a correct model of three tokens with embeddings of two.
func tiny() builder {
	return header(6, 2).floats(embeddings, 3, 2).record("decoder/num_heads").data(num.Int16, []byte{4, 0}).
		u32(1).str("decoder/projection/weight").str(embeddings)
}

// TestParseDefects holds every defect of model.bin to its one line.
func TestParseDefects(t *testing.T) {
	const start = 4 + 2 + 23 + 4 + 4 // the first record, after version, name, revision and count
	weights := header(6, 1).floats(embeddings, 3, 2)
	tests := []struct {
		name string
		bin  []byte
		want string
	}{
		{"empty", nil, "m/model.bin: at byte 0: short file: want 4 bytes (the binary version), 0 left"},
		{"version 1", builder{}.u32(1), "m/model.bin: at byte 0: want binary version 2 to 6, file has 1"},
		{"version 7", header(7, 0), "m/model.bin: at byte 0: want binary version 2 to 6, file has 7"},
		{"another kind", builder{}.u32(6).str("WhisperSpec").u32(3),
			"m/model.bin: at byte 4: want a decoder-only model (TransformerDecoderSpec), file holds a WhisperSpec"},
		{"newer revision", builder{}.u32(6).str(specName).u32(9),
			"m/model.bin: at byte 29: want revision 1 to 8 of TransformerDecoderSpec, file has 9"},
		{"git lfs", []byte("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"),
			"m/model.bin: at byte 0: want a converted model, file is a Git LFS pointer to one"},
		{"more variables than bytes", append(header(6, 9), make([]byte, 12)...),
			"m/model.bin: at byte 33: short file: want 9 variables, there is room for at most 1"},
		{"far too many variables", header(6, math.MaxUint32),
			"m/model.bin: at byte 33: want at most 65536 variables, file says 4294967295"},
		{"more aliases than bytes", append(weights.u32(5), make([]byte, 9)...),
			"m/model.bin: at byte 103: short file: want 5 aliases, there is room for at most 1"},
		{"no alias section", weights, "m/model.bin: at byte 103: short file: want 4 bytes (the number of aliases), 0 left"},
		{"string of length 0", append(header(6, 1).u16(0), make([]byte, 20)...),
			"m/model.bin: at byte 37: want a string (a variable's name) and its closing NUL, its length says 0"},
		{"string without NUL", append(append(header(6, 1).u16(3), "abc"...), make([]byte, 20)...),
			"m/model.bin: at byte 37: want a string (a variable's name) that ends with NUL, 3 bytes end with 0x63"},
		{"string with an escape", header(6, 1).floats("a\x1b[2Jb"),
			`m/model.bin: at byte 37: want a printable string (a variable's name), found "a\x1b[2Jb"`},
		{"string past the end", append(header(6, 1).u16(500), make([]byte, 20)...),
			"m/model.bin: at byte 39: short file: want 500 bytes (a variable's name), 20 left"},
		{"rank", append(header(6, 1).str("w").u8(200), make([]byte, 20)...),
			"m/model.bin: w at byte 41: want at most 8 dimensions, file has 200"},
		{"overflowing shape", header(6, 1).record("w", 1<<31, 1<<31, 4).data(num.Float32, nil),
			"m/model.bin: w at byte 54: shape [2147483648 2147483648 4] overflows: a variable holds at most 4294967295 elements"},
		{"unknown type", header(6, 1).record("w").u8(9).u32(4).u32(0), "m/model.bin: w at byte 42: want a type id from 0 to 5, file has 9"},
		{"unknown item size", header(3, 1).record("w").u8(8).u32(1).u32(0).u32(0),
			"m/model.bin: w at byte 42: want an item size of 1, 2 or 4 bytes, file has 8"},
		{"size against shape", header(6, 1).record("w", 3, 2).data(num.Float16, make([]byte, 10)),
			"m/model.bin: w at byte 51: want 12 bytes of data for float16 [3 2], the record says 10"},
		{"items against shape", header(2, 1).record("w", 3, 2).u8(4).u32(7),
			"m/model.bin: w at byte 51: want 24 bytes of data for float32 [3 2], the record says 28"},
		{"short data", weights[:len(weights)-1],
			"m/model.bin: decoder/embeddings/weight at byte 79: short file: want 24 bytes (data), 23 left"},
		{"twice", header(6, 2).floats("w", 2).floats("w", 2),
			"m/model.bin: w at byte 59: want one variable of this name, the other's data is at byte 51"},
		{"dangling alias", header(6, 1).floats("w", 2).u32(1).str("v").str("u"),
			"m/model.bin: v at byte 63: alias of u, which the file does not hold"},
		{"alias of a name that is taken", header(6, 2).floats("w", 2).floats("v", 2).u32(1).str("v").str("w"),
			"m/model.bin: v at byte 85: want one variable of this name, the file aliases it to w too"},
		{"trailing bytes", append(tiny(), 1, 2, 3), "m/model.bin: at byte 191: want the end of the file, 3 more bytes follow"},
	}
	if len(header(6, 0)) != start {
		t.Fatalf("BUG: the header has %d bytes", len(header(6, 0)))
	}
	if _, err := Parse("m/model.bin", tiny()); err != nil {
		t.Fatalf("the model that the defects are made from: %v", err)
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m, err := Parse("m/model.bin", test.bin)
			if err == nil || err.Error() != test.want || m != nil {
				t.Errorf("%v\nwant %s", err, test.want)
			}
		})
	}
}

// TestParseEveryTruncation cuts a correct model at every byte: each stump is refused as short, at a place inside it.
func TestParseEveryTruncation(t *testing.T) {
	whole := tiny()
	for n := range whole {
		_, err := Parse("model.bin", whole[:n])
		var defect *Error
		if !errors.As(err, &defect) || !strings.Contains(defect.Defect, "short file") || defect.Offset > int64(n) {
			t.Errorf("first %d bytes: %v", n, err)
		}
	}
}

// TestOpenDefects holds every defect of a directory to its one line and its hint.
func TestOpenDefects(t *testing.T) {
	good := func() fstest.MapFS {
		return fstest.MapFS{
			"m/model.bin":       {Data: tiny()},
			"m/config.json":     {Data: []byte(`{"bos_token": "b", "eos_token": "e", "unk_token": "u", "layer_norm_epsilon": null}`)},
			"m/vocabulary.json": {Data: []byte(`["u", "b", "e"]`)},
		}
	}
	set := func(name, content string) fstest.MapFS {
		fsys := good()
		fsys[name] = &fstest.MapFile{Data: []byte(content)}
		return fsys
	}
	without := func(name string, more ...string) fstest.MapFS {
		fsys := good()
		delete(fsys, name)
		for _, extra := range more {
			fsys[extra] = &fstest.MapFile{}
		}
		return fsys
	}
	if _, err := OpenFS(good(), "m"); err != nil {
		t.Fatalf("the model that the defects are made from: %v", err)
	}
	for _, test := range []struct {
		name       string
		fsys       fstest.MapFS
		want, hint string
	}{
		{"no model.bin", without("m/model.bin"), "m: want model.bin, the directory has none", ""},
		{"checkpoint", without("m/model.bin", "m/model-00001-of-00002.safetensors"),
			"m: want a converted model (model.bin), this is a Hugging Face checkpoint (model-00001-of-00002.safetensors)",
			"ct2-transformers-converter --model m --output_dir m-ct2 --copy_files tokenizer.json tokenizer_config.json"},
		{"git lfs", set("m/model.bin", "version https://git-lfs.github.com/spec/v1\n"),
			"m/model.bin: at byte 0: want a converted model, file is a Git LFS pointer to one", "git lfs pull"},
		{"no config", without("m/config.json"), "m/config.json: want the special tokens and the norms' epsilon, there is no such file", ""},
		{"torn config", set("m/config.json", `{"bos_token": `),
			"m/config.json: at byte 14: want an object of tokens and numbers: unexpected end of JSON input", ""},
		{"config of another shape", set("m/config.json", `[1]`), "m/config.json: at byte 1: want an object of tokens and numbers, a value is of type array", ""},
		{"token of another type", set("m/config.json", `{"bos_token": 2}`),
			"m/config.json: at byte 15: want an object of tokens and numbers, bos_token is of type number", ""},
		{"no vocabulary", without("m/vocabulary.json"), "m: want vocabulary.json or vocabulary.txt, the directory has neither", ""},
		{"torn vocabulary", set("m/vocabulary.json", `["u", "b`),
			"m/vocabulary.json: at byte 8: want an array of strings: unexpected end of JSON input", ""},
		{"null in the vocabulary", set("m/vocabulary.json", `["u", null, "e"]`), "m/vocabulary.json: want an array of strings, token 1 is null", ""},
		{"number in the vocabulary", set("m/vocabulary.json", `["u", 5, "e"]`), "m/vocabulary.json: at byte 7: want an array of strings, a value is of type number", ""},
		{"long vocabulary", set("m/vocabulary.json", `["u", "b", "e", "x"]`),
			"m/vocabulary.json: want 3 tokens, one for each row of decoder/embeddings/weight, file has 4", ""},
		{"no embedding", set("m/model.bin", string(header(6, 0).u32(0))),
			"m/model.bin: decoder/embeddings/weight: want [any any], file has no such variable", ""},
		{"embedding of another rank", set("m/model.bin", string(header(6, 1).floats(embeddings, 3).u32(0))),
			"m/model.bin: decoder/embeddings/weight at byte 75: want [any any], file has [3]", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, err := OpenFS(test.fsys, "m")
			if err == nil || err.Error() != test.want || m != nil {
				t.Fatalf("%v\nwant %s", err, test.want)
			}
			var hinted interface{ Hint() string }
			if !errors.As(err, &hinted) || hinted.Hint() != test.hint {
				t.Errorf("hint %q, want %q", hinted.Hint(), test.hint)
			}
		})
	}
}

// TestOpenFiles covers what only a real file system has.
func TestOpenFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "model.bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	empty := t.TempDir()
	if err := os.WriteFile(filepath.Join(empty, "model.bin"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, dir, want string }{
		{"no such directory", filepath.Join(dir, "x"), "open model: stat " + dir + "/x: no such file or directory"},
		{"a file", filepath.Join(empty, "model.bin"), empty + "/model.bin: want a directory with model.bin, this is a file"},
		{"model.bin is a directory", dir, "open model: " + dir + "/model.bin: want a regular file, this is none"},
		{"empty model.bin", empty, empty + "/model.bin: at byte 0: short file: want 4 bytes (the binary version), 0 left"},
	} {
		if m, err := Open(test.dir); err == nil || err.Error() != test.want || m != nil {
			t.Errorf("%s: %v\nwant %s", test.name, err, test.want)
		}
	}
}

// TestParseAllocation gives the parser files that claim to be huge: it may only allocate what their bytes justify.
func TestParseAllocation(t *testing.T) {
	many := header(6, 0xfff0) // as many variables as are allowed and fit: the densest index a file can ask for
	for i := range uint32(0xfff0) {
		many = append(many.str(string([]byte{'!' + byte(i%90), '!' + byte(i/90%90), '!' + byte(i/8100)})).u8(0), byte(num.Int8), 1, 0, 0, 0, 7)
	}
	many = many.u32(0)
	if _, err := Parse("m", many); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		bin  []byte
		max  uint64
	}{
		// An error, its text and an empty index are less than 4 KiB.
		{"variables", header(6, math.MaxUint32), 4 << 10},
		{"aliases", header(6, 0).u32(math.MaxUint32), 4 << 10},
		{"data", header(6, 1).record("w", math.MaxUint32/4).u8(0).u32(math.MaxUint32 - 3), 4 << 10},
		{"dimensions", header(6, 1).record("w", math.MaxUint32, math.MaxUint32, math.MaxUint32).data(num.Float32, nil), 4 << 10},
		{"name", header(6, 1).u16(math.MaxUint16), 4 << 10},
		// A map entry of 112 bytes, at most 16/7 of it for free slots, twice for growing, and a name: 530 bytes for
		// each variable of 13.
		{"index", many, uint64(530 * 0xfff0)},
	} {
		if got := allocated(func() { _, _ = Parse("m", test.bin) }); got > test.max {
			t.Errorf("%s: a file of %d bytes made the parser allocate %d, want at most %d", test.name, len(test.bin), got, test.max)
		}
	}
}

// allocated is how many bytes f allocates: the least of five times, since the garbage collector may allocate for itself meanwhile, but not each time.
func allocated(f func()) uint64 {
	least := uint64(math.MaxUint64)
	for range 5 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	return least
}
