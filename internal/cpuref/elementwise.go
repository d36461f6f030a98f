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
		t, i := item/o.Heads, item%o.Heads*o.Dim
		row, gain, y := x.row(s, 0, t, i, o.Dim), w.row(s, 1, 0, 0, o.Dim), dst.room(s, 2, t, 1, i, o.Dim)
		b.kernels.Normalize(y.Data, row, gain, inverseRoot(b.kernels.Dot(&s.Temp, row, row), o.Dim, o.Eps), o.Offset)
		dst.put(y, t, 1, i, o.Dim)
	})
}

// inverseRoot is 1 / √(sum/n + eps).
func inverseRoot(sum float32, n int, eps float32) float32 {
	return float32(1 / math.Sqrt(float64(sum)/float64(n)+float64(eps)))
}

func (b *Backend) layerNorm(o *engine.LayerNorm, out, in operands) {
	x, w, bias, dst := in.get("x"), in.get("w"), in.get("bias"), out.get("out")
	ones := make([]float32, o.Dim)
	for i := range ones {
		ones[i] = 1
	}
	b.pool.each(o.Rows(), x.Rows*x.Cols, func(s *scratch, t int) {
		row := s.floats(0, o.Dim)
		x.read(row, t, 0)
		mean := b.kernels.Dot(&s.Temp, row, ones) / float32(o.Dim)
		for i, v := range row {
			row[i] = v - mean
		}
		b.kernels.Scale(row, row, inverseRoot(b.kernels.Dot(&s.Temp, row, row), o.Dim, o.Eps))
		b.kernels.Mul(row, row, w.row(s, 1, 0, 0, o.Dim))
		b.kernels.Add(row, row, bias.row(s, 2, 0, 0, o.Dim))
		dst.writeRow(t, 0, row)
	})
}

func (b *Backend) rope(o *engine.RoPE, out, in operands) {
	x, table, dst := in.get("x"), in.get("table"), out.get("out")
	n, half := o.RotaryDim, o.RotaryDim/2
	b.pool.each(o.Rows(), x.Rows*x.Cols, func(s *scratch, t int) {
		angles := table.row(s, 0, t, 0, n)
		cos, sin := angles[:half], angles[half:]
		for h := range o.Heads {
			i := h * o.Dim
			head, y := x.row(s, 1, t, i, o.Dim), dst.room(s, 2, t, 1, i, o.Dim)
			if o.Interleaved {
				for i := range half {
					a, b := head[2*i], head[2*i+1]
					y.Data[2*i] = float32(float32(a*cos[i]) - float32(b*sin[i]))
					y.Data[2*i+1] = float32(float32(b*cos[i]) + float32(a*sin[i]))
				}
				b.kernels.Scale(y.Data[:n], y.Data[:n], 1)
			} else {
				b.kernels.Rotate(y.Data[:half], y.Data[half:n], head[:half], head[half:n], cos, sin)
			}
			b.kernels.Scale(y.Data[n:], head[n:], 1)
			dst.put(y, t, 1, i, o.Dim)
		}
	})
}

// rowwise computes each output row, in pieces, from the rows of the same number of one or two inputs; b is nil if there is one.
func (p *pool) rowwise(out, a, b operand, f func(out, a, b []float32)) {
	const piece = 4096
	pieces := blocks(out.Cols, piece)
	p.each(out.Rows*pieces, out.Rows*out.Cols, func(s *scratch, item int) {
		t := item / pieces
		from, to := span(item%pieces, out.Cols, piece)
		n, second := to-from, []float32(nil)
		if b.exists() {
			second = b.row(s, 2, t, from, n)
		}
		y := out.room(s, 0, t, 1, from, n)
		f(y.Data, a.row(s, 1, t, from, n), second)
		out.put(y, t, 1, from, n)
	})
}

func (b *Backend) add(_ *engine.Add, out, in operands) {
	b.pool.rowwise(out.get("out"), in.get("a"), in.get("b"), b.kernels.Add)
}

func (b *Backend) softCap(o *engine.SoftCap, out, in operands) {
	b.pool.rowwise(out.get("out"), in.get("x"), operand{}, func(out, x, _ []float32) { b.kernels.SoftCap(out, x, o.Cap) })
}

func (b *Backend) activate(o *engine.Activate, out, in operands) {
	b.pool.rowwise(out.get("out"), in.get("gate"), in.get("up"), func(out, gate, up []float32) {
		switch o.F {
		case engine.SiLU:
			b.kernels.SiLU(out, gate)
		case engine.GELUTanh:
			b.kernels.GELUTanh(out, gate)
		case engine.Tanh:
			b.kernels.SoftCap(out, gate, 1)
		default:
			for i, v := range gate {
				out[i] = float32(activation(o.F, float64(v)))
			}
			b.kernels.Scale(out, out, 1)
		}
		if up != nil {
			b.kernels.Mul(out, out, up)
		}
	})
}

// activation is F(x), but for those that have kernels, in float64, every product rounded by itself. The constants are those of
// CTranslate2, rounded to float64.
func activation(f engine.Function, x float64) float64 {
	switch f {
	case engine.ReLU:
		if x > 0 || x != x {
			return x
		}
		return 0
	case engine.GELU:
		return float64(float64(0.5*x) * (1 + num.Erf(float64(x*(1/math.Sqrt2)))))
	case engine.GELUSigmoid:
		return x / (1 + num.Exp(float64(-1.702*x)))
	case engine.Sigmoid:
		return 1 / (1 + num.Exp(-x))
	}
	panic(fmt.Sprintf("BUG: no activation function %d", int(f)))
}
