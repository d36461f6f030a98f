package ctconv

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"llmrun/internal/num"
)

// TestAudit declares what was not converted, in all the spellings that configs have, and reads the verdicts.
func TestAudit(t *testing.T) {
	const llama3 = `"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64}`
	for _, test := range []struct {
		name, model, config string
		want                map[string]string // field → "declared | written | verdict"; "" where there must be no row
	}{
		{"gemma 2", "m_gemma2", `{"model_type": "gemma2", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "sliding_window": 4096,
			"query_pre_attn_scalar": 24, "hidden_act": "gelu", "rope_theta": 10000.0, "num_hidden_layers": 4, "tie_word_embeddings": true,
			"bos_token_id": 1, "eos_token_id": [2, 5], "vocab_size": 96}`, map[string]string{
			"hidden_activation":       "gelu_pytorch_tanh | 1 GELU-tanh | ok", // hidden_act is a relic in Gemma
			"attn_logit_softcapping":  "50 | format has no such field | DROPPED",
			"final_logit_softcapping": "30 | absent | DROPPED",
			"sliding_window":          "4096 in layers 0,2 | absent | DROPPED",
			"query_pre_attn_scalar":   "24 | absent: 1/√24 | ok",
			"norm_offset":             "1 + gamma (Gemma) | layer_norm_use_residual on 17 of 17 norms | ok",
			"rope_theta":              "10000 | 10000 | ok",
			"rope_scaling":            "",
			"rms_norm_eps":            "",
			"bos_token":               "t1 (1) | t1 (1) | ok",
			"eos_token":               "t2 (2), t5 (5) | t2 (2) | DROPPED",
			"vocab_size":              "96 | 97 | EXTRA",
			"num_hidden_layers":       "4 | 4 | ok",
			"tie_word_embeddings":     "true | one array | ok",
		}},
		{"nulls", "m_gemma2", `{"model_type": "gemma2", "attn_logit_softcapping": null, "final_logit_softcapping": null, "sliding_window": null,
			"head_dim": null, "rope_scaling": null, "bos_token_id": null, "eos_token_id": null}`, map[string]string{
			"attn_logit_softcapping":  "none | format has no such field | ok",
			"final_logit_softcapping": "none | absent | ok",
			"sliding_window":          "none | absent | ok",
			"query_pre_attn_scalar":   "",
			"head_dim":                "",
			"rope_theta":              "absent: 10000 | 10000 | ok",
			"rope_scaling":            "none | absent | ok",
			"bos_token":               "none | t1 (1) | EXTRA",
		}},
		{"gemma 3", "m_gemma3", `{"text_config": {"model_type": "gemma3_text", "sliding_window": 8, "sliding_window_pattern": 2, "rope_theta": 1000000,
			"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "query_pre_attn_scalar": 168, "rms_norm_eps": 1e-6}, "model_type": "gemma3"}`, map[string]string{
			"sliding_window":        "8 in layers 0,2 | 8 in layers 0,2 | ok",
			"query_pre_attn_scalar": "168 | absent: 1/√24 | CHANGED",
			"rope_theta":            "1000000 | 1000000 | ok",
			"rope_scaling":          "linear, factor 8 | absent | DROPPED",
			"rope_local_base_freq":  "absent: 10000 | 10000 | ok",
			"rms_norm_eps":          "1e-06 | absent: 1e-06 | DEFAULTED",
		}},
		{"gemma 3, transformers 5", "m_gemma3", `{"model_type": "gemma3_text", "sliding_window": 9, "layer_types": ["sliding_attention", "full_attention",
			"sliding_attention", "full_attention"], "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 500000},
			"sliding_attention": {"rope_type": "default", "rope_theta": 10000}}}`, map[string]string{
			"sliding_window":       "9 in layers 0,2 | 8 in layers 0,2 | CHANGED",
			"rope_theta":           "500000 | 1000000 | CHANGED",
			"rope_scaling":         "none | absent | ok",
			"rope_local_base_freq": "10000 | 10000 | ok",
			"rope_local_scaling":   "none | absent | ok",
		}},
		{"llama 3", "m_l3", `{"model_type": "llama", "hidden_act": "silu", "rope_theta": 500000, "rms_norm_eps": 1e-6, "num_key_value_heads": 2,
			"num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 96, "tie_word_embeddings": true, ` + llama3 + `}`, map[string]string{
			"hidden_activation":      "silu | 2 SiLU | ok",
			"norm_offset":            "",
			"attn_logit_softcapping": "",
			"sliding_window":         "",
			"rope_theta":             "500000 | 10000 | CHANGED",
			"rope_scaling":           "llama3, factor 8 | llama3, no rotary_scaling_factor, no original_max_position_embeddings | DROPPED",
			"rms_norm_eps":           "1e-06 | 1e-05 | CHANGED",
			"num_key_value_heads":    "2 | 2 | ok",
			"hidden_size":            "64 | 64 | ok",
			"intermediate_size":      "96 | 96 | ok",
			"tie_word_embeddings":    "true | two arrays | CHANGED",
		}},
		{"llama 3 with its factors", "n_l3f", `{"model_type": "llama", ` + llama3 + `}`, map[string]string{"rope_scaling": "llama3, factor 8 | llama3 | ok"}},
		{"another factor", "n_lin", `{"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2}}`,
			map[string]string{"rope_scaling": "linear, factor 2 | linear, rotary_scaling_factor 4 | CHANGED"}},
		{"another scaling", "n_lin", `{"model_type": "llama", "rope_scaling": {"type": "yarn", "factor": 2}}`,
			map[string]string{"rope_scaling": "yarn, factor 2 | linear | CHANGED"}},
		{"a scaling too many", "n_lin", `{"model_type": "llama", "rope_scaling": null}`, map[string]string{"rope_scaling": "none | linear | EXTRA"}},
		{"mistral", "m_llama_w8", `{"model_type": "mistral", "sliding_window": null, "hidden_act": "ge\u001blu"}`, map[string]string{
			"sliding_window":    "none | 8 | EXTRA",
			"hidden_activation": `"ge\x1blu" | 2 SiLU | CHANGED`,
		}},
		{"qwen 2", "m_llama", `{"model_type": "qwen2", "use_sliding_window": false, "sliding_window": 32768, "max_window_layers": 21}`,
			map[string]string{"sliding_window": "none | absent | ok"}},
		{"qwen 2 with windows", "m_llama", `{"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 32768, "max_window_layers": 2}`,
			map[string]string{"sliding_window": "32768 in layers 2-3 | absent | DROPPED"}},
		{"a gemma without its flags", "m_llama", `{"model_type": "gemma"}`,
			map[string]string{"norm_offset": "1 + gamma (Gemma) | layer_norm_use_residual on 0 of 9 norms | CHANGED"}},
		{"a cap too many", "m_softcap", `{"model_type": "llama"}`, map[string]string{"final_logit_softcapping": "none | 5 | EXTRA"}},
		{"su", "m_su", `{"model_type": "phi3", "original_max_position_embeddings": 4096, "max_position_embeddings": 131072, "partial_rotary_factor": 1.0,
			"rope_scaling": {"type": "su", "short_factor": [1, 1.1428571428571428, 1.2857142857142858, 1.4285714285714286,
			1.5714285714285714, 1.7142857142857144, 1.8571428571428572, 2]}}`, map[string]string{
			"rope_scaling":          "su | su (longrope) | ok",
			"partial_rotary_factor": "1 | the whole head | ok",
		}},
		{"another su", "m_su", `{"model_type": "phi3", "original_max_position_embeddings": 2048, "partial_rotary_factor": 0.75,
			"rope_scaling": {"type": "longrope", "long_factor": [1, 2, 3], "short_factor": [1, 1, 1, 1, 1, 1, 1, 1]}}`, map[string]string{
			"rope_scaling":          "longrope | su (longrope), original_max_position_embeddings 4096, another long_factor, another short_factor | CHANGED",
			"partial_rotary_factor": "0.75 | the whole head | CHANGED",
		}},
		{"gpt 2", "v2", `{"n_embd": 64, "n_layer": 5, "n_head": 4, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05}`, map[string]string{
			"hidden_activation":   "gelu_new | 1 GELU-tanh | ok",
			"layer_norm_eps":      "1e-05 | absent: 1e-05 | DEFAULTED",
			"rope_theta":          "",
			"num_hidden_layers":   "5 | 4 | CHANGED",
			"num_attention_heads": "4 | 4 | ok",
		}},
		{"a rotary model without rotation", "v2", `{"model_type": "llama", "rope_theta": 10000, "rms_norm_eps": 1e-6}`, map[string]string{
			"rope_theta":   "10000 | absent: nothing rotates | DROPPED",
			"rms_norm_eps": "1e-06 | absent: 1e-05 | DROPPED",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, err := Open(filepath.Join(golden, test.model))
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			hf, err := ParseHF("config.json", []byte(test.config))
			if err != nil {
				t.Fatal(err)
			}
			rows := map[string]Row{}
			for _, r := range m.Audit(hf) {
				if _, twice := rows[r.Field]; twice {
					t.Errorf("%s has two rows", r.Field)
				}
				if r.Bad() && (r.Explains == "" || r.Explains == none) {
					t.Errorf("%s is %s and explains nothing", r.Field, r.Verdict)
				}
				rows[r.Field] = r
			}
			for _, field := range slices.Sorted(maps.Keys(test.want)) {
				got := ""
				if r, ok := rows[field]; ok {
					got = r.Declared + " | " + r.Written + " | " + string(r.Verdict)
				}
				if got != test.want[field] {
					t.Errorf("%s: %q\nwant %q", field, got, test.want[field])
				}
			}
		})
	}
}

