package near

import (
	"slices"
	"testing"
)

func TestNames(t *testing.T) {
	all := []string{"tiny-gemma2", "tiny-qwen2", "gemma2-2b", "gelu-unclamped"}
	for name, want := range map[string][]string{
		"tiny-gema2": {"tiny-gemma2"}, "gemma2": {"gemma2-2b", "tiny-gemma2"}, "TINY-QWEN2": {"tiny-qwen2"},
		"gelu-unclampt": {"gelu-unclamped"}, "banana": {}, "": {},
	} {
		if got := Names(name, all); !slices.Equal(got, want) {
			t.Errorf("%q: want %v, got %v", name, want, got)
		}
	}
	if got := One("banana", all, "none"); got != "none" {
		t.Errorf("want none, got %s", got)
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"abc", "", 3}, {"", "abc", 3}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}, {"same", "same", 0}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("%s, %s: want %d, got %d", c.a, c.b, c.want, got)
		}
	}
}
