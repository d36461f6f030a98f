// softmax.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

struct SoftmaxArgs { uint first, keys; };

// out[h,t,j] = exp(x[h,t,j] - max) / sum of exp(x[h,t] - max), over the keys [0, first+t) that row t attends to; the others
// are exactly 0 and never read. A simdgroup for each row t and head h. first is at least 1, so a row has a maximum.
template <typename T>
[[kernel]] void softmax(device T *out [[buffer(0)]], device const T *x [[buffer(1)]],
                        constant SoftmaxArgs &args [[buffer(2)]], uint2 group [[threadgroup_position_in_grid]],
                        uint2 groups [[threadgroups_per_grid]], uint lane [[thread_index_in_simdgroup]]) {
    ulong row = (ulong(group.y) * groups.x + group.x) * args.keys;
    out += row;
    x += row;
    uint n = min(args.first + group.x, args.keys);
    float top = float(x[0]);
    for (uint j = lane; j < n; j += 32) top = max(top, float(x[j]));
    top = simd_max(top);
    float sum = 0.0f;
    for (uint j = lane; j < n; j += 32) sum += precise::exp(float(x[j]) - top);
    sum = simd_sum(sum);
    for (uint j = lane; j < args.keys; j += 32) {
        out[j] = j < n ? T(precise::exp(float(x[j]) - top) / sum) : T(0.0f);
    }
}

template [[host_name("softmax_f32")]] [[kernel]] decltype(softmax<float>) softmax<float>;
template [[host_name("softmax_f16")]] [[kernel]] decltype(softmax<half>) softmax<half>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("softmax_bf16")]] [[kernel]] decltype(softmax<bfloat>) softmax<bfloat>;
#endif
