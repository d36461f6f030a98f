package main

import (
	"context"
	"runtime/debug"
	"slices"
	"time"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/metal"
	"llmrun/internal/models"
)

// loaded is a model that can be fed.
type loaded struct {
	model   *ctconv.Model
	source  models.Source
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

func (b *bench) load() (*loaded, error) {
	m, source, err := models.Open(b.runFlags.model)
	if err != nil {
		return nil, err
	}
	l := &loaded{model: m, source: source}
	if err := l.open(b); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *loaded) open(b *bench) (err error) {
	if l.compute, err = engine.ComputeAs(l.model, b.computeType); err != nil {
		return err
	}
	b.runFlags.threads = slices.Max(b.cores)
	backend, err := b.openBackend(b.device, l.model, metal.Options{})
	if err != nil {
		return err
	}
	l.backend = backend
	l.decoder, err = l.compute.Load(l.model, backend)
	return err
}

// measureLoad loads the model once to have the file in the page cache, and then as often as there are rounds.
func (b *bench) measureLoad(ctx context.Context) error {
	r := b.result
	var ready, first, tokenizer []float64
	bar := b.app.progress("load", b.repeat+1, b.showsProgress())
	defer bar.done()
	for i := range b.repeat + 1 {
		if err := ctx.Err(); err != nil {
			return err
		}
		began := time.Now()
		l, err := b.load()
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
			r.Model = benchModel{l.source.Name, t.DType.String(), l.model.Size()}
			r.Load.PeakBytes = peakBytes()
			r.Load.PeakRatio = float64(r.Load.PeakBytes) / float64(r.Model.Bytes)
		}
		began = time.Now()
		if _, err := l.source.Tokenizer(); err == nil {
			tokenizer = append(tokenizer, time.Since(began).Seconds())
		}
		l.close()
		debug.FreeOSMemory() // what the next one would do in its own time
		bar.set(i + 1)
	}
	r.Load.Ready, r.Load.FirstToken = spreadOf(ready[1:]), spreadOf(first[1:])
	if len(tokenizer) > 0 {
		s := spreadOf(tokenizer[1:])
		r.Load.Tokenizer = &s
	}
	return nil
}
