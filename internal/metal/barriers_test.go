package metal

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"llmrun/internal/backendtest"
	"llmrun/internal/engine"
	"llmrun/internal/num"
	"llmrun/shaders"
)

var barrier = regexp.MustCompile(`\b(threadgroup|simdgroup)_barrier\(mem_flags::\w+\);`)

// instance is an instance of a kernel.
var instance = regexp.MustCompile(`(?m)^template \[\[host_name\("\w+"\)\]\].*;$`)

// TestEveryBarrierIsNeeded removes each barrier of each shader, of which the validator has nothing to report, one at a time, and runs the kernels of the shader until the validator reports
// what the barrier was for.
func TestEveryBarrierIsNeeded(t *testing.T) {
	t.Setenv(validateVariable, "1")
	all := workouts(t)
	for _, file := range append(shaders.Files(), shaders.Headers()...) {
		text, err := shaders.FS.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := barrier.FindAllIndex(text, -1)
		if n := len(regexp.MustCompile(`\w+group_barrier\(`).FindAll(text, -1)); n != len(found) {
			t.Errorf("%s calls %d barriers, of which this test can remove %d", file, n, len(found))
		}
		for _, at := range found {
			line := 1 + strings.Count(string(text[:at[0]]), "\n")
			t.Run(fmt.Sprintf("%s:%d", file, line), func(t *testing.T) {
				without := string(text[:at[0]]) + ";" + string(text[at[1]:])
				without = instance.ReplaceAllStringFunc(without, func(line string) string {
					if strings.Contains(line, "_f32") {
						return line
					}
					return "" // of other types: they have the same barriers
				})
				removed(t, all, func(f, source string) (string, error) {
					if f == file {
						return without, nil
					}
					return source, nil
				})
			})
		}
	}
}

// removed wants a report from one of the shaders that edit changes.
func removed(t *testing.T, all []workout, edit func(file, source string) (string, error)) {
	var changed []string
	for _, f := range shaders.Files() {
		before, err := shaders.Source(f, nil)
		if err != nil {
			t.Fatal(err)
		}
		after, err := shaders.Source(f, edit)
		if err != nil {
			t.Fatal(err)
		}
		if before != after {
			changed = append(changed, strings.TrimSuffix(f, ".metal"))
		}
	}
	b := open(t, Options{Activations: num.Float32, Fuse: true, Edit: edit})
	runs := 0
	for _, w := range all {
		if !slices.ContainsFunc(w.shaders, func(s string) bool { return slices.Contains(changed, s) }) {
			continue
		}
		runs++
		w.run(t, b)
		err := b.Sync()
		if err == nil {
			continue
		}
		report := err.Error()
		if !strings.Contains(report, "data race in threadgroup memory") && !strings.Contains(report, "uninitialised read of threadgroup memory") {
			t.Fatalf("%s: %s: not the missing barrier", w.name, report)
		}
		t.Logf("%s: %s", w.name, report)
		return
	}
	t.Errorf("no report, in %d runs of kernels of %v", runs, changed)
}

// A workout is ops that run one after another.
type workout struct {
	name    string
	shaders []string // of the kernels that run
	ops     func(t *testing.T, b *Backend) []engine.Op
}

func (w workout) run(t *testing.T, b *Backend) {
	for _, op := range w.ops(t, b) {
		b.Run(op)
	}
}

// workouts are all cases of backendtest, and all fusions, with the shaders that they run.
func workouts(t *testing.T) (all []workout) {
	for _, c := range backendtest.Cases() {
		all = append(all, workout{c.Name, nil, func(t *testing.T, b *Backend) []engine.Op { return []engine.Op{c.Build(t, b)} }})
	}
	for _, rows := range []int{1, 5, 70} {
		made := map[*Backend][]fused{} // buffers are mappings, of which a process has not many
		for i := range everyFusion(num.Float32, rows, func(num.DType, int) engine.Buffer { return &buffer{} }) {
			all = append(all, workout{fmt.Sprintf("fusion %d of %d rows", i, rows), nil, func(t *testing.T, b *Backend) []engine.Op {
				if made[b] == nil {
					made[b] = everyFusion(num.Float32, rows, newBuffers(t, b))
				}
				f := made[b][i]
				for _, op := range f.ops {
					fill(t, rand.New(rand.NewPCG(1, 2)), op)
				}
				return f.ops
			}})
		}
	}
	b := open(t, Options{Activations: num.Float32, Fuse: true})
	for i := range all {
		w := &all[i]
		w.run(t, b)
		for _, d := range b.pending {
			w.shaders = append(w.shaders, d.key.shader)
		}
		if err := b.Sync(); err != nil {
			t.Fatalf("%s: with all barriers in their place: %v", w.name, err)
		}
	}
	return all
}
