package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"llmrun/internal/cpuref"
	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/metal"
	"llmrun/internal/models"
	"llmrun/internal/tokenizer"
)

// runFlags are the flags of every command that runs a model.
type runFlags struct {
	model, computeType, output string
	metalGemm, metalFuse       string
	threads                    int
	json, quiet, noProgress    bool
	validate                   bool
}

func (f *runFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.model, "model", models.Default, "a directory with model.bin, or a name: see llmrun models")
	flags.StringVar(&f.computeType, "compute-type", "auto", strings.Join(engine.ComputeTypes[:8], "|")+"; auto: int8 for a file of int8, else float32")
	flags.StringVar(&f.metalGemm, "metal-gemm", "own", "who multiplies matrices on Metal: own|mps; mps is Apple's MPSMatrixMultiplication, for linear ops of any number of rows: a second opinion, slow in decode")
	flags.StringVar(&f.metalFuse, "metal-fuse", "on", "on|off: whether Metal runs some groups of ops as one kernel; off runs each op by itself")
	flags.BoolVar(&f.json, "json", false, "print one JSON object")
	flags.StringVarP(&f.output, "output", "o", "", "write the answer to a file")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "no talk on stderr")
	flags.BoolVar(&f.noProgress, "no-progress", false, "no progress bars")
}

// check refuses values that no run could use.
func (f *runFlags) check() error {
	switch {
	case f.metalGemm != "own" && f.metalGemm != "mps":
		return fmt.Errorf("--metal-gemm: want own or mps, got %q", f.metalGemm)
	case f.metalFuse != "on" && f.metalFuse != "off":
		return fmt.Errorf("--metal-fuse: want on or off, got %q", f.metalFuse)
	case f.threads < 0:
		return fmt.Errorf("--threads: want 0 or more, got %d", f.threads)
	}
	return nil
}

// modelFlags are the flags that generate and compare share.
type modelFlags struct {
	runFlags
	tokenizer, bos   string
	maxTokens        int
	verbose          bool
	trace, traceFile string
}

func (f *modelFlags) register(c *cobra.Command, maxTokens int) {
	flags := c.Flags()
	f.runFlags.register(flags)
	flags.StringVar(&f.tokenizer, "tokenizer", "", "tokenizer.json or its directory (default: beside the model)")
	flags.StringVar(&f.bos, "bos", "auto", "begin prompts with the BOS token: auto|on|off; auto is what the tokenizer does by itself")
	flags.IntVar(&f.threads, "threads", 0, "threads of the CPU reference (default: all cores)")
	flags.IntVarP(&f.maxTokens, "max-tokens", "n", maxTokens, "tokens to generate")
	flags.BoolVar(&f.validate, "validate", metal.Validates(), "check each thing that is asked of Metal and each load and store of its kernels, slowly (or LLMRUN_METAL_VALIDATE=1); on a Mac, Apple's own checks")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "more talk on stderr")
	flags.StringVar(&f.trace, "trace", cmp.Or(os.Getenv("LLMRUN_TRACE"), "off"), "write what each site holds as JSON lines: off|layers|ops (or LLMRUN_TRACE)")
	flags.StringVar(&f.traceFile, "trace-file", os.Getenv("LLMRUN_TRACE_FILE"), "write the trace to a `FILE` and not to stderr (or LLMRUN_TRACE_FILE)")
}

// check refuses values that no run could use.
func (f *modelFlags) check() error {
	switch {
	case !slices.Contains([]string{"auto", "on", "off"}, f.bos):
		return fmt.Errorf("--bos: want auto, on or off, got %q", f.bos)
	case f.maxTokens < 1:
		return fmt.Errorf("--max-tokens: want at least 1, got %d", f.maxTokens)
	case !slices.Contains(engine.TraceLevels, engine.TraceLevel(f.trace)):
		return fmt.Errorf("--trace: want off, layers or ops, got %q", f.trace)
	case f.traceFile != os.Getenv("LLMRUN_TRACE_FILE") && f.trace == string(engine.TraceOff):
		return fmt.Errorf("--trace-file: want --trace layers or --trace ops, which it is for")
	}
	return f.runFlags.check()
}

// opened is a model with what belongs to it. tokenizer is nil if there is none.
type opened struct {
	*ctconv.Model
	source    models.Source
	tokenizer *tokenizer.Tokenizer
	missing   error // why there is no tokenizer
	bos       int   // the token that prompts of this model begin with; -1: none

	tokenizing time.Duration // that it took to read the tokenizer
}

// open finds the model and its tokenizer, which lies beside it unless elsewhere names another, and reads both at once.
func (f *runFlags) open(elsewhere string) (*opened, error) {
	source, err := models.Find(f.model)
	if err != nil {
		return nil, err
	}
	o := &opened{source: source, bos: -1}
	var wait sync.WaitGroup
	var failed error
	wait.Go(func() { failed = o.openTokenizer(elsewhere) })
	o.Model, err = source.Open()
	if wait.Wait(); err != nil {
		return nil, err
	}
	if failed != nil {
		o.Close()
		return nil, failed
	}
	if o.tokenizer != nil {
		if id, ok := o.tokenizer.AddsBOS(); ok {
			o.bos = id
		}
	} else if id, ok := o.TokenID(o.Config.BOSToken); ok && o.Config.BOSToken != o.Config.EOSToken {
		o.bos = id // a model without a tokenizer: its config names the token
	}
	debug.FreeOSMemory() // that the files were read with, before weights take its place: some 10 MB for 262,144 tokens, in 1 or 2 ms
	return o, nil
}

