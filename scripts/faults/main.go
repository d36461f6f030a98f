// Command faults makes every mistake of the catalogue (internal/fault), one comparison each, and scores whether llmrun compare names it;
// then it compares every embedded and golden model unbroken, where nothing may be accused. Run it from the repository's root:
//
//	go run ./scripts/faults               # all of it, into docs/faults.md
//	go run ./scripts/faults -only '^rope' # only these, to stdout
//
// Each comparison is a process of its own, for a kernel that writes past its end may well take its process with it. Exit code 1:
// something was not named, or an innocent was accused.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"

	"llmrun/internal/fault"
)

// run is one comparison and what became of it.
type run struct {
	name string // the fault's id, or the model and compute type
	args []string
	f    *fault.Fault // nil: nothing is broken
	said fault.Said
	err  error
	took time.Duration
}

// good tells whether compare said what it had to.
func (r *run) good() bool {
	if r.err != nil {
		return false
	}
	if r.f == nil {
		return r.said.Culprit == nil && r.said.Verdict != "DIVERGED" // random models may babble: INCONCLUSIVE accuses nobody
	}
	return r.f.Want.Named(r.said)
}

// answer is what was said, in a few words.
func (r *run) answer() string {
	if r.err != nil {
		return r.err.Error()
	}
	return r.said.String()
}

func main() {
	only := flag.String("only", "", "a regular expression: only faults and models whose name it matches; nothing is written to -o")
	out := flag.String("o", "docs/faults.md", "where the page with its new score is written")
	jobs := flag.Int("j", runtime.GOMAXPROCS(0), "comparisons at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := score(ctx, *only, *out, *jobs); err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

func score(ctx context.Context, only, out string, jobs int) error {
	match, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	page, err := readPage()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "faults")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	llmrun := filepath.Join(dir, "llmrun")
	if text, err := exec.CommandContext(ctx, "go", "build", "-o", llmrun, "./cmd/llmrun").CombinedOutput(); err != nil {
		return fmt.Errorf("build llmrun: %w\n%s", err, text)
	}
	all, err := plan(dir, match)
	if err != nil {
		return err
	}
	do(ctx, llmrun, all, jobs)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	t := count(all)
	if only != "" {
		fmt.Print(table(all))
	} else if err := page.write(out, t.String()+"\n\n"+table(all)); err != nil {
		return err
	}
	fmt.Println(t)
	if t.named < t.faults || t.accused > 0 {
		return errors.New("the score is not full")
	}
	return nil
}

// plan lists the comparisons.
func plan(dir string, match *regexp.Regexp) (all []*run, err error) {
	add := func(r *run) {
		if match.MatchString(r.name) {
			all = append(all, r)
		}
	}
	for _, f := range fault.All() {
		add(&run{name: f.ID, f: &f, args: []string{"--fault", f.ID}})
	}
	models, err := cleanModels(dir)
	for _, m := range models {
		for _, computeType := range []string{"float32", "float16", "bfloat16", "int8"} {
			add(&run{name: m.name + " " + computeType, args: append([]string{"--compute-type", computeType, "--shadow", "all", "--legs", "all"}, m.args...)})
		}
	}
	return all, err
}

// do runs the comparisons, some at a time, and tells how far it is.
func do(ctx context.Context, llmrun string, all []*run, jobs int) {
	var wait sync.WaitGroup
	var mu sync.Mutex
	next, done, begun := 0, 0, time.Now()
	for range jobs {
		wait.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= len(all) || ctx.Err() != nil {
					return
				}
				r := all[i]
				r.compare(ctx, llmrun)
				mu.Lock()
				done++
				left := time.Since(begun) / time.Duration(done) * time.Duration(len(all)-done)
				mark := "ok "
				if !r.good() {
					mark = "NOT"
				}
				fmt.Fprintf(os.Stderr, "%s %d/%d %s: %s (%.1fs, %v left)\n", mark, done, len(all), r.name, r.answer(), r.took.Seconds(), left.Round(time.Second))
				mu.Unlock()
			}
		})
	}
	wait.Wait()
}

// compare runs llmrun compare. A difference is no error; no answer is one.
func (r *run) compare(ctx context.Context, llmrun string) {
	begun := time.Now()
	defer func() { r.took = time.Since(begun) }()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, llmrun, append([]string{"compare", "--json", "-q", "--no-progress"}, r.args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if e := json.Unmarshal(stdout, &r.said); e != nil {
		line, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n")
		r.err = fmt.Errorf("no answer (%v): %s", err, line)
	}
}
