package metal

import (
	"errors"
	"fmt"
	"sync"

	"github.com/ebitengine/purego"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// With Options.MPS, Apple's MPSMatrixMultiplication multiplies in place of linear.metal: the second opinion on our own kernels, in
// decode and in prefill. It is slow for one row, and that is not what it is for.

// What MPS is reported to get wrong, without an error, is refused (the first) or avoided by multiplying some columns of the result
// at a time.
const (
	// On M1 and M2, sums over 32767 products or more add what lies behind the operands (pytorch/pytorch#195163, of MPSGraph).
	mpsMaxInner = 32766
	// Results with more than 32768 columns were wrong from column 1024 on (pytorch/pytorch#111634 and #116769, of MPSGraph).
	mpsMaxCols = 32768
	// (rows + 2·inner)·(bytes of a result's row) is a signed 32-bit number somewhere: beyond, some rows are NaN (JuliaGPU/Metal.jl#381).
	mpsMaxOffset = 1<<31 - 1
)

// mpsTypes are the MPSDataType of those types that MPS multiplies and we have. bfloat16 it refuses, by ending the process.
var mpsTypes = map[num.DType]uint32{num.Float32: 0x10000020, num.Float16: 0x10000010}

// mpsError says what MPS cannot multiply.
type mpsError struct{ text string }

func (e *mpsError) Error() string { return e.text }

// Hint names the other way to multiply.
func (e *mpsError) Hint() string { return "--metal-gemm own" }

// supportsMPS is MPSSupportsMTLDevice.
var supportsMPS func(id) bool

// loadMPS opens MetalPerformanceShaders, once, and only for those who ask for it.
var loadMPS = sync.OnceValue(func() error {
	s, err := load()
	if err == nil {
		s, err = openMPS(s)
	}
	if err != nil {
		return err
	}
	p, err := s.symbol("MPSSupportsMTLDevice")
	if err != nil {
		return err
	}
	purego.RegisterFunc(&supportsMPS, p)
	return nil
})

// mps makes MPS's objects, one for each buffer and shape, and keeps them: results were reported wrong where one buffer
// took turns as matrices of different sizes.
type mps struct {
	products map[productKey]*product
	matrices map[matrixKey]matrix
	kernels  map[[3]int]multiplication // by rows, cols, inner
	sums     map[[2]int]slot           // float32 [rows, cols], by rows and cols
}

// matrixKey is a matrix in a buffer, all of its rows, of which a product may use the first ones.
type matrixKey struct {
	at         slot
	rows, cols int
	dtype      num.DType
}

// productKey is result[:rows] = left[:rows] · rightᵀ.
type productKey struct {
	rows                int
	result, left, right matrixKey
}

// product is a matrix product written down. MPS's objects are made when it is first run.
type product struct {
	key                 productKey
	kernel              multiplication
	result, left, right matrix
}

// newMPS refuses what MPS cannot do at all.
func newMPS(d device, activations num.DType) (*mps, error) {
	if _, ok := mpsTypes[activations]; !ok {
		return nil, &mpsError{fmt.Sprintf("metal: MPS multiplies float32 and float16 activations, not %v", activations)}
	}
	if err := loadMPS(); err != nil {
		return nil, err
	}
	if !supportsMPS(d.id) {
		return nil, &mpsError{fmt.Sprintf("metal: MetalPerformanceShaders does not support %s", d.name())}
	}
	return &mps{map[productKey]*product{}, map[matrixKey]matrix{}, map[[3]int]multiplication{}, map[[2]int]slot{}}, nil
}

// mpsMultiplies says why MPS would not multiply, or not rightly. It takes float32 with float16 on the right, but not the other way round.
func mpsMultiplies(activations, weight num.DType, inner int) error {
	if _, ok := mpsTypes[weight]; !ok || weight == num.Float32 && activations == num.Float16 {
		return &mpsError{fmt.Sprintf("MPS does not multiply %v activations by %v weights", activations, weight)}
	}
	if inner > mpsMaxInner {
		return &mpsError{fmt.Sprintf("MPS is known to add up wrongly over more than %d columns, the weight has %d", mpsMaxInner, inner)}
	}
	return nil
}

// release releases all objects, on the Metal thread.
func (m *mps) release() {
	for _, k := range m.kernels {
		k.release()
	}
	for _, x := range m.matrices {
		x.release()
	}
}

// multiply writes a linear op down as products of at most so many columns that MPS gets them right. The products are float32; unless that
// is the result, add_bias.metal then adds the bias and rounds, once as linear.metal does.
func (b *Backend) multiply(o *engine.Linear) {
	rows, cols, inner := o.Rows(), o.W.Rows, o.W.Cols
	if err := mpsMultiplies(b.activations, o.W.Buffer.DType(), inner); err != nil {
		b.err = &engine.OpError{Site: o.Site(), Err: fmt.Errorf("metal: %w", err)}
		return
	}
	w, wide := o.W.Buffer.DType(), o.Out.Len()/cols
	left := matrixKey{b.act(o.X), o.X.Len() / inner, inner, b.activations}
	most := min(mpsMaxCols, mpsMaxOffset/4/(rows+2*inner))
	direct := b.activations == num.Float32 && o.Bias == nil && cols <= most
	for from := 0; from < cols; from += most {
		n := min(most, cols-from)
		result := matrixKey{b.act(o.Out), wide, n, num.Float32}
		if !direct {
			if result.at = b.sums(wide, n); b.err != nil {
				return
			}
		}
		right := matrixKey{at(b.typed(o.W.Buffer, w), w, from*inner), n, inner, w}
		b.queueProduct(o.Site(), productKey{rows, result, left, right})
		if direct {
			continue
		}
		bias := result.at
		if o.Bias != nil {
			bias = at(b.float(o.Bias), num.Float32, from)
		}
		grid, group := elements(n, rows, 1)
		queue(b, o.Site(), plain("add_bias"), grid, group, addBiasArgs{uint32(n), uint32(cols), flag(o.Bias != nil)},
			at(b.act(o.Out), b.activations, from), result.at, bias)
	}
	b.work += rows * cols * inner
}

// sums gives a matrix for products that are not results yet, always the same one for the same size.
func (b *Backend) sums(rows, cols int) slot {
	key := [2]int{rows, cols}
	s, ok := b.mps.sums[key]
	if !ok {
		var err error
		if s.mtl, _, err = b.allocate(4 * rows * cols); err != nil {
			b.err = fmt.Errorf("metal: sums of MPS: %w", err)
		}
		b.mps.sums[key] = s
	}
	return s
}

// queueProduct writes a product down, with its result, left and right matrix as slots.
func (b *Backend) queueProduct(site engine.Site, key productKey) {
	p := b.mps.products[key]
	if p == nil {
		p = &product{key: key}
		b.mps.products[key] = p
	}
	b.pending = append(b.pending, dispatch{site: site, product: p, kernel: mpsKernel, slotCount: 3,
		slots: [maxSlots]slot{key.result.at, key.left.at, key.right.at}})
}

// mpsKernel is the name of what runs a product.
var mpsKernel = &kernel{name: "MPSMatrixMultiplication"}

// resolveProduct makes the product's objects, if it has none, on the Metal thread.
func (b *Backend) resolveProduct(p *product) error {
	if !p.kernel.isNil() {
		return nil
	}
	m, key := b.mps, p.key
	p.result, p.left, p.right = m.matrix(key.result), m.matrix(key.left), m.matrix(key.right)
	if p.result.isNil() || p.left.isNil() || p.right.isNil() {
		return errors.New("MPS makes no matrix of a buffer")
	}
	shape := [3]int{key.rows, key.result.cols, key.left.cols}
	k, ok := m.kernels[shape]
	if !ok {
		if k = newMultiplication(b.device, shape[0], shape[1], shape[2]); k.isNil() {
			return fmt.Errorf("MPS does not multiply %d x %d by %d x %d", shape[0], shape[2], shape[2], shape[1])
		}
		m.kernels[shape] = k
	}
	p.kernel = k
	return nil
}

func (m *mps) matrix(k matrixKey) matrix {
	x, ok := m.matrices[k]
	if !ok {
		if x = newMatrix(k.at.mtl, k.at.offset, k.rows, k.cols, k.dtype.Size(), mpsTypes[k.dtype]); !x.isNil() {
			m.matrices[k] = x
		}
	}
	return x
}
