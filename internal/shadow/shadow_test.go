package shadow

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"llmrun/internal/cpuref"
	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/metal"
	"llmrun/internal/models"
	"llmrun/internal/num"
)

// faulty is a backend with a mistake.
type faulty struct {
	engine.Backend
	before func(engine.Op)
	after  func(engine.Op)
	run    func(engine.Op) engine.Op // what is run instead; nil: nothing
	upload func(ctconv.Tensor) ctconv.Tensor
}

func (b *faulty) Run(op engine.Op) {
	if b.before != nil {
		b.before(op)
	}
	is := op
	if b.run != nil {
		is = b.run(op)
	}
	if is != nil {
		b.Backend.Run(is)
	}
	if b.after != nil {
		b.after(op)
	}
}

func (b *faulty) Upload(t ctconv.Tensor) (engine.Buffer, error) {
	if b.upload != nil {
		t = b.upload(t)
	}
	return b.Backend.Upload(t)
}

func cpu(t testing.TB) engine.Backend {
	b := cpuref.Open(cpuref.Options{Threads: 1})
	t.Cleanup(func() { b.Close() })
	return b
}

// device opens Metal, or skips the test where there is none.
func device(t testing.TB, d num.DType) engine.Backend {
	t.Helper()
	b, err := metal.Open(metal.Options{Activations: d})
	var missing *metal.UnavailableError
	if errors.As(err, &missing) && os.Getenv("LLMRUN_REQUIRE_METAL") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// open opens a golden model, or an embedded one.
func open(t testing.TB, name string) *ctconv.Model {
	t.Helper()
	dir := filepath.Join("../../testdata/golden", name)
	if strings.HasPrefix(name, "tiny-") {
		dir = name
	}
	m, _, err := models.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func session(t testing.TB, m *ctconv.Model, b engine.Backend, capacity int) *engine.Session {
	t.Helper()
	return sessionAs(t, m, b, capacity, false)
}

func sessionAs(t testing.TB, m *ctconv.Model, b engine.Backend, capacity int, quantized bool) *engine.Session {
	t.Helper()
	d, err := engine.Compute{Activations: b.Activations(), Quantized: quantized}.Load(m, b)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewSession(capacity)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// story is what tiny-gemma2 makes of "Once upon a time": step 1 is fed the sixth token.
var story = []int{2, 296, 1402, 657, 338, 563, 494, 384, 338, 444, 731, 267, 347, 350}

var text = []int{1, 17, 33, 4, 80, 5, 61, 12, 9, 30, 31, 32, 7, 7, 8, 90, 3, 44, 45, 46}

// follow runs text, all but the last steps tokens prefilled, and judges every op.
func follow(t testing.TB, model string, b engine.Backend, text []int, steps int) *Watch {
	t.Helper()
	return followAs(t, model, b, text, steps, false)
}

func followAs(t testing.TB, model string, b engine.Backend, text []int, steps int, quantized bool) *Watch {
	t.Helper()
	m := open(t, model)
	s, twin := sessionAs(t, m, b, len(text)+4, quantized), sessionAs(t, m, cpu(t), len(text)+4, quantized)
	w := Follow(s, twin)
	w.Text = text
	w.Judge(true)
	feed(t, s, text, steps)
	w.Stop()
	if w.Err() != nil {
		t.Fatal(w.Err())
	}
	return w
}

func feed(t testing.TB, s *engine.Session, text []int, steps int) {
	t.Helper()
	if err := s.Prefill(context.Background(), text[:len(text)-steps], nil); err != nil {
		t.Fatal(err)
	}
	for _, id := range text[len(text)-steps:] {
		if _, err := s.Step(id); err != nil {
			t.Fatal(err)
		}
	}
}

// Nobody is accused who did nothing: every golden model and the embedded ones, on every backend.
func TestClean(t *testing.T) {
	files, err := filepath.Glob("../../testdata/golden/*/model.bin")
	if err != nil || len(files) < 17 {
		t.Fatalf("want at least 17 golden models, found %d: %v", len(files), err)
	}
	names := []string{"tiny-gemma2", "tiny-qwen2"}
	for _, f := range files {
		names = append(names, filepath.Base(filepath.Dir(f)))
	}
	for side, open := range map[string]func(*testing.T) engine.Backend{
		"cpu":           func(t *testing.T) engine.Backend { return cpu(t) },
		"metal float32": func(t *testing.T) engine.Backend { return device(t, num.Float32) },
		"metal float16": func(t *testing.T) engine.Backend { return device(t, num.Float16) },
	} {
		t.Run(side, func(t *testing.T) {
			for i, name := range append(names, "m_gemma18", "tiny-qwen2", "v4") { // these again, quantized
				w := followAs(t, name, open(t), text, 4, i >= len(names))
				for _, f := range w.Findings() {
					t.Errorf("%s: %+v", name, f)
				}
				const steps = 5
				if worst := w.Worst(); worst == nil || len(w.Cells()) < steps || w.Ops() < 10*steps || !(worst.Ratio < 0.7) {
					t.Errorf("%s: %d ops judged, worst %v", name, w.Ops(), worst)
				} else {
					t.Logf("%-12s %4d ops, worst %.3f of its bound: step %d layer %d %s", name, w.Ops(), float64(worst.Ratio), worst.Step, worst.Layer, worst.Site)
				}
			}
		})
	}
}
