package llmrun_test

import (
	"encoding/json"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// arrows says which of our packages each may import. The picture of it is in ARCHITECTURE.md.
var arrows = map[string][]string{
	"cmd/llmrun":               nil, // nil: any but those for tests
	"scripts/faults":           {"internal/fault"},
	"scripts/traces":           {"internal/engine"},
	"scripts/sensitivity":      {"internal/shadow", "internal/models", "internal/cpuref", "internal/metal", "internal/engine", "internal/ctconv", "internal/num"},
	"internal/num":             {},
	"internal/near":            {},
	"internal/mapped":          {},
	"internal/ctconv":          {"internal/mapped", "internal/num"},
	"internal/tokenizer":       {"internal/mapped"},
	"prompts":                  {},
	"shaders":                  {},
	"internal/engine":          {"internal/ctconv", "internal/num"},
	"internal/models":          {"internal/ctconv", "internal/tokenizer", "internal/near"},
	"internal/cpuref":          {"internal/cpuref/kernel", "internal/engine", "internal/ctconv", "internal/num"},
	"internal/cpuref/kernel":   {"internal/num"},
	"internal/cpuref/oracle":   {"internal/engine", "internal/num"},
	"internal/metal":           {"internal/engine", "internal/ctconv", "internal/num", "internal/metal/hostmetal", "shaders"},
	"internal/metal/hostmetal": {},
	"internal/fault":           {"internal/ctconv", "internal/engine", "internal/near", "internal/num"},
	"internal/shadow":          {"internal/cpuref/oracle", "internal/engine", "internal/ctconv", "internal/num"},
	"internal/parity":          {"internal/shadow", "internal/engine", "internal/ctconv", "internal/num"},
	"internal/report":          {"internal/parity", "internal/shadow", "internal/engine", "internal/ctconv", "internal/num"},
	"internal/schematest":      {},
	"internal/backendtest":     {"internal/cpuref/oracle", "internal/engine", "internal/models", "internal/ctconv", "internal/num"},
}

func TestArrowsPointDown(t *testing.T) {
	// For every system, since a build tag could hide an arrow.
	for _, system := range []string{"linux", "darwin"} {
		cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
		cmd.Env = append(cmd.Environ(), "GOOS="+system, "CGO_ENABLED=0")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		seen := 0
		for list := json.NewDecoder(strings.NewReader(string(out))); ; {
			var p struct {
				ImportPath string
				Imports    []string
			}
			if err := list.Decode(&p); err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			name, _ := strings.CutPrefix(p.ImportPath, "llmrun/")
			if name == "llmrun" { // this folder, which has tests only
				continue
			}
			seen++
			allowed, known := arrows[name]
			if !known {
				t.Errorf("%s: a room that ARCHITECTURE.md and this test do not know", name)
			}
			for _, i := range p.Imports {
				to, ours := strings.CutPrefix(i, "llmrun/")
				if ours && (to == "internal/backendtest" || to == "internal/schematest" || allowed != nil && !slices.Contains(allowed, to)) {
					t.Errorf("%s imports %s: that arrow points up or across", name, to)
				}
			}
		}
		if seen != len(arrows) {
			t.Errorf("want %d rooms, go list shows %d", len(arrows), seen)
		}
	}
}
