// The layouts shared by the runtime and the compiled kernel libraries. Plain C structs; any change
// of meaning must raise MSL_ABI.
#pragma once

typedef unsigned char      msl_u8;
typedef unsigned int       msl_u32;
typedef unsigned long long msl_u64;

enum {
    MSL_ABI = 3,
    MSL_BUFFERS = 31,          // buffer argument table, as in Metal
    MSL_TG_ARGS = 8,           // [[threadgroup(n)]] arguments
    MSL_SIMD = 32,             // lanes of a simdgroup
    MSL_THREADS = 1024,        // threads of a threadgroup
    MSL_TG_BYTES = 32768,      // threadgroup memory
    MSL_STACK = 16384,         // bytes of one thread's stack
    MSL_STACKS = MSL_THREADS * MSL_STACK  // a worker's stacks, aligned to their own size
};

enum { MSL_ARG_BUFFER = 0, MSL_ARG_THREADGROUP = 1, MSL_ARG_BUILTIN = 2 };
enum { MSL_REF = 1, MSL_CONSTANT = 2, MSL_CONST = 4 };  // flags of an argument: T&, constant address space, const T
enum { MSL_SYNCS = 1, MSL_STATIC_TG = 2, MSL_FTZ = 4, MSL_TELLS = 8 };  // flags of a kernel; MSL_TELLS: compiled for the checked mode

struct MslThread;
struct MslGroup;

struct MslArg {
    msl_u32 kind, index, flags, size, align;  // size and align of the pointee
};

struct MslKernel {
    const char*        name;
    const char*        file;
    msl_u32            line, nargs;
    const MslArg*      args;
    const char* const* arg_names;
    msl_u32            flags, max_threads;
    msl_u32            tg_static;  // bytes of static threadgroup memory seen so far; written by the runtime
    void (*entry)(MslThread*);     // one thread, on its own stack: kernels that synchronise
    // All threads lo <= p < hi of a group, one after another: kernels that do not.
    void (*loop)(MslGroup*, const msl_u32* lo, const msl_u32* hi);
};

struct MslBuf {
    void*   p;         // offset included
    msl_u64 len, off;  // bytes from p on; offset of p in its buffer
};

struct MslCmd {
    MslKernel* k;
    msl_u32    groups[3], tpg[3], threads[3];  // threadgroups, threads of one, threads of the grid
    msl_u32    tg_len[MSL_TG_ARGS];
    msl_u32    concurrent;  // nothing orders it after the command before, but for what touches the buffers that begin at fences
    msl_u32    nfences;
    void**     fences;
    MslBuf     buf[MSL_BUFFERS];
};

// One simdgroup. Values travel through slots, two banks in turn: a lane can be at most one
// operation ahead of the others.
struct MslSimd {
    msl_u32     ready, live, waiting, at_barrier;  // lane masks
    msl_u32     arrived, nlive, gen, have;         // have: bit b is set once bank b is reduced
    msl_u32     mask[2];                           // lanes that took part
    msl_u32     id, line;
    const char* what;
    alignas(64) msl_u32 slots[2][4][MSL_SIMD];     // word w of lane l is slots[bank][w][l]
};

struct MslThread {
    void*     sp;  // saved stack pointer while it does not run
    MslGroup* grp;
    MslSimd*  simd;
    msl_u32   tid, lane, pos[3];
    msl_u32   bump;  // next free byte of static threadgroup memory
    msl_u32   reserved[4];
};
static_assert(sizeof(MslThread) == 64, "MslThread fills a cache line");

struct MslGroup {
    const MslCmd* cmd;
    msl_u32       pos[3], size[3];  // position in the grid; actual size (smaller at the edges)
    msl_u32       nthreads, nsimd;
    msl_u8*       tg_mem;
    msl_u32       tg_ofs[MSL_TG_ARGS];
    msl_u32       tg_static, tg_high;  // first byte of static variables; end of what was used
};

// What the runtime offers to kernels. Lines are those of the Metal source. simd and barrier return the
// stack to switch to, or null when the thread goes on at once.
struct MslRuntime {
    void* (*simd)(MslThread*, msl_u32 line, const char* what);
    void* (*barrier)(MslThread*, msl_u32 line);
    void (*fail)(MslThread*, msl_u32 line, const char* what, const char* msg);  // does not return
    // The checked mode's: a barrier is behind the thread (flags: mem_flags; whole: of the threadgroup); where a static threadgroup
    // variable lies; what the thread does, until told otherwise, its whole simdgroup does.
    void (*passed)(MslThread*, msl_u32 flags, bool whole);
    void* (*variable)(MslThread*, msl_u32 size, msl_u32 align, msl_u32 element, const char* name);
    void (*together)(MslThread*, bool);
};

// The thread that runs on this stack. Thread i of a worker always has stack i, and the array of
// MslThread follows the stacks, so that no thread-local variable is needed.
static inline __attribute__((always_inline)) MslThread* msl_self() {
    unsigned long sp;
#if defined(__x86_64__)
    asm("mov %%rsp, %0" : "=r"(sp));
#elif defined(__aarch64__)
    asm("mov %0, sp" : "=r"(sp));
#else
#error "the host Metal device runs on x86-64 and arm64"
#endif
    return (MslThread*)((sp | (MSL_STACKS - 1)) + 1) + (sp / MSL_STACK) % MSL_THREADS;
}

// Stops on this stack and goes on with another one: *save is where to come back to, and to is what was
// saved there. Inline, so that a thread comes back into the kernel itself: the processor predicts
// returns by the order of calls, which differs from one stack to the next. All registers are lost.
static inline __attribute__((always_inline)) void msl_switch(void** save, void* to) {
#if defined(__x86_64__)
    asm volatile(
        "pushq %%rbp\n\tleaq 1f(%%rip), %%rcx\n\tpushq %%rcx\n\tmovq %%rsp, (%%rdi)\n\t"
        "movq %%rsi, %%rsp\n\tpopq %%rcx\n\tjmp *%%rcx\n"
        "1:\tpopq %%rbp"
        : "+D"(save), "+S"(to)
        :
        : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3",
          "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
#else
    register void** x0 asm("x0") = save;
    register void* x1 asm("x1") = to;
    asm volatile(
        "adr x9, 1f\n\tstp x29, x9, [sp, #-16]!\n\tmov x9, sp\n\tstr x9, [x0]\n\t"
        "mov sp, x1\n\tldp x29, x9, [sp], #16\n\tbr x9\n"
        "1:"
        : "+r"(x0), "+r"(x1)
        :
        : "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17", "x18", "x19",
          "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x30", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8",
          "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25",
          "v26", "v27", "v28", "v29", "v30", "v31", "memory", "cc");
#endif
}
