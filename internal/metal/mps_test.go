package metal

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"llmrun/internal/backendtest"
	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/metal/hostmetal"
	"llmrun/internal/num"
)

// TestMPSOps holds the linear ops that MPS multiplies to the oracle's bounds.
func TestMPSOps(t *testing.T) {
	for activations, weights := range map[num.DType]string{num.Float32: "float32 float16", num.Float16: "float16"} {
		t.Run(activations.String(), func(t *testing.T) {
			o := Options{Activations: activations, MPS: true}
			open(t, o).Close()
			kept := 0
			backendtest.Ops(t, func() (engine.Backend, error) { return Open(o) }, func(name string) bool {
				op, rest, _ := strings.Cut(name, "/")
				weight, _, _ := strings.Cut(rest, "/")
				keep := op == "linear" && strings.Contains(weights, weight)
				if keep {
					kept++
				}
				return keep
			})
			if kept == 0 {
				t.Error("no case was kept: the names of backendtest have changed")
			}
		})
	}
}

func TestMPSStories(t *testing.T) {
	o := Options{Activations: num.Float32, MPS: true}
	open(t, o).Close()
	backendtest.Stories(t, "../models/testdata/golden.json", func() (engine.Backend, error) { return Open(o) })
}

// linear is an op on random values.
func linear(t *testing.T, b *Backend, rows, cols, inner int, weight num.DType, bias bool) *engine.Linear {
	t.Helper()
	buf := newBuffers(t, b)
	op := &engine.Linear{Place: engine.Place{In: &engine.Pass{Step: 1, Rows: rows}, Layer: 2, Name: "up"}, Out: buf(b.activations, rows*cols),
		X: buf(b.activations, rows*inner), W: engine.Matrix{Buffer: buf(weight, cols*inner), Rows: cols, Cols: inner}}
	if bias {
		op.Bias = buf(num.Float32, cols)
	}
	fill(t, rand.New(rand.NewPCG(5, uint64(rows*cols))), op)
	return op
}

// TestMPSPieces: a result that is too wide for MPS is made some columns at a time, and comes out whole.
func TestMPSPieces(t *testing.T) {
	for _, activations := range []num.DType{num.Float32, num.Float16} {
		b := open(t, Options{Activations: activations, MPS: true})
		op := linear(t, b, 3, 2*mpsMaxCols+5, 7, num.Float16, activations == num.Float16)
		b.Run(op)
		if n := len(b.pending); n != 6 {
			t.Errorf("%v: %d dispatches, want 3 products and 3 roundings", activations, n)
		}
		judge(t, op)
	}
	rows, inner := 128, mpsMaxInner
	if most := min(mpsMaxCols, mpsMaxOffset/4/(rows+2*inner)); most < 1 || (rows+2*inner)*most*4 > mpsMaxOffset {
		t.Errorf("%d columns at a time", most)
	}
}

// TestMPSObjects: a buffer is always the same matrix, however many rows of it a pass uses, and each shape is multiplied by its own kernel.
func TestMPSObjects(t *testing.T) {
	b := open(t, Options{Activations: num.Float32, MPS: true})
	op := linear(t, b, 5, 9, 33, num.Float32, true)
	for _, rows := range []int{5, 1, 4, 5, 1} {
		op.In = &engine.Pass{Rows: rows}
		b.Run(op)
		judge(t, op)
	}
	if products, matrices, kernels := len(b.mps.products), len(b.mps.matrices), len(b.mps.kernels); products != 3 || matrices != 3 || kernels != 3 {
		t.Errorf("%d products with %d matrices and %d kernels, want 3 of each", products, matrices, kernels)
	}
}

