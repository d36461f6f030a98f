package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"llmrun/internal/engine"
	"llmrun/internal/fault"
	"llmrun/internal/parity"
	"llmrun/internal/report"
)

type compareFlags struct {
	modelFlags
	reference, candidate             string
	prompts, text, ids               string
	strict, allowVacuous, requireAll bool
	fault, color                     string
	list                             bool
	mistake                          fault.Fault // of --fault
	faces                            faceFlags
	detective                        detectiveFlags
}

func newCompareCommand(a *app) *cobra.Command {
	f := &compareFlags{}
	c := &cobra.Command{
		Use:   "compare",
		Short: "decode on two backends and compare token by token",
		Long: `compare decodes every prompt greedily on the reference, feeds the same tokens to the candidate, and judges the
differences by what rounding does to the reference's own logits.

Exit code: 0 MATCH, 1 DIVERGED, 2 could not run, 3 INCONCLUSIVE: the run could not have told, 130 interrupted.`,
		Example: `  llmrun compare                              # the embedded model, cpu against metal
  llmrun compare --model DIR -p "Once upon a time"
  llmrun compare --compute-type float16 --html report.html
  llmrun compare --fault gelu-unclamped       # break it on purpose, watch it being named`,
		Args: noArguments(`llmrun compare -p "Once upon a time"`),
		RunE: func(c *cobra.Command, _ []string) error {
			if f.list {
				return f.listFaults(a.stdout)
			}
			if err := f.chooseFault(c.Flags()); err != nil {
				return err
			}
			for _, name := range []string{"fault", "prompts", "prompt", "ids", "html", "junit"} {
				if flag := c.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
					return fmt.Errorf("compare: --%s: want a value, got an empty one", name)
				}
			}
			if err := f.check(); err != nil {
				return fmt.Errorf("compare: %w", err)
			}
			if err := f.detective.check(c.Flags()); err != nil {
				return fmt.Errorf("compare: %w", err)
			}
			f.faces.command, f.faces.replay = commandLine(c.Flags())
			return f.run(c.Context(), a)
		},
	}
	f.register(c, 24)
	flags := c.Flags()
	flags.StringVar(&f.reference, "reference", "cpu", "cpu|metal")
	flags.StringVar(&f.candidate, "candidate", "metal", "metal|cpu; metal is the host device on a machine without Metal")
	flags.StringVar(&f.prompts, "prompts", "", "a YAML file of prompts (default: the built-in ones)")
	flags.StringVarP(&f.text, "prompt", "p", "", "one prompt; - reads stdin")
	flags.StringVar(&f.ids, "ids", "", "one prompt as token ids: 2,651,6037")
	flags.BoolVar(&f.strict, "strict", false, "near ties and exact ties count as divergences")
	flags.BoolVar(&f.allowVacuous, "allow-vacuous", false, "exit 0 with a warning where no prompt could have shown a difference")
	flags.BoolVar(&f.requireAll, "require-all", false, "INCONCLUSIVE if any prompt could not have shown a difference, not only if all could not")
	flags.StringVar(&f.fault, "fault", "", "make a mistake in the candidate on purpose, by its `ID`")
	flags.BoolVar(&f.list, "list-faults", false, "list the mistakes that --fault knows")
	flags.StringVar(&f.color, "color", "auto", "auto|always|never; auto is on a terminal, unless NO_COLOR is set")
	f.faces.register(flags)
	f.detective.register(flags)
	c.MarkFlagsMutuallyExclusive("prompts", "prompt", "ids")
	return c
}

func (f *compareFlags) check() error {
	for _, side := range []struct{ flag, name string }{{"--reference", f.reference}, {"--candidate", f.candidate}} {
		if side.name != "cpu" && side.name != "metal" {
			return fmt.Errorf("%s: want cpu or metal, got %q", side.flag, side.name)
		}
	}
	if !slices.Contains([]string{"auto", "always", "never"}, f.color) {
		return fmt.Errorf("--color: want auto, always or never, got %q", f.color)
	}
	if err := f.checkFault(); err != nil {
		return err
	}
	if err := f.faces.check(f.output); err != nil {
		return err
	}
	return f.modelFlags.check()
}

