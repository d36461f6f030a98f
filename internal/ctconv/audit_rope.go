package ctconv

import (
	"fmt"
	"slices"
	"strings"
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
		{"llama3", "original_max_position_embeddings", "original_max_position_embeddings", 0},
	} {
		declared, ok := numberIn(scaling, n.key)
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
	return text, v
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
