package cpuref_test

import (
	"testing"

	"llmrun/internal/backendtest"
	"llmrun/internal/cpuref"
	"llmrun/internal/engine"
)

func TestBackend(t *testing.T) {
	backendtest.Run(t, func() (engine.Backend, error) { return cpuref.Open(cpuref.Options{}), nil })
}
