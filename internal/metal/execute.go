package metal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"llmrun/internal/engine"
)

// flight is a list of dispatches on its way through the device as one command buffer. It is used again once it has landed.
type flight struct {
	list     []dispatch
	ids      []tokenIDs
	ticket   int // of what Prepare made, else 0
	commands commandBuffer
	own      owned // the reference to commands
	err      error // of the job that ran last
	// The jobs of the Metal thread. They are made once: a closure for each token would be garbage.
	encode, commit, land func()
}

// tokenIDs is what an Embed reads, which a kernel could not report: rows ids, each below limit.
type tokenIDs struct {
	site        engine.Site
	ids         *buffer
	rows, limit int
}

const (
	maxFlying   = 2 // command buffers committed and not waited for
	maxPrepared = 8 // and encoded ahead, by as many sessions; with 64 uncompleted ones the queue would block
)

func (b *Backend) newFlight() *flight {
	if n := len(b.spare); n > 0 {
		f := b.spare[n-1]
		b.spare = b.spare[:n-1]
		return f
	}
	f := &flight{}
	f.encode = func() { f.err = b.encode(f) }
	f.commit = func() {
		if f.own.isNil() {
			f.encode()
		}
		if f.err == nil {
			f.commands.commit()
		}
	}
	f.land = func() {
		f.commands.wait()
		f.err = f.commands.error() // before the pool takes it
		if status := f.commands.status(); f.err == nil && status != statusCompleted {
			f.err = fmt.Errorf("command buffer ended with status %d", status)
		}
		f.drop()
	}
	return f
}

// drop releases the command buffer, on the Metal thread.
func (f *flight) drop() {
	f.own.release()
	f.own, f.commands = owned{}, commandBuffer{}
}

// takeOff gives what is pending to a flight.
func (b *Backend) takeOff() *flight {
	f := b.newFlight()
	f.list, b.pending = b.pending, f.list[:0]
	f.ids, b.ids = b.ids, f.ids[:0]
	b.work = 0
	return f
}

// Sync is documented at engine.Backend.
func (b *Backend) Sync() error {
	b.commit()
	for b.err == nil && len(b.flying) > 0 {
		b.landFirst()
	}
	return b.err
}

// commit hands what is pending to the device as one command buffer, and does not wait for it.
func (b *Backend) commit() {
	if b.err != nil {
		b.pending, b.ids, b.work = b.pending[:0], b.ids[:0], 0
	} else if len(b.pending) > 0 {
		b.start(b.takeOff())
	}
}

// start lets the device begin a flight. The ids are there by now.
func (b *Backend) start(f *flight) {
	if b.err = f.check(); b.err == nil {
		b.thread.do(f.commit)
		b.err = f.err
	}
	if b.err != nil {
		b.scrap(f)
		return
	}
	b.flying = append(b.flying, f)
	for b.err == nil && len(b.flying) > maxFlying {
		b.landFirst()
	}
}

// check holds the ids to the embedding's rows.
func (f *flight) check() error {
	for _, e := range f.ids {
		for t := range e.rows {
			if id := int32(binary.LittleEndian.Uint32(e.ids.bytes[4*t:])); id < 0 || int(id) >= e.limit {
				return &engine.OpError{Site: e.site, Err: fmt.Errorf("metal: row %d has id %d, the embedding has %d rows", t, id, e.limit)}
			}
		}
	}
	return nil
}

// landFirst waits for the flight that was committed first. Its status decides.
func (b *Backend) landFirst() {
	f := b.flying[0]
	if !b.thread.within(b.timeout, f.land) {
		b.err = failure(f.list, &TimeoutError{b.timeout})
		return
	}
	b.flying = slices.Delete(b.flying, 0, 1)
	if f.err != nil {
		b.err = failure(f.list, f.err)
	}
	b.spare = append(b.spare, f)
}

// encode writes a flight's dispatches into a command buffer of its own, with one serial encoder but where MPS brings its own. It runs on the
// Metal thread.
func (b *Backend) encode(f *flight) error {
	for i := range f.list {
		if err := b.resolve(&f.list[i]); err != nil {
			return err
		}
	}
	f.commands = b.queue.commandBuffer()
	if f.commands.isNil() {
		return failure(f.list, errors.New("the queue gives no command buffer"))
	}
	f.own = f.commands.retain()
	var e encoder
	var told table
	for i := range f.list {
		d := &f.list[i]
		if p := d.product; p != nil {
			e.endEncoding()
			e = encoder{}
			p.kernel.encode(f.commands, p.left, p.right, p.result)
			continue
		}
		if e.isNil() {
			if e = f.commands.computeEncoder(); e.isNil() {
				return failure(f.list, errors.New("the command buffer gives no encoder"))
			}
			e.setLabel(d.kernel.label)
			told = table{}
		}
		told.tell(e, d)
		e.dispatchThreads(d.grid, d.group)
	}
	e.endEncoding()
	return nil
}

// table is what an encoder was told: its pipeline and its argument table, which stay from dispatch to dispatch.
type table struct {
	pipeline pipeline
	slots    [maxSlots + 1]slot // zero where there is none
	args     [maxArgs]byte
	argsLen  int // 0: none
	argsAt   int // their index
}

// tell tells the encoder what d needs and it does not know.
func (t *table) tell(e encoder, d *dispatch) {
	if d.kernel.pipeline != t.pipeline {
		t.pipeline = d.kernel.pipeline
		e.setPipeline(t.pipeline)
	}
	for i, s := range d.slots[:d.slotCount] {
		if s == t.slots[i] {
			continue
		}
		t.slots[i] = s
		e.setBuffer(s.mtl, s.offset, i)
		if i == t.argsAt {
			t.argsLen = 0
		}
	}
	if args := d.args[:d.argsLen]; t.argsAt != d.slotCount || string(t.args[:t.argsLen]) != string(args) {
		t.argsAt, t.argsLen = d.slotCount, copy(t.args[:], args)
		t.slots[d.slotCount] = slot{}
		e.setBytes(args, d.slotCount)
	}
}

// resolve finds the dispatch's kernel, or makes it.
func (b *Backend) resolve(d *dispatch) error {
	if d.product != nil {
		if err := b.resolveProduct(d.product); err != nil {
			return &engine.OpError{Site: d.site, Kernel: mpsKernel.name, Err: err}
		}
		return nil
	}
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
func failure(list []dispatch, err error) error {
	words := strings.FieldsFunc(err.Error(), func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	for i := range list {
		if d := &list[i]; len(list) == 1 || slices.Contains(words, d.kernel.name) {
			return &engine.OpError{Site: d.site, Kernel: "metal kernel " + d.kernel.name, Err: err}
		}
	}
	first, last := &list[0], &list[len(list)-1]
	return &engine.OpError{Site: first.site, Kernel: "metal kernel " + first.kernel.name, Among: len(list),
		Err: fmt.Errorf("one of %d ops up to %v (%s) failed: %w", len(list), last.site, last.kernel.name, err)}
}
