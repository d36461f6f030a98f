// Mathematical functions. The precise ones are computed in double with stated operations and rounded
// once, so that they give the same bits with every compiler and C library; all stay below 0.51 ulp.
// The fast ones follow the formulas of the Metal specification, table 8.2, overflow included.
#pragma once
#include "msl_types.h"

#ifndef MSL_FAST_FUNCTIONS
#define MSL_FAST_FUNCTIONS 1
#endif

namespace msl {
// A double literal: unsuffixed ones are float here, as in Metal.
constexpr double operator""_d(long double v) { return (double)v; }
constexpr double inv(double n) { return 1 / n; }

// Horner's rule, c[0] the highest coefficient.
template <int N> MSL_INL double horner(double x, const double (&c)[N]) {
    double p = c[0];
    for (int i = 1; i < N; ++i) p = p * x + c[i];
    return p;
}

// The nearest integer as a double and, in the low bits, as an integer; |x| < 2^31.
struct Nearest {
    double d;
    int i;
    MSL_INL explicit Nearest(double x) {
        double m = x + 0x1.8p52;
        d = m - 0x1.8p52;
        i = (int)bits<ulong>(m);
    }
};
MSL_INL double pow2(int k) { return bits<double>((ulong)(k + 1023) << 52); }  // -1022 <= k <= 1023

// exp(r) * 2^k for |r| <= 0.35: the series to r^12, remainder below 2^-54.
MSL_INL double exp_scaled(double r, int k) {
    constexpr double c[] = {inv(479001600), inv(39916800), inv(3628800), inv(362880), inv(40320), inv(5040),
                            inv(720), inv(120), inv(24), inv(6), inv(2), 1, 1};
    return horner(r, c) * pow2(k);
}
// Arguments beyond +-limit give the same float as the limit: 0 or infinity. NaN passes.
MSL_INL double within(double x, double limit) { return x > limit ? limit : x < -limit ? -limit : x; }
MSL_INL double exp(double x) {
    x = within(x, 700);
    Nearest k(x * 1.4426950408889634_d);
    return exp_scaled((x - k.d * 0x1.62e42feep-1_d) - k.d * 0x1.a39ef35793c76p-33_d, k.i);
}
MSL_INL double exp2(double x) {
    x = within(x, 1000);
    Nearest k(x);
    return exp_scaled((x - k.d) * 0.6931471805599453_d, k.i);
}

// log(x) = e*ln2 + 2*atanh((m-1)/(m+1)), x = m * 2^e, sqrt(1/2) <= m < sqrt(2).
struct Log {
    double e, m;  // exponent; natural logarithm of the mantissa
    MSL_INL explicit Log(double x) {
        ulong u = bits<ulong>(x) - 0x3fe6a09e667f3bcdul;
        e = (double)((long)u >> 52);
        double f = bits<double>((u & 0xffffffffffffful) + 0x3fe6a09e667f3bcdul);
        double s = (f - 1) / (f + 1), z = s * s;
        constexpr double c[] = {inv(23), inv(21), inv(19), inv(17), inv(15), inv(13),
                                inv(11), inv(9), inv(7), inv(5), inv(3), 1};
        m = 2 * s * horner(z, c);
    }
};
// What the logarithms give where there is none; otherwise y.
MSL_INL float log_edges(float x, double y) {
    if (x > 0 && x <= FLT_MAX) return (float)y;
    return x == 0 ? -INFINITY : x > 0 || x != x ? x : NAN;
}

// x mod pi/2, in [-pi/4, pi/4], and the quadrant.
struct Reduced {
    double r;
    int quadrant;
    MSL_INL explicit Reduced(float x) {
        if (__builtin_expect(__builtin_fabsf(x) < 0x1p20f, 1)) {
            Nearest k((double)x * 0.6366197723675814_d);
            r = (((double)x - k.d * 0x1.921fb544p+0_d) - k.d * 0x1.0b4611a6p-34_d) - k.d * 0x1.3198a2e037073p-69_d;
            quadrant = k.i;
        } else {
            *this = Reduced(bits<uint>(x));
        }
    }
    // Payne and Hanek: the mantissa times the window of 2/pi that matters, modulo 4.
    explicit Reduced(uint u) {
        static constexpr ulong two_over_pi[] = {0, 0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561};
        uint exp = u >> 23 & 255, shift = exp - 150 + 62;  // x = man * 2^(exp-150); 62: two bits before the point
        ulong man = (u & 0x7fffff) | 0x800000, w[2];
        for (uint i = 0; i < 2; ++i) {
            uint at = shift + 64 * i, word = at / 64, off = at % 64;
            w[i] = off ? two_over_pi[word] << off | two_over_pi[word + 1] >> (64 - off) : two_over_pi[word];
        }
        ulong frac = man * w[0] + (ulong)((unsigned __int128)man * w[1] >> 64);  // x*2/pi mod 4, as 2.62 bits
        quadrant = (int)(frac >> 62);
        long f = (long)(frac << 2);
        if (f < 0) ++quadrant;  // f is the distance from the nearest multiple
        r = (double)f * 0x1p-64 * 1.5707963267948966_d;
        if (exp == 255) r = __builtin_nan("");
        if (u >> 31) { r = -r; quadrant = -quadrant; }
    }
    MSL_INL double sine() const {
        constexpr double c[] = {-inv(1307674368000), inv(6227020800), -inv(39916800), inv(362880),
                                -inv(5040), inv(120), -inv(6)};
        double z = r * r;
        return r + r * z * horner(z, c);
    }
    MSL_INL double cosine() const {
        constexpr double c[] = {inv(20922789888000), -inv(87178291200), inv(479001600), -inv(3628800),
                                inv(40320), -inv(720), inv(24), -inv(2), 1};
        return horner(r * r, c);
    }
    MSL_INL double sin(int q) const { q += quadrant; double v = q & 1 ? cosine() : sine(); return q & 2 ? -v : v; }
};

// a*b + c of halves with one rounding: the product is exact in double; the sum is rounded to odd,
// in double and again to float's 24 bits, which leaves the last rounding exact.
MSL_INL half fma_half(half a, half b, half c) {
    double p = (double)(float)a * (double)(float)b, d = (float)c, s = p + d;
    double v = s - p, err = (p - (s - v)) + (d - v);
    ulong u = bits<ulong>(s);
    if ((err > 0 || err < 0) && !(u & 1)) u += (err > 0) == (s > 0) ? 1 : -1;
    if (u & 0x1fffffff) u = (u & ~0x1ffffffful) | 0x20000000;
    return half((float)bits<double>(u));
}
}  // namespace msl

