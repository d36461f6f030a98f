package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"llmrun/internal/cpuref"
	"llmrun/internal/cpuref/kernel"
	"llmrun/internal/engine"
	"llmrun/internal/metal"
)

// bench measures one model. All rows share a session: its cache is filled once, and on the CPU each number of threads is a backend of its
// own that runs the same ops on the same memory.
type bench struct {
	*benchFlags
	*loaded
	app      *app
	session  *engine.Session
	backends map[int]engine.Backend // by threads; that of the most is the one that holds the memory
	ids      []int                  // the prompt
	kernels  *kernel.Set
	memory   []byte // that the read limit is measured on
	result   *benchResult
	rates    [][]float64 // tokens/s of each of the result's rows, round by round
	limits   [][]float64 // bytes/s that memory gave just before, if a row is of decoding
	spoiled  bool        // logits were not finite
}

// openBench measures the loading, and leaves the model loaded.
func openBench(ctx context.Context, a *app, f *benchFlags) (*bench, error) {
	b := &bench{benchFlags: f, app: a, backends: map[int]engine.Backend{}}
	b.result = &benchResult{Schema: benchSchema, Env: lookAtMachine(), Busy: busyness{LoadAverage: loadAverage()}, Warnings: []string{}}
	var err error
	if b.kernels, err = kernel.Choose(os.Getenv("LLMRUN_CPU")); err != nil {
		return nil, fmt.Errorf("LLMRUN_CPU: %w", err)
	}
	if err := b.measureLoad(ctx); err != nil {
		return nil, err
	}
	if err := b.open(ctx); err != nil {
		return nil, err
	}
	if err := b.prepare(ctx); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// open loads the model to stay, and starts the threads.
func (b *bench) open(ctx context.Context) (err error) {
	if b.loaded, err = b.load(ctx); err != nil {
		return err
	}
	n := b.decoder.MaxPositions
	b.contexts = slices.DeleteFunc(b.contexts, func(at int) bool {
		long := n > 0 && at+b.gen > n
		if long {
			b.doubt("context %d is left out: the model has learned %d positions", at, n)
		}
		return long
	})
	if len(b.contexts) == 0 {
		b.loaded.close()
		return fmt.Errorf("--context: the model has learned %d positions, want one that has room for %d tokens after it", n, b.gen)
	}
	capacity := b.prompt
	for _, at := range b.contexts {
		capacity = max(capacity, at+b.gen)
	}
	if b.session, err = b.decoder.NewSession(capacity); err != nil {
		b.loaded.close()
		return err
	}
	if m, ok := b.backend.(*metal.Backend); ok {
		b.result.Env.Metal = metalFactsOf(m.Info())
		if m.Info().Validate {
			b.doubt("Metal's validator is on, and is most of what was measured")
		}
		if !m.Info().Host {
			b.doubt("the read limit is that of the CPU's threads; a GPU may get more")
		}
	}
	for _, threads := range b.cores {
		b.backends[threads] = b.backend
		if threads != slices.Max(b.cores) {
			b.backends[threads] = cpuref.Open(cpuref.Options{Threads: threads})
		}
	}
	return nil
}

// doubt adds a warning.
func (b *bench) doubt(format string, args ...any) {
	b.result.Warnings = append(b.result.Warnings, fmt.Sprintf(format, args...))
}

func (b *bench) close() {
	for _, backend := range b.backends {
		if backend != b.backend {
			backend.Close()
		}
	}
	b.loaded.close()
}

// prepare feeds the prompt, fills the cache, lists the rows, and runs what is going to be measured once.
func (b *bench) prepare(ctx context.Context) error {
	for i := range b.prompt {
		b.ids = append(b.ids, (100+i*7919)%b.decoder.Vocabulary) // any ids: what they cost is the same
	}
	b.session.Backend = b.backends[slices.Max(b.cores)]
	bar := b.app.progress("fill the cache", b.prompt, b.showsProgress())
	err := b.session.Prefill(ctx, b.ids, bar.set)
	bar.done()
	if err != nil {
		return err
	}
	last := slices.Max(b.contexts)
	if err := b.session.Repeat(last); err != nil {
		return err
	}
	b.list()
	if _, err := b.decode(ctx, slices.Max(b.cores), last, 1); err != nil {
		return err
	}
	b.result.PeakBytes = peakBytes()
	b.memory = make([]byte, limitBytes)
	cpuref.LargePages(b.memory)
	for i := 0; i < len(b.memory); i += 64 { // what was never written is one page of zeros
		b.memory[i] = 1
	}
	return nil
}

// list makes the rows, with what their tokens cost.
func (b *bench) list() {
	computed := engine.Compute{Activations: b.backend.Activations(), Quantized: b.compute.Quantized} // which on the CPU is not what was asked for
	row := benchRow{Model: b.result.Model.Name, Device: b.device, ComputeType: computed.String()}
	for _, threads := range b.cores {
		row.Threads = threads
		prefill := row
		prefill.Phase, prefill.Tokens = phasePrefill, b.prompt
		var sum engine.Cost
		for _, c := range b.session.Costs(engine.Pass{Rows: b.prompt})[:len(b.session.Prompt())] {
			sum = sum.Plus(c)
		}
		prefill.FLOPPerToken = 2 * float64(sum.MultiplyAdds) / float64(b.prompt)
		b.result.Rows = append(b.result.Rows, prefill)
		for _, at := range b.contexts {
			decode := row
			decode.Phase, decode.Tokens, decode.Context = phaseDecode, b.gen, at
			var sum engine.Cost
			for i := range b.gen {
				for _, c := range b.session.Costs(decodePass(at + i)) {
					sum = sum.Plus(c)
				}
			}
			n := float64(b.gen)
			decode.CacheBytes, decode.BytesPerToken = float64(sum.Cache)/n, float64(sum.Weights+sum.Cache)/n
			decode.FLOPPerToken = 2 * float64(sum.MultiplyAdds) / n
			b.result.Rows = append(b.result.Rows, decode)
		}
	}
	b.rates, b.limits = make([][]float64, len(b.result.Rows)), make([][]float64, len(b.result.Rows))
}

func decodePass(pos int) engine.Pass {
	return engine.Pass{Step: 1, Rows: 1, Pos: pos, Span: engine.Span{Decode: true}}
}

// measure runs the rounds. What is done when ctx ends stays.
func (b *bench) measure(ctx context.Context) error {
	bar := b.app.progress("measure", b.repeat*len(b.rates), b.showsProgress())
	defer bar.done()
	watch := watchOthers()
	for round := range b.repeat {
		for i, row := range b.result.Rows {
			if err := ctx.Err(); err != nil {
				return err
			}
			var limit float64
			if row.Phase == phaseDecode { // memory may be faster or slower a second later
				limit = readLimit(b.kernels, b.memory, row.Threads)
			}
			seconds, err := b.window(ctx, &row)
			if err != nil {
				return err
			}
			b.rates[i] = append(b.rates[i], float64(row.Tokens)/seconds)
			if row.Phase == phaseDecode {
				b.limits[i] = append(b.limits[i], limit)
			}
			bar.set(round*len(b.rates) + i + 1)
		}
	}
	b.result.Busy.OtherCores = watch()
	if b.profile {
		return b.measureProfile(ctx)
	}
	return nil
}

// window measures one row once.
func (b *bench) window(ctx context.Context, row *benchRow) (seconds float64, err error) {
	runtime.GC() // and not in the middle
	if row.Phase == phaseDecode {
		return b.decode(ctx, row.Threads, row.Context, row.Tokens)
	}
	if err := b.session.Reset(); err != nil {
		return 0, err
	}
	b.session.Backend = b.backends[row.Threads]
	began := time.Now()
	if err := b.session.Prefill(ctx, b.ids, nil); err != nil {
		return 0, err
	}
	err = b.session.Backend.Sync()
	return time.Since(began).Seconds(), err
}

// warmTokens are decoded before the clock starts: threads wake up, and small things come into the caches.
const warmTokens = 2

// decode measures n tokens from position at on, each chosen as greedy decoding chooses it.
func (b *bench) decode(ctx context.Context, threads, at, n int) (seconds float64, err error) {
	s := b.session
	s.Backend = b.backends[threads]
	for range warmTokens {
		if err := s.Seek(at); err != nil {
			return 0, err
		}
		if err := b.step(at); err != nil {
			return 0, err
		}
	}
	if err := s.Seek(at); err != nil {
		return 0, err
	}
	began := time.Now()
	for i := range n {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if err := b.step(at + i); err != nil {
			return 0, err
		}
	}
	return time.Since(began).Seconds(), s.Backend.Sync()
}

// step decodes one token.
func (b *bench) step(at int) error {
	logits, err := b.session.Step(b.ids[0])
	if err != nil {
		return err
	}
	if n := engine.CountNonFinite(logits); n > 0 && !b.spoiled {
		b.spoiled = true
		b.doubt("%d of %d logits are NaN or infinite at position %d, and llmrun compare --model %s says why", n, len(logits), at, b.runFlags.model)
	}
	b.ids[0] = engine.Greedy(logits)
	return nil
}

// limitBytes are more than caches hold, and no power of two, at whose distances memory is slow.
var limitBytes = 544 << 20

// readLimit reads memory a few times, each thread its own part in four streams of 1 MB at a time, and gives bytes per second.
func readLimit(k *kernel.Set, memory []byte, threads int) float64 {
	const passes, block = 8, 4 << 20
	var wait sync.WaitGroup
	began := time.Now()
	for i := range threads {
		part := memory[i*len(memory)/threads : (i+1)*len(memory)/threads]
		wait.Go(func() {
			for range passes {
				for from := 0; from < len(part); from += block {
					k.Read(part[from:min(len(part), from+block)])
				}
			}
		})
	}
	wait.Wait()
	return float64(passes*len(memory)) / time.Since(began).Seconds()
}

// finish makes figures of what was measured. Those that compare are taken round by round.
func (b *bench) finish() *benchResult {
	r, limits := b.result, map[int][]float64{}
	rows, short := r.Rows, map[int]int{} // the row of the shortest context, by threads: contexts ascend
	r.Rows = nil
	for i, row := range rows {
		rates := b.rates[i]
		r.Interrupted = r.Interrupted || len(rates) < b.repeat
		if len(rates) == 0 {
			continue
		}
		row.TokensPerSecond = spreadOf(rates)
		if row.Phase == phaseDecode {
			limits[row.Threads] = append(limits[row.Threads], b.limits[i]...)
			row.ShareOfLimit = overRounds(len(rates), func(k int) float64 { return row.BytesPerToken * rates[k] / b.limits[i][k] })
			first, seen := short[row.Threads]
			if !seen {
				short[row.Threads] = i
			} else if bytes := row.BytesPerToken - rows[first].BytesPerToken; bytes > 0 {
				longer := func(k int) float64 { return 1/rates[k] - 1/b.rates[first][k] }
				row.GrowthSeconds = overRounds(len(rates), longer)
				row.Growth = overRounds(len(rates), func(k int) float64 { return longer(k) / (bytes / b.limits[i][k]) })
			}
		}
		r.Rows = append(r.Rows, row)
	}
	r.Limit = map[string]spread{}
	for threads, values := range limits {
		r.Limit[strconv.Itoa(threads)] = spreadOf(values)
	}
	r.finish()
	return r
}

// overRounds is the median of f.
func overRounds(rounds int, f func(round int) float64) float64 {
	values := make([]float64, rounds)
	for k := range values {
		values[k] = f(k)
	}
	return spreadOf(values).Median
}
