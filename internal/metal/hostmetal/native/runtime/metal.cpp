// The subset of Metal that llmrun uses: MTLDevice and what it makes.
#include "exec.h"
#include "objc.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

namespace {

typedef uint64_t u64;
struct MTLSize { u64 width, height, depth; };

struct Device : Object {};
struct CompileOptions : Object { u64 language; long math_mode, functions; };
struct Library : Object { Device* device; String* label; void* handle; MslKernel* kernels; msl_u32 n; };
struct Function : Object { Library* library; MslKernel* kernel; };
struct Pipeline : Object { Library* library; MslKernel* kernel; };
struct Buffer : Object { Device* device; String* label; char* map; char* data; u64 mapped, length; bool is_private; };
struct Queue : Object { Device* device; String* label; msl_u32 open, committed; };  // command buffers not yet completed
struct Block { Block* next; size_t used; alignas(16) char data[16384]; };  // copies of setBytes
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

extern Class Device_, Library_, Function_, Pipeline_, Buffer_, Queue_, CommandBuffer_, Encoder_;

template <class T> T* make(Class& c) { return (T*)objc_new(&c); }

// A mistake in the use of the API, reported as Metal's validation layer does.
[[noreturn]] __attribute__((format(printf, 2, 3))) void assertion(const char* method, const char* fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "-[%s]: failed assertion `%s'\n", method, text);
    abort();
}

void set_label(String** at, String* s) {
    keep(s);
    objc_drop(*at);
    *at = s;
}
// Every class with a label has it as its second member.
struct Labelled : Object { id owner; String* label; };
void object_set_label(Labelled* o, SEL, String* s) { set_label(&o->label, s); }
String* object_label(Labelled* o, SEL) { return later(keep(o->label)); }
#define LABEL {"setLabel:", (void*)object_set_label}, {"label", (void*)object_label}

id borrowed_device(Labelled* o, SEL) { return o->owner; }

// ---- MTLDevice ----

Device* the_device;  // one at a time, as on a machine with one GPU
pthread_mutex_t device_mu = PTHREAD_MUTEX_INITIALIZER;
u64 allocated;       // bytes of all buffers; atomic

u64 physical_memory() { return (u64)sysconf(_SC_PHYS_PAGES) * (u64)sysconf(_SC_PAGESIZE); }

String* device_name(Device*, SEL) { return later(new_string("llmrun host device")); }
bool device_unified(Device*, SEL) { return true; }
bool device_no(Device*, SEL) { return false; }
u64 device_max_buffer(Device*, SEL) { return physical_memory() / 4 * 3; }
u64 device_allocated(Device*, SEL) { return __atomic_load_n(&allocated, __ATOMIC_RELAXED); }
u64 device_max_tg_memory(Device*, SEL) { return MSL_TG_BYTES; }
u64 device_registry_id(Device*, SEL) { return 1; }
// What an M1 supports: Apple1 to Apple7, Mac2, Common1 to Common3, Metal3.
bool device_family(Device*, SEL, long f) {
    return (f >= 1001 && f <= 1007) || f == 2002 || (f >= 3001 && f <= 3003) || f == 5001;
}

Queue* device_new_queue(Device* d, SEL) {
    Queue* q = make<Queue>(Queue_);
    q->device = keep(d);
    return q;
}

// ---- MTLBuffer: the bytes end at a guard, rounded up to 16, so that a kernel cannot leave them ----

const u64 guard = 1 << 20;

