package cpuref

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"llmrun/internal/cpuref/kernel"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// reading has each thread read its part of some bytes, as fast as memory gives them.
type reading struct {
	*Backend
	data []byte
}

func (r reading) item(s *scratch, i int) {
	each := len(r.data) / len(r.pool.work)
	s.floats(0, 1)[0] = r.kernels.Read(r.data[i*each:][:each])
}

// BenchmarkAttention measures a token's attention over caches that come from memory, in turn with the reading of as many bytes. It reports what part of
// its speed Scores and Context reach, and how many times as long as the reading of keys and values all three ops take: bench's growth. How fast memory
// is changes, and with it what is best, so time alone says little.
func BenchmarkAttention(b *testing.B) {
	for _, shape := range []struct {
		name                string
		heads, kvHeads, dim int
	}{{"SmolLM2-135M", 9, 3, 64}, {"Gemma3-270M", 4, 1, 256}, {"Qwen2.5-0.5B", 14, 2, 64}} {
		for _, keys := range []int{520, 1040, 8208} {
			for threads := 1; threads <= runtime.GOMAXPROCS(0); threads *= 2 {
				for _, set := range kernel.Sets() {
					b.Run(fmt.Sprintf("%s/%d/%d threads/%s", shape.name, keys, threads, set.Name), func(b *testing.B) {
						backend := Open(Options{Threads: threads})
						defer backend.Close()
						backend.kernels = set
						benchAttention(b, backend, engine.Attention{Heads: shape.heads, KVHeads: shape.kvHeads, Dim: shape.dim}, keys)
					})
				}
			}
		}
	}
}

func benchAttention(b *testing.B, backend *Backend, a engine.Attention, keys int) {
	const beyondCaches = 96 << 20
	newBuffer := func(n int) engine.Buffer {
		x, err := backend.NewBuffer(num.Float32, n)
		if err != nil {
			b.Fatal(err)
		}
		values := kernel.FloatsOf(x.(*buffer).data)
		for i := range values {
			values[i] = float32(i%251)/251 - 0.5
		}
		return x
	}
	bytes := 4 * keys * a.KVHeads * a.Dim // of keys, and of values
	q, x, p, out := newBuffer(a.Heads*a.Dim), newBuffer(a.Heads*keys), newBuffer(a.Heads*keys), newBuffer(a.Heads*a.Dim)
	place := engine.Place{In: &engine.Pass{Step: 2, Rows: 1, Pos: keys - 1, Span: engine.Span{Decode: true}}}
	var layers [][3]engine.Op
	for range beyondCaches/(2*bytes) + 1 {
		layers = append(layers, [3]engine.Op{
			&engine.Scores{Place: place, Attention: a, Out: x, Q: engine.View{Buffer: q, Stride: a.Heads * a.Dim}, K: newBuffer(bytes / 4), Scale: 0.1},
			&engine.Softmax{Place: place, Attention: a, Out: p, X: x},
			&engine.Context{Place: place, Attention: a, Out: out, P: p, V: newBuffer(bytes / 4)},
		})
	}
	other := newBuffer((beyondCaches + bytes) / 4).(*buffer).data
	var op [3]time.Duration
	var read time.Duration
	at := 0
	for n := 0; b.Loop(); n++ {
		start := time.Now()
		backend.pool.each(len(backend.pool.work), bytes, reading{backend, other[at:][:bytes]})
		read += time.Since(start)
		at = (at + bytes) % beyondCaches
		for i, o := range layers[n%len(layers)] {
			start := time.Now()
			backend.Run(o)
			op[i] += time.Since(start)
		}
	}
	if err := backend.Sync(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(100*read.Seconds()/op[0].Seconds(), "scores-%read")
	b.ReportMetric(100*read.Seconds()/op[2].Seconds(), "context-%read")
	b.ReportMetric((op[0]+op[1]+op[2]).Seconds()/(2*read.Seconds()), "growth")
}
