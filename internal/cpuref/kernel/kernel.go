// Package kernel holds the inner loops of the CPU reference, in forms with the same bits: plain Go, AVX2 with FMA and F16C
// for amd64 and more of them with AVX-512, NEON for arm64. Package cpuref's documentation is their specification.
//
// Sums run in eight lanes by index modulo 8, each a chain of fused multiply-adds, so a lane of the sum is a lane of a register (or of
// two) whatever the shape of the loop: rows by rows, in tiles, with the terms cut into pieces and the lanes put aside in between.
// Weights are read where they lie in the file, unaligned and never beyond their last byte, and widened in registers.
//
// Products of int8 with int8 are exact, so their order is free: each form has the fastest that loses nothing.
package kernel

import (
	"fmt"
	"strings"

	"llmrun/internal/num"
)

//go:generate go -C asmgen run . amd64 ../kernel_amd64.s ../stubs_amd64.go
//go:generate go -C asmgen run . avx512 ../avx512_amd64.s ../stubs_avx512_amd64.go
//go:generate go -C asmgen run . arm64 ../kernel_arm64.s ../stubs_arm64.go

// lanes is the number of partial sums of every sum.
const lanes = 8

// How a call of dotRows or dotTile is part of a longer sum.
const (
	modeContinue = 1 << iota // the lanes start with what is in memory, not with +0
	modeLeave                // the lanes are put to memory, not summed to y
)

// All functions store theNaN for any NaN, but for lanes and exp.

// dotRowsFunc multiplies x by 4·n rows of weights: y[r·skip + i] = dot(w[r·far + i·near], x[:k]) for r < 4, i < n. near, far and skip
// are bytes. k is a multiple of 8. scale, for int8, has the layout of y; lanes holds 8 for each row, in the order [n, 4].
type dotRowsFunc func(w *byte, near, far int, scale, x *float32, k int, y *float32, skip, n int, lanes *float32, mode int)

// dotTileFunc multiplies rows of x by n times as many rows of weights as the tiler has: y[m·ldy + i] = dot(w[i·ldw], x[m·ldx]). The strides
// are bytes. k is a multiple of 8. lanes holds 8 for each sum, tile by tile. What lies ahead may be asked of memory meanwhile.
type dotTileFunc func(x *float32, ldx int, w *byte, ldw int, scale *float32, k int, y *float32, ldy, n int, lanes *float32, mode int, ahead *byte)

// tileInt8Func is a dotTileFunc for int8 by int8; k is a multiple of 16, and lanes are int32. wide is room for 4·k.
type tileInt8Func func(x *int8, ldx int, w *byte, ldw, k int, sum *int32, ld, n int, lanes *float32, mode int, wide *int16, ahead *byte)

// tiler multiplies so many rows of x by so many rows of weights at once.
type tiler struct {
	rows, weights int
	dot           [num.NumDTypes]dotTileFunc
	int8          tileInt8Func
}

// scoreKeysFunc multiplies the queries of one token by 4·n rows of keys: y[h·ldy + r·skip + 4·i] = dot(q[h·dim], k[row + h/group·dim]) · scale
// for h < heads·group, r < 4, i < n. A row has a key of dim elements, a multiple of 8, for each of the heads; row i begins gap bytes after
// the end of the one before it, and each four are far apart. gap, far, ldy and skip are bytes.
type scoreKeysFunc func(k *float32, gap, far int, q *float32, heads, group, dim int, scale float32, y *float32, ldy, skip, n int)

// weighFunc adds n rows of v, d floats of each, to count of the lanes of several weighted sums Σⱼ p[j]·v[j·ldv + i]. Row j belongs to lane j modulo 8;
// sum s has its weights from p[s·ldp] on, and its lanes from lanes[s·ldl] on, 8·d in the order [d/8, 8, 8]. n is a positive multiple of 8, d one of the
// columns that the function does at once. ldv, ldp and ldl are bytes, as is ahead: what lies so far after the values is asked of memory meanwhile, and
// need not exist.
type weighFunc func(v *float32, ldv int, p *float32, ldp, n int, lanes *float32, ldl, d, count, ahead int)

// endSumFunc adds the last n < 8 rows to one such sum, and then its lanes: y[i], for d of them, a positive multiple of 8.
type endSumFunc func(v *float32, ldv int, p *float32, n int, y *float32, d int, lanes *float32)

// weigher is a weighFunc with what it does at once.
type weigher struct {
	sums, columns int
	run           weighFunc
}

// readFunc reads four streams of n bytes, a positive multiple of 64, stride bytes apart.
type readFunc func(p *byte, stride, n int, sum *float32)

// fetchFunc reads 4·n rows of some bytes, both positive: those of four streams that are far apart, near after near. It changes no result.
type fetchFunc func(p *byte, near, far, n, bytes int)

// vectorFuncs compute element by element; n is a positive multiple of 8. Outputs may be inputs.
type vectorFuncs struct {
	add, mul      func(out, a, b *float32, n int)
	scale, divide func(out, a *float32, s float32, n int)
	normalize     func(out, x, w *float32, inv, offset float32, n int)      // (x·inv)·(offset+w)
	rotate        func(outA, outB, a, b, cos, sin *float32, n int)          // a·cos - b·sin, b·cos + a·sin
	largest       func(x *float32, n int, lanes *float32)                   // the maximum of each lane, or some NaN
	expSum        func(out, x *float32, top float32, n int, lanes *float32) // exp(x - top), and their sum in lanes
	silu          func(out, x *float32, n int)
	geluTanh      func(out, x *float32, n int)
	softCap       func(out, x *float32, bound float32, n int)
}

// Set is one form of the kernels.
type Set struct {
	Name      string
	dotRows   [num.NumDTypes]dotRowsFunc
	tilers    []tiler // the largest first
	int8      int8Funcs
	scoreKeys scoreKeysFunc
	endSum    endSumFunc
	weigh     []weigher // those of the most sums first; the last does one, eight columns
	read      readFunc
	fetch     fetchFunc
	vector    vectorFuncs
}

// Sets gives the forms that this machine can run, the plain one first and the fastest last.
func Sets() []*Set { return append([]*Set{generic}, machine()...) }

// Choose gives the set of that name, or for "" the fastest.
func Choose(name string) (*Set, error) {
	sets := Sets()
	var names []string
	for _, s := range sets {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	if name != "" {
		return nil, fmt.Errorf("this machine has no kernels %q, but %s", name, strings.Join(names, " and "))
	}
	return sets[len(sets)-1], nil
}
