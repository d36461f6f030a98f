// add.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

struct AddArgs { uint dim; };

// out = a + b; a thread for each element of each row.
template <typename T>
[[kernel]] void add(device T *out [[buffer(0)]], device const T *a [[buffer(1)]], device const T *b [[buffer(2)]],
                    constant AddArgs &args [[buffer(3)]], uint2 at [[thread_position_in_grid]]) {
    ulong i = ulong(at.y) * args.dim + at.x;
    out[i] = T(float(a[i]) + float(b[i]));
}

template [[host_name("add_f32")]] [[kernel]] decltype(add<float>) add<float>;
template [[host_name("add_f16")]] [[kernel]] decltype(add<half>) add<half>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("add_bf16")]] [[kernel]] decltype(add<bfloat>) add<bfloat>;
#endif
