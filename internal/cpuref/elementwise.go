package cpuref

import (
	"fmt"
	"math"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

type rmsNorm struct {
	*Backend
	o          *engine.RMSNorm
	x, w, dest operand
}

func (b *Backend) rmsNorm(o *engine.RMSNorm, out, in operands) {
	n := &b.now.rmsNorm
	*n = rmsNorm{b, o, in.get("x"), in.get("w"), out.get("out")}
	b.pool.each(o.Rows()*o.Heads, n.x.Rows*n.x.Cols, n)
}

func (n *rmsNorm) item(s *scratch, item int) {
	o, t, i := n.o, item/n.o.Heads, item%n.o.Heads*n.o.Dim
	row, gain, y := n.x.row(s, 0, t, i, o.Dim), n.w.row(s, 1, 0, 0, o.Dim), n.dest.room(s, 2, t, 1, i, o.Dim)
	n.kernels.Normalize(y.Data, row, gain, inverseRoot(n.kernels.Dot(&s.Temp, row, row), o.Dim, o.Eps), o.Offset)
	n.dest.put(y, t, 1, i, o.Dim)
}

// inverseRoot is 1 / √(sum/n + eps).
func inverseRoot(sum float32, n int, eps float32) float32 {
	return float32(1 / math.Sqrt(float64(sum)/float64(n)+float64(eps)))
}

type layerNorm struct {
	*Backend
	o                *engine.LayerNorm
	x, w, bias, dest operand
	ones             []float32
}

func (b *Backend) layerNorm(o *engine.LayerNorm, out, in operands) {
	n := &b.now.layerNorm
	*n = layerNorm{b, o, in.get("x"), in.get("w"), in.get("bias"), out.get("out"), n.ones}
	for len(n.ones) < o.Dim {
		n.ones = append(n.ones, 1)
	}
	b.pool.each(o.Rows(), n.x.Rows*n.x.Cols, n)
}

func (n *layerNorm) item(s *scratch, t int) {
	dim, row := n.o.Dim, s.floats(0, n.o.Dim)
	n.x.read(row, t, 0)
	mean := n.kernels.Dot(&s.Temp, row, n.ones[:dim]) / float32(dim)
	for i, v := range row {
		row[i] = v - mean
	}
	n.kernels.Scale(row, row, inverseRoot(n.kernels.Dot(&s.Temp, row, row), dim, n.o.Eps))
	n.kernels.Mul(row, row, n.w.row(s, 1, 0, 0, dim))
	n.kernels.Add(row, row, n.bias.row(s, 2, 0, 0, dim))
	n.dest.writeRow(t, 0, row)
}

type rope struct {
	*Backend
	o              *engine.RoPE
	x, table, dest operand
}

func (b *Backend) rope(o *engine.RoPE, out, in operands) {
	r := &b.now.rope
	*r = rope{b, o, in.get("x"), in.get("table"), out.get("out")}
	b.pool.each(o.Rows(), r.x.Rows*r.x.Cols, r)
}

func (r *rope) item(s *scratch, t int) {
	o, n, half := r.o, r.o.RotaryDim, r.o.RotaryDim/2
	angles := r.table.row(s, 0, t, 0, n)
	cos, sin := angles[:half], angles[half:]
	for h := range o.Heads {
		i := h * o.Dim
		head, y := r.x.row(s, 1, t, i, o.Dim), r.dest.room(s, 2, t, 1, i, o.Dim)
		if o.Interleaved {
			for i := range half {
				a, b := head[2*i], head[2*i+1]
				y.Data[2*i] = float32(float32(a*cos[i]) - float32(b*sin[i]))
				y.Data[2*i+1] = float32(float32(b*cos[i]) + float32(a*sin[i]))
			}
			r.kernels.Scale(y.Data[:n], y.Data[:n], 1)
		} else {
			r.kernels.Rotate(y.Data[:half], y.Data[half:n], head[:half], head[half:n], cos, sin)
		}
		r.kernels.Scale(y.Data[n:], head[n:], 1)
		r.dest.put(y, t, 1, i, o.Dim)
	}
}

// rowwise computes each output row, in pieces, from the rows of the same number of one or two inputs.
type rowwise struct {
	*Backend
	op         engine.Op
	dest, a, b operand // b is empty if there is one input
}

const piece = 4096 // elements

// rowwise runs an op that is computed so.
func (b *Backend) rowwise(op engine.Op, dest, first, second operand) {
	w := &b.now.rowwise
	*w = rowwise{b, op, dest, first, second}
	b.pool.each(dest.Rows*blocks(dest.Cols, piece), dest.Rows*dest.Cols, w)
}

func (w *rowwise) item(s *scratch, item int) {
	pieces := blocks(w.dest.Cols, piece)
	t := item / pieces
	from, to := span(item%pieces, w.dest.Cols, piece)
	n, b := to-from, []float32(nil)
	if w.b.exists() {
		b = w.b.row(s, 2, t, from, n)
	}
	y := w.dest.room(s, 0, t, 1, from, n)
	w.compute(y.Data, w.a.row(s, 1, t, from, n), b)
	w.dest.put(y, t, 1, from, n)
}

func (w *rowwise) compute(out, a, b []float32) {
	switch o := w.op.(type) {
	case *engine.Add:
		w.kernels.Add(out, a, b)
	case *engine.KVWrite:
		w.kernels.Scale(out, a, 1)
	case *engine.SoftCap:
		w.kernels.SoftCap(out, a, o.Cap)
	case *engine.Activate:
		w.activate(o.F, out, a)
		if b != nil {
			w.kernels.Mul(out, out, b)
		}
	}
}

func (b *Backend) activate(f engine.Function, out, x []float32) {
	switch f {
	case engine.SiLU:
		b.kernels.SiLU(out, x)
	case engine.GELUTanh:
		b.kernels.GELUTanh(out, x)
	case engine.Tanh:
		b.kernels.SoftCap(out, x, 1)
	default:
		for i, v := range x {
			out[i] = float32(activation(f, float64(v)))
		}
		b.kernels.Scale(out, out, 1)
	}
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