namespace metal {
namespace precise {
using msl::operator""_d;
using msl::inv;
MSL_INL float exp(float x) { return (float)msl::exp(x); }
MSL_INL float exp2(float x) { return (float)msl::exp2(x); }
MSL_INL float exp10(float x) { return (float)msl::exp((double)x * 2.302585092994046_d); }
MSL_INL float log(float x) { msl::Log l(x); return msl::log_edges(x, l.e * 0.6931471805599453_d + l.m); }
MSL_INL float log2(float x) { msl::Log l(x); return msl::log_edges(x, l.e + l.m * 1.4426950408889634_d); }
MSL_INL float log10(float x) { msl::Log l(x); return msl::log_edges(x, l.e * 0.3010299956639812_d + l.m * 0.4342944819032518_d); }
MSL_INL float sin(float x) { return x == 0 ? x : (float)msl::Reduced(x).sin(0); }
MSL_INL float cos(float x) { return (float)msl::Reduced(x).sin(1); }
MSL_INL float sincos(float x, float& c) { msl::Reduced r(x); c = (float)r.sin(1); return x == 0 ? x : (float)r.sin(0); }
MSL_INL float tan(float x) { msl::Reduced r(x); return x == 0 ? x : (float)(r.sin(0) / r.sin(1)); }
MSL_INL float tanh(float x) {
    double d = x, z = d * d;
    if (z < 0x1p-16) return (float)(d + d * z * (z * (2 * inv(15)) - inv(3)));
    double t = msl::exp(-2 * __builtin_fabs(d));
    return __builtin_copysignf((float)((1 - t) / (1 + t)), x);
}
MSL_INL float sinh(float x) {
    double d = x, z = d * d;
    if (z < 0x1p-16) return (float)(d + d * z * (inv(6) + z * inv(120)));
    double t = msl::exp(d);
    return (float)((t - 1 / t) / 2);
}
MSL_INL float cosh(float x) { double t = msl::exp(x); return (float)((t + 1 / t) / 2); }
MSL_INL float pow(float x, float y) {
    float ax = __builtin_fabsf(x), whole = __builtin_truncf(y);
    if (y == 0 || x == 1) return 1;
    if (x != x || y != y) return x + y;
    if (ax == 1 && __builtin_fabsf(y) == INFINITY) return 1;
    bool odd = y == whole && __builtin_fabsf(y) < 0x1p24f && ((long)whole & 1);
    if (x < 0 && y != whole && ax != INFINITY) return NAN;
    double m;
    if (ax == 0 || ax == INFINITY) {
        m = (ax == 0) == (y > 0) ? 0 : (double)INFINITY;
    } else {
        msl::Log l(ax);
        m = msl::exp2((double)y * (l.e + l.m * 1.4426950408889634_d));
    }
    return __builtin_signbit(x) && odd ? -(float)m : (float)m;
}
MSL_INL float powr(float x, float y) { return x < 0 || (x == 0 && y == 0) ? NAN : pow(x, y); }
MSL_INL float sqrt(float x) { return __builtin_sqrtf(x); }
MSL_INL float rsqrt(float x) { return (float)(1 / __builtin_sqrt((double)x)); }
MSL_INL float divide(float x, float y) { return x / y; }
}  // namespace precise

namespace fast {
// A reciprocal beyond 2^126 leaves no normal result, and denormals are flushed.
MSL_INL float recip(float x) { return __builtin_fabsf(x) > 0x1p126f && x == x ? __builtin_copysignf(0, x) : 1 / x; }
MSL_INL float divide(float x, float y) { return x * recip(y); }
MSL_INL float exp2(float x) { return precise::exp2(x); }
MSL_INL float exp(float x) { return exp2(x * 1.44269504088896340736f); }
MSL_INL float exp10(float x) { return exp2(x * 3.32192809488736234787f); }
MSL_INL float log2(float x) { return precise::log2(x); }
MSL_INL float log(float x) { return log2(x) * 0.69314718055994530942f; }
MSL_INL float log10(float x) { return log2(x) * 0.30102999566398119521f; }
// Specified on [-pi, pi] only: outside, a reduction by one float constant.
MSL_INL float reduce(float x) {
    float k = __builtin_rintf(x * 0.15915494309189533577f);
    return x - k * 6.28318530717958647692f;
}
MSL_INL float sin(float x) { return precise::sin(reduce(x)); }
MSL_INL float cos(float x) { return precise::cos(reduce(x)); }
MSL_INL float sincos(float x, float& c) { return precise::sincos(reduce(x), c); }
MSL_INL float tan(float x) { return sin(x) * recip(cos(x)); }
MSL_INL float tanh(float x) { float t = exp(2 * x); return (t - 1) * recip(t + 1); }
MSL_INL float sinh(float x) { return 0.5f * (exp(x) - exp(-x)); }
MSL_INL float cosh(float x) { return 0.5f * (exp(x) + exp(-x)); }
MSL_INL float pow(float x, float y) { return exp2(y * log2(x)); }
MSL_INL float powr(float x, float y) { return pow(x, y); }
MSL_INL float rsqrt(float x) { return 1 / __builtin_sqrtf(x); }
MSL_INL float sqrt(float x) { return x > 0 && x < INFINITY ? x * rsqrt(x) : __builtin_sqrtf(x); }
}  // namespace fast

#if MSL_FAST_FUNCTIONS
namespace chosen = fast;
#else
namespace chosen = precise;
#endif

// f(float) as chosen; f(half) precise and rounded to half; f of vectors by component.
#define MSL_LIFT(f)                                                                                       \
    template <class F> MSL_INL msl::narrow<F> f(msl::narrow<F> x) { return msl::narrow<F>(f(float(x))); } \
    template <class T, int N> MSL_INL vec<T, N> f(vec<T, N> x) {                                          \
        MSL_VECTOR(T, N, f(x.at(i)));                                                                     \
    }
#define MSL_CHOSEN(f)                                               \
    MSL_INL float f(float x) { return chosen::f(x); }               \
    template <class F> MSL_INL msl::narrow<F> f(msl::narrow<F> x) { \
        return msl::narrow<F>(precise::f(float(x)));                \
    }                                                               \
    template <class T, int N> MSL_INL vec<T, N> f(vec<T, N> x) {    \
        MSL_VECTOR(T, N, f(x.at(i)));                               \
    }                                                               \
    namespace precise {                                             \
    template <int N> MSL_INL vec<float, N> f(vec<float, N> x) {     \
        MSL_VECTOR(float, N, f(x.at(i)));                               \
    }                                                               \
    }                                                               \
    namespace fast {                                                \
    template <int N> MSL_INL vec<float, N> f(vec<float, N> x) {     \
        MSL_VECTOR(float, N, f(x.at(i)));                               \
    }                                                               \
    }
MSL_CHOSEN(exp) MSL_CHOSEN(exp2) MSL_CHOSEN(exp10) MSL_CHOSEN(log) MSL_CHOSEN(log2) MSL_CHOSEN(log10)
MSL_CHOSEN(sin) MSL_CHOSEN(cos) MSL_CHOSEN(tan) MSL_CHOSEN(tanh) MSL_CHOSEN(sinh) MSL_CHOSEN(cosh)
MSL_CHOSEN(sqrt) MSL_CHOSEN(rsqrt)
#undef MSL_CHOSEN

MSL_INL float fabs(float x) { return __builtin_fabsf(x); }
MSL_INL float floor(float x) { return __builtin_floorf(x); }
MSL_INL float ceil(float x) { return __builtin_ceilf(x); }
MSL_INL float rint(float x) { return __builtin_rintf(x); }
MSL_INL float trunc(float x) { return __builtin_truncf(x); }
MSL_INL float round(float x) {  // halves away from zero
    float t = __builtin_truncf(x);
    return __builtin_copysignf(__builtin_fabsf(x - t) >= 0.5f ? __builtin_fabsf(t) + 1 : __builtin_fabsf(t), x);
}
MSL_INL float fract(float x) { float f = x - __builtin_floorf(x); return f < 0x1.fffffep-1f ? f : 0x1.fffffep-1f; }
MSL_INL float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f; }
MSL_LIFT(fabs) MSL_LIFT(floor) MSL_LIFT(ceil) MSL_LIFT(rint) MSL_LIFT(trunc) MSL_LIFT(round) MSL_LIFT(fract) MSL_LIFT(sign)
#undef MSL_LIFT
template <class F> MSL_INL msl::narrow<F> abs(msl::narrow<F> x) { x.b &= 0x7fff; return x; }
MSL_INL float abs(float x) { return __builtin_fabsf(x); }
MSL_INL int abs(int x) { return x < 0 ? -x : x; }
template <class T, int N> MSL_INL vec<T, N> abs(vec<T, N> x) { MSL_VECTOR(T, N, abs(x.at(i))); }

