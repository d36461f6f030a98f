// uninitialised.metal
#include <metal_stdlib>
using namespace metal;

kernel void accumulates(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    threadgroup float sums[64];
    sums[i] += 1.0f;                // want uninitialised read of threadgroup memory (byte 0, sums[0]): no thread of the threadgroup has written it; threadgroup [0 0 0], thread [0 0 0], seed 0
    out[i] = sums[i];
}
kernel void half_written(device float *out [[buffer(0)]], threadgroup half *shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    shared[2 * i] = 1.0h;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = float(reinterpret_cast<threadgroup half2 *>(shared)[i].x);
    out[i] += float(shared[2 * i + 1]); // want uninitialised read of threadgroup memory (byte 254, shared[127])
}
kernel void of_another_group(device float *out [[buffer(0)]], threadgroup float *shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]],
                             uint group [[threadgroup_position_in_grid]]) {
    if (group == 0) shared[i] = 1.0f;
    out[i + 64 * group] = shared[i]; // want uninitialised read of threadgroup memory (byte 0, shared[0]): no thread of the threadgroup has written it; threadgroup [1 0 0]
}

// Nothing is wrong with these.
kernel void written(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]], uint at [[thread_position_in_grid]]) {
    threadgroup float sums[64];
    sums[i] = 0.0f;
    sums[i] += 1.0f;
    out[at] = sums[i];
}
kernel void cleared(device float *out [[buffer(0)]], threadgroup float *shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]],
                    uint at [[thread_position_in_grid]]) {
    threadgroup float sums[64];
    if (i == 0) {
        for (uint k = 0; k < 128; k++) shared[k] = 0.0f;
        for (uint k = 0; k < 64; k++) sums[k] = shared[k + 64];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[at] = sums[i] + shared[127 - i];
}
