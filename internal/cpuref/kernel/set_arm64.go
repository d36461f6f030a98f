package kernel

import (
	"golang.org/x/sys/cpu"
)

var neon = assembled.named("neon")

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
