package main

import (
	"context"
	"slices"
	"time"

	"llmrun/internal/engine"
)

// measureProfile decodes a token at a time with each op watched, and keeps the median of the rounds. On Metal an op is waited for before the next
// one is run, which costs more than a small op itself.
func (b *bench) measureProfile(ctx context.Context) error {
	threads := slices.Max(b.cores)
	s := b.session
	s.Backend = b.backends[threads]
	var began time.Time
	spent := map[string]float64{} // in this token, by site
	s.Before = func(engine.Op) { began = time.Now() }
	s.Tap = func(op engine.Op) {
		_ = s.Backend.Sync() // its failure stays, and Step returns it
		spent[op.Site().Name] += time.Since(began).Seconds()
	}
	defer func() { s.Before, s.Tap = nil, nil }()
	for _, at := range b.contexts {
		rounds := map[string][]float64{}
		var whole []float64
		for i := range b.repeat + warmTokens {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := s.Seek(at); err != nil {
				return err
			}
			clear(spent)
			token := time.Now()
			if err := b.step(at); err != nil {
				return err
			}
			if i < warmTokens {
				continue
			}
			whole = append(whole, time.Since(token).Seconds())
			for site, seconds := range spent {
				rounds[site] = append(rounds[site], seconds)
			}
		}
		b.result.Profile = append(b.result.Profile, profileOf(threads, at, whole, rounds, s.Program(), s.Costs(decodePass(at))))
	}
	return nil
}

// profileOf lists sites in the order of the program. Medians do not add up: what is between ops is what they leave of the whole token's median.
func profileOf(threads, at int, whole []float64, rounds map[string][]float64, program []engine.Op, costs []engine.Cost) benchProfile {
	p := benchProfile{Threads: threads, Context: at, Seconds: spreadOf(whole).Median}
	between := benchSite{Seconds: p.Seconds}
	index := map[string]int{}
	for i, op := range program {
		name := op.Site().Name
		k, seen := index[name]
		if !seen {
			k = len(p.Sites)
			index[name] = k
			site := benchSite{Site: name, Family: string(op.Family()), Seconds: spreadOf(rounds[name]).Median}
			p.Sites = append(p.Sites, site)
			between.Seconds -= site.Seconds
		}
		p.Sites[k].Bytes += float64(costs[i].Weights + costs[i].Cache)
	}
	between.Seconds = max(0, between.Seconds)
	p.Sites = append(p.Sites, between)
	return p
}
