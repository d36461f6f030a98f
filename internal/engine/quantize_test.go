package engine

import (
	"math"
	"strings"
	"testing"

	"llmrun/internal/ctconv"
	"llmrun/internal/num"
)

func TestQuantizeMatrix(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		row      []float32
		truncate bool
		want     []int8
		factor   float32
		fails    string
	}{
		{[]float32{1, -2, 0.5, 0}, false, []int8{64, -127, 32, 0}, 63.5, ""}, // 63.5 and 31.75
		{[]float32{1, -2, 0.5, 0}, true, []int8{63, -127, 31, 0}, 63.5, ""},
		{[]float32{127, 0.5, 1.5, -2.5}, false, []int8{127, 0, 2, -2}, 1, ""}, // ties
		{[]float32{0, 0, 0, 0}, false, []int8{0, 0, 0, 0}, 1, ""},
		{[]float32{1e-40, 0, 0, 0}, false, []int8{0, 0, 0, 0}, 1, ""}, // 127/1e-40 is infinite
		{[]float32{0, nan, 0, 0}, false, nil, 0, "row 1: want finite weights"},
	} {
		// The row is the second of two.
		data, q := make([]byte, 4*8), make([]byte, 8)
		num.PutFloat32s(num.Float32, data, append([]float32{3, 3, 3, 3}, c.row...))
		factors, err := quantize(q, data, num.Float32, 2, 4, c.truncate)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%v: want error %q, got %v", c.row, c.fails, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if factors[1] != c.factor {
			t.Errorf("%v: want factor %v, got %v", c.row, c.factor, factors[1])
		}
		for i, want := range c.want {
			if got := int8(q[4+i]); got != want {
				t.Errorf("%v: element %d: want %d, got %d", c.row, i, want, got)
			}
		}
	}
}

// holder is a backend that holds weights and does nothing else.
type holder struct{ Backend }

type held struct {
	dtype num.DType
	data  []byte
}

func (holder) NewBuffer(d num.DType, n int) (Buffer, error) {
	return &held{d, make([]byte, n*d.Size())}, nil
}
func (holder) Upload(t ctconv.Tensor) (Buffer, error) { return &held{t.DType, t.Data}, nil }
func (b *held) DType() num.DType                      { return b.dtype }
func (b *held) Len() int                              { return len(b.data) / b.dtype.Size() }
func (b *held) Host() ([]byte, error)                 { return b.data, nil }

// What a quantized linear divides by is what the file says, or what the file's floats were multiplied by; a row of int8 has a longest length.
func TestLoadQuantized(t *testing.T) {
	tensor := func(name string, d num.DType, values []float32, shape ...int) ctconv.Tensor {
		x := ctconv.Tensor{Name: name, DType: d, Shape: shape, Data: make([]byte, len(values)*d.Size())}
		for i, v := range values {
			if d.IsFloat() {
				num.PutFloat32(d, x.Data, i, v)
			} else {
				x.Data[i*d.Size()] = byte(int8(v))
			}
		}
		return x
	}
	load := func(version int, tensors ...ctconv.Tensor) (*weights, linear) {
		m := &ctconv.Model{Dir: "model", Version: version, Tensors: map[string]ctconv.Tensor{}}
		for _, x := range tensors {
			m.Tensors[x.Name] = x
		}
		w := &weights{m: m, b: holder{}, quantized: true, used: map[string]bool{}, matrices: map[string]loaded{}}
		return w, w.linear("a", -1, -1)
	}
	for _, c := range []struct {
		version int
		tensors []ctconv.Tensor
		q       []int8
		scale   float32
		fails   string
	}{
		{6, []ctconv.Tensor{tensor("a/weight", num.Int8, []float32{3, -4}, 1, 2), tensor("a/weight_scale", num.Float32, []float32{50}, 1)}, []int8{3, -4}, 50, ""},
		{6, []ctconv.Tensor{tensor("a/weight", num.Float16, []float32{2, -1.5}, 1, 2)}, []int8{127, -95}, 63.5, ""},   // 95.25
		{4, []ctconv.Tensor{tensor("a/weight", num.Float32, []float32{2, -1.75}, 1, 2)}, []int8{127, -111}, 63.5, ""}, // 111.125
		{4, []ctconv.Tensor{tensor("a/weight", num.Float32, []float32{2, 1.5 / 63.5}, 1, 2)}, []int8{127, 1}, 63.5, ""},
		{6, []ctconv.Tensor{tensor("a/weight", num.Float32, []float32{2, 1.75 / 63.5}, 1, 2)}, []int8{127, 2}, 63.5, ""},
		{6, []ctconv.Tensor{tensor("a/weight", num.Float32, []float32{float32(math.Inf(1)), 1}, 1, 2)}, nil, 0, "model: a/weight: row 0: want finite weights"},
		{6, []ctconv.Tensor{tensor("a/weight", num.Int16, []float32{1, 1}, 1, 2)}, nil, 0, "int16 weights"},
		{6, []ctconv.Tensor{tensor("a/weight", num.BFloat16, make([]float32, MaxQuantizedCols), 1, MaxQuantizedCols)}, make([]int8, MaxQuantizedCols), 1, ""},
		{6, []ctconv.Tensor{tensor("a/weight", num.BFloat16, make([]float32, MaxQuantizedCols+1), 1, MaxQuantizedCols+1)}, nil, 0, "model: a/weight: want at most 132096 columns"},
	} {
		w, l := load(c.version, c.tensors...)
		if c.fails != "" {
			if w.err == nil || !strings.Contains(w.err.Error(), c.fails) {
				t.Errorf("%s: want error %q, got %v", c.tensors[0].Name, c.fails, w.err)
			}
			continue
		}
		if w.err != nil {
			t.Fatal(w.err)
		}
		if q, scale := l.w.Buffer.(*held).data, num.Float32At(num.Float32, l.w.Scale.(*held).data, 0); scale != c.scale || !l.quantized || l.truncated != (c.version < 5) {
			t.Errorf("%v: scale %v, %+v", c.tensors[0].DType, scale, l)
		} else {
			for i, want := range c.q {
				if int8(q[i]) != want {
					t.Errorf("version %d, %v: element %d: want %d, got %d", c.version, c.tensors[0].DType, i, want, int8(q[i]))
				}
			}
		}
	}
}
