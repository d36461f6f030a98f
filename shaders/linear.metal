// linear.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "widen.h"

struct LinearArgs { uint rows, cols, tokens, hasBias; };

// Elements k to k+3 of a row of n, 0 from n on. Only rows of whole vectors are aligned for vector loads.
template <typename E>
inline float4 load(device const E *row, uint k, uint n) {
    if (n % 4 == 0) return widen(reinterpret_cast<device const vec<E, 4> *>(row)[k / 4]);
    return float4(widen(row[k]), k + 1 < n ? widen(row[k + 1]) : 0.0f, k + 2 < n ? widen(row[k + 2]) : 0.0f,
                  k + 3 < n ? widen(row[k + 3]) : 0.0f);
}

// Only int8 weights have a scale for each row. A weight is q * scale rounded to float, as engine.Matrix says.
template <typename W>
inline float4 scales(device const W *, device const float *, uint4) { return float4(1.0f); }
inline float4 scales(device const char *, device const float *scale, uint4 row) {
    return float4(scale[row.x], scale[row.y], scale[row.z], scale[row.w]);
}
template <typename W>
inline float4 scaled(device const W *, float4 wk, float) { return wk; }
inline float4 scaled(device const char *, float4 wk, float s) { return wk * s; }

inline float across(float4 v) { return (v.x + v.y) + (v.z + v.w); }

// Four rows of a weight: four elements of each, or four partial sums of each.
struct Rows { float4 a, b, c, d; };

template <typename W>
inline Rows load_rows(device const W *w, uint4 row, float4 scale, uint k, uint cols) {
    return {scaled(w, load(w + ulong(row.x) * cols, k, cols), scale.x), scaled(w, load(w + ulong(row.y) * cols, k, cols), scale.y),
            scaled(w, load(w + ulong(row.z) * cols, k, cols), scale.z), scaled(w, load(w + ulong(row.w) * cols, k, cols), scale.w)};
}

inline void multiply_add(thread Rows &sum, Rows w, float4 x) {
    sum.a = fma(w.a, x, sum.a);
    sum.b = fma(w.b, x, sum.b);
    sum.c = fma(w.c, x, sum.c);
    sum.d = fma(w.d, x, sum.d);
}

// A lane's sums of four results, results 36 floats apart.
inline void put(threadgroup float *to, Rows sum) {
    to[0] = across(sum.a);
    to[36] = across(sum.b);
    to[72] = across(sum.c);
    to[108] = across(sum.d);
}

