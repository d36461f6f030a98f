package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"llmrun/internal/ctconv"
	"llmrun/internal/num"
)

// weights reads variables of a model file onto a backend. It remembers which were asked for: what is left over in the end
// asks for something that this decoder does not compute, and the file is refused.
type weights struct {
	m         *ctconv.Model
	b         Backend
	quantized bool // linears multiply int8 by int8
	used      map[string]bool
	matrices  map[string]loaded // by the variable that holds the data, so that tied weights are uploaded once
	err       error             // the first; all reads after it do nothing
}

// loaded is a matrix on the backend, and what the rows of an int8 one are to be divided by.
type loaded struct {
	buffer   Buffer
	divisors []float32
}

// norm is the weight of a LayerNorm, or of an RMSNorm, which has no bias.
type norm struct {
	w, bias     Buffer // float32 [dim]
	dim         int
	eps, offset float32
}

// linear is a weight [out, in] and its bias, if it has one.
type linear struct {
	w                    Matrix
	bias                 Buffer
	quantized, truncated bool // see Linear
}

func (w *weights) fail(err error) {
	if w.err == nil && err != nil {
		w.err = err
	}
}

// refuse reports that the file asks for something not built.
func (w *weights) refuse(variable, what string) {
	w.fail(fmt.Errorf("%s: %s: llmrun does not compute %s yet", w.m.Dir, variable, what))
}

func (w *weights) has(name string) bool {
	_, ok := w.m.Tensor(name)
	return ok
}

// hasScope tells whether any variable's name begins with scope and a slash.
func (w *weights) hasScope(scope string) bool {
	for name := range w.m.Tensors {
		if strings.HasPrefix(name, scope+"/") {
			return true
		}
	}
	return false
}

func (w *weights) integer(name string, absent int) int {
	w.used[name] = true
	v, err := w.m.Int(name, absent)
	w.fail(err)
	return v
}

func (w *weights) float(name string, absent float32) float32 {
	w.used[name] = true
	v, err := w.m.Float(name, absent)
	w.fail(err)
	return v
}

func (w *weights) flag(name string, absent bool) bool {
	w.used[name] = true
	v, err := w.m.Flag(name, absent)
	w.fail(err)
	return v
}

// floats reads a float variable as float32.
func (w *weights) floats(name string, shape ...int) []float32 {
	w.used[name] = true
	t, err := w.m.Want(name, shape...)
	if err != nil {
		w.fail(err)
		return nil
	}
	if !t.DType.IsFloat() {
		w.fail(fmt.Errorf("%s: %s: want float elements, file has %v", w.m.Dir, name, t.DType))
		return nil
	}
	v := make([]float32, t.Elements())
	num.Float32s(v, t.DType, t.Data)
	return v
}

// buffer makes a float32 buffer that holds v.
func (w *weights) buffer(v []float32) Buffer {
	if w.err != nil {
		return nil
	}
	b, err := w.b.NewBuffer(num.Float32, len(v))
	if err != nil {
		w.fail(err)
		return nil
	}
	host, err := b.Host()
	if err != nil {
		w.fail(err)
		return nil
	}
	num.PutFloat32s(num.Float32, host, v)
	return b
}

// vector reads a float variable of n elements into a float32 buffer.
func (w *weights) vector(name string, n int) Buffer { return w.buffer(w.floats(name, n)) }

// load reads a weight [rows, cols]; -1 is any number.
func (w *weights) load(name string, rows, cols int) (Matrix, []float32) {
	w.used[name] = true
	t, err := w.m.Want(name, rows, cols)
	if err != nil {
		w.fail(err)
		return Matrix{}, nil
	}
	holder := name
	if t.AliasOf != "" {
		holder = t.AliasOf
	}
	l, ok := w.matrices[holder]
	if !ok {
		switch {
		case t.DType == num.Int8:
			l.divisors = w.floats(name+"_scale", t.Shape[0])
		case !t.DType.IsFloat():
			w.refuse(name, t.DType.String()+" weights")
		}
		if w.err != nil {
			return Matrix{}, nil
		}
		if w.quantized && t.DType != num.Int8 {
			l = w.quantize(t)
		} else {
			l.buffer, err = w.b.Upload(t)
			w.fail(err)
		}
		w.m.Forget(t) // a backend that copied needs it no more, and one that reads in place has not read yet
		w.matrices[holder] = l
	}
	return Matrix{Buffer: l.buffer, Rows: t.Shape[0], Cols: t.Shape[1]}, l.divisors
}

