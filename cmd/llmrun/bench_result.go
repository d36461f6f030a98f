package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
)

// benchResult is the JSON of cli.md, docs/schema/bench-1.schema.json.
type benchResult struct {
	Schema      string            `json:"schema"`
	Env         machine           `json:"env"`
	Model       benchModel        `json:"model"`
	Busy        busyness          `json:"busy"`
	Limit       map[string]spread `json:"limit_bytes_per_second"` // by the number of threads
	Load        benchLoad         `json:"load"`
	Rows        []benchRow        `json:"rows"`
	Profile     []benchProfile    `json:"profile,omitempty"`
	PeakBytes   int64             `json:"peak_bytes"` // of all but the memory that the limit is measured on
	Against     *benchAgainst     `json:"against,omitempty"`
	Interrupted bool              `json:"interrupted"` // rounds are missing
	Warnings    []string          `json:"warnings"`    // why the figures may not be believed
}

type benchModel struct {
	Name    string `json:"name"`
	Weights string `json:"weights"` // the type they are stored in
	Bytes   int64  `json:"bytes"`   // of model.bin
}

// busyness is what else the machine does. A value that it does not tell is null.
type busyness struct {
	LoadAverage *float64 `json:"load_average"` // of the minute before the run
	OtherCores  *float64 `json:"other_cores"`  // how many cores others used during the rounds, on average
}

// spread is what the rounds measured.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spreadOf(values []float64) spread {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return spread{(v[(n-1)/2] + v[n/2]) / 2, v[0], v[n-1]}
}

// width is the distance of the extremes, as a part of the median.
func (s spread) width() float64 { return (s.Max - s.Min) / s.Median }

// benchLoad is of a file in the page cache.
type benchLoad struct {
	Ready      spread  `json:"ready_seconds"`               // until the first token can be fed, the tokenizer included
	FirstToken spread  `json:"first_token_seconds"`         // until it has been: weights were touched once
	Tokenizer  *spread `json:"tokenizer_seconds,omitempty"` // of these, beside the model
	PeakBytes  int64   `json:"peak_bytes"`                  // resident at most, then
	PeakRatio  float64 `json:"peak_ratio"`                  // to model.bin
}

// Phases of a row.
const (
	phasePrefill = "prefill"
	phaseDecode  = "decode"
)

type benchRow struct {
	Model           string  `json:"model"`
	Device          string  `json:"device"`
	ComputeType     string  `json:"compute_type"`
	Threads         int     `json:"threads"`
	Phase           string  `json:"phase"`
	Tokens          int     `json:"tokens"`  // measured at once
	Context         int     `json:"context"` // tokens before them
	TokensPerSecond spread  `json:"tokens_per_second"`
	BytesPerToken   float64 `json:"bytes_per_token,omitempty"` // weights and cache, of decoding
	CacheBytes      float64 `json:"cache_bytes_per_token,omitempty"`
	ShareOfLimit    float64 `json:"share_of_limit,omitempty"` // of what memory gave in the same round
	GrowthSeconds   float64 `json:"growth_seconds,omitempty"` // that a token takes longer than at the shortest context
	Growth          float64 `json:"growth,omitempty"`         // of these to the time that the bytes added need at the limit
	FLOPPerToken    float64 `json:"flop_per_token"`           // of products with weights, a multiply-add counted as two
	Ratio           float64 `json:"ratio,omitempty"`          // to the row of the same numbers in the earlier run
}

// benchProfile is where a decoded token's time goes, at one context.
type benchProfile struct {
	Threads int         `json:"threads"`
	Context int         `json:"context"`
	Seconds float64     `json:"seconds"` // of a token, its sites watched
	Sites   []benchSite `json:"sites"`
}

// benchSite is the ops of all layers at one site. The site "" is what is between ops: choosing the token, and the program itself.
type benchSite struct {
	Site         string  `json:"site"`
	Family       string  `json:"family"`
	Seconds      float64 `json:"seconds"`
	Share        float64 `json:"share"`
	Bytes        float64 `json:"bytes"` // of weights and cache
	ShareOfLimit float64 `json:"share_of_limit"`
}

// benchAgainst is the earlier run.
type benchAgainst struct {
	File        string  `json:"file"`
	Version     string  `json:"version"`
	Model       string  `json:"model"`
	Device      string  `json:"device"`
	ComputeType string  `json:"compute_type"`
	Limit       float64 `json:"limit_ratio,omitempty"` // of this run's read limit to the earlier one's
}