Buffer* device_new_buffer(Device* d, SEL, u64 length, u64 options) {
    if (length == 0 || length > device_max_buffer(d, 0)) return 0;
    u64 page = (u64)sysconf(_SC_PAGESIZE), bytes = (length + 15) & ~(u64)15, body = (bytes + page - 1) & ~(page - 1);
    char* map = (char*)mmap(0, body + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return 0;
    if (mprotect(map + guard, body, PROT_READ | PROT_WRITE)) {
        munmap(map, body + 2 * guard);
        return 0;
    }
#ifdef MADV_HUGEPAGE
    if (body >= 4 << 20) madvise(map + guard, body, MADV_HUGEPAGE);
#endif
    Buffer* b = make<Buffer>(Buffer_);
    b->device = keep(d);
    b->map = map;
    b->mapped = body + 2 * guard;
    b->data = map + guard + body - bytes;
    b->length = length;
    b->is_private = (options >> 4 & 15) == 2;
    __atomic_fetch_add(&allocated, body, __ATOMIC_RELAXED);
    return b;
}
void* buffer_contents(Buffer* b, SEL) { return b->is_private ? 0 : b->data; }
u64 buffer_length(Buffer* b, SEL) { return b->length; }
u64 buffer_allocated(Buffer* b, SEL) { return b->mapped - 2 * guard; }
void buffer_dealloc(id o) {
    Buffer* b = (Buffer*)o;
    __atomic_fetch_sub(&allocated, b->mapped - 2 * guard, __ATOMIC_RELAXED);
    munmap(b->map, b->mapped);
    objc_drop(b->label);
    objc_drop(b->device);
}

// ---- MTLCompileOptions: fast until told otherwise, as in Metal ----

enum { mode_safe = 0, mode_relaxed = 1, mode_fast = 2, functions_fast = 0, functions_precise = 1 };

CompileOptions* options_init(CompileOptions* o, SEL) {
    o->language = 3 << 16 | 1;
    o->math_mode = mode_fast;
    o->functions = functions_fast;
    return o;
}
CompileOptions* options_new(Class* c, SEL) { return options_init((CompileOptions*)objc_new(c), 0); }
void options_set_fast(CompileOptions* o, SEL, bool fast) {
    o->math_mode = fast ? mode_fast : mode_safe;
    o->functions = fast ? functions_fast : functions_precise;
}
bool options_fast(CompileOptions* o, SEL) { return o->math_mode == mode_fast; }
void options_set_mode(CompileOptions* o, SEL, long m) { o->math_mode = m; }
long options_mode(CompileOptions* o, SEL) { return o->math_mode; }
void options_set_functions(CompileOptions* o, SEL, long f) { o->functions = f; }
long options_functions(CompileOptions* o, SEL) { return o->functions; }
void options_set_language(CompileOptions* o, SEL, u64 v) { o->language = v; }
u64 options_language(CompileOptions* o, SEL) { return o->language; }

// ---- MTLLibrary, MTLFunction, MTLComputePipelineState ----

}  // namespace

// What the Go side is asked: to turn Metal source into a shared library.
struct CompileRequest {
    const char* source;
    u64         bytes;
    msl_u32     fast_math, fast_functions;
    char*       out;   // the library's path, or why there is none
    u64         room, used;
};
static uintptr_t (*compile)(CompileRequest*);  // 0: path; else a MTLLibraryError

EXPORT msl_u32 hostmetal_attach(msl_u32 threads, uintptr_t (*fn)(CompileRequest*)) {
    objc_init();
    if (!compile) exec_init(threads);
    compile = fn;
    return MSL_ABI;
}