// quantize makes an int8 matrix of one of floats.
func (w *weights) quantize(t ctconv.Tensor) (l loaded) {
	var host []byte
	var err error
	if l.buffer, err = w.b.NewBuffer(num.Int8, t.Elements()); err == nil {
		host, err = l.buffer.Host()
	}
	if err == nil {
		if l.divisors, err = quantize(host, t.Data, t.DType, t.Shape[0], t.Shape[1], w.truncates()); err != nil {
			err = fmt.Errorf("%s: %s: %w", w.m.Dir, t.Name, err)
		}
	}
	w.fail(err)
	return l
}

// truncates tells whether the file is of the time when quantization did not round (include/ctranslate2/models/model.h).
func (w *weights) truncates() bool { return w.m.Version < 5 }

// matrix reads a weight whose elements are wanted. What the rows of an int8 one are divided by is turned into factors:
// CTranslate2 takes the reciprocals first (src/ops/dequantize_cpu.cc), and so do we.
func (w *weights) matrix(name string, rows, cols int) Matrix {
	m, divisors := w.load(name, rows, cols)
	if divisors != nil {
		factors := make([]float32, len(divisors))
		for i, d := range divisors {
			factors[i] = 1 / d
		}
		m.Scale = w.buffer(factors)
	}
	return m
}

func (w *weights) linear(scope string, out, in int) (l linear) {
	name := scope + "/weight"
	if !w.quantized {
		l.w = w.matrix(name, out, in)
	} else {
		var divisors []float32
		l.quantized, l.truncated = true, w.truncates()
		l.w, divisors = w.load(name, out, in)
		l.w.Scale = w.buffer(divisors)
		if l.w.Cols > MaxQuantizedCols {
			w.fail(fmt.Errorf("%s: %s: want at most %d columns for exact sums of int8, file has %d", w.m.Dir, name, MaxQuantizedCols, l.w.Cols))
		}
	}
	if bias := scope + "/bias"; w.has(bias) {
		l.bias = w.vector(bias, l.w.Rows)
	}
	return l
}

func (w *weights) norm(scope string, dim int) norm {
	n := norm{dim: dim, eps: 1e-6}
	if beta := scope + "/beta"; w.has(beta) {
		n.bias, n.eps = w.vector(beta, dim), 1e-5
	}
	if e := w.m.Config.LayerNormEpsilon; e != nil {
		n.eps = float32(*e)
	}
	if residual := scope + "/layer_norm_use_residual"; w.flag(residual, false) {
		n.offset = 1
		if n.bias != nil {
			w.refuse(residual, "a LayerNorm with 1 + gamma")
		}
	}
	n.w = w.vector(scope+"/gamma", dim)
	return n
}

// optionalNorm is the RMSNorm of that name, nil where the file has none.
func (w *weights) optionalNorm(scope string, dim int) *norm {
	if !w.hasScope(scope) {
		return nil
	}
	n := w.norm(scope, dim)
	if n.bias != nil {
		w.refuse(scope+"/beta", "a LayerNorm there")
	}
	return &n
}

// missing names what a variable that no one asked for would need; the first match counts.
var missing = []struct{ part, what string }{
	{"layernorm_embedding/", "a norm after the embeddings"},
	{"project_in/", "projected embeddings"}, {"project_out/", "projected embeddings"},
	{"shared_layer_norm/", "the parallel block"}, {"input_layer_norm/", "the parallel block"},
	{"/attention/", "cross-attention"}, {"memory_", "cross-attention"}, {"relative_", "relative positions"},
	{"v_norm/", "a norm of the values"}, {"layer_scalar", "a layer scale"}, {"scale_outputs", "scaled outputs"},
	{"weight_zero", "AWQ weights"}, {"multi_query", "the old multi-query layout"},
}

// leftover refuses a file with a variable that nothing asked for.
func (w *weights) leftover() {
	for name := range w.used { // who reads an alias has read what it stands for
		if t, ok := w.m.Tensor(name); ok && t.AliasOf != "" {
			w.used[t.AliasOf] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.m.Tensors)) {
		t, _ := w.m.Tensor(name)
		if w.used[name] || w.used[t.AliasOf] && strings.HasSuffix(name, "_scale") {
			continue
		}
		what := "what this variable is for"
		for _, m := range missing {
			if strings.Contains(name, m.part) {
				what = m.what
				break
			}
		}
		w.refuse(name, what)
		return
	}
}
