// Package parity compares two backends on one model: tokens, gates, shadow, substitution, legs, verdict.
//
// The reference decodes greedily and the candidate is fed the reference's tokens, so that one disagreement does not become
// a hundred. Where they choose different tokens the candidate also decodes freely, to show what it would have said.
// What may differ is not a constant: see noise.go.
//
// Then every op is held to its own bound and every byte to who wrote it (investigate.go); what is found is proved by moving ops to the other
// backend (substitution.go); and each backend is held to itself (legs.go).
package parity

import (
	"context"
	"fmt"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
)

// Schema names the JSON form of a Comparison.
const Schema = "llmrun.compare/1"

// Verdict is the word that every output says.
type Verdict string

// The verdicts.
const (
	Match        Verdict = "MATCH"
	Diverged     Verdict = "DIVERGED"
	Inconclusive Verdict = "INCONCLUSIVE" // the run could not have told
)

// The exit codes that go with the verdicts.
const (
	ExitMatch        = 0
	ExitDiverged     = 1
	ExitInconclusive = 3
	ExitInterrupted  = 130
)

// Prompt is what a comparison decodes from.
type Prompt struct {
	ID  string
	IDs []int // at least one
	BOS int   // the id that this model's prompts begin with; -1: none
}

// Options says how to compare, and what counts.
type Options struct {
	Quantized    bool // linears multiply int8 by int8 on both sides
	MaxTokens    int
	EOS          []int             // ids that end a text; the end token is compared, too
	Special      func(id int) bool // ids that are no text; nil: none
	Strict       bool              // near and exact ties count as divergences
	AllowVacuous bool              // exit 0 where the verdict is INCONCLUSIVE because of vacuous prompts
	RequireAll   bool              // INCONCLUSIVE if any prompt is vacuous, not only if all are
	// Progress, if set, is told how many of all the steps are done, and for which prompt.
	Progress func(prompt string, done, total int)

	Reference, Candidate Side
	Together             bool // the candidate decodes a token, and is followed, while the reference is: faster, even where they share their cores

	Shadow     ShadowMode      // which ops are computed again in float64, and whose inputs are kept under custody
	Substitute bool            // prove a culprit by moving ops to the other backend
	Families   []engine.Family // move these, one at a time, and not those that the culprit suggests
	Legs       []string        // see LegNames: the tests of each backend against itself
	LegsAsked  bool            // a leg that cannot be measured makes the run INCONCLUSIVE
	// Open, if set, opens another backend like a side's ("reference" or "candidate"): for legs that need a second one, and to go on
	// after a backend has failed. Compare closes it.
	Open  func(side string) (engine.Backend, error)
	Trace *engine.Trace // of both sides, as they decode; nil: none
	// Working, if set, is told what is investigated, and how many of all ops or runs are done.
	Working func(what string, done, total int)
}

// compute is what is computed on b.
func (o Options) compute(b engine.Backend) engine.Compute {
	return engine.Compute{Activations: b.Activations(), Quantized: o.Quantized}
}

// Side is what a side does in its own way and not as it should: a mistake made on purpose. The zero Side makes none.
type Side struct {
	Prompt func(ids []int) []int       // what it is fed instead of a prompt
	Choose func(logits []float32) int  // its sampler; nil: engine.Greedy
	Reset  func(*engine.Session) error // how it forgets a text; nil: Session.Reset
}

// ShadowMode says which ops are judged.
type ShadowMode string

// The modes.
const (
	ShadowOff  ShadowMode = ""     // none
	ShadowAuto ShadowMode = "auto" // those of the first steps and of the first suspicious one
	ShadowAll  ShadowMode = "all"  // those of every step of every prompt
)

