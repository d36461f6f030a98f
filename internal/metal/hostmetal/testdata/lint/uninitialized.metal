// uninitialized.metal: what clang looks for only in a text without errors.
#include <metal_stdlib>
using namespace metal;

template <typename T>
[[kernel]] void sums(device T *out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    float sum;
    if (i < 4) sum = 1.0f;                      // want variable 'sum' is used uninitialized
    out[i] = T(sum);
}
template [[host_name("sums_f32")]] [[kernel]] decltype(sums<float>) sums<float>;

inline float sign_of(float x) {
    if (x < 0.0f) return -1.0f;
}                                               // want non-void function does not return a value
