// matrices.metal
#include <metal_stdlib>
using namespace metal;

// A simdgroup loads and stores a matrix as one: which lane has which element is nobody's business.
kernel void tile_stored(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]]) {
    threadgroup float tile[128];
    simdgroup_float8x8 m(2.0f);
    simdgroup_store(m, tile + i / 32 * 64, 8); // also
    out[group * 64 + i] = tile[i / 32 * 64 + i % 32]; // want data race in threadgroup memory (byte 0, tile[0]): read by thread [0 0 0] here, write by simdgroup 0 in line ALSO without a simdgroup_barrier(mem_flags::mem_threadgroup) between
}
kernel void tile_reused(device float *out [[buffer(0)]], threadgroup float *tile [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    simdgroup_float8x8 m, sum(0.0f);
    for (uint k = 0; k < 2; k++) {
        tile[i] = float(i + k);     // also
        threadgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_load(m, tile, 8); // want data race in threadgroup memory (byte 252, tile[63]): read by simdgroup 0 here, write by thread [63 0 0] in line ALSO without a threadgroup_barrier(mem_flags::mem_threadgroup) between
        simdgroup_multiply_accumulate(sum, m, m, sum);
    }
    if (i < 32) simdgroup_store(sum, out, 8);
}
kernel void matrix_past(device half *out [[buffer(0)]], device const half *x [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    simdgroup_half8x8 m;
    simdgroup_load(m, x, 20);       // want at x[140], buffer(1), which has 128 elements (256 bytes)
    if (i < 32) simdgroup_store(m, out, 8);
}

// Nothing is wrong with these.
kernel void product(device float *out [[buffer(0)]], device const float *x [[buffer(1)]], threadgroup float *tile [[threadgroup(0)]],
                    uint i [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]]) {
    simdgroup_float8x8 a, b, sum(0.0f);
    for (uint k = 0; k < 2; k++) {
        tile[i] = x[i + 64 * k];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_load(a, tile, 8);
        simdgroup_load(b, tile, 8, ulong2(0), true);
        simdgroup_multiply_accumulate(sum, a, b, sum);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    simdgroup_store(sum, tile + i / 32 * 64, 8);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    out[group * 64 + i] = tile[i / 32 * 64 + i % 32];
}
