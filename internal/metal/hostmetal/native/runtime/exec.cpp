#include "check.h"
#include "worker.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <wchar.h>

namespace {

// ---- scheduling: lanes in order, then the next simdgroup ----

void complete_simd(MslSimd* s, u32 mask) {
    u32 bank = s->gen++ & 1;
    s->mask[bank] = mask;
    s->have &= ~(1u << bank);
    s->ready |= mask;
    s->waiting &= ~mask;
    s->arrived = 0;
}

void release_barrier(Worker* w) {
    w->at_barrier = 0;
    for (u32 i = 0; i < w->g.nsimd; ++i) {
        w->simd[i].ready |= w->simd[i].at_barrier;
        w->simd[i].at_barrier = 0;
    }
}

// Nobody can run. A simdgroup that waits with some of its lanes has all its active lanes there; a
// barrier that not all threads reached is an error.
void unblock(Worker* w) {
    for (u32 i = 0; i < w->g.nsimd; ++i) {
        MslSimd* s = &w->simd[i];
        if (s->waiting) return complete_simd(s, s->waiting);
    }
    w->pc = w->barrier_pc;
    die(w, 1, "threadgroup_barrier in line %u: %u of %u threads returned without reaching it", w->barrier_line,
        w->g.nthreads - w->live, w->g.nthreads);
}

// The next thread to run after lane of s, or null when all have returned.
MslThread* pick(Worker* w, MslSimd* s, u32 lane) {
    for (;;) {
        if (s->ready) {
            u32 after = s->ready & ~((2u << lane) - 1);
            return &w->thr[s->id * MSL_SIMD + __builtin_ctz(after ? after : s->ready)];
        }
        if (!w->live) return 0;
        for (u32 i = 1; i < w->g.nsimd; ++i) {
            u32 id = s->id + i < w->g.nsimd ? s->id + i : s->id + i - w->g.nsimd;
            MslSimd* q = &w->simd[id];
            if (q->ready) return &w->thr[id * MSL_SIMD + __builtin_ctz(q->ready)];
        }
        unblock(w);
    }
}

// Any thread that can run, or null when all have returned: the checked mode's order.
MslThread* pick_any(Worker* w) {
    while (w->live) {
        u32 n = w->g.nsimd, from = check_random(n), lane = check_random(MSL_SIMD);
        for (u32 i = 0; i < n; ++i) {
            MslSimd* s = &w->simd[(from + i) % n];
            if (!s->ready) continue;
            u32 after = s->ready >> lane << lane;
            return &w->thr[s->id * MSL_SIMD + __builtin_ctz(after ? after : s->ready)];
        }
        unblock(w);
    }
    return 0;
}

// Where a thread that waits switches to; null if it is itself the next to run.
template <bool Any> void* other(Worker* w, MslThread* t) {
    MslThread* n = Any ? pick_any(w) : pick(w, t->simd, t->lane);
    return n == t ? 0 : n->sp;
}

template <bool Any> void* rt_simd(MslThread* t, u32 line, const char* what) {
    Worker* w = (Worker*)t->grp;
    MslSimd* s = t->simd;
    u32 bit = 1u << t->lane;
    if (Any) w->pc = __builtin_return_address(0);
    if (!s->arrived) {
        s->line = line;
        s->what = what;
    } else if (__builtin_expect(s->line != line || s->what != what, 0)) {
        w->cur = t;
        die(w, 1, "%s in line %u: other lanes of the simdgroup are at %s in line %u", what, line, s->what, s->line);
    }
    s->waiting |= bit;
    s->ready &= ~bit;
    if (++s->arrived != s->nlive) return other<Any>(w, t);
    complete_simd(s, s->waiting);
    return 0;
}

template <bool Any> void* rt_barrier(MslThread* t, u32 line) {
    Worker* w = (Worker*)t->grp;
    if (Any) w->pc = __builtin_return_address(0);
    if (!w->at_barrier) {
        if (Any) w->barrier_pc = w->pc;
        w->barrier_line = line;
    } else if (__builtin_expect(w->barrier_line != line, 0)) {
        w->cur = t;
        die(w, 1, "threadgroup_barrier in line %u: other threads of the threadgroup wait at line %u", line, w->barrier_line);
    }
    t->simd->ready &= ~(1u << t->lane);
    t->simd->at_barrier |= 1u << t->lane;
    if (++w->at_barrier != w->g.nthreads) return other<Any>(w, t);
    release_barrier(w);
    return 0;
}

void rt_fail(MslThread* t, u32 line, const char* what, const char* msg) {
    Worker* w = (Worker*)t->grp;
    w->cur = t;
    w->pc = __builtin_return_address(0);
    die(w, 1, "%s in line %u: %s", what, line, msg);
}

// A stack runs its thread again in every threadgroup.
void fiber_main() {
    MslThread* t = msl_self();
    for (;;) {
        t->grp->cmd->k->entry(t);
        Worker* w = (Worker*)t->grp;
        MslSimd* s = t->simd;
        s->ready &= ~(1u << t->lane);
        s->live &= ~(1u << t->lane);
        --w->live;
        if (--s->nlive == s->arrived && s->arrived) complete_simd(s, s->waiting);
        MslThread* n = w->checked ? pick_any(w) : pick(w, s, t->lane);
        msl_switch(&t->sp, n ? n->sp : w->main_sp);
    }
}

// A stack on which msl_switch begins fn, which sees an aligned stack and no caller.
void* fresh_stack(char* top, void (*fn)()) {
    void** sp = (void**)top;
#if defined(__x86_64__)
    *--sp = 0;
    *--sp = (void*)fn;
#else
    *--sp = (void*)fn;
    *--sp = 0;  // x29
#endif
    return sp;
}

// Stack tops are spread over the cache sets: the same offset in every stack would alias.
void reset_stacks(Worker* w) {
    char* base = (char*)w->thr - MSL_STACKS;
    for (u32 i = 0; i < MSL_THREADS; ++i)
        w->thr[i].sp = fresh_stack(base + (i + 1) * MSL_STACK - (i % 21) * 192, fiber_main);
}

Worker* new_worker() {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), threads = MSL_THREADS * sizeof(MslThread);
    char* m = (char*)mmap(0, 2 * (size_t)MSL_STACKS + threads, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char* tg = (char*)mmap(0, MSL_TG_BYTES + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    Worker* w = (Worker*)aligned_alloc(64, (sizeof(Worker) + 63) & ~(size_t)63);
    if (m == MAP_FAILED || tg == MAP_FAILED || !w) {
        fprintf(stderr, "host Metal device: out of memory for a worker\n");
        abort();
    }
    memset(w, 0, sizeof *w);
    m = (char*)(((uintptr_t)m + MSL_STACKS - 1) & ~(uintptr_t)(MSL_STACKS - 1));
#ifdef MADV_HUGEPAGE
    madvise(m, MSL_STACKS, MADV_HUGEPAGE);
#endif
    mprotect(tg + page, MSL_TG_BYTES, PROT_READ | PROT_WRITE);
    w->g.tg_mem = (msl_u8*)tg + page;
    w->thr = (MslThread*)(m + MSL_STACKS);
    for (u32 i = 0; i < MSL_THREADS; ++i) {
        w->thr[i].grp = &w->g;
        w->thr[i].simd = &w->simd[i / MSL_SIMD];
        w->thr[i].tid = i;
        w->thr[i].lane = i % MSL_SIMD;
    }
    for (u32 i = 0; i < MSL_THREADS / MSL_SIMD; ++i) w->simd[i].id = i;
    reset_stacks(w);
    return w;
}

// ---- one threadgroup ----

void place_group(Worker* w, const MslCmd* c, u64 idx) {
    MslGroup& g = w->g;
    g.pos[0] = (u32)(idx % c->groups[0]);
    g.pos[1] = (u32)(idx / c->groups[0] % c->groups[1]);
    g.pos[2] = (u32)(idx / c->groups[0] / c->groups[1]);
    for (int i = 0; i < 3; ++i) {
        u32 rest = c->threads[i] - g.pos[i] * c->tpg[i];
        g.size[i] = rest < c->tpg[i] ? rest : c->tpg[i];
    }
    g.nthreads = g.size[0] * g.size[1] * g.size[2];
    g.nsimd = (g.nthreads + MSL_SIMD - 1) / MSL_SIMD;
}

// Threadgroup memory starts as NaN, in float and in half: nothing may rely on zeros.
void poison(MslGroup& g, const MslCmd* c) {
    u32 known = __atomic_load_n(&c->k->tg_static, __ATOMIC_RELAXED);
    u32 end = !(c->k->flags & MSL_STATIC_TG) ? g.tg_static : known ? g.tg_static + known : (u32)MSL_TG_BYTES;
    if (end > MSL_TG_BYTES) end = MSL_TG_BYTES;
    wmemset((wchar_t*)g.tg_mem, 0x7fff7fff, end / 4);
}

void run_fibers(Worker* w, const MslCmd* c) {
    MslGroup& g = w->g;
    poison(g, c);
    for (u32 i = 0; i < g.nsimd; ++i) {
        MslSimd& s = w->simd[i];
        u32 n = g.nthreads - i * MSL_SIMD;
        s.nlive = n < MSL_SIMD ? n : (u32)MSL_SIMD;
        s.live = s.ready = n < MSL_SIMD ? (1u << n) - 1 : ~0u;
        s.waiting = s.at_barrier = s.arrived = s.gen = s.have = 0;
    }
    if (memcmp(w->shape, g.size, sizeof g.size)) {
        memcpy(w->shape, g.size, sizeof g.size);
        for (u32 t = 0; t < g.nthreads; ++t) {
            w->thr[t].pos[0] = t % g.size[0];
            w->thr[t].pos[1] = t / g.size[0] % g.size[1];
            w->thr[t].pos[2] = t / g.size[0] / g.size[1];
        }
    }
    w->live = g.nthreads;
    w->at_barrier = 0;
    g.tg_high = g.tg_static;
    msl_switch(&w->main_sp, (w->checked ? pick_any(w) : &w->thr[0])->sp);
    if (g.tg_high - g.tg_static > c->k->tg_static) __atomic_store_n(&c->k->tg_static, g.tg_high - g.tg_static, __ATOMIC_RELAXED);
}

// A threadgroup without synchronisation in the checked mode: its threads one by one, in any order.
void run_threads(Worker* w, const MslCmd* c) {
    CheckOrder order(w->g.nthreads);
    for (u32 i = 0; i < w->g.nthreads; ++i) {
        u32 id = (u32)order[i], hi[3];
        u32 lo[3] = {id % w->g.size[0], id / w->g.size[0] % w->g.size[1], id / w->g.size[0] / w->g.size[1]};
        for (int k = 0; k < 3; ++k) hi[k] = lo[k] + 1;
        w->at = lo;
        check_thread(id);
        c->k->loop(&w->g, lo, hi);
    }
    w->at = 0;
}

void run_group(Worker* w, const MslCmd* c, u64 idx) {
    static const u32 origin[3] = {0, 0, 0};
    place_group(w, c, idx);
    if (w->checked) check_group(idx);
    if (c->k->flags & MSL_SYNCS) run_fibers(w, c);
    else if (w->checked) run_threads(w, c);
    else c->k->loop(&w->g, origin, w->g.size);
}

// A threadgroup without synchronisation has failed: its threads one by one, to name the one that did.
void find_thread(Worker* w, const MslCmd* c) {
    u32 lo[3], hi[3];
    w->at = lo;
    for (lo[2] = 0; lo[2] < w->g.size[2]; ++lo[2])
        for (lo[1] = 0; lo[1] < w->g.size[1]; ++lo[1])
            for (lo[0] = 0; lo[0] < w->g.size[0]; ++lo[0]) {
                for (int i = 0; i < 3; ++i) hi[i] = lo[i] + 1;
                c->k->loop(&w->g, lo, hi);
            }
    w->at = 0;
}

// Flushes denormals while fast-math kernels run.
struct FlushDenormals {
#if defined(__x86_64__)
    u32 saved;
    explicit FlushDenormals(bool on) : saved(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(on ? 0x1f80 | 0x8040 : 0x1f80); }
    ~FlushDenormals() { __builtin_ia32_ldmxcsr(saved); }
#else
    u64 saved;
    explicit FlushDenormals(bool on) {
        asm volatile("mrs %0, fpcr" : "=r"(saved));
        asm volatile("msr fpcr, %0" ::"r"(on ? saved | 1u << 24 : saved & ~(u64)(1u << 24)));
    }
    ~FlushDenormals() { asm volatile("msr fpcr, %0" ::"r"(saved)); }
#endif
};

// Threadgroups b..e. Kept out of line: siglongjmp must not meet live locals.
__attribute__((noinline)) void run_groups(Worker* w, const MslCmd* c, u64 b, u64 e) {
    FlushDenormals flush(c->k->flags & MSL_FTZ);
    w->cur = 0;
    w->at = 0;
    w->pc = 0;
    switch (sigsetjmp(w->recover, 0)) {
    case 0:
        in_kernel = 1;
        for (u64 i = b; i < e; ++i) run_group(w, c, i);
        break;
    case 2:
        in_kernel = 1;
        find_thread(w, c);
        in_kernel = 0;
        if (sigsetjmp(w->recover, 0) == 0) die(w, 3, "invalid memory access");  // not repeatable
        break;
    default:
        reset_stacks(w);
    }
    in_kernel = 0;
}

// ---- all workers ----

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    asm volatile("yield");
#endif
}

// Makes command i the one that the worker works at.
void take_command(Worker* w, Run* r, u32 i) {
    const MslCmd* c = &r->cmds[i];
    w->cmd = i;
    w->g.cmd = c;
    u32 ofs = 0;
    for (int k = 0; k < MSL_TG_ARGS; ++k) {
        w->g.tg_ofs[k] = ofs;
        ofs += c->tg_len[k];
    }
    w->g.tg_static = ofs;
}

// Every worker goes through all commands, and through each only when the one before is complete.
void work(Worker* w, Run* r) {
    w->run = r;
    self = w;
    for (u32 i = 0; i < r->n; ++i) {
        const MslCmd* c = &r->cmds[i];
        Progress& p = r->progress[i];
        take_command(w, r, i);
        for (;;) {
            u64 b = p.next.fetch_add(p.chunk, std::memory_order_relaxed);
            if (b >= p.total) break;
            u64 e = b + p.chunk < p.total ? b + p.chunk : p.total;
            if (!r->failed.load(std::memory_order_relaxed)) run_groups(w, c, b, e);
            p.done.fetch_add(e - b, std::memory_order_acq_rel);
        }
        for (int spins = 0; p.done.load(std::memory_order_acquire) < p.total;)
            if (++spins < 2000) relax();
            else sched_yield();
    }
    self = 0;
}

// The checked mode: one worker, and threadgroups in any order.
void work_checked(Worker* w, Run* r) {
    w->run = r;
    self = w;
    msl_u8* tg_mem = w->g.tg_mem;
    check_begin(CheckMemory{w->thr, w, sizeof *w, r->cmds, r->n});
    for (u32 i = 0; i < r->n && !r->failed.load(); ++i) {
        const MslCmd* c = &r->cmds[i];
        take_command(w, r, i);
        w->checked = c->k->flags & MSL_TELLS;
        if (w->checked) check_command(&w->g, i);
        u64 total = r->progress[i].total;
        CheckOrder order(total);
        for (u64 k = 0; k < total && !r->failed.load(); ++k) run_groups(w, c, order[k], order[k] + 1);
    }
    w->checked = false;
    w->g.tg_mem = tg_mem;
    self = 0;
}

pthread_mutex_t pool_mu = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t pool_work = PTHREAD_COND_INITIALIZER, pool_left = PTHREAD_COND_INITIALIZER;
Run* pool_run;
u64 pool_seq;
u32 pool_inside, pool_helpers;
Worker* caller;  // the worker of whoever calls exec_run

void* helper_main(void*) {
    Worker* w = new_worker();
    u64 seen = 0;
    pthread_mutex_lock(&pool_mu);
    for (;;) {
        while (!pool_run || pool_seq == seen) pthread_cond_wait(&pool_work, &pool_mu);
        Run* r = pool_run;
        seen = pool_seq;
        ++pool_inside;
        pthread_mutex_unlock(&pool_mu);
        work(w, r);
        pthread_mutex_lock(&pool_mu);
        if (!--pool_inside) pthread_cond_signal(&pool_left);
    }
}

}  // namespace

