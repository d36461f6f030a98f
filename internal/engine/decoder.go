package engine

import (
	"fmt"
	"math"
	"sync"

	"llmrun/internal/ctconv"
)

func sqrt32(x float32) float32 { return float32(math.Sqrt(float64(x))) }

// Config is what a decoder computes, as far as a file says it once for all layers.
type Config struct {
	Vocabulary   int // rows of the embedding
	Dim          int // width of the residual stream
	Layers       int
	Heads        int // query heads
	Chunk        int // CTranslate2 feeds prompts in chunks of so many tokens; 0: in one piece
	Activation   Function
	EmbedScale   float32
	LogitCap     float32 // soft cap of the logits; 0: none
	MaxPositions int     // learned positions: how many there are; 0: no limit
	FourNorms    bool    // norms after attention and feed-forward too (Gemma 2, Gemma 3)
}

// Decoder is a model's weights on a backend. Sessions share it, and may each be used by a goroutine of their own: their passes take turns.
type Decoder struct {
	Config
	turn      sync.Mutex // who holds it uses the backend
	backend   Backend
	embed     Matrix
	positions Buffer // learned ones, float32 [MaxPositions, Dim], or nil
	layers    []layer
	norm      norm // final
	head      linear
}

// layer is one block's weights, under our names; the file's names meet ours in readLayer.
type layer struct {
	attention
	attnNorm, ffnNorm         norm
	postAttnNorm, postFFNNorm *norm // four-norm block
	gate, down                linear
	up                        *linear // gated feed-forward
	ffn                       int     // inner width
}

type attention struct {
	Attention
	angles
	qkv, oProj   linear
	qNorm, kNorm *norm
	scale        float32 // of q·k
}

// Load builds a decoder from what the file holds, with weights that are widened; nothing is guessed from a model's name. Variables that it
// does not understand are refused by name. The model must stay open while the decoder is used.
func Load(m *ctconv.Model, b Backend) (*Decoder, error) { return load(m, b, false) }

// Load builds a decoder as Load does, but computes it as c says, on a backend of c's activations. To quantize a file of floats means
// every matrix of it, and the backend then holds a copy of its own.
func (c Compute) Load(m *ctconv.Model, b Backend) (*Decoder, error) { return load(m, b, c.Quantized) }

func load(m *ctconv.Model, b Backend, quantized bool) (*Decoder, error) {
	w := &weights{m: m, b: b, quantized: quantized, used: map[string]bool{}, matrices: map[string]loaded{}}
	d := &Decoder{backend: b, Config: readConfig(w)}
	d.embed = w.matrix("decoder/embeddings/weight", -1, -1)
	d.Vocabulary, d.Dim = d.embed.Rows, d.embed.Cols
	d.EmbedScale = embedScale(w, d.Dim)
	d.readPositions(w)
	d.FourNorms = w.hasScope("decoder/layer_0/pre_feedforward_layer_norm")
	for ; w.hasScope(fmt.Sprintf("decoder/layer_%d", d.Layers)); d.Layers++ {
		d.layers = append(d.layers, readLayer(w, &d.Config, fmt.Sprintf("decoder/layer_%d", d.Layers)))
	}
	if d.Layers == 0 {
		w.fail(fmt.Errorf("%s: want decoder/layer_0/..., file has no layers", m.Dir))
	}
	d.norm = w.norm("decoder/layer_norm", d.Dim)
	d.head = w.linear("decoder/projection", d.Vocabulary, d.Dim)
	w.leftover()
	if w.err != nil {
		return nil, w.err
	}
	return d, b.Sync()
}

// readPositions reads learned positions. A file with neither these nor rotary ones asks for sinusoidal ones.
func (d *Decoder) readPositions(w *weights) {
	const learned, rotary = "decoder/position_encodings/encodings", "decoder/layer_0/self_attention/rotary_dim"
	if t, ok := w.m.Tensor(learned); ok {
		if len(t.Shape) != 2 || t.Shape[1] != d.Dim {
			w.fail(fmt.Errorf("%s: %s: want [positions %d], file has %v", w.m.Dir, learned, d.Dim, t.Shape))
			return
		}
		d.MaxPositions = t.Shape[0]
		d.positions = w.buffer(w.floats(learned, t.Shape...))
	} else if !w.has(rotary) {
		w.refuse(rotary+" is absent", "sinusoidal positions")
	}
}

