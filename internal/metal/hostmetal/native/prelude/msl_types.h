// Scalars, half, bfloat and vectors of the Metal Shading Language.
#pragma once
#include "../abi.h"

#define __METAL__ 1
#define __METAL_MACOS__ 1
#define MSL_INL inline __attribute__((always_inline))

// A statement for i = 0 .. n-1, n <= 4. Written out, because components that are reached by constant
// indexes alone go to registers early: it compiles faster than loops, and to better code.
#define MSL_EACH(n, ...)                                           \
    do {                                                           \
        { constexpr int i = 0; __VA_ARGS__; }                      \
        if constexpr (n > 1) { constexpr int i = 1; __VA_ARGS__; } \
        if constexpr (n > 2) { constexpr int i = 2; __VA_ARGS__; } \
        if constexpr (n > 3) { constexpr int i = 3; __VA_ARGS__; } \
    } while (0)

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;
typedef long ptrdiff_t;

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define MAXFLOAT 3.402823466e+38f
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define HALF_MAX half(65504.0f)
#define INT_MAX 2147483647
#define UINT_MAX 4294967295u
#define M_PI_F 3.14159265358979323846f
#define M_2_PI_F 0.63661977236758134308f
#define M_SQRT2_F 1.41421356237309504880f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.69314718055994530942f

