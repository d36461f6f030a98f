package cpuref

import (
	"fmt"
	"math"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

func (b *Backend) rmsNorm(o *engine.RMSNorm, out, in operands) {
	x, w, dst := in.get("x"), in.get("w"), out.get("out")
	b.pool.each(o.Rows()*o.Heads, x.Rows*x.Cols, func(s *scratch, item int) {
		t, h := item/o.Heads, item%o.Heads
		wide, row, gain := s.doubles(0, o.Dim), s.floats(0, o.Dim), s.floats(1, o.Dim)
		x.readWide(wide, t, h*o.Dim)
		w.read(gain, 0, 0)
		inv := float32(1 / math.Sqrt(float64(dot(wide, wide))/float64(o.Dim)+float64(o.Eps)))
		for i, v := range wide {
			row[i] = float32(float32(float32(v)*inv) * float32(o.Offset+gain[i]))
		}
		dst.writeRow(t, h*o.Dim, row)
	})
}

func (b *Backend) layerNorm(o *engine.LayerNorm, out, in operands) {
	x, w, bias, dst := in.get("x"), in.get("w"), in.get("bias"), out.get("out")
	ones := make([]float64, o.Dim)
	for i := range ones {
		ones[i] = 1
	}
	b.pool.each(o.Rows(), x.Rows*x.Cols, func(s *scratch, t int) {
		wide, row, gain, shift := s.doubles(0, o.Dim), s.floats(0, o.Dim), s.floats(1, o.Dim), s.floats(2, o.Dim)
		x.readWide(wide, t, 0)
		w.read(gain, 0, 0)
		bias.read(shift, 0, 0)
		mean := dot(wide, ones) / float32(o.Dim)
		for i, v := range wide {
			wide[i] = float64(float32(v) - mean)
		}
		inv := float32(1 / math.Sqrt(float64(dot(wide, wide))/float64(o.Dim)+float64(o.Eps)))
		for i, v := range wide {
			row[i] = float32(float32(float32(v)*inv)*gain[i]) + shift[i]
		}
		dst.writeRow(t, 0, row)
	})
}

func (b *Backend) rope(o *engine.RoPE, out, in operands) {
	x, table, dst := in.get("x"), in.get("table"), out.get("out")
	half := o.RotaryDim / 2
	b.pool.each(o.Rows(), x.Rows*x.Cols, func(s *scratch, t int) {
		angles, head, turned := s.floats(0, o.RotaryDim), s.floats(1, o.Dim), s.floats(2, o.Dim)
		table.read(angles, t, 0)
		for h := range o.Heads {
			x.read(head, t, h*o.Dim)
			copy(turned, head)
			for i := range half {
				first, second := i, i+half
				if o.Interleaved {
					first, second = 2*i, 2*i+1
				}
				a, b, cos, sin := head[first], head[second], angles[i], angles[half+i]
				turned[first] = float32(float32(a*cos) - float32(b*sin))
				turned[second] = float32(float32(b*cos) + float32(a*sin))
			}
			dst.writeRow(t, h*o.Dim, turned)
		}
	})
}

// rowwise computes each output row from the rows of the same number of one or two inputs; b is nil if there is one.
func (p *pool) rowwise(out, a, b operand, f func(out, a, b []float32)) {
	p.each(out.Rows, out.Rows*out.Cols, func(s *scratch, t int) {
		row, first, second := s.floats(0, out.Cols), s.floats(1, out.Cols), []float32(nil)
		a.read(first, t, 0)
		if b.exists() {
			second = s.floats(2, out.Cols)
			b.read(second, t, 0)
		}
		f(row, first, second)
		out.writeRow(t, 0, row)
	})
}

func (b *Backend) add(_ *engine.Add, out, in operands) {
	b.pool.rowwise(out.get("out"), in.get("a"), in.get("b"), func(out, a, b []float32) {
		for i := range out {
			out[i] = float32(a[i] + b[i])
		}
	})
}

func (b *Backend) softCap(o *engine.SoftCap, out, in operands) {
	bound := float64(o.Cap)
	b.pool.rowwise(out.get("out"), in.get("x"), operand{}, func(out, x, _ []float32) {
		for i, v := range x {
			out[i] = float32(bound * num.Tanh(float64(v)/bound))
		}
	})
}

func (b *Backend) activate(o *engine.Activate, out, in operands) {
	b.pool.rowwise(out.get("out"), in.get("gate"), in.get("up"), func(out, gate, up []float32) {
		for i, v := range gate {
			out[i] = float32(activation(o.F, float64(v)))
			if up != nil {
				out[i] = float32(out[i] * up[i])
			}
		}
	})
}

// activation is F(x) in float64, every product rounded by itself. The constants are those of CTranslate2, rounded to float64.
func activation(f engine.Function, x float64) float64 {
	switch f {
	case engine.ReLU:
		if x > 0 || x != x {
			return x
		}
		return 0
	case engine.GELUTanh:
		inner := x + float64(0.044715*float64(x*float64(x*x)))
		return float64(float64(0.5*x) * (1 + num.Tanh(float64(math.Sqrt2/math.SqrtPi*inner))))
	case engine.SiLU:
		return x / (1 + num.Exp(-x))
	case engine.GELU:
		return float64(float64(0.5*x) * (1 + num.Erf(float64(x*(1/math.Sqrt2)))))
	case engine.GELUSigmoid:
		return x / (1 + num.Exp(float64(-1.702*x)))
	case engine.Tanh:
		return num.Tanh(x)
	case engine.Sigmoid:
		return 1 / (1 + num.Exp(-x))
	}
	panic(fmt.Sprintf("BUG: no activation function %d", int(f)))
}