MSL_INL float copysign(float x, float y) { return __builtin_copysignf(x, y); }
MSL_INL float ldexp(float x, int k) {
    k = k > 300 ? 300 : k < -300 ? -300 : k;
    return (float)((double)x * msl::pow2(k));
}
MSL_INL float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MSL_INL half fma(half a, half b, half c) { return msl::fma_half(a, b, c); }
template <class T, int N> MSL_INL vec<T, N> fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
    MSL_VECTOR(T, N, fma(a.at(i), b.at(i), c.at(i)));
}
MSL_INL float pow(float x, float y) { return chosen::pow(x, y); }
MSL_INL half pow(half x, half y) { return half(precise::pow(x, y)); }
MSL_INL float powr(float x, float y) { return chosen::powr(x, y); }
MSL_INL half powr(half x, half y) { return half(precise::powr(x, y)); }
MSL_INL float divide(float x, float y) { return chosen::divide(x, y); }
MSL_INL float sincos(float x, float& c) { return chosen::sincos(x, c); }

MSL_INL bool isnan(float x) { return (msl::bits<uint>(x) & 0x7fffffff) > 0x7f800000; }
MSL_INL bool isinf(float x) { return (msl::bits<uint>(x) & 0x7fffffff) == 0x7f800000; }
MSL_INL bool isfinite(float x) { return (msl::bits<uint>(x) & 0x7fffffff) < 0x7f800000; }

