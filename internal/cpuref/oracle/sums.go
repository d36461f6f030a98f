package oracle

import (
	"math"
	"runtime"
	"sync"

	"llmrun/internal/num"
)

//go:generate go -C ../kernel/asmgen run . oracle-amd64 ../../oracle/sums_amd64.s ../../oracle/stubs_amd64.go
//go:generate go -C ../kernel/asmgen run . oracle-arm64 ../../oracle/sums_arm64.s ../../oracle/stubs_arm64.go

// These loops take nearly all of the oracle's time. Whole blocks are done in vector registers where there are any (sums_vectors.go), and share
// gives each core a part. Neither changes a bit: the index alone decides on an element's lane, and nothing is fused. The CPU reference has
// kernels of its own, so that its mistakes are not the ruler's.

// block is how many elements are done at once in vector registers.
const block = 16

// sums is what is summed of terms pₖ = aₖ·bₖ: in eight lanes, by index modulo 8, but for path. Each term is rounded n/8 + 4 times at most,
// by 2^-53 relative, and its product, exact if both factors are float32, once more. Up to n = 2^20 that is 2^-36·Σ|pₖ|, a four-thousandth of the
// least that is allowed: likely's 2^-24·√n·√Σpₖ² is never below 2^-24·Σ|pₖ|.
type sums struct {
	v, size, squares [8]float64 // pₖ, |pₖ|, pₖ²
	path             float64    // the squares of the sums of the first 16, 32, 48 … terms
}

// add takes in the terms from k on.
func (s *sums) add(a, b []float64, k int) {
	for ; k < len(a); k++ {
		p, l := float64(a[k]*b[k]), k%8
		s.v[l] += p
		s.size[l] += math.Abs(p)
		s.squares[l] += float64(p * p)
		if k%block == block-1 {
			so := acrossLanes(&s.v)
			s.path += float64(so * so)
		}
	}
}

// acrossLanes is the sum of eight lanes.
func acrossLanes(v *[8]float64) float64 {
	return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
}

// multiply sums a·b, and leaves the sizes of its factors out.
func multiply(a, b []float64) terms {
	b = b[:len(a)]
	var s sums
	s.add(a, b, s.addBlocks(a, b))
	return terms{n: len(a), v: acrossLanes(&s.v), size: acrossLanes(&s.size), squares: acrossLanes(&s.squares), path: block * s.path}
}

// vector is numbers with Σ|aₖ|.
type vector struct {
	a    []float64
	size float64
}

func measured(a []float64) vector { return vector{a, absolute(a)} }

// split gives the heads of a row.
func split(row []float64, dim int) []vector {
	heads := make([]vector, len(row)/dim)
	for h := range heads {
		heads[h] = measured(row[h*dim:][:dim])
	}
	return heads
}

// dot sums a·b.
func dot(a, b vector) terms {
	t := multiply(a.a, b.a)
	t.sizeA, t.sizeB = a.size, b.size
	return t
}

// Sum is Σ aₖ·bₖ, Σ|aₖ·bₖ| and Σ(aₖ·bₖ)².
func Sum(a, b []float64) (sum, size, squares float64) {
	t := multiply(a, b)
	return t.v, t.size, t.squares
}

// absolute is Σ|aₖ|.
func absolute(a []float64) float64 {
	var lanes [8]float64
	for k := absoluteBlocks(a, &lanes); k < len(a); k++ {
		lanes[k%8] += math.Abs(a[k])
	}
	return acrossLanes(&lanes)
}

// Widen puts the first len(wide) elements of data into wide.
func Widen(wide []float64, d num.DType, data []byte) {
	data = data[:len(wide)*d.Size()]
	for i := widenBlocks(wide, d, data); i < len(wide); i++ {
		wide[i] = float64(num.Float32At(d, data, i))
	}
}

// scaled does so with elements of type int8 times a scale, which float32 rounds.
func scaled(wide []float64, data []byte, scale float32) {
	data = data[:len(wide)]
	for i := scaledBlocks(wide, data, scale); i < len(wide); i++ {
		wide[i] = float64(float32(int8(data[i])) * scale)
	}
}

// worthSharing is the number of terms, some 50 µs of them, below which waking another core takes longer.
const worthSharing = 1 << 17

// share calls f for parts of [0, rows) that together are all of it, at the same time if there are terms enough.
func share(rows, terms int, f func(from, to int)) {
	cores := runtime.GOMAXPROCS(0)
	if terms < worthSharing || cores == 1 {
		f(0, rows)
		return
	}
	var wait sync.WaitGroup
	part := max(1, rows/(4*cores)) // some more than cores, since they may be busy with something else, too
	for from := 0; from < rows; from += part {
		wait.Go(func() { f(from, min(from+part, rows)) })
	}
	wait.Wait()
}
