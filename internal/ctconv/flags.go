package ctconv

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Flag is an option that a file stores as a scalar variable, or could have stored.
type Flag struct {
	Name    string `json:"name"`             // layer_N stands for every layer
	Value   string `json:"value"`            // "" when no layer has it
	Layers  string `json:"layers,omitempty"` // which layers have this value: "0-7", "0,2,4"
	Default string `json:"default"`          // what CTranslate2 does without the variable
	Effect  string `json:"effect"`
}

// option is what CTranslate2 knows of a scalar variable. Source: ct2 src/layers/{transformer,attention,common}.cc.
type option struct {
	name, absent, effect string
	values               map[int]string // names of codes
}

const (
	attention = "decoder/layer_N/self_attention/"
	normFlag  = "layer_norm_use_residual"
	unknown   = "none that CTranslate2 or llmrun knows"
)

var activations = map[int]string{
	0: "ReLU", 1: "GELU-tanh", 2: "SiLU", 3: "GELU (erf)", 4: "GELU-sigmoid", 5: "tanh", 6: "sigmoid",
}

var rotaryScalings = map[int]string{-1: "none", 0: "linear", 1: "su (longrope)", 2: "llama3"}

var options = []option{
	{"decoder/num_heads", "8", "query heads of every layer", nil},
	{"decoder/pre_norm", "1", "norm before (1) or after (0) each sublayer of the sequential block", nil},
	{"decoder/activation", "0 ReLU", "activation of ffn/linear_0", activations},
	{"decoder/scale_embeddings", "on", "embeddings times √hidden_size (int8 flag), or times the value (float)", nil},
	{"decoder/embeddings/multiply_by_sqrt_depth", "–", "read only without scale_embeddings", nil},
	{"decoder/scale_outputs", "1", "hidden states times the value before the lm_head", nil},
	{"decoder/final_logit_softcapping", "off", "logits = cap·tanh(logits/cap)", nil},
	{"decoder/start_from_zero_embedding", "0", "position 0 embeds to zero", nil},
	{"decoder/sliding_window", "0: prompts stay whole", "prompts are cut into chunks of so many tokens", nil},
	{"decoder/alibi", "0", "ALiBi position bias", nil},
	{"decoder/alibi_use_positive_positions", "1", "ALiBi counts from the first key (1) or back from the last (0)", nil},
	{"decoder/scale_alibi", "0", "ALiBi slopes times the query scale", nil},
	{"decoder/alignment_layer", "-1", "none: encoder-decoder models only", nil},
	{"decoder/alignment_heads", "1", "none: encoder-decoder models only", nil},
	{attention + "num_heads_kv", "num_heads", "KV heads; fewer than num_heads is GQA", nil},
	{attention + "multi_query", "0", "one KV head (revision 6 and before)", nil},
	{attention + "head_dim", "columns of linear_1 / num_heads", "length of a head", nil},
	{attention + "queries_scale", "1/√head_dim", "scores = scale·q·k", nil},
	{attention + "sliding_window", "0: all tokens", "the KV cache keeps so many tokens", nil},
	{attention + "rotary_dim", "no rotary embedding", "leading dimensions of a head that rotate; 0 is all", nil},
	{attention + "rotary_interleave", "1", "pairs (2i, 2i+1) rotate (1), or (i, i+dim/2) (0)", nil},
	{attention + "rotary_base", "10000", "theta: angle = position / theta^(2i/dim)", nil},
	{attention + "rotary_scaling_type", "-1 none", "how angles are stretched for long contexts", rotaryScalings},
	{attention + "rotary_scaling_factor", "1", "linear and llama3: angles are divided by it", nil},
	{attention + "rotary_low_freq_factor", "1", "llama3: longer waves than original_max/low are divided", nil},
	{attention + "rotary_high_freq_factor", "4", "llama3: shorter waves than original_max/high are kept", nil},
	{attention + "original_max_position_embeddings", "0", "su and llama3: context length of the first training", nil},
	{attention + "max_position_embeddings", "0", "su: context length after stretching", nil},
	{normFlag, "0", "RMSNorm multiplies by 1 + gamma", nil},
	{"decoder/layer_N/layer_scalar", "1", "layer output times the value", nil},
}

