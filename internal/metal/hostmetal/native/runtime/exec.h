// Executing dispatches: worker threads, GPU threads as fibers, barriers, faults.
#pragma once
#include "../abi.h"

// Where and why a command failed. code is a MTLCommandBufferError.
struct ExecError {
    int     code;  // 0: no error
    msl_u32 cmd;
    char    text[512];
};

extern const MslRuntime exec_runtime;  // for msl_lib

void exec_init(msl_u32 threads);

// Starts a thread that takes no asynchronous signals, and may call exec_run.
bool exec_thread(void* (*fn)(void*));

// Runs the commands in order, each split over all threads, the calling one included, and returns
// when all are done. One call at a time.
void exec_run(const MslCmd* cmds, msl_u32 n, ExecError* err);
