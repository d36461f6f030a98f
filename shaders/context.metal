// context.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

struct ContextArgs { uint first, keys, group, dim, vStride; };

// out[t,h,i] = sum over j of p[h,t,j] * v[j,h/group,i], over the keys [0, first+t) that row t attends to.
// A thread for each element i, head h and row t; v begins at the first key that any row attends to.
template <typename T>
[[kernel]] void context(device T *out [[buffer(0)]], device const T *p [[buffer(1)]],
                        device const T *v [[buffer(2)]], constant ContextArgs &args [[buffer(3)]],
                        uint3 at [[thread_position_in_grid]], uint3 grid [[threads_per_grid]]) {
    uint i = at.x, h = at.y, t = at.z;
    p += (ulong(h) * grid.z + t) * args.keys;
    v += h / args.group * args.dim + i;
    float sum = 0.0f;
    for (uint j = 0; j < args.first + t; j++) sum = fma(float(p[j]), float(v[ulong(j) * args.vStride]), sum);
    out[(ulong(t) * grid.y + h) * args.dim + i] = T(sum);
}

template [[host_name("context_f32")]] [[kernel]] decltype(context<float>) context<float>;
template [[host_name("context_f16")]] [[kernel]] decltype(context<half>) context<half>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("context_bf16")]] [[kernel]] decltype(context<bfloat>) context<bfloat>;
#endif
