// embed.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)

struct EmbedArgs { uint dim, hasScale, hasPositions; float factor; };

// The weight's types as float. A bfloat16 is the upper half of a float.
inline float widen(float w) { return w; }
inline float widen(half w) { return float(w); }
inline float widen(ushort w) { return as_type<float>(uint(w) << 16); }
inline float widen(char w) { return float(w); }

// out[t,i] = w[ids[t],i] * factor + positions[t,i]; a thread for each element. The ids were checked before; positions begin
// at the first row's. Without hasScale or hasPositions, scale or positions is bound to w and not read.
template <typename T, typename W>
[[kernel]] void embed(device T *out [[buffer(0)]], device const int *ids [[buffer(1)]],
                      device const W *w [[buffer(2)]], device const float *scale [[buffer(3)]],
                      device const float *positions [[buffer(4)]], constant EmbedArgs &args [[buffer(5)]],
                      uint2 at [[thread_position_in_grid]]) {
    ulong id = ulong(ids[at.y]), to = ulong(at.y) * args.dim + at.x;
    float v = widen(w[id * args.dim + at.x]);
    if (args.hasScale != 0) v *= scale[id];
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
