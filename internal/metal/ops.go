package metal

import (
	"fmt"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// The kernels' args, field for field as the shaders spell them; a test compares the two.
type (
	embedArgs struct {
		dim, hasPositions uint32
		factor            float32
	}
	layerNormArgs struct {
		dim uint32
		eps float32
	}
	rmsNormArgs struct {
		dim, stride uint32
		eps, offset float32
	}
	linearArgs  struct{ rows, cols, tokens, hasBias uint32 }
	gemmArgs    struct{ rows, cols, tokens, hasBias uint32 }
	ropeArgs    struct{ dim, rotaryDim, stride, interleaved uint32 }
	kvWriteArgs struct{ width, kStride, vStride uint32 }
	scoresArgs  struct {
		first, group, dim, qStride, kStride uint32
		scale                               float32
	}
	softmaxArgs  struct{ first, keys uint32 }
	contextArgs  struct{ first, keys, group, dim, vStride uint32 }
	activateArgs struct{ dim, function, hasUp uint32 }
	addArgs      struct{ dim uint32 }
	addBiasArgs  struct{ cols, stride, hasBias uint32 }
	softCapArgs  struct {
		dim uint32
		cap float32
	}
)

// Run writes op down for the next Sync; the device begins earlier only if much work has gathered.
func (b *Backend) Run(op engine.Op) {
	if b.err == nil {
		b.err = b.write(op)
	}
	if b.work > maxWork {
		b.commit()
	}
}

// write writes op down.
func (b *Backend) write(op engine.Op) error {
	if err := b.check(op); err != nil {
		return err
	}
	switch o := op.(type) {
	case *engine.Embed:
		b.embed(o)
	case *engine.RMSNorm:
		queue(b, o.Site(), plain("rmsnorm"), simdgroups(o.Heads, o.Rows()), simdgroup,
			rmsNormArgs{uint32(o.Dim), uint32(o.X.Stride), o.Eps, o.Offset}, b.act(o.Out), b.view(o.X), b.float(o.W))
	case *engine.LayerNorm:
		queue(b, o.Site(), plain("layernorm"), simdgroups(1, o.Rows()), simdgroup,
			layerNormArgs{uint32(o.Dim), o.Eps}, b.act(o.Out), b.act(o.X), b.float(o.W), b.float(o.Bias))
	case *engine.Linear:
		switch {
		case b.mps != nil:
			b.multiply(o)
		case o.Quantized:
			b.quantizedLinear(o)
		default:
			b.linear(o)
		}
	case *engine.RoPE:
		grid, group := elements(o.Dim, o.Heads, o.Rows())
		queue(b, o.Site(), plain("rope"), grid, group,
			ropeArgs{uint32(o.Dim), uint32(o.RotaryDim), uint32(o.X.Stride), flag(o.Interleaved)},
			b.act(o.Out), b.view(o.X), at(b.float(o.Table), num.Float32, o.In.Pos*o.RotaryDim))
	case *engine.KVWrite:
		grid, group := elements(o.Width, o.Rows(), 1)
		row := o.In.Pos * o.Width
		queue(b, o.Site(), plain("kv_write"), grid, group, kvWriteArgs{uint32(o.Width), uint32(o.K.Stride), uint32(o.V.Stride)},
			at(b.act(o.KCache), b.activations, row), at(b.act(o.VCache), b.activations, row), b.view(o.K), b.view(o.V))
	case *engine.Scores:
		b.scores(o)
	case *engine.Softmax:
		_, first, width := o.Keys(o.In)
		queue(b, o.Site(), plain("softmax"), simdgroups(o.Rows(), o.Heads), simdgroup,
			softmaxArgs{uint32(first), uint32(width)}, b.act(o.Out), b.act(o.X))
	case *engine.Context:
		b.context(o)
	case *engine.Activate:
		b.activate(o)
	case *engine.Add:
		grid, group := elements(o.Dim, o.Rows(), 1)
		queue(b, o.Site(), plain("add"), grid, group, addArgs{uint32(o.Dim)}, b.act(o.Out), b.act(o.A), b.act(o.B))
	case *engine.SoftCap:
		grid, group := elements(o.Dim, o.Rows(), 1)
		queue(b, o.Site(), plain("softcap"), grid, group, softCapArgs{uint32(o.Dim), o.Cap}, b.act(o.Out), b.act(o.X))
	default:
		panic(fmt.Sprintf("BUG: metal has no op %T", op))
	}
	return b.err
}

// embed leaves the ids to be checked when they are there: when the op begins.
func (b *Backend) embed(o *engine.Embed) {
	b.ids = append(b.ids, tokenIDs{o.Site(), o.IDs.(*buffer), o.Rows(), o.W.Rows})
	w, scale := b.matrix(o.W)
	positions := w
	if o.Positions != nil {
		positions = at(b.float(o.Positions), num.Float32, o.In.Pos*o.W.Cols)
	}
	grid, group := elements(o.W.Cols, o.Rows(), 1)
	queue(b, o.Site(), kernelKey{"embed", "", o.W.Buffer.DType()}, grid, group,
		embedArgs{uint32(o.W.Cols), flag(o.Positions != nil), o.Scale},
		b.act(o.Out), b.typed(o.IDs, num.Int32), w, scale, positions)
}

// manyTokens is from where on gemm.metal multiplies. linear.metal reads a weight once for four tokens, so for nine it would read it three times.
const manyTokens = 9

// Threadgroups are of four simdgroups. linear.metal's compute 8 rows each for one token, or 4 rows for 4 tokens; gemm.metal's four together
// 64 rows for 32 tokens, all tokens of some rows before the next rows, which so come from memory once.
func (b *Backend) linear(o *engine.Linear) {
	w, scale := b.matrix(o.W)
	bias := w
	if o.Bias != nil {
		bias = b.float(o.Bias)
	}
	b.work += o.Rows() * o.W.Rows * o.W.Cols
	args := linearArgs{uint32(o.W.Rows), uint32(o.W.Cols), uint32(o.Rows()), flag(o.Bias != nil)}
	slots := []slot{b.act(o.Out), b.act(o.X), w, scale, bias}
	group := size{4 * simdWidth, 1, 1}
	if o.Rows() >= manyTokens {
		grid := size{uint(ceil(o.Rows(), 32)) * group.Width, uint(ceil(o.W.Rows, 64)), 1}
		queue(b, o.Site(), kernelKey{"gemm", "", o.W.Buffer.DType()}, grid, group, gemmArgs(args), slots...)
		return
	}
	key, rows, tokens := kernelKey{"linear", "", o.W.Buffer.DType()}, 8, 1
	if o.Rows() > 1 {
		key.variant, rows, tokens = "4", 4, 4
	}
	grid := size{uint(ceil(o.W.Rows, 4*rows)) * group.Width, uint(ceil(o.Rows(), tokens)), 1}
	queue(b, o.Site(), key, grid, group, args, slots...)
}

func ceil(n, by int) int { return (n + by - 1) / by }

func (b *Backend) scores(o *engine.Scores) {
	from, first, width := o.Keys(o.In)
	row := o.KVHeads * o.Dim
	grid, group := elements(width, o.Rows(), o.Heads)
	queue(b, o.Site(), plain("scores"), grid, group,
		scoresArgs{uint32(first), uint32(o.Heads / o.KVHeads), uint32(o.Dim), uint32(o.Q.Stride), uint32(row), o.Scale},
		b.act(o.Out), b.view(o.Q), at(b.act(o.K), b.activations, from*row))
	b.work += o.Heads * o.Rows() * width * o.Dim
}

func (b *Backend) context(o *engine.Context) {
	from, first, width := o.Keys(o.In)
	row := o.KVHeads * o.Dim
	grid, group := elements(o.Dim, o.Heads, o.Rows())
	queue(b, o.Site(), plain("context"), grid, group,
		contextArgs{uint32(first), uint32(width), uint32(o.Heads / o.KVHeads), uint32(o.Dim), uint32(row)},
		b.act(o.Out), b.act(o.P), at(b.act(o.V), b.activations, from*row))
	b.work += o.Heads * o.Rows() * width * o.Dim
}

func (b *Backend) activate(o *engine.Activate) {
	gate := b.act(o.Gate)
	up := gate
	if o.Up != nil {
		up = b.act(o.Up)
	}
	grid, group := elements(o.Dim, o.Rows(), 1)
	queue(b, o.Site(), plain("activate"), grid, group, activateArgs{uint32(o.Dim), uint32(o.F), flag(o.Up != nil)},
		b.act(o.Out), gate, up)
}

// plain is the kernel of an op without a matrix.
func plain(shader string) kernelKey { return kernelKey{shader, "", noWeight} }

var simdgroup = size{simdWidth, 1, 1}

// simdgroups is a grid of x by y threadgroups of one simdgroup.
func simdgroups(x, y int) size { return size{uint(x) * simdWidth, uint(y), 1} }

// elements is a grid of x by y by z threads, in threadgroups along x.
func elements(x, y, z int) (grid, group size) {
	return size{uint(x), uint(y), uint(z)}, size{uint(min(x, 256)), 1, 1}
}

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// typed is where a buffer of ours begins, which must have that type.
func (b *Backend) typed(x engine.Buffer, d num.DType) slot {
	m := x.(*buffer)
	if m.dtype != d {
		panic(fmt.Sprintf("BUG: metal: want a buffer of %v, not %v", d, m.dtype))
	}
	return slot{m.mtl, uint(m.offset)}
}

func (b *Backend) act(x engine.Buffer) slot   { return b.typed(x, b.activations) }
func (b *Backend) float(x engine.Buffer) slot { return b.typed(x, num.Float32) }

// at moves a slot by n elements.
func at(s slot, d num.DType, n int) slot {
	s.offset += uint(n * d.Size())
	return s
}

func (b *Backend) view(v engine.View) slot { return at(b.act(v.Buffer), b.activations, v.Offset) }

// matrix is a weight and its row scale; the weight again where it has none.
func (b *Backend) matrix(w engine.Matrix) (weight, scale slot) {
	weight = b.typed(w.Buffer, w.Buffer.DType())
	if (w.Buffer.DType() == num.Int8) != (w.Scale != nil) {
		panic(fmt.Sprintf("BUG: metal: a matrix of %v with scale: %t", w.Buffer.DType(), w.Scale != nil))
	}
	if w.Scale == nil {
		return weight, weight
	}
	return weight, b.float(w.Scale)
}

// check holds every operand to its buffer, because the GPU may write beyond one without an error.
func (b *Backend) check(op engine.Op) error {
	b.operands[0], b.operands[1] = op.Operands(b.operands[0][:0], b.operands[1][:0])
	for _, list := range b.operands {
		for _, o := range list {
			if m, ok := o.Buffer.(*buffer); !ok || m.backend != b {
				panic(fmt.Sprintf("BUG: %v: %s is no buffer of this backend", op.Site(), o.Name))
			}
			if err := o.Check(); err != nil {
				return &engine.OpError{Site: op.Site(), Err: fmt.Errorf("metal: %w", err)}
			}
		}
	}
	return b.written(op, b.operands[0], b.operands[1])
}