func readConfig(w *weights) Config {
	c := Config{
		Heads:      w.integer("decoder/num_heads", 8),
		Activation: Function(w.integer("decoder/activation", 0)),
		Chunk:      w.integer("decoder/sliding_window", 0),
		LogitCap:   w.float("decoder/final_logit_softcapping", 0),
	}
	for _, option := range []struct {
		name   string
		absent bool
		built  bool
		what   string
	}{
		{"decoder/pre_norm", true, true, "norms after the sublayers"},
		{"decoder/alibi", false, false, "ALiBi"},
		{"decoder/start_from_zero_embedding", false, false, "a zero first embedding"},
	} {
		if w.flag(option.name, option.absent) != option.built {
			w.refuse(option.name, option.what)
		}
	}
	// Without ALiBi or cross-attention these change nothing.
	for _, name := range []string{"alibi_use_positive_positions", "scale_alibi", "alignment_layer", "alignment_heads"} {
		w.used["decoder/"+name] = true
	}
	for _, name := range []string{"unk_token", "bos_token", "eos_token"} { // binary versions before 6
		w.used[name] = true
	}
	if c.Activation < 0 || int(c.Activation) >= len(functions) {
		w.refuse("decoder/activation", fmt.Sprintf("activation %d", c.Activation))
	}
	if c.Heads < 1 {
		w.fail(fmt.Errorf("%s: decoder/num_heads: want at least 1, file has %d", w.m.Dir, c.Heads))
	}
	return c
}

// embedScale follows CTranslate2 (src/layers/transformer.cc): a flag means √dim or nothing, a float is the factor itself,
// and a file without either means √dim.
func embedScale(w *weights, dim int) float32 {
	const name, old = "decoder/scale_embeddings", "decoder/embeddings/multiply_by_sqrt_depth"
	w.used[old] = true
	variable := name
	if !w.has(name) {
		variable = old
	}
	t, ok := w.m.Tensor(variable)
	switch {
	case ok && t.DType.IsFloat():
		return w.float(variable, 1)
	case !ok || w.flag(variable, true):
		return sqrt32(float32(dim))
	}
	return 1
}

// readLayer reads layer scope ("decoder/layer_N"), where the file's names meet ours.
func readLayer(w *weights, c *Config, scope string) layer {
	l := layer{attention: readAttention(w, c, scope+"/self_attention")}
	if c.FourNorms {
		l.attnNorm = w.norm(scope+"/input_layer_norm", c.Dim)
		l.postAttnNorm = w.optionalNorm(scope+"/post_attention_layer_norm", c.Dim)
		l.ffnNorm = w.norm(scope+"/pre_feedforward_layer_norm", c.Dim)
		l.postFFNNorm = w.optionalNorm(scope+"/post_feedforward_layer_norm", c.Dim)
		if l.postAttnNorm == nil || l.postFFNNorm == nil {
			w.fail(fmt.Errorf("%s: %s: want four norms, file has only some of them", w.m.Dir, scope))
		}
	} else {
		if block := scope + "/input_layer_norm"; w.hasScope(block) {
			w.refuse(block, "the parallel block")
		}
		l.attnNorm = w.norm(scope+"/self_attention/layer_norm", c.Dim)
		l.ffnNorm = w.norm(scope+"/ffn/layer_norm", c.Dim)
	}
	l.gate = w.linear(scope+"/ffn/linear_0", -1, c.Dim)
	l.ffn = l.gate.w.Rows
	if up := scope + "/ffn/linear_0_noact"; w.hasScope(up) {
		u := w.linear(up, l.ffn, c.Dim)
		l.up = &u
	}
	l.down = w.linear(scope+"/ffn/linear_1", c.Dim, l.ffn)
	return l
}

func readAttention(w *weights, c *Config, scope string) attention {
	a := attention{Attention: Attention{Heads: c.Heads, KVHeads: w.integer(scope+"/num_heads_kv", c.Heads)}}
	if w.flag(scope+"/multi_query", false) {
		w.refuse(scope+"/multi_query", "the old multi-query layout")
	}
	if a.KVHeads < 1 || a.Heads%a.KVHeads != 0 {
		w.fail(fmt.Errorf("%s: %s/num_heads_kv: want a divisor of the %d query heads, file has %d", w.m.Dir, scope, a.Heads, a.KVHeads))
		return a
	}
	a.oProj = w.linear(scope+"/linear_1", c.Dim, -1)
	a.Dim = w.integer(scope+"/head_dim", c.Dim/a.Heads)
	if a.Dim < 1 || a.oProj.w.Cols != a.Heads*a.Dim && w.err == nil {
		w.fail(fmt.Errorf("%s: %s/linear_1/weight: want [%d %d] (%d heads of %d), file has [%d %d]",
			w.m.Dir, scope, c.Dim, a.Heads*a.Dim, a.Heads, a.Dim, a.oProj.w.Rows, a.oProj.w.Cols))
		return a
	}
	a.qkv = w.linear(scope+"/linear_0", (a.Heads+2*a.KVHeads)*a.Dim, c.Dim)
	a.qNorm = w.optionalNorm(scope+"/q_norm", a.Dim)
	a.kNorm = w.optionalNorm(scope+"/k_norm", a.Dim)
	a.scale = w.float(scope+"/queries_scale", 1/sqrt32(float32(a.Dim)))
	a.angles = w.angles(scope, a.Dim)
	a.Window = w.integer(scope+"/sliding_window", 0)
	// CTranslate2 leaves the rest undefined: it would read keys past its cache.
	if a.Window < 0 || a.Window > 0 && c.Chunk > 0 && a.Window != c.Chunk {
		w.fail(fmt.Errorf("%s: %s/sliding_window: want 0 or the decoder's %d, file has %d", w.m.Dir, scope, c.Chunk, a.Window))
	}
	return a
}
