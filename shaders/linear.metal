// linear.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "gemv.h"

struct LinearArgs { uint rows, cols, tokens, hasBias; };

// out[t,n] = sum over k of x[t,k] * w[n,k], plus bias[n]. A simdgroup computes 8 rows n for one
// token, or 4 rows for TOKENS = 4 of them, so that it reads a weight once for all; past the end it computes the last row or token
// again and stores nothing. Its rows are far apart, the next simdgroup's beside them: the memory sees as many long streams.
// No part of a result's order of addition depends on TOKENS: a row gives the same bits alone and among others.
// A weight without scale, and a call without hasBias, binds scale or bias to w and does not read it.
template <typename T, typename W, uint TOKENS>
[[kernel]] void linear(device T *out [[buffer(0)]], device const T *x [[buffer(1)]],
                       device const W *w [[buffer(2)]], device const float *scale [[buffer(3)]],
                       device const float *bias [[buffer(4)]], constant LinearArgs &args [[buffer(5)]],
                       uint2 group [[threadgroup_position_in_grid]],
                       uint simd [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    constexpr uint ROWS = TOKENS == 1 ? 8 : 4;
    threadgroup float4 partial[4 * TOKENS * ROWS * LANES]; // by simdgroup
    uint apart = (args.rows + ROWS - 1) / ROWS, n = group.x * 4 + simd, t = group.y * TOKENS;
    if (n >= apart) return;
    Rows<W, ROWS> rows = rows_of<W, ROWS>(w, scale, n, apart, args.rows, args.cols);
    Rows<T, TOKENS> tokens = rows_of<T, TOKENS>(x, scale, t, 1, args.tokens, args.cols);
    threadgroup float4 *mine = partial + simd * TOKENS * ROWS * LANES;
    put(mine, products(tokens, rows, args.cols, lane), lane);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    uint row = n + lane % ROWS * apart, token = t + lane / ROWS;
    if (lane < TOKENS * ROWS && row < args.rows && token < args.tokens) {
        float v = total(mine, lane);
        out[ulong(token) * args.rows + row] = T(args.hasBias != 0 ? v + bias[row] : v);
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
