package hostmetal

import "testing"

const saxpy = `// saxpy.metal
#include <metal_stdlib>
using namespace metal;

struct Args { uint n; float a; };

kernel void saxpy(device float *y [[buffer(0)]], device const float *x [[buffer(1)]],
                  constant Args &args [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    if (i < args.n) y[i] += args.a * x[i];
}
`

func TestElementwise(t *testing.T) {
	g := newGPU(t, saxpy, precise)
	const n = 1000
	x, y := make([]float32, n), make([]float32, n)
	for i := range x {
		x[i], y[i] = float32(i), 1
	}
	bx, by := buffer(g, x), buffer(g, y)
	g.must(command{"saxpy", line(n), line(64), 0, []any{by, bx, []uint32{n, 0x40000000}}}) // a = 2
	for i, v := range contents[float32](by, n) {
		if v != 1+2*float32(i) {
			t.Fatalf("y[%d] = %v", i, v)
		}
	}
}
