package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"llmrun/internal/num"
)

// blockRows is how many tokens of a prompt run through the layers at once, at most. Rows do not depend on each other but through the
// KV cache, so it changes the memory that a prompt needs and nothing else.
const blockRows = 120

// Session is one text in the making: a KV cache, the buffers between ops, and the program that runs over them.
// One goroutine uses it at a time.
type Session struct {
	// Before and Tap, if they are set, see every op right before and right after it is run. They read buffers through
	// their Host, which waits.
	Before, Tap func(Op)
	// Backend runs the ops. It is the decoder's; a Router, or another wrapper of the decoder's, may take its place between passes.
	Backend Backend

	decoder  *Decoder
	pass     *Pass
	capacity int
	pos      int // tokens seen
	step     int // of the next pass
	ids      Buffer
	program  []Op
	body     []Op // of the program: embeddings and layers
	prompt   []Op // of the body: up to the last layer's keys and values
	ahead    ahead
	logits   Buffer
	tables   []*rotaryTable
	ct2Rows  int // rows of CTranslate2's rotary table now
	out      []float32
}

// ahead is the next step, made ready while the last one ran.
type ahead struct {
	by     Preparer
	ticket int // 0: nothing is ready
	pass   Pass
}

// rotaryTable is the angles that layers with equal rotary options share.
type rotaryTable struct {
	angles
	buffer Buffer // float32 [capacity, dim]
}

// NewSession makes room for capacity tokens, prompt and generated ones together.
func (d *Decoder) NewSession(capacity int) (*Session, error) {
	if capacity < 1 {
		return nil, fmt.Errorf("new session: want room for at least 1 token, got %d", capacity)
	}
	if d.MaxPositions > 0 && capacity > d.MaxPositions {
		return nil, fmt.Errorf("new session: want room for %d tokens, the model has learned %d positions", capacity, d.MaxPositions)
	}
	d.turn.Lock()
	defer d.turn.Unlock()
	s := &Session{Backend: d.backend, decoder: d, capacity: capacity, pass: &Pass{}, out: make([]float32, d.Vocabulary)}
	if err := s.build(); err != nil {
		return nil, fmt.Errorf("new session of %d tokens: %w", capacity, err)
	}
	return s, nil
}

// Reset forgets the text. The cache's old rows stay in memory; no op reads them before they are written anew.
func (s *Session) Reset() error {
	s.decoder.turn.Lock()
	defer s.decoder.turn.Unlock()
	for _, t := range s.tables {
		if t.switchesAt(0, s.ct2Rows) {
			if err := t.fill(s.capacity, 0); err != nil {
				return err
			}
		}
	}
	s.pos, s.step, s.ct2Rows = 0, 0, 0
	return nil
}

// Len is the number of tokens seen.
func (s *Session) Len() int { return s.pos }

// Program lists the ops of one pass, in order.
func (s *Session) Program() []Op { return slices.Clone(s.program) }

// Prompt lists the ops of the program that tokens go through in Prefill, unless Before or Tap want to see the layers whole. The rest would compute what
// no later token reads.
func (s *Session) Prompt() []Op { return slices.Clone(s.prompt) }

// Prefill feeds the tokens of a prompt but the last, as step 0, without computing logits. CTranslate2 feeds a prompt so
// (include_prompt_in_result=False), in chunks where the file asks for them. No tokens: nothing happens but that step 0 is over.
// progress, if not nil, is told how many tokens are done.
func (s *Session) Prefill(ctx context.Context, ids []int, progress func(done int)) error {
	if s.step != 0 {
		return fmt.Errorf("prefill: want an empty session, this one has seen %d tokens", s.pos)
	}
	if err := s.check(ids); err != nil {
		return err
	}
	chunk := s.decoder.Chunk
	if chunk == 0 || len(ids) <= chunk {
		chunk = len(ids)
	}
	for start := 0; start < len(ids); start += chunk {
		end := min(start+chunk, len(ids))
		rows := evenBlock(end - start)
		for from := start; from < end; from += rows {
			to := min(from+rows, end)
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := s.block(ids[from:to], Span{Chunk: chunk, ChunkStart: start}, end); err != nil {
				return err
			}
			if progress != nil {
				progress(to)
			}
		}
	}
	s.step = 1
	return nil
}

// evenBlock is how many of n tokens run through the layers at once: as few blocks as can be, and about as large as each other, because a small one takes
// longer for each of its tokens. But for the last they are whole tiles of the CPU's products, of 4 or 6 rows.
func evenBlock(n int) int {
	const tiles = 12
	count := (n + blockRows - 1) / blockRows
	return min(blockRows, ((n+count-1)/count+tiles-1)/tiles*tiles)
}

