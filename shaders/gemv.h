// gemv.h: a few rows of a matrix times one token or a few, by one simdgroup
#include "widen.h"

// Four elements from p on. p is aligned for one of them: in a matrix of odd width, rows begin anywhere.
inline float4 load(device const float *p) { return float4(*reinterpret_cast<device const packed_float4 *>(p)); }
inline float4 load(device const half *p) { return widen(half4(*reinterpret_cast<device const packed_half4 *>(p))); }
inline float4 load(device const ushort *p) { return widen(ushort4(*reinterpret_cast<device const packed_ushort4 *>(p))); }
inline float4 load(device const char *p) { return widen(char4(*reinterpret_cast<device const packed_char4 *>(p))); }
#if __METAL_VERSION__ >= 310
inline float4 load(device const bfloat *p) { return widen(bfloat4(*reinterpret_cast<device const packed_bfloat4 *>(p))); }
#endif

// The last n elements of a row, 1 to 3, and zeros.
template <typename E>
inline float4 load_last(device const E *p, uint n) {
    return float4(widen(p[0]), n > 1 ? widen(p[1]) : 0.0f, n > 2 ? widen(p[2]) : 0.0f, 0.0f);
}

// Only int8 weights have a scale for each row. A weight is q * scale rounded to float, as engine.Matrix says.
template <typename W>
inline float row_scale(device const W *, device const float *, uint) { return 1.0f; }
inline float row_scale(device const char *, device const float *scale, uint row) { return scale[row]; }
template <typename W>
inline float4 scaled(device const W *, float4 wk, float) { return wk; }
inline float4 scaled(device const char *, float4 wk, float scale) { return wk * scale; }

// ROWS rows of a weight: first, first + apart ... Rows past the end are the last one again.
template <typename W, uint ROWS>
struct Rows {
    device const W *at[ROWS];
    float scale[ROWS];
};
template <typename W, uint ROWS>
inline Rows<W, ROWS> rows_of(device const W *w, device const float *scale, uint first, uint apart, uint rows, uint cols) {
    Rows<W, ROWS> r;
    for (uint i = 0; i < ROWS; i++) {
        uint row = min(first + i * apart, rows - 1);
        r.at[i] = w + ulong(row) * cols;
        r.scale[i] = row_scale(w, scale, row);
    }
    return r;
}

// What a lane adds up of TOKENS times ROWS results, in four partial sums each.
template <uint TOKENS, uint ROWS>
struct Sums { float4 of[TOKENS][ROWS]; };

template <bool WHOLE, typename T, typename W, uint TOKENS, uint ROWS>
inline void multiply_add(thread Sums<TOKENS, ROWS> &sum, thread const Rows<T, TOKENS> &x, thread const Rows<W, ROWS> &w, uint k, uint n) {
    float4 wk[ROWS];
    for (uint i = 0; i < ROWS; i++) wk[i] = scaled(w.at[i], WHOLE ? load(w.at[i] + k) : load_last(w.at[i] + k, n), w.scale[i]);
    for (uint t = 0; t < TOKENS; t++) {
        float4 xk = WHOLE ? load(x.at[t] + k) : load_last(x.at[t] + k, n);
        for (uint i = 0; i < ROWS; i++) sum.of[t][i] = fma(wk[i], xk, sum.of[t][i]);
    }
}

// A lane's sums: of the columns k = 4l..4l+3, 4l+128.. for lane l.
template <typename T, typename W, uint TOKENS, uint ROWS>
inline Sums<TOKENS, ROWS> products(thread const Rows<T, TOKENS> &x, thread const Rows<W, ROWS> &w, uint cols, uint lane) {
    Sums<TOKENS, ROWS> sum;
    for (uint t = 0; t < TOKENS; t++)
        for (uint i = 0; i < ROWS; i++) sum.of[t][i] = float4(0.0f);
    uint k = 4 * lane;
    for (; k + 4 <= cols; k += 128) multiply_add<true>(sum, x, w, k, 4);
    if (k < cols) multiply_add<false>(sum, x, w, k, cols - k);
    return sum;
}

inline float across(float4 v) { return (v.x + v.y) + (v.z + v.w); }

// A result's 32 sums, one of each lane, lie in 9 float4: 8, and one to spread the memory's banks.
constant constexpr uint LANES = 9;

// put leaves a lane's sums where total, after a barrier, adds up those of all lanes, in their order. Result i of token t is number t * ROWS + i.
template <uint TOKENS, uint ROWS>
inline void put(threadgroup float4 *partial, thread const Sums<TOKENS, ROWS> &sum, uint lane) {
    threadgroup float *to = reinterpret_cast<threadgroup float *>(partial) + lane;
    for (uint t = 0; t < TOKENS; t++)
        for (uint i = 0; i < ROWS; i++) to[(t * ROWS + i) * 4 * LANES] = across(sum.of[t][i]);
}
inline float total(threadgroup const float4 *partial, uint result) {
    threadgroup const float4 *lanes = partial + result * LANES;
    float4 v = lanes[0];
    for (uint i = 1; i < 8; i++) v += lanes[i];
    return across(v);
}
