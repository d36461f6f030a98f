package metal

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// Options say how to open the backend.
type Options struct {
	Activations num.DType // Float32, Float16 or BFloat16
	FastMath    bool      // ask for Metal's fast math, which only a fault wants
	MPS         bool      // linear ops run through Apple's MPSMatrixMultiplication, a second opinion on our own kernels
	Fuse        bool      // run fused kernels where adjacent ops allow it (fuse.go)
	// Edit, if not nil, changes a shader's text before it is compiled: a fault. file is its name in package shaders.
	Edit func(file, source string) (string, error)
}

// Backend is engine.Backend on Metal. Run only writes an op down; Sync hands everything written down since the last one to the
// Metal thread, as one command buffer with one serial encoder, and waits for it (execute.go). It is an engine.Preparer, too (ahead.go).
type Backend struct {
	activations num.DType
	info        Info
	thread      *thread
	device      device
	queue       commandQueue
	libraries   map[string]library
	kernels     map[kernelKey]*kernel
	buffers     []mtlBuffer
	weights     map[weightKey]*buffer
	chunk       chunk
	quantizer   quantizer
	mps         *mps          // nil: our own kernels multiply
	timeout     time.Duration // of a command buffer
	pending     []dispatch
	ids         []tokenIDs // of the pending embeddings
	work        int        // multiply-adds pending
	flying      []*flight  // committed, in order
	prepared    []*flight  // encoded ahead, the oldest first
	spare       []*flight
	tickets     int                 // given out
	operands    [2][]engine.Operand // of the op that is checked, kept for their room
	fuses       []bool              // which of the fusions are made
	lost        map[mtlBuffer]bool  // what fused kernels have not written
	err         error
}

// maxWork is how many multiply-adds may wait for one command buffer: some tenths of a second on the smallest M1. A display's
// watchdog kills a command buffer that holds the GPU for seconds.
const maxWork = 1 << 35

// Open opens the default Metal device and compiles the shaders. An *UnavailableError says that the machine has none.
func Open(o Options) (*Backend, error) {
	if !o.Activations.IsFloat() {
		panic(fmt.Sprintf("BUG: activations of type %v", o.Activations))
	}
	s, err := load()
	if err != nil {
		return nil, err
	}
	b := &Backend{activations: o.Activations, thread: newThread(), kernels: map[kernelKey]*kernel{}, weights: map[weightKey]*buffer{},
		fuses: make([]bool, len(fusions)), lost: map[mtlBuffer]bool{}}
	for i := range b.fuses {
		b.fuses[i] = o.Fuse
	}
	b.thread.do(func() { err = b.open(o, s) })
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

func (b *Backend) open(o Options, s source) (err error) {
	if b.device, err = openDevice(); err != nil {
		return err
	}
	if b.activations == num.BFloat16 {
		if err := refuseBFloat(b.device); err != nil {
			return err
		}
	}
	b.info = describe(b.device, s)
	b.info.Fuse = o.Fuse
	if b.info.Validate, err = validate(s); err != nil {
		return err
	}
	if b.timeout, err = timeout(s.host); err != nil {
		return err
	}
	if b.queue = b.device.newQueue(); b.queue.isNil() {
		return fmt.Errorf("metal: %s gives no command queue", b.info.Device)
	}
	if o.MPS {
		if b.mps, err = newMPS(b.device, b.activations); err != nil {
			return err
		}
		b.info.Gemm = "mps"
	}
	options, err := mathOptions(b.activations, o.FastMath, &b.info)
	if err != nil {
		return err
	}
	defer options.release()
	b.libraries, err = compileAll(b.device, options, o.Edit)
	return err
}

// Name is "metal".
func (b *Backend) Name() string { return "metal" }

// Activations is documented at engine.Backend.
func (b *Backend) Activations() num.DType { return b.activations }

// Info describes the device and how the shaders were compiled.
func (b *Backend) Info() Info { return b.info }

var errClosed = errors.New("metal: the backend is closed")

// Close releases everything. What was not synced is dropped; buffers must not be used after it.
func (b *Backend) Close() error {
	if b.err == errClosed {
		return nil
	}
	for _, f := range b.flying { // what the device has begun it ends first
		b.thread.within(b.timeout, f.land)
	}
	b.thread.do(func() {
		for _, f := range b.prepared {
			f.drop()
		}
		for _, k := range b.kernels {
			k.release()
		}
		for _, l := range b.libraries {
			l.release()
		}
		if b.mps != nil {
			b.mps.release()
		}
		for _, m := range b.buffers {
			m.release()
		}
		b.queue.release() // nil, like the device, if Open failed: a message to nil does nothing
		b.device.release()
	})
	b.thread.stop()
	b.pending, b.flying, b.prepared, b.err = nil, nil, nil, errClosed
	return nil
}

const (
	maxSlots = 9
	maxArgs  = 40 // bytes
)

// dispatch is one run of a kernel, or one product of MPS, written down.
type dispatch struct {
	site        engine.Site
	key         kernelKey
	kernel      *kernel
	grid, group size // threads; of the grid, of a threadgroup
	slots       [maxSlots]slot
	slotCount   int // bound to indices 0 on, the args after them
	args        [maxArgs]byte
	argsLen     int
	product     *product // nil: a kernel of ours
}

// slot is where a kernel's buffer begins.
type slot struct {
	mtl    mtlBuffer
	offset uint // bytes
}

// queue writes a dispatch down. A is the args struct, as the shader spells it.
func queue[A any](b *Backend, site engine.Site, key kernelKey, grid, group size, args A, slots ...slot) {
	b.pending = append(b.pending, newDispatch(site, key, grid, group, args, slots...))
	b.fuse()
}

func newDispatch[A any](site engine.Site, key kernelKey, grid, group size, args A, slots ...slot) dispatch {
	d := dispatch{site: site, key: key, grid: grid, group: group, slotCount: len(slots), argsLen: int(unsafe.Sizeof(args))}
	copy(d.slots[:], slots)
	copy(d.args[:], unsafe.Slice((*byte)(unsafe.Pointer(&args)), d.argsLen))
	return d
}
