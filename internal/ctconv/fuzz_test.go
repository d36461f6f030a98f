package ctconv

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"llmrun/internal/num"
)

// FuzzParse feeds torn and hostile files to the reader and, where one is accepted, to everything that looks at a
// model: nothing may panic, and what is accepted must be what the file says.
func FuzzParse(f *testing.F) {
	f.Add([]byte(tiny()))
	f.Add([]byte(header(2, 1).record("unk_token", 2).u8(1).u32(2).u8('t').u8('0')))
	f.Add([]byte(header(5, 2).floats("decoder/layer_0/self_attention/rotary_base").
		record("decoder/layer_0/self_attention/rotary_scaling_type").data(num.Int8, []byte{2}).u32(0)))
	f.Add([]byte(header(6, 2).floats("w", 2).floats("w_scale", 2).u32(1).str("v").str("w")))
	f.Add([]byte(lfsPointer))
	for _, name := range []string{"m_gemma18", "v2", "v3"} {
		bin, err := os.ReadFile(filepath.Join(golden, name, modelBin))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(bin[:4<<10]) // its first records: the whole file would only slow the search down
	}
	hf, err := ParseHF("config.json", []byte(`{"model_type": "gemma2", "sliding_window": 8, "hidden_size": 2, "head_dim": 1,
		"rope_scaling": {"type": "llama3", "factor": 8}, "query_pre_attn_scalar": 4, "bos_token_id": [1, 2], "tie_word_embeddings": true}`))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, bin []byte) {
		m, err := Parse("model.bin", bin)
		if err != nil {
			var defect *Error
			if !errors.As(err, &defect) || defect.Offset < 0 || defect.Offset > int64(len(bin)) {
				t.Fatalf("an error without its place in the file: %v", err)
			}
			return
		}
		for name, tensor := range m.Tensors {
			if tensor.Name != name || len(tensor.Data) != tensor.Elements()*tensor.DType.Size() {
				t.Fatalf("%s: %d bytes for %v %v", name, len(tensor.Data), tensor.DType, tensor.Shape)
			}
			if !bytes.Equal(tensor.Data, bin[tensor.Offset:][:len(tensor.Data)]) {
				t.Fatalf("%s: data is not what lies at byte %d", name, tensor.Offset)
			}
			tensor.Stats()
			_, _ = m.Int(name, 0)
		}
		m.Header()
		m.Flags()
		m.Findings()
		m.Alignment()
		m.Audit(hf)
	})
}

// FuzzDirectory feeds torn configs and vocabularies to the reader.
func FuzzDirectory(f *testing.F) {
	f.Add([]byte(`{"bos_token": "b", "layer_norm_epsilon": 1e-6}`), []byte(`["u", "b", "e"]`), true)
	f.Add([]byte(`{"bos_token": null, "quantization_type": 1}`), []byte("u\r\nb\r\ne\r\n"), false)
	f.Fuzz(func(t *testing.T, config, vocabulary []byte, isJSON bool) {
		name := "m/vocabulary.txt"
		if isJSON {
			name = "m/vocabulary.json"
		}
		m, err := OpenFS(fstest.MapFS{"m/model.bin": {Data: tiny()}, "m/config.json": {Data: config}, name: {Data: vocabulary}}, "m")
		if err == nil && m.Vocabulary.Len() != 3 {
			t.Fatalf("%d tokens for 3 rows", m.Vocabulary.Len())
		}
	})
}

// FuzzSafetensors feeds torn headers to the reader: whatever it accepts lies inside the file.
func FuzzSafetensors(f *testing.F) {
	f.Add(safetensors(`{"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]}}`, 8))
	f.Add(safetensors(`{}`, 0))
	f.Add(safetensors(`{"w": 3}`, 0))
	f.Fuzz(func(t *testing.T, file []byte) {
		s, err := ReadSafetensors("f", bytes.NewReader(file), int64(len(file)))
		if err != nil {
			return
		}
		for _, e := range s.Tensors {
			if e.Offset < s.DataStart || e.Offset > int64(len(file)) {
				t.Fatalf("%s starts at byte %d of %d", e.Name, e.Offset, len(file))
			}
		}
	})
}

// safetensors makes a file of a header and so many zero bytes of data.
func safetensors(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}
