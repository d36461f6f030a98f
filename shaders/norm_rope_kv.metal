// norm_rope_kv.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "rms.h"
#include "rotation.h"

struct NormRoPEKVArgs { uint dim, rotaryDim, interleaved, heads, kvHeads, qStride, kStride, vStride; float eps, offset; };

// Element i of a head as rmsnorm.metal would have written it.
template <typename T>
inline float normed(device const T *x, device const float *w, uint i, float inv, float offset) { return float(T(float(x[i]) * inv * (offset + w[i]))); }

// rope_kv with a norm of each head of the queries and the keys before it: five kernels in one, and their bits. A simdgroup for each head h of row t:
// heads queries, kvHeads keys, kvHeads values.
template <typename T>
[[kernel]] void norm_rope_kv(device T *out [[buffer(0)]], device T *kcache [[buffer(1)]], device T *vcache [[buffer(2)]],
                             device const T *q [[buffer(3)]], device const T *k [[buffer(4)]], device const T *v [[buffer(5)]],
                             device const float *table [[buffer(6)]], device const float *qW [[buffer(7)]],
                             device const float *kW [[buffer(8)]], constant NormRoPEKVArgs &args [[buffer(9)]],
                             uint2 at [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    uint h = at.x, t = at.y, dim = args.dim;
    if (h >= args.heads + args.kvHeads) {
        h -= args.heads + args.kvHeads;
        for (uint i = lane; i < dim; i += 32) vcache[(ulong(t) * args.kvHeads + h) * dim + i] = v[ulong(t) * args.vStride + h * dim + i];
        return;
    }
    bool query = h < args.heads;
    if (!query) h -= args.heads;
    device const T *x = query ? q + ulong(t) * args.qStride + h * dim : k + ulong(t) * args.kStride + h * dim;
    device T *to = query ? out + (ulong(t) * args.heads + h) * dim : kcache + (ulong(t) * args.kvHeads + h) * dim;
    device const float *w = query ? qW : kW;
    table += ulong(t) * args.rotaryDim;
    float inv = inverse_rms(x, dim, args.eps, lane);
    for (uint i = lane; i < dim; i += 32) {
        float e = normed(x, w, i, inv, args.offset);
        if (i < args.rotaryDim) {
            Turn turn = turn_of(table, i, args.rotaryDim, args.interleaved);
            e = turned(e, normed(x, w, turn.other, inv, args.offset), turn);
        }
        to[i] = T(e);
    }
}

template [[host_name("norm_rope_kv_f32")]] [[kernel]] decltype(norm_rope_kv<float>) norm_rope_kv<float>;
template [[host_name("norm_rope_kv_f16")]] [[kernel]] decltype(norm_rope_kv<half>) norm_rope_kv<half>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("norm_rope_kv_bf16")]] [[kernel]] decltype(norm_rope_kv<bfloat>) norm_rope_kv<bfloat>;
#endif
