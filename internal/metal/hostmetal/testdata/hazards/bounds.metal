// bounds.metal
#include <metal_stdlib>
using namespace metal;

struct Pair { float a, b; };
constant float table[4] = {1.0f, 2.0f, 3.0f, 4.0f};

kernel void load_past(device float *out [[buffer(0)]], device const float *x [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    out[i] = x[i + 1];              // want invalid device load of 4 bytes at x[128], buffer(1), which has 128 elements (512 bytes); threadgroup [1 0 0], thread [63 0 0], seed 0
}
kernel void load_before(device float *out [[buffer(0)]], device const float *x [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    device const float *before = x - 1;
    out[i] = before[i];             // want invalid device load of 4 bytes at x[-1], buffer(1), which has 128 elements (512 bytes); threadgroup [0 0 0], thread [0 0 0], seed 0
}
kernel void store_past(device half *out [[buffer(0)]], uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    out[i + simd_max(lane) * 4 + 5] = 1.0h; // want invalid device store of 2 bytes at out[160], buffer(0), which has 128 elements (256 bytes)
}
kernel void vector_past(device float *out [[buffer(0)]], device const float *x [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    float4 v = *reinterpret_cast<device const float4 *>(x + (i & ~3u) + 4); // want at x[128], buffer(1), which has 128 elements
    out[i] = v.x + v.w;
}
kernel void struct_past(device float *out [[buffer(0)]], device const Pair *x [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    out[i] = x[i + 2].b;            // want invalid device load of 4 bytes at x[128], buffer(1), which has 128 elements (1024 bytes)
}
kernel void offset_before(device float *out [[buffer(0)]], device const uchar *x [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    out[i] = float(x[int(i) - 7]);  // want invalid device load of 1 bytes at x[-7], buffer(1), which has 128 elements (128 bytes)
}
kernel void far(device float *out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    out[i + 100000000000ul] = 1.0f; // want far from every bound buffer
}
kernel void store_const(device float *out [[buffer(0)]], device const float *x [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    out[i] = 0.0f;
    const_cast<device float *>(x)[i] = 1.0f; // want invalid device store of 4 bytes at x[0], buffer(1): the kernel takes it as const
}
kernel void store_constant(device float *out [[buffer(0)]], constant float *x [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    out[i] = 0.0f;
    *const_cast<device float *>(x + i) = 1.0f; // want invalid device store of 4 bytes at x[0], buffer(1): the kernel takes it as constant
}
kernel void tile_past(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    threadgroup float tile[60], other[64];
    other[i] = 0.0f;
    tile[i] = 1.0f;                 // want index 60 out of the bounds of 'float
    out[i] = tile[i] + other[i];
}
kernel void shared_past(device float *out [[buffer(0)]], threadgroup float *shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    threadgroup float4 other[4];
    threadgroup float *beyond = reinterpret_cast<threadgroup float *>(other);
    shared[2 * i] = 0.0f;
    beyond[i] = 1.0f;               // want invalid threadgroup store of 4 bytes at other[4], which has 4 elements (64 bytes); threadgroup [0 0 0], thread [16 0 0], seed 0
    out[i] = beyond[i] + shared[2 * i];
}
kernel void argument_past(device float *out [[buffer(0)]], threadgroup float *shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    shared[2 * i + 2] = 0.0f;       // want invalid threadgroup store of 4 bytes at shared[128], which has 128 elements (512 bytes)
    out[i] = 0.0f;
}
kernel void array_past(device float *out [[buffer(0)]], device const float *x [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    float own[8];
    for (uint k = 0; k < 8; k++) own[k] = x[k];
    out[i] = own[i];                // want index 8 out of the bounds of 'float
}
kernel void table_past(device float *out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    out[i] = table[i];              // want index 4 out of the bounds of '
}
struct Block { float a[40]; };
kernel void copies_past(device Pair *out [[buffer(0)]], device const Pair *x [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    device const Block *blocks = reinterpret_cast<device const Block *>(x);
    Block b = blocks[i / 16];       // want invalid device load of
    out[i].a = b.a[i % 40];
}
kernel void clears_past(device float *out [[buffer(0)]], constant uint &n [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    if (i == 0)
        for (uint k = 0; k < 129 + n; k++) out[k] = 0.0f; // want invalid device store of
}
kernel void unaligned(device float *out [[buffer(0)]], device const float *x [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    float4 v = *reinterpret_cast<device const float4 *>(x + (i & ~3u) % 120 + 1); // want misaligned access to
    out[i] = v.x + v.w;
}
kernel void unaligned_half(device half *out [[buffer(0)]], device const half *x [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    device const half2 *pairs = reinterpret_cast<device const half2 *>(x + 1);
    out[i] = half(pairs[i / 4].y);  // want misaligned access to
}
kernel void divides(device int *out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    out[i] = 7 % (int(i) - 5);      // want integer division by zero
}

// Nothing is wrong with these.
kernel void to_the_last(device float *out [[buffer(0)]], device const half4 *x [[buffer(1)]], constant Pair &p [[buffer(2)]], constant float *q [[buffer(3)]],
                        threadgroup float *shared [[threadgroup(0)]], uint i [[thread_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup float4 tile[64];
    tile[tid] = float4(x[i]) + p.b + table[i % 4];
    shared[127 - tid] = q[127 - i];
    out[i] = tile[tid].w + shared[127 - tid];
}
