package metal

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	cpukernel "llmrun/internal/cpuref/kernel"
	"llmrun/internal/engine"
	"llmrun/internal/num"
)

// benchmarkBytes of weights are more than any cache of an M1 holds. A step goes over all of them, in one command buffer, as decoding does.
const benchmarkBytes = 256 << 20

// read is what a GPU's memory allows: threads side by side add up vectors side by side, and keep the sum from being optimized away. The host
// device runs threads one after the other, and so reads in strides: there it is no limit.
const read = `kernel void read_all(device float *out [[buffer(0)]], device const float4 *x [[buffer(1)]], constant uint &n [[buffer(2)]],
                     uint i [[thread_position_in_grid]], uint threads [[threads_per_grid]]) {
    float4 sum = float4(0.0f);
    for (uint k = i; k < n; k += threads) sum += x[k];
    if (sum.x + sum.y + sum.z + sum.w == 12345.0f) out[i] = 1.0f;
}`

// BenchmarkRead reads benchmarkBytes: the limit that BenchmarkLinear is held against.
func BenchmarkRead(b *testing.B) {
	const threads = 1 << 15
	l := newLab(b)
	l.kernels(read, "read_all")
	x, out := l.buffer(num.Float32, benchmarkBytes/4), l.buffer(num.Float32, threads)
	b.SetBytes(benchmarkBytes)
	for b.Loop() {
		l.run("read_all", size{threads, 1, 1}, size{256, 1, 1}, benchmarkBytes/16, out, x)
	}
}

// limit reads data with every core, in four streams each: the best that a product with weights can do on these cores.
func limit(data []byte) time.Duration {
	const piece = 256 << 10
	sets := cpukernel.Sets()
	fastest, cores := sets[len(sets)-1], runtime.GOMAXPROCS(0)
	start := time.Now()
	var wait sync.WaitGroup
	for i := range cores {
		wait.Go(func() {
			for part := data[i*len(data)/cores : (i+1)*len(data)/cores]; len(part) >= piece; part = part[piece:] {
				fastest.Read(part[:piece])
			}
		})
	}
	wait.Wait()
	return time.Since(start)
}

// BenchmarkLinear decodes: one row times matrices of the shapes of Qwen2.5-0.5B and Gemma2-2b. Its share is that of the cores' limit: the
// best pass over all weights beside the best of as many readings between them.
func BenchmarkLinear(b *testing.B) {
	data := make([]byte, benchmarkBytes)
	for i := range data {
		data[i] = byte(i) // or it would be one page of zeros
	}
	for _, shape := range [][2]int{{896, 4864}, {4864, 896}, {2304, 9216}} {
		for _, name := range []string{"float32", "float16", "bfloat16", "int8", "int8×int8"} {
			d := weightType(name)
			b.Run(fmt.Sprintf("%s/%dx%d", name, shape[0], shape[1]), func(b *testing.B) {
				l := newLab(b)
				rows, cols := shape[0], shape[1]
				bytes := rows * cols * d.Size()
				x, out, scale := l.buffer(num.Float32, cols), l.buffer(num.Float32, rows), l.buffer(num.Float32, rows)
				var ops []engine.Op
				for range benchmarkBytes / bytes {
					w := engine.Matrix{Buffer: l.buffer(d, rows*cols), Rows: rows, Cols: cols}
					if d == num.Int8 {
						w.Scale = scale
					}
					ops = append(ops, &engine.Linear{Place: engine.Place{In: &engine.Pass{Rows: 1}, Name: "gate"}, Out: out, X: x, W: w, Quantized: name == "int8×int8"})
				}
				product, read := time.Hour, time.Hour
				for b.Loop() {
					read = min(read, limit(data))
					start := time.Now()
					for _, op := range ops {
						l.b.Run(op)
					}
					l.sync()
					product = min(product, time.Since(start))
				}
				rate := float64(len(ops)*bytes) / float64(product.Nanoseconds())
				b.ReportMetric(rate, "GB/s")
				b.ReportMetric(rate*float64(read.Nanoseconds())/benchmarkBytes, "share")
			})
		}
	}
}

func weightType(name string) num.DType {
	return map[string]num.DType{"float32": num.Float32, "float16": num.Float16, "bfloat16": num.BFloat16, "int8": num.Int8, "int8×int8": num.Int8}[name]
}

// BenchmarkPrefill multiplies 64 rows, and reports multiply-adds, counted as two operations each.
func BenchmarkPrefill(b *testing.B) {
	const tokens, rows, cols = 64, 4864, 896
	for _, name := range []string{"float32", "float16", "int8×int8"} {
		d := weightType(name)
		b.Run(fmt.Sprintf("%s/%dx%dx%d", name, tokens, rows, cols), func(b *testing.B) {
			l := newLab(b)
			op := &engine.Linear{Place: engine.Place{In: &engine.Pass{Rows: tokens}, Name: "gate"}, Out: l.buffer(num.Float32, tokens*rows),
				X: l.buffer(num.Float32, tokens*cols), W: engine.Matrix{Buffer: l.buffer(d, rows*cols), Rows: rows, Cols: cols}, Quantized: d == num.Int8}
			if d == num.Int8 {
				op.W.Scale = l.buffer(num.Float32, rows)
			}
			for b.Loop() {
				l.b.Run(op)
				l.sync()
			}
			b.ReportMetric(2*tokens*rows*cols*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
		})
	}
}

// BenchmarkDispatch is the cost of an op that does nothing much: alone in its command buffer, and among a hundred.
func BenchmarkDispatch(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			l := newLab(b)
			x, out := l.buffer(num.Float32, 32), l.buffer(num.Float32, 32)
			op := &engine.Add{Place: engine.Place{In: &engine.Pass{Rows: 1}, Name: "layer_out"}, Out: out, A: x, B: x, Dim: 32}
			for b.Loop() {
				for range n {
					l.b.Run(op)
				}
				l.sync()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/dispatch")
		})
	}
}

// BenchmarkPrepare is what the CPU does for a step: all ops written down, fused and encoded, and nothing run.
func BenchmarkPrepare(b *testing.B) {
	for _, fuse := range []bool{false, true} {
		b.Run(fmt.Sprintf("fuse=%t", fuse), func(b *testing.B) {
			m := open(b, Options{Activations: num.Float32, Fuse: fuse})
			s := session(b, decoder(b, m, "m_gemma2"), 8)
			decode(b, s, 1)
			program, dispatches := s.Program(), len(m.prepared[0].list)
			for b.Loop() {
				m.Discard(m.Prepare(program))
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*dispatches), "ns/dispatch")
		})
	}
}

// BenchmarkStep is a token of a small model, encoded ahead or not.
func BenchmarkStep(b *testing.B) {
	for _, ahead := range []bool{false, true} {
		b.Run(fmt.Sprintf("ahead=%t", ahead), func(b *testing.B) {
			m := open(b, Options{Activations: num.Float32})
			s := session(b, decoder(b, m, "m_gemma2"), 64)
			if !ahead {
				s.Backend = plainly{m}
			}
			for b.Loop() {
				if s.Len() == 64 {
					if err := s.Reset(); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := s.Step(1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkOpen is the start of a program whose shaders were compiled before, and its end.
func BenchmarkOpen(b *testing.B) {
	open(b, Options{Activations: num.Float32}).Close()
	for b.Loop() {
		open(b, Options{Activations: num.Float32}).Close()
	}
}