namespace msl {
template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <class A, class B> struct is_same { static constexpr bool value = false; };
template <class A> struct is_same<A, A> { static constexpr bool value = true; };
template <class T> struct remove_const { typedef T type; };
template <class T> struct remove_const<const T> { typedef T type; };

template <class T> struct is_int { static constexpr bool value = false; };
#define MSL_INT(T) template <> struct is_int<T> { static constexpr bool value = true; };
MSL_INT(bool) MSL_INT(char) MSL_INT(signed char) MSL_INT(uchar) MSL_INT(short) MSL_INT(ushort)
MSL_INT(int) MSL_INT(uint) MSL_INT(long) MSL_INT(ulong) MSL_INT(long long) MSL_INT(unsigned long long)
#undef MSL_INT

template <class To, class From> MSL_INL To bits(From f) {
    static_assert(sizeof(To) == sizeof(From), "as_type: the sizes differ");
    To t;
    __builtin_memcpy(&t, &f, sizeof t);
    return t;
}

// IEEE binary16, rounded to nearest even.
struct F16 {
#if defined(__F16C__)
    typedef short V8 __attribute__((vector_size(16)));
    typedef float V4 __attribute__((vector_size(16)));
    static MSL_INL float widen(ushort h) { return __builtin_ia32_vcvtph2ps(V8{(short)h})[0]; }
    static MSL_INL ushort narrow(float f) { return (ushort)__builtin_ia32_vcvtps2ph(V4{f}, 0)[0]; }
#elif defined(__aarch64__)
    static MSL_INL float widen(ushort h) { return (float)bits<__fp16>(h); }
    static MSL_INL ushort narrow(float f) { return bits<ushort>((__fp16)f); }
#else
    static MSL_INL float widen(ushort h) {
        uint sign = (uint)(h & 0x8000) << 16, exp = (h >> 10) & 31, man = h & 1023;
        if (exp == 31) return bits<float>(sign | 0x7f800000u | man << 13 | (man ? 0x400000u : 0));
        if (exp) return bits<float>(sign | (exp + 112) << 23 | man << 13);
        return bits<float>(bits<uint>((float)man * 0x1p-24f) | sign);
    }
    static MSL_INL ushort narrow(float f) {
        uint u = bits<uint>(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffffu;
        if (a > 0x7f800000u) return (ushort)(sign | 0x7e00 | (a >> 13 & 0x3ff));
        if (a >= 0x477ff000u) return (ushort)(sign | 0x7c00);
        if (a < 0x38800000u) return (ushort)(sign | (bits<uint>(bits<float>(a) + 0.5f) - 0x3f000000u));
        return (ushort)(sign | (a + 0xfffu + (a >> 13 & 1) - 0x38000000u) >> 13);
    }
#endif
};

// bfloat16, rounded to nearest even.
struct BF16 {
    static MSL_INL float widen(ushort b) { return bits<float>((uint)b << 16); }
    static MSL_INL ushort narrow(float f) {
        uint u = bits<uint>(f);
        if ((u & 0x7fffffffu) > 0x7f800000u) return (ushort)(u >> 16 | 0x40);
        return (ushort)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
    }
};

// A 16-bit floating-point number: it widens to float by itself and rounds after every operation.
// One rounding of a float sum, product or quotient is exact rounding: 24 >= 2*11 + 2 bits.
template <class F> struct narrow {
    ushort b;
    narrow() = default;
    MSL_INL constexpr narrow(const narrow&) = default;
    MSL_INL narrow(float f) : b(F::narrow(f)) {}
    MSL_INL narrow(double f) : b(F::narrow((float)f)) {}
    template <class I, class = typename enable_if<is_int<I>::value>::type>
    MSL_INL narrow(I i) : b(F::narrow((float)i)) {}
    narrow& operator=(const narrow&) = default;
    MSL_INL operator float() const { return F::widen(b); }
    template <class R> MSL_INL narrow& operator+=(R r) { return *this = narrow(float(*this) + float(r)); }
    template <class R> MSL_INL narrow& operator-=(R r) { return *this = narrow(float(*this) - float(r)); }
    template <class R> MSL_INL narrow& operator*=(R r) { return *this = narrow(float(*this) * float(r)); }
    template <class R> MSL_INL narrow& operator/=(R r) { return *this = narrow(float(*this) / float(r)); }
    MSL_INL narrow operator-() const { narrow r; r.b = (ushort)(b ^ 0x8000); return r; }
    MSL_INL narrow operator+() const { return *this; }
};

// narrow op narrow and narrow op integer are narrow; narrow op float is float.
template <class A, class B> struct narrow_op {};
template <class F> struct narrow_op<narrow<F>, narrow<F>> { typedef narrow<F> type; };
template <class F, class I> struct narrow_op<narrow<F>, I> : enable_if<is_int<I>::value, narrow<F>> {};
template <class F, class I> struct narrow_op<I, narrow<F>> : enable_if<is_int<I>::value, narrow<F>> {};
#define MSL_OP(op)                                                        \
    template <class A, class B, class R = typename narrow_op<A, B>::type> \
    MSL_INL R operator op(A a, B b) { return R(float(R(a)) op float(R(b))); }
MSL_OP(+) MSL_OP(-) MSL_OP(*) MSL_OP(/)
#undef MSL_OP

template <class T> struct is_scalar { static constexpr bool value = is_int<T>::value; };
template <> struct is_scalar<float> { static constexpr bool value = true; };
template <class F> struct is_scalar<narrow<F>> { static constexpr bool value = true; };
}  // namespace msl

typedef msl::narrow<msl::F16> half;
typedef msl::narrow<msl::BF16> bfloat;
MSL_INL half operator"" h(long double v) { return half((float)v); }
MSL_INL half operator"" h(unsigned long long v) { return half((float)v); }

namespace metal {
template <class T, int N> struct vec;
}

namespace msl {
using metal::vec;
// Some components of a vector of M, in the order I...
template <class T, int M, int... I> struct swizzle {
    T e[M];
    static constexpr int N = sizeof...(I);
    MSL_INL operator vec<T, N>() const { return vec<T, N>(e[I]...); }
    MSL_INL swizzle& operator=(vec<T, N> v) { int k = 0; ((e[I] = v.at(k++)), ...); return *this; }
    MSL_INL swizzle& operator=(const swizzle& o) { return *this = vec<T, N>(o); }
};
template <class T> using scalar_only = typename enable_if<is_scalar<T>::value>::type;

// float4, int4 and uint4 are whole registers of the processor.
template <class T, int N> struct simd { static constexpr bool value = false; struct type {}; };
#define MSL_SIMD4(T)                                      \
    template <> struct simd<T, 4> {                       \
        static constexpr bool value = true;               \
        typedef T type __attribute__((vector_size(16)));  \
    };
MSL_SIMD4(float) MSL_SIMD4(int) MSL_SIMD4(uint)
#undef MSL_SIMD4
// Short vectors are copied as one integer: element by element, a later load of the whole would
// wait for the stores. Other ones stay in registers element by element.
template <class T, int N> MSL_INL void copy(vec<T, N>& to, const vec<T, N>& from) {
    if constexpr (simd<T, N>::value) to.v = from.v;
    else if constexpr (sizeof to <= 8) __builtin_memcpy((void*)&to, &from, sizeof to);
    else MSL_EACH(N, to.e[i] = from.e[i]);
}
}  // namespace msl

// Returns a vector of N components R, each the expression's value for its i.
#define MSL_VECTOR(R, N, ...)                     \
    do {                                          \
        R msl_r[N];                               \
        MSL_EACH(N, msl_r[i] = R(__VA_ARGS__));   \
        return vec<R, N>(msl_r);                  \
    } while (0)

namespace metal {
// A vector is a union of its scalars with a whole register, where there is one. The compilers keep it in a
// register as long as all see it as the same, so the prelude makes and reads whole vectors only: v, at(i).
#define MSL_VEC(N)                                                                        \
    vec() = default;                                                                      \
    MSL_INL vec(const vec& o) { msl::copy(*this, o); }                                    \
    MSL_INL vec& operator=(const vec& o) { msl::copy(*this, o); return *this; }           \
    template <class S, class = msl::scalar_only<S>>                                       \
    MSL_INL vec(S s) { T t[N]; MSL_EACH(N, t[i] = T(s)); set(t); }                        \
    template <class U, class = typename msl::enable_if<!msl::is_same<U, T>::value>::type> \
    MSL_INL explicit vec(const vec<U, N>& o) { T t[N]; MSL_EACH(N, t[i] = T(o.at(i))); set(t); } \
    MSL_INL explicit vec(const T (&t)[N]) { set(t); }                                     \
    MSL_INL void set(const T (&t)[N]) {                                                   \
        if constexpr (msl::simd<T, N>::value) this->v = typename msl::simd<T, N>::type{t[0], t[1], t[2], t[3]}; \
        else MSL_EACH(N, e[i] = t[i]);                                                    \
    }                                                                                     \
    MSL_INL T at(int i) const {                                                           \
        if constexpr (msl::simd<T, N>::value) return this->v[i];                              \
        else return e[i];                                                                 \
    }                                                                                     \
    MSL_INL T& operator[](uint i) { return e[i]; }                                        \
    MSL_INL const T& operator[](uint i) const { return e[i]; }                            \
    template <class R> MSL_INL vec& operator+=(R r) { return *this = *this + r; }         \
    template <class R> MSL_INL vec& operator-=(R r) { return *this = *this - r; }         \
    template <class R> MSL_INL vec& operator*=(R r) { return *this = *this * r; }         \
    template <class R> MSL_INL vec& operator/=(R r) { return *this = *this / r; }         \
    MSL_INL vec operator-() const { MSL_VECTOR(T, N, -at(i)); }

template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
    union {
        struct { T x, y; };
        struct { T r, g; };
        T e[2];
        msl::swizzle<T, 2, 0, 1> xy;
        msl::swizzle<T, 2, 1, 0> yx;
        typename msl::simd<T, 2>::type v;
    };
    MSL_VEC(2)
    MSL_INL vec(T a, T b) { e[0] = a; e[1] = b; }
};

template <class T> struct alignas(4 * sizeof(T)) vec<T, 3> {
    union {
        struct { T x, y, z; };
        struct { T r, g, b; };
        T e[3];
        msl::swizzle<T, 3, 0, 1> xy;
        msl::swizzle<T, 3, 1, 2> yz;
        msl::swizzle<T, 3, 0, 2> xz;
        msl::swizzle<T, 3, 0, 1, 2> xyz;
        typename msl::simd<T, 3>::type v;
    };
    MSL_VEC(3)
    MSL_INL vec(T a, T b, T c) { e[0] = a; e[1] = b; e[2] = c; }
    MSL_INL vec(vec<T, 2> a, T c) { e[0] = a.e[0]; e[1] = a.e[1]; e[2] = c; }
};

template <class T> struct alignas(4 * sizeof(T)) vec<T, 4> {
    union {
        struct { T x, y, z, w; };
        struct { T r, g, b, a; };
        T e[4];
        msl::swizzle<T, 4, 0, 1> xy;
        msl::swizzle<T, 4, 1, 2> yz;
        msl::swizzle<T, 4, 2, 3> zw;
        msl::swizzle<T, 4, 0, 2> xz;
        msl::swizzle<T, 4, 1, 3> yw;
        msl::swizzle<T, 4, 0, 1, 2> xyz;
        msl::swizzle<T, 4, 1, 2, 3> yzw;
        msl::swizzle<T, 4, 0, 1, 2, 3> xyzw;
        msl::swizzle<T, 4, 3, 2, 1, 0> wzyx;
        msl::swizzle<T, 4, 1, 0, 3, 2> yxwz;
        typename msl::simd<T, 4>::type v;
    };
    MSL_VEC(4)
    MSL_INL vec(T a, T b, T c, T d) : vec({a, b, c, d}) {}
    MSL_INL vec(vec<T, 2> a, vec<T, 2> b) : vec({a.e[0], a.e[1], b.e[0], b.e[1]}) {}
    MSL_INL vec(vec<T, 3> a, T d) : vec({a.e[0], a.e[1], a.e[2], d}) {}
};
#undef MSL_VEC

// Four short integers at once, through one load.
template <> template <> MSL_INL vec<uint, 4>::vec(const vec<ushort, 4>& o) {
    typedef ushort V __attribute__((vector_size(8)));
    v = __builtin_convertvector(msl::bits<V>(o), msl::simd<uint, 4>::type);
}
template <> template <> MSL_INL vec<float, 4>::vec(const vec<char, 4>& o) {
    typedef msl::simd<int, 4>::type V;
    int u = msl::bits<int>(o);
    v = __builtin_convertvector((V{u, u, u, u} << V{24, 16, 8, 0}) >> 24, msl::simd<float, 4>::type);
}
#if defined(__F16C__)
// Four halves at once, through one 8-byte load or store.
template <> template <> MSL_INL vec<float, 4>::vec(const vec<half, 4>& o) {
    typedef long V2 __attribute__((vector_size(16)));
    long u;
    __builtin_memcpy(&u, &o, 8);
    v = __builtin_ia32_vcvtph2ps((msl::F16::V8)V2{u, 0});
}
template <> template <> MSL_INL vec<half, 4>::vec(const vec<float, 4>& o) {
    typedef long V2 __attribute__((vector_size(16)));
    long u = ((V2)__builtin_ia32_vcvtps2ph(o.v, 0))[0];
    __builtin_memcpy(this, &u, 8);
}
#endif

#define MSL_VV(op, R)                                                                   \
    template <class T, int N> MSL_INL vec<R, N> operator op(vec<T, N> a, vec<T, N> b) { \
        if constexpr (msl::simd<T, N>::value && msl::is_same<R, T>::value) {            \
            a.v = a.v op b.v;                                                           \
            return a;                                                                   \
        } else MSL_VECTOR(R, N, a.at(i) op b.at(i));                                    \
    }                                                                                   \
    template <class T, int N, class S, class = msl::scalar_only<S>>                     \
    MSL_INL vec<R, N> operator op(vec<T, N> a, S s) { return a op vec<T, N>(s); }       \
    template <class T, int N, class S, class = msl::scalar_only<S>>                     \
    MSL_INL vec<R, N> operator op(S s, vec<T, N> b) { return vec<T, N>(s) op b; }
#define MSL_SWIZZLED(op)                                                                               \
    template <class T, int M, int... I, class S>                                                       \
    MSL_INL auto operator op(msl::swizzle<T, M, I...> a, S s) { return vec<T, sizeof...(I)>(a) op s; } \
    template <class T, int M, int... I, class S, class = msl::scalar_only<S>>                          \
    MSL_INL auto operator op(S s, msl::swizzle<T, M, I...> a) { return s op vec<T, sizeof...(I)>(a); } \
    template <class T, int N, int M, int... I>                                                         \
    MSL_INL auto operator op(vec<T, N> a, msl::swizzle<T, M, I...> b) { return a op vec<T, N>(b); }
MSL_VV(+, T) MSL_VV(-, T) MSL_VV(*, T) MSL_VV(/, T) MSL_VV(%, T)
MSL_VV(&, T) MSL_VV(|, T) MSL_VV(^, T) MSL_VV(<<, T) MSL_VV(>>, T)
MSL_VV(<, bool) MSL_VV(>, bool) MSL_VV(<=, bool) MSL_VV(>=, bool) MSL_VV(==, bool) MSL_VV(!=, bool)
MSL_SWIZZLED(+) MSL_SWIZZLED(-) MSL_SWIZZLED(*) MSL_SWIZZLED(/)
#undef MSL_VV
#undef MSL_SWIZZLED
template <int N> MSL_INL vec<bool, N> operator!(vec<bool, N> a) { return a == vec<bool, N>(false); }

template <class T, int N> struct packed_vec {
    T e[N];
    packed_vec() = default;
    MSL_INL packed_vec(vec<T, N> v) { MSL_EACH(N, e[i] = v.at(i)); }
    MSL_INL operator vec<T, N>() const {
        if constexpr (N == 4) {  // whole, whatever its alignment
            vec<T, N> r;
            __builtin_memcpy((void*)&r, e, sizeof r);
            return r;
        } else return vec<T, N>(e);
    }
    MSL_INL T& operator[](uint i) { return e[i]; }
    MSL_INL const T& operator[](uint i) const { return e[i]; }
};

using ::half; using ::bfloat; using ::uchar; using ::ushort; using ::uint; using ::ulong;
}  // namespace metal

