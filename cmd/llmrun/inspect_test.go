package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"llmrun/internal/ctconv"
)

// runInspect runs the command alone and gives its answer, its exit code and its error.
func runInspect(args ...string) (stdout string, exit int, err error) {
	var out bytes.Buffer
	a := &app{stdout: &out, stderr: io.Discard}
	c := newInspectCommand(a)
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(args)
	err = c.Execute()
	return out.String(), a.exit, err
}

// cells splits a line of a table.
func cells(line string) []string {
	var list []string
	for _, cell := range strings.Split(line, "   ") {
		if cell = strings.TrimSpace(cell); cell != "" {
			list = append(list, cell)
		}
	}
	return list
}

// hasLine tells whether a table has a line of these cells.
func hasLine(text string, want ...string) bool {
	for line := range strings.Lines(text) {
		if slices.Equal(cells(line), want) {
			return true
		}
	}
	return false
}

// TestInspectText: the embedded model against its original config loses its two caps and its window, and nothing else.
func TestInspectText(t *testing.T) {
	out, exit, err := runInspect("tiny-gemma2", "--hf", "tiny-gemma2")
	if err != nil || exit != 1 {
		t.Fatalf("exit %d, %v; want 1", exit, err)
	}
	for _, want := range [][]string{
		{"format", "binary version 6, TransformerDecoderSpec revision 8"},
		{"contents", "8 layers, 1675392 parameters, 158 variables and 1 aliases"},
		{"bos", `"<bos>", id 2`},
		{"tokenizer", "tokenizer.json, tokenizer_config.json"},
		{"alignment", "37 of 74 weights start off their element size: never map them as arrays; llmrun does not"},
		{"alias", "decoder/projection/weight → decoder/embeddings/weight"},
		{"decoder/activation", "1 GELU-tanh", "–", "0 ReLU", "activation of ffn/linear_0"},
		{"decoder/layer_N/self_attention/rotary_base", "10000", "0-7", "10000", "theta: angle = position / theta^(2i/dim)"},
		{"hidden_activation", "gelu_pytorch_tanh", "1 GELU-tanh", "ok", "–"},
		{"attn_logit_softcapping", "50", "format has no such field", "DROPPED", "converted ≠ original in every layer; never cpu ≠ metal"},
		{"final_logit_softcapping", "30", "absent", "DROPPED", "converted ≠ original in scores and sampling, never in the greedy token; never cpu ≠ metal"},
		{"sliding_window", "64 in layers 0,2,4,6", "absent", "DROPPED", "converted ≠ original beyond 64 tokens; never cpu ≠ metal"},
		{"query_pre_attn_scalar", "32", "absent: 1/√32", "ok", "–"},
		{"bos_token", "<bos> (2)", "<bos> (2)", "ok", "prompts must carry it: the engine adds none"},
	} {
		if !hasLine(out, want...) {
			t.Errorf("no line %q", want)
		}
	}
	if n := strings.Count(out, "DROPPED") + strings.Count(out, "CHANGED"); n != 3 {
		t.Errorf("%d fields are dropped or changed, want 3", n)
	}
	if t.Failed() {
		t.Log(out)
	}
}

// TestInspectExit: 1 when something is lost, 0 when it is not or is known.
func TestInspectExit(t *testing.T) {
	nan := filepath.Join(t.TempDir(), "nan")
	writeModel(t, nan, []byte{0, 0x7e, 0, 0})
	for _, test := range []struct {
		args string
		want int
	}{
		{"tiny-gemma2", 0},
		{"tiny-gemma2 --tensors --stats", 0},
		{"tiny-gemma2 --hf tiny-gemma2", 1},
		{"tiny-gemma2 --hf tiny-gemma2 --ignore attn_logit_softcapping,sliding_window", 1},
		{"tiny-gemma2 --hf tiny-gemma2 --ignore attn_logit_softcapping,sliding_window --ignore final_logit_softcapping", 0},
		{"tiny-qwen2 --hf tiny-qwen2", 0},
		{nan, 0},
		{nan + " --stats", 1},
		{nan + " --tensor decoder/embeddings/weight", 1},
	} {
		out, exit, err := runInspect(strings.Fields(test.args)...)
		if err != nil || exit != test.want || out == "" {
			t.Errorf("%s: exit %d, %v; want %d", test.args, exit, err, test.want)
		}
		var answer struct {
			Schema string
			Exit   int
		}
		out, _, _ = runInspect(append(strings.Fields(test.args), "--json")...)
		if err := json.Unmarshal([]byte(out), &answer); err != nil || answer.Schema != inspectSchema || answer.Exit != test.want {
			t.Errorf("%s --json: %+v, %v; want exit %d", test.args, answer, err, test.want)
		}
	}
}

