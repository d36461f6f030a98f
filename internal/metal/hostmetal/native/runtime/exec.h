// Executing dispatches: worker threads, GPU threads as fibers, barriers, faults.
#pragma once
#include "../abi.h"

#include <stdarg.h>

// Where and why a command failed. code is a MTLCommandBufferError.
struct ExecError {
    int     code;  // 0: no error
    msl_u32 cmd;
    char    text[2048];
};

// For msl_lib: of libraries without and with MSL_TELLS.
extern const MslRuntime exec_runtime, exec_checked_runtime;

// Ends the command that runs on this thread with an error at a place, as check_place wrote it.
[[noreturn]] void exec_die(MslThread* t, int code, const char* place, const char* fmt, va_list ap);

void exec_init(msl_u32 threads);

// Called, if set, when a fault of the program outside of kernels goes back to where faults went before.
extern void (*exec_foreign_fault)(unsigned long address);

// Starts a thread that takes no asynchronous signals, and may call exec_run.
bool exec_thread(void* (*fn)(void*));

// Runs the commands in order, each split over all threads, the calling one included, and returns
// when all are done. One call at a time.
void exec_run(const MslCmd* cmds, msl_u32 n, ExecError* err);
