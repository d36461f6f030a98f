package metal

import (
	"errors"
	"math"
	"slices"
	"sync"
	"testing"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// text is a session that goes on with what it says, and the bits of its logits so far.
type text struct {
	*engine.Session
	next int
	bits []uint32
}

func (x *text) step() error {
	logits, err := x.Step(x.next)
	if err != nil {
		return err
	}
	for _, v := range logits {
		x.bits = append(x.bits, math.Float32bits(v))
	}
	x.next = engine.Greedy(logits)
	return nil
}

// TestSeveral: two backends, three decoders and five sessions in one process give the bits that each gives alone, one token from each in turn,
// and side by side in goroutines as far as they may.
func TestSeveral(t *testing.T) {
	const tokens = 12
	begin := func() [][]*text {
		one, other := open(t, Options{Activations: num.Float32}), open(t, Options{Activations: num.Float16})
		gemma, llama, small := decoder(t, one, "m_gemma2"), decoder(t, one, "m_llama"), decoder(t, other, "m_f16")
		session := func(d *engine.Decoder, first int) *text { return &text{Session: session(t, d, tokens), next: first} }
		return [][]*text{ // by decoder
			{session(gemma, 1), session(gemma, 5)},
			{session(llama, 1)},
			{session(small, 1), session(small, 7)},
		}
	}
	var want [][]uint32
	for _, texts := range begin() {
		for _, x := range texts {
			for range tokens {
				if err := x.step(); err != nil {
					t.Fatal(err)
				}
			}
			want = append(want, x.bits)
		}
	}
	hold := func(how string, decoders [][]*text) {
		t.Helper()
		for i, x := range slices.Concat(decoders...) {
			if !slices.Equal(x.bits, want[i]) {
				t.Errorf("text %d: other bits %s than alone", i, how)
			}
		}
	}
	inTurn := begin()
	for range tokens {
		for _, x := range slices.Concat(inTurn...) {
			if err := x.step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	hold("in turn", inTurn)

	sideBySide := begin()
	sideBySide[1] = nil // a decoder that shares its backend with another takes no turns with it
	want = slices.Delete(want, 2, 3)
	texts := slices.Concat(sideBySide...)
	errs := make([]error, len(texts))
	var wait sync.WaitGroup
	for i, x := range texts {
		wait.Go(func() {
			for range tokens {
				errs[i] = errors.Join(errs[i], x.step())
			}
		})
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	hold("side by side", sideBySide)
}
