package kernel

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"llmrun/internal/num"
)

// cpuTime is what this process has used of the cores. On a machine that is busy with other things it says more than the clock.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// coldBytes are more than the caches of a core hold, and more than its part of those that are shared.
const coldBytes = 96 << 20

var sink float32

// cold measures what goes over memory: f, on n bytes of data from at on, in turn with the fastest reading of as many bytes elsewhere. It
// reports a core's time, bytes per second, and these as a part of what reading alone reaches.
func cold(b *testing.B, data []byte, n int, f func(at int)) {
	reader := Sets()[len(Sets())-1]
	var work, read time.Duration
	at := 0
	for b.Loop() {
		if at+n > len(data) {
			at = 0
		}
		start := cpuTime()
		f(at)
		work += cpuTime() - start
		other := (at + len(data)/2) % (len(data) - n)
		start = cpuTime()
		sink += reader.Read(data[other:][:n])
		read += cpuTime() - start
		at += n
	}
	b.ReportMetric(float64(b.N)*float64(n)/float64(work.Nanoseconds()), "GB/s")
	b.ReportMetric(100*read.Seconds()/work.Seconds(), "%read")
	b.ReportMetric(float64(work.Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// coldData fills memory with values of a type, no page like another one that is all zeros.
func coldData(d num.DType) []byte {
	data := make([]byte, coldBytes)
	const first = 1 << 20
	fillWeights(rand.New(rand.NewPCG(6, 6)), 0, d, data[:first])
	for done := first; done < len(data); done *= 2 {
		copy(data[done:], data[:done])
	}
	return data
}

// BenchmarkRows multiplies one row of x by matrices that come from memory.
func BenchmarkRows(b *testing.B) {
	for _, d := range weightTypes {
		data := coldData(d)
		for _, shape := range [][2]int{{896, 896}, {4864, 896}, {896, 4864}, {2304, 9216}} {
			rows, cols := shape[0], shape[1]
			stride := cols * d.Size()
			scale, x, y := make([]float32, rows), make([]float32, cols), make([]float32, rows)
			fill(rand.New(rand.NewPCG(6, 7)), 0, x)
			block := max(4, 4*448<<10/stride/4*4) // rows
			// in calls f with the matrices of an op, cut as the threads of a backend cut them.
			in := func(b *testing.B, f func(n, count int, w Matrix)) {
				cold(b, data, rows*stride, func(at int) {
					w := Matrix{Data: data[at:], DType: d, Rows: rows, Cols: cols, Stride: stride, Scale: scale}
					for n := 0; n < rows; n += block {
						count := min(block, rows-n)
						f(n, count, w.Span(n, n+count))
					}
				})
			}
			for _, s := range Sets() {
				b.Run(fmt.Sprintf("%dx%d/%s/%v", rows, cols, s.Name, d), func(b *testing.B) {
					var temp Temp
					in(b, func(n, _ int, w Matrix) { s.Product(&temp, Floats{y[n:], 0}, Floats{x, 0}, 1, w) })
				})
				if d == num.Int8 {
					b.Run(fmt.Sprintf("%dx%d/%s/int8·int8", rows, cols, s.Name), func(b *testing.B) {
						var temp Temp
						q := quantized(s, Floats{x, 0}, 1)
						in(b, func(n, _ int, w Matrix) { s.QuantizedProduct(&temp, Floats{y[n:], 0}, q, 1, w) })
					})
				}
			}
		}
	}
}

// quantized is rows of x as int8.
func quantized(s *Set, x Floats, rows int) Quantized {
	cols := len(x.Data) / rows
	q := Quantized{make([]int8, len(x.Data)), cols, make([]float32, rows)}
	for r := range rows {
		s.Quantize(new(Temp), q, r, x.Data[r*x.Stride:][:cols], false)
	}
	return q
}

// BenchmarkTiles multiplies many rows of x. It reports multiply-adds, counted as two operations each, per second of one core.
func BenchmarkTiles(b *testing.B) {
	r := rand.New(rand.NewPCG(6, 8))
	for _, shape := range [][3]int{{16, 896, 896}, {128, 896, 896}, {128, 576, 1536}, {64, 896, 4864}} {
		m, n, k := shape[0], shape[1], shape[2]
		x, y := Floats{make([]float32, m*k), k}, Floats{make([]float32, m*n), n}
		fill(r, 0, x.Data)
		operations := func(b *testing.B, f func()) {
			start := cpuTime()
			for b.Loop() {
				f()
			}
			b.ReportMetric(2*float64(m*n*k)*float64(b.N)/float64((cpuTime()-start).Nanoseconds()), "GFLOP/s")
		}
		for _, s := range Sets()[1:] {
			for _, d := range weightTypes {
				w := Matrix{Data: make([]byte, n*k*d.Size()), DType: d, Rows: n, Cols: k, Stride: k * d.Size(), Scale: make([]float32, n)}
				fillWeights(r, 0, d, w.Data)
				b.Run(fmt.Sprintf("%dx%dx%d/%s/%v", m, n, k, s.Name, d), func(b *testing.B) {
					var temp Temp
					operations(b, func() { s.Product(&temp, y, x, m, w) })
				})
				if d == num.Int8 {
					b.Run(fmt.Sprintf("%dx%dx%d/%s/int8·int8", m, n, k, s.Name), func(b *testing.B) {
						var temp Temp
						q := quantized(s, x, m)
						operations(b, func() { s.QuantizedProduct(&temp, y, q, m, w) })
					})
				}
			}
		}
	}
}

// BenchmarkVectors works in a core's cache: 1,024 elements. It reports the time of one, and the bytes of a result and of one operand for comparison with
// what memory gives.
func BenchmarkVectors(b *testing.B) {
	const n = 1024
	r := rand.New(rand.NewPCG(6, 9))
	var v [6][]float32
	for i := range v {
		v[i] = make([]float32, n)
		fill(r, 0, v[i])
	}
	data := coldData(num.Float32)
	measure := func(b *testing.B, f func()) {
		start := cpuTime()
		for b.Loop() {
			f()
		}
		each := float64((cpuTime() - start).Nanoseconds()) / float64(b.N*n)
		start = cpuTime()
		sink += Sets()[len(Sets())-1].Read(data)
		read := float64((cpuTime() - start).Nanoseconds()) / coldBytes
		b.ReportMetric(each, "ns/element")
		b.ReportMetric(8/each, "GB/s")
		b.ReportMetric(100*8*read/each, "%read")
	}
	for _, s := range Sets() {
		for _, name := range slices.Sorted(maps.Keys(vectors)) {
			b.Run(name+"/"+s.Name, func(b *testing.B) {
				measure(b, func() { vectors[name](s, v[0], v[1], v[2], v[3], v[4], v[5], 1.5, 1) })
			})
		}
		b.Run("dot/"+s.Name, func(b *testing.B) {
			var temp Temp
			measure(b, func() { sink += s.Dot(&temp, v[0], v[1]) })
		})
		b.Run("quantize/"+s.Name, func(b *testing.B) {
			var temp Temp
			q := Quantized{make([]int8, n), n, make([]float32, 1)}
			measure(b, func() { s.Quantize(&temp, q, 0, v[0], false) })
		})
	}
}
