package engine

// An Op is one operation of a decoder's program. The concrete types below are the whole list; a backend switches over
// them. An op's fields do not change once the program is built: what changes from pass to pass is in its Pass.
// No op writes what it reads.
type Op interface {
	Site() Site
	Family() Family
	Pass() *Pass
	// Operands appends to out what the op writes and to in what it reads, by name and with its extent in this pass. A nil buffer is left
	// out. Operands(nil, nil) makes new lists; who asks again and again need not allocate.
	Operands(out, in []Operand) (_, _ []Operand)
}

// Operand is a piece of a buffer that an op reads or writes: Rows rows of Cols elements, row r beginning at
// element Offset + r*Stride.
type Operand struct {
	Name                       string // the field's name, lower case
	Buffer                     Buffer
	Offset, Stride, Rows, Cols int
}

// Place says where an op runs. Every op embeds one.
type Place struct {
	In    *Pass
	Layer int
	Name  string
	Fam   Family
}

// Site is where the op runs in the present pass.
func (p *Place) Site() Site { return Site{p.In.Step, p.Layer, p.Name} }

// Family is the op's family.
func (p *Place) Family() Family { return p.Fam }

// Pass is the present pass.
func (p *Place) Pass() *Pass { return p.In }

// Rows is the number of tokens in the present pass.
func (p *Place) Rows() int { return p.In.Rows }

// Embed gathers the embeddings of token ids into out [rows, W.Cols]:
//
//	out[t,i] = W[ids[t],i] · Scale + Positions[Pos+t,i]
//
// Scale is √dim where the file scales embeddings (arXiv:2403.08295, Gemma), else 1. Positions are learned ones (GPT-2);
// without them nothing is added. An id outside W is a failure.
type Embed struct {
	Place
	Out       Buffer
	IDs       Buffer // int32 [rows]
	W         Matrix // [vocabulary, dim]
	Positions Buffer // float32 [positions, dim], or nil
	Scale     float32
}

// RMSNorm normalizes Heads groups of Dim elements of each row of X into out [rows, Heads·Dim]; group h begins at element h·Dim.
//
//	out[t,h,i] = x[t,h,i] / sqrt(mean(x[t,h]²) + Eps) · (Offset + w[i])
//
// Offset is 1 where the file stores w-1 (layer_norm_use_residual: Gemma), else 0. Heads is 1 but for q_norm and k_norm.
// Source: arXiv:1910.07467; CTranslate2 src/cpu/kernels.cc, rms_norm.
type RMSNorm struct {
	Place
	Out         Buffer
	X           View
	W           Buffer // float32 [Dim]
	Heads, Dim  int
	Eps, Offset float32
}

// LayerNorm normalizes each row of x [rows, Dim] into out [rows, Dim]:
//
//	out[t,i] = (x[t,i] - mean(x[t])) / sqrt(mean((x[t] - mean(x[t]))²) + Eps) · w[i] + bias[i]
//
// Source: arXiv:1607.06450. CTranslate2 (src/cpu/kernels.cc, layer_norm) takes the variance as mean(x²) - mean(x)², in one
// pass, which is the same number with more rounding.
type LayerNorm struct {
	Place
	Out, X  Buffer
	W, Bias Buffer // float32 [Dim]
	Dim     int
	Eps     float32
}

// Linear multiplies each row of x [rows, W.Cols] by a weight, into out [rows, W.Rows]:
//
//	out[t,n] = Σ_k x[t,k]·W[n,k] + bias[n]
//
// A quantized one multiplies int8 by int8, and W.Scale then holds what the file stores, which divides:
//
//	a[t] = 127 / max_k |x[t,k]|, or 1 where that is infinite     q[t,k] = x[t,k]·a[t], rounded to the nearest integer, ties to even
//	out[t,n] = (Σ_k q[t,k]·W[n,k]) · (1/a[t]) / Scale[n] + bias[n]
//
// The sum is exact (see MaxQuantizedCols), and everything else rounds to float32 at each step in the order written, so q and a backend's
// float32 result are one for all. A row with a NaN or an infinity gives NaN.
// Source: CTranslate2 src/layers/common.cc, src/cpu/kernels.cc. On x86 it rounds x·a + 128 to a uint8 instead, which is another
// integer for a few of a million values, where float32 makes a tie; and without VNNI its sums of pairs may saturate.
type Linear struct {
	Place
	Out       Buffer
	X         Buffer
	W         Matrix
	Bias      Buffer // float32 [W.Rows], or nil
	Quantized bool   // W is int8
	Truncated bool   // q is rounded toward zero, as in binary versions before 5
}

