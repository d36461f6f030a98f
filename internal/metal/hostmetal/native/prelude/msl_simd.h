// Barriers, simdgroup functions, atomics.
#pragma once
#include "msl_math.h"

extern "C" void* __tsan_memcpy(void*, const void*, unsigned long);  // the checked mode's

namespace msl {
extern const MslRuntime* rt;  // given to msl_lib when the library is loaded

// The line of the caller, as the default value of a last argument.
struct line {
    uint l;
    static constexpr line here(uint l = __builtin_LINE()) { return line{l}; }
};

// How a value lies in the slots: a component of at most 4 bytes is one word, so that a reduction
// reads consecutive words; 8-byte scalars take two.
template <class T> struct Lane {
    static_assert(sizeof(T) <= 8, "simdgroup functions take scalars and vectors of at most 4 components");
    typedef T scalar;
    static constexpr uint n = 1;
    static MSL_INL void put(msl_u32 (*words)[MSL_SIMD], uint lane, T v) {
        msl_u32 w[2] = {};
        __builtin_memcpy(w, &v, sizeof v);
        words[0][lane] = w[0];
        if (sizeof(T) > 4) words[1][lane] = w[1];
    }
    static MSL_INL T get(const msl_u32 (*words)[MSL_SIMD], uint lane) {
        msl_u32 w[2] = {words[0][lane], sizeof(T) > 4 ? words[1][lane] : 0};
        T v;
        __builtin_memcpy(&v, w, sizeof v);
        return v;
    }
};
template <class T, int N> struct Lane<vec<T, N>> {
    static_assert(sizeof(T) <= 4, "simdgroup functions take no vectors of 8-byte components");
    typedef T scalar;
    static constexpr uint n = N;
    static MSL_INL void put(msl_u32 (*words)[MSL_SIMD], uint lane, vec<T, N> v) {
        MSL_EACH(N, Lane<T>::put(words + i, lane, v.at(i)));
    }
    static MSL_INL vec<T, N> get(const msl_u32 (*words)[MSL_SIMD], uint lane) {
        MSL_VECTOR(T, N, Lane<T>::get(words + i, lane));
    }
};

// Puts v down and waits for the other active lanes; returns the bank that holds everyone's value.
template <class T> MSL_INL uint exchange(T v, line at, const char* what) {
    MslThread* t = msl_self();
    MslSimd* s = t->simd;
    uint bank = s->gen & 1;
    Lane<T>::put(s->slots[bank], t->lane, v);
    if (void* to = rt->simd(t, at.l, what)) msl_switch(&t->sp, to);
    return bank;
}

// While it lives, the checked mode takes what the thread does for done by its whole simdgroup.
struct Together {
    MSL_INL Together() { if (MSL_CHECKED) rt->together(msl_self(), true); }
    MSL_INL ~Together() { if (MSL_CHECKED) rt->together(msl_self(), false); }
};

// Copies from memory that others see: of a memcpy that becomes a few moves, compilers tell the checked mode nothing.
MSL_INL void fetch(void* to, const void* from, size_t n) { MSL_CHECKED ? __tsan_memcpy(to, from, n) : __builtin_memcpy(to, from, n); }

template <class T> MSL_INL T slot(const MslSimd* s, uint bank, uint lane) { return Lane<T>::get(s->slots[bank], lane); }

// The value of another lane, which must be active.
template <class T> MSL_INL T from(T v, uint lane, line at, const char* what) {
    uint bank = exchange(v, at, what);
    MslThread* t = msl_self();
    if (lane >= MSL_SIMD || !(t->simd->mask[bank] >> lane & 1))
        rt->fail(t, at.l, what, "reads a lane that is inactive or absent");
    return slot<T>(t->simd, bank, lane);
}

// One component of all lanes in m, in one order whatever the schedule: halves are folded onto each
// other, or, where lanes are missing, the lanes are taken in turn.
template <class T, class F> MSL_INL T fold(const msl_u32 (*words)[MSL_SIMD], uint m, F f) {
    if (m == ~0u) {
        T a[MSL_SIMD];
        for (uint i = 0; i < MSL_SIMD; ++i) a[i] = Lane<T>::get(words, i);
#pragma GCC unroll 5
        for (uint w = MSL_SIMD / 2; w; w /= 2)
            for (uint i = 0; i < w; ++i) a[i] = f(a[i], a[i + w]);
        return a[0];
    }
    T r = Lane<T>::get(words, __builtin_ctz(m));
    while (m &= m - 1) r = f(r, Lane<T>::get(words, __builtin_ctz(m)));
    return r;
}

// A reduction. The first lane to go on computes it for all, into the slot of lane 0.
template <class T, class F> MSL_INL T reduce(T v, F f, line at, const char* what) {
    typedef typename Lane<T>::scalar S;
    uint bank = exchange(v, at, what);
    MslSimd* s = msl_self()->simd;
    if (!(s->have >> bank & 1)) {
        s->have |= 1u << bank;
        for (uint i = 0; i < Lane<T>::n; ++i)
            Lane<S>::put(s->slots[bank] + i, 0, fold<S>(s->slots[bank] + i, s->mask[bank], f));
    }
    return slot<T>(s, bank, 0);
}
}  // namespace msl

namespace metal {
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
MSL_INL constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }

