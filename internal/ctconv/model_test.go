package ctconv

import (
	"os"
	"path/filepath"
	"testing"
)

const golden = "../../testdata/golden"

// TestOpenGolden opens every golden model, mapped and from memory, and checks what all of them share.
func TestOpenGolden(t *testing.T) {
	dirs, err := filepath.Glob(golden + "/*/" + modelBin)
	if err != nil || len(dirs) < 17 {
		t.Fatalf("want 17 golden models or more, found %d (%v)", len(dirs), err)
	}
	for _, bin := range dirs {
		dir := filepath.Dir(bin)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			mapped, err := Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer mapped.Close()
			read, err := OpenFS(os.DirFS(golden), filepath.Base(dir))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range []*Model{mapped, read} {
				if _, err := m.Want(embeddings, 97, 64); err != nil {
					t.Error(err)
				}
				if heads, err := m.Int("decoder/num_heads", 8); err != nil || heads != 4 {
					t.Errorf("decoder/num_heads = %d, %v; want 4", heads, err)
				}
				if c := m.Config; c.UnkToken != "t0" || c.BOSToken != "t1" || c.EOSToken != "t2" {
					t.Errorf("special tokens unk %q, bos %q, eos %q; want t0, t1, t2", c.UnkToken, c.BOSToken, c.EOSToken)
				}
				if id, ok := m.TokenID("t96"); !ok || id != 96 {
					t.Errorf("t96 is token %d, %v; want 96", id, ok)
				}
			}
			if len(mapped.Tensors) != len(read.Tensors) {
				t.Errorf("mapped %d tensors, read %d", len(mapped.Tensors), len(read.Tensors))
			}
		})
	}
}
