package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"llmrun/internal/engine"
	"llmrun/internal/metal"
	"llmrun/internal/num"
)

type generateFlags struct {
	modelFlags
	text, file, ids, device string
	temperature, topP       float64
	topK, logprobs          int
	seed                    uint64
	stop                    []string
	ignoreEOS, showIDs      bool
	chat                    bool
}

func newGenerateCommand(a *app) *cobra.Command {
	f := &generateFlags{}
	c := &cobra.Command{
		Use:   "generate",
		Short: "let a model continue a text, on one backend",
		Long: `generate decodes a prompt on the CPU reference or on Metal. stdout holds exactly the model's text and a newline.
Logits that are NaN or infinite never become a token: the first op that made one is named instead.`,
		Example: `  llmrun generate -p "Once upon a time"
  llmrun generate --model DIR -p "The capital of France is" -n 32 --device metal
  llmrun generate --model DIR --ids 2,651,6037 --show-ids`,
		Args: noArguments(`llmrun generate -p "Once upon a time"`),
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("prompt") && f.file == "" && f.ids == "" {
				return hint(fmt.Errorf("generate: want a prompt, got none"), `llmrun generate -p "Once upon a time", or -p - to read stdin`)
			}
			return f.run(c.Context(), a)
		},
	}
	f.register(c, 64)
	flags := c.Flags()
	flags.StringVarP(&f.text, "prompt", "p", "", "the prompt; - reads stdin")
	flags.StringVarP(&f.file, "file", "f", "", "read the prompt from a file")
	flags.StringVar(&f.ids, "ids", "", "the prompt as token ids: 2,651,6037")
	flags.StringVar(&f.device, "device", "auto", "cpu|metal|auto; auto is Apple's Metal where it is, else the CPU")
	flags.Float64Var(&f.temperature, "temperature", 0, "0: the highest logit, ties to the lowest id")
	flags.IntVar(&f.topK, "top-k", 0, "sample among the k most probable tokens (0: all)")
	flags.Float64Var(&f.topP, "top-p", 1, "sample among the most probable tokens whose sum reaches p")
	flags.Uint64Var(&f.seed, "seed", 0, "of the sampler")
	flags.StringArrayVar(&f.stop, "stop", nil, "end before this text (repeatable)")
	flags.BoolVar(&f.ignoreEOS, "ignore-eos", false, "go on after the end token")
	flags.IntVar(&f.logprobs, "logprobs", 0, "with --json: the k best tokens of each step with their log-probabilities")
	flags.BoolVar(&f.showIDs, "show-ids", false, "print the ids of prompt and answer on stderr")
	flags.BoolVar(&f.chat, "chat", false, "apply the chat template of tokenizer_config.json to the prompt")
	c.MarkFlagsMutuallyExclusive("prompt", "file", "ids")
	c.MarkFlagsMutuallyExclusive("chat", "ids")
	return c
}

func (f *generateFlags) check() error {
	switch {
	case f.device != "cpu" && f.device != "metal" && f.device != "auto":
		return fmt.Errorf("--device: want cpu, metal or auto, got %q", f.device)
	case f.temperature < 0 || math.IsNaN(f.temperature) || math.IsInf(f.temperature, 0):
		return fmt.Errorf("--temperature: want a number from 0 up, got %v", f.temperature)
	case !(f.topP > 0 && f.topP <= 1):
		return fmt.Errorf("--top-p: want a number above 0 and up to 1, got %v", f.topP)
	case f.topK < 0:
		return fmt.Errorf("--top-k: want 0 or more, got %d", f.topK)
	case f.logprobs < 0:
		return fmt.Errorf("--logprobs: want 0 or more, got %d", f.logprobs)
	case f.logprobs > 0 && !f.json:
		return hint(fmt.Errorf("--logprobs: want --json, which they are part of"), "llmrun generate --json --logprobs 5 …")
	case slices.Contains(f.stop, ""):
		return fmt.Errorf("--stop: want a text, got an empty one")
	}
	if err := checkOutput("--output", f.output); err != nil {
		return err
	}
	return f.modelFlags.check()
}

func (f *generateFlags) run(ctx context.Context, a *app) error {
	if err := f.check(); err != nil {
		return err
	}
	began := time.Now()
	o, err := f.open(f.tokenizer)
	if err != nil {
		return err
	}
	defer o.Close()
	prompt, err := f.promptIDs(a, o)
	if err != nil {
		return err
	}
	if err := a.readAhead(ctx, o.Dir, o.ReadAhead, f.showsProgress()); err != nil {
		return err
	}
	device := f.device
	if device == "auto" {
		device = "cpu"
		if runtime.GOOS == "darwin" {
			device = "metal"
		}
	}
	backend, err := f.openBackend(device, o.Model, metal.Options{})
	if err != nil {
		return err
	}
	defer backend.Close()
	compute, err := engine.ComputeAs(o.Model, f.computeType)
	if err != nil {
		return err
	}
	compute.Activations = backend.Activations() // the CPU has float32 alone
	decoder, err := compute.Load(o.Model, backend)
	if err != nil {
		return err
	}
	session, err := decoder.NewSession(len(prompt) + f.maxTokens)
	if err != nil {
		return err
	}
	trace, closeTrace, err := f.openTrace(a)
	if err != nil {
		return err
	}
	session.Tap = trace.Tap(backend.Name(), "prompt")
	g := &generation{flags: f, app: a, model: o, session: session, prompt: prompt, backend: backend, compute: compute, load: time.Since(began)}
	err = g.run(ctx)
	if e := closeTrace(); err == nil {
		err = e
	}
	return err
}