// writeModel writes a model of two tokens whose embedding is the two float16 in data.
func writeModel(t *testing.T, dir string, data []byte) {
	t.Helper()
	str := func(b []byte, s string) []byte {
		return append(append(binary.LittleEndian.AppendUint16(b, uint16(len(s)+1)), s...), 0)
	}
	bin := str([]byte{6, 0, 0, 0}, "TransformerDecoderSpec")
	bin = str(append(bin, 8, 0, 0, 0, 1, 0, 0, 0), "decoder/embeddings/weight")
	bin = append(bin, 2, 2, 0, 0, 0, 1, 0, 0, 0, 4, 4, 0, 0, 0) // rank, 2 × 1, float16, 4 bytes
	bin = append(append(bin, data...), 0, 0, 0, 0)              // no alias
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"model.bin": string(bin), "vocabulary.json": `["<s>", "</s>"]`,
		"config.json": `{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<s>"}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestInspectJSON holds the keys, their order and some values.
func TestInspectJSON(t *testing.T) {
	out, _, err := runInspect("tiny-gemma2", "--hf", "tiny-gemma2", "--stats", "--json")
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(strings.NewReader(out))
	var keys []string
	for depth, key := 0, true; ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		switch delim, _ := token.(json.Delim); delim {
		case '{', '[':
			depth++
			key = depth == 1
		case '}', ']':
			depth--
			key = depth == 1
		default:
			if depth == 1 && key {
				keys = append(keys, token.(string))
			}
			key = !key && depth == 1
		}
	}
	if want := strings.Fields("schema model header flags tensors vocabulary audit alignment findings exit"); !slices.Equal(keys, want) {
		t.Errorf("keys %q, want %q", keys, want)
	}
	var r inspection
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(r.Tensors, func(t inspectedTensor) bool { return t.Name == "decoder/layer_norm/gamma" })
	if gamma := r.Tensors[i]; gamma.Offset != 3359591 || gamma.Mod != (ctconv.Mod{By2: 1, By4: 3, By16: 7, By64: 39}) || gamma.Stats == nil || gamma.Stats.NaN != 0 {
		t.Errorf("decoder/layer_norm/gamma is %+v", gamma)
	}
	i = slices.IndexFunc(r.Tensors, func(t inspectedTensor) bool { return t.Name == "decoder/projection/weight" })
	if head := r.Tensors[i]; head.AliasOf != "decoder/embeddings/weight" || head.Stats != nil {
		t.Errorf("decoder/projection/weight is %+v, want an alias without statistics", head)
	}
}

func TestInspectTensor(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "m")
	writeModel(t, dir, []byte{0, 0x3c, 0, 0xfc}) // 1 and -Inf
	out, exit, err := runInspect(dir, "--tensor", "decoder/embeddings/weight", "--rows", ":2")
	if err != nil || exit != 1 {
		t.Fatalf("exit %d, %v; want 1", exit, err)
	}
	if !hasLine(out, "decoder/embeddings/weight", "float16", "[2 1]", "79", "1", "3", "15", "15", "1", "1", "1", "1", "0", "1") ||
		!hasLine(out, "0: 1") || !hasLine(out, "1: -Inf") {
		t.Error(out)
	}
	out, _, err = runInspect(dir, "--tensor", "decoder/embeddings/weight", "--rows", "1:2", "--json")
	if err != nil || !strings.Contains(strings.Join(strings.Fields(out), " "), `"first_row": 1, "values": [ [ "-Inf" ] ]`) {
		t.Errorf("%s, %v", out, err)
	}
}

// TestInspectErrors: what cannot be run says why on one line, and leads on.
func TestInspectErrors(t *testing.T) {
	dir := t.TempDir()
	torn := filepath.Join(dir, "torn")
	writeModel(t, torn, []byte{0, 0, 0, 0})
	if err := os.Truncate(filepath.Join(torn, "model.bin"), 80); err != nil {
		t.Fatal(err)
	}
	hf := filepath.Join(torn, "config.json")
	for _, test := range []struct{ args, want, hint string }{
		{"", "want one model (a directory, a name or a .safetensors file), got 0", ""},
		{"a b", "want one model (a directory, a name or a .safetensors file), got 2", ""},
		{"tiny-gemma2 --rows 0:1", "--rows needs --tensor NAME", ""},
		{"tiny-gemma2 --ignore bos_token", "--ignore needs --hf FILE|DIR", ""},
		{"tiny-gemma2 --tensor decoder/layer_norm/gama", "tiny-gemma2: no variable decoder/layer_norm/gama",
			"llmrun convert-inspect tiny-gemma2 --tensor decoder/layer_norm/gamma"},
		{"tiny-gemma2 --tensor decoder/num_heads --rows 0:2", "--rows 0:2: want A:B within 0:1, the rows of decoder/num_heads", ""},
		{"tiny-gemma2 --tensor decoder/layer_norm/gamma --rows 5", "--rows 5: want A:B within 0:128, the rows of decoder/layer_norm/gamma", ""},
		{"tiny-gemma2 --tensor decoder/layer_norm/gamma --rows 7:x", "--rows 7:x: want A:B within 0:128, the rows of decoder/layer_norm/gamma", ""},
		{"tiny-qwen2 --hf tiny-qwen2 --ignore bos", "--ignore bos: want a field of this comparison, which are hidden_activation, sliding_window, rope_theta, rope_scaling, " +
			"rms_norm_eps, bos_token, eos_token, vocab_size, num_hidden_layers, num_attention_heads, num_key_value_heads, hidden_size, intermediate_size, tie_word_embeddings", ""},
		{"tiny-gemma2 --hf " + hf, hf + ": want the original model's config, this one has neither model_type nor hidden_size",
			"CTranslate2's own config.json declares nothing of the model; pass the one of the checkpoint that was converted"},
		{torn, torn + "/model.bin: decoder/embeddings/weight at byte 79: short file: want 4 bytes (data), 1 left", ""},
		{"x.safetensors --stats", "x.safetensors: --hf, --tensor and --stats want a converted model; of a safetensors file only the header is read", ""},
	} {
		out, _, err := runInspect(strings.Fields(test.args)...)
		if err == nil || err.Error() != "convert-inspect: "+test.want || out != "" {
			t.Errorf("%s: %v\nwant %s", test.args, err, test.want)
		}
		var hinted interface{ Hint() string }
		if found := errors.As(err, &hinted); found && hinted.Hint() != test.hint || !found && test.hint != "" {
			t.Errorf("%s: want the hint %q", test.args, test.hint)
		}
	}
}

func TestInspectSafetensors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model.safetensors")
	for _, test := range []struct {
		pad, exit int
		want      []string
	}{
		{0, 1, []string{"w", "F32", "[2]", "69", "1", "1", "5", "5", "misaligned"}}, // 8 + 61
		{3, 0, []string{"alignment", "all 1 arrays start on their element size"}},
	} {
		header := `{"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}` + strings.Repeat(" ", test.pad)
		data := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
		if err := os.WriteFile(file, append(data, make([]byte, 8)...), 0o644); err != nil {
			t.Fatal(err)
		}
		out, exit, err := runInspect(file)
		if err != nil || exit != test.exit || !hasLine(out, test.want...) {
			t.Errorf("pad %d: exit %d, %v\n%s", test.pad, exit, err, out)
		}
		out, _, err = runInspect(file, "--json")
		var answer struct {
			Schema    string
			DataStart int64 `json:"data_start"`
			Exit      int
		}
		if e := json.Unmarshal([]byte(out), &answer); e != nil || err != nil || answer.Exit != test.exit || answer.DataStart != int64(8+len(header)) {
			t.Errorf("pad %d: %s", test.pad, out)
		}
	}
}
