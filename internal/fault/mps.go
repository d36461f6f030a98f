package fault

// mpsFaults are mistakes around Apple's matrix products, with --metal-gemm mps.
var mpsFaults = []Fault{
	{ID: "mps-bias-dropped", What: "the bias is not added to what MPS has multiplied", MPS: true,
		Edits: in("add_bias.metal", "args.hasBias != 0 ? s + bias[at.x] : s", "s"),
		Model: qwen, Text: once, Want: born(0, 0, qkv, linear).because("bias is left out")},
	{ID: "mps-stale-row", What: "a row is made of the products of the row before: rows counted from 1 in one place and from 0 in the other", MPS: true,
		Edits: in("add_bias.metal", "sum[ulong(at.y) * args.cols", "sum[ulong(at.y > 0 ? at.y - 1 : 0) * args.cols"),
		Model: qwen, Text: once, Want: born(0, 0, qkv, linear).because("the row before it")},
}
