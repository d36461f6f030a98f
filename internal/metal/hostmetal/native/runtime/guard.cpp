// What the CPU may do with buffers while commands are in flight. In the checked mode a buffer's memory is mapped twice: kernels have one
// place, contents gives the other, which is closed from commit until somebody has seen the completion: wholly if commands write the buffer,
// for writing if they only read it.
#include "check.h"
#include "metal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

Buffer* guarded;  // all of them
pthread_mutex_t guarded_mu = PTHREAD_MUTEX_INITIALIZER;

char* host_map(const Buffer* b) { return b->host - (b->data - b->map); }
u64 body_of(const Buffer* b) { return b->mapped - 2 * buffer_guard; }

void protect(Buffer* b) {
    int prot = b->writers ? PROT_NONE : b->readers ? PROT_READ : PROT_READ | PROT_WRITE;
    mprotect(host_map(b) + buffer_guard, body_of(b), prot);
}

// Called by the handler of faults that are no kernel's: says what the fault means, if it is about a buffer.
void explain(uintptr_t a) {
    for (Buffer* b = guarded; b; b = b->next) {
        if (a - (uintptr_t)host_map(b) >= b->mapped) continue;
        const char* label = b->label ? string_utf8(b->label) : "without a label";
        const char* what = b->writers ? "uses the contents while a committed command buffer that nobody has seen completed writes them"
                           : b->readers ? "changes the contents while a committed command buffer that nobody has seen completed reads them"
                                        : "leaves the contents";
        dprintf(2, "-[MTLBuffer contents]: at byte %lld of a buffer of %llu bytes, %s, the CPU %s\n", (long long)(a - (uintptr_t)b->host),
                (unsigned long long)b->length, label, what);
        return;
    }
}

}  // namespace

bool guard_map(Buffer* b) {
    u64 body = body_of(b);
    int fd = memfd_create("MTLBuffer", MFD_CLOEXEC);
    char* map = (char*)mmap(0, b->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    bool ok = fd >= 0 && map != MAP_FAILED && ftruncate(fd, (off_t)body) == 0;
    char* places[] = {b->map, map};
    for (char* at : places) ok = ok && mmap(at + buffer_guard, body, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
    if (fd >= 0) close(fd);
    if (!ok) {
        if (map != MAP_FAILED) munmap(map, b->mapped);
        return false;
    }
    b->host = map + (b->data - b->map);
    exec_foreign_fault = explain;
    pthread_mutex_lock(&guarded_mu);
    b->next = guarded;
    b->link = &guarded;
    if (guarded) guarded->link = &b->next;
    guarded = b;
    pthread_mutex_unlock(&guarded_mu);
    return true;
}

void guard_unmap(Buffer* b) {
    pthread_mutex_lock(&guarded_mu);
    *b->link = b->next;
    if (b->next) b->next->link = b->link;
    pthread_mutex_unlock(&guarded_mu);
    munmap(host_map(b), b->mapped);
}

void guard_use(CommandBuffer* c, Buffer* b, bool writes) {
    if (!c->flight) c->flight = (Flight*)calloc(1, sizeof(Flight));
    Flight* f = c->flight;
    if (f->n == f->room) {
        f->room = f->room ? 2 * f->room : 64;
        f->uses = (Use*)realloc((void*)f->uses, f->room * sizeof(Use));
    }
    f->uses[f->n++] = {keep(b), writes};
}

void guard_commit(CommandBuffer* c) {
    Flight* f = c->flight;
    c->flight = 0;
    c->number = ++c->queue->numbers;
    if (!f) return;
    f->number = c->number;
    for (size_t i = 0; i < f->n; ++i) {
        ++(f->uses[i].writes ? f->uses[i].buffer->writers : f->uses[i].buffer->readers);
        protect(f->uses[i].buffer);
    }
    Flight** last = &c->queue->flights;
    while (*last) last = &(*last)->next;
    *last = f;
}

void guard_completed(Queue* q, u64 number) {
    while (q->flights && q->flights->number <= number) {
        Flight* f = q->flights;
        q->flights = f->next;
        for (size_t i = 0; i < f->n; ++i) {
            --(f->uses[i].writes ? f->uses[i].buffer->writers : f->uses[i].buffer->readers);
            protect(f->uses[i].buffer);
        }
        guard_drop(f);
    }
}

void guard_drop(Flight* f) {
    if (!f) return;
    for (size_t i = 0; i < f->n; ++i) objc_drop(f->uses[i].buffer);
    free((void*)f->uses);
    free(f);
}
