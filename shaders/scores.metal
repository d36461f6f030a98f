// scores.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

struct ScoresArgs { uint first, group, dim, qStride, kStride; float scale; };

// out[h,t,j] = scale * (q[t,h] . k[j,h/group]); row t attends to keys [0, first+t), the others are 0.
// A thread for each key j, row t and head h; k begins at the first key that any row attends to.
template <typename T>
[[kernel]] void scores(device T *out [[buffer(0)]], device const T *q [[buffer(1)]],
                       device const T *k [[buffer(2)]], constant ScoresArgs &args [[buffer(3)]],
                       uint3 at [[thread_position_in_grid]], uint3 grid [[threads_per_grid]]) {
    uint j = at.x, t = at.y, h = at.z;
    out += (ulong(h) * grid.y + t) * grid.x + j;
    if (j >= args.first + t) {
        *out = T(0.0f);
        return;
    }
    q += ulong(t) * args.qStride + h * args.dim;
    k += ulong(j) * args.kStride + h / args.group * args.dim;
    float4 sum = float4(0.0f);
    uint i = 0;
    for (; i + 4 <= args.dim; i += 4) {
        sum = fma(float4(float(q[i]), float(q[i + 1]), float(q[i + 2]), float(q[i + 3])),
                  float4(float(k[i]), float(k[i + 1]), float(k[i + 2]), float(k[i + 3])), sum);
    }
    float dot = (sum.x + sum.y) + (sum.z + sum.w);
    for (; i < args.dim; i++) dot = fma(float(q[i]), float(k[i]), dot);
    *out = T(args.scale * dot);
}

template [[host_name("scores_f32")]] [[kernel]] decltype(scores<float>) scores<float>;
template [[host_name("scores_f16")]] [[kernel]] decltype(scores<half>) scores<half>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("scores_bf16")]] [[kernel]] decltype(scores<bfloat>) scores<bfloat>;
#endif
