package fault

import "llmrun/internal/engine"

const (
	qkv, lmHead = "qkv", "lm_head"
	linear      = engine.FamilyLinear
)

// linearFaults are mistakes in the matrix product. It is one kernel for all of them, lm_head included.
var linearFaults = []Fault{
	{ID: "linear-barrier", What: "no barrier between writing the lanes' sums and adding them up",
		Edits: in("linear.metal", "simdgroup_barrier(mem_flags::mem_threadgroup);", ""), Text: once, Want: born(0, 0, qkv, linear).healedBy(matrixProducts)},
	{ID: "linear-half-sums", What: "a lane's sums are rounded to half before they are added up",
		Edits: in("gemv.h", "return (v.x + v.y) + (v.z + v.w);", "return float(half((v.x + v.y) + (v.z + v.w)));"),
		Text:  once, Want: born(0, 0, qkv, linear).healedBy(matrixProducts).because("float16")},
	{ID: "linear-half-accumulator", What: "one of four rows is accumulated in half",
		Edits: in("gemv.h", "= fma(wk[i], xk, sum.of[t][i]);", "= i == 1 ? float4(half4(fma(wk[i], xk, sum.of[t][i]))) : fma(wk[i], xk, sum.of[t][i]);"),
		Text:  once, Want: born(0, 0, qkv, linear).healedBy(matrixProducts)},
	{ID: "linear-lane-lost", What: "the last four lanes' sums are not added: 7 for 8",
		Edits: in("gemv.h", "for (uint i = 1; i < 8; i++)", "for (uint i = 1; i < 7; i++)"), Text: once, Want: born(0, 0, qkv, linear).healedBy(matrixProducts)},
	{ID: "linear-uninitialized", What: "the sums' padding, which nobody writes, is added too: 9 for 8",
		Edits: in("gemv.h", "for (uint i = 1; i < 8; i++)", "for (uint i = 1; i < 9; i++)"), Text: once, Want: born(0, 0, qkv, linear).healedBy(matrixProducts)},
	{ID: "linear-tail", What: "columns beyond the last whole 128 are left out; only down has some, 352",
		Edits: in("gemv.h", "k + 4 <= cols;", "k + 4 <= (cols < 128 ? cols : cols / 128 * 128);", "if (k < cols)", "if (k < cols && cols < 128)"),
		Text:  once, Want: born(0, 0, "down", linear).because("columns from 256 on")},
	{ID: "linear-last-column", What: "the last column is left out: < for <= in the vector loop, and what remains takes at most three",
		Edits: in("gemv.h", "k + 4 <= cols;", "k + 4 < cols;"), Text: once, Want: born(0, 0, qkv, linear).healedBy(matrixProducts)},
	{ID: "linear-last-row", What: "the last row of the weight is not multiplied: < n-1 for < n",
		Edits: in("linear.metal", "row < args.rows && token", "row + 1 < args.rows && token"), Text: once, Want: born(0, 0, qkv, linear).healedBy(matrixProducts)},
	{ID: "linear-last-tile", What: "tokens beyond the last whole tile of four get no result",
		Edits: in("linear.metal", "token < args.tokens) {", "token < args.tokens / TOKENS * TOKENS) {"), Text: once, Want: born(0, 0, qkv, linear)},
	{ID: "linear-past-the-end", What: "results beyond the last row are stored as well; 97 rows make no whole tile",
		Edits: in("linear.metal", "row < args.rows && token", "token"),
		Model: golden + "m_llama", Text: "1", Want: born(1, engine.NoLayer, lmHead, engine.FamilyLMHead).because("388 bytes")},
	{ID: "linear-m1-row", What: "for one token results are stored as if their rows were one less apart",
		Edits: in("linear.metal", "lane % ROWS * apart", "lane % ROWS * (TOKENS == 1 ? apart - 1 : apart)"),
		Text:  once, Want: born(1, 0, qkv, linear).healedBy(matrixProducts)},
	{ID: "linear-m4-token", What: "a tile's third token is read for the fourth as well: only with several tokens at once",
		Edits: in("linear.metal", "t, 1, args.tokens, args.cols", "t, 1, min(args.tokens, t + 3), args.cols"), Text: once, Want: born(0, 0, qkv, linear)},
	{ID: "linear-index-overflow", What: "the index of a weight's element is 16 bits wide: rows from 512 on wrap, which only the vocabulary has",
		Edits: in("gemv.h", "w + ulong(row) * cols", "w + ushort(row * cols)"),
		Text:  once, Want: born(1, engine.NoLayer, lmHead, engine.FamilyLMHead)},
	{ID: "linear-bias-dropped", What: "the bias is not added",
		Edits: in("linear.metal", "args.hasBias != 0 ? v + bias[row] : v", "v"),
		Model: qwen, Text: once, Want: born(0, 0, qkv, linear).because("bias is left out")},
	{ID: "linear-bias-row", What: "each tile reads the bias from its beginning",
		Edits: in("linear.metal", "bias[row]", "bias[row - n]"), Model: qwen, Text: once, Want: born(0, 0, qkv, linear)},
	{ID: "linear-bias-twice", What: "the bias is added by every partial sum that has one: twice",
		Edits: in("linear.metal", "v + bias[row]", "v + bias[row] + bias[row]"), Model: qwen, Text: once, Want: born(0, 0, qkv, linear).because("twice")},
	{ID: "linear-int8-scale-dropped", What: "int8 weights are not multiplied by their row's scale",
		Edits: in("gemv.h", "return wk * scale;", "return wk;"),
		Model: golden + "m_gemma18", Text: seven, Want: born(0, 0, qkv, linear).healedBy(matrixProducts).because("row scale")},
	{ID: "linear-int8-scale-row", What: "four rows of int8 weights are multiplied by the first one's scale",
		Edits: in("gemv.h", "r.scale[i] = row_scale(w, scale, row);", "r.scale[i] = row_scale(w, scale, min(first, rows - 1));"),
		Model: golden + "m_gemma18", Text: seven, Want: born(0, 0, qkv, linear).healedBy(matrixProducts)},
	{ID: "linear-int8-unsigned", What: "int8 weights are widened as if they had no sign",
		Edits: in("widen.h", "inline float4 widen(char4 w) { return float4(w); }",
			"inline float4 widen(char4 w) { return float4(float(uchar(w.x)), float(uchar(w.y)), float(uchar(w.z)), float(uchar(w.w))); }"),
		Model: golden + "m_gemma18", Text: seven, Want: born(0, 0, qkv, linear).healedBy(matrixProducts)},
}
