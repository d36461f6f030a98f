package ctconv

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"llmrun/internal/num"
)

// rope compares the base and the scaling of the rotary embedding; where local layers have their own, both kinds apart.
func (a *audit) rope() {
	var all, global, local []int
	for i := range a.layers {
		all = append(all, i)
		if a.hf.local(i) {
			local = append(local, i)
		} else {
			global = append(global, i)
		}
	}
	if !a.hf.twoRopes() {
		a.ropeOf("rope_theta", "rope_scaling", false, all)
		return
	}
	a.ropeOf("rope_theta", "rope_scaling", false, global)
	a.ropeOf("rope_local_base_freq", "rope_local_scaling", true, local)
}

func (a *audit) ropeOf(baseField, scalingField string, local bool, layers []int) {
	theta, declared, scaling := a.hf.rope(local)
	rotates := a.has("self_attention/rotary_dim")
	switch {
	case len(layers) == 0 || !declared && !rotates:
	case !rotates:
		a.row(baseField, formatNumber(theta, 64), "absent: nothing rotates", Dropped, everywhere)
	default:
		a.ropeBase(baseField, theta, declared, layers)
		if !local || scaling != nil {
			a.ropeScaling(scalingField, scaling, layers)
		}
	}
}

func (a *audit) ropeBase(field string, theta float64, declared bool, layers []int) {
	const absent = 10000 // CTranslate2's default
	want := formatNumber(theta, 64)
	if !declared {
		want = "absent: " + want
	}
	var found []string
	verdict := OK
	for _, i := range layers {
		base := a.layer(i, "self_attention/rotary_base", 0)
		text, v := formatNumber(base, 32), OK
		switch {
		case base == 0 && theta == absent:
			text, v = "absent: 10000", Defaulted
		case base == 0:
			text, v = "absent: 10000", Dropped
		case float32(base) != float32(theta):
			v = Changed
		}
		verdict = worse(verdict, v)
		if !slices.Contains(found, text) {
			found = append(found, text)
		}
	}
	a.row(field, want, strings.Join(found, ", "), verdict, "converted ≠ original in every layer, more with every position; never cpu ≠ metal")
}

// scalingTypes are CTranslate2's codes of the scalings that it can do.
var scalingTypes = map[string]int{"": -1, "default": -1, "linear": 0, "su": 1, "longrope": 1, "llama3": 2}

// ropeScaling shows the worst layer.
func (a *audit) ropeScaling(field string, scaling map[string]any, layers []int) {
	if !a.hf.has("rope_scaling", "rope_parameters") && !a.has("self_attention/rotary_scaling_type") {
		return
	}
	written, verdict := "", OK
	for _, i := range layers {
		if text, v := a.layerScaling(i, scaling); written == "" || worse(v, verdict) != verdict {
			written, verdict = text, v
		}
	}
	a.row(field, describeScaling(scaling), written, verdict, "converted ≠ original, more with every position; never cpu ≠ metal")
}

// layerScaling tells how layer i scales its angles, and whether that is what the original asks for.
func (a *audit) layerScaling(i int, scaling map[string]any) (text string, v Verdict) {
	const prefix = "self_attention/"
	kind := textIn(scaling, "rope_type", "type")
	code := a.layer(i, prefix+"rotary_scaling_type", -1)
	want, known := scalingTypes[kind]
	text = rotaryScalings[int(code)]
	switch {
	case known && want == -1 && code == -1:
		return "absent", OK
	case code == -1:
		return "absent", Dropped
	case known && want == -1:
		return text, Extra
	case !known || float64(want) != code:
		return text, Changed
	}
	v = OK
	for _, n := range []struct {
		kinds, key, variable string
		absent               float64
	}{
		{"linear llama3", "factor", "rotary_scaling_factor", 1},
		{"llama3", "low_freq_factor", "rotary_low_freq_factor", 1},
		{"llama3", "high_freq_factor", "rotary_high_freq_factor", 4},
		{"llama3 su longrope", "original_max_position_embeddings", "original_max_position_embeddings", 0},
		{"su longrope", "max_position_embeddings", "max_position_embeddings", 0},
	} {
		declared, ok := numberIn(scaling, n.key)
		if !ok { // Phi-3 keeps its lengths beside the dictionary
			declared, ok = a.hf.number(n.key)
		}
		stored := a.layer(i, prefix+n.variable, n.absent)
		if !ok || !strings.Contains(n.kinds, kind) || float32(stored) == float32(declared) {
			continue
		}
		if stored == n.absent {
			v = worse(v, Dropped)
			text += fmt.Sprintf(", no %s", n.variable)
		} else {
			v = worse(v, Changed)
			text += fmt.Sprintf(", %s %s", n.variable, formatNumber(stored, 32))
		}
	}
	if want == 1 {
		for _, key := range []string{"long_factor", "short_factor"} {
			if !a.sameFactors(scaling[key], fmt.Sprintf("decoder/layer_%d/%srotary_scaling_%s", i, prefix, key)) {
				v = worse(v, Changed)
				text += ", another " + key
			}
		}
	}
	return text, v
}

// sameFactors compares a declared list of numbers, if there is one, with an array of the file.
func (a *audit) sameFactors(declared any, variable string) bool {
	list, ok := declared.([]any)
	if !ok {
		return true
	}
	t, found := a.m.Tensor(variable)
	if !found || t.Elements() != len(list) {
		return false
	}
	for i := range list {
		want, _ := list[i].(float64)
		stored := make([]byte, 4) // what the type of the array makes of it
		if t.DType.IsFloat() {
			num.PutFloat32(t.DType, stored, 0, float32(want))
		}
		if num.Float32At(t.DType, t.Data, i) != num.Float32At(t.DType, stored, 0) {
			return false
		}
	}
	return true
}

// rotaryDim compares the share of a head that rotates.
func (a *audit) rotaryDim() {
	declared, ok := a.hf.number("partial_rotary_factor", "rotary_pct")
	if !ok || !a.has("self_attention/rotary_dim") {
		return
	}
	written, dim := a.layer(0, "self_attention/rotary_dim", 0), a.headDim()
	text := fmt.Sprintf("%v of %d", written, dim)
	if written == 0 {
		text, written = "the whole head", float64(dim)
	}
	verdict := Changed
	if written == math.Floor(declared*float64(dim)+1e-9) { // as transformers, but 0.29·100 is 29
		verdict = OK
	}
	a.row("partial_rotary_factor", formatNumber(declared, 64), text, verdict, everywhere)
}

// describeScaling gives the kind of scaling and its factor.
func describeScaling(scaling map[string]any) string {
	kind := textIn(scaling, "rope_type", "type")
	if kind == "" || kind == "default" {
		return "none"
	}
	if factor, ok := numberIn(scaling, "factor"); ok {
		return fmt.Sprintf("%s, factor %s", kind, formatNumber(factor, 64))
	}
	return kind
}
