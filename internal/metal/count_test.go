package metal

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"llmrun/internal/engine"
	"llmrun/internal/models"
	"llmrun/internal/num"
	"llmrun/shaders"
)

// layerShape is a layer of a model that people run.
type layerShape struct {
	name, tiny                        string // tiny is the embedded model whose layers have the same ops
	dim, heads, kvHeads, headDim, ffn int
	fourNorms, bias                   bool
	activation                        engine.Function
	weights                           num.DType
}

var layerShapes = []layerShape{
	{"Gemma2-2b", "tiny-gemma2", 2304, 8, 4, 256, 9216, true, false, engine.GELUTanh, num.Float16},
	{"Qwen2.5-0.5B", "tiny-qwen2", 896, 14, 2, 64, 4864, false, true, engine.SiLU, num.Float16},
}

// countedKeys is how many keys the token that is counted attends to.
const countedKeys = 512

// ops lists the ops of a layer that decodes one token, as package engine lists them, and the norm that the next one begins with. x holds
// the residual stream, h what attn_norm made of it.
func (l layerShape) ops(act num.DType, buf func(num.DType, int) engine.Buffer) (ops []engine.Op) {
	pass := &engine.Pass{Step: 1, Rows: 1, Pos: countedKeys - 1, Span: engine.Span{Decode: true}}
	layer := 1
	place := func(name string) engine.Place { return engine.Place{In: pass, Layer: layer, Name: name} }
	row := func(n int) engine.Buffer { return buf(act, n) }
	norm := func(site string, x engine.Buffer) engine.Buffer {
		out := row(l.dim)
		ops = append(ops, &engine.RMSNorm{Place: place(site), Out: out, X: engine.View{Buffer: x, Stride: l.dim}, W: buf(num.Float32, l.dim), Heads: 1, Dim: l.dim, Eps: 1e-6})
		return out
	}
	linear := func(site string, x engine.Buffer, rows, cols int, bias bool) engine.Buffer {
		o := &engine.Linear{Place: place(site), Out: row(rows), X: x, W: engine.Matrix{Buffer: buf(l.weights, rows*cols), Rows: rows, Cols: cols}}
		if bias {
			o.Bias = buf(num.Float32, rows)
		}
		ops = append(ops, o)
		return o.Out
	}
	add := func(site string, out, a, b engine.Buffer) {
		ops = append(ops, &engine.Add{Place: place(site), Out: out, A: a, B: b, Dim: l.dim})
	}
	width, kvWidth := l.heads*l.headDim, l.kvHeads*l.headDim
	x, y := row(l.dim), row(l.dim)
	h := norm("attn_norm", x)
	qkv := linear("qkv", h, width+2*kvWidth, l.dim, l.bias)
	table := buf(num.Float32, countedKeys*l.headDim)
	rope := func(site string, offset, heads int) engine.Buffer {
		o := &engine.RoPE{Place: place(site), Out: row(heads * l.headDim), X: engine.View{Buffer: qkv, Offset: offset, Stride: width + 2*kvWidth},
			Table: table, Heads: heads, Dim: l.headDim, RotaryDim: l.headDim}
		ops = append(ops, o)
		return o.Out
	}
	q, k := rope("q_rope", 0, l.heads), rope("k_rope", width, l.kvHeads)
	kCache, vCache := buf(act, countedKeys*kvWidth), buf(act, countedKeys*kvWidth)
	att := engine.Attention{Heads: l.heads, KVHeads: l.kvHeads, Dim: l.headDim}
	scores, weights, context := row(l.heads*countedKeys), row(l.heads*countedKeys), row(width)
	ops = append(ops,
		&engine.KVWrite{Place: place("kv_write"), KCache: kCache, VCache: vCache, K: engine.View{Buffer: k, Stride: kvWidth},
			V: engine.View{Buffer: qkv, Offset: width + kvWidth, Stride: width + 2*kvWidth}, Width: kvWidth},
		&engine.Scores{Place: place("scores"), Attention: att, Out: scores, Q: engine.View{Buffer: q, Stride: width}, K: kCache, Scale: 1},
		&engine.Softmax{Place: place("softmax"), Attention: att, Out: weights, X: scores},
		&engine.Context{Place: place("context"), Attention: att, Out: context, P: weights, V: vCache})
	a := linear("o_proj", context, l.dim, width, false)
	if l.fourNorms {
		a = norm("post_attn_norm", a)
	}
	add("attn_residual", y, x, a)
	h = norm("ffn_norm", y)
	gate, up, act1 := linear("gate", h, l.ffn, l.dim, false), linear("up", h, l.ffn, l.dim, false), row(l.ffn)
	ops = append(ops, &engine.Activate{Place: place("act"), Out: act1, Gate: gate, Up: up, Dim: l.ffn, F: l.activation})
	f := linear("down", act1, l.dim, l.ffn, false)
	if l.fourNorms {
		f = norm("post_ffn_norm", f)
	}
	add("layer_out", x, y, f)
	layer++
	norm("attn_norm", x)
	return ops
}

