package report

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"llmrun/internal/schematest"
)

const schemaFile = "../../docs/schema/compare-1.schema.json"

// TestSchema holds the JSON of every comparison to the published schema.
func TestSchema(t *testing.T) {
	s := schematest.Strict(t, schemaFile)
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
	s := schematest.Strict(t, schemaFile)
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
