package backendtest

import (
	"fmt"
	"math"
	"testing"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// quantizedLinears are linears that multiply int8 by int8.
func quantizedLinears() (cases []Case) {
	add := func(name string, in, out int, bias bool, x func(m *maker) []float32) {
		cases = append(cases, Case{"quantized/" + name, func(m *maker) engine.Op {
			o := newLinear(m, num.Int8, x(m), in, out, bias)
			o.W, o.Quantized = m.quantized(out, in), true
			return o
		}})
	}
	for _, s := range []struct{ rows, in, out int }{
		{1, 1, 1}, {1, 7, 3}, {1, 31, 33}, {1, 32, 32}, {1, 33, 31}, {1, 257, 5}, {1, 128, 352}, {1, 352, 128}, {1, 896, 128}, {1, 2304, 33},
		{2, 33, 31}, {3, 8, 1}, {5, 1, 9}, {4, 15, 7}, {5, 257, 33}, {5, 128, 352}, {5, 896, 64}, {17, 32, 17}, {33, 128, 65}, {64, 64, 64}, {7, 4864, 5}} {
		for _, bias := range []bool{false, true} {
			name := fmt.Sprintf("%dx%dx%d", s.rows, s.in, s.out)
			if bias {
				name += "+bias"
			}
			add(name, s.in, s.out, bias, func(m *maker) []float32 { return m.random(s.rows*s.in, 2) })
		}
	}
	add("extreme", 896, 9, true, func(*maker) []float32 { // a row whose terms with the weight of ±127 all have one sign
		x := repeat(3, 5*896)
		for i := range 896 {
			x[2*896+i] = 3 * float32(1-2*(i%2))
		}
		return x
	})
	add("not finite", 33, 17, true, func(m *maker) []float32 {
		x := m.random(4*33, 1)
		x[0], x[33+32], x[2*33+5] = float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))
		return x
	})
	add("zeros", 33, 17, true, func(m *maker) []float32 { // a row of them between others
		x := m.random(3*33, 1)
		clear(x[33:66])
		return x
	})
	add("one outlier", 257, 33, false, func(m *maker) []float32 { // all others become 0
		x := m.random(3*257, 1)
		x[100], x[257], x[3*257-1] = 6e4, -3e4, 300
		return x
	})
	add("ties", 256, 33, false, func(*maker) []float32 { // 127/max is 1, and most are halves
		x := make([]float32, 5*256)
		for i := range x {
			x[i] = float32(i%256)/2 - 63.5
			if i%256 == 7 {
				x[i] = 127
			}
		}
		return x
	})
	add("large", 257, 33, false, func(m *maker) []float32 { return m.random(3*257, 6e4) })
	add("small", 257, 33, false, func(m *maker) []float32 { return m.random(3*257, 1e-6) })
	cases = append(cases, Case{"quantized/truncated", func(m *maker) engine.Op {
		o := newLinear(m, num.Int8, m.random(5*257, 2), 257, 33, true)
		o.W, o.Quantized, o.Truncated = m.quantized(33, 257), true, true
		return o
	}})
	return cases
}

// oneResult holds quantized linears to the formula as float32 arithmetic has it, to the last bit: no backend has a choice in any step of it.
func oneResult(t *testing.T, b engine.Backend) {
	for _, c := range quantizedLinears() {
		o := c.Build(t, b).(*engine.Linear)
		b.Run(o)
		want, got := make([]byte, o.Rows()*o.W.Rows*4), host(t, o.Out)
		num.PutFloat32s(o.Out.DType(), want, formula(t, o))
		for i := range o.Rows() * o.W.Rows {
			w, g := num.Float32At(o.Out.DType(), want, i), num.Float32At(o.Out.DType(), got, i)
			if w != g && (w == w || g == g) {
				t.Errorf("%s: [%d %d]: want %x, got %x", c.Name, i/o.W.Rows, i%o.W.Rows, w, g)
				break
			}
		}
	}
}

// formula is engine.Linear's.
func formula(t *testing.T, o *engine.Linear) (out []float32) {
	cols, data := o.W.Cols, host(t, o.W.Buffer)
	scale := values(t, o.W.Scale, 0, o.W.Rows)
	for r := range o.Rows() {
		x := values(t, o.X, r*cols, cols)
		top, finite := float32(0), true
		for _, v := range x {
			finite = finite && v-v == 0
			top = max(top, float32(math.Abs(float64(v))))
		}
		a := 127 / top
		if math.IsInf(float64(a), 0) {
			a = 1
		}
		for n := range o.W.Rows {
			c := int64(0)
			for k, v := range x {
				q := math.RoundToEven(float64(v * a))
				if o.Truncated {
					q = math.Trunc(float64(v * a))
				}
				c += int64(q) * int64(int8(data[n*cols+k]))
			}
			y := float32(float32(c)*float32(1/a)) / scale[n]
			if o.Bias != nil {
				y += values(t, o.Bias, n, 1)[0]
			}
			if !finite {
				y = float32(math.NaN())
			}
			out = append(out, y)
		}
	}
	return out
}
