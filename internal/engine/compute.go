package engine

import (
	"fmt"
	"slices"
	"strings"

	"llmrun/internal/ctconv"
	"llmrun/internal/num"
)

// ComputeTypes are the names that --compute-type takes: CTranslate2's.
var ComputeTypes = []string{"auto", "float32", "float16", "bfloat16", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16"}

// Activations says in which type a model's hidden states are computed under a compute type. Weights stay as stored and are widened
// in registers, so float32 on an int8 file means the weights' exact values, as CTranslate2's float32 does.
func Activations(m *ctconv.Model, computeType string) (num.DType, error) {
	switch computeType {
	case "float32":
		return num.Float32, nil
	case "float16":
		return num.Float16, nil
	case "auto":
		t, _ := m.Tensor("decoder/embeddings/weight")
		if !t.DType.IsFloat() {
			return 0, &computeTypeError{fmt.Sprintf("%s: compute type auto means %v activations for %v weights: llmrun does not compute that yet", m.Dir, t.DType, t.DType)}
		}
		return num.Float32, nil
	}
	if !slices.Contains(ComputeTypes, computeType) {
		return 0, fmt.Errorf("compute type: want one of %s, got %q", strings.Join(ComputeTypes, ", "), computeType)
	}
	return 0, &computeTypeError{fmt.Sprintf("compute type %s: llmrun does not compute that yet", computeType)}
}

type computeTypeError struct{ text string }

func (e *computeTypeError) Error() string { return e.text }

// Hint names the compute type that works on every file.
func (e *computeTypeError) Hint() string { return "--compute-type float32" }
