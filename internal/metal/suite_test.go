package metal

import (
	"fmt"
	"testing"

	"llmrun/internal/backendtest"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// opener opens the backend for backendtest, after a first time that may skip the test.
func opener(t *testing.T, o Options) func() (engine.Backend, error) {
	open(t, o).Close()
	return func() (engine.Backend, error) { return Open(o) }
}

func TestSuite(t *testing.T) {
	t.Setenv(validateVariable, "1")
	for _, d := range []num.DType{num.Float32, num.Float16, num.BFloat16} {
		t.Run(d.String(), func(t *testing.T) { backendtest.Run(t, opener(t, Options{Activations: d})) })
	}
}

func TestGolden(t *testing.T) {
	for _, fuse := range []bool{false, true} {
		t.Run(fmt.Sprintf("fuse=%t", fuse), func(t *testing.T) {
			backendtest.Golden(t, "../../testdata/golden", backendtest.LogitTolerance, opener(t, Options{Activations: num.Float32, Fuse: fuse}))
		})
	}
}

func TestStories(t *testing.T) {
	for _, d := range []num.DType{num.Float32, num.Float16, num.BFloat16} {
		for _, fuse := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v,fuse=%t", d, fuse), func(t *testing.T) {
				backendtest.Stories(t, "../models/testdata/golden.json", opener(t, Options{Activations: d, Fuse: fuse}))
			})
		}
	}
}
