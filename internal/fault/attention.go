package fault

import "llmrun/internal/engine"

const (
	qRope, kvWrite, scores, softmax, contextSite = "q_rope", "kv_write", "scores", "softmax", "context"

	rope, kv         = engine.FamilyRoPE, engine.FamilyKV
	familyScores     = engine.FamilyScores
	familySoftmax    = engine.FamilySoftmax
	familyOfContexts = engine.FamilyContext
)

// attentionFaults are mistakes in the kernels between the projections: rotation, cache, scores, softmax, context.
var attentionFaults = []Fault{
	{ID: "rope-interleaved", What: "pairs are neighbours (2i, 2i+1), where the model has halves (i, i+dim/2)",
		Edits: in("rope.metal", "pair = args.interleaved != 0", "pair = args.interleaved == 0",
			"first = args.interleaved != 0", "first = args.interleaved == 0", "other = args.interleaved != 0", "other = args.interleaved == 0"),
		Text: once, Want: born(0, 0, qRope, rope)},
	{ID: "rope-one-ahead", What: "every position is one too many; scores depend on differences only, so no token changes",
		Edits: in("rope.metal", "table += ulong(t) *", "table += ulong(t + 1) *"), Text: once, Want: born(0, 0, qRope, rope)},
	{ID: "rope-one-behind", What: "the positions of a prompt are one too few, those of single tokens are right",
		Edits: in("rope.metal", "table += ulong(t) *", "table += ulong(max(t, 1u) - 1) *"), Text: once, Want: born(0, 0, qRope, rope)},
	{ID: "rope-backwards", What: "the sign of the sine is wrong: it turns the other way",
		Edits: in("rope.metal", "first ? -s : s", "first ? s : -s"), Text: once, Want: born(0, 0, qRope, rope)},
	{ID: "rope-half-table", What: "cosines and sines are rounded to half",
		Edits: in("rope.metal", "float c = table[pair], s = table[half_dim + pair];", "float c = float(half(table[pair])), s = float(half(table[half_dim + pair]));"),
		Text:  once, Want: born(0, 0, qRope, rope)},
	{ID: "rope-table-halves", What: "the table is read as pairs of cosine and sine, where it holds all cosines first",
		Edits: in("rope.metal", "float c = table[pair], s = table[half_dim + pair];", "float c = table[2 * pair], s = table[2 * pair + 1];"),
		Text:  once, Want: born(0, 0, qRope, rope)},
	{ID: "rope-stride", What: "rows of queries are read as if they were packed, not rows of qkv",
		Edits: in("rope.metal", "x += ulong(t) * args.stride", "x += ulong(t) * grid.y * args.dim"), Text: once, Want: born(0, 0, qRope, rope)},

	{ID: "kv-keys-for-values", What: "the keys are written to the values' cache as well",
		Edits: in("kv_write.metal", "vcache[to] = v[ulong(at.y) * args.vStride + at.x]", "vcache[to] = k[ulong(at.y) * args.kStride + at.x]"),
		Text:  once, Want: born(0, 0, kvWrite, kv)},
	{ID: "kv-first-row", What: "every row of a prompt is written to the first one's place",
		Edits: in("kv_write.metal", "ulong to = ulong(at.y) * args.width + at.x;", "ulong to = at.x;"), Text: once, Want: born(0, 0, kvWrite, kv)},
	{ID: "kv-last-column", What: "the last element of each key is not written",
		Edits: in("kv_write.metal", "kcache[to] =", "if (at.x + 1 < args.width) kcache[to] ="), Text: once, Want: born(0, 0, kvWrite, kv)},
	{ID: "kv-half", What: "the cache's values are rounded to half, in a float32 cache",
		Edits: in("kv_write.metal", "vcache[to] = v[", "vcache[to] = T(half(v[", "args.vStride + at.x];", "args.vStride + at.x]));"),
		Text:  once, Want: born(0, 0, kvWrite, kv)},

	{ID: "scores-scale-dropped", What: "scores are not divided by √head_dim",
		Edits: in("scores.metal", "args.scale * dot", "dot"), Text: once, Want: born(0, 0, scores, familyScores)},
	{ID: "scores-scale-of-144", What: "scores are scaled for heads of 144 where they have 128: 1.061 = √(144/128) off",
		Edits: in("scores.metal", "args.scale * dot", "0.9428090f * args.scale * dot"), Text: once, Want: born(0, 0, scores, familyScores)},
	{ID: "scores-scale-twice", What: "the query was scaled already, and the scores are once more",
		Edits: in("scores.metal", "args.scale * dot", "args.scale * args.scale * dot"), Text: once, Want: born(0, 0, scores, familyScores)},
	{ID: "scores-half-dot", What: "q·k is rounded to half before it is scaled",
		Edits: in("scores.metal", "*out = T(args.scale * dot)", "*out = T(args.scale * float(half(dot)))"), Text: once, Want: born(0, 0, scores, familyScores)},
	{ID: "mask-strict", What: "the causal mask is strict: no token attends to itself",
		Edits: in("scores.metal", "j >= args.first + t", "j + 1 >= args.first + t"), Text: once, Want: born(0, 0, scores, familyScores)},
	{ID: "mask-finite", What: "masked scores are -10, which softmax takes for scores, not for a mask",
		Edits: append(in("scores.metal", "*out = T(0.0f);", "*out = T(-10.0f);"),
			in("softmax.metal", "uint n = min(args.first + group.x, args.keys);", "uint n = args.keys;")...),
		Text: once, Want: born(0, 0, scores, familyScores).healedBy(attentionOps)},
	{ID: "scores-gqa", What: "query head h reads KV head h % 2, where groups of heads share one: h / 2",
		Edits: in("scores.metal", "h / args.group", "h % args.group"), Text: once, Want: born(0, 0, scores, familyScores)},
	{ID: "scores-head-stride", What: "the keys are read as if a head's rows lay together",
		Edits: in("scores.metal", "ulong(j) * args.kStride + h / args.group * args.dim", "(ulong(h / args.group) * grid.x + j) * args.dim"),
		Text:  once, Want: born(0, 0, scores, familyScores)},
	{ID: "scores-query-row", What: "every row of a prompt is scored with the first one's query",
		Edits: in("scores.metal", "q += ulong(t) * args.qStride + h * args.dim;", "q += h * args.dim;"), Text: once, Want: born(0, 0, scores, familyScores)},

	{ID: "softmax-no-max", What: "the maximum is not subtracted, and exp is a half: infinite above 11.1",
		Edits: in("softmax.metal", "top = simd_max(top);", "top = 0.0f;", "sum += precise::exp(float(x[j]) - top)", "sum += float(half(precise::exp(float(x[j]) - top)))",
			"T(precise::exp(float(x[j]) - top) / sum)", "T(float(half(precise::exp(float(x[j]) - top))) / sum)"),
		Text: once, Want: born(0, 0, softmax, familySoftmax)},
	{ID: "softmax-lanes-max", What: "each lane subtracts the maximum of its own scores: simd_max is missing",
		Edits: in("softmax.metal", "top = simd_max(top);", ""), Text: once, Want: born(0, 0, softmax, familySoftmax)},
	{ID: "softmax-lanes-sum", What: "each lane divides by the sum of its own terms: simd_sum is missing",
		Edits: in("softmax.metal", "sum = simd_sum(sum);", ""), Text: once, Want: born(0, 0, softmax, familySoftmax)},
	{ID: "softmax-32", What: "only the first 32 terms are added up: one for each lane",
		Edits: in("softmax.metal", "for (uint j = lane; j < n; j += 32) sum +=", "for (uint j = lane; j < n && j < 32; j += 32) sum +="),
		Text:  long, Want: born(0, 0, softmax, familySoftmax)},
	{ID: "softmax-max-32", What: "the maximum is that of the first 32 scores, and exp is a half",
		Edits: in("softmax.metal", "for (uint j = lane; j < n; j += 32) top =", "for (uint j = lane; j < min(n, 32u); j += 32) top =",
			"sum += precise::exp(float(x[j]) - top)", "sum += float(half(precise::exp(float(x[j]) - top)))"),
		Text: long, Want: born(0, 0, softmax, familySoftmax)},
	{ID: "mask-one-too-many", What: "each row of a prompt attends to the token after it as well",
		Edits: in("softmax.metal", "args.first + group.x, args.keys", "args.first + group.x + 1, args.keys"), Text: once, Want: born(0, 0, softmax, familySoftmax)},

	{ID: "context-first-key", What: "the sum over keys begins at 1",
		Edits: in("context.metal", "uint j = 0; j <", "uint j = 1; j <"), Text: once, Want: born(0, 0, contextSite, familyOfContexts)},
	{ID: "context-last-key", What: "the sum over keys ends before the token itself",
		Edits: in("context.metal", "j < args.first + t;", "j + 1 < args.first + t;"), Text: once, Want: born(0, 0, contextSite, familyOfContexts)},
	{ID: "context-half-accumulator", What: "the sum over keys is kept in half",
		Edits: in("context.metal", "sum = fma(float(p[j]), float(v[ulong(j) * args.vStride]), sum);", "sum = float(half(fma(float(p[j]), float(v[ulong(j) * args.vStride]), sum)));"),
		Text:  once, Want: born(0, 0, contextSite, familyOfContexts)},
	{ID: "context-transposed", What: "the weights [heads, rows, keys] are read as [rows, heads, keys]",
		Edits: in("context.metal", "ulong(h) * grid.z + t", "ulong(t) * grid.y + h"), Text: once, Want: born(0, 0, contextSite, familyOfContexts)},
	{ID: "context-gqa", What: "head h reads the values of KV head h % 2, where groups of heads share one: h / 2",
		Edits: in("context.metal", "h / args.group", "h % args.group"), Text: once, Want: born(0, 0, contextSite, familyOfContexts)},
	{ID: "context-value-row", What: "the value of key j is read from row j+1, past the end for the last",
		Edits: in("context.metal", "v[ulong(j) * args.vStride]", "v[ulong(min(j + 1, args.keys - 1)) * args.vStride]"), Text: once, Want: born(0, 0, contextSite, familyOfContexts)},
}
