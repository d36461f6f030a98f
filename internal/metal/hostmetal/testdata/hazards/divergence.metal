// divergence.metal
#include <metal_stdlib>
using namespace metal;

kernel void early_return(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]], uint at [[thread_position_in_grid]]) {
    float s = simd_sum(1.0f);
    if (i >= 40) return;
    threadgroup_barrier(mem_flags::mem_threadgroup); // want threadgroup_barrier in line SAME: 24 of 64 threads returned without reaching it
    out[at] = s;
}
kernel void two_barriers(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]], uint at [[thread_position_in_grid]]) {
    if (i < 40) threadgroup_barrier(mem_flags::mem_none); // also
    else threadgroup_barrier(mem_flags::mem_none);        // want threadgroup_barrier in line SAME: other threads of the threadgroup wait at line ALSO
    out[at] = 1.0f;
}
kernel void two_functions(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]], uint at [[thread_position_in_grid]]) {
    if (i % 32 < 16) out[at] = simd_sum(1.0f); // also
    else out[at] = simd_max(2.0f);             // want simd_max in line SAME: other lanes of the simdgroup are at simd_sum in line ALSO
}
kernel void absent_lane(device float *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]], uint at [[thread_position_in_grid]]) {
    out[at] = simd_shuffle(1.0f, ushort(lane + 1)); // want simd_shuffle in line SAME: reads a lane that is inactive or absent
}
kernel void too_much(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]], uint at [[thread_position_in_grid]]) {
    threadgroup float most[8192];
    threadgroup float more[1];                 // want threadgroup memory exceeds 32768 bytes with more
    most[i] = more[0] = 1.0f;
    out[at] = most[i];
}

// Nothing is wrong with this.
kernel void some_return(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]], uint at [[thread_position_in_grid]]) {
    if (i >= 32) return;
    simdgroup_barrier(mem_flags::mem_none);
    if (i < 20) out[at] = simd_sum(1.0f);
}
