package metal

import (
	"fmt"
	"math/bits"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// buffer is a piece of an MTLBuffer in memory that CPU and GPU share.
type buffer struct {
	backend *Backend
	mtl     mtlBuffer
	offset  int // bytes
	dtype   num.DType
	n       int    // elements
	bytes   []byte // its contents
}

func (b *buffer) DType() num.DType { return b.dtype }
func (b *buffer) Len() int         { return b.n }

// Host is documented at engine.Buffer. It is the only way to the contents: it commits what is queued and waits for it. What is
// lost (fuse.go) is NaN.
func (b *buffer) Host() ([]byte, error) {
	if err := b.backend.Sync(); err != nil {
		return nil, err
	}
	b.found()
	return b.bytes, nil
}

const (
	slotAlignment = 256     // of a weight in a chunk: enough for every address space of every device
	chunkSize     = 1 << 20 // bytes; a weight of that size or more has an MTLBuffer of its own
)

// chunk is an MTLBuffer that small weights share. What is left of it is wasted when the next weight does not fit.
type chunk struct {
	mtl   mtlBuffer
	bytes []byte
	used  int
}

// NewBuffer is documented at engine.Backend. Each buffer is an MTLBuffer of its own, so that the host device guards its ends.
func (b *Backend) NewBuffer(d num.DType, n int) (engine.Buffer, error) {
	hi, size := bits.Mul64(uint64(max(n, 0)), uint64(d.Size()))
	if n <= 0 || hi != 0 || size > 1<<62 {
		return nil, fmt.Errorf("metal: new buffer: want a length above 0 that memory can hold, not %d %v", n, d)
	}
	m, bytes, err := b.allocate(int(size))
	if err != nil {
		return nil, fmt.Errorf("metal: new buffer of %d %v: %w", n, d, err)
	}
	clear(bytes)
	return &buffer{b, m, 0, d, n, bytes[:size]}, nil
}

// Upload copies a weight once, as it is stored, into the device's memory; the same bytes again are the same buffer.
func (b *Backend) Upload(t ctconv.Tensor) (engine.Buffer, error) {
	if want := t.Elements() * t.DType.Size(); len(t.Data) != want || want == 0 {
		return nil, fmt.Errorf("metal: upload %s: want %v %v in %d bytes above 0, have %d", t.Name, t.DType, t.Shape, want, len(t.Data))
	}
	if b.mps != nil && len(t.Shape) == 2 {
		if err := mpsMultiplies(b.activations, t.DType, t.Shape[1]); err != nil {
			return nil, fmt.Errorf("metal: upload %s: %w", t.Name, err)
		}
	}
	key := weightKey{&t.Data[0], len(t.Data), t.DType}
	if w, ok := b.weights[key]; ok {
		return w, nil
	}
	w := &buffer{backend: b, dtype: t.DType, n: t.Elements()}
	var err error
	if len(t.Data) >= chunkSize || b.info.Validate { // in a buffer of its own nothing lies beside a weight that could hide a mistake
		w.mtl, w.bytes, err = b.allocate(max(len(t.Data), 4)) // as a scale that is not read, it has to have room for a float
	} else {
		w.mtl, w.offset, w.bytes, err = b.slot(len(t.Data))
	}
	if err != nil {
		return nil, fmt.Errorf("metal: upload %s: %w", t.Name, err)
	}
	w.bytes = w.bytes[:len(t.Data):len(t.Data)]
	copy(w.bytes, t.Data)
	b.weights[key] = w
	return w, nil
}

// weightKey tells one weight from another: where its bytes lie, how many they are and what they mean.
type weightKey struct {
	first *byte
	n     int
	dtype num.DType
}

// slot takes n < chunkSize bytes from the present chunk, or from a new one.
func (b *Backend) slot(n int) (m mtlBuffer, offset int, bytes []byte, err error) {
	if b.chunk.used+n > len(b.chunk.bytes) {
		b.chunk = chunk{}
		if b.chunk.mtl, b.chunk.bytes, err = b.allocate(chunkSize); err != nil {
			return m, 0, nil, err
		}
	}
	offset = b.chunk.used
	b.chunk.used += (n + slotAlignment - 1) &^ (slotAlignment - 1)
	return b.chunk.mtl, offset, b.chunk.bytes[offset : offset+n], nil
}

// allocate makes an MTLBuffer of n bytes, which Close releases. Beyond the recommended working set Metal would
// not fail but compute garbage, so that is refused here.
func (b *Backend) allocate(n int) (m mtlBuffer, bytes []byte, err error) {
	if b.err != nil {
		return m, nil, b.err
	}
	b.thread.do(func() {
		have, most, longest := b.device.allocated(), b.info.WorkingSet, b.info.MaxBuffer
		switch {
		case n > longest:
			err = fmt.Errorf("want %d bytes, the device's longest buffer has %d", n, longest)
			return
		case have > most-n:
			err = fmt.Errorf("want %d bytes beside %d in use, the device recommends %d at most", n, have, most)
			return
		}
		if m = b.device.newBuffer(n); m.isNil() {
			err = fmt.Errorf("the device gives no buffer of %d bytes", n)
			return
		}
		b.buffers = append(b.buffers, m)
		bytes = m.contents()[:n]
	})
	return m, bytes, err
}