// RoPE rotates pairs in each of Heads heads of Dim elements of X, into out [rows, Heads·Dim]. With a pair (a, b), a position
// p = Pos + t, and (c, s) = (Table[p,i], Table[p,RotaryDim/2+i]):
//
//	out_a = a·c - b·s     out_b = b·c + a·s
//
// Pair i < RotaryDim/2 is elements (i, i+RotaryDim/2), or (2i, 2i+1) if Interleaved; elements from RotaryDim on are copied.
// Source: arXiv:2104.09864; CTranslate2 src/ops/rotary_cpu.cc.
type RoPE struct {
	Place
	Out                   Buffer
	X                     View
	Table                 Buffer // float32 [positions, RotaryDim]: half cosines, half sines
	Heads, Dim, RotaryDim int
	Interleaved           bool
}

// KVWrite appends the rows' keys and values to the cache: cache row Pos+t = row t, Width elements each.
type KVWrite struct {
	Place
	KCache, VCache Buffer // [capacity, Width]
	K, V           View
	Width          int // KV heads · head_dim
}

// Attention is what the three ops of attention have in common. Head h of Heads reads KV head h/(Heads/KVHeads) (GQA).
// A token of row t attends to the keys [from, to+t) of Pass.Keys(Window).
type Attention struct {
	Heads, KVHeads, Dim int
	Window              int // the layer's sliding window, tokens; 0: none
}

// Scores compares queries with cached keys, into out [Heads, rows, keys], keys = to-from+rows-1:
//
//	out[h,t,j] = Scale · Σ_i q[t,h,i]·k[from+j,h/group,i]     and 0 where row t does not attend to key from+j
//
// Source: arXiv:1706.03762.
type Scores struct {
	Place
	Attention
	Out   Buffer
	Q     View   // rows of Heads·Dim
	K     Buffer // the cache [capacity, KVHeads·Dim]
	Scale float32
}

// Softmax turns each row's scores into weights, out like x [Heads, rows, keys]; exactly 0 where row t does not attend.
//
//	out[h,t,j] = exp(x[h,t,j] - max_j x[h,t]) / Σ_j exp(x[h,t,j] - max_j x[h,t])
type Softmax struct {
	Place
	Attention
	Out, X Buffer
}

// Context averages the cached values by the weights, into out [rows, Heads·Dim]:
//
//	out[t,h,i] = Σ_j p[h,t,j]·v[from+j,h/group,i]
type Context struct {
	Place
	Attention
	Out, P Buffer
	V      Buffer // the cache [capacity, KVHeads·Dim]
}

// Function is an activation function, by CTranslate2's code (include/ctranslate2/ops/activation.h).
type Function int

// The activation functions.
const (
	ReLU        Function = iota
	GELUTanh             // 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
	SiLU                 // x / (1 + exp(-x))
	GELU                 // 0.5·x·(1 + erf(x/√2))
	GELUSigmoid          // x / (1 + exp(-1.702·x))
	Tanh
	Sigmoid
)

var functions = [...]string{"relu", "gelu_tanh", "silu", "gelu", "gelu_sigmoid", "tanh", "sigmoid"}

func (f Function) String() string { return functions[f] }

// Activate applies a function to the gate and multiplies by up, if there is one; all are [rows, Dim]:
//
//	out = F(gate) · up
//
// GELUTanh with up is GeGLU (Gemma), SiLU with up is SwiGLU (Qwen, Llama). Source: arXiv:2002.05202.
type Activate struct {
	Place
	Out, Gate, Up Buffer
	Dim           int
	F             Function
}

// Add is the residual stream: out = a + b, all [rows, Dim].
type Add struct {
	Place
	Out, A, B Buffer
	Dim       int
}

// SoftCap bends the logits [rows, Dim]: out = Cap·tanh(x/Cap). Source: arXiv:2408.00118.
type SoftCap struct {
	Place
	Out, X Buffer
	Dim    int
	Cap    float32
}
