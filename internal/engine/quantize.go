package engine

import (
	"fmt"
	"math"
	"runtime"
	"sync"

	"llmrun/internal/num"
)

// MaxQuantizedCols is how many columns a quantized Linear may have: up to here the exact sum of int8 products fits an int32 even in
// rows of -128 (127·128·132096 < 2³¹), and a 128th of its terms fits the 24 bits of a float32.
const MaxQuantizedCols = 132096

// quantize turns rows of floats into int8 as CTranslate2 does: each row times 127/max|row|, rounded to the nearest integer with ties to even,
// or toward zero if truncate says so (binary versions before 5). It gives those factors, by which the integers are to be divided;
// where one would be infinite, in a row of zeros, it is 1. data has no alignment; q holds rows·cols bytes.
// Source: python/ctranslate2/specs/model_spec.py and src/cpu/kernels.cc, quantize_s8.
func quantize(q, data []byte, d num.DType, rows, cols int, truncate bool) (divisors []float32, err error) {
	divisors = make([]float32, rows)
	parts := runtime.GOMAXPROCS(0)
	errs := make([]error, parts)
	var wait sync.WaitGroup
	for part := range parts {
		wait.Go(func() {
			row := make([]float32, cols)
			for r := part * rows / parts; r < (part+1)*rows/parts; r++ {
				num.Float32s(row, d, data[r*cols*d.Size():])
				if divisors[r], errs[part] = quantizeRow(q[r*cols:][:cols], row, truncate); errs[part] != nil {
					errs[part] = fmt.Errorf("row %d: %w", r, errs[part])
					return
				}
			}
		})
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return divisors, nil
}

func quantizeRow(q []byte, row []float32, truncate bool) (factor float32, err error) {
	largest := float32(0)
	for _, v := range row {
		if v-v != 0 {
			return 0, fmt.Errorf("want finite weights to quantize, file has %v", v)
		}
		largest = max(largest, float32(math.Abs(float64(v))))
	}
	if factor = 127 / largest; math.IsInf(float64(factor), 0) {
		factor = 1
	}
	round := math.RoundToEven
	if truncate {
		round = math.Trunc
	}
	for i, v := range row {
		q[i] = byte(int8(round(float64(v * factor))))
	}
	return factor, nil
}
