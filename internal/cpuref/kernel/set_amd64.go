package kernel

import (
	"golang.org/x/sys/cpu"

	"llmrun/internal/num"
)

var avx2 = assembled.named("avx2")

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
