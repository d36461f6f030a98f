package metal

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// apiRow is a row of testdata/metal-api.tsv, which was made from Apple's headers.
type apiRow struct{ arguments, result, availability, ownership, goType string }

// readAPI reads the rows of a kind by "owner name".
func readAPI(t *testing.T, kind string) map[string]apiRow {
	t.Helper()
	text, err := os.ReadFile("testdata/metal-api.tsv")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]apiRow{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimSuffix(line, "\n"), "\t"); len(f) == 12 && f[0] == kind {
			rows[f[1]+" "+f[2]] = apiRow{f[3], f[4], f[5], f[8], f[10]}
		}
	}
	if len(rows) == 0 {
		t.Fatalf("no %s in metal-api.tsv", kind)
	}
	return rows
}

// spelling is a Go type as metal-api.tsv spells it.
func spelling(t reflect.Type) string {
	return strings.NewReplacer("metal.id", "objc.ID", "metal.sel", "objc.SEL", "metal.class", "objc.Class",
		"metal.size", "MTLSize", "*uint8", "*byte").Replace(t.String())
}

func (m *method[F]) entry() (owner, name string, optional bool, t reflect.Type) {
	return m.owner, m.name, m.optional, reflect.TypeFor[F]()
}

func TestSelectorsAreApples(t *testing.T) {
	api := readAPI(t, "selector")
	for _, m := range methods {
		owner, name, optional, f := m.(interface {
			entry() (string, string, bool, reflect.Type)
		}).entry()
		row, ok := api[owner+" "+name]
		if !ok {
			t.Errorf("%s has no selector %s", owner, name)
			continue
		}
		if got := spelling(f); got != row.goType {
			t.Errorf("%s %s: sent as %s, Apple's is %s", owner, name, got, row.goType)
		}
		arguments := 0
		if row.arguments != "-" {
			arguments = 1 + strings.Count(row.arguments, ";")
		}
		if n := strings.Count(name, ":"); n != arguments || f.NumIn() != 2+n {
			t.Errorf("%s %s: %d colons, %d arguments after self and selector, Apple's has %d", owner, name, n, f.NumIn()-2, arguments)
		}
		since, err := strconv.ParseFloat(strings.FieldsFunc(row.availability, func(r rune) bool { return r == ' ' || r == '-' })[1], 64)
		if err != nil {
			t.Errorf("%s %s: availability %q", owner, name, row.availability)
		}
		// macOS 10.15 came before 10.2 would have: as numbers 10.x are all below 13, and that is all that matters.
		if newer := since > minimumMacOS; newer != optional {
			t.Errorf("%s %s came with %s; asked for with respondsToSelector: %t", owner, name, row.availability, optional)
		}
	}
}

func TestFunctionsAreApples(t *testing.T) {
	api := readAPI(t, "function")
	all := maps.Clone(functions)
	all["MPSSupportsMTLDevice"] = &supportsMPS
	for name, f := range all {
		if got, want := spelling(reflect.TypeOf(f).Elem()), api["C "+name].goType; got != want {
			t.Errorf("%s: called as %s, Apple's is %q", name, got, want)
		}
	}
}

// TestOwnership reads objects.go: a method that hands out a reference of one's own (+1 or init) must give a type that has
// release, and no other method may.
func TestOwnership(t *testing.T) {
	names, api := methodNames(t), readAPI(t, "selector")
	functionsAPI := readAPI(t, "function")
	file, err := parser.ParseFile(token.NewFileSet(), "objects.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	owning := map[string]bool{"owned": true} // types that embed owned
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if s, ok := spec.Type.(*ast.StructType); ok && len(s.Fields.List) == 1 {
				if x, ok := s.Fields.List[0].Type.(*ast.Ident); ok && x.Name == "owned" {
					owning[spec.Name.Name] = true
				}
			}
		}
		return true
	})
	used := map[string]bool{}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		gives := ""
		if f.Type.Results != nil {
			if x, ok := f.Type.Results.List[0].Type.(*ast.Ident); ok {
				gives = x.Name
			}
		}
		plusOne := false
		ast.Inspect(f, func(n ast.Node) bool {
			if x, ok := n.(*ast.Ident); ok {
				if key, ok := names[x.Name]; ok {
					used[x.Name] = true
					plusOne = plusOne || api[key].ownership == "+1" || api[key].ownership == "init"
				}
				if x.Name == "copyAllDevices" {
					plusOne = plusOne || functionsAPI["C MTLCopyAllDevices"].ownership == "+1"
				}
			}
			return true
		})
		// allocate and newCompileOptions own too; methods without a message of their own (nsError) own nothing.
		if owns := owning[gives]; owns != plusOne {
			t.Errorf("%s gives a %q: Apple says +1 %t, the type has release %t", f.Name.Name, gives, plusOne, owns)
		}
	}
	for name := range names {
		if !used[name] {
			t.Errorf("objects.go does not use %s", name)
		}
	}
}

// methodNames reads selectors.go: "owner selector" by the variable's name.
func methodNames(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "selectors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		call, ok := spec.Values[0].(*ast.CallExpr)
		if !ok || len(call.Args) != 2 {
			return true
		}
		owner, _ := strconv.Unquote(call.Args[0].(*ast.BasicLit).Value)
		name, _ := strconv.Unquote(call.Args[1].(*ast.BasicLit).Value)
		names[spec.Names[0].Name] = owner + " " + name
		return true
	})
	if len(names) != len(methods) {
		t.Fatalf("selectors.go declares %d methods, this test reads %d", len(methods), len(names))
	}
	return names
}
