// quantize.metal
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

struct QuantizeArgs { uint cols, truncated; };

// q[t,k] = x[t,k] * a rounded to the nearest integer, ties to even (truncated: toward zero), and inverse[t] = 1 / a, with a = 127 / max |x[t]|,
// or 1 where that is infinite. A row that is not finite has the inverse NaN. A threadgroup of 8 simdgroups for each row t. The largest
// |x| is found by its bits, which have the order of the numbers: a maximum of floats may leave a NaN out.
template <typename T>
[[kernel]] void quantize(device char *q [[buffer(0)]], device float *inverse [[buffer(1)]], device const T *x [[buffer(2)]],
                         constant QuantizeArgs &args [[buffer(3)]], uint row [[threadgroup_position_in_grid]],
                         uint own [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint tops[8]; // by simdgroup
    x += ulong(row) * args.cols;
    q += ulong(row) * args.cols;
    uint top = 0;
    for (uint k = own; k < args.cols; k += 256) top = max(top, as_type<uint>(float(x[k])) & 0x7fffffffu);
    top = simd_max(top);
    if (lane == 0) tops[simd] = top;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 8; i++) top = max(top, tops[i]);
    float a = 127.0f / as_type<float>(top);
    if (isinf(a)) a = 1.0f;
    bool finite = top < 0x7f800000u;
    if (own == 0) inverse[row] = finite ? 1.0f / a : NAN;
    for (uint k = own; k < args.cols; k += 256) {
        float v = finite ? float(x[k]) * a : 0.0f;
        q[k] = char(args.truncated != 0 ? trunc(v) : rint(v));
    }
}

template [[host_name("quantize_f32")]] [[kernel]] decltype(quantize<float>) quantize<float>;
template [[host_name("quantize_f16")]] [[kernel]] decltype(quantize<half>) quantize<half>;

#if __METAL_VERSION__ >= 310 // bfloat
template [[host_name("quantize_bf16")]] [[kernel]] decltype(quantize<bfloat>) quantize<bfloat>;
#endif