// TestMPSRefuses: MPS ends the process over a type that it does not multiply, and some sums it is known to get wrong.
func TestMPSRefuses(t *testing.T) {
	tensor := func(d num.DType, shape ...int) ctconv.Tensor {
		n := d.Size()
		for _, s := range shape {
			n *= s
		}
		return ctconv.Tensor{Name: "decoder/layer_0/ffn/linear_0/weight", DType: d, Shape: shape, Data: make([]byte, n)}
	}
	for _, c := range []struct {
		activations num.DType
		weight      ctconv.Tensor
		want        string // "": taken
	}{
		{num.Float32, tensor(num.Float32, 2, 3), ""},
		{num.Float32, tensor(num.Float16, 2, 3), ""},
		{num.Float16, tensor(num.Float16, 2, 3), ""},
		{num.Float16, tensor(num.Float32, 3), ""},
		{num.Float32, tensor(num.BFloat16, 2, 3), "MPS does not multiply float32 activations by bfloat16 weights"},
		{num.Float32, tensor(num.Int8, 2, 3), "MPS does not multiply float32 activations by int8 weights"},
		{num.Float16, tensor(num.Float32, 2, 3), "MPS does not multiply float16 activations by float32 weights"},
		{num.Float32, tensor(num.Float16, 1, 32766), ""},
		{num.Float32, tensor(num.Float16, 1, 32767), "MPS is known to add up wrongly over more than 32766 columns, the weight has 32767"},
	} {
		b := open(t, Options{Activations: c.activations, MPS: true})
		_, err := b.Upload(c.weight)
		var hinted interface{ Hint() string }
		switch {
		case c.want == "" && err != nil:
			t.Error(err)
		case c.want != "" && (err == nil || err.Error() != "metal: upload decoder/layer_0/ffn/linear_0/weight: "+c.want):
			t.Errorf("%v activations, %v %v: %v", c.activations, c.weight.DType, c.weight.Shape, err)
		case c.want != "" && (!errors.As(err, &hinted) || hinted.Hint() != "--metal-gemm own"):
			t.Errorf("%v: want a hint", err)
		}
	}
	b := open(t, Options{Activations: num.Float32, MPS: true})
	b.Run(linear(t, b, 1, 2, 3, num.BFloat16, false))
	if err := b.Sync(); err == nil || err.Error() != "step 1 layer 2 up: metal: MPS does not multiply float32 activations by bfloat16 weights" {
		t.Errorf("an op: %v", err)
	}
}

// TestMPSLeaksNothing counts the host device's living objects.
func TestMPSLeaksNothing(t *testing.T) {
	o := Options{Activations: num.Float32, MPS: true}
	open(t, o).Close()
	s, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if !s.host {
		t.Skip("only the host device counts its objects")
	}
	before, err := hostmetal.Alive(s.handles[0])
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, o)
	b.Run(linear(t, b, 2, 3, 4, num.Float32, true))
	if err := b.Sync(); err != nil {
		t.Fatal(err)
	}
	open, err := hostmetal.Alive(s.handles[0])
	if err != nil {
		t.Fatal(err)
	}
	if open["MPSMatrix"]-before["MPSMatrix"] != 3 || open["MPSMatrixMultiplication"]-before["MPSMatrixMultiplication"] != 1 {
		t.Errorf("objects of MPS while open: %v", open)
	}
	b.Close()
	if after, err := hostmetal.Alive(s.handles[0]); err != nil || !maps.Equal(after, before) {
		t.Errorf("objects before Open: %v; after Close: %v, %v", before, after, err)
	}
}

// TestAssumeMPS: MPSMatrixMultiplication with a transposed right matrix, views of buffers from an offset on, more rows than are multiplied, and float32
// by float16, gives what we take it to give; the kernels before and after it in the command buffer see its place in their order.
func TestAssumeMPS(t *testing.T) {
	b := open(t, Options{Activations: num.Float32, MPS: true})
	for _, weight := range []num.DType{num.Float32, num.Float16} {
		for _, rows := range []int{1, 2, 33} {
			first := linear(t, b, rows, 65, 129, weight, true)
			second := linear(t, b, rows, 31, 65, weight, false)
			second.X = first.Out
			twice := &engine.Add{Place: second.Place, Out: newBuffers(t, b)(num.Float32, rows*31), A: second.Out, B: second.Out, Dim: 31}
			for _, op := range []engine.Op{first, second, twice} {
				b.Run(op)
			}
			for _, op := range []engine.Op{first, second, twice} {
				t.Run(fmt.Sprintf("%v/%d rows", weight, rows), func(t *testing.T) { judge(t, op) })
			}
		}
	}
}