func (f *generateFlags) promptIDs(a *app, o *opened) ([]int, error) {
	if f.ids != "" {
		return o.ids(a, f.ids)
	}
	text := f.text
	var from io.Reader
	if f.text == "-" {
		from = a.stdin
	} else if f.file != "" {
		file, err := os.Open(f.file)
		if err != nil {
			return nil, fmt.Errorf("read prompt: %w", err)
		}
		defer file.Close()
		from = file
	}
	if from != nil {
		data, err := io.ReadAll(from)
		if err != nil {
			return nil, fmt.Errorf("read prompt: %w", err)
		}
		text = strings.TrimSuffix(string(data), "\n")
	}
	if f.chat {
		templated, err := o.chat(text)
		if err != nil {
			return nil, err
		}
		// The template writes the special tokens itself, BOS among them.
		return o.prompt(a, templated, "off")
	}
	return o.prompt(a, text, f.bos)
}

// generation is one text in the making.
type generation struct {
	flags   *generateFlags
	app     *app
	model   *opened
	session *engine.Session
	backend engine.Backend
	compute engine.Compute
	prompt  []int

	load, prefill, decode time.Duration
	logprobs              [][]logprob
}

type logprob struct {
	ID      int     `json:"id"`
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
}

// generateResult is the JSON of cli.md.
type generateResult struct {
	Schema    string        `json:"schema"`
	Model     string        `json:"model"`
	PromptIDs []int         `json:"prompt_ids"`
	IDs       []int         `json:"ids"`
	Text      string        `json:"text"`
	Finish    string        `json:"finish"`
	Logprobs  [][]logprob   `json:"logprobs,omitempty"`
	Stats     generateStats `json:"stats"`
}

type generateStats struct {
	PromptTokens   int     `json:"prompt_tokens"`
	PromptSeconds  float64 `json:"prompt_seconds"`
	NewTokens      int     `json:"new_tokens"`
	DecodeSeconds  float64 `json:"decode_seconds"`
	LoadSeconds    float64 `json:"load_seconds"`
	PeakBytes      int64   `json:"peak_bytes"`
	ComputeType    string  `json:"compute_type"`
	Device         string  `json:"device"`
	RequestThreads int     `json:"threads"`
}

func (g *generation) run(ctx context.Context) error {
	f := g.flags
	w, closeAnswer, err := g.app.answer(f.output)
	if err != nil {
		return err
	}
	out := &textStream{stops: f.stop}
	if !f.json {
		out.w = w
	}
	if g.model.tokenizer != nil {
		out.stream = g.model.tokenizer.NewStream(true)
	}
	options := engine.GenerateOptions{MaxTokens: f.maxTokens}
	if !f.ignoreEOS {
		options.EOS = g.model.eos()
	}
	if f.temperature > 0 {
		options.Sampler = engine.NewSampler(f.temperature, f.topK, f.topP, f.seed)
	}
	bar := g.app.progress("prefill", len(g.prompt)-1, f.showsProgress())
	began := time.Now()
	var firstToken time.Time
	options.Progress = bar.set
	options.Emit = func(id int, logits []float32) bool {
		if firstToken.IsZero() {
			firstToken = time.Now()
			bar.done()
		}
		if f.logprobs > 0 {
			g.logprobs = append(g.logprobs, g.model.best(logits, f.logprobs))
		}
		if slices.Contains(options.EOS, id) {
			return true // the end token is no text
		}
		return out.push(id)
	}
	ids, finish, err := engine.Generate(ctx, g.session, g.prompt, options)
	bar.done()
	if firstToken.IsZero() {
		firstToken = time.Now()
	}
	g.prefill, g.decode = firstToken.Sub(began), time.Since(firstToken)
	out.flush(finish != engine.FinishStop)
	if out.err != nil {
		return fmt.Errorf("write the answer: %w", out.err)
	}
	var nonFinite *engine.NonFiniteError
	interrupted := errors.Is(err, context.Canceled)
	switch {
	case errors.As(err, &nonFinite):
		finish = "nonfinite"
	case interrupted:
		finish = "interrupted"
	}
	if !f.json {
		if len(ids) > 0 {
			fmt.Fprintln(w)
		}
	} else if err == nil || nonFinite != nil || interrupted {
		if e := printJSON(w, g.result(ids, out.text.String(), finish)); e != nil {
			return e
		}
	}
	if e := closeAnswer(err == nil || nonFinite != nil || interrupted); e != nil {
		return e
	}
	if f.showIDs {
		fmt.Fprintf(g.app.stderr, "prompt ids %s\nids %s\n", commas(g.prompt), commas(ids))
	}
	if nonFinite != nil {
		return g.explain(ctx, nonFinite, ids)
	}
	if err != nil {
		return err
	}
	if !f.quiet {
		fmt.Fprintln(g.app.stderr, g.summary(len(ids)))
	}
	return nil
}