// out[t,n] = sum over k of x[t,k] * w[n,k], plus bias[n]. A simdgroup computes 16 results: 16 rows n for one token, or
// 4 rows for TOKENS = 4 of them. Past the end it computes the last row or token again and stores nothing. Lane l adds up
// k = 4l..4l+3, 4l+128.. in four partial sums; then a lane for each result adds up what the 32 lanes have, in their order.
// No part of this order depends on the number of tokens: a row gives the same bits in any batch.
// A weight without scale, and a call without hasBias, binds scale or bias to w and does not read it.
template <typename T, typename W, uint TOKENS>
[[kernel]] void linear(device T *out [[buffer(0)]], device const T *x [[buffer(1)]],
                       device const W *w [[buffer(2)]], device const float *scale [[buffer(3)]],
                       device const float *bias [[buffer(4)]], constant LinearArgs &args [[buffer(5)]],
                       uint2 group [[threadgroup_position_in_grid]],
                       uint simd [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float4 partial[4 * 16 * 9]; // by simdgroup, result and lane; 9 rather than 8, to spread the memory's banks
    uint n = (group.x * 4 + simd) * (16 / TOKENS), t = group.y * TOKENS, cols = args.cols;
    if (n >= args.rows) return;
    // Tile i of four results is rows n+4i.. for token t, or rows n.. for token t+i.
    uint4 row0 = min(uint4(n, n + 1, n + 2, n + 3), uint4(args.rows - 1)), row1 = row0, row2 = row0, row3 = row0;
    uint t1 = min(t + 1, args.tokens - 1), t2 = min(t + 2, args.tokens - 1), t3 = min(t + 3, args.tokens - 1);
    if (TOKENS == 1) {
        row1 = min(row0 + 4u, uint4(args.rows - 1));
        row2 = min(row0 + 8u, uint4(args.rows - 1));
        row3 = min(row0 + 12u, uint4(args.rows - 1));
    }
    float4 s0 = scales(w, scale, row0), s1 = scales(w, scale, row1), s2 = scales(w, scale, row2), s3 = scales(w, scale, row3);
    device const T *x0 = x + ulong(t) * cols;
    Rows zero = {float4(0.0f), float4(0.0f), float4(0.0f), float4(0.0f)};
    Rows sum0 = zero, sum1 = zero, sum2 = zero, sum3 = zero;
    for (uint k = 4 * lane; k < cols; k += 128) {
        Rows w0 = load_rows(w, row0, s0, k, cols);
        float4 x0k = load(x0, k, cols);
        multiply_add(sum0, w0, x0k);
        if (TOKENS == 1) {
            multiply_add(sum1, load_rows(w, row1, s1, k, cols), x0k);
            multiply_add(sum2, load_rows(w, row2, s2, k, cols), x0k);
            multiply_add(sum3, load_rows(w, row3, s3, k, cols), x0k);
        } else {
            multiply_add(sum1, w0, load(x + ulong(t1) * cols, k, cols));
            multiply_add(sum2, w0, load(x + ulong(t2) * cols, k, cols));
            multiply_add(sum3, w0, load(x + ulong(t3) * cols, k, cols));
        }
    }
    threadgroup float4 *mine = partial + simd * 16 * 9;
    threadgroup float *lanes = reinterpret_cast<threadgroup float *>(mine) + lane;
    put(lanes, sum0);
    put(lanes + 4 * 36, sum1);
    put(lanes + 8 * 36, sum2);
    put(lanes + 12 * 36, sum3);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    uint row = n + lane % (16 / TOKENS), token = t + lane / (16 / TOKENS);
    if (lane < 16 && row < args.rows && token < args.tokens) {
        float4 v = mine[lane * 9];
        for (uint i = 1; i < 8; i++) v += mine[lane * 9 + i];
        out[ulong(token) * args.rows + row] = T(args.hasBias != 0 ? across(v) + bias[row] : across(v));
    }
}

template [[host_name("linear_f32_f32")]] [[kernel]] decltype(linear<float, float, 1>) linear<float, float, 1>;
template [[host_name("linear_f32_f16")]] [[kernel]] decltype(linear<float, half, 1>) linear<float, half, 1>;
template [[host_name("linear_f32_bf16")]] [[kernel]] decltype(linear<float, ushort, 1>) linear<float, ushort, 1>;
template [[host_name("linear_f32_i8")]] [[kernel]] decltype(linear<float, char, 1>) linear<float, char, 1>;
template [[host_name("linear_f16_f32")]] [[kernel]] decltype(linear<half, float, 1>) linear<half, float, 1>;
template [[host_name("linear_f16_f16")]] [[kernel]] decltype(linear<half, half, 1>) linear<half, half, 1>;
template [[host_name("linear_f16_bf16")]] [[kernel]] decltype(linear<half, ushort, 1>) linear<half, ushort, 1>;
template [[host_name("linear_f16_i8")]] [[kernel]] decltype(linear<half, char, 1>) linear<half, char, 1>;
template [[host_name("linear4_f32_f32")]] [[kernel]] decltype(linear<float, float, 4>) linear<float, float, 4>;
template [[host_name("linear4_f32_f16")]] [[kernel]] decltype(linear<float, half, 4>) linear<float, half, 4>;
template [[host_name("linear4_f32_bf16")]] [[kernel]] decltype(linear<float, ushort, 4>) linear<float, ushort, 4>;
template [[host_name("linear4_f32_i8")]] [[kernel]] decltype(linear<float, char, 4>) linear<float, char, 4>;
template [[host_name("linear4_f16_f32")]] [[kernel]] decltype(linear<half, float, 4>) linear<half, float, 4>;
template [[host_name("linear4_f16_f16")]] [[kernel]] decltype(linear<half, half, 4>) linear<half, half, 4>;
template [[host_name("linear4_f16_bf16")]] [[kernel]] decltype(linear<half, ushort, 4>) linear<half, ushort, 4>;
template [[host_name("linear4_f16_i8")]] [[kernel]] decltype(linear<half, char, 4>) linear<half, char, 4>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("linear_bf16_f32")]] [[kernel]] decltype(linear<bfloat, float, 1>) linear<bfloat, float, 1>;
template [[host_name("linear_bf16_f16")]] [[kernel]] decltype(linear<bfloat, half, 1>) linear<bfloat, half, 1>;
template [[host_name("linear_bf16_bf16")]] [[kernel]] decltype(linear<bfloat, ushort, 1>) linear<bfloat, ushort, 1>;
template [[host_name("linear_bf16_i8")]] [[kernel]] decltype(linear<bfloat, char, 1>) linear<bfloat, char, 1>;
template [[host_name("linear4_bf16_f32")]] [[kernel]] decltype(linear<bfloat, float, 4>) linear<bfloat, float, 4>;
template [[host_name("linear4_bf16_f16")]] [[kernel]] decltype(linear<bfloat, half, 4>) linear<bfloat, half, 4>;
template [[host_name("linear4_bf16_bf16")]] [[kernel]] decltype(linear<bfloat, ushort, 4>) linear<bfloat, ushort, 4>;
template [[host_name("linear4_bf16_i8")]] [[kernel]] decltype(linear<bfloat, char, 4>) linear<bfloat, char, 4>;
#endif
