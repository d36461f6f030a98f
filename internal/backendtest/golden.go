package backendtest

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// request is one greedy run of CTranslate2 on a tiny random model (testdata/golden/README.md).
type request struct {
	Model         string `json:"model"`
	ComputeType   string `json:"compute_type"`
	Prompt        []int  `json:"prompt"`
	IncludePrompt bool   `json:"include_prompt_in_result"` // the prompt was fed token by token, not prefilled
	OutputIDs     []int  `json:"output_ids"`
	LogitsFile    string `json:"logits_file"`
	Vocabulary    int    `json:"vocab"`
}

// LogitTolerance is how far a float32 decoder's logits may stray from CTranslate2's on the golden models. It is the two programs'
// freedom of summation order: CTranslate2 against an independent implementation differed by up to 3e-4 on them.
const LogitTolerance = 1e-3

// Golden holds a backend to CTranslate2: on every golden model and request the same ids, and logits within tolerance. open gives
// a fresh backend.
func Golden(t *testing.T, dir string, tolerance float64, open func() (engine.Backend, error)) {
	golden(t, dir, tolerance, widened, 17, open)
}

// GoldenInt8 is Golden for the runs that multiplied int8 by int8 and kept the sums exact.
func GoldenInt8(t *testing.T, dir string, tolerance float64, open func() (engine.Backend, error)) {
	golden(t, dir, tolerance, exact, 3, open)
}

// GoldenSaturated is Golden for the runs whose sums of int8 saturated. open gives a backend whose sums do, too.
func GoldenSaturated(t *testing.T, dir string, tolerance float64, open func() (engine.Backend, error)) {
	golden(t, dir, tolerance, saturated, 1, open)
}

// arithmetic is how a run has multiplied.
type arithmetic int

const (
	widened arithmetic = iota
	exact
	saturated
)

func (r request) arithmetic(t *testing.T, dir string) arithmetic {
	switch {
	case r.ComputeType == "int8":
		return exact
	case r.ComputeType == "default" && storesInt8(t, dir, r.Model):
		return saturated
	}
	return widened
}

func golden(t *testing.T, dir string, tolerance float64, of arithmetic, models int, open func() (engine.Backend, error)) {
	data, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	var requests []request
	if err := json.Unmarshal(data, &requests); err != nil {
		t.Fatal(err)
	}
	byModel := map[string][]request{}
	for _, r := range requests {
		if r.arithmetic(t, dir) == of {
			byModel[r.Model] = append(byModel[r.Model], r)
		}
	}
	if len(byModel) < models {
		t.Errorf("want at least %d golden models, manifest has %d", models, len(byModel))
	}
	for name, requests := range byModel {
		t.Run(name, func(t *testing.T) {
			b, err := open()
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			m, err := ctconv.Open(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			d, err := engine.Compute{Activations: b.Activations(), Quantized: of != widened}.Load(m, b)
			if err != nil {
				t.Fatal(err)
			}
			s, err := d.NewSession(64)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range requests {
				worst := r.check(t, dir, s, tolerance)
				t.Logf("prompt of %d, fed token by token %v: largest logit difference %.1e", len(r.Prompt), r.IncludePrompt, worst)
			}
		})
	}
}

func storesInt8(t *testing.T, dir, model string) bool {
	m, err := ctconv.Open(filepath.Join(dir, model))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	w, _ := m.Tensor("decoder/embeddings/weight")
	return w.DType == num.Int8
}

// check decodes one request and returns the largest difference of any logit.
func (r request) check(t *testing.T, dir string, s *engine.Session, tolerance float64) (worst float64) {
	t.Helper()
	want := r.logits(t, dir)
	if err := s.Reset(); err != nil {
		t.Fatal(err)
	}
	forced := []int(nil) // prompt tokens that replace what was chosen
	feed := r.Prompt[len(r.Prompt)-1]
	if r.IncludePrompt {
		feed, forced = r.Prompt[0], r.Prompt[1:]
	} else if err := s.Prefill(context.Background(), r.Prompt[:len(r.Prompt)-1], nil); err != nil {
		t.Fatal(err)
	}
	var ids []int
	for step, row := range want {
		logits, err := s.Step(feed)
		if err != nil {
			t.Fatal(err)
		}
		for i, x := range logits {
			if diff := math.Abs(float64(x) - float64(row[i])); !(diff <= tolerance) {
				t.Fatalf("%s, prompt %v, token by token %v, row %d, logit %d: want %v, got %v", r.Model, r.Prompt, r.IncludePrompt, step, i, row[i], x)
			} else {
				worst = max(worst, diff)
			}
		}
		if feed = engine.Greedy(logits); step < len(forced) {
			feed = forced[step]
		}
		ids = append(ids, feed)
	}
	// CTranslate2 puts the first prompt token in front unless it is <s>, and strips the end token.
	if n := len(ids) - len(r.OutputIDs); n < 0 || n > 1 || !equal(ids[:len(ids)-n], r.OutputIDs) {
		t.Fatalf("%s, prompt %v: want ids %v, got %v", r.Model, r.Prompt, r.OutputIDs, ids)
	}
	return worst
}

func equal(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// logits reads CTranslate2's rows.
func (r request) logits(t *testing.T, dir string) [][]float32 {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, r.LogitsFile))
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]float32
	for size := 4 * r.Vocabulary; len(data) >= size; data = data[size:] {
		row := make([]float32, r.Vocabulary)
		num.Float32s(row, num.Float32, data)
		rows = append(rows, row)
	}
	if len(rows) == 0 || len(data) != 0 {
		t.Fatalf("%s: want whole rows of %d logits", r.LogitsFile, r.Vocabulary)
	}
	return rows
}
