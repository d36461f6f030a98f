package cpuref

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"testing"

	"llmrun/internal/backendtest"
	"llmrun/internal/cpuref/kernel"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

func TestBackend(t *testing.T) {
	backendtest.Run(t, func() (engine.Backend, error) { return Open(Options{}), nil })
}

// halves stands for a backend whose memory holds halves, with all ops moved to the reference.
type halves struct{ *Backend }

func (halves) Activations() num.DType { return num.Float16 }

func TestBackendOnHalves(t *testing.T) {
	backendtest.Run(t, func() (engine.Backend, error) { return halves{Open(Options{})}, nil })
}

// outputs runs every case with those kernels and gives the bytes of all its output buffers. All items of all ops are shared
// among the threads.
func outputs(t *testing.T, kernels *kernel.Set, threads int, wrap func(*Backend) engine.Backend) map[string][]byte {
	t.Helper()
	b := Open(Options{Threads: threads})
	defer b.Close()
	b.kernels = kernels
	b.pool.least = 0
	bits := map[string][]byte{}
	for _, c := range backendtest.Cases() {
		op := c.Build(t, wrap(b))
		b.Run(op)
		outs, _ := op.Operands(nil, nil)
		for _, o := range outs {
			data, err := o.Buffer.Host()
			if err != nil {
				t.Fatal(err)
			}
			bits[c.Name] = append(bits[c.Name], data...)
		}
	}
	return bits
}

func plain(b *Backend) engine.Backend { return b }

func TestThreadsChangeNoBit(t *testing.T) {
	for _, kernels := range kernel.Sets() {
		want := outputs(t, kernels, 1, plain)
		for _, threads := range []int{2, 3, 7} {
			for name, got := range outputs(t, kernels, threads, plain) {
				if !bytes.Equal(want[name], got) {
					t.Errorf("%s, %s kernels: %d threads give other bits than 1", name, kernels.Name, threads)
				}
			}
		}
	}
}

var update = flag.Bool("update", false, "write the golden files")

// TestBits holds every machine, with all kernels that it can run, to the bits that the first one gave, by op and type.
func TestBits(t *testing.T) {
	for _, kernels := range kernel.Sets() {
		t.Run(kernels.Name, func(t *testing.T) { checkBits(t, kernels) })
	}
}

func checkBits(t *testing.T, kernels *kernel.Set) {
	const file = "testdata/bits.txt"
	hashes := map[string]map[string][]byte{}
	for activations, wrap := range map[string]func(*Backend) engine.Backend{
		"float32": plain, "float16": func(b *Backend) engine.Backend { return halves{b} }} {
		for name, data := range outputs(t, kernels, 0, wrap) {
			parts := strings.Split(name, "/")
			group := parts[0]
			if group == "linear" || group == "embed" || group == "activate" {
				group += " " + parts[1]
			}
			group += " on " + activations
			if hashes[group] == nil {
				hashes[group] = map[string][]byte{}
			}
			hashes[group][name] = data
		}
	}
	var lines []string
	for group, cases := range hashes {
		var names []string
		for name := range cases {
			names = append(names, name)
		}
		sort.Strings(names)
		h := sha256.New()
		for _, name := range names {
			h.Write(cases[name])
		}
		lines = append(lines, fmt.Sprintf("%x %s\n", h.Sum(nil)[:8], group))
	}
	sort.Slice(lines, func(i, j int) bool { return lines[i][17:] < lines[j][17:] })
	got := strings.Join(lines, "")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		if !strings.Contains(string(golden), line) {
			t.Errorf("%s: its bits are not the golden file's", strings.TrimSpace(line[17:]))
		}
	}
	if len(golden) != len(got) {
		t.Errorf("%s has %d bytes, want %d", file, len(golden), len(got))
	}
}