func (f *compareFlags) run(ctx context.Context, a *app) error {
	o, err := f.open(f.tokenizer)
	if err != nil {
		return err
	}
	defer o.Close()
	if f.mistake.Amend != nil {
		f.mistake.Amend(o.Model)
	}
	prompts, err := f.promptList(a, o)
	if err != nil {
		return err
	}
	if err := a.readAhead(ctx, o.Dir, o.ReadAhead, f.showsProgress()); err != nil {
		return err
	}
	reference, err := f.openSide("reference", o.Model)
	if err != nil {
		return err
	}
	defer reference.Close()
	candidate, err := f.openSide("candidate", o.Model)
	if err != nil {
		return err
	}
	defer candidate.Close()
	c, err := f.compare(ctx, a, o, reference, candidate, prompts)
	if err != nil {
		return err
	}
	w, closeAnswer, err := a.answer(f.output)
	if err != nil {
		return err
	}
	if f.json {
		err = report.JSON(w, c)
	} else {
		err = report.Text(w, c, f.textOptions(o, w))
	}
	if e := closeAnswer(err == nil); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	if err := f.faces.write(a, c, f.textOptions(o, w).Decode); err != nil {
		return err
	}
	f.talk(a, c)
	a.exit = c.Exit
	return nil
}

func (f *compareFlags) compare(ctx context.Context, a *app, o *opened, reference, candidate engine.Backend, prompts []parity.Prompt) (*parity.Comparison, error) {
	compute, err := engine.ComputeAs(o.Model, f.computeType)
	if err != nil {
		return nil, err
	}
	options := parity.Options{Quantized: compute.Quantized, MaxTokens: f.maxTokens, EOS: o.eos(), Strict: f.strict, AllowVacuous: f.allowVacuous, RequireAll: f.requireAll}
	options.Reference, options.Candidate = f.sides()
	options.Together = f.reference == "cpu" || f.candidate == "cpu" // two devices in one process would be another test
	options.Open = func(side string) (engine.Backend, error) { return f.openSide(side, o.Model) }
	f.detective.options(&options)
	bars := f.showWork(a, &options, len(prompts)*f.maxTokens)
	defer bars.done()
	trace, closeTrace, err := f.openTrace(a)
	if err != nil {
		return nil, err
	}
	options.Trace = trace
	if o.tokenizer != nil {
		options.Special = o.tokenizer.IsSpecial
	}
	c, err := parity.Compare(ctx, o.Model, reference, candidate, prompts, options)
	if e := closeTrace(); err == nil {
		err = e
	}
	if err != nil {
		return nil, fmt.Errorf("compare %s: %w", o.source.Name, err)
	}
	c.Fault = f.fault
	return c, f.describe(c, o, reference, candidate)
}

// textOptions says how text looks on w.
func (f *compareFlags) textOptions(o *opened, w io.Writer) report.Options {
	options := report.Options{Color: f.color == "always" || f.color == "auto" && isTerminal(w) && os.Getenv("NO_COLOR") == ""}
	if o.tokenizer != nil {
		options.Decode = func(ids []int) string { return o.tokenizer.Decode(ids, false) }
	}
	return options
}

// talk says on stderr what must not be missed when the answer goes to a file.
func (f *compareFlags) talk(a *app, c *parity.Comparison) {
	switch {
	case c.Interrupted:
		fmt.Fprintln(a.stderr, "llmrun: interrupted")
	case c.Verdict == parity.Inconclusive && c.Exit == parity.ExitMatch:
		a.warn("INCONCLUSIVE, and --allow-vacuous makes it exit 0: nothing was shown. %s", c.Reason)
	}
	if f.reference == f.candidate && f.fault == "" && !f.quiet {
		a.warn("both sides are %s: tokens and logits cannot differ, only the judged ops and the legs can show a defect", f.reference)
	}
	if f.verbose && !f.quiet {
		for _, line := range c.Env.(environment).lines() {
			fmt.Fprintf(a.stderr, "%s: %s\n", line[0], line[1])
		}
	}
}