namespace {

Error* set_error(Error** at, const char* domain, long code, const char* text) {
    if (at) *at = later(new_error(domain, code, text));
    return 0;
}

Library* load_library(Device* d, const char* path, Error** err) {
    void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    typedef MslKernel* (*Entry)(const MslRuntime*, msl_u32* n, msl_u32* abi);
    Entry entry = handle ? (Entry)dlsym(handle, "msl_lib") : 0;
    msl_u32 n = 0, abi = 0;
    MslKernel* kernels = entry ? entry(&exec_runtime, &n, &abi) : 0;
    if (!kernels || abi != MSL_ABI) {
        const char* why = dlerror();
        set_error(err, "MTLLibraryErrorDomain", 2, why ? why : "the compiled library is of another version");
        if (handle) dlclose(handle);
        return 0;
    }
    Library* l = make<Library>(Library_);
    l->device = keep(d);
    l->handle = handle;
    l->kernels = kernels;
    l->n = n;
    return l;
}

Library* device_new_library(Device* d, SEL, String* source, CompileOptions* o, Error** err) {
    static const char method[] = "MTLDevice newLibraryWithSource:options:error:";
    if (!source) assertion(method, "source must not be nil.");
    if (!compile) assertion(method, "no compiler is attached");
    const u64 room = 1 << 16;
    CompileRequest r = {string_utf8(source), source->bytes, 1, 1, (char*)malloc(room), room, 0};
    if (o) {
        r.fast_math = o->math_mode != mode_safe;
        r.fast_functions = o->functions == functions_fast;
    }
    uintptr_t rc = compile(&r);
    r.out[r.used < room ? r.used : room - 1] = 0;
    Library* l = 0;
    if (rc == 0) l = load_library(d, r.out, err);
    else set_error(err, "MTLLibraryErrorDomain", (long)rc, r.out);
    free(r.out);
    return l;
}
Function* library_new_function(Library* l, SEL, String* name) {
    if (!name) assertion("MTLLibrary newFunctionWithName:", "functionName must not be nil.");
    for (msl_u32 i = 0; i < l->n; ++i) {
        if (strcmp(l->kernels[i].name, string_utf8(name))) continue;
        Function* f = make<Function>(Function_);
        f->library = keep(l);
        f->kernel = &l->kernels[i];
        return f;
    }
    return 0;
}
Array* library_names(Library* l, SEL) {
    Array* a = new_array(l->n);
    for (msl_u32 i = 0; i < l->n; ++i) a->items[i] = new_string(l->kernels[i].name);
    return later(a);
}
void library_dealloc(id o) {
    Library* l = (Library*)o;
    dlclose(l->handle);
    objc_drop(l->label);
    objc_drop(l->device);
}

String* function_name(Function* f, SEL) { return later(new_string(f->kernel->name)); }
u64 function_type(Function*, SEL) { return 3; }  // MTLFunctionTypeKernel
void function_dealloc(id o) { objc_drop(((Function*)o)->library); }

Pipeline* device_new_pipeline(Device*, SEL, Function* f, Error**) {
    if (!f) assertion("MTLDevice newComputePipelineStateWithFunction:error:", "computeFunction must not be nil.");
    Pipeline* p = make<Pipeline>(Pipeline_);
    p->library = keep(f->library);
    p->kernel = f->kernel;
    return p;
}
u64 pipeline_max_threads(Pipeline* p, SEL) { return p->kernel->max_threads; }
u64 pipeline_width(Pipeline*, SEL) { return MSL_SIMD; }
u64 pipeline_static_memory(Pipeline* p, SEL) { return __atomic_load_n(&p->kernel->tg_static, __ATOMIC_RELAXED); }
id pipeline_device(Pipeline* p, SEL) { return p->library->device; }
void pipeline_dealloc(id o) { objc_drop(((Pipeline*)o)->library); }

// ---- executing committed command buffers, one after another ----

pthread_mutex_t run_mu = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t run_committed = PTHREAD_COND_INITIALIZER, run_completed = PTHREAD_COND_INITIALIZER;
CommandBuffer *run_first, *run_last;
bool running;  // somebody executes

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void let_go(CommandBuffer* b) {
    for (size_t i = 0; i < b->nheld; ++i) objc_drop(b->held[i]);
    free((void*)b->held);
    free(b->cmds);
    while (Block* k = b->blocks) {
        b->blocks = k->next;
        free(k);
    }
    b->held = 0;
    b->cmds = 0;
    b->nheld = b->ncmds = 0;
}

// Executes the oldest committed command buffer. Called, and returns, with run_mu held.
void run_one() {
    CommandBuffer* b = run_first;
    run_first = b->next;
    if (!run_first) run_last = 0;
    running = true;
    b->status = 3;
    pthread_mutex_unlock(&run_mu);
    ExecError e;
    b->start = now();
    exec_run(b->cmds, (msl_u32)b->ncmds, &e);
    b->end = now();
    if (e.code) b->error = new_error("MTLCommandBufferErrorDomain", e.code, e.text);
    let_go(b);
    pthread_mutex_lock(&run_mu);
    b->status = e.code ? 5 : 4;
    --b->queue->open;
    --b->queue->committed;
    running = false;
    objc_drop(b);  // commit's reference, before anybody hears of the completion
    pthread_cond_broadcast(&run_completed);
}

void* runner_main(void*) {
    pthread_mutex_lock(&run_mu);
    for (;;) {
        while (!run_first || running) pthread_cond_wait(running ? &run_completed : &run_committed, &run_mu);
        run_one();
    }
}
// ---- MTLCommandQueue, MTLCommandBuffer ----

const msl_u32 max_open = 64;

CommandBuffer* queue_command_buffer(Queue* q, SEL) {
    pthread_mutex_lock(&run_mu);
    while (q->open >= max_open) {
        if (!q->committed)
            assertion("MTLCommandQueue commandBuffer", "%u command buffers of this queue are uncommitted: Metal would wait for ever", max_open);
        pthread_cond_wait(&run_completed, &run_mu);
    }
    ++q->open;
    pthread_mutex_unlock(&run_mu);
    CommandBuffer* b = make<CommandBuffer>(CommandBuffer_);
    b->queue = keep(q);
    return later(b);
}
void queue_dealloc(id o) {
    objc_drop(((Queue*)o)->label);
    objc_drop(((Queue*)o)->device);
}

void hold(CommandBuffer* b, id o) {
    if (b->nheld == b->held_room) {
        b->held_room = b->held_room ? 2 * b->held_room : 64;
        b->held = (id*)realloc((void*)b->held, b->held_room * sizeof(id));
    }
    b->held[b->nheld++] = objc_keep(o);
}

Encoder* buffer_encoder(CommandBuffer* b, SEL) {
    static const char method[] = "MTLCommandBuffer computeCommandEncoder";
    if (b->status >= 2) assertion(method, "encoding to a command buffer that was committed");
    if (b->encoder) assertion(method, "A command encoder is already encoding to this command buffer");
    Encoder* e = make<Encoder>(Encoder_);
    e->buffer = keep(b);
    b->encoder = e;
    return later(e);
}
void command_buffer_enqueue(CommandBuffer* b, SEL) {
    if (b->status == 0) b->status = 1;
}
void command_buffer_commit(CommandBuffer* b, SEL) {
    static const char method[] = "MTLCommandBuffer commit";
    if (b->status >= 2) assertion(method, "commit an already committed command buffer");
    if (b->encoder) assertion(method, "commit command buffer with uncommitted encoder");
    keep(b);
    pthread_mutex_lock(&run_mu);
    static bool started;
    if (!started) started = exec_thread(runner_main);
    b->status = 2;
    ++b->queue->committed;
    (run_last ? run_last->next : run_first) = b;
    run_last = b;
    pthread_cond_signal(&run_committed);
    pthread_mutex_unlock(&run_mu);
}
// Who waits helps: the thread executes what was committed before, if nobody does.
void command_buffer_wait(CommandBuffer* b, SEL) {
    pthread_mutex_lock(&run_mu);
    if (b->status < 2) assertion("MTLCommandBuffer waitUntilCompleted", "the command buffer was not committed: it would never complete");
    while (b->status < 4)
        if (!running && run_first) run_one();
        else pthread_cond_wait(&run_completed, &run_mu);
    pthread_mutex_unlock(&run_mu);
}
u64 command_buffer_status(CommandBuffer* b, SEL) {
    pthread_mutex_lock(&run_mu);
    u64 s = b->status;
    pthread_mutex_unlock(&run_mu);
    return s;
}
Error* command_buffer_error(CommandBuffer* b, SEL s) { return command_buffer_status(b, s) == 5 ? later(keep(b->error)) : 0; }
double command_buffer_start(CommandBuffer* b, SEL s) { return command_buffer_status(b, s) >= 4 ? b->start : 0; }
double command_buffer_end(CommandBuffer* b, SEL s) { return command_buffer_status(b, s) >= 4 ? b->end : 0; }
id command_buffer_queue(CommandBuffer* b, SEL) { return b->queue; }
id command_buffer_device(CommandBuffer* b, SEL) { return b->queue->device; }
void command_buffer_dealloc(id o) {
    CommandBuffer* b = (CommandBuffer*)o;
    if (b->status < 2) {
        pthread_mutex_lock(&run_mu);
        --b->queue->open;
        pthread_mutex_unlock(&run_mu);
    }
    let_go(b);
    objc_drop(b->label);
    objc_drop(b->error);
    objc_drop(b->queue);
}

// ---- MTLComputeCommandEncoder ----

#define ENCODER "MTLComputeCommandEncoder "
void check_open(Encoder* e, const char* method) {
    if (e->ended) assertion(method, "encoding after endEncoding");
}
void check_index(u64 i, u64 limit, const char* method) {
    if (i >= limit) assertion(method, "index(%llu) must be < %llu", (unsigned long long)i, (unsigned long long)limit);
}

void encoder_set_pipeline(Encoder* e, SEL, Pipeline* p) {
    static const char method[] = ENCODER "setComputePipelineState:";
    check_open(e, method);
    if (!p) assertion(method, "computePipelineState must not be nil.");
    hold(e->buffer, p);
    e->pipeline = p;
}
void encoder_set_buffer(Encoder* e, SEL, Buffer* b, u64 offset, u64 i) {
    static const char method[] = ENCODER "setBuffer:offset:atIndex:";
    check_open(e, method);
    check_index(i, MSL_BUFFERS, method);
    if (!b) {
        e->buf[i] = MslBuf{};
        return;
    }
    if (offset >= b->length)
        assertion(method, "offset(%llu) must be < [buffer length](%llu).", (unsigned long long)offset, (unsigned long long)b->length);
    hold(e->buffer, b);
    e->buf[i] = MslBuf{b->data + offset, b->length - offset, offset};
}
void encoder_set_bytes(Encoder* e, SEL, const void* p, u64 n, u64 i) {
    static const char method[] = ENCODER "setBytes:length:atIndex:";
    check_open(e, method);
    check_index(i, MSL_BUFFERS, method);
    if (!p || !n) assertion(method, "bytes must not be nil, length must not be 0");
    if (n > 4096) assertion(method, "length(%llu) must be <= 4096", (unsigned long long)n);
    CommandBuffer* b = e->buffer;
    u64 room = (n + 15) & ~(u64)15;
    if (!b->blocks || b->blocks->used + room > sizeof b->blocks->data) {
        Block* k = (Block*)aligned_alloc(16, sizeof(Block));
        k->next = b->blocks;
        k->used = 0;
        b->blocks = k;
    }
    char* at = b->blocks->data + b->blocks->used;
    b->blocks->used += room;
    memcpy(at, p, n);
    e->buf[i] = MslBuf{at, n, 0};
}
void encoder_set_tg_length(Encoder* e, SEL, u64 n, u64 i) {
    static const char method[] = ENCODER "setThreadgroupMemoryLength:atIndex:";
    check_open(e, method);
    check_index(i, MSL_TG_ARGS, method);
    if (n % 16) assertion(method, "length(%llu) must be a multiple of 16 bytes", (unsigned long long)n);
    if (n > MSL_TG_BYTES) assertion(method, "length(%llu) must be <= %d", (unsigned long long)n, MSL_TG_BYTES);
    e->tg_len[i] = (msl_u32)n;
}

void check_arguments(Encoder* e, const char* method) {
    const MslKernel* k = e->pipeline->kernel;
    u64 tg = k->tg_static;
    for (msl_u32 i = 0; i < MSL_TG_ARGS; ++i) tg += e->tg_len[i];
    if (tg > MSL_TG_BYTES)
        assertion(method, "Compute Function(%s): threadgroup memory of %llu bytes exceeds %d", k->name, (unsigned long long)tg, MSL_TG_BYTES);
    for (msl_u32 i = 0; i < k->nargs; ++i) {
        const MslArg& a = k->args[i];
        if (a.kind == MSL_ARG_THREADGROUP && e->tg_len[a.index] == 0)
            assertion(method, "Compute Function(%s): missing threadgroup memory binding at index %u for %s[0].", k->name, a.index, k->arg_names[i]);
        if (a.kind != MSL_ARG_BUFFER) continue;
        const MslBuf& b = e->buf[a.index];
        if (!b.p) assertion(method, "Compute Function(%s): missing Buffer binding at index %u for %s[0].", k->name, a.index, k->arg_names[i]);
        if (b.len < a.size)
            assertion(method, "Compute Function(%s): argument %s[0] from Buffer(%u) with offset(%llu) has space for %llu bytes, but argument has a length(%u).",
                      k->name, k->arg_names[i], a.index, (unsigned long long)b.off, (unsigned long long)b.len, a.size);
        msl_u32 align = a.align < 16 ? a.align : 16;
        if ((uintptr_t)b.p % align)
            assertion(method, "Compute Function(%s): the offset(%llu) into the buffer %s that is bound at buffer index %u must be a multiple of %u.",
                      k->name, (unsigned long long)b.off, k->arg_names[i], a.index, align);
    }
}

bool fits(const MTLSize& s) { return s.width && s.height && s.depth && (s.width | s.height | s.depth) < 1ull << 32; }

// groups: the threadgroups; threads: the threads of the whole grid.
void dispatch(Encoder* e, const MTLSize& groups, const MTLSize& threads, const MTLSize& tpg, const char* method) {
    check_arguments(e, method);
    CommandBuffer* b = e->buffer;
    if (b->ncmds == b->cmds_room) {
        b->cmds_room = b->cmds_room ? 2 * b->cmds_room : 16;
        b->cmds = (MslCmd*)realloc((void*)b->cmds, b->cmds_room * sizeof(MslCmd));
    }
    MslCmd& c = b->cmds[b->ncmds++];
    memset((void*)&c, 0, sizeof c);
    c.k = e->pipeline->kernel;
    const u64 *g = &groups.width, *t = &threads.width, *p = &tpg.width;
    for (int i = 0; i < 3; ++i) {
        c.groups[i] = (msl_u32)g[i];
        c.threads[i] = (msl_u32)t[i];
        c.tpg[i] = (msl_u32)p[i];
    }
    memcpy(c.tg_len, e->tg_len, sizeof c.tg_len);
    memcpy(c.buf, e->buf, sizeof c.buf);
}
void check_dispatch(Encoder* e, const MTLSize& grid, const MTLSize& tpg, const char* method) {
    check_open(e, method);
    if (!e->pipeline) assertion(method, "A compute pipeline state must be set before a dispatch");
    if (!fits(grid)) assertion(method, "the grid (%llu, %llu, %llu) must be positive and below 2^32", (unsigned long long)grid.width, (unsigned long long)grid.height, (unsigned long long)grid.depth);
    u64 max = pipeline_max_threads(e->pipeline, 0);
    if (!fits(tpg) || tpg.width > max || tpg.height > max || tpg.width * tpg.height * tpg.depth > max)
        assertion(method, "(threadsPerThreadgroup.width(%llu) * threadsPerThreadgroup.height(%llu) * threadsPerThreadgroup.depth(%llu)) must be in 1..%llu.",
                  (unsigned long long)tpg.width, (unsigned long long)tpg.height, (unsigned long long)tpg.depth, (unsigned long long)max);
}
void encoder_dispatch_groups(Encoder* e, SEL, MTLSize groups, MTLSize tpg) {
    static const char method[] = ENCODER "dispatchThreadgroups:threadsPerThreadgroup:";
    check_dispatch(e, groups, tpg, method);
    MTLSize threads = {groups.width * tpg.width, groups.height * tpg.height, groups.depth * tpg.depth};
    if (!fits(threads)) assertion(method, "the grid has more than 2^32 threads in one dimension");
    dispatch(e, groups, threads, tpg, method);
}
void encoder_dispatch_threads(Encoder* e, SEL, MTLSize threads, MTLSize tpg) {
    static const char method[] = ENCODER "dispatchThreads:threadsPerThreadgroup:";
    check_dispatch(e, threads, tpg, method);
    MTLSize groups = {(threads.width + tpg.width - 1) / tpg.width, (threads.height + tpg.height - 1) / tpg.height,
                      (threads.depth + tpg.depth - 1) / tpg.depth};
    dispatch(e, groups, threads, tpg, method);
}
void encoder_end(Encoder* e, SEL) {
    check_open(e, ENCODER "endEncoding");
    e->ended = true;
    e->buffer->encoder = 0;
}
void encoder_dealloc(id o) {
    Encoder* e = (Encoder*)o;
    if (!e->ended) assertion(ENCODER "dealloc", "Command encoder released without endEncoding");
    objc_drop(e->label);
    objc_drop(e->buffer);
}

void device_dealloc(id o) {
    pthread_mutex_lock(&device_mu);
    if (the_device == o) the_device = 0;
    pthread_mutex_unlock(&device_mu);
}

// ---- classes ----

const Method device_methods[] = {
    {"name", (void*)device_name},
    {"registryID", (void*)device_registry_id},
    {"isHeadless", (void*)device_no},
    {"isLowPower", (void*)device_no},
    {"isRemovable", (void*)device_no},
    {"hasUnifiedMemory", (void*)device_unified},
    {"maxBufferLength", (void*)device_max_buffer},
    {"recommendedMaxWorkingSetSize", (void*)device_max_buffer},
    {"currentAllocatedSize", (void*)device_allocated},
    {"maxThreadgroupMemoryLength", (void*)device_max_tg_memory},
    {"supportsFamily:", (void*)device_family},
    {"newCommandQueue", (void*)device_new_queue},
    {"newBufferWithLength:options:", (void*)device_new_buffer},
    {"newLibraryWithSource:options:error:", (void*)device_new_library},
    {"newComputePipelineStateWithFunction:error:", (void*)device_new_pipeline},
    {0, 0},
};
const Method options_methods[] = {
    {"init", (void*)options_init},
    {"setLanguageVersion:", (void*)options_set_language},
    {"languageVersion", (void*)options_language},
    {"setFastMathEnabled:", (void*)options_set_fast},
    {"fastMathEnabled", (void*)options_fast},
    {"setMathMode:", (void*)options_set_mode},
    {"mathMode", (void*)options_mode},
    {"setMathFloatingPointFunctions:", (void*)options_set_functions},
    {"mathFloatingPointFunctions", (void*)options_functions},
    {0, 0},
};
const Method options_class_methods[] = {{"new", (void*)options_new}, {0, 0}};
const Method library_methods[] = {
    {"newFunctionWithName:", (void*)library_new_function},
    {"functionNames", (void*)library_names},
    {"device", (void*)borrowed_device},
    LABEL,
    {0, 0},
};
const Method function_methods[] = {{"name", (void*)function_name}, {"functionType", (void*)function_type}, {0, 0}};
const Method pipeline_methods[] = {
    {"maxTotalThreadsPerThreadgroup", (void*)pipeline_max_threads},
    {"threadExecutionWidth", (void*)pipeline_width},
    {"staticThreadgroupMemoryLength", (void*)pipeline_static_memory},
    {"device", (void*)pipeline_device},
    {0, 0},
};
const Method buffer_methods[] = {
    {"contents", (void*)buffer_contents},
    {"length", (void*)buffer_length},
    {"allocatedSize", (void*)buffer_allocated},
    {"device", (void*)borrowed_device},
    LABEL,
    {0, 0},
};
const Method queue_methods[] = {
    {"commandBuffer", (void*)queue_command_buffer},
    {"device", (void*)borrowed_device},
    LABEL,
    {0, 0},
};
const Method command_buffer_methods[] = {
    {"computeCommandEncoder", (void*)buffer_encoder},
    {"enqueue", (void*)command_buffer_enqueue},
    {"commit", (void*)command_buffer_commit},
    {"waitUntilCompleted", (void*)command_buffer_wait},
    {"status", (void*)command_buffer_status},
    {"error", (void*)command_buffer_error},
    {"GPUStartTime", (void*)command_buffer_start},
    {"GPUEndTime", (void*)command_buffer_end},
    {"commandQueue", (void*)command_buffer_queue},
    {"device", (void*)command_buffer_device},
    LABEL,
    {0, 0},
};
const Method encoder_methods[] = {
    {"setComputePipelineState:", (void*)encoder_set_pipeline},
    {"setBuffer:offset:atIndex:", (void*)encoder_set_buffer},
    {"setBytes:length:atIndex:", (void*)encoder_set_bytes},
    {"setThreadgroupMemoryLength:atIndex:", (void*)encoder_set_tg_length},
    {"dispatchThreadgroups:threadsPerThreadgroup:", (void*)encoder_dispatch_groups},
    {"dispatchThreads:threadsPerThreadgroup:", (void*)encoder_dispatch_threads},
    {"endEncoding", (void*)encoder_end},
    LABEL,
    {0, 0},
};

#define CLASS(name, T, dealloc, methods) {{0, -1}, name, &NSObject_, sizeof(T), dealloc, methods, 0, 0, 0}
Class Device_ = CLASS("MTLDevice", Device, device_dealloc, device_methods);
Class Library_ = CLASS("MTLLibrary", Library, library_dealloc, library_methods);
Class Function_ = CLASS("MTLFunction", Function, function_dealloc, function_methods);
Class Pipeline_ = CLASS("MTLComputePipelineState", Pipeline, pipeline_dealloc, pipeline_methods);
Class Buffer_ = CLASS("MTLBuffer", Buffer, buffer_dealloc, buffer_methods);
Class Queue_ = CLASS("MTLCommandQueue", Queue, queue_dealloc, queue_methods);
Class CommandBuffer_ = CLASS("MTLCommandBuffer", CommandBuffer, command_buffer_dealloc, command_buffer_methods);
Class Encoder_ = CLASS("MTLComputeCommandEncoder", Encoder, encoder_dealloc, encoder_methods);
Class CompileOptions_ = {{0, -1}, "MTLCompileOptions", &NSObject_, sizeof(CompileOptions), 0, options_methods, options_class_methods, 0, 0};

}  // namespace

Class* const client_classes[] = {&Device_, &Library_, &Function_, &Pipeline_, &Buffer_, &Queue_, &CommandBuffer_, &Encoder_, &CompileOptions_, 0};

EXPORT id MTLCreateSystemDefaultDevice() {
    objc_init();
    pthread_mutex_lock(&device_mu);
    if (the_device) objc_keep(the_device);
    else the_device = make<Device>(Device_);
    pthread_mutex_unlock(&device_mu);
    return the_device;
}
EXPORT id MTLCopyAllDevices() {
    Array* a = new_array(1);
    a->items[0] = MTLCreateSystemDefaultDevice();
    return a;
}
