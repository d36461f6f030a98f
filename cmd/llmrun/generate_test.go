package main

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// command runs one command line.
func command(stdin string, args ...string) (stdout, stderr string, exit int) {
	var out, talk bytes.Buffer
	exit = run(args, strings.NewReader(stdin), &out, &talk)
	return out.String(), talk.String(), exit
}

// generated is what scripts read from generate --json.
type generated struct {
	Schema, Model, Text, Finish string
	PromptIDs                   []int `json:"prompt_ids"`
	IDs                         []int
	Logprobs                    [][]struct {
		ID      int
		Token   string
		Logprob float64
	}
}

func generateJSON(t *testing.T, args ...string) (g generated) {
	t.Helper()
	out, talk, exit := command("", append([]string{"generate", "--json"}, args...)...)
	if exit != exitDone {
		t.Fatalf("%v: exit %d: %s", args, exit, talk)
	}
	if err := json.Unmarshal([]byte(out), &g); err != nil {
		t.Fatal(err)
	}
	return g
}

// The embedded models go on as CTranslate2 does, from text and from ids, on the CPU and on Metal, with both types of hidden states.
func TestGenerateStories(t *testing.T) {
	needMetal(t)
	for _, model := range []string{"tiny-gemma2", "tiny-qwen2"} {
		for _, s := range stories(t, model)[:3] {
			for _, flags := range [][]string{{"--device", "cpu"}, {"--device", "metal"}, {"--device", "metal", "--compute-type", "float16"}} {
				g := generateJSON(t, append(flags, "--model", model, "-n", "48", "-p", s.Text)...)
				if g.Schema != "llmrun.generate/1" || !slices.Equal(g.PromptIDs, s.IDs) || !slices.Equal(g.IDs, s.Greedy) {
					t.Errorf("%s, %s, %v: want prompt %v and ids %v, got %v and %v", model, s.ID, flags, s.IDs, s.Greedy, g.PromptIDs, g.IDs)
				}
			}
		}
	}
}

// stdout holds the model's text and a newline, however the prompt comes.
// Under the validator, and in another order of threads, generation is slower and otherwise the same.
func TestGenerateValidated(t *testing.T) {
	needMetal(t)
	t.Setenv("LLMRUN_METAL_VALIDATE", "") // which the flag sets, until the test ends
	t.Setenv("LLMRUN_METAL_SEED", "7")
	s := stories(t, "tiny-qwen2")[0]
	g := generateJSON(t, "--device", "metal", "--model", "tiny-qwen2", "--validate", "-n", "6", "-p", s.Text)
	if !slices.Equal(g.IDs, s.Greedy[:6]) {
		t.Errorf("want ids %v, got %v", s.Greedy[:6], g.IDs)
	}
}

