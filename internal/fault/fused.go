package fault

// fusedFaults are mistakes in fused kernels, which only the fuse leg can see: who looks between ops sees their parts run.
var fusedFaults = fused([]Fault{
	{ID: "attention-sum-not-rescaled", What: "when a larger score comes, what is summed so far of the first of four queries is not scaled down",
		Edits: in("attention.metal", "scale_by(sum0, shrink.x);", ""), Text: long, Want: fusedIn("attention")},
	{ID: "attention-total-not-rescaled", What: "when a larger score comes, the sum of weights is not scaled down",
		Edits: in("attention.metal", "total *= shrink;", ""), Text: long, Want: fusedIn("attention")},
	{ID: "attention-rescaled-backwards", What: "when a larger score comes, what is summed so far is scaled up",
		Edits: in("attention.metal", "shrink = precise::exp(top - next)", "shrink = precise::exp(min(next - top, float4(80.0f)))"), Text: long, Want: fusedIn("attention")},
	{ID: "attention-last-block", What: "the last block of keys is left out, if it is not a whole one",
		Edits: in("attention.metal", "begin < ends.w;", "begin == simd * block || begin + block <= ends.w;"), Text: long, Want: fusedIn("attention")},
	{ID: "attention-mask-ahead", What: "each row of a prompt attends to the token after it as well",
		Edits: in("attention.metal", "ends = args.first + min(at.y", "ends = 1 + args.first + min(at.y"), Text: once, Want: fusedIn("attention")},
	{ID: "attention-mask-strict", What: "no row of a prompt after the first attends to itself",
		Edits: in("attention.metal", "ends = args.first + min(at.y * QUERIES + uint4(0, 1, 2, 3), uint4(last)) / args.group",
			"ends = max(args.first + min(at.y * QUERIES + uint4(0, 1, 2, 3), uint4(last)) / args.group, uint4(2)) - 1u"), Text: once, Want: fusedIn("attention")},
	{ID: "attention-own-maximum", What: "the simdgroups' sums are added as if all had one maximum",
		Edits: in("attention.metal", "shrink = precise::exp(top - all)", "shrink = float4(1.0f)"), Text: long, Want: fusedIn("attention")},
	{ID: "attention-lanes-max", What: "each lane subtracts the maximum of its own scores: simd_max is missing",
		Edits: in("attention.metal", "simd_max(highest)", "highest"), Text: once, Want: fusedIn("attention")},
	{ID: "attention-barrier", What: "lanes read a block's weights before the others have written them",
		Edits: in("attention.metal", "        simdgroup_barrier(mem_flags::mem_threadgroup);\n", ""), Text: once, Want: fusedIn("attention")},
	{ID: "attention-gqa", What: "query heads are numbered across KV heads, where a KV head's heads lie together",
		Edits: in("attention.metal", "args.qStride + (kv * args.group + query % args.group)", "args.qStride + (query % args.group * groups.x + kv)"), Text: once, Want: fusedIn("attention")},
	{ID: "attention-scale-dropped", What: "scores are not divided by √head_dim",
		Edits: in("attention.metal", "args.scale * float4(", "float4("), Text: once, Want: fusedIn("attention")},
	{ID: "attention-parts", What: "of the parts of a simdgroup that share a block's keys only the first counts",
		Edits: in("attention.metal", "i < parts; i++) sum", "i < 1; i++) sum"), Text: once, Want: fusedIn("attention")},
	{ID: "attention-half-weights", What: "the weights are rounded to half",
		Edits: in("attention.metal", "weights[lane] = p;", "weights[lane] = float4(half4(p));"), Text: once, Want: fusedIn("attention")},
	{ID: "residual-norm-of-summand", What: "the norm after the sum divides by the size of what was added",
		Edits: in("residual.metal", "sum = fma(float(r), float(r), sum);", "sum = fma(v, v, sum);"), Text: once, Want: fusedIn("residual")},
	{ID: "residual-unrounded", What: "the norm before the sum is not rounded to half, as its plain kernel would round it",
		Edits: in("residual.metal", "v = float(T(v * inv * (args.offset + w[i])));", "v = v * inv * (args.offset + w[i]);"), ComputeType: "float16", Text: once, Want: fusedIn("residual")},
	{ID: "residual-next-weight", What: "the norm after the sum has the weights of the norm before it",
		Edits: in("residual.metal", "args.nextOffset + nextW[i]", "args.nextOffset + w[i]"), Text: once, Want: fusedIn("residual")},
	{ID: "residual-not-added", What: "nothing is added: the residual stream ends at each layer",
		Edits: in("residual.metal", "T(float(a[i]) + v)", "T(v)"), Model: qwen, Text: once, Want: fusedIn("residual")},
	{ID: "rope-kv-first-row", What: "the fused write puts every row of a prompt into the first one's place",
		Edits: in("rope_kv.metal", "(ulong(t) * args.kvHeads + h) * args.dim + i", "ulong(h) * args.dim + i"), Text: once, Want: fusedIn("rope_kv")},
	{ID: "rope-kv-keys-unturned", What: "the fused write caches keys as they are, not turned by their position",
		Edits: in("rope_kv.metal", "kcache[to] = rotated(k + ulong(t) * args.kStride + h * args.dim, table, i, args.rotaryDim, args.interleaved)", "kcache[to] = k[ulong(t) * args.kStride + h * args.dim + i]"),
		Text:  once, Want: fusedIn("rope_kv")},
	{ID: "rope-kv-values-turned", What: "the fused write turns the values, too",
		Edits: in("rope_kv.metal", "v[ulong(t) * args.vStride + h * args.dim + i]", "rotated(v + ulong(t) * args.vStride + h * args.dim, table, i, args.rotaryDim, args.interleaved)"),
		Text:  once, Want: fusedIn("rope_kv")},
	{ID: "norm-rope-kv-weights", What: "the keys' norm has the weights of the queries' (fused)",
		Edits: in("norm_rope_kv.metal", "query ? qW : kW", "qW"), Model: golden + "m_gemma3", Text: seven, Want: fusedIn("norm_rope_kv")},
	{ID: "norm-rope-kv-partner", What: "the pair's other element is turned as it is, without its norm",
		Edits: in("norm_rope_kv.metal", "normed(x, w, turn.other, inv, args.offset)", "float(x[turn.other])"), Model: golden + "m_gemma3", Text: seven, Want: fusedIn("norm_rope_kv")},
	{ID: "gate-up-exchanged", What: "the fused kernel activates the up projection, and multiplies by the gate's",
		Edits: in("gate_up.metal", "activation(args.function, float(T(total(mine, lane))))", "activation(args.function, float(T(total(mine, ROWS + lane))))",
			"T(v * float(T(total(mine, ROWS + lane))))", "T(v * float(T(total(mine, lane))))"), Text: once, Want: fusedAt(1, "gate_up")},
	{ID: "gate-up-unrounded", What: "the gate is not rounded to half before it is activated, as its plain kernel would round it",
		Edits: in("gate_up.metal", "float(T(total(mine, lane)))", "total(mine, lane)"), ComputeType: "float16", Text: once, Want: fusedAt(1, "gate_up")},
	{ID: "gate-up-rows-apart", What: "the up projection's rows are taken one after the other, where a simdgroup's are far apart",
		Edits: in("gate_up.metal", "rows_of<W, ROWS>(up, upScale, n, apart,", "rows_of<W, ROWS>(up, upScale, n, 1,"), Text: once, Want: fusedAt(1, "gate_up")},
})

func fused(faults []Fault) []Fault {
	for i := range faults {
		faults[i].Fused = true
	}
	return faults
}

// fusedIn is a fused kernel that is wrong from the start on, while its parts are right.
func fusedIn(kernel string) Want { return fusedAt(0, kernel) }

func fusedAt(step int, kernel string) Want {
	return Want{Verdict: diverged, Step: step, Site: "fused " + kernel, Family: "fused"}
}
