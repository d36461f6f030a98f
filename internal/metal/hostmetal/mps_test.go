package hostmetal

import (
	"testing"

	"github.com/ebitengine/purego"
)

// The data types of MPS.
const (
	mpsFloat32  = 0x10000020
	mpsFloat16  = 0x10000010
	mpsBFloat16 = 0x90000010
)

// mps has the messages of MPSMatrixMultiplication.
type mps struct {
	*gpu
	descriptor func(id, selector, uint64, uint64, uint64, uint32) id
	matrix     func(id, selector, id, uint64, id) id
	multiplier func(id, selector, id, bool, bool, uint64, uint64, uint64, float64, float64) id
	encode     func(id, selector, id, id, id, id)
}

func newMPS(g *gpu) mps {
	m := mps{gpu: g}
	lib, err := Library()
	if err != nil {
		g.t.Fatal(err)
	}
	handle, err := purego.Dlopen(lib.Path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		g.t.Fatal(err)
	}
	for _, fn := range []any{&m.descriptor, &m.matrix, &m.multiplier, &m.encode} {
		purego.RegisterLibFunc(fn, handle, "objc_msgSend")
	}
	return m
}

// view makes a matrix, which is released at the end of the test.
func (m mps) view(b id, offset uint64, rows, columns, rowBytes int, dataType uint32) id {
	d := m.descriptor(objc.class("MPSMatrixDescriptor"), objc.sel("matrixDescriptorWithRows:columns:rowBytes:dataType:"),
		uint64(rows), uint64(columns), uint64(rowBytes), dataType)
	x := m.matrix(send(objc.class("MPSMatrix"), "alloc"), objc.sel("initWithBuffer:offset:descriptor:"), b, offset, d)
	m.t.Cleanup(func() { release(x) })
	return x
}

func (m mps) multiply(transposeLeft, transposeRight bool, rows, columns, inner int, alpha, beta float64, left, right, result id) (commands id) {
	k := m.multiplier(send(objc.class("MPSMatrixMultiplication"), "alloc"),
		objc.sel("initWithDevice:transposeLeft:transposeRight:resultRows:resultColumns:interiorColumns:alpha:beta:"), m.device,
		transposeLeft, transposeRight, uint64(rows), uint64(columns), uint64(inner), alpha, beta)
	m.t.Cleanup(func() { release(k) })
	commands = send(m.queue, "commandBuffer")
	m.encode(k, objc.sel("encodeToCommandBuffer:leftMatrix:rightMatrix:resultMatrix:"), commands, left, right, result)
	return commands
}

// TestMatrixMultiplication: both transpositions, alpha and beta, strides and offsets, on numbers whose products are exact.
func TestMatrixMultiplication(t *testing.T) {
	m := newMPS(newGPU(t, saxpy, precise))
	const rows, columns, inner, gap = 11, 19, 131, 3
	at := func(i, k int) float32 { return float32((i*7+k*5)%13 - 6) }
	// matrix gives one of rows by columns whose element (i, k) is at(i, k), or its transpose as it lies in memory, from an offset of one element on.
	matrix := func(rows, columns int, transposed bool) id {
		r, c := rows, columns
		if transposed {
			r, c = columns, rows
		}
		v := make([]float32, 1+r*(c+gap))
		for i := range r {
			for k := range c {
				v[1+i*(c+gap)+k] = at(i, k)
				if transposed {
					v[1+i*(c+gap)+k] = at(k, i)
				}
			}
		}
		return m.view(buffer(m.gpu, v), 4, r, c, 4*(c+gap), mpsFloat32)
	}
	for i := range 8 {
		transposeLeft, transposeRight, alpha, beta := i&1 != 0, i&2 != 0, 1.0, 0.0
		if i&4 != 0 {
			alpha, beta = 0.5, 2
		}
		old := buffer(m.gpu, make([]float32, rows*columns))
		for i := range rows * columns {
			contents[float32](old, rows*columns)[i] = float32(i)
		}
		commands := m.multiply(transposeLeft, transposeRight, rows, columns, inner, alpha, beta,
			matrix(rows, inner, transposeLeft), matrix(inner, columns, transposeRight), m.view(old, 0, rows, columns, 4*columns, mpsFloat32))
		objc.sendVoid(commands, objc.sel("commit"))
		objc.sendVoid(commands, objc.sel("waitUntilCompleted"))
		for i, got := range contents[float32](old, rows*columns) {
			sum := 0.0
			for k := range inner {
				sum += float64(at(i/columns, k) * at(k, i%columns))
			}
			if want := alpha*sum + beta*float64(i); float64(got) != want {
				t.Fatalf("transposed %t and %t: element %d is %v, want %v", transposeLeft, transposeRight, i, got, want)
			}
		}
	}
}

