package ctconv

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"

	"llmrun/internal/num"
)

const golden = "../../testdata/golden"

// TestOpenGolden opens every golden model, mapped and from memory, and checks what all of them share.
func TestOpenGolden(t *testing.T) {
	dirs, err := filepath.Glob(golden + "/*/" + modelBin)
	if err != nil || len(dirs) < 17 {
		t.Fatalf("want 17 golden models or more, found %d (%v)", len(dirs), err)
	}
	for _, bin := range dirs {
		dir := filepath.Dir(bin)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			mapped, err := Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer mapped.Close()
			read, err := OpenFS(os.DirFS(golden), filepath.Base(dir))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range []*Model{mapped, read} {
				if _, err := m.Want(embeddings, 97, 64); err != nil {
					t.Error(err)
				}
				if heads, err := m.Int("decoder/num_heads", 8); err != nil || heads != 4 {
					t.Errorf("decoder/num_heads = %d, %v; want 4", heads, err)
				}
				if c := m.Config; c.UnkToken != "t0" || c.BOSToken != "t1" || c.EOSToken != "t2" {
					t.Errorf("special tokens unk %q, bos %q, eos %q; want t0, t1, t2", c.UnkToken, c.BOSToken, c.EOSToken)
				}
				if id, ok := m.TokenID("t96"); !ok || id != 96 {
					t.Errorf("t96 is token %d, %v; want 96", id, ok)
				}
			}
			if len(mapped.Tensors) != len(read.Tensors) {
				t.Errorf("mapped %d tensors, read %d", len(mapped.Tensors), len(read.Tensors))
			}
		})
	}
}

