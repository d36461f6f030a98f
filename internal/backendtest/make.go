package backendtest

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"testing"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// A Case is an op with its operands. What a backend is given depends on the case's name and its type of activations alone, to the last
// bit on every machine.
type Case struct {
	Name string // the op, then what is special: "linear/float16/1x257x5"
	op   func(m *maker) engine.Op
}

// Build makes the operands in b's memory. The outputs hold NaN, and so do some elements after them.
func (c Case) Build(tb testing.TB, b engine.Backend) engine.Op {
	tb.Helper()
	seed := fnv.New64a()
	seed.Write([]byte(c.Name))
	return c.op(&maker{tb, b, rand.New(rand.NewPCG(seed.Sum64(), 1))})
}

// maker makes operands.
type maker struct {
	tb   testing.TB
	b    engine.Backend
	rand *rand.Rand
}

// guard is how many elements follow each output, to be left alone.
const guard = 37

func (m *maker) try(err error) {
	m.tb.Helper()
	if err != nil {
		m.tb.Fatal(err)
	}
}

// random gives n values in (-size, size), bell-shaped, by operations whose bits are the same everywhere.
func (m *maker) random(n int, size float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32((m.rand.Float64() + m.rand.Float64() + m.rand.Float64() - 1.5) * (size / 1.5))
	}
	return v
}

func repeat(v float32, n int) []float32 {
	s := make([]float32, n)
	for i := range s {
		s[i] = v
	}
	return s
}

// buffer holds values, rounded to the backend's type of activations.
func (m *maker) buffer(values []float32) engine.Buffer {
	m.tb.Helper()
	b, err := m.b.NewBuffer(m.b.Activations(), len(values))
	m.try(err)
	put(m.tb, b, values)
	return b
}

// put overwrites the first elements of a buffer of floating-point numbers.
func put(tb testing.TB, b engine.Buffer, values []float32) {
	tb.Helper()
	data, err := b.Host()
	if err != nil {
		tb.Fatal(err)
	}
	num.PutFloat32s(b.DType(), data, values)
}

// out is a buffer for n elements and the guard, all NaN.
func (m *maker) out(n int) engine.Buffer {
	m.tb.Helper()
	return m.buffer(repeat(float32(math.NaN()), n+guard))
}

// view spreads rows of cols values over a wider matrix, as q, k and v lie in the output of one product; what is between is NaN.
func (m *maker) view(values []float32, cols int) engine.View {
	m.tb.Helper()
	rows, offset, stride := len(values)/cols, 3, cols+5
	all := repeat(float32(math.NaN()), rows*stride)
	for r := range rows {
		copy(all[offset+r*stride:], values[r*cols:][:cols])
	}
	return engine.View{Buffer: m.buffer(all), Offset: offset, Stride: stride}
}

// upload gives a tensor to the backend, at an odd address, as payloads of model.bin may lie.
func (m *maker) upload(d num.DType, data []byte, shape ...int) engine.Buffer {
	m.tb.Helper()
	odd := append(make([]byte, 1, len(data)+1), data...)[1:]
	b, err := m.b.Upload(ctconv.Tensor{Name: "w", DType: d, Shape: shape, Data: odd})
	m.try(err)
	return b
}

// vector is a weight that is float32 on every backend.
func (m *maker) vector(values []float32) engine.Buffer {
	m.tb.Helper()
	data := make([]byte, 4*len(values))
	num.PutFloat32s(num.Float32, data, values)
	return m.upload(num.Float32, data, len(values))
}

// quantized is matrix in int8, with the scales by which a file's rows are divided; at the least also rows of -128, and of ±127 by turns.
func (m *maker) quantized(rows, cols int) engine.Matrix {
	m.tb.Helper()
	data, scale := make([]byte, rows*cols), m.random(rows, 40)
	for i := range data {
		data[i] = byte(m.rand.IntN(255) - 127)
		switch r := i / cols; {
		case rows > 4 && r == 2:
			data[i] = 0x80
		case rows > 4 && r == 3:
			data[i] = byte(127 - 254*(i%2))
		}
	}
	for i := range scale {
		scale[i] += float32(127 * float32(math.Sqrt(float64(cols)))) // never fused: the same bits on every machine
	}
	return engine.Matrix{Buffer: m.upload(num.Int8, data, rows, cols), Scale: m.vector(scale), Rows: rows, Cols: cols}
}

// matrix is a random weight whose products with values of size 1 have size 1, more or less.
func (m *maker) matrix(d num.DType, rows, cols int) engine.Matrix {
	m.tb.Helper()
	n, size := rows*cols, 1/math.Sqrt(float64(cols))
	data, w := make([]byte, n*d.Size()), engine.Matrix{Rows: rows, Cols: cols}
	if d == num.Int8 {
		for i := range data {
			data[i] = byte(m.rand.IntN(255) - 127)
		}
		w.Scale = m.vector(m.random(rows, size/127))
	} else {
		num.PutFloat32s(d, data, m.random(n, size))
	}
	w.Buffer = m.upload(d, data, rows, cols)
	return w
}

// ids are token ids.
func (m *maker) ids(ids ...int32) engine.Buffer {
	m.tb.Helper()
	b, err := m.b.NewBuffer(num.Int32, len(ids))
	m.try(err)
	data, err := b.Host()
	m.try(err)
	for i, id := range ids {
		binary.LittleEndian.PutUint32(data[4*i:], uint32(id))
	}
	return b
}

// table holds the angles p · 10000^(-2i/dim) of so many positions: a row's half cosines, then half sines.
func (m *maker) table(positions, dim int) engine.Buffer {
	m.tb.Helper()
	t := make([]float32, positions*dim)
	for p := range positions {
		for i := range dim / 2 {
			angle := float64(p) * num.Pow(10000, -2*float64(i)/float64(dim))
			t[p*dim+i], t[p*dim+dim/2+i] = float32(num.Cos(angle)), float32(num.Sin(angle))
		}
	}
	return m.vector(t)
}

// place is where a case's op runs.
func place(name string, family engine.Family, p engine.Pass) engine.Place {
	p.Step = 2
	return engine.Place{In: &p, Layer: 1, Name: name, Fam: family}
}
