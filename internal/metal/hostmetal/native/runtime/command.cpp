// MTLCommandQueue, MTLCommandBuffer and MTLComputeCommandEncoder.
#include "check.h"
#include "metal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

namespace {

// ---- executing committed command buffers, one after another ----

pthread_mutex_t run_mu = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t run_committed = PTHREAD_COND_INITIALIZER, run_completed = PTHREAD_COND_INITIALIZER;
CommandBuffer *run_first, *run_last;
bool running;   // somebody executes
int  fail_next;  // the code with which the next command buffer ends, whatever it does; for tests

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

bool first_of_queue(CommandBuffer* b) {
    CommandBuffer* c = run_first;
    while (c->queue != b->queue) c = c->next;
    return c == b;
}

// Takes a committed command buffer off the list: the oldest, or, in a seed's order, the oldest of any queue.
CommandBuffer* take_one() {
    CommandBuffer **at = &run_first, *before = 0, *b = run_first;
    static u64 taken;
    if (check_seed) {
        u64 queues = 0, random = (check_seed + ++taken) * 0x9e3779b97f4a7c15u >> 32;
        for (CommandBuffer* c = run_first; c; c = c->next) queues += first_of_queue(c);
        for (u64 skip = random % queues + 1; skip; before = b, at = &b->next) {
            b = *at;
            if (first_of_queue(b) && !--skip) break;
        }
    }
    *at = b->next;
    if (run_last == b) run_last = before;
    return b;
}

// Executes a committed command buffer. Called, and returns, with run_mu held.
void run_one() {
    CommandBuffer* b = take_one();
    running = true;
    b->status = 3;
    pthread_mutex_unlock(&run_mu);
    ExecError e;
    b->start = now();
    exec_run(b->cmds, (msl_u32)b->ncmds, &e);
    b->end = now();
    if (int code = __atomic_exchange_n(&fail_next, 0, __ATOMIC_RELAXED)) {
        e.code = code;
        snprintf(e.text, sizeof e.text, "as hostmetal_fail_next was asked to");
    }
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

// Executes without being asked, but not in a seed's order: that must not depend on when somebody commits.
void* runner_main(void*) {
    pthread_mutex_lock(&run_mu);
    for (;;) {
        while (!run_first || running || check_seed) pthread_cond_wait(running ? &run_completed : &run_committed, &run_mu);
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
    guard_completed((Queue*)o, ~0ull);
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

Encoder* new_encoder(CommandBuffer* b, bool concurrent, const char* method) {
    if (b->status >= 2) assertion(method, "encoding to a command buffer that was committed");
    if (b->encoder) assertion(method, "A command encoder is already encoding to this command buffer");
    Encoder* e = make<Encoder>(Encoder_);
    e->buffer = keep(b);
    e->concurrent = concurrent;
    e->barrier = true;  // encoders follow each other
    b->encoder = e;
    return later(e);
}
Encoder* buffer_encoder(CommandBuffer* b, SEL) { return new_encoder(b, false, "MTLCommandBuffer computeCommandEncoder"); }
Encoder* buffer_encoder_of_type(CommandBuffer* b, SEL, u64 type) {
    static const char method[] = "MTLCommandBuffer computeCommandEncoderWithDispatchType:";
    if (type > 1) assertion(method, "dispatchType(%llu) is neither serial nor concurrent", (unsigned long long)type);
    return new_encoder(b, type == 1, method);
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
    guard_commit(b);
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
    guard_completed(b->queue, b->number);
    pthread_mutex_unlock(&run_mu);
}
u64 command_buffer_status(CommandBuffer* b, SEL) {
    pthread_mutex_lock(&run_mu);
    if (check_seed && b->status < 4 && b->status >= 2 && !running) run_one();
    u64 s = b->status;
    if (s >= 4) guard_completed(b->queue, b->number);
    pthread_mutex_unlock(&run_mu);
    return s;
}
Error* command_buffer_error(CommandBuffer* b, SEL s) {
    if (command_buffer_status(b, s) != 5) return 0;
    pthread_mutex_lock(&run_mu);
    name_places(b->error);
    pthread_mutex_unlock(&run_mu);
    return later(keep(b->error));
}
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
    guard_drop(b->flight);
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
void bind(Encoder* e, u64 i, Buffer* b, bool bytes, MslBuf to) {
    e->buf[i] = to;
    e->bound[i] = b;
    msl_u32 bit = 1u << i;
    e->bytes = bytes ? e->bytes | bit : e->bytes & ~bit;
    e->fresh |= bit;
}
void encoder_set_buffer(Encoder* e, SEL, Buffer* b, u64 offset, u64 i) {
    static const char method[] = ENCODER "setBuffer:offset:atIndex:";
    check_open(e, method);
    check_index(i, MSL_BUFFERS, method);
    if (!b) {
        bind(e, i, 0, false, MslBuf{});
        e->fresh &= ~(1u << i);
        return;
    }
    if (offset >= b->length)
        assertion(method, "offset(%llu) must be < [buffer length](%llu).", (unsigned long long)offset, (unsigned long long)b->length);
    hold(e->buffer, b);
    bind(e, i, b, false, MslBuf{b->data + offset, b->length - offset, offset});
}
// A copy of n bytes, of which from has the first m, that lives as long as the command buffer does.
void* copied(CommandBuffer* b, const void* from, u64 n, u64 m) {
    u64 room = (n + 15) & ~(u64)15;
    if (!b->blocks || b->blocks->used + room > sizeof b->blocks->data) {
        Block* k = (Block*)aligned_alloc(16, sizeof(Block));
        k->next = b->blocks;
        k->used = 0;
        b->blocks = k;
    }
    char* at = b->blocks->data + b->blocks->used;
    b->blocks->used += room;
    if (m) memcpy(at, from, m);
    return at;
}
void encoder_set_bytes(Encoder* e, SEL, const void* p, u64 n, u64 i) {
    static const char method[] = ENCODER "setBytes:length:atIndex:";
    check_open(e, method);
    check_index(i, MSL_BUFFERS, method);
    if (!p || !n) assertion(method, "bytes must not be nil, length must not be 0");
    if (n > 4096) assertion(method, "length(%llu) must be <= 4096", (unsigned long long)n);
    void* at = copied(e->buffer, p, n, n);
    bind(e, i, 0, true, MslBuf{at, n, 0});
}
// Scopes 2 and 4 are textures and render targets, which the host device has not.
void encoder_barrier(Encoder* e, SEL, u64 scope) {
    check_open(e, ENCODER "memoryBarrierWithScope:");
    e->barrier = e->barrier || (scope & 1);
}
void encoder_barrier_of(Encoder* e, SEL, Buffer** resources, u64 n) {
    static const char method[] = ENCODER "memoryBarrierWithResources:count:";
    check_open(e, method);
    if (e->nfences + n > block_size / sizeof(void*)) assertion(method, "the host device takes at most %zu resources", block_size / sizeof(void*));
    void** all = (void**)copied(e->buffer, e->fences, (e->nfences + n) * sizeof(void*), e->nfences * sizeof(void*));
    for (u64 i = 0; i < n; ++i) all[e->nfences + i] = resources[i]->data;
    e->fences = all;
    e->nfences += (msl_u32)n;
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

// The checked mode is stricter than Metal with arguments: what is bound belongs to the kernel, and what setBytes copies is one value.
void check_strictly(Encoder* e, const char* method) {
    const MslKernel* k = e->pipeline->kernel;
    for (msl_u32 i = 0; i < k->nargs; ++i) {
        const MslArg& a = k->args[i];
        if (a.kind != MSL_ARG_BUFFER) continue;
        msl_u32 bit = 1u << a.index;
        e->fresh &= ~bit;
        if (e->bytes & bit && a.flags & MSL_REF && e->buf[a.index].len != a.size)
            assertion(method, "Compute Function(%s): argument %s[0] from setBytes at index %u has %llu bytes, but argument has a length(%u).", k->name,
                      k->arg_names[i], a.index, (unsigned long long)e->buf[a.index].len, a.size);
    }
    if (e->fresh) assertion(method, "Compute Function(%s): the function has no argument at index %d, which was set for it.", k->name, __builtin_ctz(e->fresh));
}
void note_uses(Encoder* e) {
    const MslKernel* k = e->pipeline->kernel;
    for (msl_u32 i = 0; i < k->nargs; ++i) {
        const MslArg& a = k->args[i];
        Buffer* b = a.kind == MSL_ARG_BUFFER ? e->bound[a.index] : 0;
        if (b && b->host) guard_use(e->buffer, b, !(a.flags & MSL_CONST));
    }
}

bool fits(const MTLSize& s) { return s.width && s.height && s.depth && (s.width | s.height | s.depth) < 1ull << 32; }

// groups: the threadgroups; threads: the threads of the whole grid.
void dispatch(Encoder* e, const MTLSize& groups, const MTLSize& threads, const MTLSize& tpg, const char* method) {
    check_arguments(e, method);
    if (check_on) check_strictly(e, method);
    e->fresh = 0;
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
    c.concurrent = e->concurrent && !e->barrier;
    c.fences = e->fences;
    c.nfences = e->nfences;
    e->barrier = false;
    e->fences = 0;
    e->nfences = 0;
    if (check_on) note_uses(e);
}
void check_dispatch(Encoder* e, const MTLSize& grid, const MTLSize& tpg, const char* method) {
    check_open(e, method);
    if (!e->pipeline) assertion(method, "A compute pipeline state must be set before a dispatch");
    if (!fits(grid)) assertion(method, "the grid (%llu, %llu, %llu) must be positive and below 2^32", (unsigned long long)grid.width, (unsigned long long)grid.height, (unsigned long long)grid.depth);
    u64 max = e->pipeline->kernel->max_threads;
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
u64 encoder_type(Encoder* e, SEL) { return e->concurrent; }
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

const Method queue_methods[] = {
    {"commandBuffer", (void*)queue_command_buffer},
    {"device", (void*)get_owner},
    LABEL,
    {0, 0},
};
const Method command_buffer_methods[] = {
    {"computeCommandEncoder", (void*)buffer_encoder},
    {"computeCommandEncoderWithDispatchType:", (void*)buffer_encoder_of_type},
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
    {"memoryBarrierWithScope:", (void*)encoder_barrier},
    {"memoryBarrierWithResources:count:", (void*)encoder_barrier_of},
    {"dispatchType", (void*)encoder_type},
    {"endEncoding", (void*)encoder_end},
    LABEL,
    {0, 0},
};

}  // namespace

EXPORT void hostmetal_fail_next(int code) { __atomic_store_n(&fail_next, code, __ATOMIC_RELAXED); }

Class Queue_ = PRIVATE_CLASS("MTLCommandQueue", Queue, queue_dealloc, queue_methods);
Class CommandBuffer_ = PRIVATE_CLASS("MTLCommandBuffer", CommandBuffer, command_buffer_dealloc, command_buffer_methods);
Class Encoder_ = PRIVATE_CLASS("MTLComputeCommandEncoder", Encoder, encoder_dealloc, encoder_methods);

Queue* device_new_queue(Device* d, SEL) {
    Queue* q = make<Queue>(Queue_);
    q->device = keep(d);
    return q;
}
