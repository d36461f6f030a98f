package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"llmrun/internal/engine"
	"llmrun/internal/parity"
)

// TestCompareNamesTheCulprit: unasked, the op, the layer, the step, the reason and the proof.
func TestCompareNamesTheCulprit(t *testing.T) {
	needMetal(t)
	args := []string{"compare", "--fault", "gelu-unclamped", "-p", "Once upon a time", "-n", "6"}
	var stdout, stderr bytes.Buffer
	if exit := run(append(args, "--json"), nil, &stdout, &stderr); exit != exitDifference {
		t.Fatalf("exit %d: %s", exit, stderr.String())
	}
	var c struct {
		Why     string
		Culprit *struct {
			Side                     string
			Step, Layer, Others      int
			Site, Family, Op         string
			Between                  *struct{}
			Elements, Bad, NonFinite int
			Worst                    struct {
				Col    int
				Inputs []struct {
					Name  string
					Value float64
				}
			}
			Confirmed bool
			Heals     []string
		}
		Substitution []parity.Substitution
	}
	if err := json.Unmarshal(stdout.Bytes(), &c); err != nil {
		t.Fatal(err)
	}
	x := c.Culprit
	if x == nil || x.Side != "candidate" || x.Step != 2 || x.Layer != 7 || x.Site != "act" || x.Family != "activation" || x.Op != "gelu_tanh" ||
		x.Between != nil || x.Elements != 352 || x.Bad != 1 || x.NonFinite != 1 || x.Others != 0 || x.Worst.Col != 107 {
		t.Fatalf("%+v", x)
	}
	if in := x.Worst.Inputs; len(in) == 0 || in[0].Name != "gate" || !(in[0].Value > 10.06) {
		t.Errorf("inputs %+v", in)
	}
	if !x.Confirmed || !slices.Equal(x.Heals, []string{"act → cpu"}) || !strings.Contains(c.Why, "exp(2u) leaves float32") {
		t.Errorf("confirmed %t, heals %v, why %q", x.Confirmed, x.Heals, c.Why)
	}
	for _, s := range c.Substitution {
		if s.Heals != (s.Name == "act → cpu") || s.Compared != 6 || s.Heals != (s.Matched == 6) {
			t.Errorf("%+v", s)
		}
	}
	stdout.Reset()
	if exit := run(args, nil, &stdout, &stderr); exit != exitDifference {
		t.Fatalf("exit %d: %s", exit, stderr.String())
	}
	for _, line := range []string{
		`shadow        step 2   layer 7   act   gelu_tanh   1 NaN or Inf of 352 at birth   worst \[0 107\]: gate 11\.7\d+, .*, got NaN`,
		`substitution  act → cpu  6/6 ✓ heals`,
		`legs          cached ≡ recomputed: cpu ✓ metal .*   M=1 ≡ M=2\.\.9, 33: cpu ✓ metal ✓( \(within rounding\))?`,
		`why           gelu_tanh's argument is 67\.\d+: exp\(2u\) leaves float32 above u = 44\.36.*`,
		`verdict       DIVERGED   culprit: act \(gelu_tanh\) at layer 7, born at step 2`,
	} {
		if !regexp.MustCompile("(?m)^" + line + "$").MatchString(stdout.String()) {
			t.Errorf("want a line %s in\n%s", line, stdout.String())
		}
	}
}

// TestCompareOff: what is switched off is not there.
func TestCompareOff(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if exit := run([]string{"compare", "--candidate", "cpu", "-n", "3", "--ids", "2,296", "--shadow", "off", "--substitute", "off", "--legs", "off"},
		nil, &stdout, &stderr); exit != exitDone {
		t.Fatalf("exit %d: %s", exit, stderr.String())
	}
	if regexp.MustCompile(`(?m)^(shadow|substitution|legs|why)`).MatchString(stdout.String()) {
		t.Error(stdout.String())
	}
	if exit := run([]string{"compare", "--candidate", "cpu", "-n", "3", "--ids", "2,296", "--legs", "all"}, nil, &stdout, &stderr); exit != exitDone ||
		!strings.Contains(stdout.String(), "two at once ≡ one by one: reference ✓ candidate ✓") {
		t.Errorf("exit %d: %s%s", exit, stdout.String(), stderr.String())
	}
}

// TestTraceFlags: by flag and by environment, of both commands, to a file and to stderr.
func TestTraceFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	count := func(text string) map[string]int {
		n := map[string]int{}
		for line := range strings.Lines(text) {
			var l engine.TraceLine
			if json.Unmarshal([]byte(line), &l) == nil {
				n[l.Side+" "+l.Prompt]++
			}
		}
		return n
	}
	var stdout, stderr bytes.Buffer
	if exit := run([]string{"compare", "--candidate", "cpu", "-n", "2", "--ids", "2,296", "--trace", "layers", "--trace-file", file}, nil, &stdout, &stderr); exit != exitDone {
		t.Fatalf("exit %d: %s", exit, stderr.String())
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// Eight layers and the embedding in three passes, and what makes the logits in two.
	if n := count(string(data)); n["reference ids"] != 3*9+2*2 || n["candidate ids"] != n["reference ids"] || len(n) != 2 {
		t.Errorf("%v", n)
	}
	t.Setenv("LLMRUN_TRACE", "ops")
	stdout.Reset()
	if exit := run([]string{"generate", "-n", "1", "--device", "cpu", "--ids", "2,296"}, nil, &stdout, &stderr); exit != exitDone {
		t.Fatalf("exit %d: %s", exit, stderr.String())
	}
	if n := count(stderr.String()); n["cpu prompt"] < 200 {
		t.Errorf("%v", n)
	}
	if strings.Contains(stdout.String(), "{") {
		t.Errorf("the answer holds the trace: %s", stdout.String())
	}
	if exit := run([]string{"generate", "-n", "1", "--ids", "2,296", "--trace", "ops", "--trace-file", "nowhere/trace"}, nil, &stdout, &stderr); exit != exitCannotRun {
		t.Errorf("exit %d", exit)
	}
}
