// rope.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

struct RoPEArgs { uint dim, rotaryDim, stride, interleaved; };

// Rotates pairs (a, b) of each head by the table's angle: a*c - b*s, b*c + a*s. A thread for each element i of head h of row t;
// the table begins at the first row's position. Elements from rotaryDim on are copied.
template <typename T>
[[kernel]] void rope(device T *out [[buffer(0)]], device const T *x [[buffer(1)]],
                     device const float *table [[buffer(2)]], constant RoPEArgs &args [[buffer(3)]],
                     uint3 at [[thread_position_in_grid]], uint3 grid [[threads_per_grid]]) {
    uint i = at.x, h = at.y, t = at.z;
    out += (ulong(t) * grid.y + h) * args.dim;
    x += ulong(t) * args.stride + h * args.dim;
    table += ulong(t) * args.rotaryDim;
    if (i >= args.rotaryDim) {
        out[i] = x[i];
        return;
    }
    uint half_dim = args.rotaryDim / 2;
    uint pair = args.interleaved != 0 ? i / 2 : i % half_dim;
    bool first = args.interleaved != 0 ? i % 2 == 0 : i < half_dim;
    uint other = args.interleaved != 0 ? i ^ 1 : (first ? i + half_dim : i - half_dim);
    float c = table[pair], s = table[half_dim + pair];
    out[i] = T(fma(float(x[i]), c, float(x[other]) * (first ? -s : s)));
}

template [[host_name("rope_f32")]] [[kernel]] decltype(rope<float>) rope<float>;
template [[host_name("rope_f16")]] [[kernel]] decltype(rope<half>) rope<half>;
