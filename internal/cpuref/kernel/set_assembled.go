//go:build amd64 || arm64

package kernel

import "llmrun/internal/num"

var dotTiles = [num.NumDTypes]dotTileFunc{num.Float32: dotTileF32, num.Float16: dotTileF16, num.BFloat16: dotTileBF16, num.Int8: dotTileI8}

// assembled is what amd64 writes with AVX2 and arm64 with NEON.
var assembled = Set{
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

func (s Set) named(name string) *Set {
	s.Name = name
	return &s
}
