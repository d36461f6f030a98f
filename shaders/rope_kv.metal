// rope_kv.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "rotation.h"

struct RoPEKVArgs { uint dim, rotaryDim, interleaved, heads, kvHeads, qStride, kStride, vStride; };

// rope of the queries, rope of the keys and kv_write in one: out = the queries turned; kcache = the keys turned; vcache = the values. A thread
// for each element i of head h of row t: heads queries, kvHeads keys, kvHeads values. The caches and the table begin at the first row's position.
template <typename T>
[[kernel]] void rope_kv(device T *out [[buffer(0)]], device T *kcache [[buffer(1)]], device T *vcache [[buffer(2)]],
                        device const T *q [[buffer(3)]], device const T *k [[buffer(4)]], device const T *v [[buffer(5)]],
                        device const float *table [[buffer(6)]], constant RoPEKVArgs &args [[buffer(7)]],
                        uint3 at [[thread_position_in_grid]]) {
    uint i = at.x, h = at.y, t = at.z;
    table += ulong(t) * args.rotaryDim;
    if (h < args.heads) {
        out[(ulong(t) * args.heads + h) * args.dim + i] = rotated(q + ulong(t) * args.qStride + h * args.dim, table, i, args.rotaryDim, args.interleaved);
        return;
    }
    h -= args.heads;
    bool key = h < args.kvHeads;
    if (!key) h -= args.kvHeads;
    ulong to = (ulong(t) * args.kvHeads + h) * args.dim + i;
    if (key) kcache[to] = rotated(k + ulong(t) * args.kStride + h * args.dim, table, i, args.rotaryDim, args.interleaved);
    else vcache[to] = v[ulong(t) * args.vStride + h * args.dim + i];
}

template [[host_name("rope_kv_f32")]] [[kernel]] decltype(rope_kv<float>) rope_kv<float>;
template [[host_name("rope_kv_f16")]] [[kernel]] decltype(rope_kv<half>) rope_kv<half>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("rope_kv_bf16")]] [[kernel]] decltype(rope_kv<bfloat>) rope_kv<bfloat>;
#endif
