package cpuref

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"runtime"

	"llmrun/internal/cpuref/kernel"
	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// Options are the backend's settings.
type Options struct {
	Threads int // 0: as many as Go runs at once, which heeds the limits of a container. The results do not depend on it.
}

// Backend is the CPU reference. It runs an op at once, in Run.
type Backend struct {
	pool      *pool
	kernels   *kernel.Set
	err       error  // the first failure
	used      uint64 // bytes of all buffers made
	now       atWork
	foresight foresight
}

// atWork is the op that runs, and its operands. It stays, so that an op need not make memory for it.
type atWork struct {
	outs, ins    []engine.Operand
	out, in      operands
	embed        embed
	rmsNorm      rmsNorm
	layerNorm    layerNorm
	linear       linear
	widen        widen
	quantize     quantize
	rope         rope
	scores       scores
	softmax      softmax
	context      weighing
	contextOfOne contextOfOne
	rowwise      rowwise
}

// Open starts a backend's threads. Close stops them. LLMRUN_CPU in the environment names the kernels (generic, avx2, avx512, neon, neon+dotprod); the results
// do not depend on them. Without it they are the fastest that the machine can run. A name that it cannot is the backend's first failure.
func Open(o Options) *Backend {
	if o.Threads <= 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	kernels, err := kernel.Choose(os.Getenv("LLMRUN_CPU"))
	if err != nil {
		err = fmt.Errorf("LLMRUN_CPU: %w", err)
	}
	b := &Backend{kernels: kernels, err: err}
	for range o.Threads - 1 {
		b.foresight.workers = append(b.foresight.workers, &reader{})
	}
	b.pool = newPool(o.Threads, b.readAhead)
	return b
}

// Name is "cpu".
func (b *Backend) Name() string { return "cpu" }

// Activations is float32, always.
func (b *Backend) Activations() num.DType { return num.Float32 }

// Sync returns the first failure.
func (b *Backend) Sync() error { return b.err }

// Close stops the threads. The backend must not be used afterwards.
func (b *Backend) Close() error {
	b.pool.close()
	return nil
}

// buffer is bytes and their type.
type buffer struct {
	backend *Backend
	dtype   num.DType
	data    []byte
}

func (b *buffer) DType() num.DType { return b.dtype }

func (b *buffer) Len() int { return len(b.data) / b.dtype.Size() }

func (b *buffer) Host() ([]byte, error) { return b.data, b.backend.err }

// NewBuffer gives n zeroed elements.
func (b *Backend) NewBuffer(d num.DType, n int) (engine.Buffer, error) {
	if d >= num.NumDTypes || n < 0 || n > math.MaxInt/d.Size() {
		return nil, fmt.Errorf("cpu: no buffer of %d elements of %v", n, d)
	}
	// Go ends the program when it finds no memory; what the machine cannot hold is refused instead.
	if all := machineMemory(); all > 0 && b.used+uint64(n*d.Size()) > all {
		return nil, fmt.Errorf("cpu: want %d bytes beside %d in use, the machine has %d", n*d.Size(), b.used, all)
	}
	b.used += uint64(n * d.Size())
	data := make([]byte, n*d.Size())
	LargePages(data)
	return &buffer{b, d, data}, nil
}

// Upload gives the tensor's bytes where they lie.
func (b *Backend) Upload(t ctconv.Tensor) (engine.Buffer, error) {
	if want := t.Elements() * t.DType.Size(); len(t.Data) != want {
		return nil, fmt.Errorf("cpu: %s: want %d bytes for %v of %v, found %d", t.Name, want, t.Shape, t.DType, len(t.Data))
	}
	return &buffer{b, t.DType, t.Data}, nil
}

// Run runs op on any backend's buffers. See Sync for its failure.
func (b *Backend) Run(op engine.Op) {
	if b.err != nil {
		return
	}
	if err := b.run(op); err != nil {
		b.err = &engine.OpError{Site: op.Site(), Err: err}
	}
}

