package shadow

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// scribble adds 1 to element i of a buffer.
func scribble(b engine.Buffer, i int) {
	host, _ := b.Host()
	num.PutFloat32(b.DType(), host, i, num.Float32At(b.DType(), host, i)+1)
}

// programOf finds ops in a session, by site and layer.
func programOf(s *engine.Session, site string, layer int) engine.Op {
	for _, op := range s.Program() {
		if op.Site().Name == site && op.Site().Layer == layer {
			return op
		}
	}
	return nil
}

// Bytes that change on their way are born between two ops, once, and nobody else is accused.
func TestCustody(t *testing.T) {
	var s *engine.Session // the one that is followed
	during := func(site string, layer, step int, change func()) func(engine.Backend) *faulty {
		return func(b engine.Backend) *faulty {
			return &faulty{Backend: b, after: func(op engine.Op) {
				if at := op.Site(); at.Name == site && at.Layer == layer && at.Step == step {
					change()
				}
			}}
		}
	}
	out := func(site string, layer int) engine.Buffer {
		outs, _ := programOf(s, site, layer).Operands(nil, nil)
		return outs[0].Buffer
	}
	for _, c := range []struct {
		name                      string
		fault                     func(engine.Backend) *faulty
		site, writer, reader, why string
		operand                   string
		bad                       int
	}{
		{"an op writes beyond its own", during("gate", 3, 2, func() { scribble(out("attn_residual", 3), 7) }),
			"gate", "step 2 layer 3 attn_residual", "step 2 layer 3 layer_out", "changed while step 2 layer 3 gate was run", "a", 1},
		{"an op changes what it reads", during("act", 3, 2, func() { scribble(out("up", 3), 7) }),
			"act", "step 2 layer 3 up", "step 2 layer 3 act", "changed while step 2 layer 3 act was run", "up", 1},
		{"an old row of the cache", during("gate", 1, 2, func() { scribble(out("kv_write", 0), 0) }),
			"gate", "step 0 layer 0 kv_write", "step 3 layer 0 scores", "changed while step 2 layer 1 gate was run", "k", 1},
		{"nobody reads it any more", during("layer_out", 7, 9, func() { scribble(out("kv_write", 0), 0) }),
			"layer_out", "step 0 layer 0 kv_write", "nobody", "", "kcache", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := open(t, "tiny-gemma2")
			s = session(t, m, c.fault(cpu(t)), len(story))
			w := Follow(s, session(t, m, cpu(t), len(story)))
			w.Judge(true)
			feed(t, s, story, 9)
			expectBetween(t, w, c.site, c.operand, c.writer, c.reader, c.why, c.bad)
		})
	}
	t.Run("between two passes", func(t *testing.T) {
		m := open(t, "tiny-gemma2")
		s = session(t, m, cpu(t), len(story))
		w := Follow(s, session(t, m, cpu(t), len(story)))
		feed(t, s, story[:9], 4)
		scribble(out("kv_write", 2), 3)
		if _, err := s.Step(story[9]); err != nil {
			t.Fatal(err)
		}
		expectBetween(t, w, "lm_head", "k", "step 0 layer 2 kv_write", "step 5 layer 2 scores", "between two passes", 1)
	})
	t.Run("between two ops", func(t *testing.T) {
		m := open(t, "tiny-gemma2")
		s = session(t, m, cpu(t), len(story))
		w := Follow(s, session(t, m, cpu(t), len(story)))
		tap := s.Tap
		s.Tap = func(op engine.Op) { // a result that arrives after it was read
			tap(op)
			if at := op.Site(); at.Name == "gate" && at.Layer == 2 && at.Step == 3 {
				scribble(out("gate", 2), 5)
			}
			if at := op.Site(); at.Name == "up" && at.Layer == 4 && at.Step == 3 {
				scribble(out("up", 4), 5)
			}
		}
		feed(t, s, story, 9)
		list := w.Findings()
		if len(list) != 2 || list[0].Site != "up" || list[1].Site != "act" || list[1].Between.Writer != "step 3 layer 4 up" || list[1].Between.Reader != "step 3 layer 4 act" {
			t.Errorf("got %+v", list)
		}
	})
	t.Run("an op is judged if it writes beyond its own", func(t *testing.T) {
		m := open(t, "tiny-gemma2")
		s = session(t, m, during("gate", 3, 2, func() {
			scribble(out("gate", 3), 5)
			scribble(out("attn_residual", 3), 7)
		})(cpu(t)), len(story))
		w := Follow(s, session(t, m, cpu(t), len(story)))
		feed(t, s, story, 9)
		list := w.Findings()
		if len(list) != 2 || list[0].Site != "gate" || list[0].Between != nil || list[1].Site != "gate" || list[1].Between == nil || w.Ops() != 1 {
			t.Errorf("%d ops judged, got %+v", w.Ops(), list)
		}
	})
	t.Run("not reset", func(t *testing.T) {
		m := open(t, "tiny-gemma2")
		s = session(t, m, cpu(t), 2*len(story))
		feed(t, s, story, 9)
		w := Follow(s, session(t, m, cpu(t), 2*len(story)))
		if _, err := s.Step(story[0]); err != nil {
			t.Fatal(err)
		}
		f := w.Findings()
		if len(f) != 16 || f[0].Site != "scores" || f[0].Between.Writer != "nobody" || f[0].Bad != len(story)*64 {
			t.Errorf("want the 16 caches' %d rows, got %+v", len(story), f)
		}
	})
}

