package kernel

import (
	"golang.org/x/sys/cpu"

	"llmrun/internal/num"
)

var dotTiles = [num.NumDTypes]dotTileFunc{num.Float32: dotTileF32, num.Float16: dotTileF16, num.BFloat16: dotTileBF16, num.Int8: dotTileI8}

var neon = &Set{
	Name:      "neon",
	dotRows:   [num.NumDTypes]dotRowsFunc{num.Float32: dotRowsF32, num.Float16: dotRowsF16, num.BFloat16: dotRowsBF16, num.Int8: dotRowsI8},
	tilers:    []tiler{{4, 3, dotTiles, tileInt8}},
	int8:      int8Funcs{rows: rowsInt8, magnitude: magnitude, quantize: quantize8, rescale: rescale},
	scoreKeys: scoreKeys,
	endSum:    endSum,
	weigh:     []weigher{{3, 32, weighThree}, {2, 32, weighTwo}, {1, 64, weighOne}, {1, 8, weighEight}},
	read:      readFour,
	fetch:     fetch,
	vector: vectorFuncs{
		add: addVectors, mul: mulVectors, scale: scaleVector, divide: divideVector, normalize: normalize, rotate: rotate,
		largest: largest, expSum: expSum, silu: silu8, geluTanh: geluTanh8, softCap: softCap8,
	},
}

var dotprod = func() *Set {
	s := *neon
	s.Name, s.int8.rows, s.tilers = "neon+dotprod", rowsInt8Dot, []tiler{{4, 3, dotTiles, tileInt8Dot}}
	return &s
}()

// Every arm64 that Go runs on has NEON, fused multiply-adds and the conversion of float16.
// Products of int8 have an instruction that not all have.
func machine() []*Set {
	if cpu.ARM64.HasASIMDDP {
		return []*Set{neon, dotprod}
	}
	return []*Set{neon}
}
