package engine_test

import (
	"encoding/binary"
	"math"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// saturating is a backend whose quantized linears are those of CTranslate2 on an x86 without VNNI (oneDNN's u8·s8 kernel): an input is rounded
// after 128 is added, to a uint8, and the sum of each pair of products saturates at the ends of an int16.
type saturating struct{ engine.Backend }

func (b *saturating) Run(op engine.Op) {
	if o, ok := op.(*engine.Linear); ok && o.Quantized {
		for t := range o.Rows() {
			b.row(o, t)
		}
		return
	}
	b.Backend.Run(op)
}

func (b *saturating) row(o *engine.Linear, t int) {
	n, k := o.W.Rows, o.W.Cols
	x, q, w := floats(o.X, t*k, k), make([]int, k), bytesOf(o.W.Buffer)
	top := float32(0)
	for _, v := range x {
		top = max(top, float32(math.Abs(float64(v))))
	}
	a := float32(1)
	if top != 0 {
		a = 127 / top
	}
	for i, v := range x {
		q[i] = int(math.RoundToEven(float64(float32(v*a) + 128)))
	}
	scale, y := floats(o.W.Scale, 0, n), make([]float32, n)
	for r := range n {
		row, sum, shift := w[r*k:][:k], 0, 0
		for i := 0; i < k; i += 2 {
			pair := 0
			for j := i; j < min(i+2, k); j++ {
				pair += q[j] * int(int8(row[j]))
				shift += 128 * int(int8(row[j]))
			}
			sum += max(math.MinInt16, min(math.MaxInt16, pair))
		}
		y[r] = float32(float32(sum-shift)*(1/a)) / scale[r]
	}
	if o.Bias != nil {
		for r, v := range floats(o.Bias, 0, n) {
			y[r] += v
		}
	}
	num.PutFloat32s(num.Float32, bytesOf(o.Out)[4*t*n:], y)
}

func bytesOf(b engine.Buffer) []byte {
	host, err := b.Host()
	if err != nil {
		panic(err)
	}
	return host
}

func floats(b engine.Buffer, from, n int) []float32 {
	v, host := make([]float32, n), bytesOf(b)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(host[4*(from+i):]))
	}
	return v
}
