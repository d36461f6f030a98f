package shadow

import (
	"math"
	"slices"
	"strings"
	"testing"

	"llmrun/internal/cpuref/oracle"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// requantized computes a quantized linear from the integers of its own: quantize gives a row's, and their factor; sum is of products.
func requantized(quantize func(x []float32) (q []float64, a float32), sum func(q []float64, w []int8) float64) func(op engine.Op, out []float32) {
	return func(op engine.Op, out []float32) {
		o := op.(*engine.Linear)
		x, scale, k := operand(op, "x"), operand(op, "scale"), o.W.Cols
		host, _ := o.W.Buffer.Host()
		w := make([]int8, o.W.Rows*k)
		for i := range w {
			w[i] = int8(host[i])
		}
		for i := range out {
			r, n := i/o.W.Rows, i%o.W.Rows
			q, a := quantize(x[r*k:][:k])
			out[i] = float32(float32(sum(q, w[n*k:][:k]))*(1/a)) / scale[n]
			if o.Bias != nil {
				out[i] += operand(op, "bias")[n]
			}
		}
	}
}

func top(x []float32) (most float32) {
	for _, v := range x {
		most = max(most, float32(math.Abs(float64(v))))
	}
	return most
}

func rounded(x []float32, a float32, shift float32) (q []float64) {
	for _, v := range x {
		q = append(q, math.RoundToEven(float64(float32(v*a)+shift))-float64(shift))
	}
	return q
}

func product(q []float64, w []int8) (sum float64) {
	for i, v := range q {
		sum += v * float64(w[i])
	}
	return sum
}

func saturating(q []float64, w []int8) (sum float64) {
	for i := 0; i < len(q); i += 2 {
		pair := (q[i]+128)*float64(w[i]) + (q[i+1]+128)*float64(w[i+1])
		sum += max(-32768, min(32767, pair)) - 128*(float64(w[i])+float64(w[i+1]))
	}
	return sum
}

// Each mistake in a quantized linear is named.
func TestWhyQuantized(t *testing.T) {
	own := func(x []float32) ([]float64, float32) { return rounded(x, 127/top(x), 0), 127 / top(x) }
	fixed := func(a float32) func(x []float32) ([]float64, float32) {
		return func(x []float32) ([]float64, float32) {
			q := rounded(x, a, 0)
			for i, v := range q {
				q[i] = max(-128, min(127, v))
			}
			return q, a
		}
	}
	first := func(op engine.Op) float32 {
		x := operand(op, "x")
		return top(x[:op.(*engine.Linear).W.Cols])
	}
	scaled := func(by func(op engine.Op, r, n int) float32) func(op engine.Op, out []float32) {
		return func(op engine.Op, out []float32) {
			n := op.(*engine.Linear).W.Rows
			for i := range out {
				out[i] *= by(op, i/n, i%n)
			}
		}
	}
	for _, c := range []struct {
		model string
		fault func(engine.Backend) *faulty
		why   string
	}{
		{"m_gemma18", instead("qkv", func(o *engine.Linear) engine.Op { x := *o; x.Truncated = true; return &x }), "rounded toward zero"},
		{"v4", instead("qkv", func(o *engine.Linear) engine.Op { x := *o; x.Truncated = false; return &x }), "to the nearest integer, not toward zero"},
		{"tiny-qwen2", instead("qkv", func(o *engine.Linear) engine.Op { x := *o; x.Bias = nil; return &x }), "the bias is left out"},
		{"m_gemma18", altered("qkv", requantized(func(x []float32) ([]float64, float32) { return rounded(x, 127/top(x), 128), 127 / top(x) }, saturating)), "saturate"},
		{"m_gemma18", altered("qkv", func(op engine.Op, out []float32) {
			requantized(fixed(127/top(operand(op, "x"))), product)(op, out)
		}), "all rows have one factor"},
		{"m_gemma18", altered("qkv", func(op engine.Op, out []float32) { requantized(fixed(127/first(op)), product)(op, out) }), "quantized with the first one's factor"},
		{"m_gemma18", altered("qkv", scaled(func(op engine.Op, r, _ int) float32 {
			return first(op) / top(operand(op, "x")[r*op.(*engine.Linear).W.Cols:][:op.(*engine.Linear).W.Cols])
		})), "divided by the first one's factor"},
		{"m_gemma18", altered("qkv", requantized(func(x []float32) ([]float64, float32) { return fixed(128 / top(x))(x) }, product)), "128/max"},
		{"m_gemma18", altered("qkv", scaled(func(op engine.Op, _, n int) float32 {
			s := operand(op, "scale")[n]
			return s * s
		})), "multiplies, and does not divide"},
		{"m_gemma18", altered("qkv", requantized(own, func(q []float64, w []int8) float64 { return product(q[:len(q)-4], w) })), "the last 4 terms are missing"},
		{"m_gemma18", altered("down", func(op engine.Op, out []float32) {
			x, s, o := operand(op, "x"), operand(op, "scale"), op.(*engine.Linear)
			host, _ := o.W.Buffer.Host()
			for i := range out {
				sum, n := 0.0, i%o.W.Rows
				for k, v := range x[i/o.W.Rows*o.W.Cols:][:o.W.Cols] {
					sum += float64(v) * float64(int8(host[n*o.W.Cols+k]))
				}
				out[i] = float32(sum / float64(s[n]))
			}
		}), "x is not quantized"},
	} {
		t.Run(c.model+" "+c.why, func(t *testing.T) {
			list := followAs(t, c.model, c.fault(cpu(t)), text, 4, true).Findings()
			if len(list) == 0 {
				t.Fatal("nothing was found")
			}
			if f := list[0]; f.Op != "linear" || f.Between != nil || !slices.ContainsFunc(f.Why, func(s string) bool { return strings.Contains(s, c.why) }) {
				t.Errorf("want a linear, because %s: %+v", c.why, f)
			}
		})
	}
}

// A row of zeros without a factor of its own.
func TestWhyZeroGuard(t *testing.T) {
	b := cpu(t)
	const rows, cols, n = 3, 32, 5
	buffer := func(d num.DType, values ...float32) engine.Buffer {
		x, err := b.NewBuffer(d, len(values))
		if err != nil {
			t.Fatal(err)
		}
		host, _ := x.Host()
		for i, v := range values {
			if d == num.Int8 {
				host[i] = byte(int8(v))
			} else {
				num.PutFloat32(d, host, i, v)
			}
		}
		return x
	}
	var x, w, scale []float32
	for i := range rows * cols {
		x = append(x, float32(i%7)-3)
	}
	clear(x[cols : 2*cols])
	for i := range n * cols {
		w = append(w, float32(i%255)-127)
	}
	for i := range n {
		scale = append(scale, float32(100+i))
	}
	o := &engine.Linear{Place: engine.Place{In: &engine.Pass{Rows: rows}, Name: "qkv", Fam: engine.FamilyLinear}, Quantized: true,
		Out: buffer(num.Float32, make([]float32, rows*n)...), X: buffer(num.Float32, x...),
		W: engine.Matrix{Buffer: buffer(num.Int8, w...), Scale: buffer(num.Float32, scale...), Rows: n, Cols: cols}}
	b.Run(o)
	judged, err := oracle.Judge(o)
	if err != nil {
		t.Fatal(err)
	}
	got, err := judged[0].Got()
	if err != nil {
		t.Fatal(err)
	}
	if r := judged[0].Compare(got); !r.OK() {
		t.Fatalf("as it should be: %+v", r)
	}
	for i := n; i < 2*n; i++ {
		got[i] = math.NaN()
	}
	v := &verdict{op: o, Judged: judged[0], Report: judged[0].Compare(got), got: got, written: make([]byte, 4*rows*n)}
	why, err := v.why()
	if err != nil || len(why) == 0 || !strings.Contains(why[0], "127/max|x| is +Inf") {
		t.Errorf("want the infinite factor, got %q, %v", why, err)
	}
}
