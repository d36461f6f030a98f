package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"llmrun/internal/engine"
)

func line(side string, layer int) engine.TraceLine {
	return engine.TraceLine{Side: side, Prompt: "fox", Step: 1, Layer: layer, Site: "act", Operand: "out", Rows: 2, Cols: 5, Sum: 3, MaxAbs: 4, MeanSquare: 2, FirstBad: -1}
}

func TestCompare(t *testing.T) {
	cases := []struct {
		what   string
		change func(l []engine.TraceLine) []engine.TraceLine
		want   string // in the first difference; "": none
	}{
		{"nothing", func(l []engine.TraceLine) []engine.TraceLine { return l }, ""},
		{"the candidate's last bits", func(l []engine.TraceLine) []engine.TraceLine { l[2].Sum += 1e-6; return l }, ""},
		{"the reference's last bit", func(l []engine.TraceLine) []engine.TraceLine { l[1].Sum += 1e-15; return l }, "reference, prompt fox, step 1 layer 1 act out: sum 3, "},
		{"a sum", func(l []engine.TraceLine) []engine.TraceLine { l[2].Sum += 0.1; return l }, "candidate, prompt fox, step 1 layer 0 act out: "},
		{"the largest", func(l []engine.TraceLine) []engine.TraceLine { l[3].MaxAbs += 0.001; return l }, "candidate, prompt fox, step 1 layer 1"},
		{"the mean square", func(l []engine.TraceLine) []engine.TraceLine { l[3].MeanSquare += 0.001; return l }, "candidate, prompt fox, step 1 layer 1"},
		{"a NaN", func(l []engine.TraceLine) []engine.TraceLine { l[2].NaN, l[2].FirstBad = 1, 3; return l }, "0 NaN and 0 infinite, the first at -1; beside 1 and 0, at 3"},
		{"a line less", func(l []engine.TraceLine) []engine.TraceLine { return l[:3] }, "the second trace ends before candidate"},
		{"a line more", func(l []engine.TraceLine) []engine.TraceLine { return append(l, l[0]) }, "the first trace ends before reference"},
		{"another site", func(l []engine.TraceLine) []engine.TraceLine { l[1].Site = "gate"; return l }, "line 2: "},
	}
	for _, c := range cases {
		a := []engine.TraceLine{line("reference", 0), line("reference", 1), line("candidate", 0), line("candidate", 1)}
		b := c.change(append([]engine.TraceLine(nil), a...))
		if f := compare(a, b, defaultTolerance); (f.first == "") != (c.want == "") || !strings.Contains(f.first, c.want) {
			t.Errorf("%s changed: found %q, want %q", c.what, f.first, c.want)
		}
	}
}

func TestRun(t *testing.T) {
	for _, args := range [][]string{nil, {"main.go"}, {"main.go", "main.go"}, {"none", "none"}} {
		if exit := run(args, &bytes.Buffer{}, &bytes.Buffer{}); exit != 2 {
			t.Errorf("%q: exit %d, want 2", args, exit)
		}
	}
}

var update = flag.Bool("update", false, "write testdata/traces anew")

// TestRecorded records the traces of testdata/traces again.
func TestRecorded(t *testing.T) {
	for _, model := range []string{"tiny-gemma2", "tiny-qwen2"} {
		recorded, fresh := filepath.Join("../../testdata/traces", model+".jsonl.gz"), filepath.Join(t.TempDir(), model+".jsonl")
		cmd := exec.Command("go", "run", "../../cmd/llmrun", "compare", "--model", model, "-p", "Once upon a time", "-n", "4", "--compute-type", "float32",
			"--shadow", "off", "--trace", "ops", "--trace-file", fresh)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if errors.As(err, &exit) && strings.Contains(string(out), "no C++ compiler") && os.Getenv("LLMRUN_REQUIRE_METAL") == "" {
			t.Skipf("%s", out)
		} else if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if *update {
			keep(t, fresh, recorded)
		}
		var stdout, stderr bytes.Buffer
		if exit := run([]string{recorded, fresh}, &stdout, &stderr); exit != 0 {
			t.Errorf("%s: exit %d: %s%s", model, exit, stdout.String(), stderr.String())
		}
		t.Logf("%s: %s", model, stdout.String())
	}
}

// keep writes a trace to its place, compressed.
func keep(t *testing.T, from, to string) {
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err == nil {
		_, err = w.Write(text)
	}
	if err := errors.Join(err, w.Close(), os.WriteFile(to, packed.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
}