// fmax and fmin return the other operand when one is NaN.
MSL_INL float max(float a, float b) { return a > b || b != b ? a : b; }
MSL_INL float min(float a, float b) { return a < b || b != b ? a : b; }
#define MSL_MINMAX(T)                                 \
    MSL_INL T max(T a, T b) { return a > b ? a : b; } \
    MSL_INL T min(T a, T b) { return a < b ? a : b; }
MSL_MINMAX(char) MSL_MINMAX(uchar) MSL_MINMAX(short) MSL_MINMAX(ushort)
MSL_MINMAX(int) MSL_MINMAX(uint) MSL_MINMAX(long) MSL_MINMAX(ulong)
#undef MSL_MINMAX
template <class F> MSL_INL msl::narrow<F> max(msl::narrow<F> a, msl::narrow<F> b) { return msl::narrow<F>(max(float(a), float(b))); }
template <class F> MSL_INL msl::narrow<F> min(msl::narrow<F> a, msl::narrow<F> b) { return msl::narrow<F>(min(float(a), float(b))); }
template <class T, int N> MSL_INL vec<T, N> max(vec<T, N> a, vec<T, N> b) { MSL_VECTOR(T, N, max(a.at(i), b.at(i))); }
template <class T, int N> MSL_INL vec<T, N> min(vec<T, N> a, vec<T, N> b) { MSL_VECTOR(T, N, min(a.at(i), b.at(i))); }
template <class T> MSL_INL T fmax(T a, T b) { return max(a, b); }
template <class T> MSL_INL T fmin(T a, T b) { return min(a, b); }
template <class T> MSL_INL T clamp(T x, T lo, T hi) { return min(max(x, lo), hi); }
template <class T, int N> MSL_INL vec<T, N> clamp(vec<T, N> x, T lo, T hi) { return min(max(x, vec<T, N>(lo)), vec<T, N>(hi)); }
MSL_INL float saturate(float x) { return clamp(x, 0.0f, 1.0f); }
namespace precise { using metal::max; using metal::min; using metal::fmax; using metal::fmin; using metal::clamp; using metal::fma; }
namespace fast { using metal::max; using metal::min; using metal::fmax; using metal::fmin; using metal::clamp; using metal::fma; }

