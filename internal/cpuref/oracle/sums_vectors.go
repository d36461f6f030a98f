//go:build amd64 || arm64

package oracle

import "llmrun/internal/num"

// addBlocks takes in as many whole blocks of terms as there are, and tells how many terms that is.
func (s *sums) addBlocks(a, b []float64) int {
	n := blocks(len(a))
	if n > 0 {
		dotLanes(&a[0], &b[0], n, &s.v, &s.size, &s.squares, &s.path)
	}
	return n
}

// blocks is how many of n elements make whole blocks, for vector registers.
func blocks(n int) int {
	if !vectors {
		return 0
	}
	return n - n%block
}

func absoluteBlocks(a []float64, lanes *[8]float64) int {
	n := blocks(len(a))
	if n > 0 {
		absoluteLanes(&a[0], n, lanes)
	}
	return n
}

func widenBlocks(wide []float64, d num.DType, data []byte) int {
	n := blocks(len(wide))
	if n == 0 {
		return 0
	}
	switch d {
	case num.Float32:
		widenF32(&wide[0], &data[0], n)
	case num.Float16:
		widenF16(&wide[0], &data[0], n)
	case num.BFloat16:
		widenBF16(&wide[0], &data[0], n)
	case num.Int8:
		widenI8(&wide[0], &data[0], n)
	default:
		return 0
	}
	return n
}

func scaledBlocks(wide []float64, data []byte, scale float32) int {
	n := blocks(len(wide))
	if n > 0 {
		widenScaled(&wide[0], &data[0], scale, n)
	}
	return n
}
