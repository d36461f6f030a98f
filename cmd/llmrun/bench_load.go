package main

import (
	"context"
	"runtime/debug"
	"slices"
	"time"

	"llmrun/internal/engine"
	"llmrun/internal/metal"
)

// loaded is a model that can be fed.
type loaded struct {
	model   *opened
	compute engine.Compute
	backend engine.Backend // holds the memory
	decoder *engine.Decoder
}

func (l *loaded) close() {
	if l.backend != nil {
		l.backend.Close()
	}
	l.model.Close()
}

func (b *bench) load(ctx context.Context) (*loaded, error) {
	o, err := b.runFlags.open("")
	if err != nil {
		return nil, err
	}
	l := &loaded{model: o}
	if err = b.app.readAhead(ctx, o.Dir, o.ReadAhead, b.showsProgress()); err == nil {
		err = l.open(b)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *loaded) open(b *bench) (err error) {
	if l.compute, err = engine.ComputeAs(l.model.Model, b.computeType); err != nil {
		return err
	}
	b.runFlags.threads = slices.Max(b.cores)
	backend, err := b.openBackend(b.device, l.model.Model, metal.Options{})
	if err != nil {
		return err
	}
	l.backend = backend
	l.decoder, err = l.compute.Load(l.model.Model, backend)
	return err
}

// measureLoad loads the model once to have the file in the page cache, and then as often as there are rounds.
func (b *bench) measureLoad(ctx context.Context) error {
	r := b.result
	var ready, first, tokenizer []float64
	var bar progress
	defer func() { bar.done() }()
	for i := range b.repeat + 1 {
		if err := ctx.Err(); err != nil {
			return err
		}
		if i == 1 { // the first load may have shown its own
			bar = b.app.progress("load", b.repeat, b.showsProgress())
		}
		began := time.Now()
		l, err := b.load(ctx)
		if err != nil {
			return err
		}
		session, err := l.decoder.NewSession(2)
		ready = append(ready, time.Since(began).Seconds())
		if err == nil {
			_, err = session.Step(0)
		}
		if err != nil {
			l.close()
			return err
		}
		first = append(first, time.Since(began).Seconds())
		if i == 0 {
			t, _ := l.model.Tensor("decoder/embeddings/weight")
			r.Model = benchModel{l.model.source.Name, t.DType.String(), l.model.Size()}
			r.Load.PeakBytes = peakBytes()
			r.Load.PeakRatio = float64(r.Load.PeakBytes) / float64(r.Model.Bytes)
		}
		if l.model.tokenizer != nil {
			tokenizer = append(tokenizer, l.model.tokenizing.Seconds())
		}
		l.close()
		debug.FreeOSMemory() // what the next one would do in its own time
		bar.set(i)
	}
	r.Load.Ready, r.Load.FirstToken = spreadOf(ready[1:]), spreadOf(first[1:])
	if len(tokenizer) > 0 {
		s := spreadOf(tokenizer[1:])
		r.Load.Tokenizer = &s
	}
	return nil
}
