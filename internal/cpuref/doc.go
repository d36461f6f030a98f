// Package cpuref is the CPU reference: a backend that is trusted because of what it guarantees.
//
//   - The same bits whatever the number of threads.
//   - The same bits for a row computed alone or in a batch, so cached decode equals full recompute.
//   - The same bits on every machine.
//
// # The arithmetic, operation by operation
//
// What follows is the specification; package kernel has it as plain Go and as vector code, with the same bits. Every input is widened to
// float32, exactly; every output is rounded once to its buffer's type. Every step below rounds to float32, to
// nearest, ties to even, subnormals included, unless it says float64. Nothing is fused but fma(a, b, c), which is
// a·b + c rounded once. Functions of one variable (exp, tanh, erf) are those of package num, in float64. A NaN
// is stored as the NaN with bits 0x7fc00000, since machines differ in which one an operation gives.
//
// Sums run in eight lanes. For n terms aₖ·bₖ, lane l starts at +0 and takes k = l, l+8, l+16, … in this order,
// each by fma(aₖ, bₖ, lane); n is padded to a multiple of 8 with terms 0·0. Then
//
//	dot(a, b) = ((l0+l1) + (l2+l3)) + ((l4+l5) + (l6+l7))
//
//	weight    float32, float16, bfloat16: the value stored; int8: q·scale[row]
//	Embed     weight · Scale + position; without positions nothing is added
//	RMSNorm   inv = 1 / √(dot(x,x)/Dim + Eps) in float64, rounded at the end;  out = (x·inv) · (Offset+w)
//	LayerNorm m = dot(x, 1)/Dim;  d = x - m;  inv = 1 / √(dot(d,d)/Dim + Eps) in float64, rounded at the end;
//	          out = ((d·inv)·w) + bias
//	Linear    dot(w, x) + bias; without a bias nothing is added
//	          quantized: a = 127 / max|x|, 1 where that is infinite;  q = x·a to the nearest integer, ties to even;  c = Σ q·w, an
//	          integer;  ((c·(1/a)) / scale) + bias;  NaN where a row of x has a NaN or an infinity
//	RoPE      out_a = (a·c) - (b·s);  out_b = (b·c) + (a·s);  elements from RotaryDim on are copied
//	KVWrite   a copy
//	Scores    dot(q, k) · Scale over the Dim elements of a head; +0 where the row does not attend
//	Softmax   eⱼ = exp(xⱼ - max x), difference and exp in float64, then rounded;  out = eⱼ / dot(e, 1);
//	          n is the number of keys attended to; +0 where the row does not attend
//	Context   dot(p, v) over the n keys attended to, lane by key
//	Activate  F(gate) in float64 as listed at activation, rounded;  then · up, if there is one
//	Add       a + b
//	SoftCap   Cap · tanh(x/Cap) in float64, rounded at the end
package cpuref
