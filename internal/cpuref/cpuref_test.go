package cpuref

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"math/rand/v2"
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

// A token alone, over a cache of several blocks, has the bits that it has as the last of two, whatever threads share.
func TestTokenAlone(t *testing.T) {
	const keys, queries = 1503, 2
	a := engine.Attention{Heads: 10, KVHeads: 2, Dim: 40}
	r := rand.New(rand.NewPCG(6, 14))
	run := func(kernels *kernel.Set, threads, rows int, q, cache, weights []float32) (scores, context []float32) {
		b := Open(Options{Threads: threads})
		defer b.Close()
		b.kernels, b.pool.least = kernels, 0
		newBuffer := func(n int, values []float32) engine.Buffer {
			x, err := b.NewBuffer(num.Float32, n)
			if err != nil {
				t.Fatal(err)
			}
			copy(kernel.FloatsOf(x.(*buffer).data), values)
			return x
		}
		in := engine.Place{In: &engine.Pass{Rows: rows, Pos: keys - rows}}
		width := a.Heads * a.Dim
		kv := newBuffer(len(cache), cache)
		s := &engine.Scores{Place: in, Attention: a, Out: newBuffer(a.Heads*rows*keys, nil), Q: engine.View{Buffer: newBuffer(len(q), q), Stride: width}, K: kv, Scale: 0.3}
		c := &engine.Context{Place: in, Attention: a, Out: newBuffer(rows*width, nil), P: newBuffer(len(weights), weights), V: kv}
		b.Run(s)
		b.Run(c)
		if err := b.Sync(); err != nil {
			t.Fatal(err)
		}
		for h := range a.Heads {
			scores = append(scores, kernel.FloatsOf(s.Out.(*buffer).data)[(h*rows+rows-1)*keys:][:keys]...)
		}
		return scores, kernel.FloatsOf(c.Out.(*buffer).data)[(rows-1)*width:]
	}
	random := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		return x
	}
	q, cache, weights := random(queries*a.Heads*a.Dim), random(keys*a.KVHeads*a.Dim), random(a.Heads*queries*keys)
	var last []float32 // the weights of the last token
	for h := range a.Heads {
		last = append(last, weights[(queries*h+1)*keys:][:keys]...)
	}
	wantScores, wantContext := run(kernel.Sets()[0], 1, queries, q, cache, weights)
	for _, kernels := range kernel.Sets() {
		for _, threads := range []int{1, 2, 3, 4, 6, 8} {
			scores, context := run(kernels, threads, 1, q[a.Heads*a.Dim:], cache, last)
			if !bytes.Equal(num.Bytes(scores), num.Bytes(wantScores)) || !bytes.Equal(num.Bytes(context), num.Bytes(wantContext)) {
				t.Errorf("%s kernels, %d threads: other bits alone than as the last of two", kernels.Name, threads)
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
