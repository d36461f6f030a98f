package hostmetal

import (
	"strings"
	"testing"

	"llmrun/internal/num"
)

const simdSource = `// simd.metal
#include <metal_stdlib>
using namespace metal;

// One threadgroup sums n floats: simdgroups first, then their sums through threadgroup memory.
kernel void total(device float *out [[buffer(0)]], device const float *x [[buffer(1)]], constant uint &n [[buffer(2)]],
                  uint tid [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
                  uint simds [[simdgroups_per_threadgroup]]) {
    threadgroup float sums[32], tops[32];
    float sum = 0, top = -INFINITY;
    for (uint i = tid; i < n; i += threads) {
        sum += x[i];
        top = max(top, x[i]);
    }
    sum = simd_sum(sum);
    top = simd_max(top);
    if (lane == 0) {
        sums[simd] = sum;
        tops[simd] = top;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid == 0) {
        for (uint s = 1; s < simds; s++) {
            sum += sums[s];
            top = max(top, tops[s]);
        }
        out[0] = sum;
        out[1] = top;
    }
}

// Reverses a threadgroup through memory that the host sizes.
kernel void reverse(device uint *x [[buffer(0)]], threadgroup uint *s [[threadgroup(0)]],
                    uint tid [[thread_index_in_threadgroup]], uint n [[threads_per_threadgroup]],
                    uint i [[thread_position_in_grid]]) {
    s[tid] = x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    x[i] = s[n - 1 - tid];
}

kernel void lanes(device uint *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    uint v = lane * lane;
    uint r[12] = {simd_sum(v), simd_min(v), simd_max(v), simd_or(v), simd_shuffle(v, 31 - lane),
                  simd_shuffle_xor(v, 1), simd_broadcast(v, 5), simd_broadcast_first(v),
                  simd_prefix_inclusive_sum(v), simd_prefix_exclusive_sum(v),
                  simd_shuffle_down(v, 1), simd_shuffle_up(v, 2)};
    for (uint i = 0; i < 12; i++) out[12 * lane + i] = r[i];
}

kernel void vectors(device float4 *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    half h = simd_sum(half(lane));
    out[lane] = simd_sum(float4(lane, 1, -1.0f, float(h)));
}

kernel void some(device uint *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    if (lane >= 20) return;
    out[lane] = simd_sum(lane);
    if (lane < 7) out[lane] += simd_sum(1u);
}

kernel void poisoned(device uint *out [[buffer(0)]], threadgroup uint *s [[threadgroup(0)]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup half t[8];
    out[2 * tid] = s[tid];
    out[2 * tid + 1] = as_type<ushort>(t[tid]);
}

kernel void early(device float *y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    if (tid >= 40) return;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[tid] = 1;
}

kernel void branches(device float *y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    if (tid < 40) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        y[tid] = 1;
    } else {
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

kernel void mixed(device float *y [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    if (lane < 16) y[lane] = simd_sum(1.0f);
    else y[lane] = simd_max(2.0f);
}

kernel void absent(device float *y [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    y[lane] = simd_shuffle(1.0f, lane + 1);
}

kernel void huge(device float *y [[buffer(0)]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup float a[8193];
    a[tid] = 1;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[tid] = a[tid];
}

kernel void beyond(device float *y [[buffer(0)]], threadgroup float *s [[threadgroup(0)]], uint tid [[thread_index_in_threadgroup]]) {
    s[tid + 8192] = 1;
    y[tid] = 1;
}

// c = a*b + c for matrices of 16 rows and columns, b given transposed. One simdgroup for each tile of 8 by 8.
template <typename T>
[[kernel]] void tiles(device float *c [[buffer(0)]], device const T *a [[buffer(1)]], device const T *b [[buffer(2)]],
                      uint2 at [[threadgroup_position_in_grid]]) {
    simdgroup_matrix<T, 8, 8> ma, mb;
    simdgroup_float8x8 mc;
    ulong2 origin(8 * at.x, 8 * at.y);
    simdgroup_load(mc, c, 16, origin);
    for (uint k = 0; k < 16; k += 8) {
        simdgroup_load(ma, a, 16, ulong2(k, 8 * at.y));
        simdgroup_load(mb, b, 16, ulong2(k, 8 * at.x), true);
        simdgroup_multiply_accumulate(mc, ma, mb, mc);
    }
    simdgroup_store(mc, c, 16, origin);
}
template [[host_name("tiles_f32")]] [[kernel]] decltype(tiles<float>) tiles<float>;
template [[host_name("tiles_f16")]] [[kernel]] decltype(tiles<half>) tiles<half>;

kernel void positions(device uint *out [[buffer(0)]], uint3 at [[thread_position_in_grid]], uint3 grid [[threads_per_grid]],
                      uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
                      ushort3 in [[thread_position_in_threadgroup]], uint3 size [[threads_per_threadgroup]],
                      ushort index [[thread_index_in_threadgroup]]) {
    bool ok = all(at == group * uint3(4, 3, 2) + uint3(in)) && all(grid == uint3(10, 7, 3)) && all(groups == uint3(3, 3, 2)) &&
              index == in.x + size.x * (in.y + size.y * in.z) && size.x == min(4u, 10 - 4 * group.x);
    out[at.x + 10 * (at.y + 7 * at.z)] = ok ? 1 : 2;
}
`

