package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"text/tabwriter"
)

// print writes the result for people.
func (r *benchResult) print(to io.Writer) error {
	w := &errWriter{w: to}
	line := func(name, format string, values ...any) {
		fmt.Fprintf(w, "%-12s  "+format+"\n", append([]any{name}, values...)...)
	}
	first := r.Rows[0]
	device := first.Device
	if m := r.Env.Metal; m != nil && m.Host {
		device += " (host device, " + m.Compiler + ")"
	} else if m == nil {
		device += " (" + r.Env.CPU.Kernels + ")"
	}
	line("bench", "%s   weights %s, %.1f MB   %s %s   llmrun %s", r.Model.Name, r.Model.Weights, float64(r.Model.Bytes)/1e6, device, first.ComputeType, r.Env.Version)
	for _, threads := range slices.SortedFunc(maps.Keys(r.Limit), byNumber) {
		limit := r.Limit[threads]
		line("read limit", "%s GB/s with %s   (%s–%s)", figure(limit.Median/1e9), plural(threads, "thread"), figure(limit.Min/1e9), figure(limit.Max/1e9))
	}
	load := fmt.Sprintf("ready in %s ms", figure(1e3*r.Load.Ready.Median))
	if t := r.Load.Tokenizer; t != nil {
		load += fmt.Sprintf(" (%s of them for the tokenizer)", figure(1e3*t.Median))
	}
	line("load", "%s, first token after %s ms   (file in the page cache)", load, figure(1e3*r.Load.FirstToken.Median))
	line("memory", "%.1f MB when loaded, %.2f of model.bin   %.1f MB at most", float64(r.Load.PeakBytes)/1e6, r.Load.PeakRatio, float64(r.PeakBytes)/1e6)
	if g := r.Against; g != nil {
		line("against", "%s   %s on %s %s, llmrun %s   read limit × %.2f", g.File, g.Model, g.Device, g.ComputeType, g.Version, g.Limit)
	}
	fmt.Fprintln(w)
	r.printRows(w)
	for _, p := range r.Profile {
		fmt.Fprintln(w)
		p.print(w, first.Device)
	}
	for _, warning := range r.Warnings {
		line("warning", "%s", warning)
	}
	return w.err
}

func (r *benchResult) printRows(to io.Writer) {
	w := tabwriter.NewWriter(to, 0, 0, 3, ' ', tabwriter.AlignRight)
	head := "phase\tthreads\ttokens\tcontext\ttok/s\tmin\tmax\tMB/token\tcache\tof limit\tgrowth\tGFLOP/s\t"
	if r.Against != nil {
		head += "ratio\t"
	}
	fmt.Fprintln(w, head)
	for _, row := range r.Rows {
		t := row.TokensPerSecond
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\t%s\t", row.Phase, row.Threads, row.Tokens, row.Context, figure(t.Median), figure(t.Min), figure(t.Max))
		if row.Phase == phaseDecode {
			fmt.Fprintf(w, "%.1f\t%.1f\t%.0f %%\t", row.BytesPerToken/1e6, row.CacheBytes/1e6, 100*row.ShareOfLimit)
		} else {
			fmt.Fprint(w, "–\t–\t–\t")
		}
		if row.Growth != 0 {
			fmt.Fprintf(w, "× %.2f\t", row.Growth)
		} else {
			fmt.Fprint(w, "–\t")
		}
		fmt.Fprintf(w, "%s\t", figure(row.FLOPPerToken*t.Median/1e9))
		if r.Against != nil && row.Ratio > 0 {
			fmt.Fprintf(w, "× %.2f\t", row.Ratio)
		} else if r.Against != nil {
			fmt.Fprint(w, "–\t")
		}
		fmt.Fprintln(w)
	}
	w.Flush()
}

func (p benchProfile) print(to io.Writer, device string) {
	how := ""
	if device == "metal" {
		how = "   (each op is waited for, and none is fused)"
	}
	fmt.Fprintf(to, "one token at %d with %s, watched: %s ms%s\n", p.Context, plural(strconv.Itoa(p.Threads), "thread"), figure(1e3*p.Seconds), how)
	w := tabwriter.NewWriter(to, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "site\tfamily\tms\tshare\tMB\tof limit\t")
	for _, s := range p.Sites {
		name, family := s.Site, s.Family
		if name == "" {
			name, family = "between ops", "–"
		}
		fmt.Fprintf(w, "%s\t%s\t%.3f\t%.1f %%\t", name, family, 1e3*s.Seconds, 100*s.Share)
		if s.Bytes > 0 {
			fmt.Fprintf(w, "%.1f\t%.0f %%\t\n", s.Bytes/1e6, 100*s.ShareOfLimit)
		} else {
			fmt.Fprint(w, "–\t–\t\n")
		}
	}
	w.Flush()
}

// figure prints three digits.
func figure(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func byNumber(a, b string) int {
	x, _ := strconv.Atoi(a)
	y, _ := strconv.Atoi(b)
	return x - y
}

// errWriter keeps the first failure.
type errWriter struct {
	w   io.Writer
	err error
}

func (e *errWriter) Write(p []byte) (n int, err error) {
	if e.err != nil {
		return 0, e.err
	}
	n, e.err = e.w.Write(p)
	return n, e.err
}
