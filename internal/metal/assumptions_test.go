package metal

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// The tests named TestAssume… hold docs/metal-assumptions.md to the device at hand: each asks one thing that our code takes for granted. All
// pass on the host device; on a Mac one that fails says what we have wrong.

// TestAssumptionsAreListed: every test that the document names exists, and every TestAssume… is in it.
func TestAssumptionsAreListed(t *testing.T) {
	text, err := os.ReadFile("../../docs/metal-assumptions.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, name := range regexp.MustCompile(`\bTest\w+`).FindAllString(string(text), -1) {
		named[name] = true
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	exists, assumptions := map[string]bool{}, 0
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test(Assume)?\w*)\(`).FindAllStringSubmatch(string(source), -1) {
			exists[m[1]] = true
			if m[2] != "" {
				assumptions++
				if !named[m[1]] {
					t.Errorf("docs/metal-assumptions.md does not name %s", m[1])
				}
			}
		}
	}
	for name := range named {
		if !exists[name] {
			t.Errorf("docs/metal-assumptions.md names %s, which internal/metal does not have", name)
		}
	}
	if assumptions == 0 {
		t.Error("no test is named TestAssume…")
	}
}

// lab runs a test's own kernels on the device, encoded as the backend encodes its ops.
type lab struct {
	testing.TB
	b *Backend
}

func newLab(t testing.TB) lab {
	t.Helper()
	return lab{t, open(t, Options{Activations: num.Float32})}
}

// do runs f on the Metal thread. Its error ends the test.
func (l lab) do(f func() error) {
	l.Helper()
	var err error
	l.b.thread.do(func() { err = f() })
	if err != nil {
		l.Fatal(err)
	}
}

const prologue = "// assumption.metal\n#include <metal_stdlib>\nusing namespace metal;\n#pragma METAL fp math_mode(safe)\n"

// kernels compiles a source under the backend's own options. The backend then knows its kernels by those names, and releases them.
func (l lab) kernels(source string, names ...string) {
	l.Helper()
	l.do(func() error {
		options, err := mathOptions(l.b.activations, l.b.info.FastMath, &Info{})
		if err != nil {
			return err
		}
		defer options.release()
		lib, err := l.b.device.newLibrary(prologue+source, options)
		if lib.isNil() {
			return err
		}
		l.b.libraries["assumption "+names[0]] = lib
		for _, name := range names {
			if l.b.kernels[plain(name)], err = newKernel(l.b.device, lib, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// queue writes a dispatch down; bytes are what follows the slots.
func (l lab) queue(name string, grid, group size, bytes uint32, slots ...slot) {
	queue(l.b, engine.Site{Layer: engine.NoLayer, Name: name}, plain(name), grid, group, bytes, slots...)
}

func (l lab) sync() {
	l.Helper()
	if err := l.b.Sync(); err != nil {
		l.Fatal(err)
	}
}

// run is queue and sync, with whole buffers.
func (l lab) run(name string, grid, group size, bytes uint32, buffers ...engine.Buffer) {
	l.Helper()
	var slots []slot
	for _, b := range buffers {
		slots = append(slots, l.b.typed(b, b.DType()))
	}
	l.queue(name, grid, group, bytes, slots...)
	l.sync()
}

func (l lab) buffer(d num.DType, n int) engine.Buffer {
	l.Helper()
	return newBuffers(l, l.b)(d, n)
}

// words is a buffer of 32-bit words.
func (l lab) words(w []uint32) engine.Buffer {
	l.Helper()
	b := l.buffer(num.Int32, len(w))
	host := l.host(b)
	for i, v := range w {
		binary.LittleEndian.PutUint32(host[4*i:], v)
	}
	return b
}

func (l lab) host(b engine.Buffer) []byte {
	l.Helper()
	host, err := b.Host()
	if err != nil {
		l.Fatal(err)
	}
	return host
}

// read gives a buffer's 32-bit words.
func (l lab) read(b engine.Buffer) []uint32 {
	l.Helper()
	host := l.host(b)
	w := make([]uint32, b.Len())
	for i := range w {
		w[i] = binary.LittleEndian.Uint32(host[4*i:])
	}
	return w
}

// want compares a buffer's words with those that are wanted, in what.
func (l lab) want(what string, b engine.Buffer, want func(i int) uint32) {
	l.Helper()
	for i, got := range l.read(b) {
		if w := want(i); got != w {
			l.Fatalf("%s: word %d is %#x, want %#x", what, i, got, w)
		}
	}
}