// Comparison is a finished comparison: plain data, and its JSON form.
type Comparison struct {
	Schema    string  `json:"schema"`
	Verdict   Verdict `json:"verdict"`
	Exit      int     `json:"exit"`
	Model     Model   `json:"model"`
	Reference Backend `json:"reference"`
	Candidate Backend `json:"candidate"`
	Fault     string  `json:"fault,omitempty"` // the mistake made on purpose, by its id
	Env       any     `json:"env,omitempty"`   // the machine: not part of what two runs have in common

	MaxTokens   int      `json:"max_tokens"`
	Strict      bool     `json:"strict"`
	Interrupted bool     `json:"interrupted"`
	Gates       []Gate   `json:"gates"`
	Prompts     []Result `json:"prompts"`
	Kept        int      `json:"kept"`   // prompts that are not vacuous
	Reason      string   `json:"reason"` // for the verdict, in words; empty for a match

	Culprit      *Culprit       `json:"culprit"`
	Shadow       []Shadow       `json:"shadow"`       // the sides that were followed
	Substitution []Substitution `json:"substitution"` // the proof
	Legs         []Leg          `json:"legs"`
	Why          string         `json:"why"` // the culprit's reason, where the numbers prove one

	accused int // index of the culprit's prompt
}

// Model says which model was compared.
type Model struct {
	Name     string `json:"name"`
	Dir      string `json:"dir"`              // "" if embedded
	SHA256   string `json:"sha256,omitempty"` // of model.bin
	Spec     string `json:"spec"`
	Revision int    `json:"revision"`
}

// Backend says what a side ran on.
type Backend struct {
	Backend     string `json:"backend"`
	Device      string `json:"device,omitempty"`
	ComputeType string `json:"compute_type"`
	Host        bool   `json:"host"` // Metal's host device, on a machine without Metal
}

// Gate is a condition under which the run could have failed at all. It is about the prompts that decide: those that
// are left when the vacuous ones are taken out, or all, if none is left.
type Gate struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	Why  string `json:"why"` // "" if ok
}

// Result is what became of one prompt.
type Result struct {
	ID           string        `json:"id"`
	IDs          []int         `json:"ids"`
	ReferenceIDs []int         `json:"reference_ids"`
	CandidateIDs []int         `json:"candidate_ids"` // as the candidate decodes by itself
	Matched      int           `json:"matched"`       // steps with the same token
	Compared     int           `json:"compared"`      // steps where both sides had finite logits
	FirstFlip    *int          `json:"first_flip"`    // the first step that is a divergence
	Noise        ctconv.Number `json:"noise"`         // what rounding did to the reference's logits, the largest of all steps
	Allowed      ctconv.Number `json:"allowed"`       // max|Δlogit| that rounding explains
	Beyond       int           `json:"beyond"`        // steps with the same token and a max|Δlogit| beyond Allowed
	Vacuous      []string      `json:"vacuous"`       // why agreement on this prompt proves nothing; empty: it does
	NonFinite    []NonFinite   `json:"nonfinite"`
	Steps        []Step        `json:"steps"`

	bos    string // a BOS that is wanted and missing, "<bos>=2"
	judged bool   // every op of every step, in int8
}

// NoToken stands for the id of a step without one: the logits were not finite, or the side had stopped before.
const NoToken = -1

// Step is one decoded token.
type Step struct {
	Step        int `json:"step"` // as engine.Site numbers them
	ReferenceID int `json:"reference_id"`
	CandidateID int `json:"candidate_id"` // on the reference's tokens
	// Margin is the reference's highest logit minus its second; Gap is its highest minus its logit of the candidate's choice.
	Margin ctconv.Number `json:"margin"`
	Gap    ctconv.Number `json:"gap"`
	KL     ctconv.Number `json:"kl"`      // of the reference's distribution from the candidate's, nats
	MaxAbs ctconv.Number `json:"max_abs"` // max|Δlogit|
	Top    int           `json:"top5"`    // of the five best ids, how many both sides have
	Noise  ctconv.Number `json:"noise"`   // max|Δlogit| that rounding made on the reference

	ReferenceNonFinite int   `json:"reference_nonfinite"` // logits that are NaN or infinite
	CandidateNonFinite int   `json:"candidate_nonfinite"`
	Class              Class `json:"class"`

	sampled bool // a side chose another id than Greedy does
}

