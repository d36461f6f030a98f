// What exec.cpp and faults.cpp share: the workers, and how a command ends in an error.
#pragma once
#include "exec.h"

#include <atomic>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>

typedef msl_u32 u32;
typedef msl_u64 u64;

// What the commands of one run share.
struct Progress {
    std::atomic<u64> next, done;
    u64 total, chunk;
};
struct Run {
    const MslCmd* cmds;
    u32 n;
    Progress* progress;
    std::atomic<bool> failed;
    pthread_mutex_t mu;  // guards err
    ExecError* err;
};

struct Worker {
    MslGroup   g;  // first: a MslGroup* is a Worker*
    MslThread* thr;
    MslSimd    simd[MSL_THREADS / MSL_SIMD];
    void*      main_sp;
    u32        live, at_barrier, barrier_line;
    u32        shape[3];     // sizes for which thr[].pos are set
    const u32* at;           // the thread that runs in loop mode, if known
    MslThread* cur;          // the thread that failed, for the error text
    sigjmp_buf recover;
    Run*       run;
    u32        cmd;
    bool       checked;
    const void *pc, *barrier_pc;  // checked: where the thread calls the runtime, or did last; where the first one came to the barrier
};

extern thread_local Worker* self __attribute__((tls_model("initial-exec")));
extern thread_local volatile sig_atomic_t in_kernel __attribute__((tls_model("initial-exec")));

// Ends the command with an error at the kernel's first line, or, in the checked mode, at pc.
[[noreturn]] __attribute__((format(printf, 3, 4))) void die(Worker* w, int code, const char* fmt, ...);

void install_handlers();
// All signals but the faults: what Go sends to its threads must not see a kernel's stack.
sigset_t asynchronous_signals();
