package engine_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"llmrun/internal/cpuref"
	"llmrun/internal/engine"
)

// preparing is the reference as a Preparer: it keeps a pass, and runs it when it is told.
type preparing struct {
	*cpuref.Backend
	t        *testing.T
	ops      []engine.Op
	pass     engine.Pass
	ticket   int // of the pass that is ready, else 0
	given    int // tickets given out
	forgets  bool
	happened []string
}

func (p *preparing) Prepare(ops []engine.Op) int {
	if p.ticket != 0 {
		p.t.Errorf("step %d is made ready while step %d is", ops[0].Pass().Step, p.pass.Step)
	}
	p.given++
	p.ops, p.pass, p.ticket = ops, *ops[0].Pass(), p.given
	return p.ticket
}

func (p *preparing) Start(ticket int) bool {
	if ticket != p.ticket || *p.ops[0].Pass() != p.pass {
		p.t.Errorf("start of %d in %+v, ready is %d in %+v", ticket, *p.ops[0].Pass(), p.ticket, p.pass)
	}
	p.ticket = 0
	if p.forgets {
		return false
	}
	p.happened = append(p.happened, fmt.Sprint("start ", p.pass.Step))
	for _, op := range p.ops {
		p.Run(op)
	}
	return true
}

func (p *preparing) Discard(ticket int) {
	if ticket != p.ticket {
		p.t.Errorf("discard of %d, ready is %d", ticket, p.ticket)
	}
	p.ticket = 0
	p.happened = append(p.happened, fmt.Sprint("discard ", p.pass.Step))
}

// TestAhead: a step that was made ready is begun if it is the one that comes, and dropped if anything else does. The logits do not tell.
func TestAhead(t *testing.T) {
	p := &preparing{Backend: cpu(t, 1), t: t}
	d := load(t, "m_gemma2", p)
	s, alone := session(t, d, 6), session(t, load(t, "m_gemma2", cpu(t, 1)), 6)
	step := func(id int) {
		t.Helper()
		got, err := s.Step(id)
		if err != nil {
			t.Fatal(err)
		}
		want, err := alone.Step(id)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("step after %d tokens, id %d: other logits with a step made ready", s.Len()-1, id)
		}
	}
	both := func(f func(*engine.Session) error) {
		t.Helper()
		for _, s := range []*engine.Session{s, alone} {
			if err := f(s); err != nil {
				t.Fatal(err)
			}
		}
	}
	happened := func(want ...string) {
		t.Helper()
		if !slices.Equal(p.happened, want) {
			t.Errorf("happened %q, want %q", p.happened, want)
		}
		p.happened = nil
	}
	for _, id := range []int{1, 5, 9} {
		step(id)
	}
	happened("start 2", "start 3")
	s.Tap = func(engine.Op) {}
	step(7)
	s.Tap = nil
	happened("discard 4")
	step(8)
	step(8)
	happened("start 6")
	if p.ticket != 0 {
		t.Error("a step is ready for which the session has no room")
	}
	both((*engine.Session).Reset)
	both(func(s *engine.Session) error { return s.Prefill(context.Background(), []int{1, 2}, nil) })
	step(3)
	happened()
	both((*engine.Session).Reset)
	step(3)
	happened("discard 2")
	s.Backend = &engine.Router{Backend: p, To: p, Move: func(engine.Op) bool { return false }}
	step(4)
	happened("discard 2")
	s.Backend = p
	step(4)
	p.forgets = true
	step(5)
	if happened(); p.given != 8 {
		t.Errorf("%d steps made ready, want 8", p.given)
	}
	if now := *s.Program()[0].Pass(); now.Pos != 3 || now.Step != 4 {
		t.Errorf("the ops' pass is %+v, the last step was 4", now)
	}
}