func expectBetween(t *testing.T, w *Watch, site, operand, writer, reader, why string, bad int) {
	t.Helper()
	w.Stop()
	if w.Err() != nil {
		t.Fatal(w.Err())
	}
	list := w.Findings()
	if len(list) != 1 {
		t.Fatalf("want one finding, got %+v", list)
	}
	f := list[0]
	if f.Site != site || f.Operand != operand || f.Between == nil || *f.Between != (Between{writer, reader}) || f.Bad != bad ||
		!slices.ContainsFunc(append(f.Why, ""), func(s string) bool { return strings.Contains(s, why) }) || why != "" && len(f.Why) == 0 {
		t.Errorf("want %d elements of %s at %s, between %s and %s, because %s; got %+v", bad, operand, site, writer, reader, why, f)
	}
}

// A weight that is not the file's is named at its first reader.
func TestWeights(t *testing.T) {
	const name = "decoder/layer_2/self_attention/linear_1/weight" // [128 128]
	for _, c := range []struct {
		why    string
		change func(m *ctconv.Model, data []byte)
	}{
		{"the file's w of layer 5 o_proj", func(m *ctconv.Model, data []byte) {
			other, _ := m.Tensor("decoder/layer_5/self_attention/linear_1/weight")
			copy(data, other.Data)
		}},
		{"all changed elements are 0", func(_ *ctconv.Model, data []byte) { clear(data[len(data)/2:]) }},
		{"they are the elements 1 after", func(_ *ctconv.Model, data []byte) { copy(data, data[2:]) }},
		{"they are the elements 128 before", func(_ *ctconv.Model, data []byte) { copy(data[256:], bytes.Clone(data)) }},
		{"they are transposed", func(_ *ctconv.Model, data []byte) {
			was := bytes.Clone(data)
			for i := range 128 * 128 {
				copy(data[2*i:], was[2*(i%128*128+i/128):][:2])
			}
		}},
		{"the right ones times 1.15", func(_ *ctconv.Model, data []byte) {
			for i := 128 * 3; i < 128*4; i++ {
				num.PutFloat32(num.Float16, data, i, num.Float32At(num.Float16, data, i)*1.15)
			}
		}},
	} {
		t.Run(c.why, func(t *testing.T) {
			m := open(t, "tiny-gemma2")
			b := &faulty{Backend: cpu(t), upload: func(x ctconv.Tensor) ctconv.Tensor {
				if x.Name == name {
					x.Data = bytes.Clone(x.Data)
					c.change(m, x.Data)
				}
				return x
			}}
			for _, judge := range []bool{false, true} {
				s := session(t, m, b, len(story))
				w := Follow(s, session(t, m, cpu(t), len(story)))
				w.Judge(judge)
				feed(t, s, story, 3)
				w.Stop()
				list := w.Findings()
				if len(list) != 1 || list[0].Site != "o_proj" || list[0].Layer != 2 || list[0].Step != 0 || list[0].Operand != "w" ||
					*list[0].Between != (Between{"the file", "step 0 layer 2 o_proj"}) || !slices.ContainsFunc(list[0].Why, func(s string) bool { return strings.Contains(s, c.why) }) {
					t.Errorf("got %+v", list)
				}
			}
		})
	}
}

// What a session is fed is held to the text.
func TestIDs(t *testing.T) {
	m := open(t, "tiny-gemma2")
	s, twin := session(t, m, cpu(t), 2*len(story)), session(t, m, cpu(t), 2*len(story))
	w := Follow(s, twin)
	w.Text = story
	feed(t, s, story[1:], 3)
	f := w.Findings()
	if len(f) != 1 || f[0].Site != "embed" || *f[0].Between != (Between{"the prompt", "step 0 embed"}) || f[0].Worst.Want != 2 || f[0].Worst.Got != 296 ||
		!slices.Contains(f[0].Why, "they are the text without its first token, 2") {
		t.Errorf("BOS dropped: got %+v", f)
	}
	w.Stop()
	if err := s.Reset(); err != nil {
		t.Fatal(err)
	}
	w = Follow(s, twin)
	feed(t, twin, story, 3)
	feed(t, s, append(slices.Clone(story[:13]), 5), 3)
	f = w.Findings()
	if len(f) != 1 || *f[0].Between != (Between{"step 2 sample", "step 3 embed"}) || f[0].Worst.Want != 350 || f[0].Worst.Got != 5 {
		t.Errorf("another token: got %+v", f)
	}
}
