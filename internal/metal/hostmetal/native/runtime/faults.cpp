// How a kernel fails: by an error that the runtime finds, or by a fault of the processor.
#include "check.h"
#include "worker.h"

#include <stdio.h>
#include <string.h>

thread_local Worker* self __attribute__((tls_model("initial-exec")));
thread_local volatile sig_atomic_t in_kernel __attribute__((tls_model("initial-exec")));
void (*exec_foreign_fault)(unsigned long);

namespace {

// Ends the command with an error at a place, or, without one, at the kernel's first line.
[[noreturn]] void die_at(Worker* w, int code, const char* place, const char* fmt, va_list ap) {
    Run* r = w->run;
    pthread_mutex_lock(&r->mu);
    if (!r->failed.load()) {
        r->err->code = code;
        r->err->cmd = w->cmd;
        char* p = r->err->text;
        size_t room = sizeof r->err->text;
        const MslKernel* k = w->g.cmd->k;
        int n = place ? snprintf(p, room, "kernel %s (%s): ", k->name, place)
                      : snprintf(p, room, "kernel %s (%s:%u): ", k->name, k->file, k->line);
        n += vsnprintf(p + n, room - n, fmt, ap);
        const u32* t = w->cur ? w->cur->pos : w->at;
        if ((size_t)n < room)
            n += snprintf(p + n, room - n, "; threadgroup [%u %u %u]", w->g.pos[0], w->g.pos[1], w->g.pos[2]);
        if (t && (size_t)n < room) n += snprintf(p + n, room - n, ", thread [%u %u %u]", t[0], t[1], t[2]);
        if (w->checked && (size_t)n < room) snprintf(p + n, room - n, ", seed %llu", check_seed);
        r->failed.store(true);
    }
    pthread_mutex_unlock(&r->mu);
    siglongjmp(w->recover, 1);
}

}  // namespace

void die(Worker* w, int code, const char* fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char place[400];
    if (w->checked && w->pc) check_place(w->pc, place, sizeof place);
    die_at(w, code, w->checked && w->pc ? place : 0, fmt, ap);
}

void exec_die(MslThread* t, int code, const char* place, const char* fmt, va_list ap) {
    self->cur = t;
    die_at(self, code, place, fmt, ap);
}

namespace {

// The bound buffer nearest to a faulting address.
void die_of_access(Worker* w, uintptr_t addr) {
    const MslCmd* c = w->g.cmd;
    u64 best = ~0ull;
    int at = -1;
    for (u32 i = 0; i < c->k->nargs; ++i) {
        const MslArg& a = c->k->args[i];
        if (a.kind != MSL_ARG_BUFFER) continue;
        const MslBuf& b = c->buf[a.index];
        uintptr_t lo = (uintptr_t)b.p - b.off, hi = (uintptr_t)b.p + b.len;
        u64 dist = addr < lo ? lo - addr : addr >= hi ? addr - hi : 0;
        if (dist < best) best = dist, at = (int)i;
    }
    uintptr_t tg = (uintptr_t)w->g.tg_mem;
    if (addr + 65536 >= tg && addr < tg + MSL_TG_BYTES + 65536)
        die(w, 3, "access to byte %lld of threadgroup memory, which has 32768 bytes", (long long)(addr - tg));
    if (at < 0 || best > 1ull << 30) die(w, 3, "access to address 0x%llx, far from every bound buffer", (unsigned long long)addr);
    const MslBuf& b = c->buf[c->k->args[at].index];
    die(w, 3, "access to byte %lld of buffer(%u) %s, which has %llu bytes", (long long)(addr - ((uintptr_t)b.p - b.off)),
        c->k->args[at].index, c->k->arg_names[at], b.len + b.off);
}

const int fault_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
struct sigaction old_actions[sizeof fault_signals / sizeof *fault_signals];

// Faults inside kernels end the command; all others go where they went before: to Go.
void on_fault(int sig, siginfo_t* si, void* context) {
    Worker* w = self;
    if (w && in_kernel) {
        in_kernel = 0;
        if (w->g.cmd->k->flags & MSL_SYNCS) {
            unsigned long sp = 0;
#if defined(__x86_64__)
            sp = (unsigned long)((ucontext_t*)context)->uc_mcontext.gregs[REG_RSP];
#elif defined(__APPLE__)
            sp = ((ucontext_t*)context)->uc_mcontext->__ss.__sp;
#else
            sp = ((ucontext_t*)context)->uc_mcontext.sp;
#endif
            unsigned long i = (sp - ((unsigned long)w->thr - MSL_STACKS)) / MSL_STACK;
            w->cur = i < MSL_THREADS ? &w->thr[i] : 0;
        } else if (!w->at) {
            siglongjmp(w->recover, 2);  // once more, thread by thread
        }
        if (sig == SIGSEGV || sig == SIGBUS) die_of_access(w, (uintptr_t)si->si_addr);
        die(w, 1, sig == SIGFPE ? "integer division by zero" : "undefined operation");
    }
    if (exec_foreign_fault && (sig == SIGSEGV || sig == SIGBUS)) exec_foreign_fault((uintptr_t)si->si_addr);
    for (u32 i = 0; i < sizeof fault_signals / sizeof *fault_signals; ++i) {
        if (fault_signals[i] != sig) continue;
        struct sigaction* old = &old_actions[i];
        if (old->sa_flags & SA_SIGINFO) return old->sa_sigaction(sig, si, context);
        if (old->sa_handler == SIG_IGN) return;
        if (old->sa_handler != SIG_DFL) return old->sa_handler(sig);
        signal(sig, SIG_DFL);  // the instruction faults again, with the default action
        return;
    }
}

}  // namespace

void install_handlers() {
    struct sigaction sa;
    memset(&sa, 0, sizeof sa);
    sa.sa_sigaction = on_fault;
    sa.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (u32 i = 0; i < sizeof fault_signals / sizeof *fault_signals; ++i) sigaction(fault_signals[i], &sa, &old_actions[i]);
}

sigset_t asynchronous_signals() {
    sigset_t s;
    sigfillset(&s);
    for (int sig : fault_signals) sigdelset(&s, sig);
    return s;
}
