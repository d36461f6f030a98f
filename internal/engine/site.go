// Package engine is the decoder as the papers write it: a list of ops over buffers, built from what a
// converted file holds, that any Backend can run.
package engine

import "fmt"

// Family groups the ops that one substitution moves together. A site belongs to one family.
type Family string

// The families, in the order of a layer.
const (
	FamilyEmbed      Family = "embed"
	FamilyNorm       Family = "norm"
	FamilyLinear     Family = "linear"
	FamilyRoPE       Family = "rope"
	FamilyKV         Family = "kv"
	FamilyScores     Family = "scores"
	FamilySoftmax    Family = "softmax"
	FamilyContext    Family = "context"
	FamilyActivation Family = "activation"
	FamilyResidual   Family = "residual"
	FamilyLMHead     Family = "lm_head"
	FamilySample     Family = "sample"
)

// Families lists all families in order.
var Families = []Family{FamilyEmbed, FamilyNorm, FamilyLinear, FamilyRoPE, FamilyKV, FamilyScores,
	FamilySoftmax, FamilyContext, FamilyActivation, FamilyResidual, FamilyLMHead, FamilySample}

// Site is where an op runs: which step, which layer (NoLayer outside the layers) and under which name.
//
// Steps are numbered as CTranslate2 feeds a prompt: step 0 prefills all prompt tokens but the last,
// step 1 feeds the last one alone and yields the first generated token, step 2 feeds that token.
// A one-token prompt has no step 0.
type Site struct {
	Step, Layer int
	Name        string
}

// NoLayer is the Layer of the sites before and after the layers.
const NoLayer = -1

// Sites lists the site names in the order in which a pass visits them. A model visits those that its file asks for.
var Sites = []string{"embed", "attn_norm", "qkv", "q_norm", "k_norm", "q_rope", "k_rope", "kv_write", "scores",
	"softmax", "context", "o_proj", "post_attn_norm", "attn_residual", "ffn_norm", "gate", "up", "act", "down",
	"post_ffn_norm", "layer_out", "final_norm", "lm_head", "logits"}

func (s Site) String() string {
	if s.Layer == NoLayer {
		return fmt.Sprintf("step %d %s", s.Step, s.Name)
	}
	return fmt.Sprintf("step %d layer %d %s", s.Step, s.Layer, s.Name)
}

// Pass is what changes from one run of a decoder's program to the next. All ops of a program share one.
type Pass struct {
	Step int // see Site
	Rows int // tokens in this pass
	Pos  int // position of the first one: how many tokens were seen before
	Span Span
}

// Span says which keys a pass attends to, as CTranslate2 does it (ct2-format: "sliding window, what really happens").
// The zero Span is a prompt's first chunk, where every token sees all before it and itself.
type Span struct {
	Decode     bool // one token at a time: a layer with a window sees its last `window` keys, itself included
	Chunk      int  // the prompt is fed in chunks of so many tokens (0: in one piece)
	ChunkStart int  // position of the first token of the chunk that this pass belongs to
}

// Keys gives the keys [from, to) that the pass's first token attends to in a layer with that window (0: none);
// the token of row r attends to [from, to+r).
//
// In a chunk after the first, CTranslate2 lets the token at offset j of the chunk see the first Chunk+1+j
// keys that its cache holds. A layer with a window caches the last Chunk keys before the chunk, so that is a causal
// mask over up to twice the window. A layer without a window caches everything, so from the third chunk on its
// tokens see the oldest keys only, and not themselves: CTranslate2's defect, which this follows.
func (p *Pass) Keys(window int) (from, to int) {
	switch s := p.Span; {
	case s.Decode:
		to = p.Pos + 1
		if window > 0 {
			from = max(0, to-window)
		}
	case s.ChunkStart == 0:
		to = p.Pos + 1
	default:
		if window > 0 {
			from = s.ChunkStart - s.Chunk
		}
		to = from + s.Chunk + 1 + p.Pos - s.ChunkStart
	}
	return from, to
}
