// simdgroup_matrix. Metal spreads a matrix over the lanes and wants uniform control flow around it, so
// here lane 0 holds and computes the whole matrix and the other lanes pass by: no switch is needed.
// thread_elements() has therefore no meaning and is not offered.
#pragma once
#include "msl_simd.h"

namespace msl {
// Eight floats, which need not be aligned.
typedef float F8 __attribute__((vector_size(32), aligned(4), may_alias));

// Rows of a matrix's elements as floats, and back.
MSL_INL F8 widen8(const float* p) { return *(const F8*)p; }
template <class F> MSL_INL F8 widen8(const narrow<F>* p) {
    return F8{float(p[0]), float(p[1]), float(p[2]), float(p[3]), float(p[4]), float(p[5]), float(p[6]), float(p[7])};
}
MSL_INL void narrow8(float* p, F8 v) { *(F8*)p = v; }
template <class F> MSL_INL void narrow8(narrow<F>* p, F8 v) {
    for (int i = 0; i < 8; ++i) p[i] = narrow<F>(v[i]);
}
MSL_INL F8 fma8(float a, F8 b, F8 c) {
    return F8{__builtin_fmaf(a, b[0], c[0]), __builtin_fmaf(a, b[1], c[1]), __builtin_fmaf(a, b[2], c[2]), __builtin_fmaf(a, b[3], c[3]),
              __builtin_fmaf(a, b[4], c[4]), __builtin_fmaf(a, b[5], c[5]), __builtin_fmaf(a, b[6], c[6]), __builtin_fmaf(a, b[7], c[7])};
}
}  // namespace msl

namespace metal {
// Metal has no other sizes than eight by eight.
template <class T, int Cols, int Rows> struct simdgroup_matrix;
template <class T> struct simdgroup_matrix<T, 8, 8> {
    T m[8][8];
    simdgroup_matrix() = default;
    MSL_INL explicit simdgroup_matrix(T diagonal) {
        if (msl_self()->lane == 0)
            for (int i = 0; i < 8; ++i)
                for (int j = 0; j < 8; ++j) m[i][j] = i == j ? diagonal : T(0);
    }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int Cols, int Rows = Cols> MSL_INL simdgroup_matrix<T, Cols, Rows> make_filled_simdgroup_matrix(T v) {
    simdgroup_matrix<T, Cols, Rows> r;
    if (msl_self()->lane == 0)
        for (int i = 0; i < Rows; ++i)
            for (int j = 0; j < Cols; ++j) r.m[i][j] = v;
    return r;
}

// Element (i, j) lies at p[(origin.y + i) * stride + origin.x + j], or with i and j exchanged.
template <class T>
MSL_INL void simdgroup_load(simdgroup_matrix<T, 8, 8>& d, const T* p, ulong stride = 8, ulong2 origin = ulong2(0), bool transposed = false) {
    if (msl_self()->lane) return;
    msl::Together all;
    p += origin.y * stride + origin.x;
    for (int i = 0; i < 8; ++i) {
        if (!transposed) msl::fetch(d.m[i], p + i * stride, sizeof d.m[i]);
        else for (int j = 0; j < 8; ++j) d.m[i][j] = p[j * stride + i];
    }
}
template <class T>
MSL_INL void simdgroup_store(const simdgroup_matrix<T, 8, 8>& s, T* p, ulong stride = 8, ulong2 origin = ulong2(0), bool transposed = false) {
    if (msl_self()->lane) return;
    msl::Together all;
    p += origin.y * stride + origin.x;
    for (int i = 0; i < 8; ++i)
        for (int j = 0; j < 8; ++j) p[transposed ? j * stride + i : i * stride + j] = s.m[i][j];
}

// d = a*b + c, summed in float over k ascending and rounded to D once.
template <class D, class A, class B, class C>
MSL_INL void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                           const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c) {
    if (msl_self()->lane) return;
    using namespace msl;
    const F8 b0 = widen8(b.m[0]), b1 = widen8(b.m[1]), b2 = widen8(b.m[2]), b3 = widen8(b.m[3]);
    const F8 b4 = widen8(b.m[4]), b5 = widen8(b.m[5]), b6 = widen8(b.m[6]), b7 = widen8(b.m[7]);
    for (int i = 0; i < 8; ++i) {
        const F8 ai = widen8(a.m[i]);
        F8 sum = fma8(ai[0], b0, widen8(c.m[i]));
        sum = fma8(ai[3], b3, fma8(ai[2], b2, fma8(ai[1], b1, sum)));
        sum = fma8(ai[7], b7, fma8(ai[6], b6, fma8(ai[5], b5, fma8(ai[4], b4, sum))));
        narrow8(d.m[i], sum);
    }
}
template <class D, class A, class B>
MSL_INL void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a, const simdgroup_matrix<B, 8, 8>& b) {
    simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, 8>(0));
}
}  // namespace metal
