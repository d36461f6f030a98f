package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/spf13/cobra"
)

type benchFlags struct {
	runFlags
	device              string
	cores, contexts     []int // threads of the CPU reference, and positions to decode at
	prompt, gen, repeat int
	against             string
	profile             bool
}

func newBenchCommand(a *app) *cobra.Command {
	f := &benchFlags{}
	c := &cobra.Command{
		Use:   "bench",
		Short: "measure prefill and decode against what this machine's memory allows",
		Long: `bench measures a model on this machine: tokens/s of prefill and decode, the bytes that a token reads, and their share of the
read limit, which is measured just before: what threads that read four streams each get from memory. Every figure is the median
of the rounds, with the lowest and the highest; a machine that is busy with something else is said to be so.

Long contexts are not decoded into: the prompt's keys and values are repeated in the cache until it is as long. The growth of a row
is how much longer its token takes than that of the shortest context, to the time that the bytes of cache need at the read limit.
Load times are those of files in the page cache, the tokenizer included.`,
		Example: `  llmrun bench --model DIR --threads 1,2
  llmrun bench --model DIR --json -o before.json
  llmrun bench --model DIR --against before.json`,
		Args: noArguments("llmrun bench --model DIR"),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			return f.run(c.Context(), a)
		},
	}
	flags := c.Flags()
	f.register(flags)
	flags.StringVar(&f.device, "device", "cpu", "cpu|metal")
	flags.IntSliceVar(&f.cores, "threads", nil, "numbers of threads of the CPU reference to measure, such as 1,2 (default: all cores)")
	flags.IntVar(&f.prompt, "prompt", 512, "tokens to prefill")
	flags.IntVar(&f.gen, "gen", 64, "tokens to decode")
	flags.IntSliceVar(&f.contexts, "context", []int{16, 1024, 8192}, "positions to decode at")
	flags.IntVar(&f.repeat, "repeat", 5, "rounds over everything")
	flags.StringVar(&f.against, "against", "", "print the ratio to an earlier run's JSON `FILE`")
	flags.BoolVar(&f.profile, "profile", false, "also say where the time of a decoded token goes")
	return c
}

// check refuses what cannot be measured, and sorts the lists.
func (f *benchFlags) check() error {
	if f.device != "cpu" && f.device != "metal" {
		return fmt.Errorf("--device: want cpu or metal, got %q", f.device)
	}
	if f.device == "metal" && len(f.cores) > 0 {
		return fmt.Errorf("--threads: want --device cpu, whose threads they are")
	}
	if len(f.cores) == 0 {
		f.cores = []int{runtime.NumCPU()}
	}
	for _, list := range []struct {
		flag   string
		values *[]int
		least  int
	}{
		{"threads", &f.cores, 1}, {"context", &f.contexts, 0}, {"prompt", &[]int{f.prompt}, 1}, {"gen", &[]int{f.gen}, 1}, {"repeat", &[]int{f.repeat}, 1},
	} {
		slices.Sort(*list.values)
		*list.values = slices.Compact(*list.values)
		if len(*list.values) == 0 {
			return fmt.Errorf("--%s: want a list of numbers, got none", list.flag)
		}
		if least := (*list.values)[0]; least < list.least {
			return fmt.Errorf("--%s: want at least %d, got %d", list.flag, list.least, least)
		}
	}
	if err := checkOutput("--output", f.output); err != nil {
		return err
	}
	return f.runFlags.check()
}

func (f *benchFlags) run(ctx context.Context, a *app) error {
	var earlier *benchResult
	if f.against != "" {
		var err error
		if earlier, err = readBench(f.against); err != nil {
			return err
		}
	}
	b, err := openBench(ctx, a, f)
	if err != nil {
		return err
	}
	defer b.close()
	err = b.measure(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	r := b.finish()
	if earlier != nil {
		r.compare(f.against, earlier)
	}
	if err != nil && len(r.Rows) == 0 {
		return err
	}
	w, closeAnswer, e := a.answer(f.output)
	if e != nil {
		return e
	}
	if f.json {
		e = printJSON(w, r)
	} else {
		e = r.print(w)
	}
	return errors.Join(err, e, closeAnswer(e == nil))
}
