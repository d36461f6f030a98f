// embed.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

#include "widen.h"

struct EmbedArgs { uint dim, hasPositions; float factor; };

// Only int8 weights have a scale for each row.
template <typename W>
inline float scaled(device const W *, float v, device const float *, ulong) { return v; }
inline float scaled(device const char *, float v, device const float *scale, ulong row) { return v * scale[row]; }

// out[t,i] = w[ids[t],i] * factor + positions[t,i]; a thread for each element. The ids were checked before; positions begin
// at the first row's. A weight without scale, and a call without hasPositions, binds scale or positions to w and does not read it.
template <typename T, typename W>
[[kernel]] void embed(device T *out [[buffer(0)]], device const int *ids [[buffer(1)]],
                      device const W *w [[buffer(2)]], device const float *scale [[buffer(3)]],
                      device const float *positions [[buffer(4)]], constant EmbedArgs &args [[buffer(5)]],
                      uint2 at [[thread_position_in_grid]]) {
    ulong id = ulong(ids[at.y]), to = ulong(at.y) * args.dim + at.x;
    float v = scaled(w, widen(w[id * args.dim + at.x]), scale, id);
    out[to] = T(args.hasPositions != 0 ? fma(v, args.factor, positions[to]) : v * args.factor);
}

template [[host_name("embed_f32_f32")]] [[kernel]] decltype(embed<float, float>) embed<float, float>;
template [[host_name("embed_f32_f16")]] [[kernel]] decltype(embed<float, half>) embed<float, half>;
template [[host_name("embed_f32_bf16")]] [[kernel]] decltype(embed<float, ushort>) embed<float, ushort>;
template [[host_name("embed_f32_i8")]] [[kernel]] decltype(embed<float, char>) embed<float, char>;
template [[host_name("embed_f16_f32")]] [[kernel]] decltype(embed<half, float>) embed<half, float>;
template [[host_name("embed_f16_f16")]] [[kernel]] decltype(embed<half, half>) embed<half, half>;
template [[host_name("embed_f16_bf16")]] [[kernel]] decltype(embed<half, ushort>) embed<half, ushort>;
template [[host_name("embed_f16_i8")]] [[kernel]] decltype(embed<half, char>) embed<half, char>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("embed_bf16_f32")]] [[kernel]] decltype(embed<bfloat, float>) embed<bfloat, float>;
template [[host_name("embed_bf16_f16")]] [[kernel]] decltype(embed<bfloat, half>) embed<bfloat, half>;
template [[host_name("embed_bf16_bf16")]] [[kernel]] decltype(embed<bfloat, ushort>) embed<bfloat, ushort>;
template [[host_name("embed_bf16_i8")]] [[kernel]] decltype(embed<bfloat, char>) embed<bfloat, char>;
#endif
