package fault

import "llmrun/internal/engine"

const attnNorm, norm = "attn_norm", engine.FamilyNorm

// normFaults are mistakes in the kernels that normalize rows.
var normFaults = []Fault{
	{ID: "rms-epsilon", What: "the epsilon is 1e-6, whatever the model says",
		Edits: in("rms.h", "/ float(dim) + eps", "/ float(dim) + 1e-6f"),
		Model: golden + "m_llama", Text: seven, Want: born(0, 0, attnNorm, norm)},
	{ID: "rms-epsilon-outside", What: "the epsilon is added to the root, not under it",
		Edits: in("rms.h", "precise::rsqrt(simd_sum(sum) / float(dim) + eps)", "1.0f / (precise::sqrt(simd_sum(sum) / float(dim)) + eps)"),
		Model: golden + "m_llama", Text: seven, Want: born(0, 0, attnNorm, norm)},
	{ID: "gamma-plus-one-dropped", What: "the norm multiplies by w, where the file stores w-1",
		Edits: in("rmsnorm.metal", "(args.offset + w[i])", "w[i]"), Text: once, Want: born(0, 0, attnNorm, norm).because("0 + w, not 1 + w")},
	{ID: "gamma-plus-one-doubled", What: "the norm multiplies by 1+w, where the file stores w itself",
		Edits: in("rmsnorm.metal", "(args.offset + w[i])", "(1.0f + args.offset + w[i])"),
		Model: qwen, Text: once, Want: born(0, 0, attnNorm, norm).because("1 + w, not 0 + w")},
	{ID: "rms-sum-for-mean", What: "the squares are added up, but not divided by their number",
		Edits: in("rms.h", "simd_sum(sum) / float(dim)", "simd_sum(sum)"), Text: once, Want: born(0, 0, attnNorm, norm).because("not divided")},
	{ID: "rms-half-accumulator", What: "the sum of squares is kept in half",
		Edits: in("rms.h", "sum = fma(v, v, sum);", "sum = float(half(fma(v, v, sum)));"), Text: once, Want: born(0, 0, attnNorm, norm)},
	{ID: "rms-lanes-not-added", What: "each lane normalizes by its own share of the squares: simd_sum is missing",
		Edits: in("rms.h", "simd_sum(sum)", "sum"), Text: once, Want: born(0, 0, attnNorm, norm)},
	{ID: "rms-tail", What: "squares beyond the last whole 32 of a row are left out of the sum; heads have 24",
		Edits: in("rms.h", "i += 32) {\n        float v", "i += 32) {\n        if (i >= dim / 32 * 32) break;\n        float v"),
		Model: golden + "m_gemma3", Text: seven, Want: born(0, 0, "q_norm", norm)},
	{ID: "head-norm-stride", What: "a head's norm reads rows as if they were packed, not rows of qkv",
		Edits: in("rmsnorm.metal", "ulong(group.y) * args.stride", "ulong(group.y) * groups.x * args.dim"),
		Model: golden + "m_gemma3", Text: seven, Want: born(0, 0, "q_norm", norm)},
	{ID: "head-norm-weight", What: "the norm of head h reads its weights from element h on, the last ones past the end",
		Edits: in("rmsnorm.metal", "args.offset + w[i]", "args.offset + w[min(i + group.x, args.dim - 1)]"),
		Model: golden + "m_gemma3", Text: seven, Want: born(0, 0, "q_norm", norm)},
	{ID: "layernorm-bias-dropped", What: "LayerNorm without its bias",
		Edits: in("layernorm.metal", "w[i], bias[i]", "w[i], 0.0f"),
		Model: golden + "v2", Text: seven, Want: born(0, 0, attnNorm, norm).because("bias")},
	{ID: "layernorm-bessel", What: "the variance is divided by n-1, as statistics programs do",
		Edits: in("layernorm.metal", "simd_sum(squares) / float(args.dim)", "simd_sum(squares) / float(args.dim - 1)"),
		Model: golden + "v2", Text: seven, Want: born(0, 0, attnNorm, norm)},
	{ID: "layernorm-epsilon", What: "LayerNorm's epsilon is 1e-3, a library's default, not 1e-5",
		Edits: in("layernorm.metal", "+ args.eps", "+ 1e-3f"),
		Model: golden + "v2", Text: seven, Want: born(0, 0, attnNorm, norm).because("epsilon is 0.001")},
	{ID: "layernorm-mean-kept", What: "the mean is taken off for the variance, but not from the result",
		Edits: in("layernorm.metal", "(float(x[i]) - mean) * inv", "float(x[i]) * inv"),
		Model: golden + "v2", Text: seven, Want: born(0, 0, attnNorm, norm)},
}
