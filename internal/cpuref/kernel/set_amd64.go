package kernel

import (
	"golang.org/x/sys/cpu"

	"llmrun/internal/num"
)

var avx2 = &Set{
	Name:        "avx2",
	dotRows:     [num.NumDTypes]dotRowsFunc{num.Float32: dotRowsF32, num.Float16: dotRowsF16, num.BFloat16: dotRowsBF16, num.Int8: dotRowsI8},
	dotTile:     [num.NumDTypes]dotTileFunc{num.Float32: dotTileF32, num.Float16: dotTileF16, num.BFloat16: dotTileBF16, num.Int8: dotTileI8},
	int8:        int8Funcs{rows: rowsInt8, tile: tileInt8, magnitude: magnitude, quantize: quantize8, rescale: rescale},
	weightedSum: weightedSum,
	weigh:       []weigher{{3, 32, weighThree}, {1, 64, weighOne}, {1, 8, weighEight}},
	read:        readFour,
	fetch:       fetch,
	vector: vectorFuncs{
		add: addVectors, mul: mulVectors, scale: scaleVector, divide: divideVector, normalize: normalize, rotate: rotate,
		largest: largest, expSum: expSum, silu: silu8, geluTanh: geluTanh8, softCap: softCap8,
	},
}

func machine() []*Set {
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasF16C {
		return []*Set{avx2}
	}
	return nil
}