const MslRuntime exec_runtime = {rt_simd<false>, rt_barrier<false>, rt_fail, 0, 0, 0};
const MslRuntime exec_checked_runtime = {rt_simd<true>, rt_barrier<true>, rt_fail, check_passed, check_variable, check_together};

// Handlers of faults need a stack of their own: the fault may be a kernel's stack overflow.
static void* thread_main(void* fn) {
    stack_t ss;
    memset(&ss, 0, sizeof ss);
    ss.ss_size = 65536;
    ss.ss_sp = malloc(ss.ss_size);
    sigaltstack(&ss, 0);
    return ((void* (*)(void*))fn)(0);
}
bool exec_thread(void* (*fn)(void*)) {
    sigset_t block = asynchronous_signals(), old;
    pthread_sigmask(SIG_SETMASK, &block, &old);
    pthread_t id;
    bool ok = pthread_create(&id, 0, thread_main, (void*)fn) == 0;
    if (ok) pthread_detach(id);
    pthread_sigmask(SIG_SETMASK, &old, 0);
    return ok;
}

void exec_init(u32 threads) {
    caller = new_worker();
    install_handlers();
    for (u32 i = 1; i < threads; ++i) pool_helpers += exec_thread(helper_main);
}

void exec_run(const MslCmd* cmds, u32 n, ExecError* err) {
    err->code = 0;
    if (!n) return;
    Progress* progress = (Progress*)calloc(n, sizeof(Progress));
    bool share = false, checked = false;
    for (u32 i = 0; i < n; ++i) {
        u64 total = (u64)cmds[i].groups[0] * cmds[i].groups[1] * cmds[i].groups[2];
        u64 chunk = total / ((pool_helpers + 1) * 8);
        progress[i].total = total;
        progress[i].chunk = chunk ? chunk : 1;
        share = share || total > 1;
        checked = checked || cmds[i].k->flags & MSL_TELLS;
    }
    Run r = {cmds, n, progress, {false}, PTHREAD_MUTEX_INITIALIZER, err};
    if (share && pool_helpers && !checked) {
        pthread_mutex_lock(&pool_mu);
        pool_run = &r;
        ++pool_seq;
        pthread_cond_broadcast(&pool_work);
        pthread_mutex_unlock(&pool_mu);
    }
    sigset_t block = asynchronous_signals(), old;
    pthread_sigmask(SIG_SETMASK, &block, &old);
    checked ? work_checked(caller, &r) : work(caller, &r);
    pthread_sigmask(SIG_SETMASK, &old, 0);
    pthread_mutex_lock(&pool_mu);
    pool_run = 0;
    while (pool_inside) pthread_cond_wait(&pool_left, &pool_mu);
    pthread_mutex_unlock(&pool_mu);
    free(progress);
}