MSL_INL void threadgroup_barrier(mem_flags flags, msl::line at = msl::line::here()) {
    MslThread* t = msl_self();
    if (void* to = msl::rt->barrier(t, at.l)) msl_switch(&t->sp, to);
    if (MSL_CHECKED) msl::rt->passed(t, msl_u32(flags), true);
}
MSL_INL void simdgroup_barrier(mem_flags flags, msl::line at = msl::line::here()) {
    MslThread* t = msl_self();
    if (void* to = msl::rt->simd(t, at.l, "simdgroup_barrier")) msl_switch(&t->sp, to);
    if (MSL_CHECKED) msl::rt->passed(t, msl_u32(flags), false);
}

#define MSL_REDUCE(name, expr)                                                              \
    template <class T> MSL_INL T name(T v, msl::line at = msl::line::here()) {              \
        return msl::reduce(v, [](auto a, auto b) { return decltype(a)(expr); }, at, #name); \
    }
MSL_REDUCE(simd_sum, a + b) MSL_REDUCE(simd_product, a * b)
MSL_REDUCE(simd_max, max(a, b)) MSL_REDUCE(simd_min, min(a, b))
MSL_REDUCE(simd_and, a & b) MSL_REDUCE(simd_or, a | b) MSL_REDUCE(simd_xor, a ^ b)
#undef MSL_REDUCE
MSL_INL bool simd_any(bool p, msl::line at = msl::line::here()) {
    return msl::reduce<uint>(p, [](uint a, uint b) { return a | b; }, at, "simd_any");
}
MSL_INL bool simd_all(bool p, msl::line at = msl::line::here()) {
    return msl::reduce<uint>(p, [](uint a, uint b) { return a & b; }, at, "simd_all");
}
MSL_INL bool simd_is_first() { return msl_self()->lane == uint(__builtin_ctz(msl_self()->simd->live)); }

template <class T> MSL_INL T simd_shuffle(T v, ushort lane, msl::line at = msl::line::here()) {
    return msl::from(v, lane, at, "simd_shuffle");
}
template <class T> MSL_INL T simd_broadcast(T v, ushort lane, msl::line at = msl::line::here()) {
    return msl::from(v, lane, at, "simd_broadcast");
}
template <class T> MSL_INL T simd_broadcast_first(T v, msl::line at = msl::line::here()) {
    uint bank = msl::exchange(v, at, "simd_broadcast_first");
    MslSimd* s = msl_self()->simd;
    return msl::slot<T>(s, bank, __builtin_ctz(s->mask[bank]));
}
template <class T> MSL_INL T simd_shuffle_xor(T v, ushort mask, msl::line at = msl::line::here()) {
    return msl::from(v, msl_self()->lane ^ mask, at, "simd_shuffle_xor");
}
// Lanes that would read beyond the simdgroup keep their own value; Metal leaves it undefined.
template <class T> MSL_INL T simd_shuffle_down(T v, ushort d, msl::line at = msl::line::here()) {
    uint lane = msl_self()->lane + d;
    return msl::from(v, lane < MSL_SIMD ? lane : msl_self()->lane, at, "simd_shuffle_down");
}
template <class T> MSL_INL T simd_shuffle_up(T v, ushort d, msl::line at = msl::line::here()) {
    uint lane = msl_self()->lane;
    return msl::from(v, lane >= d ? lane - d : lane, at, "simd_shuffle_up");
}
template <class T> MSL_INL T simd_prefix_inclusive_sum(T v, msl::line at = msl::line::here()) {
    uint bank = msl::exchange(v, at, "simd_prefix_inclusive_sum");
    MslThread* t = msl_self();
    T sum = T(0);
    for (uint i = 0; i <= t->lane; ++i)
        if (t->simd->mask[bank] >> i & 1) sum = sum + msl::slot<T>(t->simd, bank, i);
    return sum;
}
template <class T> MSL_INL T simd_prefix_exclusive_sum(T v, msl::line at = msl::line::here()) {
    uint bank = msl::exchange(v, at, "simd_prefix_exclusive_sum");
    MslThread* t = msl_self();
    T sum = T(0);
    for (uint i = 0; i < t->lane; ++i)
        if (t->simd->mask[bank] >> i & 1) sum = sum + msl::slot<T>(t->simd, bank, i);
    return sum;
}

enum memory_order { memory_order_relaxed = 0 };
template <class T> struct atomic { T v; };
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
template <class T> MSL_INL T atomic_load_explicit(const volatile atomic<T>* p, memory_order) {
    T t;
    __atomic_load(&p->v, &t, __ATOMIC_RELAXED);
    return t;
}
template <class T> MSL_INL void atomic_store_explicit(volatile atomic<T>* p, T v, memory_order) {
    __atomic_store(&p->v, &v, __ATOMIC_RELAXED);
}
#define MSL_ATOMIC(name, expr)                                                                                       \
    template <class T, class U> MSL_INL T atomic_fetch_##name##_explicit(volatile atomic<T>* p, U u, memory_order) { \
        T a, r, b = T(u);                                                                                            \
        __atomic_load(&p->v, &a, __ATOMIC_RELAXED);                                                                  \
        do r = T(expr);                                                                                              \
        while (!__atomic_compare_exchange(&p->v, &a, &r, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));                 \
        return a;                                                                                                    \
    }
MSL_ATOMIC(add, a + b) MSL_ATOMIC(sub, a - b) MSL_ATOMIC(max, a > b ? a : b) MSL_ATOMIC(min, a < b ? a : b)
MSL_ATOMIC(and, a & b) MSL_ATOMIC(or, a | b) MSL_ATOMIC(xor, a ^ b)
#undef MSL_ATOMIC
}  // namespace metal
