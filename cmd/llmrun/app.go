package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"llmrun/internal/near"
)

// The exit codes. Every command's verdict and its exit code agree.
const (
	exitDone         = 0   // match, clean
	exitDifference   = 1   // a difference or a defect was found
	exitCannotRun    = 2   // usage, missing file, corrupt model, no device, no compiler
	exitInconclusive = 3   // the run could not have told
	exitInterrupted  = 130 // what was finished is still reported
)

// app carries what every command needs.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer // the answer, and talk
	exit           int       // set by a command that ran; a command that could not run returns an error instead
}

// run executes one command line and returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	root := newRootCommand(a)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return a.exit
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(stderr, "llmrun: interrupted")
		return exitInterrupted
	}
	a.complain(err)
	if a.exit != exitDone {
		return a.exit
	}
	return exitCannotRun
}

// complain prints an error on one line, and the first hint in its chain on a second.
func (a *app) complain(err error) {
	fmt.Fprintf(a.stderr, "llmrun: %s\n", strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "\n    "))
	var hinted interface{ Hint() string }
	if errors.As(err, &hinted) && hinted.Hint() != "" {
		fmt.Fprintf(a.stderr, "hint: %s\n", hinted.Hint())
	}
}

func (a *app) warn(format string, args ...any) {
	fmt.Fprintf(a.stderr, "llmrun: warning: "+format+"\n", args...)
}

func newRootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "llmrun",
		Short: "which op, which layer, which step: why your GPU backend says something else than the CPU",
		Long: `llmrun loads a language model that CTranslate2's converters wrote, decodes it on a CPU reference and on Metal,
and compares the two token by token. On machines without Metal the same shaders run on a host device.`,
		Example: `  llmrun compare                                      # the embedded model, cpu against metal
  llmrun generate -p "Once upon a time"
  llmrun convert-inspect DIR --hf config.json         # what the converter wrote, against what was declared`,
		Args: func(_ *cobra.Command, args []string) error {
			return unknownCommand(args)
		},
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		Version:       version(), // so that there is --version
		SilenceErrors: true, SilenceUsage: true,
	}
	root.SetVersionTemplate(versionLine())
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(unknownFlag)
	root.AddCommand(newCompareCommand(a), newGenerateCommand(a), newInspectCommand(a), newBenchCommand(a), newModelsCommand(a),
		newEnvCommand(a), newVersionCommand(a))
	root.CompletionOptions.HiddenDefaultCmd = true
	return root
}

var commandNames = []string{"compare", "generate", "convert-inspect", "bench", "models", "env", "version", "completion", "help"}

func unknownCommand(args []string) error {
	if len(args) == 0 {
		return nil
	}
	return hint(fmt.Errorf("command %q: there is no such command", args[0]),
		"llmrun "+near.One(args[0], commandNames, "--help"))
}

// unknownFlag suggests the nearest flag.
func unknownFlag(c *cobra.Command, err error) error {
	at := c.Name() + ": "
	if !c.HasParent() {
		at = "" // complain names the program
	}
	name, found := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !found {
		return hint(fmt.Errorf("%s%w", at, err), c.CommandPath()+" --help")
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return hint(fmt.Errorf("%sthere is no flag --%s", at, name),
		c.CommandPath()+" --"+near.One(name, names, "help"))
}

// hintedError is an error with a command to type.
type hintedError struct {
	error
	hint string
}

func (e *hintedError) Hint() string  { return e.hint }
func (e *hintedError) Unwrap() error { return e.error }

func hint(err error, hint string) error { return &hintedError{err, hint} }

// noArguments refuses what stands beside the flags; tip is what may have been meant.
func noArguments(tip string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return hint(fmt.Errorf("%s: want flags only, got %q", c.Name(), args[0]), tip)
	}
}

// isTerminal tells whether w is a terminal that a person looks at.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// progress shows work of a known size on stderr, on a terminal only. A nil bar is silent.
type progress struct{ bar *progressbar.ProgressBar }

func (a *app) progress(what string, total int, wanted bool) progress {
	return a.progressIn(progressbar.OptionShowIts(), what, total, wanted)
}

// progressIn has the unit of its rate chosen.
func (a *app) progressIn(unit progressbar.Option, what string, total int, wanted bool) progress {
	if !wanted || !isTerminal(a.stderr) {
		return progress{}
	}
	return progress{progressbar.NewOptions(total, progressbar.OptionSetWriter(a.stderr), progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(), unit, progressbar.OptionSetPredictTime(true),
		progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100e6))}
}

// readAhead has a model's weights read, by its ReadAhead, if they are not in memory, while that can be shown and interrupted. Else the
// first ops would wait for them, or a device that copies them.
func (a *app) readAhead(ctx context.Context, model string, read func(context.Context, func(done, total int64)) error, wanted bool) error {
	var bar progress
	defer func() { bar.done() }()
	return read(ctx, func(done, total int64) {
		if done == 0 {
			bar = a.progressIn(progressbar.OptionShowBytes(true), "read "+model, int(total), wanted)
		}
		bar.set(int(done))
	})
}

func (p progress) set(done int) {
	if p.bar != nil {
		_ = p.bar.Set(done)
	}
}

// done takes the bar away, so that the answer has the terminal to itself.
func (p progress) done() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
