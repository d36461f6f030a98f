package backendtest

import (
	"math"
	"testing"

	"llmrun/internal/cpuref"
	"llmrun/internal/cpuref/oracle"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// tampered is a backend that gets one element of every op's first output wrong.
type tampered struct {
	engine.Backend
	wrong func(j oracle.Judged, i int) float32
	index int // of the element
}

// Run leaves op's answer but for the element.
func (b *tampered) Run(op engine.Op) {
	b.Backend.Run(op)
	judged, err := oracle.Judge(op)
	if err != nil {
		panic(err)
	}
	j := judged[0]
	b.index = len(j.Want) / 3
	for math.IsNaN(j.Want[b.index]) || math.IsInf(j.Want[b.index], 0) || j.Allowed[b.index] > math.MaxFloat32 {
		if b.index++; b.index == len(j.Want) {
			b.index = -1 // nothing but NaN is right
			return
		}
	}
	o := j.Operand
	data, err := o.Buffer.Host()
	if err != nil {
		panic(err)
	}
	at := o.Offset + b.index/o.Cols*o.Stride + b.index%o.Cols
	num.PutFloat32(o.Buffer.DType(), data, at, b.wrong(j, b.index))
}

// A little wrong is just beyond the bound: three times it, so that rounding to float32, which is one bound at most, leaves two. Where one
// answer alone is right, its neighbour is wrong.
func littleWrong(j oracle.Judged, i int) float32 {
	if j.Allowed[i] == 0 {
		return math.Nextafter32(float32(j.Want[i]), float32(math.Inf(1)))
	}
	return float32(j.Want[i] + 3*j.Allowed[i])
}

// The comparison must fail a backend that errs in one element, in any case of the table, and point at it.
func TestOneWrongElementIsFound(t *testing.T) {
	for name, wrong := range map[string]func(j oracle.Judged, i int) float32{
		"a little wrong": littleWrong,
		"NaN":            func(oracle.Judged, int) float32 { return float32(math.NaN()) },
		"infinite":       func(oracle.Judged, int) float32 { return float32(math.Inf(-1)) },
	} {
		t.Run(name, func(t *testing.T) {
			b := &tampered{Backend: cpuref.Open(cpuref.Options{Threads: 1}), wrong: wrong}
			defer b.Close()
			for _, c := range Cases() {
				op := c.Build(t, b)
				b.Run(op)
				found, err := compare(op)
				if err != nil {
					t.Fatal(err)
				}
				if f := found[0]; b.index >= 0 && (f.Bad != 1 || f.WorstIndex != b.index || !(f.WorstRatio > 1)) {
					t.Errorf("%s: element %d is wrong; the comparison found %d, the worst %d, %g × its bound", c.Name, b.index, f.Bad, f.WorstIndex, f.WorstRatio)
				}
			}
		})
	}
}

// The bounds are tight enough to see what kernels get wrong, in the table's own cases.
func TestKernelMistakesAreFound(t *testing.T) {
	half := func(v float32) float32 { return num.Float16ToFloat32(num.Float32ToFloat16(v)) }
	mistakes := map[string]func(op engine.Op, b engine.Backend) bool{ // false: not that op
		"the last column of W is left out": func(op engine.Op, b engine.Backend) bool {
			o, ok := op.(*engine.Linear)
			if !ok || o.W.Buffer.DType() != num.Float32 {
				return false
			}
			return replace(o.Out, func(i int) float32 {
				t, n := i/o.W.Rows, i%o.W.Rows
				return at(o.Out, i) - at(o.X, t*o.W.Cols+o.W.Cols-1)*at(o.W.Buffer, n*o.W.Cols+o.W.Cols-1)
			}, o.Rows()*o.W.Rows)
		},
		"products are summed in halves": func(op engine.Op, b engine.Backend) bool {
			o, ok := op.(*engine.Linear)
			if !ok || o.W.Buffer.DType() != num.Float16 || o.Bias != nil {
				return false
			}
			return replace(o.Out, func(i int) (sum float32) {
				for k := range o.W.Cols {
					sum = half(sum + at(o.X, i/o.W.Rows*o.W.Cols+k)*at(o.W.Buffer, i%o.W.Rows*o.W.Cols+k))
				}
				return sum
			}, o.Rows()*o.W.Rows)
		},
		"GELU's tanh overflows": func(op engine.Op, b engine.Backend) bool {
			o, ok := op.(*engine.Activate)
			if !ok || o.F != engine.GELUTanh || o.Up != nil || o.Dim != 1 || o.Rows() < 10 {
				return false
			}
			return replace(o.Out, func(i int) float32 {
				x := at(o.Gate, i)
				e := float32(math.Exp(2 * math.Sqrt(2/math.Pi) * float64(x+0.044715*x*x*x)))
				return 0.5 * x * (1 + (e-1)/(e+1))
			}, o.Rows())
		},
		"eps is left out": func(op engine.Op, b engine.Backend) bool {
			o, ok := op.(*engine.RMSNorm)
			if !ok {
				return false
			}
			without := *o
			without.Eps = 0
			b.Run(&without)
			return true
		},
		"the softmax sees one key too few": func(op engine.Op, b engine.Backend) bool {
			o, ok := op.(*engine.Softmax)
			if !ok || o.Rows() != 1 || o.Out.Len()-guard <= o.Heads {
				return false
			}
			return replace(o.Out, func(i int) float32 {
				keys := (o.Out.Len() - guard) / o.Heads
				if i%keys == keys-1 {
					return 0
				}
				return at(o.Out, i) / (1 - at(o.Out, i/keys*keys+keys-1))
			}, o.Out.Len()-guard)
		},
	}
	for name, mistake := range mistakes {
		t.Run(name, func(t *testing.T) {
			b := cpuref.Open(cpuref.Options{Threads: 1})
			defer b.Close()
			cases, caught := 0, 0
			for _, c := range Cases() {
				op := c.Build(t, b)
				b.Run(op)
				if !mistake(op, b) {
					continue
				}
				found, err := compare(op)
				if err != nil {
					t.Fatal(err)
				}
				cases++
				if !found[0].OK() {
					caught++
				}
			}
			if caught == 0 {
				t.Errorf("none of %d cases caught it", cases)
			}
			t.Logf("%d of %d cases caught it", caught, cases)
		})
	}
}

func at(b engine.Buffer, i int) float32 {
	data, err := b.Host()
	if err != nil {
		panic(err)
	}
	return num.Float32At(b.DType(), data, i)
}

// replace computes n elements of out anew, all from what it holds before.
func replace(out engine.Buffer, f func(i int) float32, n int) bool {
	v := make([]float32, n)
	for i := range v {
		v[i] = f(i)
	}
	data, err := out.Host()
	if err != nil {
		panic(err)
	}
	num.PutFloat32s(out.DType(), data, v)
	return true
}
