package parity

import "llmrun/internal/shadow"

// Shadow is what following a side op by op saw.
type Shadow struct {
	Side     string           `json:"side"`   // "candidate" or "reference"
	Prompt   string           `json:"prompt"` // the id of the prompt that was followed
	Steps    []int            `json:"steps"`  // whose ops were judged
	Ops      int              `json:"ops"`    // how many were judged
	Findings []shadow.Finding `json:"findings"`
	Cells    []shadow.Cell    `json:"cells"`
	Worst    *shadow.Cell     `json:"worst"` // the op that came nearest to its bound, or farthest beyond
}

// Culprit is the first birth, on the side that is accused, and its proof.
type Culprit struct {
	Side   string `json:"side"`   // "candidate" or "reference"
	Prompt string `json:"prompt"` // the id of the prompt that shows it
	shadow.Finding
	Others    int      `json:"others"`    // further births: ops that are beyond their bounds by themselves
	Confirmed bool     `json:"confirmed"` // moving its family to the other backend heals, and no unrelated move does
	Heals     []string `json:"heals"`     // the substitutions that heal, by name
}

// Substitution is the candidate decoding again with something changed.
type Substitution struct {
	Name     string   `json:"name"` // "act → cpu", "norms → cpu", "sync after every op", "outputs zeroed first"
	Families []string `json:"families"`
	Matched  int      `json:"matched"`  // steps with the reference's token and logits within rounding
	Compared int      `json:"compared"` // steps that were tried
	Heals    bool     `json:"heals"`
	Note     string   `json:"note,omitempty"` // what the numbers do not say
}

// LegState is how a leg ended.
type LegState string

// The states of a leg.
const (
	LegHolds      LegState = "holds"
	LegBroken     LegState = "broken"
	LegUnmeasured LegState = "UNMEASURED"
)

// Leg is a backend tested against itself.
type Leg struct {
	Name    string   `json:"name"` // "cache", "m1", "warm", "probe", "concurrent"
	What    string   `json:"what"` // "cached ≡ recomputed"
	Side    string   `json:"side"` // "candidate" or "reference"
	Backend string   `json:"backend"`
	State   LegState `json:"state"`
	Bits    bool     `json:"bits"` // it holds to the last bit
	Why     string   `json:"why"`  // where it breaks, or why it could not be measured
}
