package tokenizer

import (
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkParse reads the published tokenizers, of 128,000 to 262,144 tokens.
func BenchmarkParse(b *testing.B) {
	dir := os.Getenv("LLMRUN_TOKENIZERS")
	if dir == "" {
		b.Skip("LLMRUN_TOKENIZERS is not set: scripts/oracles/tokenizers.sh makes that folder")
	}
	for _, family := range families {
		data, err := os.ReadFile(filepath.Join(dir, family, "tokenizer.json"))
		if err != nil {
			b.Fatal(err)
		}
		text := string(data)
		b.Run(family, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(family, text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
