package report

import (
	"encoding/json"
	"io"

	"llmrun/internal/parity"
)

// JSON writes the comparison as one object of schema parity.Schema: keys in the order of the structs, NaN and infinities
// as the strings "NaN", "Inf" and "-Inf".
func JSON(w io.Writer, c *parity.Comparison) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(c)
}
