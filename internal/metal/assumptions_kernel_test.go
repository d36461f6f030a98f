package metal

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"llmrun/internal/num"
)

// TestAssumeRaggedGrids: dispatchThreads runs each thread of the grid once and no other, where threadgroups do not divide it, and tells
// each of them its place.
func TestAssumeRaggedGrids(t *testing.T) {
	const pitch, width, height, depth, group = 512, 300, 3, 2, 256
	l := newLab(t)
	l.kernels(`kernel void place(device uint *x [[buffer(0)]], constant uint &pitch [[buffer(1)]], uint3 at [[thread_position_in_grid]],
                  uint3 grid [[threads_per_grid]], uint3 in [[thread_position_in_threadgroup]],
                  uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]]) {
    bool right = grid.x == 300 && grid.y == 3 && grid.z == 2 && groups.x == 2 && groups.y == 3 && groups.z == 2 &&
        group.x * 256 + in.x == at.x && group.y == at.y && group.z == at.z && in.y == 0 && in.z == 0;
    x[(at.z * 3 + at.y) * pitch + at.x] += right ? 1 : 1000;
}`, "place")
	x := l.words(make([]uint32, pitch*height*depth))
	l.run("place", size{width, height, depth}, size{group, 1, 1}, pitch, x)
	l.want("runs", x, func(i int) uint32 {
		if i%pitch < width {
			return 1
		}
		return 0
	})
}

// TestAssumeSimdgroups: a simdgroup is 32 threads that follow each other in a threadgroup.
func TestAssumeSimdgroups(t *testing.T) {
	l := newLab(t)
	l.kernels(`kernel void lanes(device uint *x [[buffer(0)]], constant uint &n [[buffer(1)]], uint2 at [[thread_position_in_grid]],
                  uint width [[threads_per_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]]) {
    x[at.y * n + at.x] = width * 10000 + simd * 100 + lane;
}`, "lanes")
	x := l.words(make([]uint32, 2*256))
	l.run("lanes", size{256, 2, 1}, size{128, 1, 1}, 256, x)
	l.want("width, simdgroup and lane", x, func(i int) uint32 { return uint32(320000 + i%128/32*100 + i%32) })
}

// TestAssumeSimdgroupMayLeave: simdgroups may return before others of their threadgroup meet at a simdgroup_barrier, which orders what
// the lanes of one write to threadgroup memory and read there.
func TestAssumeSimdgroupMayLeave(t *testing.T) {
	const groups = 200
	l := newLab(t)
	l.kernels(`kernel void pass_on(device uint *x [[buffer(0)]], constant uint &rounds [[buffer(1)]], uint at [[thread_position_in_grid]],
                    uint simd [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint shared[128];
    if (simd % 2 == 0) return;
    threadgroup uint *mine = shared + simd * 32;
    uint v = at;
    for (uint i = 0; i < rounds; i++) {
        mine[lane] = v;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        v = mine[(lane + 1) % 32] + 1;
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    x[at] = v;
}`, "pass_on")
	x := l.words(make([]uint32, groups*128))
	l.run("pass_on", size{groups * 128, 1, 1}, size{128, 1, 1}, 40, x)
	l.want("passed on 40 times", x, func(i int) uint32 {
		if i/32%2 == 0 {
			return 0
		}
		return uint32(i/32*32 + (i+40)%32 + 40)
	})
}

