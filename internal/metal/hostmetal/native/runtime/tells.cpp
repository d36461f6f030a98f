// What kernels of the checked mode call: the entry points of -fsanitize=thread and of three of -fsanitize=undefined.
#include "check.h"
#include "objc.h"

#include <string.h>

#define PC __builtin_return_address(0)
#define SIZE(n)                                                                                                    \
    EXPORT void __tsan_read##n(uintptr_t a) { check_access(a, n, false, false, PC); }                                    \
    EXPORT void __tsan_write##n(uintptr_t a) { check_access(a, n, true, false, PC); }                                    \
    EXPORT void __tsan_unaligned_read##n(uintptr_t a) { check_access(a, n, false, false, PC); }                          \
    EXPORT void __tsan_unaligned_write##n(uintptr_t a) { check_access(a, n, true, false, PC); }
SIZE(1) SIZE(2) SIZE(4) SIZE(8) SIZE(16)
EXPORT void __tsan_read_range(uintptr_t a, size_t n) { if (n) check_access(a, (msl_u32)n, false, false, PC); }
EXPORT void __tsan_write_range(uintptr_t a, size_t n) { if (n) check_access(a, (msl_u32)n, true, false, PC); }
// Copies and fills, for which some compilers call libc: the linker takes those that it wraps.
#define COPY(name)                                                                                                \
    EXPORT void* name(void* to, const void* from, size_t n) {                                                     \
        if (n) check_access((uintptr_t)from, (msl_u32)n, false, false, PC), check_access((uintptr_t)to, (msl_u32)n, true, false, PC); \
        return memmove(to, from, n);                                                                              \
    }
#define FILL(name)                                                                                                \
    EXPORT void* name(void* to, int v, size_t n) {                                                                \
        if (n) check_access((uintptr_t)to, (msl_u32)n, true, false, PC);                                          \
        return memset(to, v, n);                                                                                  \
    }
COPY(__tsan_memcpy) COPY(__wrap_memcpy) COPY(__tsan_memmove) COPY(__wrap_memmove) FILL(__tsan_memset) FILL(__wrap_memset)
EXPORT void __tsan_init() {}

// Of -fsanitize=bounds, alignment and integer-divide-by-zero. The first argument also has the place, but that may be in the prelude.
struct Type {
    unsigned short kind, info;
    char           name[1];
};
struct IndexMistake {
    const char* file;
    msl_u32        line, column;
    Type *      array, *index;
};
struct TypeMistake {
    const char*   file;
    msl_u32          line, column;
    Type*         type;
    unsigned char log_align, kind;
};
EXPORT void __ubsan_handle_type_mismatch_v1(TypeMistake* m, uintptr_t a) {
    msl_u32 align = 1u << m->log_align;
    if (a % align)
        check_die(code_page_fault, PC, "misaligned access to %s: the address is %u bytes past a multiple of %u", m->type->name, (msl_u32)(a % align), align);
}
EXPORT void __ubsan_handle_out_of_bounds(IndexMistake* m, uintptr_t i) {
    check_die(code_internal, PC, "index %ld out of the bounds of %s", (long)i, m->array->name);
}
EXPORT void __ubsan_handle_divrem_overflow(void*, uintptr_t, uintptr_t) {
    check_die(code_internal, PC, "integer division by zero, or overflow");
}

// One thread runs, so that atomics need be none.
#define ATOMIC(bits, T)                                                                                             \
    EXPORT T __tsan_atomic##bits##_load(const volatile T* p, int) { check_access((uintptr_t)p, sizeof(T), false, true, PC); return *p; } \
    EXPORT void __tsan_atomic##bits##_store(volatile T* p, T v, int) { check_access((uintptr_t)p, sizeof(T), true, true, PC); *p = v; } \
    EXPORT T __tsan_atomic##bits##_exchange(volatile T* p, T v, int) {                                              \
        check_access((uintptr_t)p, sizeof(T), true, true, PC);                                                            \
        T was = *p;                                                                                                 \
        *p = v;                                                                                                     \
        return was;                                                                                                 \
    }                                                                                                               \
    EXPORT T __tsan_atomic##bits##_compare_exchange_val(volatile T* p, T want, T v, int, int) {                     \
        check_access((uintptr_t)p, sizeof(T), true, true, PC);                                                            \
        T was = *p;                                                                                                 \
        if (was == want) *p = v;                                                                                    \
        return was;                                                                                                 \
    }                                                                                                               \
    EXPORT int __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* want, T v, int, int) {               \
        check_access((uintptr_t)p, sizeof(T), true, true, PC);                                                            \
        T was = *p;                                                                                                 \
        if (was == *want) return *p = v, 1;                                                                         \
        return *want = was, 0;                                                                                      \
    }                                                                                                               \
    EXPORT int __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* want, T v, int, int) {                 \
        check_access((uintptr_t)p, sizeof(T), true, true, PC);                                                            \
        T was = *p;                                                                                                 \
        if (was == *want) return *p = v, 1;                                                                         \
        return *want = was, 0;                                                                                      \
    }
ATOMIC(32, msl_u32) ATOMIC(64, msl_u64)