func (o *opened) openTokenizer(elsewhere string) (err error) {
	began := time.Now()
	defer func() { o.tokenizing = time.Since(began) }()
	if elsewhere != "" {
		o.tokenizer, err = tokenizer.Load(elsewhere)
	} else if o.tokenizer, err = o.source.Tokenizer(); errors.Is(err, fs.ErrNotExist) {
		o.missing, err = err, nil
	}
	return err
}

// prompt turns text into ids. bos is auto, on or off.
func (o *opened) prompt(a *app, text, bos string) ([]int, error) {
	if o.tokenizer == nil {
		return nil, o.missing
	}
	ids := o.tokenizer.Encode(text, bos != "off")
	if bos == "off" && o.bos < 0 {
		return o.checkPrompt(ids)
	}
	begin := o.bos
	if begin < 0 && bos == "on" {
		id, ok := o.TokenID(o.Config.BOSToken)
		if !ok {
			return nil, fmt.Errorf("--bos on: the model names no BOS token that its vocabulary has (bos_token is %q)", o.Config.BOSToken)
		}
		begin = id
		if len(ids) == 0 || ids[0] != begin {
			ids = append([]int{begin}, ids...)
		}
	}
	o.warnBOS(a, ids, begin)
	return o.checkPrompt(ids)
}

// warnBOS tells of a missing and of a doubled BOS token.
func (o *opened) warnBOS(a *app, ids []int, bos int) {
	switch {
	case bos < 0:
	case len(ids) == 0 || ids[0] != bos:
		a.warn("the prompt does not begin with %s (id %d), and the model expects it: --bos on adds it", o.token(bos), bos)
	case len(ids) > 1 && ids[1] == bos:
		a.warn("the prompt begins with %s twice (id %d): --bos off does not add one", o.token(bos), bos)
	}
}

func (o *opened) checkPrompt(ids []int) ([]int, error) {
	if len(ids) == 0 {
		return nil, hint(fmt.Errorf("the prompt has no tokens, want at least one"), "-p TEXT, or --bos on")
	}
	for _, id := range ids {
		if id < 0 || id >= o.Vocabulary.Len() {
			return nil, fmt.Errorf("prompt: want ids from 0 to %d, got %d", o.Vocabulary.Len()-1, id)
		}
	}
	return ids, nil
}

// ids reads --ids "2,651,6037".
func (o *opened) ids(a *app, list string) ([]int, error) {
	var ids []int
	for _, field := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' }) {
		id, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("--ids: want numbers with commas between, got %q", field)
		}
		ids = append(ids, id)
	}
	o.warnBOS(a, ids, o.bos)
	return o.checkPrompt(ids)
}

// token is how an id is spelled, for people.
func (o *opened) token(id int) string {
	if o.tokenizer != nil {
		if t, ok := o.tokenizer.Token(id); ok {
			return t
		}
	}
	if id >= 0 && id < o.Vocabulary.Len() {
		return o.Vocabulary.Token(id)
	}
	return fmt.Sprintf("<id %d>", id)
}

// eos are the ids that end a text.
func (o *opened) eos() []int {
	if id, ok := o.TokenID(o.Config.EOSToken); ok {
		return []int{id}
	}
	return nil
}

// openBackend opens "cpu" or "metal" for a model under the flags' compute type.
func (f *runFlags) openBackend(name string, m *ctconv.Model, o metal.Options) (engine.Backend, error) {
	compute, err := engine.ComputeAs(m, f.computeType)
	if err != nil {
		return nil, err
	}
	if name == "cpu" {
		return cpuref.Open(cpuref.Options{Threads: f.threads}), nil
	}
	if f.validate {
		metal.Validate()
	}
	o.Activations, o.MPS, o.Fuse = compute.Activations, f.metalGemm == "mps", f.metalFuse == "on"
	return metal.Open(o)
}

// openTrace begins the trace that the flags ask for; nil: none. close ends it and gives its first failure.
func (f *modelFlags) openTrace(a *app) (trace *engine.Trace, close func() error, err error) {
	if f.trace == string(engine.TraceOff) {
		return nil, trace.Close, nil
	}
	if f.traceFile == "" {
		trace, err = engine.NewTrace(engine.TraceLevel(f.trace), a.stderr)
		return trace, trace.Close, err
	}
	file, err := os.Create(f.traceFile)
	if err != nil {
		return nil, nil, fmt.Errorf("trace: %w", err)
	}
	trace, err = engine.NewTrace(engine.TraceLevel(f.trace), file)
	return trace, func() error { return errors.Join(trace.Close(), file.Close()) }, err
}

// showsProgress tells whether bars may be drawn: not between the lines of a trace.
func (f *modelFlags) showsProgress() bool {
	return f.runFlags.showsProgress() && (f.trace == string(engine.TraceOff) || f.traceFile != "")
}

func (f *runFlags) showsProgress() bool { return !f.noProgress && !f.quiet }
