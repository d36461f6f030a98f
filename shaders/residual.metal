// residual.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "rms.h"

struct ResidualArgs { uint dim, hasBefore, hasAfter; float eps, offset, nextEps, nextOffset; };

// rmsnorm, add and rmsnorm in one: y = a + b, or a + norm(b) if hasBefore; next = norm(y) if hasAfter. A simdgroup for each row t; a lane
// writes and reads again its own elements only. The bits are those of the three kernels: what they would have written is
// rounded to T here, too. Without hasAfter next is bound to y, without either norm its weight to a, and they are not touched.
template <typename T>
[[kernel]] void residual(device T *y [[buffer(0)]], device T *next [[buffer(1)]], device const T *a [[buffer(2)]],
                         device const T *b [[buffer(3)]], device const float *w [[buffer(4)]],
                         device const float *nextW [[buffer(5)]], constant ResidualArgs &args [[buffer(6)]],
                         uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    uint dim = args.dim;
    ulong row = ulong(group.y) * dim;
    y += row;
    next += row;
    a += row;
    b += row;
    float inv = args.hasBefore != 0 ? inverse_rms(b, dim, args.eps, lane) : 0.0f;
    float sum = 0.0f;
    for (uint i = lane; i < dim; i += 32) {
        float v = float(b[i]);
        if (args.hasBefore != 0) v = float(T(v * inv * (args.offset + w[i])));
        T r = T(float(a[i]) + v);
        y[i] = r;
        sum = fma(float(r), float(r), sum);
    }
    if (args.hasAfter == 0) return;
    inv = precise::rsqrt(simd_sum(sum) / float(dim) + args.nextEps);
    for (uint i = lane; i < dim; i += 32) next[i] = T(float(y[i]) * inv * (args.nextOffset + nextW[i]));
}

template [[host_name("residual_f32")]] [[kernel]] decltype(residual<float>) residual<float>;
template [[host_name("residual_f16")]] [[kernel]] decltype(residual<half>) residual<half>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("residual_bf16")]] [[kernel]] decltype(residual<bfloat>) residual<bfloat>;
#endif
