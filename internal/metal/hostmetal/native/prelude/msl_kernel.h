// How a kernel finds its arguments. The Go side writes, for each kernel or instance,
//
//	typedef msl::Kernel<decltype(f), &f, msl::Buf<0, 0>, msl::thread_position_in_grid> msl_k0;
//
// with one tag per parameter; the parameter types are the compiler's business.
#pragma once
#include "msl_matrix.h"

namespace msl {
// A static threadgroup variable: all threads meet the same declarations in the same order, so each
// thread's own bump pointer gives them all the same address.
template <class T> struct scalar_of { typedef T type; };
template <class T, size_t N> struct scalar_of<T[N]> : scalar_of<T> {};
template <class T> MSL_INL T& tg_var(const char* name, line at) {
    MslThread* t = msl_self();
    if (MSL_CHECKED) return *(T*)rt->variable(t, sizeof(T), alignof(T), sizeof(typename scalar_of<T>::type), name);
    constexpr uint align = alignof(T) < 16 ? 16 : alignof(T);
    uint o = (t->bump + align - 1) & ~(align - 1);
    if (__builtin_expect(o + sizeof(T) > MSL_TG_BYTES, 0))
        rt->fail(t, at.l, "threadgroup memory", "exceeds 32768 bytes");
    t->bump = o + sizeof(T);
    if (t->bump > t->grp->tg_high) t->grp->tg_high = t->bump;
    return *(T*)(t->grp->tg_mem + o);
}
#define MSL_TG_VAR(name, ...) auto& name = msl::tg_var<__VA_ARGS__>(#name, msl::line::here())

// A position as the parameter's own type: uint, ushort, uint2, ushort3 ...
template <class P> struct position {
    static MSL_INL P of(const uint* v) { return P(v[0]); }
};
template <class T> struct position<vec<T, 2>> {
    static MSL_INL vec<T, 2> of(const uint* v) { return vec<T, 2>(T(v[0]), T(v[1])); }
};
template <class T> struct position<vec<T, 3>> {
    static MSL_INL vec<T, 3> of(const uint* v) { return vec<T, 3>(T(v[0]), T(v[1]), T(v[2])); }
};

// What built-in arguments are computed from, in locals.
struct Env {
    uint pos[3], size[3], tpg[3], groups[3], threads[3], nsimd;
    MSL_INL explicit Env(const MslGroup* g) : nsimd(g->nsimd) {
        for (int i = 0; i < 3; ++i) {
            pos[i] = g->pos[i];
            size[i] = g->size[i];
            tpg[i] = g->cmd->tpg[i];
            groups[i] = g->cmd->groups[i];
            threads[i] = g->cmd->threads[i];
        }
    }
    MSL_INL uint index(const uint* p) const { return p[0] + size[0] * (p[1] + size[1] * p[2]); }
};

#define MSL_BUILTIN(name, ...)                                                               \
    struct name {                                                                            \
        template <class P> struct hold {                                                     \
            MSL_INL hold(const MslGroup*) {}                                                 \
            MSL_INL P get(const Env& e, const uint* p) { (void)e; (void)p; __VA_ARGS__ }     \
        };                                                                                   \
        template <class P> static constexpr MslArg info() { return MslArg{MSL_ARG_BUILTIN, 0, 0, 0, 0}; } \
    };
MSL_BUILTIN(thread_position_in_grid,
    uint v[3];
    for (int i = 0; i < 3; ++i) v[i] = e.pos[i] * e.tpg[i] + p[i];
    return position<P>::of(v);)
MSL_BUILTIN(thread_position_in_threadgroup, return position<P>::of(p);)
MSL_BUILTIN(threadgroup_position_in_grid, return position<P>::of(e.pos);)
MSL_BUILTIN(threads_per_threadgroup, return position<P>::of(e.size);)
MSL_BUILTIN(dispatch_threads_per_threadgroup, return position<P>::of(e.tpg);)
MSL_BUILTIN(threadgroups_per_grid, return position<P>::of(e.groups);)
MSL_BUILTIN(threads_per_grid, return position<P>::of(e.threads);)
MSL_BUILTIN(thread_index_in_threadgroup, return P(e.index(p));)
MSL_BUILTIN(thread_index_in_simdgroup, return P(e.index(p) % MSL_SIMD);)
MSL_BUILTIN(simdgroup_index_in_threadgroup, return P(e.index(p) / MSL_SIMD);)
MSL_BUILTIN(simdgroups_per_threadgroup, return P(e.nsimd);)
MSL_BUILTIN(threads_per_simdgroup, return P(MSL_SIMD);)
MSL_BUILTIN(thread_execution_width, return P(MSL_SIMD);)
#undef MSL_BUILTIN

template <class P> struct pointee;
template <class T> struct pointee<T*> { typedef T type; static constexpr uint flags = 0; };
template <class T> struct pointee<T&> { typedef T type; static constexpr uint flags = MSL_REF; };
template <class P> constexpr MslArg arg_info(uint kind, uint index, uint flags) {
    typedef typename pointee<P>::type T;
    constexpr uint is_const = is_same<T, typename remove_const<T>::type>::value ? 0 : MSL_CONST;
    return MslArg{kind, index, flags | pointee<P>::flags | is_const, sizeof(T), alignof(T)};
}

template <uint Index, uint Flags> struct Buf {
    template <class P> struct hold;
    template <class T> struct hold<T*> {
        T* p;
        MSL_INL hold(const MslGroup* g) : p((T*)g->cmd->buf[Index].p) {}
        MSL_INL T* get(const Env&, const uint*) { return p; }
    };
    template <class T> struct hold<T&> {
        T* p;
        MSL_INL hold(const MslGroup* g) : p((T*)g->cmd->buf[Index].p) {}
        MSL_INL T& get(const Env&, const uint*) { return *p; }
    };
    // A constant reference is copied to the stack: it cannot alias what the kernel stores.
    template <class T> struct hold<const T&> {
        T v;
        MSL_INL hold(const MslGroup* g) : v(*(const T*)g->cmd->buf[Index].p) {}
        MSL_INL const T& get(const Env&, const uint*) { return v; }
    };
    template <class P> static constexpr MslArg info() { return arg_info<P>(MSL_ARG_BUFFER, Index, Flags); }
};

template <uint Index> struct Threadgroup {
    template <class P> struct hold;
    template <class T> struct hold<T*> {
        T* p;
        MSL_INL hold(const MslGroup* g) : p((T*)(g->tg_mem + g->tg_ofs[Index])) {}
        MSL_INL T* get(const Env&, const uint*) { return p; }
    };
    template <class P> static constexpr MslArg info() { return arg_info<P>(MSL_ARG_THREADGROUP, Index, 0); }
};

template <class Fn, Fn* F, class... Tags> struct Kernel;
template <class... P, void (*F)(P...), class... Tags> struct Kernel<void(P...), F, Tags...> {
    static constexpr uint nargs = sizeof...(P);
    static constexpr MslArg args[nargs + 1] = {Tags::template info<P>()..., MslArg{}};

    template <class... H> static MSL_INL void call(const Env& e, const uint* pos, H... h) {
        F(h.get(e, pos)...);
    }
    template <class... H>
    static MSL_INL void calls(const Env& e, const uint* lo, const uint* hi, H... h) {
        uint p[3];
        for (p[2] = lo[2]; p[2] < hi[2]; ++p[2])
            for (p[1] = lo[1]; p[1] < hi[1]; ++p[1])
                for (p[0] = lo[0]; p[0] < hi[0]; ++p[0]) F(h.get(e, p)...);
    }
    __attribute__((flatten)) static void entry(MslThread* t) {
        t->bump = t->grp->tg_static;
        call(Env(t->grp), t->pos, typename Tags::template hold<P>(t->grp)...);
    }
    __attribute__((flatten)) static void loop(MslGroup* g, const uint* lo, const uint* hi) {
        calls(Env(g), lo, hi, typename Tags::template hold<P>(g)...);
    }
};
}  // namespace msl
