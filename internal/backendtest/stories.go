package backendtest

import (
	"context"
	"encoding/json"
	"os"
	"testing"

	"llmrun/internal/engine"
	"llmrun/internal/models"
)

// Stories holds a backend to the embedded models' golden ids, which CTranslate2 chose in float32: file is models/testdata/golden.json.
// Their margins are wide (0.41 and up), so a backend that computes in float16 must choose the same.
func Stories(t *testing.T, file string, open func() (engine.Backend, error)) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var golden map[string][]struct {
		ID     string `json:"id"`
		IDs    []int  `json:"ids"`
		Greedy []int  `json:"greedy"`
	}
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden["tiny-gemma2"]) < 10 || len(golden["tiny-qwen2"]) < 9 {
		t.Fatalf("%s: want 10 and 9 prompts, file has %d and %d", file, len(golden["tiny-gemma2"]), len(golden["tiny-qwen2"]))
	}
	for name, prompts := range golden {
		t.Run(name, func(t *testing.T) {
			m, _, err := models.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			b, err := open()
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			d, err := engine.Load(m, b)
			if err != nil {
				t.Fatal(err)
			}
			s, err := d.NewSession(160)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range prompts {
				if err := s.Reset(); err != nil {
					t.Fatal(err)
				}
				ids, _, err := engine.Generate(context.Background(), s, p.IDs, engine.GenerateOptions{MaxTokens: len(p.Greedy)})
				if err != nil {
					t.Fatalf("%s: %v", p.ID, err)
				}
				if !equal(ids, p.Greedy) {
					t.Errorf("%s: want ids %v, got %v", p.ID, p.Greedy, ids)
				}
			}
		})
	}
}
