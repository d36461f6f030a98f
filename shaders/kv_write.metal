// kv_write.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

struct KVWriteArgs { uint width, kStride, vStride; };

// Copies row t of keys and values to row t of the caches, which begin at the first row's position. A thread for each element.
template <typename T>
[[kernel]] void kv_write(device T *kcache [[buffer(0)]], device T *vcache [[buffer(1)]],
                         device const T *k [[buffer(2)]], device const T *v [[buffer(3)]],
                         constant KVWriteArgs &args [[buffer(4)]], uint2 at [[thread_position_in_grid]]) {
    ulong to = ulong(at.y) * args.width + at.x;
    kcache[to] = k[ulong(at.y) * args.kStride + at.x];
    vcache[to] = v[ulong(at.y) * args.vStride + at.x];
}

template [[host_name("kv_write_f32")]] [[kernel]] decltype(kv_write<float>) kv_write<float>;
template [[host_name("kv_write_f16")]] [[kernel]] decltype(kv_write<half>) kv_write<half>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("kv_write_bf16")]] [[kernel]] decltype(kv_write<bfloat>) kv_write<bfloat>;
#endif
