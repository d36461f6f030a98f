package kernel

import (
	"fmt"
	"math/rand/v2"
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

// factors are the types of weights, and int8 by both products.
var factors = []struct {
	name    string
	d       num.DType
	product func(s *Set, t *Temp, out, x Floats, rows int, w Matrix)
}{
	{"float32", num.Float32, (*Set).Product}, {"float16", num.Float16, (*Set).Product}, {"bfloat16", num.BFloat16, (*Set).Product},
	{"int8", num.Int8, (*Set).Product}, {"int8×int8", num.Int8, quantizedProduct},
}

// quantized is what quantizedProduct keeps x in.
var quantized = Quantized{make([]int8, 1<<20), 0, make([]float32, 128)}

// quantizedProduct quantizes x anew with each call, as an op does with all rows of a weight.
func quantizedProduct(s *Set, t *Temp, out, x Floats, rows int, w Matrix) {
	quantized.Stride = w.Cols
	for m := range rows {
		s.Quantize(t, quantized, m, x.Data[m*x.Stride:][:w.Cols], false)
	}
	s.QuantizedProduct(t, out, quantized, rows, w)
}

// BenchmarkRows multiplies one row of x by matrices that come from memory, beside the reading of the same bytes in four streams.
// It reports the bytes of weights per second of one core, and as a part of what reading alone reaches.
func BenchmarkRows(b *testing.B) {
	data := make([]byte, coldBytes)
	for _, shape := range [][2]int{{896, 896}, {4864, 896}, {2304, 9216}} {
		for _, s := range Sets() {
			for _, f := range factors {
				rows, cols, d := shape[0], shape[1], f.d
				stride := cols * d.Size()
				fillWeights(rand.New(rand.NewPCG(6, 6)), 0, d, data[:stride*rows])
				for done := stride * rows; done < len(data); done *= 2 { // or it would be one page of zeros
					copy(data[done:], data[:done])
				}
				scale, x, y := make([]float32, rows), make([]float32, cols), make([]float32, rows)
				fill(rand.New(rand.NewPCG(6, 7)), 0, x)
				block := max(4, 4*56<<10/stride/4*4) // rows
				b.Run(fmt.Sprintf("%dx%d/%s/%s", rows, cols, s.Name, f.name), func(b *testing.B) {
					var temp Temp
					var product, read time.Duration
					at := 0
					for b.Loop() {
						if at+rows*stride > len(data) {
							at = 0
						}
						start := cpuTime()
						for n := 0; n < rows; n += block {
							count := min(block, rows-n)
							w := Matrix{Data: data[at+n*stride:], DType: d, Rows: count, Cols: cols, Stride: stride, Scale: scale}
							f.product(s, &temp, Floats{y[n:], 0}, Floats{x, 0}, 1, w)
						}
						product += cpuTime() - start
						// As many bytes elsewhere, in blocks of the same size.
						from := (at + len(data)/2) % (len(data) - rows*stride)
						start = cpuTime()
						for n := 0; n < rows; n += block {
							sink += s.Read(data[from+n*stride:][:min(block, rows-n)*stride])
						}
						read += cpuTime() - start
						at += rows * stride
					}
					b.ReportMetric(float64(b.N*rows*stride)/float64(product.Nanoseconds()), "GB/s")
					b.ReportMetric(100*read.Seconds()/product.Seconds(), "%read")
					b.ReportMetric(float64(product.Nanoseconds())/float64(b.N), "cpu-ns/op")
				})
			}
		}
	}
}

// BenchmarkTiles multiplies many rows of x. It reports multiply-adds, counted as two operations each, per second of one core.
func BenchmarkTiles(b *testing.B) {
	r := rand.New(rand.NewPCG(6, 8))
	for _, shape := range [][3]int{{16, 896, 896}, {128, 896, 896}, {128, 576, 1536}, {64, 896, 4864}} {
		m, n, k := shape[0], shape[1], shape[2]
		for _, s := range Sets()[1:] {
			for _, f := range factors {
				d := f.d
				w := Matrix{Data: make([]byte, n*k*d.Size()), DType: d, Rows: n, Cols: k, Stride: k * d.Size(), Scale: make([]float32, n)}
				fillWeights(r, 0, d, w.Data)
				x, y := Floats{make([]float32, m*k), k}, Floats{make([]float32, m*n), n}
				fill(r, 0, x.Data)
				b.Run(fmt.Sprintf("%dx%dx%d/%s/%s", m, n, k, s.Name, f.name), func(b *testing.B) {
					var temp Temp
					start := cpuTime()
					for b.Loop() {
						f.product(s, &temp, y, x, m, w)
					}
					b.ReportMetric(2*float64(m*n*k)*float64(b.N)/float64((cpuTime()-start).Nanoseconds()), "GFLOP/s")
				})
			}
		}
	}
}

// BenchmarkVectors reports the time of an element.
func BenchmarkVectors(b *testing.B) {
	const n = 1024
	r := rand.New(rand.NewPCG(6, 9))
	var v [6][]float32
	for i := range v {
		v[i] = make([]float32, n)
		fill(r, 0, v[i])
	}
	elements := func(b *testing.B, f func()) {
		start := cpuTime()
		for b.Loop() {
			f()
		}
		b.ReportMetric(float64((cpuTime()-start).Nanoseconds())/float64(b.N*n), "ns/element")
	}
	for name, f := range vectors {
		for _, s := range Sets() {
			b.Run(name+"/"+s.Name, func(b *testing.B) {
				elements(b, func() { f(s, v[0], v[1], v[2], v[3], v[4], v[5], 1.5, 1) })
			})
		}
	}
	// A head of 64 columns over 16 keys.
	part := make([]float32, 8*64)
	for _, s := range Sets() {
		b.Run("weighted sum/"+s.Name, func(b *testing.B) {
			elements(b, func() { s.WeightedSum(v[0][:64], v[1][:16], Floats{v[2], 64}, part, true, true) })
		})
	}
}

var sink float32
