package ctconv

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
)

// HF is the original model's config.json, as Hugging Face's transformers wrote it: what the model's authors declared.
type HF struct{ values map[string]any }

// ReadHF reads a config.json, or the one in a directory. Beside a converted model, whose config.json is CTranslate2's
// own, the original may lie as hf_config.json.
func ReadHF(name string) (*HF, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("read the original config: %w", err)
	}
	files := []string{name}
	if info.IsDir() {
		files = []string{filepath.Join(name, "hf_config.json"), filepath.Join(name, "config.json")}
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("read the original config: %w", err)
		}
		return ParseHF(file, data)
	}
	return nil, &Error{File: name, Offset: -1, Defect: "want the original model's config.json, the directory has none"}
}

// ParseHF parses an original config.json; file is its name in errors. A text_config inside it wins: there, models that
// also see or hear keep what concerns their decoder.
func ParseHF(file string, data []byte) (*HF, error) {
	var values map[string]any
	if err := json.Unmarshal(data, &values); err != nil {
		return nil, jsonError(file, "an object", err)
	}
	if text, ok := values["text_config"].(map[string]any); ok {
		maps.Copy(values, text)
	}
	hf := &HF{values}
	if hf.text("model_type") == "" && !hf.has("hidden_size", "n_embd", "d_model") {
		return nil, &Error{File: file, Offset: -1, Defect: "want the original model's config, this one has neither model_type nor hidden_size",
			Advice: "CTranslate2's own config.json declares nothing of the model; pass the one of the checkpoint that was converted"}
	}
	return hf, nil
}

// has tells whether one of the keys is there, be it null.
func (hf *HF) has(keys ...string) bool {
	for _, key := range keys {
		if _, ok := hf.values[key]; ok {
			return true
		}
	}
	return false
}

// number is the first of the keys that holds a number.
func (hf *HF) number(keys ...string) (float64, bool) { return numberIn(hf.values, keys...) }

func numberIn(values map[string]any, keys ...string) (float64, bool) {
	for _, key := range keys {
		if v, ok := values[key].(float64); ok {
			return v, true
		}
	}
	return 0, false
}

// text is the first of the keys that holds a string; "" if none does.
func (hf *HF) text(keys ...string) string { return textIn(hf.values, keys...) }

func textIn(values map[string]any, keys ...string) string {
	for _, key := range keys {
		if s, ok := values[key].(string); ok {
			return s
		}
	}
	return ""
}

// integers is a number or a list of numbers; nil if it is neither.
func (hf *HF) integers(key string) []int {
	switch v := hf.values[key].(type) {
	case float64:
		return []int{int(v)}
	case []any:
		var list []int
		for _, e := range v {
			if n, ok := e.(float64); ok {
				list = append(list, int(n))
			}
		}
		return list
	}
	return nil
}

// gemma tells a model whose norms multiply by 1 + gamma and which scales embeddings: Gemma 1 to 3, not 4.
func (hf *HF) gemma() bool {
	switch hf.text("model_type") {
	case "gemma", "gemma2", "gemma3", "gemma3_text":
		return true
	}
	return false
}

// activation is the declared name. In Gemma, hidden_act is a relic: hidden_activation counts, and null means tanh.
func (hf *HF) activation() string {
	if name := hf.text("hidden_activation"); name != "" {
		return name
	}
	if strings.HasPrefix(hf.text("model_type"), "gemma") {
		return "gelu_pytorch_tanh"
	}
	return hf.text("hidden_act", "activation_function")
}

// windows gives the sliding window of each of n layers; 0 where a layer sees all tokens.
func (hf *HF) windows(n int) []int {
	windows := make([]int, n)
	w, ok := hf.number("sliding_window")
	if off, _ := hf.values["use_sliding_window"].(bool); !ok || !off && hf.has("use_sliding_window") {
		return windows
	}
	for i := range windows {
		if hf.local(i) {
			windows[i] = int(w)
		}
	}
	return windows
}

// local tells whether layer i attends to a window: by layer_types, or as transformers derives them without.
func (hf *HF) local(i int) bool {
	if types, ok := hf.values["layer_types"].([]any); ok {
		return i < len(types) && types[i] == "sliding_attention"
	}
	switch family := hf.text("model_type"); {
	case family == "gemma2":
		return i%2 == 0
	case strings.HasPrefix(family, "gemma3"):
		pattern, ok := hf.number("sliding_window_pattern", "_sliding_window_pattern")
		if !ok || pattern < 1 {
			pattern = 6
		}
		return (i+1)%int(pattern) != 0
	case strings.HasPrefix(family, "qwen"):
		from, _ := hf.number("max_window_layers")
		return i >= int(from)
	}
	return true
}

// twoRopes tells whether layers with a window have a rotary embedding of their own.
func (hf *HF) twoRopes() bool {
	parameters, _ := hf.values["rope_parameters"].(map[string]any)
	_, nested := parameters["sliding_attention"]
	return nested || hf.has("rope_local_base_freq") || strings.HasPrefix(hf.text("model_type"), "gemma3")
}

// rope is the rotary base and scaling of the layers that see all tokens, or of the local ones of two: from
// rope_parameters (transformers 5; one dictionary, or one for each kind of layer), or from rope_theta and rope_scaling
// before. Where the base is not declared, it is what transformers' configuration class takes.
func (hf *HF) rope(local bool) (theta float64, declared bool, scaling map[string]any) {
	scaling, _ = hf.values["rope_parameters"].(map[string]any)
	if scaling == nil {
		scaling, _ = hf.values["rope_scaling"].(map[string]any)
	}
	kind, key, absent := "full_attention", "rope_theta", 10000.0
	if local {
		kind, key = "sliding_attention", "rope_local_base_freq"
	} else if strings.HasPrefix(hf.text("model_type"), "gemma3") {
		absent = 1e6
	}
	if own, nested := scaling[kind].(map[string]any); nested {
		scaling, key = own, "rope_theta"
	} else if local {
		scaling = nil // one dictionary is the other layers'
	}
	if theta, declared = numberIn(scaling, "rope_theta"); !declared {
		theta, declared = hf.number(key, "rotary_emb_base")
	}
	if !declared {
		theta = absent
	}
	return theta, declared, scaling
}
