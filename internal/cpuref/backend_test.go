package cpuref

import (
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"llmrun/internal/ctconv"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

type counting []atomic.Int32

func (c counting) item(_ *scratch, i int) { c[i].Add(1) }

// Every item runs exactly once, whether the workers are awake, falling asleep or parked.
func TestPoolRunsEveryItemOnce(t *testing.T) {
	p := newPool(4, func(int) {})
	defer p.close()
	p.least = 0
	for round := range 300 {
		counts := make(counting, 97)
		p.each(len(counts), 0, counts)
		for i := range counts {
			if n := counts[i].Load(); n != 1 {
				t.Fatalf("round %d: item %d ran %d times", round, i, n)
			}
		}
		if round%3 == 0 {
			time.Sleep(time.Duration(round) * 10 * time.Microsecond)
		}
	}
}

func TestPoolMakesNoGarbage(t *testing.T) {
	p := newPool(3, func(int) {})
	defer p.close()
	p.least = 0
	counts := make(counting, 7)
	var work task = counts
	if n := testing.AllocsPerRun(100, func() { p.each(len(counts), 0, work) }); n != 0 {
		t.Errorf("%v allocations per op", n)
	}
}

// BenchmarkPool measures what an op takes longer than the work that each thread does for it.
func BenchmarkPool(b *testing.B) {
	for threads := 1; threads <= runtime.GOMAXPROCS(0); threads *= 2 {
		for _, work := range []busy{0, busy(5 * time.Microsecond), busy(20 * time.Microsecond), busy(100 * time.Microsecond)} {
			b.Run(fmt.Sprintf("%d threads/%v", threads, time.Duration(work)), func(b *testing.B) {
				p := newPool(threads, func(int) {})
				defer p.close()
				p.least = 0
				for b.Loop() {
					p.each(threads, 0, work)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)-float64(work), "above-ns/op")
			})
		}
	}
}

// busy is work that takes so many nanoseconds.
type busy time.Duration

func (d busy) item(*scratch, int) {
	for start := time.Now(); time.Since(start) < time.Duration(d); {
	}
}

func TestRefusals(t *testing.T) {
	b := Open(Options{Threads: 1})
	defer b.Close()
	if _, err := b.Upload(ctconv.Tensor{Name: "w", DType: num.Float16, Shape: []int{2, 3}, Data: make([]byte, 11)}); err == nil ||
		err.Error() != "cpu: w: want 12 bytes for [2 3] of float16, found 11" {
		t.Errorf("a short tensor: %v", err)
	}
	if _, err := b.NewBuffer(num.Float32, -1); err == nil {
		t.Error("a buffer of -1 elements: want an error")
	}
	if _, err := b.NewBuffer(num.NumDTypes, 1); err == nil {
		t.Error("a buffer of no type: want an error")
	}
}

// The environment names the kernels; a name that the machine cannot serve is a failure, not another choice.
func TestKernelsByName(t *testing.T) {
	for name, want := range map[string]string{"generic": "", "mmx": `LLMRUN_CPU: this machine has no kernels "mmx", but generic`} {
		t.Setenv("LLMRUN_CPU", name)
		b := Open(Options{Threads: 1})
		defer b.Close()
		err := b.Sync()
		if want == "" && (err != nil || b.kernels.Name != name) || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s: want error %q, got %v", name, want, err)
		}
	}
}

// An op that leaves its buffer is a mistake of the program that built it.
func TestShapesThatCannotBePanic(t *testing.T) {
	b := Open(Options{Threads: 1})
	defer b.Close()
	buffer := func(n int) engine.Buffer {
		x, err := b.NewBuffer(num.Float32, n)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	defer func() {
		if p := fmt.Sprint(recover()); !strings.HasPrefix(p, "BUG: out: 2 rows of 3") {
			t.Errorf("want a panic about out, got %q", p)
		}
	}()
	b.Run(&engine.Add{Place: engine.Place{In: &engine.Pass{Rows: 2}}, Out: buffer(5), A: buffer(6), B: buffer(6), Dim: 3})
}
