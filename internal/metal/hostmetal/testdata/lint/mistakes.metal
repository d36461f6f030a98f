// mistakes.metal: each line that ends in "want" has a mistake that Apple's compiler would refuse, or that is one though it compiles.
#include <metal_stdlib>
using namespace metal;
#pragma METAL fp math_mode(safe)

struct Args { uint dim; float eps; };

inline float of_device(device const float *p) { return p[0]; }
inline float of_group(threadgroup const float *p) { return p[0]; }
inline float of_thread(thread const float *p) { return p[0]; }
template <typename W>
inline float first(device const W *row) { return float(row[0]); }

kernel void spaces(device float *out [[buffer(0)]], device const float *x [[buffer(1)]], constant Args &args [[buffer(2)]],
                   threadgroup float *shared [[threadgroup(0)]], uint i [[thread_position_in_grid]]) {
    threadgroup float tile[2 * 16];
    float mine = args.eps;
    out[i] = of_device(shared);                 // want no matching function for call to 'of_device'
    out[i] += of_group(x);                      // want no matching function for call to 'of_group'
    out[i] += of_thread(x);                     // want no matching function for call to 'of_thread'
    out[i] += of_thread(tile);                  // want no matching function for call to 'of_thread'
    out[i] += of_device(&mine);                 // want no matching function for call to 'of_device'
    out[i] += first(shared);                    // want no matching function for call to 'first'
    thread const float *p = x;                  // want cannot initialize a variable of type 'const float *'
    threadgroup float4 *q = reinterpret_cast<threadgroup float4 *>(out); // want reinterpret_cast from
    out[i] += p[0] + q[0].x;
    x[i] = 1.0f;                                // want read-only variable is not assignable
    args.dim = 1;                               // want cannot assign to variable 'args'
}

kernel void narrow(device half *out [[buffer(0)]], device const half *x [[buffer(1)]], device int *n [[buffer(2)]],
                   uint i [[thread_position_in_grid]]) {
    float v = float(x[i]);
    out[i] = v;                                 // want loses floating-point precision: 'float' to
    half h = v * 1.5f;                          // want loses floating-point precision: 'float' to
    v += x[i] * 1.5f;                           // want increases floating-point precision: 'device half
    n[i] = v * 2.0f;                            // want turns floating-point number into integer
    v = n[i];                                   // want to 'float' may lose precision
    half4 h4 = half4(h);
    float4 f4 = h4;                             // want cannot initialize a variable of type 'float4'
    out[i] = half(f4.x + v);
}

kernel void wide(device float *out [[buffer(0)]], device const float *x [[buffer(1)]], constant Args &args [[buffer(2)]],
                 uint2 at [[thread_position_in_grid]]) {
    ulong to = ulong(at.y) * args.dim + at.x;
    uint from = to;                             // want loses integer precision: 'ulong'
    int last = 7;
    for (int j = 0; j < args.dim; j++) out[to] += x[from]; // want comparison of integers of different signs
    out[min(to, args.dim)] = 0.0f;              // want call to 'min' is ambiguous
    out[max(last, at.x)] = 0.0f;                // want call to 'max' is ambiguous
}

kernel void doubles(device float *out [[buffer(0)]], device const float *x [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    out[i] = x[i] * float(0.5 * x[i]);          // want to 'double'
    double d = 2.0;                             // want attempt to use a poisoned identifier
    out[i] += float(d);
}

kernel void unused(device float *out [[buffer(0)]], device const float *x [[buffer(1)]], // want unused parameter 'x'
                   constant Args &args [[buffer(2)]],                                    // want unused parameter 'args'
                   uint i [[thread_position_in_grid]]) {
    float left = 1.0f;                          // want unused variable 'left'
    out[i] = 0.0f;
    for (uint i = 0; i < 2; i++) out[i] = 0.0f; // want declaration shadows a local variable
}

// Words of C and C++ that Metal has not.
kernel void foreign(device float *out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    out[i] = erf(out[i]);                       // want use of undeclared identifier 'erf'
    out[i] = tanhf(out[i]);                     // want use of undeclared identifier 'tanhf'
    out[i] = std::exp(out[i]);                  // want use of undeclared identifier 'std'
    out[i] = fma(out[i], half(1.0f), 0.0f);     // want call to 'fma' is ambiguous
    out[i] = precise::erf(out[i]);              // want no member named 'erf' in namespace 'metal::precise'
    printf("%f", out[i]);                       // want use of undeclared identifier 'printf'
}

// A function that Metal has, too.
inline float sign(float x) { return x < 0.0f ? -1.0f : 1.0f; }
kernel void twice(device float *out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    out[i] = sign(out[i]);                      // want call to 'sign' is ambiguous
}

// A mistake in a template shows in its instances.
template <typename T>
[[kernel]] void instance(device T *out [[buffer(0)]], device const float *x [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    out[i] = x[i] * x[i];                       // want loses floating-point precision: 'float' to
}
template [[host_name("instance_f32")]] [[kernel]] decltype(instance<float>) instance<float>;
template [[host_name("instance_f16")]] [[kernel]] decltype(instance<half>) instance<half>;

// And those of bfloat in theirs: it is no half.
template <typename T>
[[kernel]] void brains(device T *out [[buffer(0)]], device const half *x [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    device const T *y = x;                      // want cannot initialize a variable of type 'device __fp16 const *'
    out[i] = T(y[i]);
}
template [[host_name("brains_f16")]] [[kernel]] decltype(brains<half>) brains<half>;
#if __METAL_VERSION__ >= 310
template [[host_name("brains_bf16")]] [[kernel]] decltype(brains<bfloat>) brains<bfloat>;
#endif
