package engine_test

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
)

// What a token costs, beside what the file holds: every tensor is read once, of the embedding one row, and a projection that shares the
// embedding's data all of it; beside them the rows of the rotary table, and the keys and values of the positions that are attended to.
func TestCosts(t *testing.T) {
	for _, name := range []string{"m_llama", "m_gemma2", "m_gemma3", "m_llama_w8", "m_f16", "n_lin", "v2"} {
		m, err := ctconv.Open(goldenDir + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		s := session(t, load(t, name, cpu(t, 1)), 12)
		const pos = 9
		var sum, keys, tables, muladds int
		var all engine.Cost
		for _, c := range s.Costs(engine.Pass{Step: 1, Rows: 1, Pos: pos, Span: engine.Span{Decode: true}}) {
			all = all.Plus(c)
		}
		for _, op := range s.Program() {
			switch o := op.(type) {
			case *engine.Embed:
				sum += o.W.Cols * o.W.Buffer.DType().Size()
				if o.W.Scale != nil {
					sum += 4
				}
				if o.Positions != nil {
					sum += 4 * o.W.Cols
				}
			case *engine.Linear:
				muladds += o.W.Rows * o.W.Cols
			case *engine.RoPE:
				tables += 4 * o.RotaryDim
			case *engine.Scores:
				attended := pos + 1
				if o.Window > 0 {
					attended = min(attended, o.Window)
				}
				keys += 2 * attended * o.KVHeads * o.Dim * 4
			}
		}
		for tensor, v := range m.Tensors {
			isWeight := strings.HasPrefix(tensor, "decoder/") && len(v.Shape) > 0
			if !isWeight || strings.HasPrefix(tensor, "decoder/embeddings/") || strings.Contains(tensor, "position_encodings") || strings.Contains(tensor, "rotary") {
				continue
			}
			size := v.DType.Size()
			if len(v.Shape) == 1 {
				size = 4 // vectors are float32 on every backend
			}
			sum += v.Elements() * size
		}
		if all.Weights != sum+tables || all.Cache != keys || all.MultiplyAdds != muladds {
			t.Errorf("%s: want %d bytes of weights, %d of cache, %d multiply-adds, got %+v", name, sum+tables, keys, muladds, all)
		}
	}
}

// A session that steps back goes on as it did before, to the last bit.
func TestSeek(t *testing.T) {
	s := session(t, load(t, "m_gemma2", cpu(t, 2)), 16)
	ids := []int{3, 7, 11, 5, 13, 2}
	if err := s.Prefill(context.Background(), ids[:3], nil); err != nil {
		t.Fatal(err)
	}
	step := func(id int) []float32 {
		logits, err := s.Step(id)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Clone(logits)
	}
	first, second := step(ids[3]), step(ids[4])
	if err := s.Seek(3); err != nil || s.Len() != 3 {
		t.Fatal(err, s.Len())
	}
	if !slices.Equal(step(ids[3]), first) || !slices.Equal(step(ids[4]), second) {
		t.Error("the same tokens at the same positions have other logits")
	}
	for _, pos := range []int{-1, 16} {
		if s.Seek(pos) == nil {
			t.Errorf("seek to position %d of 16", pos)
		}
	}
}

func TestRepeat(t *testing.T) {
	s := session(t, load(t, "m_gemma2", cpu(t, 1)), 11)
	if s.Repeat(8) == nil {
		t.Error("nothing was repeated")
	}
	if err := s.Prefill(context.Background(), []int{3, 7, 11}, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Repeat(8); err != nil {
		t.Fatal(err)
	}
	if s.Repeat(12) == nil {
		t.Error("repeated beyond the room of the session")
	}
	for _, op := range s.Program() {
		w, ok := op.(*engine.KVWrite)
		if !ok {
			continue
		}
		for _, cache := range []engine.Buffer{w.KCache, w.VCache} {
			host, err := cache.Host()
			if err != nil {
				t.Fatal(err)
			}
			row := 4 * w.Width
			for r := range 11 {
				want := make([]byte, row)
				if r < 8 {
					copy(want, host[r%3*row:])
				}
				if !bytes.Equal(host[r*row:][:row], want) {
					t.Errorf("%v: row %d", op.Site(), r)
				}
			}
			if bytes.Count(host[:row], []byte{0}) == row {
				t.Errorf("%v: the cache is empty", op.Site())
			}
		}
	}
}