// mpsMisuses are more of misuses.
var mpsMisuses = map[string]struct {
	want string
	do   func(m mps, x id) // a buffer of 6 floats
}{
	"matrix without a buffer": {"buffer may not be nil.", func(m mps, x id) { m.view(0, 0, 2, 3, 12, mpsFloat32) }},
	"matrix, short rows":      {"not enough rowBytes for all the columns", func(m mps, x id) { m.view(x, 0, 2, 3, 8, mpsFloat32) }},
	"matrix, odd rows":        {"must be multiples of the element size(4)", func(m mps, x id) { m.view(x, 0, 1, 3, 14, mpsFloat32) }},
	"matrix, odd offset":      {"must be multiples of the element size(4)", func(m mps, x id) { m.view(x, 2, 1, 3, 12, mpsFloat32) }},
	"matrix past the end":     {"exceed the buffer length(24)", func(m mps, x id) { m.view(x, 4, 2, 3, 12, mpsFloat32) }},
	"matrix of bfloat16": {"Input data type must be one of MPSDataTypeFloat32", func(m mps, x id) {
		b := m.view(x, 0, 2, 2, 4, mpsBFloat16)
		m.multiply(false, true, 2, 2, 2, 1, 0, b, b, m.view(x, 0, 2, 2, 8, mpsFloat32))
	}},
	"float16 by float32": {"Mixed input matrix multiplication is only for", func(m mps, x id) {
		f := m.view(x, 0, 2, 2, 8, mpsFloat32)
		m.multiply(false, true, 2, 2, 2, 1, 0, m.view(x, 0, 2, 2, 4, mpsFloat16), f, f)
	}},
	"too many rows": {"Number of requested rows(3) in left input matrix exceeds left input matrix size(2).", func(m mps, x id) {
		f := m.view(x, 0, 2, 2, 8, mpsFloat32)
		m.multiply(false, true, 3, 2, 2, 1, 0, f, f, f)
	}},
	"too many columns": {"Number of requested columns(3) in right input matrix exceeds right input matrix size(2).", func(m mps, x id) {
		f := m.view(x, 0, 2, 2, 8, mpsFloat32)
		m.multiply(false, true, 2, 2, 3, 1, 0, m.view(x, 0, 2, 3, 12, mpsFloat32), f, f)
	}},
	"open encoder under MPS": {"A command encoder is already encoding to this command buffer", func(m mps, x id) {
		f := m.view(x, 0, 2, 2, 8, mpsFloat32)
		k := m.multiplier(send(objc.class("MPSMatrixMultiplication"), "alloc"),
			objc.sel("initWithDevice:transposeLeft:transposeRight:resultRows:resultColumns:interiorColumns:alpha:beta:"), m.device, false, true, 2, 2, 2, 1, 0)
		commands := send(m.queue, "commandBuffer")
		send(commands, "computeCommandEncoder")
		m.encode(k, objc.sel("encodeToCommandBuffer:leftMatrix:rightMatrix:resultMatrix:"), commands, f, f, f)
	}},
}

func init() {
	for name, m := range mpsMisuses {
		misuses[name] = struct {
			want string
			do   func(g *gpu)
		}{m.want, func(g *gpu) { m.do(newMPS(g), buffer(g, make([]float32, 6))) }}
	}
}
