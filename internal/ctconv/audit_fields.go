package ctconv

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
)

// activationCodes are the converter's (CTranslate2, python/ctranslate2/converters/transformers.py).
var activationCodes = map[string]int{
	"relu": 0, "gelu_fast": 1, "gelu_new": 1, "gelu_pytorch_tanh": 1, "silu": 2, "swish": 2, "gelu": 3, "gelu_python": 3, "quick_gelu": 4,
}

func (a *audit) activation() {
	declared := a.hf.activation()
	if declared == "" {
		return
	}
	v, ok := a.scalar("decoder/activation")
	code, known := activationCodes[declared]
	verdict, written := OK, strings.TrimSpace(formatNumber(v, 64)+" "+activations[int(v)])
	switch {
	case !ok && known && code == 0:
		verdict, written = Defaulted, "absent: 0 ReLU"
	case !ok:
		verdict, written = Dropped, "absent: 0 ReLU"
	case !known || float64(code) != v:
		verdict = Changed
	}
	a.row("hidden_activation", declared, written, verdict, everywhere)
}

func (a *audit) softcaps() {
	if a.hf.has("attn_logit_softcapping") {
		if limit, ok := a.hf.number("attn_logit_softcapping"); ok {
			a.row("attn_logit_softcapping", formatNumber(limit, 64), "format has no such field", Dropped, everywhere)
		} else {
			a.row("attn_logit_softcapping", "none", "format has no such field", OK, none)
		}
	}
	declared, _ := a.hf.number("final_logit_softcapping")
	written, _ := a.scalar("decoder/final_logit_softcapping")
	if declared == 0 && written == 0 && !a.hf.has("final_logit_softcapping") {
		return
	}
	a.row("final_logit_softcapping", orNone(declared), orAbsent(written), compare(declared, written),
		"converted ≠ original in scores and sampling, never in the greedy token; never cpu ≠ metal")
}

// compare judges a number that is off when zero, and stored as a float32.
func compare(declared, written float64) Verdict {
	switch {
	case float32(declared) == float32(written):
		return OK
	case written == 0:
		return Dropped
	case declared == 0:
		return Extra
	}
	return Changed
}

func orNone(v float64) string {
	if v == 0 {
		return "none"
	}
	return formatNumber(v, 64)
}

func orAbsent(v float64) string {
	if v == 0 {
		return "absent"
	}
	return formatNumber(v, 32)
}

func (a *audit) window() {
	declared, written := a.hf.windows(a.layers), make([]int, a.layers)
	for i := range written {
		written[i] = int(a.layer(i, "self_attention/sliding_window", 0))
	}
	widest, verdict := slices.Max(append([]int{0}, declared...)), Changed
	switch {
	case slices.Equal(declared, written):
		verdict = OK
	case widest == 0:
		verdict = Extra
	case slices.Max(written) == 0:
		verdict = Dropped
	}
	if !a.hf.has("sliding_window") && verdict == OK {
		return
	}
	a.row("sliding_window", windows(declared, "none"), windows(written, "absent"), verdict,
		fmt.Sprintf("converted ≠ original beyond %d tokens; never cpu ≠ metal", cmp.Or(widest, slices.Max(append([]int{0}, written...)))))
	if verdict == OK && widest > 0 {
		a.note(fmt.Sprintf("converted ≠ original in prompts beyond %d tokens, where CTranslate2's window is another", widest))
	}
}

// windows tells which layers have a window: "512 in layers 0-4,6-10".
func windows(w []int, nothing string) string {
	lengths := slices.Compact(slices.Sorted(slices.Values(w)))
	var parts []string
	for _, length := range lengths {
		var in []int
		for i := range w {
			if w[i] == length {
				in = append(in, i)
			}
		}
		if length != 0 && len(in) == len(w) {
			return fmt.Sprint(length)
		} else if length != 0 {
			parts = append(parts, fmt.Sprintf("%d in layers %s", length, ranges(in)))
		}
	}
	if parts == nil {
		return nothing
	}
	return strings.Join(parts, ", ")
}

// queryScale compares what multiplies q·k: 1/√query_pre_attn_scalar, if declared, with queries_scale or 1/√head_dim.
func (a *audit) queryScale() {
	const field = "query_pre_attn_scalar"
	explains := everywhere
	declared, ok := a.hf.number(field)
	dim := a.headDim()
	scale := a.layer(0, "self_attention/queries_scale", 0)
	if !ok && scale == 0 {
		return
	}
	written := fmt.Sprintf("absent: 1/√%d", dim)
	if scale != 0 {
		written = "queries_scale " + formatNumber(scale, 32)
	} else {
		scale = 1 / math.Sqrt(float64(dim))
	}
	if !ok {
		verdict := Extra
		if strings.HasPrefix(a.hf.text("model_type"), "gemma4") && scale == 1 {
			verdict = OK // Gemma 4 normalizes q and k instead
		}
		a.row(field, none, written, verdict, explains)
		return
	}
	verdict := OK
	if want := 1 / math.Sqrt(declared); math.Abs(scale-want) > 1e-6*want || math.IsNaN(want) {
		verdict = Changed // 1e-6: float32 keeps a scale within 6e-8
	}
	a.row(field, formatNumber(declared, 64), written, verdict, explains)
}

// headDim is the length of a head of layer 0; 0 if the file does not tell.
func (a *audit) headDim() int {
	if d := a.layer(0, "self_attention/head_dim", 0); d > 0 {
		return int(d)
	}
	t, ok := a.m.Tensor("decoder/layer_0/self_attention/linear_1/weight")
	if heads := a.heads(); ok && len(t.Shape) == 2 && heads > 0 {
		return t.Shape[1] / heads
	}
	return 0
}

