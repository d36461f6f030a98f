// Command sensitivity measures how small an error in a single element llmrun compare sees, op by op, and how near unbroken ops come to
// their bounds. Run it from the repository's root; it writes docs/sensitivity.md:
//
//	go run ./scripts/sensitivity
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"llmrun/internal/cpuref"
	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/metal"
	"llmrun/internal/models"
	"llmrun/internal/num"
	"llmrun/internal/shadow"
)

const page = "docs/sensitivity.md"

// texts are what is measured: for an embedded model "Once upon a time" and what it makes of it; the golden ones, of random
// weights, have the ops that no embedded model has.
var texts = []struct {
	model string
	ids   []int
}{
	{"tiny-gemma2", []int{2, 296, 1402, 657, 338, 563, 494, 384, 338, 444, 731, 267, 347, 350, 1028, 355, 381, 338}},
	{"tiny-qwen2", []int{46, 1354, 589, 258, 491, 419, 304, 258, 367, 542, 851, 267, 258, 367, 542, 463, 11}},
	{"testdata/golden/m_softcap", []int{1, 17, 33, 4, 80, 5, 61, 12, 9, 30, 31, 32, 7}},
	{"testdata/golden/v3", []int{1, 17, 33, 4, 80, 5, 61, 12, 9, 30, 31, 32, 7}},
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "sensitivity:", err)
		os.Exit(1)
	}
}

func run() error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	const begin, end = "<!-- measured -->\n", "<!-- /measured -->"
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return fmt.Errorf("%s: want %q and %q", page, strings.TrimSpace(begin), end)
	}
	tables, err := tables()
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(head+begin+tables+end+tail), 0o644)
}

// tables measures on each backend that this machine has.
func tables() (string, error) {
	var out strings.Builder
	for _, side := range []struct {
		name string
		open func() (engine.Backend, error)
	}{
		{"cpu, float32", func() (engine.Backend, error) { return cpuref.Open(cpuref.Options{}), nil }},
		{"metal, float32", func() (engine.Backend, error) { return metal.Open(metal.Options{Activations: num.Float32}) }},
		{"metal, float16", func() (engine.Backend, error) { return metal.Open(metal.Options{Activations: num.Float16}) }},
	} {
		b, err := side.open()
		var missing *metal.UnavailableError
		if errors.As(err, &missing) {
			fmt.Fprintf(os.Stderr, "sensitivity: %s is left out: %v\n", side.name, err)
			continue
		}
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "\n%s\n\n| model | op | elements | worst clean error | seen at half | at 99.9 %% | at every element |\n|---|---|---|---|---|---|---|\n", side.name)
		for _, t := range texts {
			list, err := measure(t.model, b, t.ids)
			if err != nil {
				return "", fmt.Errorf("%s, %s: %w", t.model, side.name, err)
			}
			for _, s := range list {
				fmt.Fprintf(&out, "| %s | %s | %d | %.2f | %g | %g | %g |\n", strings.TrimPrefix(t.model, "testdata/golden/"), s.Op, s.Elements, s.Clean, s.Median, s.Most, s.All)
			}
		}
		if err := b.Close(); err != nil {
			return "", err
		}
	}
	return out.String() + "\n", nil
}

func measure(name string, b engine.Backend, ids []int) ([]shadow.Sensitivity, error) {
	m, _, err := models.Open(name)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	s, err := session(m, b, len(ids))
	if err != nil {
		return nil, err
	}
	meter := shadow.NewMeter()
	s.Tap = meter.Tap
	prompt := len(ids) / 2
	if err := s.Prefill(context.Background(), ids[:prompt], nil); err != nil {
		return nil, err
	}
	for _, id := range ids[prompt:] {
		if _, err := s.Step(id); err != nil {
			return nil, err
		}
	}
	return meter.Table()
}

func session(m *ctconv.Model, b engine.Backend, capacity int) (*engine.Session, error) {
	d, err := engine.Load(m, b)
	if err != nil {
		return nil, err
	}
	return d.NewSession(capacity)
}
