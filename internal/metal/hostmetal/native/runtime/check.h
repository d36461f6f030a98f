// The checked mode. Kernels that are compiled for it tell of each load and store: -fsanitize=thread calls an entry point before each, and
// the entry points are ours. Each access is held to what is bound, to what was written, and to what other threads did to the same bytes. All
// runs on one thread, in an order that a seed decides.
#pragma once
#include "exec.h"

#include <stddef.h>
#include <stdint.h>

extern bool    check_on;    // new libraries are compiled for it, and new buffers are guarded
extern msl_u64 check_seed;  // of the order; 0 is that of the indices

// Where the runtime keeps what kernels read without knowing: threads and their stacks, the worker, the commands.
struct CheckMemory {
    MslThread*    threads;
    const void*   worker;
    size_t        worker_size;
    const MslCmd* cmds;
    msl_u32       n;
};
void check_begin(const CheckMemory& m);       // of a run
void check_command(MslGroup* g, msl_u32 i);  // the next command to run; places its threadgroup memory
void check_group(msl_u64 index);             // the next threadgroup of it
void check_thread(msl_u32 id);               // the next thread of it, where threads have no stack of their own

// A load or store of the kernel, told before it is done; pc is where the call that tells of it returns to.
void check_access(uintptr_t a, msl_u32 n, bool write, bool atomic, const void* pc);

// Ends the command with an error at pc. code is a MTLCommandBufferError.
enum { code_internal = 1, code_page_fault = 3 };
[[noreturn]] __attribute__((format(printf, 3, 4))) void check_die(int code, const void* pc, const char* fmt, ...);

// What kernels call through MslRuntime.
void  check_passed(MslThread* t, msl_u32 flags, bool whole);
void* check_variable(MslThread* t, msl_u32 size, msl_u32 align, msl_u32 element, const char* name);
void  check_together(MslThread* t, bool on);

// Writes where a call returns to, as an address in a library, between two bytes 0x1f: places.go finds the line that it belongs to.
void check_place(const void* pc, char* text, size_t room);

// A number below n; 0 under seed 0.
msl_u32 check_random(msl_u32 n);

// The numbers below n in the seed's order.
struct CheckOrder {
    msl_u64 n, step, from;
    explicit CheckOrder(msl_u64 n);
    msl_u64 operator[](msl_u64 i) const { return (msl_u64)(((unsigned __int128)i * step + from) % n); }
};
