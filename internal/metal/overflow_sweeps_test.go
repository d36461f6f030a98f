package metal

import (
	"math"
	"math/rand/v2"
	"testing"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// sweep is an expression of a kernel, over all that its arguments may be.
type sweep struct {
	kernel, expression string
	op                 engine.Op
	scores             *engine.Scores  // if op is the last one of attention, which is judged as one
	softmax            *engine.Softmax // between them
	argument           []float64       // what each element of the output is computed from; the one to name, of several
	size               []float64       // nil, or a value that is rounded on the way to each element, and may be larger than it
	row                int             // of so many elements the largest is that size; 0: none
	limit              float64         // if not 0: from an argument beyond it on, a sum leaves float32 though the result would not
}

// sweeper makes sweeps for one type of activations.
type sweeper struct {
	t    *testing.T
	act  num.DType
	buf  func(num.DType, int) engine.Buffer
	r    *rand.Rand
	list []sweep
}

// sweeps covers what may overflow, cancel or leave its domain in every kernel but kv_write, which copies, and fused ones that give their parts'
// bits (TestFusedBits).
func sweeps(t *testing.T, act num.DType, b *Backend) []sweep {
	s := &sweeper{t: t, act: act, buf: newBuffers(t, b), r: rand.New(rand.NewPCG(1, 2))}
	s.activate()
	s.elementwise()
	s.embed()
	s.rope()
	s.norms()
	s.softmax()
	s.scores()
	s.context()
	s.linear()
	s.attention()
	return s.list
}

func (s *sweeper) add(kernel, expression string, op engine.Op, argument, size []float64) *sweep {
	s.list = append(s.list, sweep{kernel: kernel, expression: expression, op: op, argument: argument, size: size})
	return &s.list[len(s.list)-1]
}

// everyValue is every value of a type of 8 or 16 bits, and of float32 every exponent with 256 mantissas. Zeros, infinities, NaNs and subnormals
// are among them.
func everyValue(d num.DType) (all []float64) {
	switch d {
	case num.Int8:
		for q := -128; q < 128; q++ {
			all = append(all, float64(q))
		}
	case num.Float32:
		r := rand.New(rand.NewPCG(3, 4))
		for exponent := range uint32(256) {
			for k := range uint32(256) {
				mantissa := k<<15 | r.Uint32()>>17
				switch k {
				case 0:
					mantissa = 0
				case 255:
					mantissa = 1<<23 - 1
				}
				v := float64(math.Float32frombits(exponent<<23 | mantissa))
				all = append(all, v, -v)
			}
		}
	default:
		for bits := range 1 << 16 {
			all = append(all, float64(num.Float32At(d, []byte{byte(bits), byte(bits >> 8)}, 0)))
		}
	}
	return all
}

// magnitudes is every power of two of a type, from the smallest subnormal on, each with so many mantissas.
func magnitudes(d num.DType, mantissas int) (all []float64) {
	least, most := -149, 127
	switch d {
	case num.Float16:
		least, most = -24, 15
	case num.BFloat16:
		least = -133
	}
	for e := least; e <= most; e++ {
		for k := range mantissas {
			all = append(all, math.Ldexp(1+float64(k)/float64(mantissas), e))
		}
	}
	return all
}

// mixed is another order of values, so that two operands take all of them, and each other's in no order.
func mixed(values []float64) []float64 {
	out := make([]float64, len(values))
	for i := range out {
		out[i] = values[(i*40503+911)%len(values)] // 40503 is prime
	}
	return out
}

// of makes a buffer of values.
func (s *sweeper) of(d num.DType, values []float64) engine.Buffer {
	x := s.buf(d, len(values))
	bytes, err := x.Host()
	if err != nil {
		s.t.Fatal(err)
	}
	for i, v := range values {
		if d == num.Int8 {
			bytes[i] = byte(int8(v))
		} else {
			num.PutFloat32(d, bytes, i, float32(v))
		}
	}
	return x
}

// scaled is a matrix with a row for each scale: scale · u, u in (0.25, 1), and if signs is set every second one negative.
func (s *sweeper) scaled(scales []float64, cols int, signs bool) []float64 {
	out := make([]float64, 0, len(scales)*cols)
	for _, scale := range scales {
		for i := range cols {
			u := scale * (0.25 + 0.75*s.r.Float64())
			if signs && i%2 == 1 {
				u = -u
			}
			out = append(out, u)
		}
	}
	return out
}

// repeated is each value n times: the argument of rows of n.
func repeated(values []float64, n int) []float64 {
	out := make([]float64, 0, n*len(values))
	for _, v := range values {
		for range n {
			out = append(out, v)
		}
	}
	return out
}

// place is of an op on rows tokens, the first at position pos.
func place(name string, rows, pos int) engine.Place {
	return engine.Place{In: &engine.Pass{Step: 1, Rows: rows, Pos: pos}, Name: name}
}

func (s *sweeper) activate() {
	x := everyValue(s.act)
	up := mixed(x)
	in, n := s.of(s.act, x), len(x)
	half, halfUp := make([]float64, n), make([]float64, n) // of GELU, whose 1 + tanh cancels below 0
	for i := range x {
		half[i] = math.Abs(x[i] / 2)
		halfUp[i] = math.Abs(x[i] / 2 * up[i])
	}
	for f := engine.ReLU; f <= engine.Sigmoid; f++ {
		swept := s.add("activate", f.String()+"(x)", &engine.Activate{Place: place("act", 1, 0), Out: s.buf(s.act, n), Gate: in, Dim: n, F: f}, x, nil)
		if f == engine.GELUTanh || f == engine.GELU {
			swept.size = half
		}
	}
	for _, f := range []engine.Function{engine.GELUTanh, engine.SiLU} {
		swept := s.add("activate", f.String()+"(x)·up", &engine.Activate{Place: place("act", 1, 0), Out: s.buf(s.act, n), Gate: in, Up: s.of(s.act, up), Dim: n, F: f}, x, nil)
		if f == engine.GELUTanh {
			swept.size = halfUp
		}
	}
}

func (s *sweeper) elementwise() {
	x := everyValue(s.act)
	in, n := s.of(s.act, x), len(x)
	s.add("softcap", "30·tanh(x/30)", &engine.SoftCap{Place: place("logits", 1, 0), Out: s.buf(s.act, n), X: in, Dim: n, Cap: 30}, x, nil)
	s.add("add", "x + b", &engine.Add{Place: place("layer_out", 1, 0), Out: s.buf(s.act, n), A: in, B: s.of(s.act, mixed(x)), Dim: n}, x, nil)
}

func (s *sweeper) embed() {
	zero := s.buf(num.Int32, 1)
	for _, d := range []num.DType{num.Float32, num.Float16, num.BFloat16} {
		w := everyValue(d)
		n := len(w)
		op := engine.Embed{Place: place("embed", 1, 0), Out: s.buf(s.act, n), IDs: zero, W: engine.Matrix{Buffer: s.of(d, w), Rows: 1, Cols: n}, Scale: 48}
		s.add("embed", "48·w, w "+d.String(), &op, w, nil)
		placed := op
		positions := mixed(w)
		placed.Out, placed.Positions = s.buf(s.act, n), s.of(num.Float32, positions)
		size := make([]float64, n)
		for i := range w {
			size[i] = 48 * math.Abs(w[i])
		}
		s.add("embed", "48·w + position, w "+d.String(), &placed, w, size)
	}
	q, scales := everyValue(num.Int8), magnitudes(num.Float32, 1)
	ids := s.buf(num.Int32, len(scales))
	bytes, err := ids.Host()
	if err != nil {
		s.t.Fatal(err)
	}
	var w, argument []float64
	for row, scale := range scales {
		bytes[4*row], bytes[4*row+1] = byte(row), byte(row>>8)
		w = append(w, q...)
		argument = append(argument, repeated([]float64{scale}, len(q))...)
	}
	m := engine.Matrix{Buffer: s.of(num.Int8, w), Scale: s.of(num.Float32, scales), Rows: len(scales), Cols: len(q)}
	s.add("embed", "48·q·scale, q int8", &engine.Embed{Place: place("embed", len(scales), 0), Out: s.buf(s.act, len(w)), IDs: ids, W: m, Scale: 48}, argument, nil)
}

func (s *sweeper) rope() {
	const dim = 256
	x := mixed(everyValue(s.act))
	n := len(x)
	table, size := make([]float64, n), make([]float64, n)
	for i := range n {
		row, pair := i/dim*dim, i%(dim/2)
		if i%dim < dim/2 {
			sin, cos := math.Sincos(2 * math.Pi * s.r.Float64())
			table[row+pair], table[row+pair+dim/2] = cos, sin
		}
		size[i] = max(math.Abs(x[row+pair]), math.Abs(x[row+pair+dim/2]))
	}
	s.add("rope", "x·cos - y·sin", &engine.RoPE{Place: place("q_rope", n/dim, 0), Out: s.buf(s.act, n), X: engine.View{Buffer: s.of(s.act, x), Stride: dim},
		Table: s.of(num.Float32, table), Heads: 1, Dim: dim, RotaryDim: dim}, x, size)
}

// norms takes rows of one magnitude, rows far from zero, and rows of ones with one element of another magnitude; the last rows have an infinity and
// a NaN.
func (s *sweeper) norms() {
	const dim = 64
	scales := append(magnitudes(s.act, 8), math.Inf(1), math.NaN())
	w, bias := s.of(num.Float32, s.scaled([]float64{1}, dim, false)), s.of(num.Float32, make([]float64, dim))
	like := s.scaled(scales, dim, true)
	outlier := s.scaled(repeated([]float64{1}, len(scales)), dim, true)
	far := s.scaled(scales, dim, false) // from 0, in units of their spread
	for i := range far {
		far[i] = scales[i/dim]*15/16 + far[i]/16
	}
	for row, scale := range scales {
		outlier[row*dim+5] = scale
		if math.IsInf(scale, 0) || scale != scale { // one is enough
			copy(like[row*dim:], outlier[row*dim:][:dim])
			copy(far[row*dim:], outlier[row*dim:][:dim])
		}
	}
	argument := repeated(scales, dim)
	for _, c := range []struct {
		what  string
		x     []float64
		limit float64 // the square root of the largest float32, over all elements or over one
	}{{"rows like x", like, math.Sqrt(math.MaxFloat32 / dim)}, {"rows near x", far, math.Sqrt(math.MaxFloat32 / dim)}, {"one x in rows like 1", outlier, math.Sqrt(math.MaxFloat32)}} {
		x := s.of(s.act, c.x)
		out := func() engine.Buffer { return s.buf(s.act, len(c.x)) }
		s.add("rmsnorm", "Σx², "+c.what, &engine.RMSNorm{Place: place("attn_norm", len(scales), 0), Out: out(), X: engine.View{Buffer: x, Stride: dim}, W: w, Heads: 1, Dim: dim,
			Eps: 1e-6, Offset: 1}, argument, nil).limit = c.limit
		layer := s.add("layernorm", "Σx, Σ(x-mean)², "+c.what, &engine.LayerNorm{Place: place("attn_norm", len(scales), 0), Out: out(), X: x, W: w, Bias: bias, Dim: dim, Eps: 1e-5}, argument, nil)
		layer.row, layer.limit = dim, c.limit // x - mean cancels
	}
}

// softmax takes rows of 64 keys: one is 0 and the others below it; or all are alike.
func (s *sweeper) softmax() {
	const keys = 64
	var below []float64
	for _, v := range everyValue(s.act) {
		if v < 0 {
			if len(below)%keys == 0 {
				below = append(below, 0)
			}
			below = append(below, v)
		}
	}
	below = below[:len(below)/keys*keys]
	scales := append(magnitudes(s.act, 8), math.Inf(1), math.NaN())
	for _, c := range []struct {
		what        string
		x, argument []float64
	}{{"x down from 0", below, below}, {"rows like ±x", s.scaled(scales, keys, true), repeated(scales, keys)}} {
		heads := len(c.x) / keys
		s.add("softmax", "exp(x - max)/Σ, "+c.what, &engine.Softmax{Place: place("softmax", 1, keys-1), Attention: engine.Attention{Heads: heads, KVHeads: heads, Dim: 1},
			Out: s.buf(s.act, len(c.x)), X: s.of(s.act, c.x)}, c.argument, nil)
	}
}

// products is the arguments of sums of rows of one matrix times rows of another: the product of their scales, or a scale that is subnormal or nearly so.
func products(a, b []float64) (out []float64) {
	for _, x := range a {
		for _, y := range b {
			if least := min(x, y); least < nearlySubnormal {
				out = append(out, least)
			} else {
				out = append(out, x*y)
			}
		}
	}
	return out
}

func (s *sweeper) scores() {
	const dim = 64
	q := magnitudes(s.act, 1)
	n := len(q)
	k := append(mixed(q), q[:n-1]...) // row t sees the keys [0, n+t)
	argument := products(q, k)
	s.add("scores", "Σq·k/8, 64 terms", &engine.Scores{Place: place("scores", n, n-1), Attention: engine.Attention{Heads: 1, KVHeads: 1, Dim: dim}, Out: s.buf(s.act, len(argument)),
		Q: engine.View{Buffer: s.of(s.act, s.scaled(q, dim, false)), Stride: dim}, K: s.of(s.act, s.scaled(k, dim, false)), Scale: 0.125}, argument, nil)
}

func (s *sweeper) context() {
	const keys = 64
	scales := magnitudes(s.act, 8)
	p := s.scaled([]float64{1}, keys, false)
	sum := 0.0
	for _, v := range p {
		sum += v
	}
	for i := range p {
		p[i] /= sum
	}
	v := make([]float64, 0, keys*len(scales))
	for range keys {
		v = append(v, s.scaled(scales, 1, false)...)
	}
	s.add("context", "Σp·v, 64 terms, Σp = 1", &engine.Context{Place: place("context", 1, keys-1), Attention: engine.Attention{Heads: 1, KVHeads: 1, Dim: len(scales)},
		Out: s.buf(s.act, len(scales)), P: s.of(s.act, p), V: s.of(s.act, v)}, scales, nil)
}

// attention sweeps the weights' exp with two keys, of which one scores 0, and that which scales sums down with scores that rise from block
// to block.
func (s *sweeper) attention() {
	const many = 1100 // more than eight blocks of 128: a simdgroup has two
	x := everyValue(s.act)
	pairs, values := make([]float64, 0, 2*len(x)), make([]float64, 0, 2*len(x))
	for _, key := range [][]float64{make([]float64, len(x)), x} { // by key, then by head
		pairs = append(pairs, key...)
	}
	for i := range 2 * len(x) {
		values = append(values, float64(i/len(x)))
	}
	s.attend("exp(x)/(1+exp(x))", pairs, values, x)
	scales := append(magnitudes(s.act, 1), math.Inf(1), math.NaN())
	rising := make([]float64, 0, many*len(scales))
	for j := range many {
		for _, scale := range scales {
			rising = append(rising, scale*float64(j+1)/many)
		}
	}
	s.attend("Σexp(s-max)·v/Σ, rising s", rising, s.scaled(repeated([]float64{1}, many), len(scales), false), scales)
}

// attend is attention of one token with a query of 1 for each head: keys, and values in [0, 1], lie by key, then by head.
func (s *sweeper) attend(expression string, keys, values, argument []float64) {
	heads := len(argument)
	n := len(keys) / heads
	at := place("context", 1, n-1)
	a := engine.Attention{Heads: heads, KVHeads: heads, Dim: 1}
	scores := &engine.Scores{Place: at, Attention: a, Out: s.buf(s.act, len(keys)), Q: engine.View{Buffer: s.of(s.act, repeated([]float64{1}, heads)), Stride: heads}, K: s.of(s.act, keys), Scale: 1}
	softmax := &engine.Softmax{Place: at, Attention: a, Out: s.buf(s.act, len(keys)), X: scores.Out}
	swept := s.add("attention", expression, &engine.Context{Place: at, Attention: a, Out: s.buf(s.act, heads), P: softmax.Out, V: s.of(s.act, values)}, argument, nil)
	swept.scores, swept.softmax = scores, softmax
}

// linear takes tokens of every magnitude, many and four, times rows of every magnitude, and one token like 1 with a bias.
func (s *sweeper) linear() {
	const cols = 64
	x := magnitudes(s.act, 1)
	for _, d := range []num.DType{num.Float32, num.Float16, num.BFloat16, num.Int8} {
		w := magnitudes(d, 1)
		m := engine.Matrix{Rows: len(w), Cols: cols}
		if d == num.Int8 {
			m.Buffer, m.Scale = s.of(d, s.scaled(repeated([]float64{127}, len(w)), cols, false)), s.of(num.Float32, w)
		} else {
			m.Buffer = s.of(d, s.scaled(w, cols, false))
		}
		product := func(kernel string, x []float64) {
			s.add(kernel, "Σx·w, 64 terms, w "+d.String(), &engine.Linear{Place: place("qkv", len(x), 0), Out: s.buf(s.act, len(x)*len(w)),
				X: s.of(s.act, s.scaled(x, cols, false)), W: m}, products(x, w), nil)
		}
		product("gemm", x)
		product("linear4", []float64{x[0], x[len(x)/3], x[len(x)/2], x[len(x)-1]})
		s.add("linear", "Σx·w + bias, x like 1, w "+d.String(), &engine.Linear{Place: place("qkv", 1, 0), Out: s.buf(s.act, len(w)),
			X: s.of(s.act, s.scaled([]float64{1}, cols, false)), W: m, Bias: s.of(num.Float32, mixed(w))}, w, nil)
	}
}
