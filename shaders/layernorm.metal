// layernorm.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

struct LayerNormArgs { uint dim; float eps; };

// out[t,i] = (x[t,i] - mean) / sqrt(variance + eps) * w[i] + bias[i]; a simdgroup for each row t. The variance is taken about the
// mean, in a pass of its own: mean(x^2) - mean^2 would cancel.
template <typename T>
[[kernel]] void layernorm(device T *out [[buffer(0)]], device const T *x [[buffer(1)]],
                          device const float *w [[buffer(2)]], device const float *bias [[buffer(3)]],
                          constant LayerNormArgs &args [[buffer(4)]],
                          uint2 group [[threadgroup_position_in_grid]],
                          uint lane [[thread_index_in_simdgroup]]) {
    out += ulong(group.y) * args.dim;
    x += ulong(group.y) * args.dim;
    float sum = 0.0f;
    for (uint i = lane; i < args.dim; i += 32) sum += float(x[i]);
    float mean = simd_sum(sum) / float(args.dim);
    float squares = 0.0f;
    for (uint i = lane; i < args.dim; i += 32) {
        float v = float(x[i]) - mean;
        squares = fma(v, v, squares);
    }
    float inv = precise::rsqrt(simd_sum(squares) / float(args.dim) + args.eps);
    for (uint i = lane; i < args.dim; i += 32) {
        out[i] = T(fma((float(x[i]) - mean) * inv, w[i], bias[i]));
    }
}

template [[host_name("layernorm_f32")]] [[kernel]] decltype(layernorm<float>) layernorm<float>;
template [[host_name("layernorm_f16")]] [[kernel]] decltype(layernorm<half>) layernorm<half>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("layernorm_bf16")]] [[kernel]] decltype(layernorm<bfloat>) layernorm<bfloat>;
#endif
