// races.metal
#include <metal_stdlib>
using namespace metal;

kernel void other_simdgroup(device float *out [[buffer(0)]], threadgroup float *shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    shared[i] = float(i);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    float v = shared[i ^ 31];       // also
    threadgroup_barrier(mem_flags::mem_none);
    if (i >= 32) shared[i - 32] = v; // want data race in threadgroup memory (byte 120, shared[30]): write by thread [62 0 0] here, write by thread [30 0 0] in line 6 without a threadgroup_barrier(mem_flags::mem_threadgroup) between; threadgroup [0 0 0], thread [62 0 0], seed 0
    out[i] = v;
}
kernel void same_simdgroup(device float *out [[buffer(0)]], threadgroup float *shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    shared[i] = float(i);           // also
    float s = simd_sum(1.0f);
    out[i] = s + shared[i ^ 1];     // want data race in threadgroup memory (byte 120, shared[30]): read by thread [31 0 0] here, write by thread [30 0 0] in line ALSO without a simdgroup_barrier(mem_flags::mem_threadgroup) between
}
kernel void unordered(device float *out [[buffer(0)]], threadgroup float *shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]],
                      uint at [[thread_position_in_grid]]) {
    shared[i] = float(i);           // also
    out[at] = shared[i & ~1u];      // want data race in threadgroup memory (byte 0, shared[0]): read by thread [1 0 0] here, write by thread [0 0 0] in line ALSO without a simdgroup_barrier(mem_flags::mem_threadgroup) between
}
kernel void reused(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    threadgroup float sums[2];
    for (uint k = 0; k < 2; k++) {
        float s = simd_sum(float(i + k));
        if (i % 32 == 0) sums[i / 32] = s; // want data race in threadgroup memory
        threadgroup_barrier(mem_flags::mem_threadgroup);
        out[i] = sums[0] + sums[1]; // also
    }
}
kernel void two_write(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    threadgroup uint last[1];
    last[0] = i;                    // want data race in threadgroup memory (byte 0, last[0]): write by thread [1 0 0] here, write by thread [0 0 0] in line SAME
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = float(last[0]);
}
kernel void wrong_flags(device float *out [[buffer(0)]], threadgroup float *shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    shared[i] = float(i);           // also
    threadgroup_barrier(mem_flags::mem_device);
    out[i] = shared[63 - i];        // want data race in threadgroup memory (byte 0, shared[0]): read by thread [63 0 0] here, write by thread [0 0 0] in line ALSO without a threadgroup_barrier(mem_flags::mem_threadgroup) between
}
kernel void device_flags(device float *out [[buffer(0)]], uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]]) {
    out[i] = float(i);              // also
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float v = out[i ^ 1];           // want data race in device memory (out[62], buffer(0)): read by thread [63 0 0] here, write by thread [62 0 0] in line ALSO without a simdgroup_barrier(mem_flags::mem_device) between
    threadgroup_barrier(mem_flags::mem_device);
    out[i] = v + float(t);
}
kernel void two_groups(device float *out [[buffer(0)]], uint t [[thread_index_in_threadgroup]]) {
    out[t] = 1.0f;                  // want data race in device memory (out[0], buffer(0)): write by thread [0 0 0] here, write by thread [0 0 0] of threadgroup [0 0 0] in line SAME which nothing orders: the threadgroups of a dispatch run in any order; threadgroup [1 0 0], thread [0 0 0], seed 0
}
kernel void across_groups(device half *out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    half v = out[i / 64];           // want data race in device memory
    if (i % 64) return;
    out[i / 64 ^ 1] = v;            // also
}
kernel void half_atomic(device atomic_uint *out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    atomic_fetch_add_explicit(&out[0], i, memory_order_relaxed); // also
    if (i == 63) reinterpret_cast<device uint *>(out)[0] = 0; // want data race in device memory (out[0], buffer(0)): write by thread [63 0 0] here, read by thread [0 0 0] in line ALSO
}
kernel void some_lanes(device float *out [[buffer(0)]], threadgroup float *shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    shared[i] = 0.0f;
    if (i % 32 < 20) simdgroup_barrier(mem_flags::mem_threadgroup); // want simdgroup_barrier: lanes 0xfff00000 of the simdgroup do not reach it
    out[i] = shared[i];
}

// Nothing is wrong with these.
kernel void ordered(device float *out [[buffer(0)]], threadgroup float *shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]],
                    uint at [[thread_position_in_grid]]) {
    for (uint k = 0; k < 3; k++) {
        shared[i] = float(i + k);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        float v = shared[i ^ 7];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        v += shared[63 - i];
        threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
        out[at] = v;
        threadgroup_barrier(mem_flags::mem_device);
        v = out[at ^ 33];
        threadgroup_barrier(mem_flags::mem_device);
        out[at] = v;
    }
}
kernel void counted(device atomic_uint *out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    atomic_fetch_add_explicit(&out[0], i, memory_order_relaxed);
    if (atomic_load_explicit(&out[1], memory_order_relaxed) == 0) atomic_store_explicit(&out[1], 1u, memory_order_relaxed);
}
kernel void bytes(device uchar *out [[buffer(0)]], uint i [[thread_position_in_grid]]) { out[i] = uchar(i); }
kernel void narrow_bytes(device uint *out [[buffer(0)]], uint i [[thread_position_in_grid]]) { reinterpret_cast<device uchar *>(out)[i] = uchar(i); }