// TestAssumeReductions: simd_sum and simd_max take in all 32 lanes, of vectors by component, give all of them the same bits, and err no more
// than 31 additions in some order do: at most 31·2⁻²⁴·Σ|x|, one more for this test's own sum.
func TestAssumeReductions(t *testing.T) {
	const n = 32 * 500
	l := newLab(t)
	l.kernels(`kernel void reduce(device float *sum [[buffer(0)]], device float *top [[buffer(1)]], device const float *x [[buffer(2)]],
                   constant uint &n [[buffer(3)]], uint i [[thread_position_in_grid]]) {
    sum[i] = simd_sum(x[i]);
    float one = simd_max(x[i]), four = simd_max(float4(-x[i], x[i], 0.0f, 1.0f)).y;
    top[i] = one == four ? one : NAN;
}`, "reduce")
	r := rand.New(rand.NewPCG(7, 1))
	values := make([]uint32, n)
	for i := range values {
		v := float32(r.NormFloat64() * math.Exp(4*r.NormFloat64()))
		if i < n/2 { // whole numbers: every order has the same sum
			v = float32(r.IntN(2001) - 1000)
		}
		values[i] = math.Float32bits(v)
	}
	sum, top, x := l.words(make([]uint32, n)), l.words(make([]uint32, n)), l.words(values)
	l.run("reduce", size{n, 1, 1}, size{128, 1, 1}, n, sum, top, x)
	sums, tops := l.read(sum), l.read(top)
	for g := 0; g < n; g += 32 {
		want, size, most := 0.0, 0.0, math.Inf(-1)
		for _, bits := range values[g : g+32] {
			v := float64(math.Float32frombits(bits))
			want, size, most = want+v, size+math.Abs(v), max(most, v)
		}
		bound := 32 * 0x1p-24 * size
		if g < n/2 {
			bound = 0
		}
		for i := g; i < g+32; i++ {
			if got := float64(math.Float32frombits(sums[i])); sums[i] != sums[g] || !(math.Abs(got-want) <= bound) {
				t.Fatalf("lane %d of simdgroup %d: the sum is %v, in lane 0 %v, want %v ± %.3g", i%32, g/32, got, math.Float32frombits(sums[g]), want, bound)
			}
			if got := float64(math.Float32frombits(tops[i])); got != most {
				t.Fatalf("lane %d of simdgroup %d: the maximum is %v, want %v", i%32, g/32, got, most)
			}
		}
	}
}

// TestAssumeOrder: in one serial encoder each dispatch sees all that those before it wrote, whichever thread wrote it.
func TestAssumeOrder(t *testing.T) {
	const n, rounds = 1 << 15, 64
	l := newLab(t)
	l.kernels(`kernel void mirror(device uint *out [[buffer(0)]], device const uint *x [[buffer(1)]], constant uint &n [[buffer(2)]],
                   uint i [[thread_position_in_grid]]) {
    out[i] = x[n - 1 - i] * 3 + i;
}`, "mirror")
	a, b := l.words(make([]uint32, n)), l.words(make([]uint32, n))
	x, y := l.b.typed(a, num.Int32), l.b.typed(b, num.Int32)
	for range rounds {
		l.queue("mirror", size{n, 1, 1}, size{256, 1, 1}, n, y, x)
		l.queue("mirror", size{n, 1, 1}, size{256, 1, 1}, n, x, y)
	}
	l.sync()
	want, next := make([]uint32, n), make([]uint32, n)
	for range 2 * rounds {
		for i := range want {
			next[i] = want[n-1-i]*3 + uint32(i)
		}
		want, next = next, want
	}
	l.want(fmt.Sprint(2*rounds, " dispatches"), a, func(i int) uint32 { return want[i] })
}

// TestAssumeOffsets: a buffer may be bound from any multiple of its element's size on.
func TestAssumeOffsets(t *testing.T) {
	l := newLab(t)
	l.kernels(`kernel void offsets(device uint *out [[buffer(0)]], device const half *h [[buffer(1)]], device const float *f [[buffer(2)]],
                    device const char *c [[buffer(3)]], device const int *n [[buffer(4)]], constant uint &count [[buffer(5)]],
                    uint i [[thread_position_in_grid]]) {
    out[i] = uint(h[i]) + uint(f[i]) * 100 + uint(c[i]) * 10000 + uint(n[i]) * 1000000;
}`, "offsets")
	const n, count = 40, 16
	var slots []slot
	out := l.words(make([]uint32, count))
	h, f, c, w := l.buffer(num.Float16, n), l.buffer(num.Float32, n), l.buffer(num.Int8, n), l.words(make([]uint32, n))
	for i := range n {
		num.PutFloat32(num.Float16, l.host(h), i, float32(i))
		num.PutFloat32(num.Float32, l.host(f), i, float32(i))
		l.host(c)[i], l.host(w)[4*i] = byte(i), byte(i)
	}
	for first := range n - count {
		slots = append(slots[:0], l.b.typed(out, num.Int32), at(l.b.typed(h, num.Float16), num.Float16, first), at(l.b.typed(f, num.Float32), num.Float32, first),
			at(l.b.typed(c, num.Int8), num.Int8, first), at(l.b.typed(w, num.Int32), num.Int32, first))
		l.queue("offsets", size{count, 1, 1}, size{count, 1, 1}, count, slots...)
		l.sync()
		l.want(fmt.Sprint("from element ", first), out, func(i int) uint32 { return uint32(first+i) * 1010101 })
	}
}