func TestThreadgroupReduction(t *testing.T) {
	g := newGPU(t, simdSource, precise)
	for _, n := range []uint32{1, 31, 32, 33, 257, 5000} {
		x := make([]float32, n)
		sum, top := float32(0), float32(0)
		for i := range x {
			x[i] = float32(i*7919%1000 + 1) // integers: any order of adding them is exact
			sum += x[i]
			top = max(top, x[i])
		}
		in, out := buffer(g, x), buffer(g, []float32{0, 0})
		for _, threads := range []int{1, 32, 40, 256, 1024} {
			g.must(command{"total", line(threads), line(threads), 0, []any{out, in, n}})
			if v := contents[float32](out, 2); v[0] != sum || v[1] != top {
				t.Errorf("n %d, %d threads: sum %v, max %v; want %v %v", n, threads, v[0], v[1], sum, top)
			}
		}
	}
}

func TestThreadgroupMemory(t *testing.T) {
	g := newGPU(t, simdSource, precise)
	x := make([]uint32, 1000)
	for i := range x {
		x[i] = uint32(i)
	}
	b := buffer(g, x)
	g.must(command{"reverse", line(1000), line(128), 4 * 128, []any{b}})
	for i, v := range contents[uint32](b, 1000) {
		first, n := i/128*128, min(128, 1000-i/128*128) // the last threadgroup is smaller
		if want := uint32(first + n - 1 - (i - first)); v != want {
			t.Fatalf("x[%d] = %d, want %d", i, v, want)
		}
	}
	out := buffer(g, make([]uint32, 16))
	g.must(command{"reverse", line(64), line(64), 512, []any{b}}, command{"poisoned", line(8), line(8), 512, []any{out}})
	for i, v := range contents[uint32](out, 16) {
		if want := []uint32{0x7fff7fff, 0x7fff}[i%2]; v != want {
			t.Errorf("threadgroup memory starts as %#x, want the NaN %#x", v, want)
		}
	}
}

