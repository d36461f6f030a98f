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

// TestGoldenInt8 holds int8 times int8 to CTranslate2 on a machine with VNNI.
func TestGoldenInt8(t *testing.T) {
	backendtest.GoldenInt8(t, "../../testdata/golden", backendtest.LogitTolerance, func() (engine.Backend, error) {
		return cpuref.Open(cpuref.Options{}), nil
	})
}

// TestGoldenSaturated holds the rest of the arithmetic to CTranslate2 on a machine without, whose sums of int8 are not exact.
func TestGoldenSaturated(t *testing.T) {
	backendtest.GoldenSaturated(t, "../../testdata/golden", backendtest.LogitTolerance, func() (engine.Backend, error) {
		return &saturating{cpuref.Open(cpuref.Options{})}, nil
	})
}

// TestStories holds the embedded models to CTranslate2's ids.
func TestStories(t *testing.T) {
	backendtest.Stories(t, "../models/testdata/golden.json", func() (engine.Backend, error) {
		return cpuref.Open(cpuref.Options{}), nil
	})
}
