//go:build !amd64 && !arm64

package oracle

import "llmrun/internal/num"

// There are no loops in vector registers for this machine: each does 0 elements.

func (s *sums) addBlocks(a, b []float64) int { return 0 }

func absoluteBlocks(a []float64, lanes *[8]float64) int { return 0 }

func widenBlocks(wide []float64, d num.DType, data []byte) int { return 0 }

func scaledBlocks(wide []float64, data []byte, scale float32) int { return 0 }