func (a *audit) heads() int {
	if v, ok := a.scalar("decoder/num_heads"); ok {
		return int(v)
	}
	return 8
}

func (a *audit) normOffset() {
	norms, flagged := 0, 0
	for name := range a.m.Tensors {
		scope, gamma := strings.CutSuffix(name, "/gamma")
		if _, beta := a.m.Tensors[scope+"/beta"]; !gamma || beta {
			continue
		}
		norms++
		if v, ok := a.scalar(path.Join(scope, normFlag)); ok && v != 0 {
			flagged++
		}
	}
	if flagged == 0 && !a.hf.gemma() {
		return
	}
	declared, want := "gamma", 0
	if a.hf.gemma() {
		declared, want = "1 + gamma (Gemma)", norms
	}
	written := fmt.Sprintf("%s on %d of %d norms", normFlag, flagged, norms)
	verdict := OK
	switch {
	case flagged == want:
	case flagged == 0:
		verdict = Changed
		a.row("norm_offset", declared, written, verdict, "converted ≠ original in every layer, unless the converter added the 1 to gamma (4.6.2 and 4.6.3 did): see --stats")
		return
	default:
		verdict = Changed
	}
	a.row("norm_offset", declared, written, verdict, everywhere)
}

func (a *audit) epsilon() {
	declared, ok := a.hf.number("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
	if !ok {
		return
	}
	field := "rms_norm_eps"
	if !a.hf.has(field) {
		field = "layer_norm_eps"
	}
	if e := a.m.Config.LayerNormEpsilon; e != nil {
		a.row(field, formatNumber(declared, 64), formatNumber(*e, 64), compare(declared, *e), everywhere)
		return
	}
	absent := 1e-6
	if _, beta := a.m.Tensors["decoder/layer_norm/beta"]; beta {
		absent = 1e-5
	}
	verdict := Dropped
	if declared == absent {
		verdict = Defaulted
	}
	a.row(field, formatNumber(declared, 64), "absent: "+formatNumber(absent, 64), verdict, everywhere)
}

// token compares a special token with the id, or ids, that the original config gives it.
func (a *audit) token(field, written, explains string) {
	if !a.hf.has(field + "_id") {
		return
	}
	ids := a.hf.integers(field + "_id")
	id, known := a.m.TokenID(written)
	var names []string
	for _, i := range ids {
		name := "?"
		if i >= 0 && i < a.m.Vocabulary.Len() {
			name = a.m.Vocabulary.Token(i)
		}
		names = append(names, fmt.Sprintf("%s (%d)", name, i))
	}
	declared, found := cmp.Or(strings.Join(names, ", "), "none"), written
	switch {
	case written == "":
		found = "none"
	case !known:
		found += " (not in the vocabulary)"
	default:
		found += fmt.Sprintf(" (%d)", id)
	}
	verdict := Changed
	switch {
	case len(ids) == 0 && written == "", known && slices.Equal(ids, []int{id}):
		verdict = OK
	case len(ids) == 0:
		verdict = Extra
	case written == "" || known && slices.Contains(ids, id):
		verdict = Dropped // all of them, or all but one
	}
	a.row(field, declared, found, verdict, "converted ≠ original in where text begins or ends; never cpu ≠ metal")
	if verdict == OK && len(ids) > 0 {
		a.note(explains)
	}
}

// sizes compares the numbers that the shapes of the weights give away.
func (a *audit) sizes() {
	heads := float64(a.heads())
	rows := func(name string, dim int) float64 {
		if t, ok := a.m.Tensor(name); ok && len(t.Shape) > dim {
			return float64(t.Shape[dim])
		}
		return 0
	}
	kv := a.layer(0, "self_attention/num_heads_kv", heads)
	if a.layer(0, "self_attention/multi_query", 0) != 0 {
		kv = 1
	}
	for _, s := range []struct {
		written float64
		keys    []string
	}{
		{rows(embeddings, 0), []string{"vocab_size"}},
		{float64(a.layers), []string{"num_hidden_layers", "n_layer", "n_layers", "num_layers"}},
		{heads, []string{"num_attention_heads", "n_head", "n_heads"}},
		{kv, []string{"num_key_value_heads"}},
		{float64(a.headDim()), []string{"head_dim"}},
		{rows(embeddings, 1), []string{"hidden_size", "n_embd", "d_model"}},
		{rows("decoder/layer_0/ffn/linear_0/weight", 0), []string{"intermediate_size", "n_inner", "ffn_dim"}},
	} {
		declared, ok := a.hf.number(s.keys...)
		if !ok { // null or absent: whatever was written follows from the others
			continue
		}
		verdict, explains := OK, broken
		switch {
		case declared == s.written:
		case s.keys[0] == "vocab_size" && s.written > declared:
			verdict, explains = Extra, "tokens that were added to the tokenizer"
		default:
			verdict = Changed
		}
		a.row(s.keys[0], formatNumber(declared, 64), formatNumber(s.written, 64), verdict, explains)
	}
}

// tied looks at the lm_head. A converter merges equal arrays whether they are declared tied or not, so that only a
// head which is declared tied and has values of its own is a change.
func (a *audit) tied() {
	declared, ok := a.hf.values["tie_word_embeddings"].(bool)
	head, found := a.m.Tensor("decoder/projection/weight")
	if !ok || !found {
		return
	}
	written, verdict := "two arrays", OK
	switch embedding := a.m.Tensors[embeddings]; {
	case head.AliasOf == embeddings:
		written = "one array"
	case bytes.Equal(head.Data, embedding.Data):
		written = "two equal arrays"
	case declared:
		verdict = Changed
	}
	a.row("tie_word_embeddings", fmt.Sprint(declared), written, verdict, "converted ≠ original in every logit; never cpu ≠ metal")
}
