package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"llmrun/internal/metal"
	"llmrun/internal/num"
	"llmrun/internal/parity"
)

// needMetal skips the test where there is no Metal and no C++ compiler to stand in for it.
func needMetal(t *testing.T) {
	t.Helper()
	b, err := metal.Open(metal.Options{Activations: num.Float32})
	var none *metal.UnavailableError
	if errors.As(err, &none) && os.Getenv("LLMRUN_REQUIRE_METAL") == "" {
		t.Skipf("%v; %s", err, none.Hint())
	} else if err != nil {
		t.Fatal(err)
	}
	b.Close()
}

// story is a prompt of models/golden.json.
type story struct {
	ID, Text, Expect string
	IDs, Greedy      []int
}

func stories(t *testing.T, model string) []story {
	data, err := os.ReadFile("../../internal/models/testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var all map[string][]story
	if err := json.Unmarshal(data, &all); err != nil || len(all[model]) == 0 {
		t.Fatalf("golden.json: %d prompts of %s, %v", len(all[model]), model, err)
	}
	return all[model]
}

// compared is what scripts read from compare --json, under the names that they rely on.
type compared struct {
	Schema  string
	Verdict parity.Verdict
	Exit    int
	Kept    int
	Fault   string
	Model   struct{ SHA256 string }
	Prompts []struct {
		ID           string
		IDs          []int
		ReferenceIDs []int `json:"reference_ids"`
		CandidateIDs []int `json:"candidate_ids"`
		FirstFlip    *int  `json:"first_flip"`
		Matched      int
		Vacuous      []string
		NonFinite    []struct{ Birth *parity.Birth }
	}
	Candidate struct {
		ComputeType string `json:"compute_type"`
		Device      string
	}
}

// comparison runs compare --json.
func comparison(t *testing.T, exit int, args ...string) *compared {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if got := run(append([]string{"compare", "--json"}, args...), strings.NewReader(""), &stdout, &stderr); got != exit {
		t.Fatalf("%v: want exit %d, got %d: %s%s", args, exit, got, stderr.String(), stdout.String())
	}
	var c compared
	if err := json.Unmarshal(stdout.Bytes(), &c); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	if c.Schema != "llmrun.compare/1" || c.Exit != exit {
		t.Errorf("%v: exit %d, and the JSON of schema %q says %d", args, exit, c.Schema, c.Exit)
	}
	return &c
}

// TestCompareMPS: the second opinion says so, and agrees.
func TestCompareMPS(t *testing.T) {
	needMetal(t)
	c := comparison(t, 0, "--metal-gemm", "mps", "-p", "Once upon a time", "-n", "4", "--shadow", "off", "--legs", "off")
	if c.Verdict != parity.Match || !strings.HasSuffix(c.Candidate.Device, ", MPS") {
		t.Errorf("%s on %q", c.Verdict, c.Candidate.Device)
	}
}

// promptFile writes a prompts file with some of the built-in texts.
func promptFile(t *testing.T, model string, ids ...string) string {
	var text strings.Builder
	for _, s := range stories(t, model) {
		if slices.Contains(ids, s.ID) {
			fmt.Fprintf(&text, "- {id: %s, ids: [%s]}\n", s.ID, commas(s.IDs))
		}
	}
	file := filepath.Join(t.TempDir(), "prompts.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestCompareShipped: with the shaders as they ship, both sides say what CTranslate2 says, and what could not have failed is left out.
func TestCompareShipped(t *testing.T) {
	needMetal(t)
	for _, test := range []struct {
		model, computeType string
		kept               int
		args               []string
	}{
		{"tiny-gemma2", "float32", 9, nil},
		{"tiny-gemma2", "float16", 3, []string{"--prompts", promptFile(t, "tiny-gemma2", "once", "faces", "token")}},
		{"tiny-gemma2", "int8_float32", 3, []string{"--prompts", promptFile(t, "tiny-gemma2", "once", "faces", "token")}},
		{"tiny-gemma2", "int8_float16", 3, []string{"--prompts", promptFile(t, "tiny-gemma2", "once", "faces", "token")}},
		{"tiny-qwen2", "float32", 2, []string{"--prompts", promptFile(t, "tiny-qwen2", "once", "token")}},
		{"tiny-qwen2", "float16", 2, []string{"--prompts", promptFile(t, "tiny-qwen2", "once", "token")}},
	} {
		t.Run(test.model+" "+test.computeType, func(t *testing.T) {
			c := comparison(t, exitDone, append(test.args, "--model", test.model, "--compute-type", test.computeType)...)
			if c.Verdict != parity.Match || c.Kept != test.kept || c.Candidate.ComputeType != test.computeType {
				t.Errorf("%s, %d prompts kept, candidate %+v", c.Verdict, c.Kept, c.Candidate)
			}
			golden := stories(t, test.model)
			for _, r := range c.Prompts {
				s := golden[slices.IndexFunc(golden, func(s story) bool { return s.ID == r.ID })]
				if !slices.Equal(r.IDs, s.IDs) || !slices.Equal(r.ReferenceIDs, s.Greedy[:24]) || !slices.Equal(r.CandidateIDs, s.Greedy[:24]) {
					t.Errorf("%s: prompt %v, reference %v, candidate %v; want %v, %v", r.ID, r.IDs, r.ReferenceIDs, r.CandidateIDs, s.IDs, s.Greedy[:24])
				}
				if vacuous := len(r.Vacuous) > 0; vacuous != (s.Expect == "vacuous") {
					t.Errorf("%s is expected to be %s: %q", r.ID, s.Expect, r.Vacuous)
				}
			}
		})
	}
}

// TestCompareFault retells the story of the NaN: the first token right, then NaN, born in the deepest layer.
func TestCompareFault(t *testing.T) {
	needMetal(t)
	for _, computeType := range []string{"float32", "float16"} {
		t.Run(computeType, func(t *testing.T) {
			c := comparison(t, exitDifference, "--fault", "gelu-unclamped", "--compute-type", computeType, "-n", "6",
				"--prompts", promptFile(t, "tiny-gemma2", "once", "faces", "hen"))
			if c.Verdict != parity.Diverged || c.Fault != "gelu-unclamped" {
				t.Errorf("%s with fault %q", c.Verdict, c.Fault)
			}
			golden := stories(t, "tiny-gemma2")
			for _, r := range c.Prompts {
				s := golden[slices.IndexFunc(golden, func(s story) bool { return s.ID == r.ID })]
				born := map[string]int{"once": 2, "faces": 5}[r.ID]
				if born == 0 {
					if r.FirstFlip != nil || len(r.NonFinite) > 0 || r.Matched != 6 {
						t.Errorf("%s: %+v", r.ID, r)
					}
					continue
				}
				if r.FirstFlip == nil || *r.FirstFlip != born || !slices.Equal(r.CandidateIDs, s.Greedy[:born-1]) || len(r.NonFinite) != 1 {
					t.Errorf("%s: first flip %v, candidate %v, %+v", r.ID, r.FirstFlip, r.CandidateIDs, r.NonFinite)
					continue
				}
				b := r.NonFinite[0].Birth
				if b == nil || b.Step != born || b.Layer != 7 || b.Site != "act" || b.Op != "gelu_tanh" || b.Count != 1 || b.Of != 352 || b.First != 107 || b.Value != "NaN" {
					t.Errorf("%s: born %+v", r.ID, b)
				} else if gate := b.Inputs[0]; gate.Name != "gate" || !(gate.Value > 10.06) {
					t.Errorf("%s: input %+v: exp(2u) leaves float32 above 10.06", r.ID, gate)
				}
			}
		})
	}
}

// TestCompareAgreement: text, JSON and the exit code say the same word. Needs no Metal.
func TestCompareAgreement(t *testing.T) {
	base := []string{"compare", "--candidate", "cpu", "-n", "8", "-p"}
	for _, test := range []struct {
		args []string
		exit int
		word parity.Verdict
	}{
		{[]string{"Once upon a time"}, exitDone, parity.Match},
		{[]string{"The fox said to the", "--bos", "off"}, exitInconclusive, parity.Inconclusive},
		{[]string{"The fox said to the", "--bos", "off", "--allow-vacuous"}, exitDone, parity.Inconclusive},
	} {
		args := append(slices.Clone(base), test.args...)
		var stdout, stderr bytes.Buffer
		if got := run(args, strings.NewReader(""), &stdout, &stderr); got != test.exit {
			t.Errorf("%v: want exit %d, got %d: %s", args, test.exit, got, stderr.String())
		}
		lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
		if last := strings.Fields(lines[len(lines)-1]); last[0] != "verdict" || last[1] != string(test.word) {
			t.Errorf("%v: %q", args, last)
		}
		if warned := strings.Contains(stderr.String(), "--allow-vacuous"); warned != slices.Contains(args, "--allow-vacuous") {
			t.Errorf("%v: stderr %q", args, stderr.String())
		}
		if c := comparison(t, test.exit, args[1:]...); c.Verdict != test.word || len(c.Model.SHA256) != 64 {
			t.Errorf("%v: JSON says %s of model %+v", args, c.Verdict, c.Model)
		}
	}
}

func TestCompareOutputFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "answer.txt")
	var stdout, stderr bytes.Buffer
	if got := run([]string{"compare", "--candidate", "cpu", "-n", "4", "--ids", "2,296,1402", "-o", file}, nil, &stdout, &stderr); got != exitDone {
		t.Fatalf("exit %d: %s", got, stderr.String())
	}
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "verdict       MATCH   4/4 tokens") || stdout.Len() > 0 {
		t.Errorf("%s%v%s", text, err, stdout.String())
	}
}