MSL_INL float step(float edge, float x) { return x < edge ? 0.0f : 1.0f; }
template <class T, class A> MSL_INL T mix(T x, T y, A a) { return x + (y - x) * a; }
template <class T> MSL_INL T select(T a, T b, bool c) { return c ? b : a; }
template <class T, int N> MSL_INL vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> c) {
    MSL_VECTOR(T, N, c.at(i) ? b.at(i) : a.at(i));
}
template <int N> MSL_INL bool any(vec<bool, N> a) { bool r = false; MSL_EACH(N, r |= a.e[i]); return r; }
template <int N> MSL_INL bool all(vec<bool, N> a) { bool r = true; MSL_EACH(N, r &= a.e[i]); return r; }
template <class T, int N> MSL_INL T dot(vec<T, N> a, vec<T, N> b) {
    T s = a.at(0) * b.at(0);
    for (int i = 1; i < N; ++i) s = s + a.at(i) * b.at(i);
    return s;
}
template <int N> MSL_INL float length_squared(vec<float, N> a) { return dot(a, a); }
template <int N> MSL_INL float length(vec<float, N> a) { return sqrt(dot(a, a)); }

MSL_INL uint popcount(uint x) { return (uint)__builtin_popcount(x); }
MSL_INL uint clz(uint x) { return x ? (uint)__builtin_clz(x) : 32; }
MSL_INL uint ctz(uint x) { return x ? (uint)__builtin_ctz(x) : 32; }
MSL_INL uint extract_bits(uint x, uint offset, uint n) { return n == 0 ? 0 : x << (32 - n - offset) >> (32 - n); }
}  // namespace metal
