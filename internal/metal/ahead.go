package metal

import (
	"slices"

	"llmrun/internal/engine"
)

// Prepare is documented at engine.Preparer: the pass becomes a command buffer that only waits for its commit.
func (b *Backend) Prepare(ops []engine.Op) (ticket int) {
	b.commit()
	if b.err != nil {
		return 0
	}
	for _, op := range ops {
		if b.err = b.write(op); b.err != nil {
			break
		}
	}
	tooMuch := b.work > maxWork
	f := b.takeOff()
	if b.err == nil && !tooMuch && len(f.list) > 0 {
		b.thread.do(f.encode)
		b.err = f.err
	}
	if b.err != nil || tooMuch || len(f.list) == 0 {
		b.err = nil // whoever runs the ops hears of it
		b.scrap(f)
		return 0
	}
	if len(b.prepared) == maxPrepared {
		b.Discard(b.prepared[0].ticket)
	}
	b.tickets++
	f.ticket = b.tickets
	b.prepared = append(b.prepared, f)
	return f.ticket
}

// Start is documented at engine.Preparer.
func (b *Backend) Start(ticket int) bool {
	f := b.take(ticket)
	if f == nil {
		return false
	}
	b.commit()
	if b.err != nil {
		b.scrap(f)
		return true // as an op that is run after a failure
	}
	b.start(f)
	return true
}

// Discard is documented at engine.Preparer.
func (b *Backend) Discard(ticket int) {
	if f := b.take(ticket); f != nil {
		b.scrap(f)
	}
}

// forget drops all that was prepared, because ops are no longer made into what it was made of.
func (b *Backend) forget() {
	for len(b.prepared) > 0 {
		b.Discard(b.prepared[0].ticket)
	}
}

// take finds what was prepared under a ticket; nil: it is not there any more.
func (b *Backend) take(ticket int) *flight {
	i := slices.IndexFunc(b.prepared, func(f *flight) bool { return f.ticket == ticket })
	if i < 0 {
		return nil
	}
	f := b.prepared[i]
	b.prepared = slices.Delete(b.prepared, i, i+1)
	return f
}

// scrap drops a flight that was never committed.
func (b *Backend) scrap(f *flight) {
	b.thread.do(f.drop)
	b.spare = append(b.spare, f)
}