// Flags lists every option that the file stores, layers with equal values together, and then those that it could
// have stored and does not.
func (m *Model) Flags() []Flag {
	type key struct{ name, value string }
	found := map[key][]int{} // the layers; nil outside of layers
	for name, t := range m.Tensors {
		if len(t.Shape) != 0 || m.moved(name) {
			continue
		}
		v, _, _, _ := m.scalar(name)
		pattern, layer := layerOf(name)
		k := key{pattern, optionOf(pattern).show(v, t)}
		if layer < 0 {
			found[k] = nil
		} else {
			found[k] = append(found[k], layer)
		}
	}
	var flags []Flag
	for _, k := range slices.SortedFunc(maps.Keys(found), func(a, b key) int {
		return cmp.Or(optionOrder(a.name)-optionOrder(b.name), cmp.Compare(a.name, b.name), slices.Compare(found[a], found[b]))
	}) {
		o := optionOf(k.name)
		flags = append(flags, Flag{k.name, k.value, ranges(found[k]), o.absent, o.effect})
	}
	for _, o := range options {
		if !slices.ContainsFunc(flags, func(f Flag) bool { return optionOf(f.Name).name == o.name }) {
			flags = append(flags, Flag{Name: o.name, Default: o.absent, Effect: o.effect})
		}
	}
	return flags
}

// moved tells a root variable of revision 1, which is listed under decoder/ like everyone's.
func (m *Model) moved(name string) bool {
	return m.Revision == 1 && m.Tensors["decoder/"+name].AliasOf == name
}

// layerOf splits a variable's name into its pattern, with layer_N for the layer's number, and that number; -1 if none.
func layerOf(name string) (pattern string, layer int) {
	rest, ok := strings.CutPrefix(name, "decoder/layer_")
	number, rest, slash := strings.Cut(rest, "/")
	layer, err := strconv.Atoi(number)
	if !ok || !slash || err != nil || layer < 0 || strconv.Itoa(layer) != number {
		return name, -1
	}
	return "decoder/layer_N/" + rest, layer
}

// optionOrder is the place of a variable in options; their number if it is not among them.
func optionOrder(pattern string) int {
	for i, o := range options {
		if o.name == pattern || o.name == normFlag && path.Base(pattern) == normFlag {
			return i
		}
	}
	return len(options)
}

func optionOf(pattern string) option {
	if i := optionOrder(pattern); i < len(options) {
		return options[i]
	}
	return option{name: pattern, absent: "–", effect: unknown}
}

// show gives a value, with the name that its code has.
func (o option) show(v float64, t Tensor) string {
	text := formatNumber(v, 64)
	if t.DType.IsFloat() {
		text = formatNumber(v, 32)
	}
	if name, ok := o.values[int(v)]; ok {
		text += " " + name
	}
	return text
}

// formatNumber writes whole numbers in full, and all others as short as a float of so many bits can be read back.
func formatNumber(v float64, bits int) string {
	if v == float64(int64(v)) && v < 1e15 && v > -1e15 {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', -1, bits)
}

// ranges writes a list of numbers as "0-7,9".
func ranges(list []int) string {
	slices.Sort(list)
	var parts []string
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		part := strconv.Itoa(list[i])
		if j > i {
			part = fmt.Sprintf("%d-%d", list[i], list[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// Layers counts the decoder's layers as CTranslate2 does: from layer_0 up to the first that no variable belongs to.
func (m *Model) Layers() int {
	seen := map[int]bool{}
	for name := range m.Tensors {
		if _, layer := layerOf(name); layer >= 0 {
			seen[layer] = true
		}
	}
	n := 0
	for seen[n] {
		n++
	}
	return n
}
