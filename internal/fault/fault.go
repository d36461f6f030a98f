// Package fault is a catalogue of mistakes made on purpose, each one that real authors of kernels and backends have made:
// llmrun compare must see each of them, and give it its name. scripts/faults scores how well it does.
package fault

import (
	"fmt"
	"slices"
	"strings"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/near"
)

// Fault is one mistake. It changes nothing on disk: shaders are changed when they are compiled, backends are wrapped.
type Fault struct {
	ID   string
	Kind Kind
	What string // the mistake

	Edits    []Edit // of shaders
	FastMath bool   // compile with Metal's fast math
	Fused    bool   // the candidate runs fused kernels; without it, what Edits break are the plain ones, and it runs those
	MPS      bool   // Apple's MPS multiplies the candidate's matrices
	// Wrap makes the mistake around a backend. What it keeps in mind belongs to the backend that it returns.
	Wrap      func(engine.Backend) engine.Backend
	Prompt    func(ids []int) []int       // what the side is fed instead of the prompt
	Choose    func(logits []float32) int  // how the side chooses its token; nil: engine.Greedy
	Reset     func(*engine.Session) error // how the side forgets a text; nil: Session.Reset
	Reference bool                        // the mistake is the reference's, not the candidate's

	Model       string // what shows the mistake; "": the default model
	ComputeType string // "": float32
	Text        string // a prompt, or ids with commas between; "": the built-in prompts
	// Amend changes the model for both sides, where no model at hand asks for what the mistake is about; nil: nothing to change.
	Amend func(*ctconv.Model)

	Want Want
}

// Kind says where a mistake is made.
type Kind string

// The kinds.
const (
	Kernel     Kind = "kernel"     // in the text of a shader
	Engine     Kind = "engine"     // around a backend: weights, cache, order, what is fed and what is chosen
	Instrument Kind = "instrument" // in how it is measured
)

// Edit replaces a text that a shader has exactly once.
type Edit struct{ File, Old, New string } // File is a name in package shaders

// All lists the catalogue, kind by kind.
func All() (all []Fault) {
	for _, part := range []struct {
		kind   Kind
		faults []Fault
	}{
		{Kernel, elementFaults}, {Kernel, normFaults}, {Kernel, linearFaults}, {Kernel, gemmFaults}, {Kernel, int8Faults}, {Kernel, mpsFaults}, {Kernel, attentionFaults}, {Kernel, fusedFaults},
		{Engine, opFaults}, {Engine, int8OpFaults}, {Engine, bufferFaults}, {Engine, weightFaults}, {Instrument, instrumentFaults},
	} {
		for _, f := range part.faults {
			f.Kind = part.kind
			all = append(all, f)
		}
	}
	return all
}

// Find gives the fault with that id.
func Find(id string) (Fault, error) {
	all := All()
	ids := make([]string, len(all))
	for i, f := range all {
		if f.ID == id {
			return f, nil
		}
		ids[i] = f.ID
	}
	return Fault{}, &unknownError{id, near.One(id, ids, "")}
}

// Edit makes the mistake in a shader's text; file is its name in package shaders. A text that has not exactly one place for an edit is
// an error: the fault would test nothing, or more than it says.
func (f Fault) Edit(file, source string) (string, error) {
	for _, e := range f.Edits {
		if e.File != file {
			continue
		}
		if n := strings.Count(source, e.Old); n != 1 {
			return "", fmt.Errorf("fault %s: %s: want %q once, found it %d times", f.ID, file, e.Old, n)
		}
		source = strings.Replace(source, e.Old, e.New, 1)
	}
	return source, nil
}

// IDs gives the prompt as ids, if Text is a list of them.
func (f Fault) IDs() bool {
	return f.Text != "" && !slices.ContainsFunc([]rune(f.Text), func(r rune) bool { return r != ',' && (r < '0' || r > '9') })
}

// in is one edit, or several of the same file: old, new, old, new …
func in(file string, texts ...string) (edits []Edit) {
	for i := 0; i < len(texts); i += 2 {
		edits = append(edits, Edit{file, texts[i], texts[i+1]})
	}
	return edits
}

// amended gives the variables whose names end so another value, little-endian, of the same size.
func amended(suffix string, value ...byte) func(*ctconv.Model) {
	return func(m *ctconv.Model) {
		for name, t := range m.Tensors {
			if strings.HasSuffix(name, suffix) {
				t.Data = value
				m.Tensors[name] = t
			}
		}
	}
}

// Prompts and models that show a fault where the defaults do not, or not as fast.
const (
	once = "Once upon a time"
	// sentence has enough tokens for gemm.metal.
	sentence = "Once upon a time, there was a little girl named Lily. She loved to play outside."
	// long has more than 64 tokens.
	long = "The little Red Hen was in the farmyard with her chickens, when she found a grain of wheat.\n\"Who will plant this wheat?\" she said.\n" +
		"\"Not I,\" said the Goose.\n\"Not I,\" said the Duck.\n\"I will, then,\" said the little Red Hen, and she planted the grain of wheat."
	seven = "1,87,87,40,27,34,60" // for the golden models, which have no tokenizer

	qwen   = "tiny-qwen2"
	golden = "testdata/golden/"
)

type unknownError struct{ id, nearest string }

func (e *unknownError) Error() string { return fmt.Sprintf("fault %q: there is no such fault", e.id) }

// Hint names the nearest fault, or how to list them.
func (e *unknownError) Hint() string {
	if e.nearest == "" {
		return "llmrun compare --list-faults"
	}
	return "llmrun compare --fault " + e.nearest
}