// TestAssumeVectorLoads: buffers begin where vectors of four may be loaded, whatever their length, and so do weights in a chunk.
func TestAssumeVectorLoads(t *testing.T) {
	l := newLab(t)
	l.kernels(`kernel void vectors(device uint4 *out [[buffer(0)]], device const half4 *h [[buffer(1)]], device const float4 *f [[buffer(2)]],
                    device const char4 *c [[buffer(3)]], device const ushort4 *s [[buffer(4)]], constant uint &n [[buffer(5)]],
                    uint i [[thread_position_in_grid]]) {
    out[i] = uint4(h[i]) + uint4(f[i]) * 100u + uint4(c[i]) * 10000u + uint4(s[i]) * 1000000u;
}`, "vectors")
	for _, n := range []int{4, 12, 20, 68} {
		out := l.words(make([]uint32, n))
		h, f, c, s := l.buffer(num.Float16, n+1), l.buffer(num.Float32, n+1), l.buffer(num.Int8, n+1), l.buffer(num.BFloat16, n+1)
		for i := range n {
			num.PutFloat32(num.Float16, l.host(h), i, float32(i))
			num.PutFloat32(num.Float32, l.host(f), i, float32(i))
			l.host(c)[i], l.host(s)[2*i] = byte(i), byte(i)
		}
		l.run("vectors", size{uint(n / 4), 1, 1}, size{uint(n / 4), 1, 1}, 0, out, h, f, c, s)
		l.want(fmt.Sprint(n, " elements"), out, func(i int) uint32 { return uint32(i) * 1010101 })
	}
}

// TestAssumePackedLoads: packed vectors of four may lie at any multiple of their elements' size.
func TestAssumePackedLoads(t *testing.T) {
	l := newLab(t)
	l.kernels(`kernel void packed(device uint4 *out [[buffer(0)]], device const half *h [[buffer(1)]], device const float *f [[buffer(2)]],
                    device const char *c [[buffer(3)]], device const ushort *s [[buffer(4)]], constant uint &from [[buffer(5)]],
                    uint i [[thread_position_in_grid]]) {
    uint k = 4 * i + from;
    half4 hk = half4(*reinterpret_cast<device const packed_half4 *>(h + k));
    float4 fk = float4(*reinterpret_cast<device const packed_float4 *>(f + k));
    char4 ck = char4(*reinterpret_cast<device const packed_char4 *>(c + k));
    ushort4 sk = ushort4(*reinterpret_cast<device const packed_ushort4 *>(s + k));
    out[i] = uint4(hk) + uint4(fk) * 100u + uint4(ck) * 10000u + uint4(sk) * 1000000u;
}`, "packed")
	const n = 16
	h, f, c, s := l.buffer(num.Float16, n+3), l.buffer(num.Float32, n+3), l.buffer(num.Int8, n+3), l.buffer(num.BFloat16, n+3)
	for i := range n + 3 {
		num.PutFloat32(num.Float16, l.host(h), i, float32(i))
		num.PutFloat32(num.Float32, l.host(f), i, float32(i))
		l.host(c)[i], l.host(s)[2*i] = byte(i), byte(i)
	}
	for from := range uint32(4) {
		out := l.words(make([]uint32, n))
		l.run("packed", size{n / 4, 1, 1}, size{n / 4, 1, 1}, from, out, h, f, c, s)
		l.want(fmt.Sprint("from element ", from), out, func(i int) uint32 { return (uint32(i) + from) * 1010101 })
	}
}

