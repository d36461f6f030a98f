// simdgroup_matrix. Metal spreads a matrix over the lanes and wants uniform control flow around it, so
// here lane 0 holds and computes the whole matrix and the other lanes pass by: no switch is needed.
// thread_elements() has therefore no meaning and is not offered.
#pragma once
#include "msl_simd.h"

namespace metal {
template <class T, int Rows, int Cols> struct simdgroup_matrix {
    T m[Rows][Cols];
    simdgroup_matrix() = default;
    MSL_INL explicit simdgroup_matrix(T diagonal) {
        if (msl_self()->lane == 0)
            for (int i = 0; i < Rows; ++i)
                for (int j = 0; j < Cols; ++j) m[i][j] = i == j ? diagonal : T(0);
    }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int Rows, int Cols = Rows> MSL_INL simdgroup_matrix<T, Rows, Cols> make_filled_simdgroup_matrix(T v) {
    simdgroup_matrix<T, Rows, Cols> r;
    if (msl_self()->lane == 0)
        for (int i = 0; i < Rows; ++i)
            for (int j = 0; j < Cols; ++j) r.m[i][j] = v;
    return r;
}

// Element (i, j) lies at p[(origin.y + i) * stride + origin.x + j], or with i and j exchanged.
template <class T, int Rows, int Cols>
MSL_INL void simdgroup_load(simdgroup_matrix<T, Rows, Cols>& d, const T* p, ulong stride = Cols, ulong2 origin = ulong2(0), bool transposed = false) {
    if (msl_self()->lane) return;
    msl::Together all;
    p += origin.y * stride + origin.x;
    for (int i = 0; i < Rows; ++i)
        for (int j = 0; j < Cols; ++j) d.m[i][j] = transposed ? p[j * stride + i] : p[i * stride + j];
}
template <class T, int Rows, int Cols>
MSL_INL void simdgroup_store(const simdgroup_matrix<T, Rows, Cols>& s, T* p, ulong stride = Cols, ulong2 origin = ulong2(0), bool transposed = false) {
    if (msl_self()->lane) return;
    msl::Together all;
    p += origin.y * stride + origin.x;
    for (int i = 0; i < Rows; ++i)
        for (int j = 0; j < Cols; ++j) p[transposed ? j * stride + i : i * stride + j] = s.m[i][j];
}

// d = a*b + c, summed in float over k ascending and rounded to D once.
template <class D, class A, class B, class C, int Rows, int Cols, int K>
MSL_INL void simdgroup_multiply_accumulate(simdgroup_matrix<D, Rows, Cols>& d, const simdgroup_matrix<A, Rows, K>& a,
                                           const simdgroup_matrix<B, K, Cols>& b, const simdgroup_matrix<C, Rows, Cols>& c) {
    if (msl_self()->lane) return;
    float wide[K][Cols];
    for (int k = 0; k < K; ++k)
        for (int j = 0; j < Cols; ++j) wide[k][j] = float(b.m[k][j]);
    for (int i = 0; i < Rows; ++i) {
        float sum[Cols];
        for (int j = 0; j < Cols; ++j) sum[j] = float(c.m[i][j]);
        for (int k = 0; k < K; ++k)
            for (int j = 0; j < Cols; ++j) sum[j] = __builtin_fmaf(float(a.m[i][k]), wide[k][j], sum[j]);
        for (int j = 0; j < Cols; ++j) d.m[i][j] = D(sum[j]);
    }
}
template <class D, class A, class B, int Rows, int Cols, int K>
MSL_INL void simdgroup_multiply(simdgroup_matrix<D, Rows, Cols>& d, const simdgroup_matrix<A, Rows, K>& a, const simdgroup_matrix<B, K, Cols>& b) {
    simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, Rows, Cols>(0));
}
}  // namespace metal
