package shaders

import (
	"errors"
	"strings"
	"testing"
)

// TestSource: every header stands once, after a #line of its own, and #line gives the lines behind it their numbers back.
func TestSource(t *testing.T) {
	for _, file := range Files() {
		text, err := Source(file, nil)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text, `#include "`) {
			t.Errorf("%s: an include is left", file)
		}
		at, line := file, 0
		var own []string
		for l := range strings.Lines(text) {
			if rest, ok := strings.CutPrefix(l, "#line "); ok {
				number, name, _ := strings.Cut(strings.TrimSpace(rest), " ")
				at, line = strings.Trim(name, `"`), atoi(number)-1
				continue
			}
			line++
			if at == file {
				for len(own) < line {
					own = append(own, "")
				}
				own[line-1] = l
			}
		}
		b, err := FS.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range strings.SplitAfter(string(b), "\n") {
			if l != "" && !strings.HasPrefix(l, `#include "`) && (i >= len(own) || own[i] != l) {
				t.Errorf("%s:%d: %q has not kept its number", file, i+1, l)
			}
		}
	}
}

func atoi(s string) (n int) {
	for _, c := range s {
		n = 10*n + int(c-'0')
	}
	return n
}

// TestSourceEdits: an edit sees each file by its name, and its error is named after the file.
func TestSourceEdits(t *testing.T) {
	seen := map[string]int{}
	text, err := Source("embed.metal", func(file, text string) (string, error) {
		seen[file]++
		return text + "// " + file + " was here\n", nil
	})
	if err != nil || seen["embed.metal"] != 1 || seen["widen.h"] != 1 || !strings.Contains(text, "// widen.h was here") {
		t.Errorf("%v, %v", seen, err)
	}
	wanted := errors.New("wanted")
	if _, err = Source("embed.metal", func(file, text string) (string, error) {
		if file == "widen.h" {
			return "", wanted
		}
		return text, nil
	}); !errors.Is(err, wanted) || !strings.Contains(err.Error(), "widen.h") {
		t.Errorf("got %v", err)
	}
}