func TestGenerateText(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prompt")
	if err := os.WriteFile(file, []byte("Once upon a time\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const want = " there was a little boy, and"
	for _, args := range [][]string{
		{"-p", "Once upon a time"}, {"-p", "-"}, {"-f", file}, {"--ids", "2,296,1402,657,338,563"}, {"-p", "<bos>Once upon a time", "--bos", "off"},
	} {
		out, talk, exit := command("Once upon a time\n", append([]string{"generate", "-n", "7", "--device", "cpu"}, args...)...)
		if exit != exitDone || out != want+"\n" || !strings.HasPrefix(talk, "prompt 6 tokens, ") {
			t.Errorf("%v: want %q, got %q (exit %d, %q)", args, want, out, exit, talk)
		}
	}
	if _, talk, _ := command("", "generate", "-q", "-n", "1", "-p", "Once"); talk != "" {
		t.Errorf("-q: want no talk, got %q", talk)
	}
	output := filepath.Join(t.TempDir(), "answer")
	if out, _, exit := command("", "generate", "-n", "7", "-p", "Once upon a time", "-o", output); exit != exitDone || out != "" {
		t.Errorf("-o: want nothing on stdout, got %q (exit %d)", out, exit)
	}
	if data, err := os.ReadFile(output); string(data) != want+"\n" {
		t.Errorf("-o: want %q in the file, got %q (%v)", want, data, err)
	}
}

func TestGenerateStops(t *testing.T) {
	for _, c := range []struct {
		args []string
		text string
		end  string
	}{
		{[]string{"--stop", "boy"}, " there was a little ", "stop"},
		{[]string{"--stop", "never said", "--stop", "tle bo"}, " there was a lit", "stop"},
		{[]string{"--stop", ", and he ?"}, " there was a little boy, and he", "length"}, // the beginning of a stop text is text
	} {
		g := generateJSON(t, append(c.args, "-n", "8", "-p", "Once upon a time")...)
		if g.Text != c.text || g.Finish != c.end {
			t.Errorf("%v: want %q (%s), got %q (%s)", c.args, c.text, c.end, g.Text, g.Finish)
		}
	}
}

// Log-probabilities are of the whole vocabulary, best first, and the chosen token is the first.
func TestGenerateLogprobs(t *testing.T) {
	g := generateJSON(t, "-n", "4", "--logprobs", "1536", "-p", "Once upon a time")
	if len(g.Logprobs) != 4 {
		t.Fatalf("want 4 steps, got %d", len(g.Logprobs))
	}
	for i, step := range g.Logprobs {
		sum := 0.0
		for j, l := range step {
			sum += math.Exp(l.Logprob)
			if j > 0 && l.Logprob > step[j-1].Logprob {
				t.Errorf("step %d: number %d is better than the one before", i, j)
			}
		}
		if step[0].ID != g.IDs[i] || !(math.Abs(sum-1) < 1e-5) { // logits are float32
			t.Errorf("step %d: want id %d first and a sum of 1, got id %d and %v", i, g.IDs[i], step[0].ID, sum)
		}
	}
}

func TestGenerateSampling(t *testing.T) {
	sample := func(args ...string) string {
		return generateJSON(t, append(args, "-n", "12", "-p", "The little old", "--temperature", "1.5")...).Text
	}
	if a, b := sample("--seed", "3"), sample("--seed", "3"); a != b {
		t.Errorf("the same seed: %q and %q", a, b)
	}
	if a, b := sample("--seed", "3"), sample("--seed", "4"); a == b {
		t.Errorf("two seeds: %q twice", a)
	}
	if a, b := sample("--top-k", "1"), generateJSON(t, "-n", "12", "-p", "The little old").Text; a != b {
		t.Errorf("top-k 1: want the greedy %q, got %q", b, a)
	}
}

func TestGenerateChat(t *testing.T) {
	dir := t.TempDir()
	copyModel(t, "../../internal/models/embedded/tiny-gemma2", dir)
	config := `{"bos_token": {"content": "<bos>"}, "chat_template": "{{ bos_token }}{% for m in messages %}{{ m['content'] | trim }}{% endfor %}{% if add_generation_prompt %} upon a time{% endif %}"}`
	if err := os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	g := generateJSON(t, "--model", dir, "--chat", "-n", "8", "-p", " Once ")
	if want := stories(t, "tiny-gemma2")[0]; !slices.Equal(g.PromptIDs, want.IDs) || !slices.Equal(g.IDs, want.Greedy[:8]) {
		t.Errorf("want prompt %v, got %v", want.IDs, g.PromptIDs)
	}
	if _, talk, exit := command("", "generate", "--chat", "-p", "x"); exit != exitCannotRun || !strings.Contains(talk, "want a chat_template, the file has none") {
		t.Errorf("no template: exit %d, %q", exit, talk)
	}
}

func copyModel(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// A model without a tokenizer takes ids and gives ids.
func TestGenerateWithoutTokenizer(t *testing.T) {
	const model = "../../testdata/golden/m_llama"
	if out, _, exit := command("", "generate", "--model", model, "--ids", "1", "-n", "4"); exit != exitDone || out != "69 47 56 22 \n" {
		t.Errorf("want CTranslate2's ids 69 47 56 22, got %q (exit %d)", out, exit)
	}
	_, talk, exit := command("", "generate", "--model", model, "-p", "x")
	if exit != exitCannotRun || !strings.Contains(talk, "--ids") {
		t.Errorf("text: want exit 2 and a word about --ids, got %d, %q", exit, talk)
	}
}

// NaN never becomes a token: the op that bore it is named, and the exit code is 1.
func TestGenerateNonFinite(t *testing.T) {
	dir := t.TempDir()
	copyModel(t, "../../testdata/golden/m_llama", dir)
	file := filepath.Join(dir, "model.bin")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	name := []byte("decoder/layer_norm/gamma\x00")
	at := bytes.Index(data, name) + len(name) + 1 + 4 + 1 + 4 // rank, one dimension, type, length
	copy(data[at:], []byte{0, 0, 0xc0, 0x7f})                 // a NaN
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	out, talk, exit := command("", "generate", "--model", dir, "--ids", "1,2", "-n", "4")
	want := "llmrun: step 1: 97 of 97 logits are NaN or infinite, first at step 1 final_norm: 1 of 64\nhint: llmrun compare --model " + dir + "\n"
	if exit != exitDifference || out != "" || !strings.HasSuffix(talk, want) {
		t.Errorf("want exit 1 and %q, got exit %d, %q and %q", want, exit, out, talk)
	}
}

func TestGenerateRefuses(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "want a prompt, got none"},
		{[]string{"-p", "x", "--device", "gpu"}, `--device: want cpu, metal or auto, got "gpu"`},
		{[]string{"-p", "x", "--temperature", "-1"}, "--temperature: want a number from 0 up, got -1"},
		{[]string{"-p", "x", "--top-p", "0"}, "--top-p: want a number above 0"},
		{[]string{"-p", "x", "--logprobs", "3"}, "--logprobs: want --json"},
		{[]string{"-p", "x", "-n", "0"}, "--max-tokens: want at least 1, got 0"},
		{[]string{"-p", "x", "--bos", "maybe"}, `--bos: want auto, on or off, got "maybe"`},
		{[]string{"-p", "x", "--metal-gemm", "apple"}, `--metal-gemm: want own or mps, got "apple"`},
		{[]string{"-p", "x", "--stop", ""}, "--stop: want a text, got an empty one"},
		{[]string{"--ids", "1,x"}, `--ids: want numbers with commas between, got "x"`},
		{[]string{"--ids", "2,1536"}, "prompt: want ids from 0 to 1535, got 1536"},
		{[]string{"-p", "", "--bos", "off"}, "the prompt has no tokens, want at least one"},
		{[]string{"-p", "x", "--model", "tiny-gema2"}, "did you mean tiny-gemma2?"},
		{[]string{"-p", "x", "--compute-type", "int16"}, "compute type int16: llmrun does not compute that yet"},
		{[]string{"-p", "x", "--compute-type", "float8"}, `got "float8"`},
		{[]string{"-f", "/nonexistent"}, "read prompt: open /nonexistent"},
		{[]string{"--temprature", "1"}, "generate: there is no flag --temprature\nhint: llmrun generate --temperature"},
		{[]string{"-p", "x", "--model", "../../testdata/golden/v5", "--ids", "1", "-n", "500"}, "none of the others can be"},
		{[]string{"--model", "../../testdata/golden/v5", "--ids", "1", "-n", "500"}, "want room for 501 tokens, the model has learned 128 positions"},
	} {
		out, talk, exit := command("", append([]string{"generate"}, c.args...)...)
		if exit != exitCannotRun || out != "" || !strings.Contains(talk, c.want) || !strings.HasPrefix(talk, "llmrun: ") {
			t.Errorf("%v: want exit 2 and %q, got exit %d, %q and %q", c.args, c.want, exit, out, talk)
		}
	}
}

func TestOtherCommands(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
		exit int
	}{
		{[]string{"version"}, "llmrun ", exitDone}, {[]string{"models"}, "tiny-gemma2", exitDone}, {[]string{"env"}, "cpu reference", exitDone},
		{[]string{"help"}, "compare", exitDone}, {nil, "compare", exitDone}, {[]string{"completion", "bash"}, "bash completion", exitDone},
		{[]string{"--version"}, "llmrun ", exitDone}, {[]string{"--versoin"}, "llmrun: there is no flag --versoin\nhint: llmrun --version\n", exitCannotRun},
		{[]string{"genrate"}, "hint: llmrun generate", exitCannotRun}, {[]string{"compare", "now"}, "now", exitCannotRun},
	} {
		out, talk, exit := command("", c.args...)
		if exit != c.exit || !strings.Contains(out+talk, c.want) {
			t.Errorf("%v: want %q and exit %d, got %q, %q and exit %d", c.args, c.want, c.exit, out, talk, exit)
		}
	}
}

