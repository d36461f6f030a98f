package metal

import (
	"maps"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// decoder loads a golden model.
func decoder(t testing.TB, b engine.Backend, model string) *engine.Decoder {
	t.Helper()
	m, err := ctconv.Open(filepath.Join("../../testdata/golden", model))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	d, err := engine.Load(m, b)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func session(t testing.TB, d *engine.Decoder, capacity int) *engine.Session {
	t.Helper()
	s, err := d.NewSession(capacity)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// decode feeds n tokens that depend on the logits, and gives the bits of all logits.
func decode(t testing.TB, s *engine.Session, n int) (bits []uint32) {
	t.Helper()
	for id := 1; n > 0; n-- {
		logits, err := s.Step(id)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range logits {
			bits = append(bits, math.Float32bits(x))
		}
		id = engine.Greedy(logits)
	}
	return bits
}

// plainly is a backend whose sessions make no step ready.
type plainly struct{ engine.Backend }

// TestNoAllocations: a decode step leaves no garbage.
func TestNoAllocations(t *testing.T) {
	for _, model := range []string{"m_gemma2", "m_llama"} {
		b := open(t, Options{Activations: num.Float16})
		s := session(t, decoder(t, b, model), 64)
		for _, backend := range []engine.Backend{b, plainly{b}} {
			s.Backend = backend
			if err := s.Reset(); err != nil {
				t.Fatal(err)
			}
			decode(t, s, 4)
			id := 2
			n := testing.AllocsPerRun(20, func() {
				logits, err := s.Step(id)
				if err != nil {
					t.Fatal(err)
				}
				id = engine.Greedy(logits)
			})
			if n != 0 {
				t.Errorf("%s, %T: %v allocations a token", model, backend, n)
			}
		}
	}
}

// TestThousandTokens: neither objects nor memory gather. A token that kept a kilobyte would cost more than is allowed here, and one that kept
// an object would be seen by the host device's count.
func TestThousandTokens(t *testing.T) {
	b := open(t, Options{Activations: num.Float32})
	s := session(t, decoder(t, b, "m_llama"), 1501)
	decode(t, s, 500) // what grows once, has
	memory, objects := resident(t), alive(t)
	for id := range 1000 {
		if _, err := s.Step(id % 90); err != nil {
			t.Fatal(err)
		}
	}
	if now := alive(t); !maps.Equal(now, objects) {
		t.Errorf("objects: %v; 1,000 tokens later: %v", objects, now)
	}
	if grown := resident(t) - memory; grown > 1<<20 {
		t.Errorf("1,000 tokens cost %d bytes", grown)
	}
}

// TestAheadSameBits: a step encoded before its token is known gives the bits of one that is not.
func TestAheadSameBits(t *testing.T) {
	for _, model := range []string{"m_gemma2", "m_l3", "v5"} {
		b := open(t, Options{Activations: num.Float32})
		d := decoder(t, b, model)
		s, alone := session(t, d, 40), session(t, d, 40)
		alone.Backend = plainly{b}
		want, before := decode(t, alone, 40), b.tickets
		if got := decode(t, s, 40); !slices.Equal(got, want) {
			t.Errorf("%s: other logits when encoded ahead", model)
		}
		if n := b.tickets - before; n != 39 || before != 0 {
			t.Errorf("%s: %d steps encoded ahead, %d where none should be", model, n, before)
		}
	}
}