// TestAssumeMatrices: matrices are loaded from rows of any width in threadgroup memory and stored there, transposed if asked, and halves add up
// in a float matrix exactly.
func TestAssumeMatrices(t *testing.T) {
	l := newLab(t)
	l.kernels(`kernel void matrices(device uint *out [[buffer(0)]], constant uint &first [[buffer(1)]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup half tiles[16 * 40];
    threadgroup float sums[8 * 12];
    for (uint i = lane; i < 128; i += 32) tiles[i / 8 * 40 + i % 8] = half(first + i);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_half8x8 a, b;
    simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    simdgroup_load(a, tiles, 40);
    simdgroup_load(b, tiles + 8 * 40, 40, ulong2(0), true);
    simdgroup_multiply_accumulate(sum, a, b, sum);
    simdgroup_multiply_accumulate(sum, a, b, sum);
    simdgroup_store(sum, sums, 12, ulong2(0), true);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = lane; i < 64; i += 32) out[i] = uint(sums[i / 8 * 12 + i % 8]);
}`, "matrices")
	const first = 100 // sums reach 2*8*163*227, which 20 bits hold: more than a half has, fewer than a float
	out := l.words(make([]uint32, 64))
	l.run("matrices", simdgroup, simdgroup, uint32(first), out)
	l.want("sums", out, func(i int) (sum uint32) {
		for k := range 8 {
			sum += 2 * uint32(first+i%8*8+k) * uint32(first+64+i/8*8+k)
		}
		return sum
	})
}

// TestAssumeUnreadArguments: an argument that the kernel does not read may be bound to a buffer of another type, from where one element of its own
// has room: less than that, Metal's validation refuses.
func TestAssumeUnreadArguments(t *testing.T) {
	l := newLab(t)
	l.kernels(`kernel void ignore(device uint *out [[buffer(0)]], device const float *unread [[buffer(1)]], constant uint &read [[buffer(2)]],
                   uint i [[thread_position_in_grid]]) {
    out[i] = read != 0 ? uint(unread[i]) : 5;
}`, "ignore")
	out := l.words(make([]uint32, 4))
	l.run("ignore", size{4, 1, 1}, size{4, 1, 1}, 0, out, l.buffer(num.Float16, 2))
	l.want("unread", out, func(int) uint32 { return 5 })
}

// TestAssumeIntegers: char is signed, uint is 32 bits and wraps, ulong is 64 bits, conversions from float cut off.
func TestAssumeIntegers(t *testing.T) {
	l := newLab(t)
	l.kernels(`kernel void integers(device uint *out [[buffer(0)]], device const char *c [[buffer(1)]], constant uint &n [[buffer(2)]],
                     uint i [[thread_position_in_grid]]) {
    ulong wide = ulong(n) * 5u + 2;
    int odd = int(n & 0x1000003u) + int(c[1]);
    float tie = float(c[2]) * 0.5f;
    uint all[10] = {uint(int(c[0])), uint(wide >> 32), uint(wide), n * 5u, uint(2.9f), uint(int(-2.9f)),
                    uint(float(odd)), uint(float(odd + 2)), uint(rint(tie)), uint(rint(tie + 1.0f))};
    out[i] = all[i];
}`, "integers")
	out, c := l.words(make([]uint32, 10)), l.buffer(num.Int8, 4)
	copy(l.host(c), []byte{0x80, 0, 5})
	const n = uint32(0xf1000001) // of which odd is 2²⁴+1
	l.run("integers", size{10, 1, 1}, size{10, 1, 1}, n, out, c)
	wide := uint64(n)*5 + 2
	want := []uint32{0xffffff80, uint32(wide >> 32), uint32(wide), uint32(wide) - 2, 2, 0xfffffffe, 1 << 24, 1<<24 + 4, 2, 4}
	l.want("integers", out, func(i int) uint32 { return want[i] })
}