// counted is what a layer costs: its dispatches, but for the first norm's, and the bytes that they read and write.
type counted struct {
	kernels, ops               []string // of each dispatch
	weights, cache, activation int
	memory                     int // bytes of threadgroup memory, of the kernel that has most
}

// count runs ops on the recorder.
func count(t *testing.T, l layerShape, fuse bool) (c counted) {
	const act = num.Float16
	b, buf := recorder(act)
	b.fuses, b.lost = make([]bool, len(fusions)), map[mtlBuffer]bool{}
	if fuse {
		fuseAll(b)
	}
	ops := l.ops(act, buf)
	for _, op := range ops {
		if b.Run(op); b.err != nil {
			t.Fatal(b.err)
		}
	}
	first := slices.IndexFunc(ops, func(op engine.Op) bool { return op.Site() == b.pending[1].site })
	for i, d := range b.pending[1:] {
		next := len(ops)
		if i+2 < len(b.pending) {
			next = slices.IndexFunc(ops, func(op engine.Op) bool { return op.Site() == b.pending[i+2].site })
		}
		c.add(b, d, ops[first:next])
		first = next
	}
	return c
}

// add counts a dispatch that stands for ops: what they read and write, but for what they hand to each other.
func (c *counted) add(b *Backend, d dispatch, ops []engine.Op) {
	var sites []string
	type place struct {
		buffer engine.Buffer
		offset int
	}
	seen := map[place]bool{}
	for _, op := range ops {
		sites = append(sites, op.Site().Name)
		outs, ins := op.Operands(nil, nil)
		for _, o := range ins {
			if seen[place{o.Buffer, o.Offset}] {
				continue
			}
			seen[place{o.Buffer, o.Offset}] = true
			bytes := o.Rows * o.Cols * o.Buffer.DType().Size()
			switch _, write := op.(*engine.KVWrite); {
			case slices.Contains([]string{"w", "scale", "bias", "table"}, o.Name):
				c.weights += bytes
			case !write && (o.Name == "k" || o.Name == "v"):
				c.cache += bytes
			default:
				c.activation += bytes
			}
		}
		for _, o := range outs {
			seen[place{o.Buffer, o.Offset}] = true
			switch bytes := o.Rows * o.Cols * o.Buffer.DType().Size(); {
			case b.lost[o.Buffer.(*buffer).mtl]:
			case o.Name == "kcache" || o.Name == "vcache":
				c.cache += bytes
			default:
				c.activation += bytes
			}
		}
	}
	c.kernels, c.ops = append(c.kernels, d.key.shader), append(c.ops, strings.Join(sites, " "))
	c.memory = max(c.memory, threadgroupMemory(d.key))
}

var threadgroupArray = regexp.MustCompile(`(?m)^    threadgroup (float4?) \w+\[(.*)\];`)

