package kernel

import "llmrun/internal/num"

var neon = &Set{
	Name:        "neon",
	dotRows:     [num.NumDTypes]dotRowsFunc{num.Float32: dotRowsF32, num.Float16: dotRowsF16, num.BFloat16: dotRowsBF16, num.Int8: dotRowsI8},
	dotTile:     [num.NumDTypes]dotTileFunc{num.Float32: dotTileF32, num.Float16: dotTileF16, num.BFloat16: dotTileBF16, num.Int8: dotTileI8},
	int8:        genericInt8,
	weightedSum: weightedSum,
	read:        readFour,
	fetch:       fetch,
	vector: vectorFuncs{
		add: addVectors, mul: mulVectors, scale: scaleVector, divide: divideVector, normalize: normalize, rotate: rotate,
		largest: largest, expSum: expSum, silu: silu8, geluTanh: geluTanh8, softCap: softCap8,
	},
}

// Every arm64 that Go runs on has NEON, fused multiply-adds and the conversion of float16.
func machine() []*Set { return []*Set{neon} }
