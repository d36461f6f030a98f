package metal

import (
	"testing"

	"llmrun/internal/backendtest"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// opener opens the backend for backendtest, after a first time that may skip the test.
func opener(t *testing.T, activations num.DType) func() (engine.Backend, error) {
	open(t, Options{Activations: activations}).Close()
	return func() (engine.Backend, error) { return Open(Options{Activations: activations}) }
}

func TestSuite(t *testing.T) {
	for _, d := range []num.DType{num.Float32, num.Float16} {
		t.Run(d.String(), func(t *testing.T) { backendtest.Run(t, opener(t, d)) })
	}
}

func TestGolden(t *testing.T) {
	backendtest.Golden(t, "../../testdata/golden", backendtest.LogitTolerance, opener(t, num.Float32))
}

func TestStories(t *testing.T) {
	for _, d := range []num.DType{num.Float32, num.Float16} {
		t.Run(d.String(), func(t *testing.T) { backendtest.Stories(t, "../models/testdata/golden.json", opener(t, d)) })
	}
}
