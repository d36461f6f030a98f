// The Metal objects: device.cpp makes devices, buffers, libraries and pipelines; command.cpp records
// and executes commands; mps.cpp multiplies matrices.
#pragma once
#include "exec.h"
#include "objc.h"

typedef uint64_t u64;
struct MTLSize {
    u64 width, height, depth;
};

struct Device : Object {};  // one for all, immortal
struct CompileOptions : Object {
    u64 language;
    long math_mode, functions;
};
struct Library : Object {
    Device* device;
    String* label;
    void* handle;
    MslKernel* kernels;
    msl_u32 n;
};
struct Function : Object {
    Library* library;
    MslKernel* kernel;
};
struct Pipeline : Object {
    Library* library;
    MslKernel* kernel;
};
struct Buffer : Object {
    Device* device;
    String* label;
    char* map;
    char* data;
    u64 mapped, length;
    bool is_private;
    // The checked mode's: memory that the CPU sees elsewhere (guard.cpp), and the number of commands in flight that write and read it.
    char*   host;
    msl_u32 writers, readers;
    Buffer *next, **link;
};
struct Use {  // of a buffer by a command
    Buffer* buffer;
    bool    writes;
};
struct Flight {  // what a command buffer uses, until somebody has seen it completed
    Flight* next;
    u64     number;  // of the command buffer, in its queue
    Use*    uses;
    size_t  n, room;
};
struct Queue : Object {
    Device* device;
    String* label;
    Flight* flights;  // committed, the oldest first; only in the checked mode
    u64     numbers;
    msl_u32 open, committed;  // command buffers not yet completed; those of them that were committed
};
const size_t block_size = 16384;
struct Block {  // copies of setBytes
    Block* next;
    size_t used;
    alignas(16) char data[block_size];
};
struct Encoder;
struct CommandBuffer : Object {
    Queue*         queue;
    String*        label;
    Encoder*       encoder;  // the open one, not retained
    MslCmd*        cmds;
    id*            held;     // what must live until completion
    size_t         ncmds, cmds_room, nheld, held_room;
    Block*         blocks;
    Flight*        flight;   // not yet committed
    u64            number;   // of the committed one
    CommandBuffer* next;     // in the queue of committed ones
    u64            status;
    Error*         error;
    double         start, end;
};
struct Encoder : Object {
    CommandBuffer* buffer;
    String*        label;
    bool           ended;
    Pipeline*      pipeline;
    bool           concurrent, barrier;  // barrier: before the next dispatch
    void**         fences;               // buffers that are fenced before the next dispatch
    msl_u32        nfences;
    msl_u32        bytes, fresh;         // masks of indices: set by setBytes; set since the last dispatch
    Buffer*        bound[MSL_BUFFERS];
    MslBuf         buf[MSL_BUFFERS];
    msl_u32        tg_len[MSL_TG_ARGS];
};

extern Class Device_, CompileOptions_, Library_, Function_, Pipeline_, Buffer_;  // device.cpp
extern Class Queue_, CommandBuffer_, Encoder_;                                   // command.cpp
extern Class MatrixDescriptor_, Matrix_, MatrixMultiplication_;                  // mps.cpp

template <class T> T* make(Class& c) { return (T*)objc_new(&c); }
#define PRIVATE_CLASS(name, T, dealloc, methods) {{0, -1}, name, &NSObject_, sizeof(T), dealloc, methods, 0, 0, 0}

// A mistake in the use of the API, reported as Metal's validation layer does.
[[noreturn]] __attribute__((format(printf, 2, 3))) void assertion(const char* method, const char* fmt, ...);

// Buffers, libraries, queues, command buffers and encoders begin alike: with what made them, and a label.
struct Labelled : Object {
    id      owner;
    String* label;
};
void    set_label(Labelled* o, SEL, String* s);
String* get_label(Labelled* o, SEL);
id      get_owner(Labelled* o, SEL);
#define LABEL {"setLabel:", (void*)set_label}, {"label", (void*)get_label}

// The checked mode's buffers, in guard.cpp: one memory in two places, so that the CPU's can be closed while commands are in flight.
const u64 buffer_guard = 1 << 20;  // bytes before and behind every buffer that nobody may touch
bool guard_map(Buffer* b);         // false: out of memory
void guard_unmap(Buffer* b);
void guard_use(CommandBuffer* c, Buffer* b, bool writes);  // by a command that is encoded
void guard_commit(CommandBuffer* c);
void guard_completed(Queue* q, u64 number);  // somebody has seen that this command buffer is
void guard_drop(Flight* f);

// Puts files and lines for the places in the text of an ExecError. Only threads that Go knows may call it.
void name_places(Error* e);

Queue* device_new_queue(Device* d, SEL);
