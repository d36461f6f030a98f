package report

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

const schemaFile = "../../docs/schema/compare-1.schema.json"

// compileSchema reads the published schema. It lets programs meet keys that they do not know; we must know all of ours, so here every
// object is closed.
func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	data, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	closeObjects(tree)
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft4) // so that the file must name its own
	if err := c.AddResource("compare.json", tree); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("compare.json")
	if err != nil {
		t.Fatal(err)
	}
	if s.DraftVersion != 2020 {
		t.Errorf("want draft 2020-12, got %d", s.DraftVersion)
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

// TestSchema holds the JSON of every comparison to the published schema.
func TestSchema(t *testing.T) {
	s := compileSchema(t)
	for name, c := range fixtures() {
		var b bytes.Buffer
		if err := JSON(&b, c); err != nil {
			t.Fatal(err)
		}
		value, err := jsonschema.UnmarshalJSON(&b)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(value); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSchemaRefuses: the schema says no to what is none.
func TestSchemaRefuses(t *testing.T) {
	s := compileSchema(t)
	var b bytes.Buffer
	if err := JSON(&b, gelu()); err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{
		{`"verdict": "DIVERGED"`, `"verdict": "MAYBE"`},
		{`"ratio": "Inf"`, `"ratio": "infinite"`},
		{`"class": "nonfinite"`, `"class": "none"`},
		{`"matched": 24`, `"matched": -1`},
		{`"state": "UNMEASURED"`, `"state": "unknown"`},
		{`"others": 3`, `"other": 3`},
		{`"layer": 7`, `"layer": -2`},
		{`"exit": 1`, `"exit": 2`},
	} {
		text := strings.Replace(b.String(), change[0], change[1], 1)
		var value any
		if err := json.Unmarshal([]byte(text), &value); err != nil || text == b.String() {
			t.Fatalf("%v: not made: %v", change, err)
		}
		if s.Validate(value) == nil {
			t.Errorf("%v is valid", change)
		}
	}
}
