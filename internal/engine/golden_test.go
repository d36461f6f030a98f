package engine_test

import (
	"testing"

	"llmrun/internal/backendtest"
	"llmrun/internal/cpuref"
	"llmrun/internal/engine"
)

// TestGolden holds the decoder on the CPU reference to CTranslate2.
func TestGolden(t *testing.T) {
	backendtest.Golden(t, "../../testdata/golden", backendtest.LogitTolerance, func() (engine.Backend, error) {
		return cpuref.Open(cpuref.Options{}), nil
	})
}
