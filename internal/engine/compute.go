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

// Compute is what a compute type asks for.
type Compute struct {
	Activations num.DType // of what ops hand to each other, see Backend
	Quantized   bool      // linears multiply int8 by int8, see Linear; else weights are widened
}

// String is the compute type's full name.
func (c Compute) String() string {
	if c.Quantized {
		return "int8_" + c.Activations.String()
	}
	return c.Activations.String()
}

// ComputeAs says what a compute type means for a model, in CTranslate2's sense. auto is its default: int8 weights are multiplied as int8,
// all else is float32. float32 on an int8 file means the weights' exact values, and int8 on a file of floats quantizes them as they are loaded.
func ComputeAs(m *ctconv.Model, computeType string) (Compute, error) {
	switch computeType {
	case "auto":
		t, _ := m.Tensor("decoder/embeddings/weight")
		return Compute{num.Float32, t.DType == num.Int8}, nil
	case "float32":
		return Compute{num.Float32, false}, nil
	case "float16":
		return Compute{num.Float16, false}, nil
	case "bfloat16":
		return Compute{num.BFloat16, false}, nil
	case "int8", "int8_float32":
		return Compute{num.Float32, true}, nil
	case "int8_float16":
		return Compute{num.Float16, true}, nil
	case "int8_bfloat16":
		return Compute{num.BFloat16, true}, nil
	}
	if !slices.Contains(ComputeTypes, computeType) {
		return Compute{}, fmt.Errorf("compute type: want one of %s, got %q", strings.Join(ComputeTypes, ", "), computeType)
	}
	return Compute{}, &computeTypeError{computeType}
}

type computeTypeError struct{ name string }

func (e *computeTypeError) Error() string {
	return fmt.Sprintf("compute type %s: llmrun does not compute that yet", e.name)
}

// Hint names the compute type that comes nearest.
func (e *computeTypeError) Hint() string {
	if strings.HasPrefix(e.name, "int") {
		return "--compute-type int8"
	}
	return "--compute-type float32"
}
