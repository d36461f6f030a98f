package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// environmentOf runs env --json.
func environmentOf(t *testing.T) machine {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if exit := run([]string{"env", "--json"}, nil, &stdout, &stderr); exit != exitDone || stderr.Len() > 0 {
		t.Fatalf("exit %d: %s", exit, stderr.String())
	}
	var m machine
	d := json.NewDecoder(&stdout)
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestEnv(t *testing.T) {
	needMetal(t)
	m := environmentOf(t)
	if m.Schema != "llmrun.env/1" || m.OS == "" || m.CPU.Model == "" || m.CPU.Threads < 1 || !slices.Contains(m.CPU.Available, m.CPU.Kernels) {
		t.Errorf("%+v", m)
	}
	g := m.Metal
	if g == nil || m.NoMetal != "" {
		t.Fatalf("no Metal: %q", m.NoMetal)
	}
	if g.Device == "" || !strings.HasPrefix(g.Family, "Apple") || g.Language != "3.0" || g.FastMath || g.MaxBuffer <= 0 || g.WorkingSet <= 0 {
		t.Errorf("%+v", g)
	}
	if onMac := runtime.GOOS == "darwin"; g.Host == onMac || (m.Cache == "") != onMac || (g.Compiler == "") != onMac {
		t.Errorf("host %t, cache %q, compiler %q on %s", g.Host, m.Cache, g.Compiler, m.System)
	}
	// The text says the same.
	var stdout bytes.Buffer
	if exit := run([]string{"env"}, nil, &stdout, &bytes.Buffer{}); exit != exitDone {
		t.Fatalf("exit %d", exit)
	}
	for _, want := range []string{m.Version, m.OS, m.CPU.Model, m.CPU.Kernels, g.Family, g.Language, g.Compiler, m.Cache} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("env does not say %q:\n%s", want, stdout.String())
		}
	}
}

// TestEnvWarns: what is known to go wrong is named.
func TestEnvWarns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	t.Setenv("LLMRUN_CPU", "generic")
	slow := "the CPU reference runs plain Go, which is slow"
	c, warnings := lookAtCPU(nil)
	if !slices.Contains(warnings, slow) || c.Kernels != "generic" {
		t.Errorf("plain Go: %q", warnings)
	}
	if some := strings.Contains(strings.Join(warnings, "\n"), "GOMAXPROCS is 1, and there are"); some != (c.Cores > 1) {
		t.Errorf("%d cores: %q", c.Cores, warnings)
	}
	t.Setenv("LLMRUN_CPU", "abacus")
	if _, warnings = lookAtCPU(nil); len(warnings) == 0 || !strings.HasPrefix(warnings[0], `LLMRUN_CPU: this machine has no kernels "abacus"`) {
		t.Errorf("unknown kernels: %q", warnings)
	}
}

// TestEnvWithoutMetal: a machine without a compiler has an environment, too.
func TestEnvWithoutMetal(t *testing.T) {
	if runtime.GOOS == "darwin" {
		t.Skip("a Mac needs no compiler")
	}
	const missing = "no-such-compiler"
	cmd := exec.Command("go", "run", ".", "env")
	cmd.Env = append(os.Environ(), "LLMRUN_CXX="+missing)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "unavailable: host Metal device: no C++ compiler found, tried "+missing) ||
		!strings.Contains(string(out), "without Metal, compare has no candidate: ") {
		t.Errorf("%v\n%s", err, out)
	}
}