// TestAuditRotaryDim: transformers rounds the declared share of a head down to whole dimensions.
func TestAuditRotaryDim(t *testing.T) {
	const a = "decoder/layer_0/self_attention/"
	m := parse(t, header(6, 2).record(a+"head_dim").data(num.Int8, []byte{10}).record(a+"rotary_dim").data(num.Int8, []byte{2}).u32(0))
	for declared, want := range map[string]Verdict{"0.25": OK, "0.2": OK, "0.3": Changed, "0.1": Changed} {
		hf, err := ParseHF("config.json", []byte(`{"hidden_size": 10, "rotary_pct": `+declared+`}`))
		if err != nil {
			t.Fatal(err)
		}
		rows := m.Audit(hf)
		i := slices.IndexFunc(rows, func(r Row) bool { return r.Field == "partial_rotary_factor" })
		if i < 0 || rows[i].Written != "2 of 10" || rows[i].Verdict != want {
			t.Errorf("%s: %+v; want %s", declared, rows, want)
		}
	}
}

func TestReadHF(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check := func(name, want string) {
		t.Helper()
		if _, err := ReadHF(name); message(err) != want {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	config := filepath.Join(dir, "config.json")
	check(dir, dir+": want the original model's config.json, the directory has none")
	write("config.json", `{"bos_token": "b"}`)
	check(dir, config+": want the original model's config, this one has neither model_type nor hidden_size")
	write("config.json", `{"hidden_size": 4,`)
	check(config, config+": at byte 18: want an object: unexpected end of JSON input")
	write("hf_config.json", `{"hidden_size": 4}`)
	check(dir, "")
	check(filepath.Join(dir, "x"), "read the original config: stat "+dir+"/x: no such file or directory")
}

// TestFlags: layers with equal values make one line, moved and unknown variables are told apart.
func TestFlags(t *testing.T) {
	m, err := Open(filepath.Join(golden, "m_gemma3"))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var lines []string
	absent := map[string]string{}
	for _, f := range m.Flags() {
		if f.Value == "" {
			absent[f.Name] = f.Default
		} else {
			lines = append(lines, strings.Join([]string{f.Name, f.Value, f.Layers, f.Default}, " | "))
		}
		if f.Effect == "" || f.Effect == unknown {
			t.Errorf("%s has no effect", f.Name)
		}
	}
	for _, want := range []string{
		"decoder/activation | 1 GELU-tanh |  | 0 ReLU",
		"decoder/layer_N/self_attention/rotary_base | 10000 | 0,2 | 10000",
		"decoder/layer_N/self_attention/rotary_base | 1000000 | 1,3 | 10000",
		"decoder/layer_N/self_attention/head_dim | 24 | 0-3 | columns of linear_1 / num_heads",
		"decoder/layer_N/self_attention/k_norm/layer_norm_use_residual | 1 | 0-3 | 0",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %q in\n%s", want, strings.Join(lines, "\n"))
		}
	}
	if absent["decoder/layer_N/self_attention/queries_scale"] != "1/√head_dim" || absent["decoder/num_heads"] != "" {
		t.Errorf("absent: %v", absent)
	}
	old := parse(t, builder{}.u32(5).str(specName).u32(1).u32(2).record("num_heads").data(num.Int8, []byte{4}).
		record("decoder/mystery").data(num.Int8, []byte{4}).u32(0))
	flags := old.Flags()
	if f := flags[0]; f.Name != "decoder/num_heads" || f.Value != "4" {
		t.Errorf("a root variable of revision 1 is %+v, want decoder/num_heads 4", f)
	}
	if f := flags[1]; f.Name != "decoder/mystery" || f.Effect != unknown {
		t.Errorf("an unknown variable is %+v", f)
	}
	want := []string{"decoder/mystery = 4 has no meaning to CTranslate2 or llmrun"}
	if got := old.variableFindings(); !slices.Equal(got, want) {
		t.Errorf("findings %q, want %q", got, want)
	}
}

// TestFindings: each thing worth a remark gets it.
func TestFindings(t *testing.T) {
	const a = "decoder/layer_1/self_attention/"
	bin := header(6, 5).floats(embeddings, 4, 1).
		record("decoder/layer_0/ffn/linear_0/weight", 1).data(num.Float16, []byte{0, 0}).
		record("decoder/layer_3/x", 1).data(num.Float16, []byte{0, 0}).
		record(a+"rotary_scaling_type").data(num.Int8, []byte{2}).
		floats("decoder/layer_1/ffn/linear_0/weight", 1).u32(0)
	m, err := OpenFS(fstest.MapFS{
		"model.bin":         {Data: bin},
		"config.json":       {Data: []byte(`{"bos_token": "b", "unk_token": "", "quantization_type": 1}`)},
		"vocabulary.json":   {Data: []byte(`["a", "c", "c", "<extra_id_0>"]`)},
		"tokenizer.model":   {},
		"unrelated.json":    {},
		"tokenizer.json.gz": {},
	}, ".")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`bos_token "b" is not in the vocabulary: CTranslate2 takes unk for it`,
		`eos_token is null or missing: CTranslate2 refuses to load the model`,
		`unk_token "" is not in the vocabulary: CTranslate2 gives it id 4, one beyond the embedding; unknown tokens are refused here`,
		`1 tokens occur more than once in the vocabulary, first "c"`,
		`no tokenizer.json: pass --tokenizer, or ids`,
		`quantization_type 1 is AWQ, which has no CPU arithmetic in CTranslate2`,
		`decoder/layer_3/x is never read: layer_2 is missing`,
		`llama3 rotary scaling without a factor in 1 layers: CTranslate2 computes as if there were none`,
		`weights of several floating-point types: CTranslate2 picks one of them for all, by chance`,
	}
	if got := m.Findings(); !slices.Equal(got, want) {
		t.Errorf("findings\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if v := m.VocabularySummary(); v.Padding != 1 || !slices.Equal(v.Tokenizer, []string{"tokenizer.model"}) || v.BOS.ID != nil {
		t.Errorf("vocabulary %+v", v)
	}
}

func TestStats(t *testing.T) {
	half := func(values ...float32) Tensor {
		data := make([]byte, 2*len(values))
		num.PutFloat32s(num.Float16, data, values)
		return Tensor{DType: num.Float16, Shape: []int{len(values)}, Data: data}
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, test := range []struct {
		tensor Tensor
		want   string
	}{
		{half(-3, 1, 5), `{"min":-3,"max":5,"mean":1,"rms":3.415650255319866,"nan":0,"inf":0}`}, // √(35/3)
		{half(2, nan, inf, -inf), `{"min":2,"max":2,"mean":2,"rms":2,"nan":1,"inf":2}`},
		{half(nan), `{"min":"NaN","max":"NaN","mean":"NaN","rms":"NaN","nan":1,"inf":0}`},
		{half(), `{"min":"NaN","max":"NaN","mean":"NaN","rms":"NaN","nan":0,"inf":0}`},
		{Tensor{DType: num.Int8, Shape: []int{2}, Data: []byte{0xff, 3}}, `{"min":-1,"max":3,"mean":1,"rms":2.23606797749979,"nan":0,"inf":0}`},
	} {
		if got, err := json.Marshal(test.tensor.Stats()); string(got) != test.want || err != nil {
			t.Errorf("%s, %v\nwant %s", got, err, test.want)
		}
	}
	rows := Tensor{DType: num.Int8, Shape: []int{3, 2}, Data: []byte{1, 2, 3, 4, 5, 6}}.Rows(1, 3)
	if got, _ := json.Marshal(rows); string(got) != "[[3,4],[5,6]]" {
		t.Errorf("rows 1:3 are %s", got)
	}
	got, err := json.Marshal([]Number{Number(inf), Number(-inf), Number(nan)})
	if string(got) != `["Inf","-Inf","NaN"]` || err != nil {
		t.Errorf("%s, %v", got, err)
	}
}

func TestRanges(t *testing.T) {
	for want, list := range map[string][]int{"": nil, "3": {3}, "0-2": {0, 1, 2}, "0,2,4-5": {5, 0, 4, 2}} {
		if got := ranges(list); got != want {
			t.Errorf("%v: %q, want %q", list, got, want)
		}
	}
}
