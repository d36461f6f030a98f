package metal

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"testing"

	"llmrun/internal/backendtest"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// opener opens the backend for backendtest, after a first time that may skip the test.
func opener(t *testing.T, o Options) func() (engine.Backend, error) {
	open(t, o).Close()
	return func() (engine.Backend, error) { return Open(o) }
}

// TestSuite runs the suite under the validator; of float32 also in fast math, and all its ops, and fused ones, once more in other orders of threads, simdgroups
// and threadgroups: whatever the order, the results are the same. LLMRUN_TEST_MATRIX=1 does so for every type, as scripts/check does with
// every compiler.
func TestSuite(t *testing.T) {
	t.Setenv(validateVariable, "1")
	for _, d := range []num.DType{num.Float32, num.Float16, num.BFloat16} {
		all := d == num.Float32 || os.Getenv("LLMRUN_TEST_MATRIX") == "1"
		t.Run(d.String(), func(t *testing.T) { suite(t, Options{Activations: d}, all) })
		if all {
			t.Run(d.String()+" fast", func(t *testing.T) { suite(t, Options{Activations: d, FastMath: true}, true) })
		}
	}
}

func suite(t *testing.T, o Options, seeds bool) {
	backendtest.Run(t, opener(t, o))
	want := outputs(t, o)
	for seed := 1; seed < 5 && seeds; seed++ {
		t.Setenv(seedVariable, fmt.Sprint(seed))
		for name, got := range outputs(t, o) {
			if got != want[name] {
				t.Errorf("%s: seed %d gives other bits than seed 0", name, seed)
			}
		}
	}
}

// outputs runs all cases, and all fused kernels, and hashes what each writes.
func outputs(t *testing.T, o Options) map[string]uint64 {
	t.Helper()
	o.Fuse = true
	b := open(t, o)
	defer b.Close()
	hashes := map[string]uint64{}
	run := func(name string, ops ...engine.Op) {
		for _, op := range ops {
			b.Run(op)
		}
		h := fnv.New64a()
		for _, op := range ops {
			written, _ := op.Operands(nil, nil)
			for _, w := range written {
				bytes, err := w.Buffer.Host()
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				h.Write(bytes)
			}
		}
		hashes[name] = h.Sum64()
	}
	for _, c := range backendtest.Cases() {
		run(c.Name, c.Build(t, b))
	}
	for _, rows := range []int{1, 5, 70} {
		for _, f := range everyFusion(o.Activations, rows, newBuffers(t, b)) {
			r := rand.New(rand.NewPCG(1, 2))
			for _, op := range f.ops {
				fill(t, r, op)
			}
			run(fmt.Sprintf("%d rows, %s", rows, f.name), f.ops...)
		}
	}
	return hashes
}

func TestGolden(t *testing.T) {
	for _, fuse := range []bool{false, true} {
		t.Run(fmt.Sprintf("fuse=%t", fuse), func(t *testing.T) {
			backendtest.Golden(t, "../../testdata/golden", backendtest.LogitTolerance, opener(t, Options{Activations: num.Float32, Fuse: fuse}))
		})
	}
}

func TestStories(t *testing.T) {
	for _, d := range []num.DType{num.Float32, num.Float16, num.BFloat16} {
		for _, fuse := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v,fuse=%t", d, fuse), func(t *testing.T) {
				backendtest.Stories(t, "../models/testdata/golden.json", opener(t, Options{Activations: d, Fuse: fuse}))
			})
		}
	}
}
