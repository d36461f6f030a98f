// Package schematest reads the published schemas for tests.
package schematest

import (
	"bytes"
	"os"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Strict reads a schema of docs/schema. It lets programs meet keys that they do not know; we must know all of ours, so here every object that
// requires keys is closed.
func Strict(tb testing.TB, file string) *jsonschema.Schema {
	tb.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	tree, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		tb.Fatal(err)
	}
	closeObjects(tree)
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft4) // so that the file must name its own
	const name = "schema.json"
	if err := c.AddResource(name, tree); err != nil {
		tb.Fatal(err)
	}
	s, err := c.Compile(name)
	if err != nil {
		tb.Fatal(err)
	}
	if s.DraftVersion != 2020 {
		tb.Errorf("%s: want draft 2020-12, got %d", file, s.DraftVersion)
	}
	return s
}

func closeObjects(tree any) {
	switch x := tree.(type) {
	case map[string]any:
		if _, ok := x["required"]; ok {
			x["additionalProperties"] = false
		}
		for _, v := range x {
			closeObjects(v)
		}
	case []any:
		for _, v := range x {
			closeObjects(v)
		}
	}
}
