// Package shadow finds where an error is born. It follows a session op by op: each op is computed again in float64 from
// the inputs that it really had, and its output held to its own bound; and what an op reads must be, bit for bit, what its producer
// wrote, or what the file holds. So an arithmetic error is born at an op, and a stale buffer, a lost sync or a stray write
// between two ops. An op that only hands on what it was given is innocent, however wrong its output.
package shadow

import "llmrun/internal/ctconv"

// Finding is one birth: an op whose output is beyond its own bound, or bytes that changed between two ops. The site is the op that did
// it: the one that was run when the bytes changed, though it had no business with them. If they changed while none was, or differ from
// the file, it is the op that found them so.
type Finding struct {
	Step    int      `json:"step"`
	Layer   int      `json:"layer"` // -1 outside the layers
	Site    string   `json:"site"`
	Family  string   `json:"family"`
	Op      string   `json:"op"`                // the kind of op, with its function: "linear", "gelu_tanh"
	Between *Between `json:"between,omitempty"` // the bytes changed on their way; nil: the arithmetic is wrong
	Operand string   `json:"operand"`           // of the op: what it wrote; if Between is set, of the reader, or of the writer while nobody has read it
	// Elements is how many the operand has; Bad how many are beyond their bounds (or changed), NonFinite how many of those are NaN or infinite.
	Elements  int           `json:"elements"`
	Bad       int           `json:"bad"`
	NonFinite int           `json:"nonfinite"`
	Ratio     ctconv.Number `json:"ratio"` // the worst element's error over what is allowed; infinite for NaN and for changed bytes
	Worst     Worst         `json:"worst"`
	Why       []string      `json:"why"` // what the numbers prove, in words; empty: nothing is proved
}

// Between says on whose way bytes changed.
type Between struct {
	Writer string `json:"writer"` // a site; or "the file", "the prompt", or "nobody" where an op reads what was not written in this text
	Reader string `json:"reader"` // a site, or "nobody" if the bytes were not read until the end
}

// Worst is the worst element.
type Worst struct {
	Row     int           `json:"row"`
	Col     int           `json:"col"`
	Inputs  []Input       `json:"inputs"` // what it was made of, where that is few values
	Want    ctconv.Number `json:"want"`
	Got     ctconv.Number `json:"got"`
	Error   ctconv.Number `json:"error"`
	Allowed ctconv.Number `json:"allowed"`
}

// Input is one value that an element was made of.
type Input struct {
	Name  string        `json:"name"`
	Value ctconv.Number `json:"value"`
}

// Cell is what one pass saw of one layer: the page's heatmap is made of these.
type Cell struct {
	Step  int           `json:"step"`
	Layer int           `json:"layer"`
	Ratio ctconv.Number `json:"ratio"` // worst error over allowed of its ops
	Site  string        `json:"site"`  // of that op
	Bad   int           `json:"bad"`   // ops beyond their bounds, or with changed inputs
}
