package metal

import (
	"fmt"
	"testing"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// BenchmarkAttention times the three ops, plain and fused.
func BenchmarkAttention(b *testing.B) {
	for _, a := range []engine.Attention{{Heads: 14, KVHeads: 2, Dim: 64}, {Heads: 8, KVHeads: 4, Dim: 256}} {
		for _, p := range []engine.Pass{decodeAt(30), decodeAt(500), decodeAt(8000), prefillAt(0, 128), prefillAt(1000, 128)} {
			for _, fuse := range []bool{false, true} {
				b.Run(fmt.Sprintf("%d/%dx%d/%d rows at %d/fuse=%t", a.Heads, a.KVHeads, a.Dim, p.Rows, p.Pos, fuse), func(b *testing.B) {
					backend := open(b, Options{Activations: num.Float32, Fuse: fuse})
					s, x, c := attentionCase{Attention: a, pass: p}.ops(b, num.Float32, newBuffers(b, backend))
					for b.Loop() {
						backend.Run(s)
						backend.Run(x)
						backend.Run(c)
						if err := backend.Sync(); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}