func TestCompareRefuses(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"--fault gelu-unclampt", "llmrun: fault \"gelu-unclampt\": there is no such fault\nhint: llmrun compare --fault gelu-unclamped\n"},
		{"--fault gelu-unclamped --candidate cpu", "llmrun: compare: --fault gelu-unclamped: want --candidate metal, whose shaders it changes, got cpu\n"},
		{"--reference gpu", "llmrun: compare: --reference: want cpu or metal, got \"gpu\"\n"},
		{"--color red", "llmrun: compare: --color: want auto, always or never, got \"red\"\n"},
		{"-o nowhere/answer.txt", "llmrun: compare: --output nowhere/answer.txt: there is no directory nowhere\n"},
		{"-n 0", "llmrun: compare: --max-tokens: want at least 1, got 0\n"},
		{"--candidate cpu --ids 2,1536", "llmrun: prompt: want ids from 0 to 1535, got 1536\n"},
		{"--shadows all", "llmrun: compare: there is no flag --shadows\nhint: llmrun compare --shadow\n"},
		{"--shadow some", "llmrun: compare: --shadow: want auto, off or all, got \"some\"\n"},
		{"--substitute norms", "llmrun: compare: --substitute: want auto, off or families of [embed norm linear rope kv scores softmax context activation residual lm_head], got \"norms\"\nhint: llmrun compare --substitute norm\n"},
		{"--legs cache,m2", "llmrun: compare: --legs: want all, off or some of cache, m1, warm, probe, concurrent, fuse, got \"m2\"\nhint: llmrun compare --legs m1\n"},
		{"--trace all", "llmrun: compare: --trace: want off, layers or ops, got \"all\"\n"},
	} {
		var stdout, stderr bytes.Buffer
		exit := run(append([]string{"compare"}, strings.Fields(test.args)...), strings.NewReader(""), &stdout, &stderr)
		if exit != exitCannotRun || !strings.HasPrefix(stderr.String(), test.want) || stdout.Len() > 0 {
			t.Errorf("%s: exit %d\n got %s\nwant %s", test.args, exit, stderr.String(), test.want)
		}
	}
}
