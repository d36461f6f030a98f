package fault

import (
	"errors"
	"testing"

	"llmrun/shaders"
)

// TestAppliesOnce makes every fault in the shaders that ship: each edit has one place, and no other file changes.
func TestAppliesOnce(t *testing.T) {
	files := append(shaders.Files(), shaders.Headers()...)
	for _, f := range All() {
		named := map[string]bool{}
		for _, e := range f.Edits {
			named[e.File] = true
		}
		for _, file := range files {
			text, err := shaders.FS.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			edited, err := f.Edit(file, string(text))
			if err != nil {
				t.Error(err)
			} else if (edited != string(text)) != named[file] {
				t.Errorf("%s: %s changed: %t, an edit of it: %t", f.ID, file, edited != string(text), named[file])
			}
			delete(named, file)
		}
		for file := range named {
			t.Errorf("%s: there is no shader %s", f.ID, file)
		}
	}
}

// TestCatalogue: every entry says what it is, makes some mistake, and can be told from the others.
func TestCatalogue(t *testing.T) {
	seen, kinds := map[string]bool{}, map[Kind]int{}
	for _, f := range All() {
		if f.ID == "" || f.What == "" || f.Want.Verdict == "" || seen[f.ID] {
			t.Errorf("%q: want an id of its own, a description and a verdict: %+v", f.ID, f.Want)
		}
		seen[f.ID] = true
		kinds[f.Kind]++
		if makes := len(f.Edits) > 0 || f.Wrap != nil || f.Prompt != nil || f.Choose != nil || f.Reset != nil; makes != (f.Want.Verdict == diverged) {
			t.Errorf("%s: makes a mistake: %t, wanted %s", f.ID, makes, f.Want.Verdict)
		}
		if w := f.Want; (w.Site == "") != (w.Family == "") || (w.Between.Writer == "") != (w.Between.Reader == "") {
			t.Errorf("%s: %+v", f.ID, w)
		}
	}
	if len(seen) < 60 || len(kinds) != 3 {
		t.Errorf("want at least 60 faults of 3 kinds, have %d: %v", len(seen), kinds)
	}
}

func TestEditRefuses(t *testing.T) {
	f, err := Find("gelu-unclamped")
	if err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]string{
		"tanh(u)": `fault gelu-unclamped: activation.h: want "clamp(u, -15.0f, 15.0f)" once, found it 0 times`,
		"clamp(u, -15.0f, 15.0f) clamp(u, -15.0f, 15.0f)": `fault gelu-unclamped: activation.h: want "clamp(u, -15.0f, 15.0f)" once, found it 2 times`,
	} {
		if _, err := f.Edit("activation.h", source); err == nil || err.Error() != want {
			t.Errorf("%q:\n got %v\nwant %s", source, err, want)
		}
	}
}

func TestFindSuggests(t *testing.T) {
	for id, want := range map[string]string{
		"gelu-unclampt": "llmrun compare --fault gelu-unclamped",
		"xyz":           "llmrun compare --list-faults",
	} {
		_, err := Find(id)
		var hinted interface{ Hint() string }
		if !errors.As(err, &hinted) || hinted.Hint() != want {
			t.Errorf("%s: got %v, want the hint %q", id, err, want)
		}
	}
}
