package fault

import (
	"math"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// int8Faults are mistakes where int8 is multiplied by int8.
var int8Faults = asInt8([]Fault{
	{ID: "quantize-truncated", What: "activations are rounded toward zero, not to the nearest integer",
		Edits: in("quantize.metal", "trunc(v) : rint(v)", "trunc(v) : trunc(v)"),
		Text:  once, Want: born(0, 0, qkv, linear).because("toward zero")},
	{ID: "quantize-128", What: "the largest activation becomes 128, which an int8 does not hold",
		Edits: in("quantize.metal", "127.0f / as_type", "128.0f / as_type"),
		Text:  once, Want: born(0, 0, qkv, linear).healedBy(matrixProducts)},
	{ID: "quantize-sign", What: "the largest activation is looked for without its sign taken off: any negative number passes for the largest",
		Edits: in("quantize.metal", " & 0x7fffffffu", ""), Text: once, Want: born(0, 0, qkv, linear).healedBy(matrixProducts)},
	{ID: "quantize-first-row", What: "all rows of a prompt are quantized by the largest activation of the first",
		Edits: in("quantize.metal", "as_type<uint>(float(x[k]))", "as_type<uint>(float((x - ulong(row) * args.cols)[k]))"),
		Text:  once, Want: born(0, 0, qkv, linear)},
	{ID: "quantize-simdgroup-lost", What: "the last simdgroup's largest is not looked at: columns 224 to 255, which only down has, and seldom there",
		Edits: in("quantize.metal", "i < 8", "i < 7"), Text: once, Want: born(0, Any, "down", linear)},
	{ID: "quantize-barrier", What: "no barrier between writing the simdgroups' largest and looking at them",
		Edits: in("quantize.metal", "    threadgroup_barrier(mem_flags::mem_threadgroup);\n", ""), Text: once, Want: born(0, Any, qkv, linear).healedBy("")},
	{ID: "i8-short-sum", What: "a lane's sum of products is kept in 16 bits",
		Edits: in("linear_i8.metal", "= whole(sum[j][i]);", "= short(whole(sum[j][i]));"),
		Text:  once, Want: born(0, 0, qkv, linear).healedBy(matrixProducts)},
	{ID: "i8-half-sum", What: "products are added up in half, which has no room for them",
		Edits: in("linear_i8.metal", "sum[j][i] = multiply_add(wk[i], qk, sum[j][i]);", "sum[j][i] = float4(half4(multiply_add(wk[i], qk, sum[j][i])));"),
		Text:  once, Want: born(0, 0, qkv, linear).because("float16")},
	{ID: "i8-unsigned", What: "the second four of sixteen weights are widened as if they had no sign, and so are activations",
		Edits: in("linear_i8.metal", "float4(as_type<char4>(v.y))", "float4(as_type<uchar4>(v.y))"),
		Text:  once, Want: born(0, 0, qkv, linear).healedBy(matrixProducts)},
	{ID: "i8-last-sixteen", What: "the last sixteen columns are left out: an off-by-one of the vector loop",
		Edits: in("linear_i8.metal", "k < cols; k += 512", "k + 16 < cols; k += 512"),
		Text:  once, Want: born(0, 0, qkv, linear).healedBy(matrixProducts).because("the last 16 terms")},
	{ID: "i8-lanes-lost", What: "only 16 lanes are added up, not 32: columns from 256 on, which only down has",
		Edits: in("linear_i8.metal", "i < 32; i++) c +=", "i < 16; i++) c +="), Text: once, Want: born(0, 0, "down", linear).because("columns from 256 on")},
	{ID: "i8-scale-multiplied", What: "the sum is multiplied by the row scale, which divides",
		Edits: in("linear_i8.metal", "/ scale[row]", "* scale[row]"),
		Text:  once, Want: born(0, 0, qkv, linear).healedBy(matrixProducts).because("multiplies, and does not divide")},
	{ID: "i8-factor-of-tile", What: "a tile of four tokens has the first one's factor",
		Edits: in("linear_i8.metal", "inverse[token]", "inverse[t]"), Text: once, Want: born(0, 0, qkv, linear)},
	{ID: "i8-factor-dropped", What: "the sum is not divided by the activations' factor",
		Edits: in("linear_i8.metal", "float(c) * inverse[token]", "float(c)"),
		Text:  once, Want: born(0, 0, qkv, linear).healedBy(matrixProducts).because("not divided by x's factor")},
	{ID: "i8-bias-before-scale", What: "the bias is added before the row scale divides",
		Edits: in("linear_i8.metal", "float(c) * inverse[token] / scale[row]", "(float(c) * inverse[token] + (args.hasBias != 0 ? bias[row] * (1.0f - scale[row]) : 0.0f)) / scale[row]"),
		Model: qwen, Text: once, Want: born(0, 0, qkv, linear)},
	{ID: "i8-bias-dropped", What: "the bias is not added",
		Edits: in("linear_i8.metal", "args.hasBias != 0 ? y + bias[row] : y", "y"),
		Model: qwen, Text: once, Want: born(0, 0, qkv, linear).because("bias is left out")},
	{ID: "i8-token", What: "a tile's tokens are all the first of it",
		Edits: in("linear_i8.metal", "min(t + j, args.tokens - 1)", "min(t, args.tokens - 1)"), Text: once, Want: born(0, 0, qkv, linear)},
	{ID: "i8-last-row", What: "the last row of the weight is not multiplied: < n-1 for < n",
		Edits: in("linear_i8.metal", "row < args.rows && token", "row + 1 < args.rows && token"), Text: once, Want: born(0, 0, qkv, linear).healedBy(matrixProducts)},
})

// int8OpFaults are such mistakes around a backend.
var int8OpFaults = asInt8([]Fault{
	{ID: "i8-pairs-saturate", What: "the sum of each pair of products saturates at the ends of an int16, as on an x86 without VNNI",
		Wrap:  running(pairsSaturate), // random weights are large enough for it, and too sensitive for a proof
		Model: golden + "m_gemma18", Text: seven, Want: born(0, 0, qkv, linear).healedBy("").because("saturate")},
	{ID: "i8-widened", What: "the activations are not quantized, the weights are widened",
		Wrap: running(unquantized), Text: once, Want: born(0, 0, qkv, linear).because("not quantized")},
})

func asInt8(faults []Fault) []Fault {
	for i := range faults {
		faults[i].ComputeType = "int8"
	}
	return faults
}

// quantizedLinear runs ops but quantized linears, whose outputs come from product: x's row and the weight's, to what row scale and bias are for.
func quantizedLinear(b engine.Backend, product func(x []float32, w []byte) float32) func(engine.Op) {
	return func(op engine.Op) {
		o, ok := op.(*engine.Linear)
		if !ok || !o.Quantized {
			b.Run(op)
			return
		}
		x, w, out := floatsOf(o.X), bytesOf(o.W.Buffer), bytesOf(o.Out)
		if x == nil || w == nil || out == nil {
			return
		}
		scale, bias := floatsOf(o.W.Scale), []float32(nil)
		if o.Bias != nil {
			bias = floatsOf(o.Bias)
		}
		for i := range o.Rows() * o.W.Rows {
			r, n := i/o.W.Rows, i%o.W.Rows
			y := product(x[r*o.W.Cols:][:o.W.Cols], w[n*o.W.Cols:][:o.W.Cols]) / scale[n]
			if bias != nil {
				y += bias[n]
			}
			num.PutFloat32(o.Out.DType(), out, i, y)
		}
	}
}

// floatsOf widens a buffer.
func floatsOf(b engine.Buffer) []float32 {
	host := bytesOf(b)
	if host == nil {
		return nil
	}
	v := make([]float32, b.Len())
	num.Float32s(v, b.DType(), host)
	return v
}

func pairsSaturate(b engine.Backend) func(engine.Op) {
	return quantizedLinear(b, func(x []float32, w []byte) float32 {
		largest, sum := float32(0), 0
		for _, v := range x {
			largest = max(largest, float32(math.Abs(float64(v))))
		}
		a := 127 / largest
		for i := 0; i < len(x); i += 2 {
			pair := 0
			for j := i; j < min(i+2, len(x)); j++ {
				pair += (128 + int(math.RoundToEven(float64(x[j]*a)))) * int(int8(w[j]))
				sum -= 128 * int(int8(w[j]))
			}
			sum += max(math.MinInt16, min(math.MaxInt16, pair))
		}
		return float32(float32(sum) * (1 / a))
	})
}

func unquantized(b engine.Backend) func(engine.Op) {
	return quantizedLinear(b, func(x []float32, w []byte) float32 {
		sum := 0.0
		for i, v := range x {
			sum += float64(v) * float64(int8(w[i]))
		}
		return float32(sum)
	})
}