// threadgroupMemory is how many bytes a kernel of one token declares.
func threadgroupMemory(k kernelKey) (bytes int) {
	text, err := shaders.Source(k.shader+".metal", nil)
	if err != nil {
		panic(err)
	}
	known := map[string]int{"QUERIES": 1, "TOKENS": 1, "LANES": 9, "ROWS": map[string]int{"linear": 8, "gate_up": 4}[k.shader]}
	for _, m := range threadgroupArray.FindAllStringSubmatch(text, -1) {
		n := map[string]int{"float": 4, "float4": 16}[m[1]]
		for _, factor := range strings.Split(m[2], "*") {
			factor = strings.TrimSpace(factor)
			v, err := strconv.Atoi(factor)
			if err != nil {
				v = known[factor]
			}
			if n *= v; n == 0 {
				panic("BUG: what is " + factor + " in " + k.shader + "?")
			}
		}
		bytes += n
	}
	return bytes
}

// TestLayerCount holds ARCHITECTURE.md to what a layer costs: its dispatches, in order, and its bytes.
func TestLayerCount(t *testing.T) {
	page, err := os.ReadFile("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(page), "## A layer in dispatches\n")
	if table, _, _ = strings.Cut(table, "\n## "); !ok {
		t.Fatal("ARCHITECTURE.md: want a chapter: A layer in dispatches")
	}
	var rows [][]string
	for _, line := range strings.Split(table, "\n") {
		if cells := strings.Split(line, "|"); len(cells) > 3 && strings.HasPrefix(line, "| `") {
			rows = append(rows, cells)
		}
	}
	for i, l := range layerShapes {
		fused, plain := count(t, l, true), count(t, l, false)
		if len(rows) != len(fused.kernels) {
			t.Errorf("%s: %d dispatches a layer, the table has %d", l.name, len(fused.kernels), len(rows))
			continue
		}
		for j, cells := range rows {
			if kernel, ops := strings.Trim(cells[1], " `"), strings.TrimSpace(cells[2+i]); kernel != fused.kernels[j] || ops != fused.ops[j] {
				t.Errorf("%s: dispatch %d is %s: %s; the table has %s: %s", l.name, j+1, fused.kernels[j], fused.ops[j], kernel, ops)
			}
		}
		for _, c := range []struct {
			way string
			counted
		}{{"fused", fused}, {"one by one", plain}} {
			line := fmt.Sprintf("| %s, %s | %d | %.2f MB | %.2f MB | %.1f KB | %.1f KB |", l.name, c.way, len(c.kernels),
				float64(c.weights)/1e6, float64(c.cache)/1e6, float64(c.activation)/1e3, float64(c.memory)/1e3)
			if !strings.Contains(table, line+"\n") {
				t.Errorf("ARCHITECTURE.md has not: %s", line)
			}
		}
	}
}

// TestLayerShapes: the layers that are counted have the ops of the models' layers.
func TestLayerShapes(t *testing.T) {
	for _, l := range layerShapes {
		b := open(t, Options{Activations: num.Float32})
		m, _, err := models.Open(l.tiny)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		d, err := engine.Load(m, b)
		if err != nil {
			t.Fatal(err)
		}
		s, err := d.NewSession(8)
		if err != nil {
			t.Fatal(err)
		}
		kinds := func(ops []engine.Op) (list []string) {
			for _, op := range ops {
				bias := ""
				if o, ok := op.(*engine.Linear); ok && o.Bias != nil {
					bias = " with bias"
				}
				list = append(list, fmt.Sprintf("%s %T%s", op.Site().Name, op, bias))
			}
			return list
		}
		program := s.Program()
		from := slices.IndexFunc(program, func(op engine.Op) bool { return op.Site().Layer == 1 })
		_, buf := recorder(num.Float16)
		ops := l.ops(num.Float16, buf)
		if got, want := kinds(ops), kinds(program[from:from+len(ops)]); !slices.Equal(got, want) {
			t.Errorf("%s: counted %q\n%s has %q", l.name, got, l.tiny, want)
		}
	}
}
