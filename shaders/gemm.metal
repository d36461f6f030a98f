// gemm.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "gemv.h"

struct GemmArgs { uint rows, cols, tokens, hasBias; };

// A threadgroup of four simdgroups computes a tile of 64 rows n times 32 tokens, from 32 columns at a time.
constant constexpr uint ROWS = 64, TOKENS = 32, STEP = 32;
constant constexpr uint WIDTH = STEP + 8;    // of a row of a tile in threadgroup memory: 8 more, to spread the memory's banks
constant constexpr uint OUT_WIDTH = ROWS + 4; // the same of a token's results

// What a tile's elements are kept as. Products of halves are exact in float, which the sums are.
template <typename T, typename W>
struct Kept { typedef float type; };
template <>
struct Kept<half, half> { typedef half type; };

inline void keep(threadgroup float *to, float4 v) { *reinterpret_cast<threadgroup float4 *>(to) = v; }
inline void keep(threadgroup half *to, float4 v) { *reinterpret_cast<threadgroup half4 *>(to) = half4(v); }

// Copies columns k..k+31 of COUNT rows from first on; 128 threads do so, each with a part of one row. Beyond the matrix there are zeros.
template <uint COUNT, typename E, typename W>
inline void stage(threadgroup E *to, device const W *w, device const float *scale, uint first, uint rows, uint k, uint cols, uint index) {
    constexpr uint PART = STEP * COUNT / 128;
    uint i = index / (STEP / PART), row = first + i, at = index % (STEP / PART) * PART;
    device const W *from = w + ulong(min(row, rows - 1)) * cols + k + at;
    float s = row_scale(w, scale, min(row, rows - 1));
    uint n = row < rows && k + at < cols ? cols - k - at : 0;
    for (uint j = 0; j < PART; j += 4) {
        float4 v = float4(0.0f);
        if (j + 4 <= n) v = load(from + j);
        else if (j < n) v = load_last(from + j, n - j);
        keep(to + i * WIDTH + at + j, scaled(w, v, s));
    }
}

// out[t,n] = sum over k of x[t,k] * w[n,k], plus bias[n], for many tokens; linear.metal is for few. A simdgroup computes 32 rows times 16 tokens
// in eight matrices. A weight without scale, and a call without hasBias, binds scale or bias to w and does not read it.
template <typename T, typename W>
[[kernel]] void gemm(device T *out [[buffer(0)]], device const T *x [[buffer(1)]],
                     device const W *w [[buffer(2)]], device const float *scale [[buffer(3)]],
                     device const float *bias [[buffer(4)]], constant GemmArgs &args [[buffer(5)]],
                     uint2 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                     uint simd [[simdgroup_index_in_threadgroup]]) {
    typedef typename Kept<T, W>::type E;
    threadgroup float4 memory[(ROWS + TOKENS) * WIDTH / 4];
    threadgroup E *wt = reinterpret_cast<threadgroup E *>(memory), *xt = wt + ROWS * WIDTH;
    uint n = group.y * ROWS, t = group.x * TOKENS, n1 = simd % 2 * 32, t1 = simd / 2 * 16;
    simdgroup_float8x8 sum[4][2];
    for (uint i = 0; i < 4; i++)
        for (uint j = 0; j < 2; j++) sum[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint k = 0; k < args.cols; k += STEP) {
        stage<ROWS>(wt, w, scale, n, args.rows, k, args.cols, index);
        stage<TOKENS>(xt, x, scale, t, args.tokens, k, args.cols, index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k1 = 0; k1 < STEP; k1 += 8) {
            simdgroup_matrix<E, 8, 8> wk[4], xk[2];
            for (uint i = 0; i < 4; i++) simdgroup_load(wk[i], wt + (n1 + 8 * i) * WIDTH + k1, WIDTH);
            for (uint j = 0; j < 2; j++) simdgroup_load(xk[j], xt + (t1 + 8 * j) * WIDTH + k1, WIDTH, ulong2(0), true);
            for (uint i = 0; i < 4; i++)
                for (uint j = 0; j < 2; j++) simdgroup_multiply_accumulate(sum[i][j], wk[i], xk[j], sum[i][j]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    threadgroup float *results = reinterpret_cast<threadgroup float *>(memory);
    for (uint i = 0; i < 4; i++)
        for (uint j = 0; j < 2; j++)
            simdgroup_store(sum[i][j], results + (t1 + 8 * j) * OUT_WIDTH + n1 + 8 * i, OUT_WIDTH, ulong2(0), true);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = index; i < ROWS * TOKENS; i += 128) {
        uint row = n + i % ROWS, token = t + i / ROWS;
        if (row >= args.rows || token >= args.tokens) continue;
        float v = results[i / ROWS * OUT_WIDTH + i % ROWS];
        out[ulong(token) * args.rows + row] = T(args.hasBias != 0 ? v + bias[row] : v);
    }
}

template [[host_name("gemm_f32_f32")]] [[kernel]] decltype(gemm<float, float>) gemm<float, float>;
template [[host_name("gemm_f32_f16")]] [[kernel]] decltype(gemm<float, half>) gemm<float, half>;
template [[host_name("gemm_f32_bf16")]] [[kernel]] decltype(gemm<float, ushort>) gemm<float, ushort>;
template [[host_name("gemm_f32_i8")]] [[kernel]] decltype(gemm<float, char>) gemm<float, char>;
template [[host_name("gemm_f16_f32")]] [[kernel]] decltype(gemm<half, float>) gemm<half, float>;
template [[host_name("gemm_f16_f16")]] [[kernel]] decltype(gemm<half, half>) gemm<half, half>;
template [[host_name("gemm_f16_bf16")]] [[kernel]] decltype(gemm<half, ushort>) gemm<half, ushort>;
template [[host_name("gemm_f16_i8")]] [[kernel]] decltype(gemm<half, char>) gemm<half, char>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("gemm_bf16_f32")]] [[kernel]] decltype(gemm<bfloat, float>) gemm<bfloat, float>;
template [[host_name("gemm_bf16_f16")]] [[kernel]] decltype(gemm<bfloat, half>) gemm<bfloat, half>;
template [[host_name("gemm_bf16_bf16")]] [[kernel]] decltype(gemm<bfloat, ushort>) gemm<bfloat, ushort>;
template [[host_name("gemm_bf16_i8")]] [[kernel]] decltype(gemm<bfloat, char>) gemm<bfloat, char>;
#endif