// explain names the first op whose output was not finite.
func (g *generation) explain(ctx context.Context, e *engine.NonFiniteError, ids []int) error {
	g.app.exit = exitDifference
	where := ""
	if birth, err := engine.FindNonFinite(ctx, g.session, g.prompt, ids); err == nil && birth != nil {
		where = fmt.Sprintf(", first at %v: %d of %d", birth.Site, birth.Count, birth.Of)
	}
	return hint(fmt.Errorf("%w%s", e, where), "llmrun compare --model "+g.flags.model)
}

func (g *generation) summary(n int) string {
	rate := func(n int, d time.Duration) float64 { return float64(n) / max(d.Seconds(), 1e-9) }
	s := fmt.Sprintf("prompt %d tokens, %.1f tok/s · generated %d tokens", len(g.prompt), rate(len(g.prompt), g.prefill), n)
	if n > 1 { // the first one is part of the prompt's time
		s += fmt.Sprintf(", %.1f tok/s", rate(n-1, g.decode))
	}
	return s + fmt.Sprintf(" · peak %.2f GB · %s %v", float64(peakBytes())/1e9, g.backend.Name(), g.compute)
}

func (g *generation) result(ids []int, text string, finish engine.Finish) generateResult {
	if ids == nil {
		ids = []int{}
	}
	return generateResult{
		Schema: "llmrun.generate/1", Model: g.model.source.Name, PromptIDs: g.prompt, IDs: ids, Text: text, Finish: string(finish),
		Logprobs: g.logprobs,
		Stats: generateStats{
			PromptTokens: len(g.prompt), PromptSeconds: g.prefill.Seconds(), NewTokens: len(ids),
			DecodeSeconds: g.decode.Seconds(), LoadSeconds: g.load.Seconds(), PeakBytes: peakBytes(),
			ComputeType: g.compute.String(), Device: g.backend.Name(), RequestThreads: g.flags.threads,
		},
	}
}

// best gives the k most probable tokens, in float64.
func (o *opened) best(logits []float32, k int) []logprob {
	top := logits[engine.Greedy(logits)]
	sum := 0.0
	order := make([]int, len(logits))
	for id, x := range logits {
		order[id] = id
		sum += num.Exp(float64(x) - float64(top))
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case logits[a] > logits[b]:
			return -1
		case logits[a] < logits[b]:
			return 1
		}
		return 0
	})
	list := make([]logprob, 0, k)
	for _, id := range order[:min(k, len(order))] {
		list = append(list, logprob{id, o.token(id), float64(logits[id]) - float64(top) - num.Log(sum)})
	}
	return list
}

// textStream prints tokens as whole UTF-8 text, and ends before a stop text. Without a tokenizer it prints ids.
type textStream struct {
	stream interface {
		Push(id int) string
		Flush() string
	}
	stops   []string
	w       io.Writer // nil: keep the text only
	text    strings.Builder
	pending string // what may be the beginning of a stop text
	err     error
}

// push prints what id adds; false: a stop text has come.
func (t *textStream) push(id int) bool {
	if t.stream == nil {
		t.print(fmt.Sprintf("%d ", id))
		return t.err == nil
	}
	t.pending += t.stream.Push(id)
	return t.release() && t.err == nil
}

// release prints what can no longer be part of a stop text.
func (t *textStream) release() bool {
	first := -1
	for _, s := range t.stops {
		if i := strings.Index(t.pending, s); i >= 0 && (first < 0 || i < first) {
			first = i
		}
	}
	if first >= 0 {
		t.print(t.pending[:first])
		t.pending = ""
		return false
	}
	keep := 0
	for _, s := range t.stops {
		for n := min(len(s), len(t.pending)); n > keep; n-- {
			if strings.HasSuffix(t.pending, s[:n]) {
				keep = n
			}
		}
	}
	t.print(t.pending[:len(t.pending)-keep])
	t.pending = t.pending[len(t.pending)-keep:]
	return true
}

// flush ends the text; rest says that what was held back belongs to it.
func (t *textStream) flush(rest bool) {
	if t.stream == nil || !rest {
		return
	}
	t.pending += t.stream.Flush()
	if t.release() {
		t.print(t.pending)
	}
}

func (t *textStream) print(s string) {
	t.text.WriteString(s)
	if t.w != nil && t.err == nil && s != "" {
		_, t.err = io.WriteString(t.w, s)
	}
}

func commas(ids []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ","), "[]")
}

// printJSON prints v with stable keys, for people and programs.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
