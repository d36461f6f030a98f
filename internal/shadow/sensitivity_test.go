package shadow

import (
	"testing"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// Clean ops stay below 0.7 of their bounds, and an error of few units of an element's own rounding is seen: docs/sensitivity.md says which and why.
func TestSensitivity(t *testing.T) {
	most := map[string]float64{"rms_norm": 48, "linear": 96, "scores": 32, "softmax": 64, "context": 128, "gelu_tanh": 24}
	for _, side := range []struct {
		name string
		open func() engine.Backend
		most map[string]float64
		rest float64
	}{
		{"cpu", func() engine.Backend { return cpu(t) }, most, 16},
		{"metal float16", func() engine.Backend { return device(t, num.Float16) }, nil, 4},
	} {
		t.Run(side.name, func(t *testing.T) {
			s := session(t, open(t, "tiny-gemma2"), side.open(), len(story))
			m := NewMeter()
			s.Tap = m.Tap
			feed(t, s, story, 9)
			table, err := m.Table()
			if err != nil || len(table) != 10 {
				t.Fatalf("%d kinds of op, %v", len(table), err)
			}
			for _, row := range table {
				limit := side.rest
				if l, ok := side.most[row.Op]; ok {
					limit = l
				}
				if !(row.Clean < 0.7) || !(row.All <= limit) || row.Elements == 0 {
					t.Errorf("want a clean run below 0.7 and %g units seen everywhere, got %+v", limit, row)
				}
			}
		})
	}
}

func TestMagnitude(t *testing.T) {
	for i, want := range []float64{1, 2, 3, 4, 6, 8, 12, 16, 24} {
		if got := magnitude(i); got != want {
			t.Errorf("%d: want %g, got %g", i, want, got)
		}
	}
}
