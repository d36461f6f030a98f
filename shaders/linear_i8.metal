// linear_i8.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

struct LinearI8Args { uint rows, cols, tokens, hasBias; };

// Sixteen integers as floats.
struct Sixteen { float4 a, b, c, d; };

// Elements k to k+3 of a row of n, 0 from n on.
inline float4 four(device const char *row, uint k, uint n) {
    return float4(k < n ? float(row[k]) : 0.0f, k + 1 < n ? float(row[k + 1]) : 0.0f, k + 2 < n ? float(row[k + 2]) : 0.0f,
                  k + 3 < n ? float(row[k + 3]) : 0.0f);
}

// Elements k to k+15. Only rows of whole sixteens are aligned for vector loads.
inline Sixteen sixteen(device const char *row, uint k, uint n) {
    if (n % 16 != 0) return {four(row, k, n), four(row, k + 4, n), four(row, k + 8, n), four(row, k + 12, n)};
    uint4 v = reinterpret_cast<device const uint4 *>(row)[k / 16];
    return {float4(as_type<char4>(v.x)), float4(as_type<char4>(v.y)), float4(as_type<char4>(v.z)), float4(as_type<char4>(v.w))};
}

inline float4 multiply_add(Sixteen w, Sixteen q, float4 sum) {
    return fma(w.d, q.d, fma(w.c, q.c, fma(w.b, q.b, fma(w.a, q.a, sum))));
}

// A sum of four floats that are integers, as one.
inline int whole(float4 v) { return int(v.x) + int(v.y) + int(v.z) + int(v.w); }

// out[t,n] = (sum over k of q[t,k] * w[n,k]) * inverse[t] / scale[n], plus bias[n]; the sum is exact. A simdgroup computes 4 rows n for one token,
// or for TOKENS = 4 of them; past the end it computes the last row or token again and stores nothing. Lane l adds up
// k = 16l..16l+15, 16l+512.. in four floats for each result: a float adds a 128th of the row's products, exactly, as long as there are no
// more than 1032 of them, of at most 127 * 128 (engine.MaxQuantizedCols). Floats, because they multiply faster than integers do.
// Then a lane for each result adds up what the 32 lanes have. A call without hasBias binds bias to w and does not read it.
template <typename T, uint TOKENS>
[[kernel]] void linear_i8(device T *out [[buffer(0)]], device const char *q [[buffer(1)]], device const float *inverse [[buffer(2)]],
                          device const char *w [[buffer(3)]], device const float *scale [[buffer(4)]],
                          device const float *bias [[buffer(5)]], constant LinearI8Args &args [[buffer(6)]],
                          uint2 group [[threadgroup_position_in_grid]],
                          uint simd [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup int partial[4 * 4 * TOKENS * 33]; // by simdgroup, result and lane; 33 rather than 32, to spread the memory's banks
    uint n = (group.x * 4 + simd) * 4, t = group.y * TOKENS, cols = args.cols;
    if (n >= args.rows) return;
    device const char *rows[4], *tokens[TOKENS];
    float4 sum[TOKENS][4];
    for (uint i = 0; i < 4; i++) rows[i] = w + ulong(min(n + i, args.rows - 1)) * cols;
    for (uint j = 0; j < TOKENS; j++) {
        tokens[j] = q + ulong(min(t + j, args.tokens - 1)) * cols;
        for (uint i = 0; i < 4; i++) sum[j][i] = float4(0.0f);
    }
    for (uint k = 16 * lane; k < cols; k += 512) {
        Sixteen wk[4];
        for (uint i = 0; i < 4; i++) wk[i] = sixteen(rows[i], k, cols);
        for (uint j = 0; j < TOKENS; j++) {
            Sixteen qk = sixteen(tokens[j], k, cols);
            for (uint i = 0; i < 4; i++) sum[j][i] = multiply_add(wk[i], qk, sum[j][i]);
        }
    }
    threadgroup int *mine = partial + simd * 4 * TOKENS * 33;
    for (uint j = 0; j < TOKENS; j++) {
        for (uint i = 0; i < 4; i++) mine[(4 * j + i) * 33 + lane] = whole(sum[j][i]);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    uint row = n + lane % 4, token = t + lane / 4;
    if (lane < 4 * TOKENS && row < args.rows && token < args.tokens) {
        int c = 0;
        for (uint i = 0; i < 32; i++) c += mine[lane * 33 + i];
        float y = float(c) * inverse[token] / scale[row];
        out[ulong(token) * args.rows + row] = T(args.hasBias != 0 ? y + bias[row] : y);
    }
}

template [[host_name("linear_i8_f32")]] [[kernel]] decltype(linear_i8<float, 1>) linear_i8<float, 1>;
template [[host_name("linear_i8_f16")]] [[kernel]] decltype(linear_i8<half, 1>) linear_i8<half, 1>;
template [[host_name("linear_i8x4_f32")]] [[kernel]] decltype(linear_i8<float, 4>) linear_i8<float, 4>;
template [[host_name("linear_i8x4_f16")]] [[kernel]] decltype(linear_i8<half, 4>) linear_i8<half, 4>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("linear_i8_bf16")]] [[kernel]] decltype(linear_i8<bfloat, 1>) linear_i8<bfloat, 1>;
template [[host_name("linear_i8x4_bf16")]] [[kernel]] decltype(linear_i8<bfloat, 4>) linear_i8<bfloat, 4>;
#endif
