// rope.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "rotation.h"

struct RoPEArgs { uint dim, rotaryDim, stride, interleaved; };

// Rotates each head's pairs. A thread for each element i of head h of row t; the table begins at the first row's position.
template <typename T>
[[kernel]] void rope(device T *out [[buffer(0)]], device const T *x [[buffer(1)]],
                     device const float *table [[buffer(2)]], constant RoPEArgs &args [[buffer(3)]],
                     uint3 at [[thread_position_in_grid]], uint3 grid [[threads_per_grid]]) {
    uint i = at.x, h = at.y, t = at.z;
    out += (ulong(t) * grid.y + h) * args.dim;
    x += ulong(t) * args.stride + h * args.dim;
    table += ulong(t) * args.rotaryDim;
    out[i] = rotated(x, table, i, args.rotaryDim, args.interleaved);
}

template [[host_name("rope_f32")]] [[kernel]] decltype(rope<float>) rope<float>;
template [[host_name("rope_f16")]] [[kernel]] decltype(rope<half>) rope<half>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("rope_bf16")]] [[kernel]] decltype(rope<bfloat>) rope<bfloat>;
#endif