// A text is printed as whole characters, and what may begin a stop text waits.
func TestTextStream(t *testing.T) {
	var out strings.Builder
	s := &textStream{stream: &pieces{"a", "b\n", "\nUs", "er", "x\n\nUser:"}, stops: []string{"\n\nUser:"}, w: &out}
	for id, want := range []string{"a", "ab", "ab", "ab"} {
		if more := s.push(id); !more || out.String() != want {
			t.Errorf("piece %d: want %q, got %q (%v)", id, want, out.String(), more)
		}
	}
	if s.push(4) || out.String() != "ab\n\nUserx" {
		t.Errorf("stop: got %q", out.String())
	}
	failing := &textStream{stream: &pieces{"a"}, w: brokenWriter{}}
	if failing.push(0) || failing.err == nil {
		t.Error("a writer that fails ends the text")
	}
}

// A file appears whole or not at all.
func TestWholeFile(t *testing.T) {
	dir := t.TempDir()
	a := &app{}
	w, done, err := a.answer(filepath.Join(dir, "answer"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, "half"); err != nil {
		t.Fatal(err)
	}
	w.(*wholeFile).file.Close() // the disk is full, say
	if _, err := io.WriteString(w, "more"); err == nil {
		t.Error("want an error from a closed file")
	}
	if err := done(true); err == nil || !strings.HasPrefix(err.Error(), "write "+dir) {
		t.Errorf("want an error that names the file, got %v", err)
	}
	if left, err := os.ReadDir(dir); len(left) != 0 || err != nil {
		t.Errorf("want nothing left, found %v (%v)", left, err)
	}
}

type pieces []string

func (p *pieces) Push(id int) string { return (*p)[id] }
func (p *pieces) Flush() string      { return "" }

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
