// Barriers, simdgroup functions, atomics.
#pragma once
#include "msl_math.h"

namespace msl {
extern const MslRuntime* rt;  // given to msl_lib when the library is loaded

// The line of the caller, as the default value of a last argument.
struct line {
    uint l;
    static constexpr line here(uint l = __builtin_LINE()) { return line{l}; }
};

// Puts v down and waits for the other active lanes; returns the bank that holds everyone's value.
template <class T> MSL_INL uint exchange(T v, line at, const char* what) {
    static_assert(sizeof(T) <= 16, "simdgroup functions take at most 16 bytes");
    uint w[(sizeof(T) + 3) / 4] = {};
    __builtin_memcpy(w, &v, sizeof v);
    MslThread* t = msl_self();
    MslSimd* s = t->simd;
    for (uint i = 0; i < sizeof w / 4; ++i) s->slots[s->gen & 1][i][t->lane] = w[i];
    return rt->simd(t, at.l, what);
}

template <class T> MSL_INL T slot(const MslSimd* s, uint bank, uint lane) {
    uint w[(sizeof(T) + 3) / 4];
    for (uint i = 0; i < sizeof w / 4; ++i) w[i] = s->slots[bank][i][lane];
    T v;
    __builtin_memcpy(&v, w, sizeof v);
    return v;
}

// The value of another lane, which must be active.
template <class T> MSL_INL T from(T v, uint lane, line at, const char* what) {
    uint bank = exchange(v, at, what);
    MslThread* t = msl_self();
    if (lane >= MSL_SIMD || !(t->simd->mask[bank] >> lane & 1))
        rt->fail(t, at.l, what, "reads a lane that is inactive or absent");
    return slot<T>(t->simd, bank, lane);
}

// A reduction in one order whatever the schedule: halves are folded onto each other. The first
// lane to go on computes it for all.
template <class T, class F> MSL_INL T reduce(T v, F f, line at, const char* what) {
    uint bank = exchange(v, at, what);
    MslSimd* s = msl_self()->simd;
    T r;
    if (s->have >> bank & 1) {
        __builtin_memcpy(&r, s->result[bank], sizeof r);
        return r;
    }
    uint m = s->mask[bank];
    if (m == ~0u) {
        T a[MSL_SIMD];
        for (uint i = 0; i < MSL_SIMD; ++i) a[i] = slot<T>(s, bank, i);
#pragma GCC unroll 5
        for (uint w = MSL_SIMD / 2; w; w /= 2)
            for (uint i = 0; i < w; ++i) a[i] = f(a[i], a[i + w]);
        r = a[0];
    } else {
        r = slot<T>(s, bank, __builtin_ctz(m));
        while (m &= m - 1) r = f(r, slot<T>(s, bank, __builtin_ctz(m)));
    }
    s->have |= 1u << bank;
    __builtin_memcpy(s->result[bank], &r, sizeof r);
    return r;
}
}  // namespace msl

namespace metal {
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
MSL_INL constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }

MSL_INL void threadgroup_barrier(mem_flags, msl::line at = msl::line::here()) {
    msl::rt->barrier(msl_self(), at.l);
}
MSL_INL void simdgroup_barrier(mem_flags, msl::line at = msl::line::here()) {
    msl::rt->simd(msl_self(), at.l, "simdgroup_barrier");
}

#define MSL_REDUCE(name, expr)                                                                   \
    template <class T> MSL_INL T name(T v, msl::line at = msl::line::here()) {                   \
        return msl::reduce(v, [](T a, T b) { return T(expr); }, at, #name);                      \
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
#define MSL_ATOMIC(name, expr)                                                                            \
    template <class T, class U> MSL_INL T atomic_fetch_##name##_explicit(volatile atomic<T>* p, U u, memory_order) { \
        T a, r, b = T(u);                                                                                 \
        __atomic_load(&p->v, &a, __ATOMIC_RELAXED);                                                       \
        do r = T(expr);                                                                                   \
        while (!__atomic_compare_exchange(&p->v, &a, &r, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));      \
        return a;                                                                                         \
    }
MSL_ATOMIC(add, a + b) MSL_ATOMIC(sub, a - b) MSL_ATOMIC(max, a > b ? a : b) MSL_ATOMIC(min, a < b ? a : b)
MSL_ATOMIC(and, a & b) MSL_ATOMIC(or, a | b) MSL_ATOMIC(xor, a ^ b)
#undef MSL_ATOMIC
}  // namespace metal
