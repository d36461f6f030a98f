package fault

import (
	"errors"
	"io/fs"
	"testing"

	"llmrun/shaders"
)

// TestAppliesOnce makes every fault in the shaders that ship: one file changes, and only there.
func TestAppliesOnce(t *testing.T) {
	files, err := fs.Glob(shaders.FS, "*.metal")
	if err != nil || len(files) == 0 {
		t.Fatalf("no shaders: %v", err)
	}
	for _, f := range All() {
		changed := 0
		for _, file := range files {
			text, err := fs.ReadFile(shaders.FS, file)
			if err != nil {
				t.Fatal(err)
			}
			edited, err := f.Edit(file, string(text))
			if err != nil {
				t.Errorf("%s: %v", f.ID, err)
			}
			if edited != string(text) {
				changed++
			}
		}
		if changed != 1 {
			t.Errorf("%s: want 1 changed file, got %d", f.ID, changed)
		}
	}
}

func TestEditRefuses(t *testing.T) {
	f, err := Find("gelu-unclamped")
	if err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]string{
		"tanh(u)": `fault gelu-unclamped: activate.metal: want "clamp(u, -15.0f, 15.0f)" once, found it 0 times`,
		"clamp(u, -15.0f, 15.0f) clamp(u, -15.0f, 15.0f)": `fault gelu-unclamped: activate.metal: want "clamp(u, -15.0f, 15.0f)" once, found it 2 times`,
	} {
		if _, err := f.Edit("activate.metal", source); err == nil || err.Error() != want {
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