// Class is what a step shows.
type Class string

// The classes. A tie is a different token that rounding explains; it is exact where the reference's two logits are equal.
const (
	ClassMatch      Class = "match"
	ClassNearTie    Class = "near-tie"
	ClassExactTie   Class = "exact-tie"
	ClassFlip       Class = "flip"
	ClassNonFinite  Class = "nonfinite"
	ClassUnmeasured Class = "unmeasured" // after the candidate stopped
)

// NonFinite says that a side stopped: NaN and infinite logits never become a token.
type NonFinite struct {
	Side  string `json:"side"` // "reference" or "candidate"
	Step  int    `json:"step"`
	Count int    `json:"count"` // of the logits
	Of    int    `json:"of"`
	Own   bool   `json:"own_tokens"` // the candidate was decoding freely
	Birth *Birth `json:"birth"`      // nil: a second run was finite
}

// Birth is the first op whose output was not finite.
type Birth struct {
	Step   int     `json:"step"`
	Layer  int     `json:"layer"` // -1 outside the layers
	Site   string  `json:"site"`
	Family string  `json:"family"`
	Op     string  `json:"op,omitempty"` // the function of an activation
	Count  int     `json:"count"`
	Of     int     `json:"of"`
	First  int     `json:"first"`            // index of the first one in the output
	Value  string  `json:"value,omitempty"`  // NaN, Inf or -Inf; "" if a second run did not show it
	Inputs []Input `json:"inputs,omitempty"` // of an op that works element by element, at that index
}

// Input is one element that an op read.
type Input struct {
	Name  string        `json:"name"`
	Value ctconv.Number `json:"value"`
}

// Compare decodes every prompt on both backends and judges. The model is loaded once on each; a second session on
// the reference measures rounding, with the same weights. If ctx ends, what was finished is judged and no error is returned.
func Compare(ctx context.Context, m *ctconv.Model, reference, candidate engine.Backend, prompts []Prompt, o Options) (*Comparison, error) {
	r, err := newRun(m, reference, candidate, prompts, o)
	if err != nil {
		return nil, err
	}
	c := &Comparison{Schema: Schema, MaxTokens: o.MaxTokens, Strict: o.Strict, Prompts: []Result{}, Shadow: []Shadow{}, Substitution: []Substitution{}, Legs: []Leg{},
		Reference: Backend{Backend: reference.Name(), ComputeType: o.compute(reference).String()},
		Candidate: Backend{Backend: candidate.Name(), ComputeType: o.compute(candidate).String()},
		Model:     Model{Name: m.Dir, Dir: m.Dir, Spec: m.Spec, Revision: m.Revision},
	}
	if err := r.all(ctx, c); err != nil {
		return nil, err
	}
	c.judge(o, len(prompts))
	return c, nil
}

// all decodes every prompt, and looks into what it finds.
func (r *run) all(ctx context.Context, c *Comparison) error {
	defer func() { c.Interrupted = ctx.Err() != nil }()
	for i, p := range r.prompts {
		result, err := r.prompt(ctx, p, i)
		if ctx.Err() != nil {
			break
		}
		if result != nil {
			c.Prompts = append(c.Prompts, *result)
		}
		if err == nil {
			continue
		}
		if !r.failure(ctx, c, i, err) {
			return fmt.Errorf("prompt %s: %w", p.ID, err)
		}
		break // the side is gone
	}
	c.classify(r.Options)
	if ctx.Err() != nil {
		return nil
	}
	if c.Culprit == nil {
		if err := r.investigate(ctx, c); err != nil && ctx.Err() == nil && !r.failure(ctx, c, c.suspect().prompt, err) {
			return fmt.Errorf("follow the ops: %w", err)
		}
	}
	if err := r.substitute(ctx, c); err != nil && ctx.Err() == nil {
		return fmt.Errorf("substitute: %w", err)
	}
	if err := r.test(ctx, c); err != nil && ctx.Err() == nil {
		return fmt.Errorf("legs: %w", err)
	}
	return nil
}