func TestSimdFunctions(t *testing.T) {
	g := newGPU(t, simdSource, precise)
	out := buffer(g, make([]uint32, 12*32))
	g.must(command{"lanes", line(32), line(32), 0, []any{out}})
	sq := func(i int) uint32 { return uint32(i * i) }
	var sum, or uint32
	for i := range 32 {
		sum, or = sum+sq(i), or|sq(i)
	}
	prefix := uint32(0)
	for i := range 32 {
		down, up := sq(i), sq(i)
		if i < 31 {
			down = sq(i + 1)
		}
		if i >= 2 {
			up = sq(i - 2)
		}
		want := [12]uint32{sum, 0, sq(31), or, sq(31 - i), sq(i ^ 1), 25, 0, prefix + sq(i), prefix, down, up}
		if got := [12]uint32(contents[uint32](out, 12*32)[12*i:]); got != want {
			t.Errorf("lane %d: %v, want %v", i, got, want)
		}
		prefix += sq(i)
	}
	v := buffer(g, make([][4]float32, 32))
	g.must(command{"vectors", line(32), line(32), 0, []any{v}})
	for i, got := range contents[[4]float32](v, 32) {
		if want := [4]float32{496, 32, -32, 496 * 32}; got != want {
			t.Errorf("lane %d: %v, want %v", i, got, want)
		}
	}
}

// Lanes that returned, or took the other branch, do not take part.
func TestActiveLanes(t *testing.T) {
	g := newGPU(t, simdSource, precise)
	out := buffer(g, make([]uint32, 32))
	g.must(command{"some", line(32), line(32), 0, []any{out}})
	for i, got := range contents[uint32](out, 32) {
		want := uint32(190)
		switch {
		case i >= 20:
			want = 0
		case i < 7:
			want += 7
		}
		if got != want {
			t.Errorf("lane %d: %d, want %d", i, got, want)
		}
	}
}

func TestSimdgroupMatrix(t *testing.T) {
	g := newGPU(t, simdSource, precise)
	a, b, c := make([]float32, 256), make([]float32, 256), make([]float32, 256)
	for i := range a {
		a[i], b[i], c[i] = float32(i%7), float32(i%5)-2, float32(i) // integers: all sums are exact
	}
	narrow := func(x []float32) (h []uint16) {
		for _, v := range x {
			h = append(h, num.Float32ToFloat16(v))
		}
		return h
	}
	for kernel, in := range map[string][2]id{"tiles_f32": {buffer(g, a), buffer(g, b)}, "tiles_f16": {buffer(g, narrow(a)), buffer(g, narrow(b))}} {
		out := buffer(g, c)
		g.must(command{kernel, size{64, 2, 1}, line(32), 0, []any{out, in[0], in[1]}})
		for i, got := range contents[float32](out, 256) {
			want := c[i]
			for k := range 16 {
				want += a[i/16*16+k] * b[i%16*16+k]
			}
			if got != want {
				t.Fatalf("%s: c[%d] = %v, want %v", kernel, i, got, want)
			}
		}
	}
}

func TestPositions(t *testing.T) {
	g := newGPU(t, simdSource, precise)
	out := buffer(g, make([]uint32, 210))
	g.must(command{"positions", size{10, 7, 3}, size{4, 3, 2}, 0, []any{out}})
	for i, v := range contents[uint32](out, 210) {
		if v != 1 {
			t.Fatalf("thread %d: %d", i, v)
		}
	}
}

func TestDivergence(t *testing.T) {
	g := newGPU(t, simdSource, precise)
	y := buffer(g, make([]float32, 1024))
	for kernel, want := range map[string]string{
		"early":    "threadgroup_barrier in line 70: 24 of 64 threads returned without reaching it",
		"branches": "threadgroup_barrier in line 79: other threads of the threadgroup wait at line 76",
		"mixed":    "simd_max in line 85: other lanes of the simdgroup are at simd_sum in line 84",
		"absent":   "simd_shuffle in line 89: reads a lane that is inactive or absent",
		"huge":     "threadgroup memory in line 93: exceeds 32768 bytes",
		"beyond":   "access to byte 32768 of threadgroup memory, which has 32768 bytes",
	} {
		got := g.run(command{kernel, line(64), line(64), 16, []any{y}})
		if !strings.Contains(got, "kernel "+kernel+" (simd.metal:") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", kernel, got, want)
		}
	}
}
