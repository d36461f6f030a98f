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

// TestStories holds the embedded models to CTranslate2's ids.
func TestStories(t *testing.T) {
	backendtest.Stories(t, "../models/testdata/golden.json", func() (engine.Backend, error) {
		return cpuref.Open(cpuref.Options{}), nil
	})
}