#define MSL_NAMES(T)                                                                              \
    typedef metal::vec<T, 2> T##2; typedef metal::vec<T, 3> T##3; typedef metal::vec<T, 4> T##4;  \
    typedef metal::packed_vec<T, 2> packed_##T##2; typedef metal::packed_vec<T, 3> packed_##T##3; \
    typedef metal::packed_vec<T, 4> packed_##T##4;                                                \
    namespace metal { using ::T##2; using ::T##3; using ::T##4;                                   \
        using ::packed_##T##2; using ::packed_##T##3; using ::packed_##T##4; }
MSL_NAMES(float) MSL_NAMES(half) MSL_NAMES(bfloat) MSL_NAMES(bool) MSL_NAMES(char) MSL_NAMES(uchar)
MSL_NAMES(short) MSL_NAMES(ushort) MSL_NAMES(int) MSL_NAMES(uint) MSL_NAMES(long) MSL_NAMES(ulong)
#undef MSL_NAMES

namespace msl {
template <class To, class From> struct Cast {
    static MSL_INL To of(From f) { return bits<To>(f); }
};
template <class To, class From, int N> struct Cast<vec<To, N>, vec<From, N>> {
    static MSL_INL vec<To, N> of(vec<From, N> f) {
        if constexpr (simd<To, N>::value && simd<From, N>::value) {
            vec<To, N> t;
            t.v = (typename simd<To, N>::type)f.v;
            return t;
        } else MSL_VECTOR(To, N, bits<To>(f.at(i)));
    }
};
}  // namespace msl
template <class To, class From> MSL_INL To as_type(From f) { return msl::Cast<To, From>::of(f); }
namespace metal { using ::as_type; }