// parse parses bytes that must be right.
func parse(t *testing.T, b builder) *Model {
	t.Helper()
	m, err := Parse("model.bin", b)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestWant(t *testing.T) {
	m := parse(t, tiny())
	for _, test := range []struct {
		name  string
		shape []int
		want  string
	}{
		{embeddings, []int{3, 2}, ""},
		{embeddings, []int{-1, 2}, ""},
		{"decoder/num_heads", nil, ""},
		{embeddings, []int{3, 4}, "model.bin: decoder/embeddings/weight at byte 79: want [3 4], file has [3 2]"},
		{embeddings, []int{-1, 2, 2}, "model.bin: decoder/embeddings/weight at byte 79: want [any 2 2], file has [3 2]"},
		{embeddings, nil, "model.bin: decoder/embeddings/weight at byte 79: want a scalar, file has [3 2]"},
		{"decoder/num_heads", []int{1}, "model.bin: decoder/num_heads at byte 129: want [1], file has a scalar"},
		{"w", []int{7}, "model.bin: w: want [7], file has no such variable"},
	} {
		tensor, err := m.Want(test.name, test.shape...)
		if got := message(err); got != test.want {
			t.Errorf("Want(%s, %v): %s\nwant %s", test.name, test.shape, got, test.want)
		}
		if err == nil && tensor.Name != test.name {
			t.Errorf("Want(%s) gave %s", test.name, tensor.Name)
		}
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestScalars reads one value stored as each type, as an absent one and as what is no scalar or no whole number.
func TestScalars(t *testing.T) {
	types := []num.DType{num.Float32, num.Int8, num.Int16, num.Int32, num.Float16, num.BFloat16}
	b := header(6, uint32(len(types)+4))
	for _, d := range types {
		data := make([]byte, d.Size())
		if d.IsFloat() {
			num.PutFloat32(d, data, 0, 3)
		} else {
			data[0] = 3
		}
		b = b.record(d.String()).data(d, data)
	}
	b = b.record("large").data(num.Int32, []byte{0x01, 0, 0, 0x40}). // 2³⁰+1, which no float32 is
										record("half").data(num.Float16, []byte{0x00, 0x38}).
										record("nan").data(num.Float16, []byte{0x00, 0x7e}).
										floats("vector", 2).u32(0)
	m := parse(t, b)
	for _, d := range types {
		i, err1 := m.Int(d.String(), 7)
		f, err2 := m.Float(d.String(), 7)
		on, err3 := m.Flag(d.String(), false)
		if i != 3 || f != 3 || !on || err1 != nil || err2 != nil || err3 != nil {
			t.Errorf("%v: %d, %v, %v (%v, %v, %v); want 3, 3, true", d, i, f, on, err1, err2, err3)
		}
	}
	if i, err := m.Int("large", 0); i != 1<<30+1 || err != nil {
		t.Errorf("large: %d, %v; want %d", i, err, 1<<30+1)
	}
	i, err1 := m.Int("absent", 7)
	f, err2 := m.Float("absent", 0.5)
	on, err3 := m.Flag("absent", true)
	if i != 7 || f != 0.5 || !on || err1 != nil || err2 != nil || err3 != nil {
		t.Errorf("absent: %d, %v, %v (%v, %v, %v); want the defaults", i, f, on, err1, err2, err3)
	}
	for name, want := range map[string]string{
		"half":   "model.bin: half at byte 173: want a whole number, file has 0.5",
		"nan":    "model.bin: nan at byte 187: want a whole number, file has NaN",
		"vector": "model.bin: vector at byte 208: want a scalar, file has [2]",
	} {
		if _, err := m.Int(name, 0); message(err) != want {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}

// TestAliases: an alias brings its scale and zero point along, unless the file names its own.
func TestAliases(t *testing.T) {
	m := parse(t, header(6, 4).floats("w", 2).floats("w_scale", 2).floats("w_zero", 2).floats("v_zero", 1).u32(1).str("v").str("w"))
	for name, aliasOf := range map[string]string{"w": "", "v": "w", "v_scale": "w_scale", "v_zero": ""} {
		tensor, ok := m.Tensor(name)
		if !ok || tensor.Name != name || tensor.AliasOf != aliasOf {
			t.Errorf("%s: %+v; want an alias of %q", name, tensor, aliasOf)
		}
	}
	if v, w := m.Tensors["v"], m.Tensors["w"]; v.Offset != w.Offset || &v.Data[0] != &w.Data[0] {
		t.Error("an alias and its target hold different data")
	}
}

// TestOldVersions: before version 4 the item size stands for the type, before 6 the special tokens are variables, and
// in revision 1 the options of the block lie at the root.
func TestOldVersions(t *testing.T) {
	b := builder{}.u32(3).str(specName).u32(1).u32(4).
		record("a", 2).u8(2).u32(2).u32(0).
		record("bos_token", 2).u8(1).u32(2).u8('t').u8('9').
		record("num_heads").u8(2).u32(1).u16(12).
		record("f").u8(4).u32(1).u32(math.Float32bits(0.25)).u32(0)
	m := parse(t, b)
	if a := m.Tensors["a"]; a.DType != num.Int16 || len(a.Data) != 4 {
		t.Errorf("a is %v of %d bytes, want int16 of 4", a.DType, len(a.Data))
	}
	if f, err := m.Float("f", 0); f != 0.25 || err != nil {
		t.Errorf("f = %v, %v; want 0.25", f, err)
	}
	if n, err := m.Int("decoder/num_heads", 8); n != 12 || err != nil {
		t.Errorf("decoder/num_heads = %d, %v; want 12", n, err)
	}
	if c := m.Config; c.BOSToken != "t9" || c.EOSToken != "</s>" || c.UnkToken != "<unk>" {
		t.Errorf("special tokens %+v; want t9 from the file, the others by default", c)
	}
}

// TestConfigBeforeVersion6: the epsilon is config.json's, the tokens are model.bin's.
func TestConfigBeforeVersion6(t *testing.T) {
	m, err := OpenFS(fstest.MapFS{
		"model.bin":      {Data: header(5, 1).floats(embeddings, 2, 1).u32(0)},
		"config.json":    {Data: []byte(`{"bos_token": "x", "layer_norm_epsilon": 0.5}`)},
		"vocabulary.txt": {Data: []byte("<unk>\n<s>\n")},
	}, ".")
	if err != nil {
		t.Fatal(err)
	}
	if c := m.Config; c.BOSToken != "<s>" || c.LayerNormEpsilon == nil || *c.LayerNormEpsilon != 0.5 {
		t.Errorf("config %+v; want <s> and 0.5", c)
	}
}

func TestVocabularyText(t *testing.T) {
	for _, test := range []struct {
		text string
		want []string
	}{
		{"", nil},
		{"a\nb\n", []string{"a", "b"}},
		{"a\nb", []string{"a", "b"}},
		{"a\n\n", []string{"a", ""}},
		{"a\r\nb\r\n", []string{"a", "b"}},
		{"a\r\nb\n", []string{"a\r", "b"}},
	} {
		if v, err := vocabularyText("", []byte(test.text)); !slices.Equal(tokens(v), test.want) || err != nil {
			t.Errorf("%q: %q, %v; want %q", test.text, tokens(v), err, test.want)
		}
	}
}

// TestTokenID: the first of two equal tokens wins, and an unk_token that CTranslate2 would append has no id.
func TestTokenID(t *testing.T) {
	m := &Model{Vocabulary: NewVocabulary("a", "b", "b")}
	if id, ok := m.TokenID("b"); id != 1 || !ok {
		t.Errorf("b: %d, %v; want 1", id, ok)
	}
	if _, ok := m.TokenID(""); ok {
		t.Error("the empty token has an id")
	}
}

// TestClose: a second Close does nothing.
func TestClose(t *testing.T) {
	m, err := Open(golden + "/m_gemma18")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What Forget gives back can still be read.
func TestForget(t *testing.T) {
	m, err := Open(golden + "/m_gemma2")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for name, tensor := range m.Tensors {
		before := string(tensor.Data)
		m.Forget(tensor)
		if string(tensor.Data) != before {
			t.Errorf("%s: other bytes", name)
		}
	}
}