// block feeds some tokens of a prompt, of which so many will have been seen when its present chunk is over.
func (s *Session) block(ids []int, span Span, seen int) error {
	s.decoder.turn.Lock()
	defer s.decoder.turn.Unlock()
	if err := s.growTables(seen); err != nil {
		return err
	}
	ops := s.prompt
	if s.Before != nil || s.Tap != nil {
		ops = s.body
	}
	return s.run(ids, Pass{Step: s.step, Rows: len(ids), Pos: s.pos, Span: span}, ops)
}

// Step feeds one token and gives the logits of the next, which are good until the next call.
func (s *Session) Step(id int) (logits []float32, err error) {
	if err := s.check([]int{id}); err != nil {
		return nil, err
	}
	if s.step == 0 {
		s.step = 1 // a one-token prompt has no step 0
	}
	s.decoder.turn.Lock()
	defer s.decoder.turn.Unlock()
	if err := s.growTables(s.pos + 1); err != nil {
		return nil, err
	}
	if err := s.run([]int{id}, s.decode(), s.program); err != nil {
		return nil, err
	}
	s.step++
	s.prepare()
	host, err := s.logits.Host()
	if err != nil {
		return nil, err
	}
	num.Float32s(s.out, s.logits.DType(), host)
	return s.out, nil
}

// check refuses what no op could do.
func (s *Session) check(ids []int) error {
	if s.pos+len(ids) > s.capacity {
		return fmt.Errorf("%d tokens more: the session has seen %d and has room for %d", len(ids), s.pos, s.capacity)
	}
	for i, id := range ids {
		if id < 0 || id >= s.decoder.Vocabulary {
			return fmt.Errorf("token %d: want an id from 0 to %d, got %d", s.pos+i, s.decoder.Vocabulary-1, id)
		}
	}
	return nil
}

// decode is the pass of the next step.
func (s *Session) decode() Pass {
	return Pass{Step: s.step, Rows: 1, Pos: s.pos, Span: Span{Decode: true}}
}

// run passes ids through ops.
func (s *Session) run(ids []int, pass Pass, ops []Op) error {
	host, err := s.ids.Host()
	if err != nil {
		return err
	}
	for i, id := range ids {
		binary.LittleEndian.PutUint32(host[4*i:], uint32(id))
	}
	*s.pass = pass
	if !s.start() {
		if f, ok := s.Backend.(Foreseer); ok {
			f.Foresee(ops)
			defer f.Foresee(nil)
		}
		for _, op := range ops {
			if s.Before != nil {
				s.Before(op)
			}
			s.Backend.Run(op)
			if s.Tap != nil {
				s.Tap(op)
			}
		}
	}
	s.pos += len(ids)
	return nil
}

// preparer is the backend, if it can make a pass ready and nobody wants to see the ops of one.
func (s *Session) preparer() Preparer {
	if s.Before != nil || s.Tap != nil {
		return nil
	}
	p, _ := s.Backend.(Preparer)
	return p
}

// prepare makes the next step ready, while the device works on this one. All is known of it but the token, which s.ids will hold.
func (s *Session) prepare() {
	p := s.preparer()
	if p == nil || s.pos == s.capacity {
		return
	}
	now := *s.pass
	s.ahead = ahead{by: p, pass: s.decode()}
	*s.pass = s.ahead.pass
	s.ahead.ticket = p.Prepare(s.program)
	*s.pass = now
}

// start begins the present pass if it is the one that was made ready. Another one is dropped.
func (s *Session) start() bool {
	a := s.ahead
	s.ahead = ahead{}
	if a.ticket == 0 {
		return false
	}
	if s.preparer() == a.by && *s.pass == a.pass {
		return a.by.Start(a.ticket)
	}
	a.by.Discard(a.ticket)
	return false
}

// growTables keeps the rotary tables as CTranslate2 would have them once it has seen so many tokens. Keys in the cache
// keep the angles that they were written with.
func (s *Session) growTables(tokens int) error {
	for _, t := range s.tables {
		if before, after := s.ct2Rows, t.rows(s.ct2Rows, tokens); t.switchesAt(before, after) {
			if err := t.fill(s.capacity, after); err != nil {
				return err
			}
		}
	}
	s.ct2Rows = (&angles{}).rows(s.ct2Rows, tokens)
	return nil
}

func (t *rotaryTable) fill(positions, ct2Rows int) error {
	host, err := t.buffer.Host()
	if err != nil {
		return err
	}
	t.table(host, positions, ct2Rows)
	return nil
}