func readBench(file string) (*benchResult, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--against: %w", err)
	}
	r := &benchResult{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("--against %s: %w", file, err)
	}
	if want := benchSchema; r.Schema != want || len(r.Rows) == 0 {
		return nil, hint(fmt.Errorf("--against %s: want schema %q with rows, file has %q and %d rows", file, want, r.Schema, len(r.Rows)), "llmrun bench --json -o FILE")
	}
	return r, nil
}

const benchSchema = "llmrun.bench/1"

// finish derives the profile's shares, and warnings.
func (r *benchResult) finish() {
	for i := range r.Profile {
		p := &r.Profile[i]
		for k := range p.Sites {
			s := &p.Sites[k]
			s.Share = s.Seconds / p.Seconds
			if limit, ok := r.Limit[strconv.Itoa(p.Threads)]; ok && s.Seconds > 0 {
				s.ShareOfLimit = s.Bytes / s.Seconds / limit.Median
			}
		}
	}
	r.warn()
}

// Above these, figures are doubted. Even a quiet virtual machine's memory drifts by some 10 % from one round to the next.
const (
	busyLoad  = 0.5 // runnable threads, before the run
	busyCores = 0.1 // cores that others use during the run
	wide      = 0.2 // (highest - lowest) / median
)

func (r *benchResult) warn() {
	if l := r.Busy.LoadAverage; l != nil && *l > busyLoad {
		r.Warnings = append(r.Warnings, fmt.Sprintf("the machine was busy before the run: load average %.1f", *l))
	}
	if c := r.Busy.OtherCores; c != nil && *c > busyCores {
		r.Warnings = append(r.Warnings, fmt.Sprintf("other programs, or other guests of the host, took %.1f cores during the run", *c))
	}
	of, worst, what, count := 0, 0.0, "", 0
	see := func(s spread, name string) {
		of++
		if s.width() > wide {
			count++
		}
		if s.width() > worst {
			worst, what = s.width(), name
		}
	}
	for _, threads := range slices.Sorted(maps.Keys(r.Limit)) {
		see(r.Limit[threads], "the read limit with "+plural(threads, "thread"))
	}
	cores := r.Env.CPU.Cores
	for _, row := range r.Rows {
		see(row.TokensPerSecond, fmt.Sprintf("%s of %d tokens at %d with %s", row.Phase, row.Tokens, row.Context, plural(strconv.Itoa(row.Threads), "thread")))
		if row.Threads > cores && cores > 0 {
			cores = 0
			r.Warnings = append(r.Warnings, fmt.Sprintf("%d threads share %d cores", row.Threads, r.Env.CPU.Cores))
		}
	}
	if count > 0 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("the rounds are more than %.0f %% apart for %d of %d figures, most for %s: %.0f %%", 100*wide, count, of, what, 100*worst))
	}
}

func plural(n, thing string) string {
	if n == "1" {
		return n + " " + thing
	}
	return n + " " + thing + "s"
}

// compare puts each row beside the earlier run's row of the same phase, threads and sizes.
func (r *benchResult) compare(file string, earlier *benchResult) {
	first := earlier.Rows[0]
	r.Against = &benchAgainst{File: file, Version: earlier.Env.Version, Model: first.Model, Device: first.Device, ComputeType: first.ComputeType}
	for _, threads := range slices.Sorted(maps.Keys(r.Limit)) { // of the most threads that both have
		if before, ok := earlier.Limit[threads]; ok {
			r.Against.Limit = r.Limit[threads].Median / before.Median
		}
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		for _, e := range earlier.Rows {
			if e.Phase == row.Phase && e.Threads == row.Threads && e.Tokens == row.Tokens && e.Context == row.Context {
				row.Ratio = row.TokensPerSecond.Median / e.TokensPerSecond.Median
			}
		}
	}
	if now := r.Rows; len(now) > 0 {
		for _, d := range [][3]string{{"model", now[0].Model, first.Model}, {"device", now[0].Device, first.Device}, {"compute type", now[0].ComputeType, first.ComputeType}} {
			if d[1] != d[2] {
				r.Warnings = append(r.Warnings, fmt.Sprintf("%s has another %s: %s, not %s", file, d[0], d[2], d[1]))
			}
		}
	}
	if r.Env.CPU.Model != earlier.Env.CPU.Model {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%s was measured on another machine: %s", file, earlier.Env.CPU.Model))
	}
}
