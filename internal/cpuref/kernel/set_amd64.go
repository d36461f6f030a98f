package kernel

import (
	"golang.org/x/sys/cpu"

	"llmrun/internal/num"
)

var dotTiles = [num.NumDTypes]dotTileFunc{num.Float32: dotTileF32, num.Float16: dotTileF16, num.BFloat16: dotTileBF16, num.Int8: dotTileI8}

var avx2 = &Set{
	Name:      "avx2",
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

// avx512 has larger tiles, multiplies int8 with VNNI, and computes twice as many exponentials at a time; small products and all else are AVX2's. The tests
// hold it to the plain set only on machines that have it: no emulator of it is at hand.
var avx512 = func() *Set {
	s := *avx2
	dot := [num.NumDTypes]dotTileFunc{num.Float32: wideTileF32, num.Float16: wideTileF16, num.BFloat16: wideTileBF16, num.Int8: wideTileI8}
	s.Name, s.int8.rows, s.tilers = "avx512", rowsVNNI, append([]tiler{{6, 8, dot, tileVNNI}}, s.tilers...)
	s.weigh = append([]weigher{{7, 64, weighSeven}, {6, 64, weighSix}, {4, 64, weighFour}}, s.weigh...)
	s.vector.expSum, s.vector.silu, s.vector.geluTanh, s.vector.softCap = expSumWide, siluWide, geluTanhWide, softCapWide
	return &s
}()

func machine() (sets []*Set) {
	x := &cpu.X86
	if x.HasAVX2 && x.HasFMA && x.HasF16C {
		sets = append(sets, avx2)
		if x.HasBMI2 && x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL && x.HasAVX512VNNI {
			sets = append(sets, avx512)
		}
	}
	return sets
}
