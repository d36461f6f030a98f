// activate.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "activation.h"

struct ActivateArgs { uint dim, function, hasUp; };

// out = function(gate) * up; a thread for each element of each row. Without hasUp, up is bound to gate and not read.
template <typename T>
[[kernel]] void activate(device T *out [[buffer(0)]], device const T *gate [[buffer(1)]],
                         device const T *up [[buffer(2)]], constant ActivateArgs &args [[buffer(3)]],
                         uint2 at [[thread_position_in_grid]]) {
    ulong i = ulong(at.y) * args.dim + at.x;
    float v = activation(args.function, float(gate[i]));
    if (args.hasUp != 0) v *= float(up[i]);
    out[i] = T(v);
}

template [[host_name("activate_f32")]] [[kernel]] decltype(activate<float>) activate<float>;
template [[host_name("activate_f16")]] [[kernel]] decltype(activate<half>) activate<half>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("activate_bf16")]] [[kernel]] decltype(activate<bfloat>) activate<bfloat>;
#endif
