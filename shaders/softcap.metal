// softcap.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

struct SoftCapArgs { uint dim; float cap; };

// out = cap * tanh(x / cap); a thread for each element of each row.
template <typename T>
[[kernel]] void softcap(device T *out [[buffer(0)]], device const T *x [[buffer(1)]],
                        constant SoftCapArgs &args [[buffer(2)]], uint2 at [[thread_position_in_grid]]) {
    ulong i = ulong(at.y) * args.dim + at.x;
    out[i] = T(args.cap * precise::tanh(float(x[i]) / args.cap));
}

template [[host_name("softcap_f32")]] [[kernel]] decltype(softcap<float>) softcap<float>;
template [[host_name("softcap_f16")]] [[kernel]] decltype(softcap<half>) softcap<half>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("softcap_bf16")]] [[kernel]] decltype(softcap<bfloat>) softcap<bfloat>;
#endif
