package metal

import (
	"maps"
	"math"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
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

// everyWay is how ops become dispatches.
var everyWay = []Options{{Activations: num.Float32}, {Activations: num.Float16, Fuse: true}, {Activations: num.BFloat16, Fuse: true}, {Activations: num.Float32, MPS: true}}

// TestNoAllocations: a decode step leaves no garbage, whatever it is made of.
func TestNoAllocations(t *testing.T) {
	for _, o := range everyWay {
		for _, model := range []string{"m_gemma2", "m_llama"} {
			b := open(t, o)
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
					t.Errorf("%s, %+v, %T: %v allocations a token", model, o, backend, n)
				}
			}
		}
	}
}

// TestThousandTokens: neither objects nor memory gather. A token that kept 4 kilobytes, less than a command buffer, would cost more than is allowed
// here, and one that kept an object would be seen by the host device's count.
func TestThousandTokens(t *testing.T) {
	b := open(t, Options{Activations: num.Float32})
	if b.info.Validate {
		t.Skip("a checked device keeps notes of all memory that was used, and is slow")
	}
	s := session(t, decoder(t, b, "m_llama"), 1501)
	decode(t, s, 500)    // what grows once, has
	debug.FreeOSMemory() // Go's own garbage, of other tests too
	memory, objects := resident(t), alive(t)
	for id := range 1000 {
		if _, err := s.Step(id % 90); err != nil {
			t.Fatal(err)
		}
	}
	if now := alive(t); !maps.Equal(now, objects) {
		t.Errorf("objects: %v; 1,000 tokens later: %v", objects, now)
	}
	debug.FreeOSMemory()
	if grown := resident(t) - memory; grown > 4<<20 {
		t.Errorf("1,000 tokens cost %d bytes", grown)
	}
}

// TestAheadSameBits: a step encoded before its token is known gives the bits of one that is not.
func TestAheadSameBits(t *testing.T) {
	for _, o := range everyWay {
		for _, model := range []string{"m_gemma2", "m_l3", "v5"} {
			b := open(t, o)
			d := decoder(t, b, model)
			s, alone := session(t, d, 40), session(t, d, 40)
			alone.Backend = plainly{b}
			want, before := decode(t, alone, 40), b.tickets
			if got := decode(t, s, 40); !slices.Equal(got, want) {
				t.Errorf("%s, %+v: other logits when encoded ahead", model, o)
			}
			if n := b.tickets - before; n != 39 || before != 0 {
				t.Errorf("%s, %+v: %d steps encoded ahead, %d where none should be", model, o, n, before)
			}
		}
	}
}

// TestPrepare: what was prepared begins when it is started, after all that was run before, with what the buffers hold by then, and only if it
// is not gone.
func TestPrepare(t *testing.T) {
	b := open(t, Options{Activations: num.Float32})
	buf := newBuffers(t, b)
	one, x, y := buf(num.Float32, 4), buf(num.Float32, 4), buf(num.Float32, 4)
	set := func(x engine.Buffer, v float32) {
		t.Helper()
		host, err := x.Host()
		if err != nil {
			t.Fatal(err)
		}
		copy(host, tensor("", 4, v).Data)
	}
	want := func(x engine.Buffer, v float32, when string) {
		t.Helper()
		if got := floats(t, x); got[0] != v || got[3] != v {
			t.Errorf("%s: %v, want %v", when, got, v)
		}
	}
	add := func(out, a, b engine.Buffer) engine.Op {
		return &engine.Add{Place: engine.Place{In: &engine.Pass{Rows: 1}, Name: "layer_out"}, Out: out, A: a, B: b, Dim: 4}
	}
	next := []engine.Op{add(y, x, one)} // y = x + 1
	set(one, 1)
	ticket := b.Prepare(next)
	if ticket == 0 {
		t.Fatal("an op cannot be prepared")
	}
	want(y, 0, "prepared")
	set(x, 10)
	b.Run(add(one, x, x)) // one = 20
	if !b.Start(ticket) {
		t.Fatal("what was prepared is gone")
	}
	want(y, 30, "started after an op")
	if b.Start(ticket) {
		t.Error("started twice")
	}
	b.Run(add(one, y, y)) // one = 60
	ticket = b.Prepare(next)
	if len(b.pending) != 0 || len(b.flying) != 1 {
		t.Errorf("Prepare leaves %d ops pending and %d command buffers committed, want 0 and 1", len(b.pending), len(b.flying))
	}
	b.Discard(ticket)
	if b.Start(ticket) {
		t.Error("started after it was discarded")
	}
	want(y, 30, "discarded")
	first, last := b.Prepare(next), 0
	for range maxPrepared {
		last = b.Prepare(next)
	}
	if b.Start(first) || !b.Start(last) {
		t.Error("of one too many the oldest should go")
	}
	want(y, 70, "the last of many")
	last = b.Prepare(next)
	b.SetFusion("attention", true)
	if b.Start(last) {
		t.Error("started though fusion has changed")
	}
	if before := len(b.spare); b.Prepare(nil) != 0 || len(b.spare) != before || len(b.prepared) != 0 {
		t.Error("nothing was prepared, or what cannot be is kept")
	}
	b.work = maxWork + 1
	if ticket := b.Prepare(next); ticket != 0 || b.err != nil || b.work != 0 || len(b.pending) != 0 {
		t.Errorf("too much for one command buffer: ticket %d, %d multiply-adds and %d ops pending, %v", ticket, b.work, len(b.pending), b.err)
	}
}

// TestPrepareFails: what cannot be prepared fails when it is run, and not before.
func TestPrepareFails(t *testing.T) {
	b := open(t, Options{Activations: num.Float32})
	d := decoder(t, b, "m_llama")
	s := session(t, d, 4)
	decode(t, s, 2) // and the third is ready
	kv := s.Program()[slices.IndexFunc(s.Program(), func(op engine.Op) bool { return op.Family() == engine.FamilyKV })]
	*kv.Pass() = engine.Pass{Step: 9, Rows: 1, Pos: 4, Span: engine.Span{Decode: true}}
	if ticket := b.Prepare([]engine.Op{kv}); ticket != 0 || b.Sync() != nil {
		t.Fatalf("an op beyond the cache was prepared, or has failed already: %v", b.Sync())
	}
	b.Run(kv)
	if err := b.Sync(); err == nil || err.Error() != "step 9 layer 0 kv_write: metal: kcache holds 4 positions, position 4 is asked for" {
		t.Errorf("an op beyond the cache: %v", err)
	}
	if _, err := s.Step(1); err != b.Sync() {
		t.Errorf("a step that is ready, on a backend that has failed: %v", err)
	}
}

// TestAheadChecksIDs: an id outside the embedding, which no kernel could report, fails although the step was made ready before it was known.
func TestAheadChecksIDs(t *testing.T) {
	b := open(t, Options{Activations: num.Float32})
	s := session(t, decoder(t, b, "m_llama"), 8)
	decode(t, s, 3)
	embed := s.Program()[0].(*engine.Embed)
	host, err := embed.IDs.Host()
	if err != nil {
		t.Fatal(err)
	}
	host[2] = 1 // 65536 and more
	if n := len(b.prepared); n != 1 {
		t.Fatalf("%d steps are ready", n)
	}
	b.Start(b.prepared[0].ticket)
	if err := b.Sync(); err == nil || !strings.HasPrefix(err.Error(), "step 4 embed: metal: row 0 has id 65") {
		t.Errorf("an id outside the vocabulary: %v", err)
	}
}
