package engine_test

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"llmrun/internal/cpuref"
	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

const goldenDir = "../../testdata/golden"

// load opens a golden model on a fresh backend.
func load(t *testing.T, name string, b engine.Backend) *engine.Decoder {
	return loadAs(t, name, b, false)
}

func loadAs(t *testing.T, name string, b engine.Backend, quantized bool) *engine.Decoder {
	t.Helper()
	m, err := ctconv.Open(filepath.Join(goldenDir, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	d, err := engine.Compute{Activations: b.Activations(), Quantized: quantized}.Load(m, b)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func cpu(t *testing.T, threads int) *cpuref.Backend {
	b := cpuref.Open(cpuref.Options{Threads: threads})
	t.Cleanup(func() { b.Close() })
	return b
}

func session(t *testing.T, d *engine.Decoder, capacity int) *engine.Session {
	t.Helper()
	s, err := d.NewSession(capacity)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// bits decodes ids, the first of them prefilled, and gives the bits of all logits.
func bits(t *testing.T, s *engine.Session, ids []int, prefilled int) (all []uint32) {
	t.Helper()
	if err := s.Reset(); err != nil {
		t.Fatal(err)
	}
	if err := s.Prefill(context.Background(), ids[:prefilled], nil); err != nil {
		t.Fatal(err)
	}
	for i, id := range ids[prefilled:] {
		logits, err := s.Step(id)
		if err != nil {
			t.Fatal(err)
		}
		if prefilled+i < len(ids)-2 { // compare what every way of feeding computes: the last two rows
			continue
		}
		for _, x := range logits {
			all = append(all, math.Float32bits(x))
		}
	}
	return all
}

// Where no window is narrower than the text, a prefill of n tokens is n decode steps, to the bit; and the bits do not depend on threads.
func TestBitsOfPrefillAndThreads(t *testing.T) {
	ids := []int{1, 17, 33, 4, 80, 5, 61, 12, 9, 30, 31, 32, 7, 7, 8, 90, 3, 44, 45, 46}
	test := func(model string, quantized bool) {
		want := bits(t, session(t, loadAs(t, model, cpu(t, 1), quantized), 32), ids, 0)
		for _, threads := range []int{1, 2, 3, 7} {
			s := session(t, loadAs(t, model, cpu(t, threads), quantized), 32)
			for _, prefilled := range []int{0, 1, 5, 18} {
				if got := bits(t, s, ids, prefilled); !slices.Equal(got, want) {
					t.Errorf("%s, quantized %t: %d threads, %d of %d tokens prefilled: other bits", model, quantized, threads, prefilled, len(ids))
				}
			}
		}
	}
	for _, model := range []string{"m_llama", "m_gemma2", "m_l3", "m_f16", "v5"} {
		test(model, false)
	}
	for _, model := range []string{"m_gemma18", "m_f16", "v4"} {
		test(model, true)
	}
}

// A prompt longer than the block of rows that runs at once gives the bits of one fed token by token.
func TestBitsAcrossBlocks(t *testing.T) {
	ids := make([]int, 300)
	for i := range ids {
		ids[i] = (i*i + 3) % 97
	}
	s := session(t, load(t, "m_llama", cpu(t, 2)), len(ids))
	if want, got := bits(t, s, ids, 0), bits(t, s, ids, 297); !slices.Equal(got, want) {
		t.Error("297 tokens prefilled: other bits than fed one by one")
	}
}

func TestKeys(t *testing.T) {
	for _, c := range []struct {
		name           string
		pass           engine.Pass
		window         int
		from, to, wide int
	}{
		{"decode", engine.Pass{Rows: 1, Pos: 9, Span: engine.Span{Decode: true}}, 0, 0, 10, 10},
		{"decode, window reached", engine.Pass{Rows: 1, Pos: 9, Span: engine.Span{Decode: true}}, 4, 6, 10, 4},
		{"decode, window not reached", engine.Pass{Rows: 1, Pos: 2, Span: engine.Span{Decode: true}}, 4, 0, 3, 3},
		{"prompt in one piece ignores the window", engine.Pass{Rows: 9, Span: engine.Span{Chunk: 9}}, 4, 0, 1, 9},
		{"a later block of the first chunk", engine.Pass{Rows: 3, Pos: 5, Span: engine.Span{Chunk: 9}}, 4, 0, 6, 8},
		{"second chunk, window", engine.Pass{Rows: 4, Pos: 4, Span: engine.Span{Chunk: 4, ChunkStart: 4}}, 4, 0, 5, 8},
		{"third chunk, window", engine.Pass{Rows: 4, Pos: 8, Span: engine.Span{Chunk: 4, ChunkStart: 8}}, 4, 4, 9, 8},
		{"third chunk, no window: the oldest keys only", engine.Pass{Rows: 2, Pos: 8, Span: engine.Span{Chunk: 4, ChunkStart: 8}}, 0, 0, 5, 6},
		{"third chunk, a later block", engine.Pass{Rows: 2, Pos: 10, Span: engine.Span{Chunk: 4, ChunkStart: 8}}, 4, 4, 11, 8},
	} {
		from, to := c.pass.Keys(c.window)
		f, first, width := (engine.Attention{Window: c.window}).Keys(&c.pass)
		if from != c.from || to != c.to || f != from || first != to-from || width != c.wide {
			t.Errorf("%s: want keys [%d, %d) and %d wide, got [%d, %d) and %d wide", c.name, c.from, c.to, c.wide, from, to, width)
		}
	}
}

// A program visits the sites in their order, and no op writes what it reads.
func TestProgram(t *testing.T) {
	for _, model := range []string{"m_gemma3", "m_llama", "m_softcap", "v5"} {
		s := session(t, load(t, model, cpu(t, 1)), 8)
		if _, err := s.Step(1); err != nil { // a pass, so that extents are known
			t.Fatal(err)
		}
		last := -1
		for _, op := range s.Program() {
			i := slices.Index(engine.Sites, op.Site().Name)
			if i < 0 || i <= last && op.Site().Name != "attn_norm" {
				t.Errorf("%s: %v comes after %s", model, op.Site(), engine.Sites[last])
			}
			last = i
			if !slices.Contains(engine.Families, op.Family()) {
				t.Errorf("%s: %v has family %q", model, op.Site(), op.Family())
			}
			outs, ins := op.Operands(nil, nil)
			for _, out := range outs {
				for _, in := range ins {
					if out.Buffer == in.Buffer {
						t.Errorf("%s: %v writes %s, which it reads as %s", model, op.Site(), out.Name, in.Name)
					}
				}
				if end := out.Offset + (out.Rows-1)*out.Stride + out.Cols; end > out.Buffer.Len() {
					t.Errorf("%s: %v writes %d elements of %d", model, op.Site(), end, out.Buffer.Len())
				}
			}
		}
	}
}

func TestSessionRefuses(t *testing.T) {
	d := load(t, "m_llama", cpu(t, 1))
	if _, err := d.NewSession(0); err == nil {
		t.Error("no capacity: want an error")
	}
	s := session(t, d, 3)
	for _, ids := range [][]int{{97}, {-1}, {1, 2, 3, 4}} {
		if err := s.Prefill(context.Background(), ids, nil); err == nil {
			t.Errorf("prefill of %v: want an error", ids)
		}
	}
	if err := s.Prefill(context.Background(), []int{1, 2}, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Prefill(context.Background(), []int{1}, nil); err == nil {
		t.Error("a second prefill: want an error")
	}
	if _, err := s.Step(5); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Step(5); err == nil || !strings.Contains(err.Error(), "room for 3") {
		t.Errorf("a fourth token: want an error that names the room, got %v", err)
	}
	learned := load(t, "v5", cpu(t, 1))
	if _, err := learned.NewSession(129); err == nil || !strings.Contains(err.Error(), "128 positions") {
		t.Errorf("more tokens than learned positions: want an error that names them, got %v", err)
	}
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := engine.Generate(canceled, session(t, d, 9), []int{1, 2, 3}, engine.GenerateOptions{MaxTokens: 3}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: want that error, got %v", err)
	}
}

// What the decoder does not compute is refused by name.
func TestLoadRefuses(t *testing.T) {
	flag := func(v byte) ctconv.Tensor { return ctconv.Tensor{DType: num.Int8, Data: []byte{v}} }
	vector := func(n int) ctconv.Tensor {
		return ctconv.Tensor{DType: num.Float32, Shape: []int{n}, Data: make([]byte, 4*n)}
	}
	for _, c := range []struct {
		change func(map[string]ctconv.Tensor)
		want   string
	}{
		{func(v map[string]ctconv.Tensor) { v["decoder/alibi"] = flag(1) }, "decoder/alibi: llmrun does not compute ALiBi yet"},
		{func(v map[string]ctconv.Tensor) { v["decoder/pre_norm"] = flag(0) }, "decoder/pre_norm: llmrun does not compute norms after the sublayers yet"},
		{func(v map[string]ctconv.Tensor) { v["decoder/activation"] = flag(9) }, "decoder/activation: llmrun does not compute activation 9 yet"},
		{func(v map[string]ctconv.Tensor) { v["decoder/layer_0/self_attention/v_norm/gamma"] = vector(16) }, "v_norm/gamma: llmrun does not compute a norm of the values yet"},
		{func(v map[string]ctconv.Tensor) { v["decoder/layer_1/layer_scalar"] = flag(1) }, "layer_scalar: llmrun does not compute a layer scale yet"},
		{func(v map[string]ctconv.Tensor) { v["decoder/layer_0/shared_layer_norm/gamma"] = vector(64) }, "the parallel block"},
		{func(v map[string]ctconv.Tensor) { v["decoder/banana"] = flag(1) }, "decoder/banana: llmrun does not compute what this variable is for yet"},
		{func(v map[string]ctconv.Tensor) { delete(v, "decoder/layer_0/self_attention/rotary_dim") }, "sinusoidal positions"},
		{func(v map[string]ctconv.Tensor) { v["decoder/layer_1/self_attention/rotary_scaling_type"] = flag(7) }, "rotary scaling 7"},
		{func(v map[string]ctconv.Tensor) { v["decoder/layer_1/self_attention/num_heads_kv"] = flag(3) }, "num_heads_kv: want a divisor of the 4 query heads, file has 3"},
		{func(v map[string]ctconv.Tensor) { delete(v, "decoder/layer_1/ffn/linear_1/weight") }, "decoder/layer_1/ffn/linear_1/weight"},
		{func(v map[string]ctconv.Tensor) { delete(v, "decoder/layer_norm/gamma") }, "decoder/layer_norm/gamma"},
		{func(v map[string]ctconv.Tensor) {
			w := v["decoder/layer_0/self_attention/linear_0/weight"]
			w.Shape = []int{w.Shape[0] - 1, w.Shape[1]}
			v["decoder/layer_0/self_attention/linear_0/weight"] = w
		}, "decoder/layer_0/self_attention/linear_0/weight"},
	} {
		m, err := ctconv.Open(filepath.Join(goldenDir, "m_llama"))
		if err != nil {
			t.Fatal(err)
		}
		c.change(m.Tensors)
		if _, err := engine.Load(m, cpu(t, 1)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want an error with %q, got %v", c.want, err)
		}
		m.Close()
	}
}

// A backend that breaks one op.
type breaker struct {
	engine.Backend
	site engine.Site
}

func (b *breaker) Run(op engine.Op) {
	b.Backend.Run(op)
	if op.Site() == b.site {
		outs, _ := op.Operands(nil, nil)
		host, err := outs[0].Buffer.Host()
		if err != nil {
			panic(err)
		}
		num.PutFloat32(num.Float32, host, 5, float32(math.NaN()))
	}
}

func TestFindNonFinite(t *testing.T) {
	broken := engine.Site{Step: 3, Layer: 1, Name: "act"}
	for _, prompt := range [][]int{{1, 2, 3}, {1}} {
		s := session(t, load(t, "m_gemma2", &breaker{cpu(t, 1), broken}), 16)
		ids, _, err := engine.Generate(context.Background(), s, prompt, engine.GenerateOptions{MaxTokens: 8})
		var e *engine.NonFiniteError
		if !errors.As(err, &e) || e.Step != 3 || len(ids) != 2 {
			t.Fatalf("want 2 ids and an error at step 3, got %v and %v", ids, err)
		}
		birth, err := engine.FindNonFinite(context.Background(), s, prompt, ids)
		if err != nil || birth == nil || birth.Site != broken || birth.Count != 1 || birth.First != 5 {
			t.Errorf("want 1 element, number 5, at %v, got %+v (%v)", broken, birth, err)
		}
	}
	s := session(t, load(t, "m_gemma2", cpu(t, 1)), 16)
	if birth, err := engine.FindNonFinite(context.Background(), s, []int{1, 2}, []int{3}); birth != nil || err != nil {
		t.Errorf("a sound backend: want nothing, got %v (%v)", birth, err)
	}
}

// The Router moves just what it is told to; the result is that of a sound backend once the broken family is moved.
func TestRouterHeals(t *testing.T) {
	generate := func(s *engine.Session) ([]int, error) {
		ids, _, err := engine.Generate(context.Background(), s, []int{1, 2, 3}, engine.GenerateOptions{MaxTokens: 8})
		return ids, err
	}
	want, err := generate(session(t, load(t, "m_gemma2", cpu(t, 1)), 16))
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range engine.Families {
		sick := &breaker{cpu(t, 1), engine.Site{Step: 3, Layer: 1, Name: "act"}}
		s := session(t, load(t, "m_gemma2", sick), 16)
		moved := 0
		s.Backend = &engine.Router{Backend: sick, To: cpu(t, 1), Move: func(op engine.Op) bool {
			if op.Family() == family {
				moved++
				return true
			}
			return false
		}}
		ids, err := generate(s)
		if healed := err == nil && slices.Equal(ids, want); healed != (family == engine.FamilyActivation) {
			t.Errorf("%s moved: healed is %v (%v)", family, healed, err)
		}
		if (moved > 0) != (family != engine.FamilySample) {
			t.Errorf("%s: %d ops moved", family, moved)
		}
	}
}

func TestComputeAs(t *testing.T) {
	for _, c := range []struct{ model, computeType, want, fails string }{
		{"m_llama", "auto", "float32", ""}, {"m_f16", "auto", "float32", ""}, {"m_f16", "float16", "float16", ""},
		{"m_gemma18", "float32", "float32", ""}, {"m_gemma18", "auto", "int8_float32", ""}, {"m_f16", "int8", "int8_float32", ""},
		{"m_llama", "int8_float16", "int8_float16", ""}, {"m_llama", "bfloat16", "bfloat16", ""}, {"m_f16", "int8_bfloat16", "int8_bfloat16", ""},
		{"m_llama", "int16", "", "does not compute that yet"}, {"m_llama", "float8", "", `got "float8"`},
	} {
		m, err := ctconv.Open(filepath.Join(goldenDir, c.model))
		if err != nil {
			t.Fatal(err)
		}
		got, err := engine.ComputeAs(m, c.computeType)
		if c.fails == "" && (err != nil || got.String() != c.want) || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
			t.Errorf("%s as %s: want %v %q, got %v (%v)", c.model, c.computeType, c.want, c.fails, got, err)
		}
		m.Close()
	}
}

func TestGreedy(t *testing.T) {
	inf := float32(math.Inf(-1))
	for _, c := range []struct {
		logits []float32
		want   int
	}{{[]float32{1, 3, 2}, 1}, {[]float32{3, 1, 3}, 0}, {[]float32{-2, -1, -1}, 1}, {[]float32{float32(math.Copysign(0, -1)), 0}, 0}, {[]float32{inf, -9}, 1}} {
		if got := engine.Greedy(c.logits); got != c.want {
			t.Errorf("%v: want %d, got %d", c.logits, c.want, got)
		}
	}
}

// A sampler draws each token as often as the softmax says; top-k and top-p leave out what they should.
func TestSampler(t *testing.T) {
	logits := []float32{float32(math.Log(0.5)), float32(math.Log(0.1)), float32(math.Log(0.3)), float32(math.Log(0.1))}
	const draws = 20000
	for _, c := range []struct {
		temperature float64
		k           int
		p           float64
		want        []float64
	}{
		{1, 0, 1, []float64{0.5, 0.1, 0.3, 0.1}},
		{1, 2, 1, []float64{0.625, 0, 0.375, 0}},
		{1, 0, 0.6, []float64{0.625, 0, 0.375, 0}},
		{1, 0, 0.4, []float64{1, 0, 0, 0}},
		{0.5, 0, 1, []float64{0.25 / 0.36, 0.01 / 0.36, 0.09 / 0.36, 0.01 / 0.36}},
		{0, 0, 1, []float64{1, 0, 0, 0}},
	} {
		s := engine.NewSampler(c.temperature, c.k, c.p, 7)
		count := make([]float64, 4)
		for range draws {
			count[s.Sample(logits)]++
		}
		for id, want := range c.want {
			// five standard deviations of a binomial share
			if allowed := 5 * math.Sqrt(want*(1-want)/draws); !(math.Abs(count[id]/draws-want) <= allowed) {
				t.Errorf("temperature %v, top-k %d, top-p %v: id %d: want a share of %.3f, got %.3f", c.temperature, c.k, c.p, id, want, count[id]/draws)
			}
		}
	}
	a, b := engine.NewSampler(1, 0, 1, 1), engine.NewSampler(1, 0, 1, 1)
	for range 100 {
		if a.Sample(logits) != b.Sample(logits) {
			t.Fatal("the same seed drew other tokens")
		}
	}
}

// Sessions of one decoder, each in a goroutine of its own, give the bits that they give alone.
func TestSessionsTakeTurns(t *testing.T) {
	texts := [][]int{{1, 17, 33, 4, 80, 5, 61, 12}, {1, 9, 30, 31, 32, 7}, {1, 2, 3}}
	d := load(t, "m_llama", cpu(t, 2))
	got, want := make([][]uint32, len(texts)), make([][]uint32, len(texts))
	for i, ids := range texts {
		want[i] = bits(t, session(t, d, len(ids)), ids, 2)
	}
	var wait sync.WaitGroup
	for i, ids := range texts {
		wait.Go(func() { got[i] = bits(t, session(t, d, len(ids)), ids, 2) })
	}
	wait.Wait()
	for i := range texts {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("text %d: other bits beside others than alone", i)
		}
	}
}

// What Prefill leaves out is what no later token reads: who watches the layers whole gets the same logits, to the last bit.
func TestPromptLeavesOutOnlyWhatNobodyReads(t *testing.T) {
	for _, name := range []string{"m_llama", "m_gemma2", "m_gemma3"} {
		var logits [2][]float32
		var ran [2]int
		for i := range logits {
			s := session(t, load(t, name, counting{cpu(t, 2), &ran[i]}), 16)
			if i == 1 {
				s.Tap = func(engine.Op) {}
			}
			if err := s.Prefill(context.Background(), []int{3, 7, 11, 5, 13}, nil); err != nil {
				t.Fatal(err)
			}
			if want := len(s.Prompt()); i == 0 && ran[i] != want {
				t.Errorf("%s: want %d ops, %d ran", name, want, ran[i])
			}
			out, err := s.Step(2)
			if err != nil {
				t.Fatal(err)
			}
			logits[i] = slices.Clone(out)
		}
		if ran[0] >= ran[1] {
			t.Errorf("%s: %d ops ran unwatched, %d watched", name, ran[0], ran[1])
		}
		if !slices.Equal(logits[0], logits[1]) {
			t.Errorf("%s: other logits", name)
		}
	}
}

// counting is a backend that counts the ops it runs.
type counting struct {
	engine.Backend
	ran *int
}

func (c counting) Run(op engine.Op) {
	*c.ran++
	c.Backend.Run(op)
}
