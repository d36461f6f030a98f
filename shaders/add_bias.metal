// add_bias.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

struct AddBiasArgs { uint cols, stride, hasBias; };

// out[t,n] = sum[t,n] + bias[n]: the end of a linear op whose sums [rows, cols] were made elsewhere. A row of out has stride elements. A
// thread for each element.
template <typename T>
[[kernel]] void add_bias(device T *out [[buffer(0)]], device const float *sum [[buffer(1)]], device const float *bias [[buffer(2)]],
                     constant AddBiasArgs &args [[buffer(3)]], uint2 at [[thread_position_in_grid]]) {
    float s = sum[ulong(at.y) * args.cols + at.x];
    out[ulong(at.y) * args.stride + at.x] = T(args.hasBias != 0 ? s + bias[at.x] : s);
}

template [[host_name("add_bias_f32")]] [[kernel]] decltype(add_bias<float>) add_bias<float>;
template [[host_name("add_bias_f16")]] [[kernel]] decltype(add_bias<half>) add_bias<half>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("add_bias_bf16")]] [[kernel]] decltype(add_bias<bfloat>) add_bias<bfloat>;
#endif
