package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"llmrun/internal/fault"
	"llmrun/internal/parity"
)

// TestFaults makes one mistake of each kind and of each way to make one, or all of them with LLMRUN_ALL_FAULTS=1; compare must give
// each its name. scripts/faults makes a table of it.
func TestFaults(t *testing.T) {
	needMetal(t)
	t.Chdir("../..") // the golden models are named from there
	few := map[string]bool{}
	for _, id := range []string{
		"rope-one-ahead",       // in a shader; no token shows it
		"linear-past-the-end",  // the device fails
		"softcap-half",         // in a shader, on a golden model
		"attention-mask-ahead", // in a fused kernel, which rounds otherwise than its parts
		"residual-unrounded",   // in a fused kernel that gives the bits of its parts
		"stray-write",          // by an op, to another's memory
		"weight-transposed",    // in the file's bytes
		"tie-to-last-id",       // by the sampler
		"bos-dropped",          // in what is fed
		"reference-misloaded",  // by the reference
		"vacuous-prompt",       // nothing is broken, and nothing could have been seen
	} {
		few[id] = true
	}
	for _, f := range fault.All() {
		if !few[f.ID] && os.Getenv("LLMRUN_ALL_FAULTS") == "" {
			continue
		}
		delete(few, f.ID)
		t.Run(f.ID, func(t *testing.T) {
			if said, ok := say(t, f, "--fault", f.ID); !ok {
				t.Errorf("wanted %v, said %v", f.Want, said)
			}
		})
	}
	for id := range few {
		t.Errorf("there is no fault %s", id)
	}
}

// TestFaultOnCPU: what wraps a backend needs no Metal.
func TestFaultOnCPU(t *testing.T) {
	for _, id := range []string{"kv-skipped-layer", "nan-in-one-logit"} {
		f, err := fault.Find(id)
		if err != nil {
			t.Fatal(err)
		}
		if said, ok := say(t, f, "--fault", id, "--candidate", "cpu", "-n", "6"); !ok {
			t.Errorf("%s: wanted %v, said %v", id, f.Want, said)
		}
	}
}

// say runs compare and tells whether it said what it must.
func say(t *testing.T, f fault.Fault, args ...string) (said fault.Said, ok bool) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	exit := run(append([]string{"compare", "--json", "-q"}, args...), strings.NewReader(""), &stdout, &stderr)
	if err := json.Unmarshal(stdout.Bytes(), &said); err != nil {
		t.Fatalf("exit %d: %v: %s", exit, err, stderr.String())
	}
	if want := map[string]int{"DIVERGED": parity.ExitDiverged, "INCONCLUSIVE": parity.ExitInconclusive}[said.Verdict]; exit != want || said.Exit != exit {
		t.Errorf("%s: exit %d, and the JSON says %d", said.Verdict, exit, said.Exit)
	}
	return said, f.Want.Named(said)
}

// TestFaultDefaults: the fault says which model, type and prompt show it, and the user may say otherwise.
func TestFaultDefaults(t *testing.T) {
	for _, test := range []struct{ args, model, computeType, text, ids string }{
		{"--fault gelu-tanh-for-erf", "testdata/golden/m_softcap", "float32", "", "1,87,87,40,27,34,60"},
		{"--fault gelu-tanh-for-erf --model tiny-qwen2", "tiny-qwen2", "float32", "", ""},
		{"--fault tanh-by-exp", "tiny-gemma2", "float16", "Once upon a time", ""},
		{"--fault tanh-by-exp --compute-type auto --prompt x", "tiny-gemma2", "auto", "x", ""},
		{"--fault gelu-unclamped --ids 1,2", "tiny-gemma2", "float32", "", "1,2"},
		{"", "tiny-gemma2", "auto", "", ""},
	} {
		f, c := &compareFlags{}, &cobra.Command{}
		f.register(c, 24)
		for name, to := range map[string]*string{"fault": &f.fault, "prompts": &f.prompts, "prompt": &f.text, "ids": &f.ids} {
			c.Flags().StringVar(to, name, "", "")
		}
		if err := c.ParseFlags(strings.Fields(test.args)); err != nil {
			t.Fatal(err)
		}
		if err := f.chooseFault(c.Flags()); err != nil {
			t.Fatal(err)
		}
		if f.model != test.model || f.computeType != test.computeType || f.text != test.text || f.ids != test.ids {
			t.Errorf("%s: model %s, compute type %s, prompt %q, ids %q", test.args, f.model, f.computeType, f.text, f.ids)
		}
	}
}

func TestListFaults(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if exit := run([]string{"compare", "--list-faults"}, nil, &stdout, &stderr); exit != exitDone || !strings.HasPrefix(stdout.String(), "gelu-unclamped ") {
		t.Errorf("exit %d: %s%s", exit, stdout.String(), stderr.String())
	}
	stdout.Reset()
	exit := run([]string{"compare", "--list-faults", "--json"}, nil, &stdout, &stderr)
	var list struct {
		Schema string
		Faults []struct{ ID, Kind, What, Seen, Model string }
	}
	if err := json.Unmarshal(stdout.Bytes(), &list); err != nil || exit != exitDone || list.Schema != "llmrun.faults/1" || len(list.Faults) != len(fault.All()) {
		t.Fatalf("exit %d, %v: %s", exit, err, stdout.String())
	}
	if f := list.Faults[0]; f.ID != "gelu-unclamped" || f.Kind != "kernel" || f.Seen != `DIVERGED, step 2 layer 7 act, healed by activation, because "exp(2u) leaves float32 above u = 44.36"` || f.Model != "tiny-gemma2" {
		t.Errorf("%+v", f)
	}
}
