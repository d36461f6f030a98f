package metal

import (
	"slices"
	"testing"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// Linears that read one input, one right after the other, quantize it once; the input may have changed whenever anything was between.
func TestQuantizeOnce(t *testing.T) {
	b, buf := recorder(num.Float32)
	q, inverse := buf(num.Int8, 1<<10).(*buffer), buf(num.Float32, 1<<10).(*buffer)
	b.quantizer.q, b.quantizer.inverse = room{slot{mtl: q.mtl}, 1 << 10}, room{slot{mtl: inverse.mtl}, 1 << 10}
	const rows, cols, n = 3, 32, 8
	pass := &engine.Pass{Rows: rows}
	x, other := buf(num.Float32, rows*cols), buf(num.Float32, rows*cols)
	linear := func(name string, x engine.Buffer) *engine.Linear {
		return &engine.Linear{Place: engine.Place{In: pass, Name: name}, Out: buf(num.Float32, rows*n), X: x, Quantized: true,
			W: engine.Matrix{Buffer: buf(num.Int8, n*cols), Scale: buf(num.Float32, n), Rows: n, Cols: cols}}
	}
	add := &engine.Add{Place: engine.Place{In: pass, Name: "layer_out"}, Out: x, A: other, B: other, Dim: cols}
	truncated := linear("up", x)
	truncated.Truncated = true
	for _, c := range []struct {
		what string
		ops  []engine.Op
		want []string
	}{
		{"gate and up", []engine.Op{linear("gate", x), linear("up", x)}, []string{"quantize", "linear_i8", "linear_i8"}},
		{"another input", []engine.Op{linear("gate", x), linear("up", other)}, []string{"quantize", "linear_i8", "quantize", "linear_i8"}},
		{"an op between", []engine.Op{linear("gate", x), add, linear("up", x)}, []string{"quantize", "linear_i8", "add", "quantize", "linear_i8"}},
		{"another rounding", []engine.Op{linear("gate", x), truncated}, []string{"quantize", "linear_i8", "quantize", "linear_i8"}},
	} {
		b.pending = b.pending[:0] // as after a Sync, when the input may have been written to
		for _, op := range c.ops {
			b.Run(op)
		}
		var got []string
		for _, d := range b.pending {
			got = append(got, d.key.shader)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: want %q, got %q", c.what, c.want, got)
		}
	}
}
