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
};
struct Queue : Object {
    Device* device;
    String* label;
    msl_u32 open, committed;  // command buffers not yet completed; those of them that were committed
};
struct Block {  // copies of setBytes
    Block* next;
    size_t used;
    alignas(16) char data[16384];
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

// Puts files and lines for the places in the text of an ExecError. Only threads that Go knows may call it.
void name_places(Error* e);

Queue* device_new_queue(Device* d, SEL);