func (b *Backend) run(op engine.Op) error {
	w := &b.now
	w.outs, w.ins = op.Operands(w.outs[:0], w.ins[:0])
	var err error
	if w.out, err = open(w.out, w.outs); err != nil {
		return err
	}
	if w.in, err = open(w.in, w.ins); err != nil {
		return err
	}
	out, in := w.out, w.in
	switch o := op.(type) {
	case *engine.Embed:
		return b.embed(o, out, in)
	case *engine.RMSNorm:
		b.rmsNorm(o, out, in)
	case *engine.LayerNorm:
		b.layerNorm(o, out, in)
	case *engine.Linear:
		b.linear(o, out, in)
	case *engine.RoPE:
		b.rope(o, out, in)
	case *engine.KVWrite:
		b.kvWrite(o, out, in)
	case *engine.Scores:
		b.scores(o, out, in)
	case *engine.Softmax:
		b.softmax(o, out, in)
	case *engine.Context:
		b.context(o, out, in)
	case *engine.Activate:
		b.rowwise(o, out.get("out"), in.get("gate"), in.get("up"))
	case *engine.Add:
		b.rowwise(o, out.get("out"), in.get("a"), in.get("b"))
	case *engine.SoftCap:
		b.rowwise(o, out.get("out"), in.get("x"), operand{})
	default:
		panic(fmt.Sprintf("BUG: %v: no op %T", op.Site(), op))
	}
	return nil
}

// operand is an op's operand with its bytes, from the buffer's first element.
type operand struct {
	engine.Operand
	dtype num.DType
	data  []byte
}

type operands []operand

// open reaches for the operands' bytes. The memory of the list before is used again.
func open(opened operands, list []engine.Operand) (operands, error) {
	opened = opened[:0]
	for _, o := range list {
		data, err := o.Buffer.Host()
		if err != nil {
			return nil, err
		}
		if err := o.Check(); err != nil {
			return nil, err
		}
		opened = append(opened, operand{o, o.Buffer.DType(), data})
	}
	return opened, nil
}

// get finds an operand by its name; one that the op does not have is empty.
func (list operands) get(name string) operand {
	for _, o := range list {
		if o.Name == name {
			return o
		}
	}
	return operand{}
}

func (o operand) exists() bool { return o.Buffer != nil }

// from gives the bytes from element i of row r on.
func (o operand) from(r, i int) []byte { return o.data[(o.Offset+r*o.Stride+i)*o.dtype.Size():] }

// read widens elements i, i+1, … of row r.
func (o operand) read(dst []float32, r, i int) { num.Float32s(dst, o.dtype, o.from(r, i)) }

// row gives n elements of row r, from element i on: where they lie, or widened to the thread's array number slot.
func (o operand) row(s *scratch, slot, r, i, n int) []float32 {
	if o.dtype == num.Float32 {
		return kernel.FloatsOf(o.from(r, i)[:4*n])
	}
	row := s.floats(slot, n)
	o.read(row, r, i)
	return row
}

// room gives the memory in which n rows of m elements are computed, from element i of row r on: in place, or in the thread's
// array number slot. Then put must be called, with no NaN but the one that is stored where the memory is in place.
func (o operand) room(s *scratch, slot, r, n, i, m int) kernel.Floats {
	if o.dtype == num.Float32 {
		return kernel.Floats{Data: kernel.FloatsOf(o.from(r, i)[:4*((n-1)*o.Stride+m)]), Stride: o.Stride}
	}
	return kernel.Floats{Data: s.floats(slot, n*m), Stride: m}
}

// put: see room.
func (o operand) put(f kernel.Floats, r, n, i, m int) {
	if o.dtype == num.Float32 {
		return
	}
	for k := range n {
		o.writeRow(r+k, i, f.Data[k*f.Stride:][:m])
	}
}

// write rounds v to element i of row r.
func (o operand) write(r, i int, v float32) {
	if v != v {
		v = math.Float32frombits(0x7fc00000)
	}
	if b := o.from(r, i); o.dtype == num.Float32 {
		binary.LittleEndian.PutUint32(b, math.Float32bits(v))
	} else {
		num.PutFloat32(o.dtype, b, 0, v)
	}
}

// writeRow rounds src to elements i, i+1, … of row r.
func (o operand) writeRow(r, i int, src []float32) {
	for k, v := range src {
		o.write(r, i+k, v)
	}
}
