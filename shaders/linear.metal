// linear.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)

struct LinearArgs { uint rows, cols, tokens, hasScale, hasBias; };

// The weight's types as float, one or four at a time. A bfloat16 is the upper half of a float.
inline float widen(float w) { return w; }
inline float widen(half w) { return float(w); }
inline float widen(ushort w) { return as_type<float>(uint(w) << 16); }
inline float widen(char w) { return float(w); }
inline float4 widen(float4 w) { return w; }
inline float4 widen(half4 w) { return float4(w); }
inline float4 widen(ushort4 w) { return as_type<float4>(uint4(w) << 16u); }
inline float4 widen(char4 w) { return float4(w); }

// Elements k to k+3 of a row of n, 0 from n on. Only rows of whole vectors are aligned for vector loads.
template <typename E>
inline float4 load(device const E *row, uint k, uint n) {
    if (n % 4 == 0) return widen(reinterpret_cast<device const vec<E, 4> *>(row)[k / 4]);
    return float4(widen(row[k]), k + 1 < n ? widen(row[k + 1]) : 0.0f, k + 2 < n ? widen(row[k + 2]) : 0.0f,
                  k + 3 < n ? widen(row[k + 3]) : 0.0f);
}

inline float across(float4 v) { return (v.x + v.y) + (v.z + v.w); }

// out[t,n] = sum over k of x[t,k] * w[n,k], plus bias[n]. A simdgroup computes rows n to n+3 of the weight for TOKENS tokens;
// past the end it computes the last row or token again and stores nothing. Lane l adds up k = 4l..4l+3, 4l+128.. in four
// partial sums: an order that does not depend on the number of tokens, so a row gives the same bits in any batch.
// Without hasScale or hasBias, scale or bias is bound to w and not read.
template <typename T, typename W, uint TOKENS>
[[kernel]] void linear(device T *out [[buffer(0)]], device const T *x [[buffer(1)]],
                       device const W *w [[buffer(2)]], device const float *scale [[buffer(3)]],
                       device const float *bias [[buffer(4)]], constant LinearArgs &args [[buffer(5)]],
                       uint2 group [[threadgroup_position_in_grid]],
                       uint simd [[simdgroup_index_in_threadgroup]], uint simds [[simdgroups_per_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
    uint n = (group.x * simds + simd) * 4, t = group.y * TOKENS;
    if (n >= args.rows) return;
    device const W *wn[4];
    float s[4];
    for (uint r = 0; r < 4; r++) {
        uint row = min(n + r, args.rows - 1);
        wn[r] = w + ulong(row) * args.cols;
        s[r] = args.hasScale != 0 ? scale[row] : 1.0f;
    }
    device const T *xt[TOKENS];
    float4 sum[TOKENS][4];
    for (uint m = 0; m < TOKENS; m++) {
        xt[m] = x + ulong(min(t + m, args.tokens - 1)) * args.cols;
        for (uint r = 0; r < 4; r++) sum[m][r] = float4(0.0f);
    }
    for (uint k = 4 * lane; k < args.cols; k += 128) {
        float4 wk[4];
        for (uint r = 0; r < 4; r++) wk[r] = load(wn[r], k, args.cols) * s[r];
        for (uint m = 0; m < TOKENS; m++) {
            float4 xk = load(xt[m], k, args.cols);
            for (uint r = 0; r < 4; r++) sum[m][r] = fma(wk[r], xk, sum[m][r]);
        }
    }
    for (uint m = 0; m < TOKENS; m++) {
        float4 y = simd_sum(float4(across(sum[m][0]), across(sum[m][1]), across(sum[m][2]), across(sum[m][3])));
        if (lane == 0 && t + m < args.tokens) {
            for (uint r = 0; r < 4 && n + r < args.rows; r++) {
                float b = args.hasBias != 0 ? bias[n + r] : 0.0f;
                out[ulong(t + m) * args.rows + n + r] = T(y[r] + b);
            }
        }
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
