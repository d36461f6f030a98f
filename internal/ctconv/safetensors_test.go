package ctconv

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSafetensorsAlignment retells the second story: a header of odd length puts every float32 off its alignment.
func TestSafetensorsAlignment(t *testing.T) {
	const entries = `{"wte": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "h": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]}, "ids": {"dtype": "U8", "shape": [2], "data_offsets": [22, 24]}}`
	if (8+len(entries))%4 != 3 {
		t.Fatalf("BUG: the header has %d bytes", len(entries))
	}
	for _, test := range []struct {
		pad    int // spaces after the JSON, as writers put them to align the data
		wte, h bool
	}{
		{pad: 0, wte: true, h: true},
		{pad: 3, wte: true, h: false},
		{pad: 5, wte: false, h: false},
	} {
		file := safetensors(entries+strings.Repeat(" ", test.pad), 24)
		s, err := ReadSafetensors("f", bytes.NewReader(file), int64(len(file)))
		if err != nil {
			t.Fatal(err)
		}
		off, start := 0, int64(8+len(entries)+test.pad)
		for _, is := range []bool{test.wte, test.h} {
			if is {
				off++
			}
		}
		if s.DataStart != start || s.Alignment != (Alignment{3, off}) {
			t.Errorf("pad %d: data start %d, %+v; want %d, %d of 3 off", test.pad, s.DataStart, s.Alignment, start, off)
		}
		wte, h := s.Tensors[0], s.Tensors[1]
		if wte.Off != test.wte || h.Off != test.h || wte.Offset != start || h.Mod != ModOf(start+16) || s.Tensors[2].Off {
			t.Errorf("pad %d: %+v", test.pad, s.Tensors)
		}
	}
}

// TestSafetensorsDefects holds every defect of a header to its one line.
func TestSafetensorsDefects(t *testing.T) {
	length := func(n uint64) []byte { return append(binary.LittleEndian.AppendUint64(nil, n), "{}"...) }
	array := func(entry string) []byte { return safetensors(`{"w": `+entry+`}`, 8) }
	for _, test := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "f: at byte 0: short file: want 8 bytes (the header's length), 0 left"},
		{"huge header", length(math.MaxUint64), "f: at byte 0: want a header of at most 100000000 bytes, file says 18446744073709551615"},
		{"header past the end", length(99_999_999), "f: at byte 0: short file: want a header of 99999999 bytes, 2 left"},
		{"torn header", length(1), "f: at byte 9: want a JSON object of arrays as header: it ends too soon"},
		{"no object", safetensors(`[]`, 0), "f: at byte 9: want a JSON object of arrays as header: found ["},
		{"two objects", safetensors(`{}{}`, 0), "f: at byte 11: want a JSON object of arrays as header: { follows it"},
		{"twice", safetensors(`{"w": {"dtype": "U8", "data_offsets": [0, 1]}, "w": {}}`, 1),
			`f: at byte 58: want a JSON object of arrays as header: want distinct and printable names, found "w"`},
		{"unknown type", array(`{"dtype": "Q4", "shape": [1], "data_offsets": [0, 8]}`), `f: w: want a type that the format knows, file has "Q4"`},
		{"past the end", array(`{"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}`), "f: w: want data within 0 to 8, the header says 0 to 16"},
		{"backwards", array(`{"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}`), "f: w: want data within 0 to 8, the header says 4 to 0"},
		{"size against shape", array(`{"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}`), "f: w: want 12 bytes of data for F32 [3], the header says 8"},
		{"overflow", array(`{"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 8]}`), "f: w: shape [4294967296 4294967296] overflows"},
		{"negative", array(`{"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}`), "f: w: shape [-1] overflows"},
	} {
		s, err := ReadSafetensors("f", bytes.NewReader(test.file), int64(len(test.file)))
		if err == nil || err.Error() != test.want || s != nil {
			t.Errorf("%s: %v\nwant %s", test.name, err, test.want)
		}
	}
	dir := t.TempDir()
	if _, err := OpenSafetensors(dir); message(err) != dir+": want a regular file, this is none" {
		t.Errorf("a directory: %v", err)
	}
}

// TestSafetensorsAllocation: a header that claims to be huge is refused before anything is allocated for it.
func TestSafetensorsAllocation(t *testing.T) {
	file := filepath.Join(t.TempDir(), "m.safetensors")
	if err := os.WriteFile(file, binary.LittleEndian.AppendUint64(nil, maxHeader), 0o644); err != nil {
		t.Fatal(err)
	}
	got := allocated(func() {
		if _, err := OpenSafetensors(file); err == nil {
			t.Error("it was not refused")
		}
	})
	if got > 8<<10 { // a file handle, its name, an error
		t.Errorf("a file of 8 bytes made the reader allocate %d bytes", got)
	}
}

// TestSafetensorsFilled: arrays that overlap, holes between them and bytes that belong to none are no safetensors file.
func TestSafetensorsFilled(t *testing.T) {
	two := func(a, b string) string {
		return `{"a": {"dtype": "U8", "shape": [4], "data_offsets": ` + a + `}, "b": {"dtype": "U8", "shape": [4], "data_offsets": ` + b + `}}`
	}
	for _, c := range []struct {
		header string
		data   int
		want   string // N is where the data starts
	}{
		{two("[0, 4]", "[4, 8]"), 8, ""},
		{two("[4, 8]", "[0, 4]"), 8, ""},
		{two("[0, 4]", "[2, 6]"), 6, "f: b at byte N+2: want the array to begin at byte N+4, where the one before ends"},
		{two("[0, 4]", "[5, 9]"), 9, "f: b at byte N+5: want the array to begin at byte N+4, where the one before ends"},
		{two("[0, 4]", "[4, 8]"), 11, "f: at byte N+8: want the end of the file, 3 bytes belong to no array"},
	} {
		file := safetensors(c.header, c.data)
		want := c.want
		for i := range 10 {
			want = strings.ReplaceAll(want, fmt.Sprintf("N+%d", i), fmt.Sprint(8+len(c.header)+i))
		}
		_, err := ReadSafetensors("f", bytes.NewReader(file), int64(len(file)))
		if got := fmt.Sprint(err); err == nil && want != "" || err != nil && got != want {
			t.Errorf("%s: want %q, got %v", c.header, want, err)
		}
	}
}
