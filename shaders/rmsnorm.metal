// rmsnorm.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "rms.h"

struct RMSNormArgs { uint dim, stride; float eps, offset; };

// out[t,h,i] = x[t,h,i] / sqrt(mean(x[t,h]^2) + eps) * (offset + w[i]); a simdgroup for each row t and head h.
template <typename T>
[[kernel]] void rmsnorm(device T *out [[buffer(0)]], device const T *x [[buffer(1)]],
                        device const float *w [[buffer(2)]], constant RMSNormArgs &args [[buffer(3)]],
                        uint2 group [[threadgroup_position_in_grid]], uint2 groups [[threadgroups_per_grid]],
                        uint lane [[thread_index_in_simdgroup]]) {
    out += (ulong(group.y) * groups.x + group.x) * args.dim;
    x += ulong(group.y) * args.stride + group.x * args.dim;
    float inv = inverse_rms(x, args.dim, args.eps, lane);
    for (uint i = lane; i < args.dim; i += 32) {
        out[i] = T(float(x[i]) * inv * (args.offset + w[i]));
    }
}

template [[host_name("rmsnorm_f32")]] [[kernel]] decltype(rmsnorm<float>) rmsnorm<float>;
template [[host_name("rmsnorm_f16")]] [[kernel]] decltype(rmsnorm<half>) rmsnorm<half>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("rmsnorm_bf16")]] [[kernel]] decltype(rmsnorm<bfloat>) rmsnorm<bfloat>;
#endif
