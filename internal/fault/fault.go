// Package fault is a catalogue of mistakes made on purpose: llmrun compare must see each of them, and give it its name.
package fault

import (
	"fmt"
	"strings"

	"llmrun/internal/near"
)

// Fault is one mistake. It changes the text of the shader that ships, when that is compiled, and nothing on disk.
type Fault struct {
	ID   string
	What string // the mistake
	Seen string // where a comparison must first see it

	FastMath bool // compile with Metal's fast math
	file     string
	old, new string
}

var catalogue = []Fault{
	{
		ID: "gelu-unclamped",
		What: "GELU-tanh gives tanh its argument as it is; the fast tanh is (exp(2u)-1)/(exp(2u)+1), " +
			"and Inf/Inf = NaN once exp(2u) leaves float32",
		Seen:     "a NaN at site act, where the gate is above 10.06",
		FastMath: true,
		file:     "activate.metal", old: "clamp(u, -15.0f, 15.0f)", new: "u",
	},
}

// All lists the catalogue.
func All() []Fault { return append([]Fault(nil), catalogue...) }

// Find gives the fault with that id.
func Find(id string) (Fault, error) {
	ids := make([]string, len(catalogue))
	for i, f := range catalogue {
		if f.ID == id {
			return f, nil
		}
		ids[i] = f.ID
	}
	return Fault{}, &unknownError{id, near.One(id, ids, "")}
}

// Edit makes the mistake in a shader's text; file is its name in package shaders. A text that has not exactly one place for it is an error:
// the fault would test nothing, or more than it says.
func (f Fault) Edit(file, source string) (string, error) {
	if file != f.file {
		return source, nil
	}
	if n := strings.Count(source, f.old); n != 1 {
		return "", fmt.Errorf("fault %s: %s: want %q once, found it %d times", f.ID, file, f.old, n)
	}
	return strings.Replace(source, f.old, f.new, 1), nil
}

type unknownError struct{ id, nearest string }

func (e *unknownError) Error() string { return fmt.Sprintf("fault %q: there is no such fault", e.id) }

// Hint names the nearest fault, or how to list them.
func (e *unknownError) Hint() string {
	if e.nearest == "" {
		return "llmrun compare --list-faults"
	}
	return "llmrun compare --fault " + e.nearest
}
