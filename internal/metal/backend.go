package metal

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unsafe"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// Options say how to open the backend.
type Options struct {
	Activations num.DType // Float32 or Float16
	FastMath    bool      // ask for Metal's fast math, which only a fault wants
	// Edit, if not nil, changes a shader's text before it is compiled: a fault. file is its name in package shaders.
	Edit func(file, source string) (string, error)
}

// Backend is engine.Backend on Metal. Run only writes an op down; Sync hands everything written down since the last one to the
// Metal thread, as one command buffer with one serial encoder, and waits for it.
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
	pending     []dispatch
	work        int // multiply-adds pending
	err         error
}

// maxWork is how many multiply-adds may wait for one command buffer: some tenths of a second on the smallest M1. A display's
// watchdog kills a command buffer that holds the GPU for seconds.
const maxWork = 1 << 35

// Open opens the default Metal device and compiles the shaders. An *UnavailableError says that the machine has none.
func Open(o Options) (*Backend, error) {
	if o.Activations != num.Float32 && o.Activations != num.Float16 {
		panic(fmt.Sprintf("BUG: activations of type %v", o.Activations))
	}
	s, err := load()
	if err != nil {
		return nil, err
	}
	b := &Backend{activations: o.Activations, thread: newThread(), kernels: map[kernelKey]*kernel{}, weights: map[weightKey]*buffer{}}
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
	b.info = describe(b.device, s)
	if b.queue = b.device.newQueue(); b.queue.isNil() {
		return fmt.Errorf("metal: %s gives no command queue", b.info.Device)
	}
	options, err := mathOptions(o.FastMath, &b.info)
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
	b.thread.do(func() {
		for _, k := range b.kernels {
			k.pipeline.release()
		}
		for _, l := range b.libraries {
			l.release()
		}
		for _, m := range b.buffers {
			m.release()
		}
		b.queue.release() // nil, like the device, if Open failed: a message to nil does nothing
		b.device.release()
	})
	b.thread.stop()
	b.pending, b.err = nil, errClosed
	return nil
}

const (
	maxSlots = 5
	maxArgs  = 32 // bytes
)

// dispatch is one run of a kernel, written down.
type dispatch struct {
	site        engine.Site
	key         kernelKey
	kernel      *kernel
	grid, group size // threads; of the grid, of a threadgroup
	slots       [maxSlots]slot
	slotCount   int // bound to indices 0 on, the args after them
	args        [maxArgs]byte
	argsLen     int
}

// slot is where a kernel's buffer begins.
type slot struct {
	mtl    mtlBuffer
	offset uint // bytes
}

// queue writes a dispatch down. A is the args struct, as the shader spells it.
func queue[A any](b *Backend, site engine.Site, key kernelKey, grid, group size, args A, slots ...slot) {
	d := dispatch{site: site, key: key, grid: grid, group: group, slotCount: len(slots), argsLen: int(unsafe.Sizeof(args))}
	copy(d.slots[:], slots)
	copy(d.args[:], unsafe.Slice((*byte)(unsafe.Pointer(&args)), d.argsLen))
	b.pending = append(b.pending, d)
}

// Sync is documented at engine.Backend.
func (b *Backend) Sync() error {
	if b.err == nil && len(b.pending) > 0 {
		b.thread.do(func() { b.err = b.execute() })
	}
	b.pending, b.work = b.pending[:0], 0
	return b.err
}

// execute runs all that is pending in one command buffer, whose status decides. It runs on the Metal thread.
func (b *Backend) execute() error {
	for i := range b.pending {
		if err := b.resolve(&b.pending[i]); err != nil {
			return err
		}
	}
	commands := b.queue.commandBuffer()
	if commands.isNil() {
		return b.failure(errors.New("the queue gives no command buffer"))
	}
	e := commands.computeEncoder()
	if e.isNil() {
		return b.failure(errors.New("the command buffer gives no encoder"))
	}
	e.setLabel(b.pending[0].site.String())
	var last *kernel
	for i := range b.pending {
		d := &b.pending[i]
		if d.kernel != last {
			e.setPipeline(d.kernel.pipeline)
			last = d.kernel
		}
		for j, s := range d.slots[:d.slotCount] {
			e.setBuffer(s.mtl, s.offset, j)
		}
		e.setBytes(d.args[:d.argsLen], d.slotCount)
		e.dispatchThreads(d.grid, d.group)
	}
	e.endEncoding()
	commands.commit()
	commands.wait()
	err := commands.error() // before the pool takes it
	if status := commands.status(); err == nil && status != statusCompleted {
		err = fmt.Errorf("command buffer ended with status %d", status)
	}
	if err != nil {
		return b.failure(err)
	}
	return nil
}

// resolve finds the dispatch's kernel, or makes it.
func (b *Backend) resolve(d *dispatch) error {
	k := b.kernels[d.key]
	if k == nil {
		name := d.key.name(b.activations)
		var err error
		if k, err = newKernel(b.device, b.libraries[d.key.shader], name); err != nil {
			return &engine.OpError{Site: d.site, Kernel: "metal kernel " + name, Err: err}
		}
		b.kernels[d.key] = k
	}
	if n := d.group.Width * d.group.Height * d.group.Depth; n > k.maxThreads {
		err := fmt.Errorf("want a threadgroup of %d threads, the device allows %d", n, k.maxThreads)
		return &engine.OpError{Site: d.site, Kernel: "metal kernel " + k.name, Err: err}
	}
	d.kernel = k
	return nil
}

// failure puts the op's site and kernel before the failure of a command buffer. Metal does not say which dispatch of many failed,
// unless its text names the kernel (the host device's does): then it is the first op that uses it, else the first and the last op are named.
func (b *Backend) failure(err error) error {
	words := strings.FieldsFunc(err.Error(), func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	for i := range b.pending {
		if d := &b.pending[i]; len(b.pending) == 1 || slices.Contains(words, d.kernel.name) {
			return &engine.OpError{Site: d.site, Kernel: "metal kernel " + d.kernel.name, Err: err}
		}
	}
	first, last := &b.pending[0], &b.pending[len(b.pending)-1]
	return &engine.OpError{Site: first.site, Kernel: "metal kernel " + first.kernel.name, Among: len(b.pending),
		Err: fmt.Errorf("one of %d ops up to %v (%s) failed: %w", len(b.pending), last.site, last.kernel.name, err)}
}
