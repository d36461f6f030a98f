#include "check.h"

#include <dlfcn.h>
#include <link.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef msl_u32 u32;
typedef msl_u64 u64;

bool check_on;
u64  check_seed;

// ---- the order ----

static u64 random_state;

u32 check_random(u32 n) {
    if (!check_seed) return 0;
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (u32)(random_state >> 32) % n;
}

static u64 common_divisor(u64 a, u64 b) { return b ? common_divisor(b, a % b) : a; }

CheckOrder::CheckOrder(u64 count) : n(count), step(1), from(0) {
    if (!check_seed || n < 2) return;
    from = check_random(~0u) % n;
    do step = 1 + check_random(~0u) % n;
    while (common_divisor(step, n) != 1);
}

namespace {

// ---- what threads did to memory ----

enum Space { threadgroup_space, device_space };

// When and where a thread touched a byte or element. Epochs count barriers that order the memory: a threadgroup's go up through all
// threadgroups of all commands, so that nothing is ever cleared; a simdgroup's begin at 0 in each threadgroup.
struct Access {
    u32         epoch;  // 0: never
    u32         thread : 11, atomic : 1, write : 1, simd_epoch : 19;
    const void* pc;
};
// The last write, and what came after it or beside it and no barrier orders before each other: reads, and atomic writes before an atomic
// one. Of many, two that are least alike are enough to find out whether an access is ordered after all of them.
struct Cell {
    Access write, more[2];
};

const u32 whole_simdgroup = MSL_THREADS;  // plus its number: the thread of what a simdgroup does together

u32 simdgroup_of(u32 thread) { return thread < whole_simdgroup ? thread / MSL_SIMD : thread - whole_simdgroup; }

// How many barriers lie behind a thread, of the threadgroup and of the simdgroup, by the Space that they order.
struct Behind {
    u32  barriers[2], simd_barriers[2];
    bool together;  // what it does, its simdgroup does
};

// A segment is the commands that nothing orders: one, or those between two barriers of a concurrent encoder.
//
// The cells of a buffer that somebody writes. granule: bytes of the elements that it is read and written by.
struct Shadow {
    uintptr_t lo, hi;
    u32       granule;
    u32       first;    // the epoch of the first command that may touch it without a barrier before the present one
    u64       segment;  // that used it last
    Cell*     cells;
};

// A buffer that is bound.
struct Range {
    uintptr_t lo, hi;
    u32       arg;
    bool      writable;
    Shadow*   shadow;  // null: nobody writes it
};

// A variable in threadgroup memory, or a [[threadgroup(n)]] argument. It has a cell for each granule bytes, at the first of them.
struct Variable {
    u32         at, size, element, granule;
    u32         logical;  // where it would lie without the gaps
    const char* name;
};

// Where the epochs of a threadgroup begin.
struct Start {
    u32 epoch, cmd;
    u64 group;
};

const u32 gap = 64;  // unused bytes between variables
const u32 arena_size = MSL_TG_BYTES + 64 * (gap + 16);

struct State {
    CheckMemory memory;
    uintptr_t   stack_lo, stack_hi;  // stacks of threads
    uintptr_t   image_lo, image_hi;  // the kernel's library
    uintptr_t   self_lo, self_hi;    // this one
    MslGroup*   group;
    u32         command;
    u32         thread;              // where threads have no stack of their own
    Behind      behind[MSL_THREADS];
    u32         epoch, passed;       // of the threadgroup's beginning; the most barriers that one of its threads has behind it
    u64         segment;
    u32         segment_first, segment_end;  // the epoch of its beginning; the command after its last
    Range       ranges[MSL_BUFFERS];
    u32         nranges;
    Shadow      shadows[64];
    msl_u8*     arena;
    Cell*       arena_cells;
    Variable    variables[64];
    u32         nvariables, nbound;  // the first nbound are arguments
    Start*      starts;              // of the segment's threadgroups
    size_t      nstarts, starts_room;
} state;

bool has_stacks() { return state.group->cmd->k->flags & MSL_SYNCS; }

// ---- who is when ----

struct Now {
    u32 epoch, thread, simd_epoch;
};

MslThread* running() { return has_stacks() ? msl_self() : 0; }

inline Now now(Space s) {
    u32 id = has_stacks() ? msl_self()->tid : state.thread;
    const Behind& b = state.behind[id];
    return {state.epoch + b.barriers[s], b.together ? whole_simdgroup + id / MSL_SIMD : id, b.simd_barriers[s]};
}

// Whether what was done is ordered before what is done now. first is the epoch that all before are.
inline bool before(const Access& a, const Now& n, u32 first) {
    if (a.epoch < first) return true;
    if (a.epoch < state.epoch) return false;  // another threadgroup
    if (a.thread == n.thread || a.epoch < n.epoch) return true;
    return simdgroup_of(a.thread) == simdgroup_of(n.thread) && a.simd_epoch < n.simd_epoch;
}

const Start& start_of(const Access& a) {
    size_t lo = 0, hi = state.nstarts;
    while (hi - lo > 1) {
        size_t mid = (lo + hi) / 2;
        (state.starts[mid].epoch <= a.epoch ? lo : hi) = mid;
    }
    return state.starts[lo];
}
bool same_group(const Access& a, const Access& b) {
    return (a.epoch >= state.epoch && b.epoch >= state.epoch) || start_of(a).epoch == start_of(b).epoch;
}
bool same_simdgroup(const Access& a, const Access& b) {
    return simdgroup_of(a.thread) == simdgroup_of(b.thread) && same_group(a, b);
}

// What a present access collides with, or null.
inline const Access* collision(const Cell& c, const Now& n, u32 first, bool write, bool atomic) {
    if (!before(c.write, n, first) && !(atomic && c.write.atomic)) return &c.write;
    for (const Access& a : c.more)
        if ((write || a.write) && !before(a, n, first) && !(atomic && a.atomic)) return &a;
    return 0;
}

inline void note_beside(Cell& c, const Access& a, const Now& n, u32 first) {
    bool old[2] = {before(c.more[0], n, first), before(c.more[1], n, first)};
    if (old[0] && old[1]) c.more[1] = Access{};
    if (old[0]) c.more[0] = a;
    else if (old[1]) c.more[1] = a;
    else if (same_simdgroup(c.more[0], c.more[1]) ? !same_simdgroup(a, c.more[0]) : same_group(c.more[0], c.more[1]) && !same_group(a, c.more[0]))
        c.more[1] = a;
}

inline void note(Cell& c, const Now& n, u32 first, bool write, bool atomic, const void* pc) {
    Access a = {n.epoch, n.thread, atomic, write, n.simd_epoch, pc};
    if (!write) return note_beside(c, a, n, first);
    if (!atomic) c.more[0] = c.more[1] = Access{};
    else if (!before(c.write, n, first)) note_beside(c, c.write, n, first);
    c.write = a;
}

// ---- what is said ----

struct Place {
    char text[400];
    explicit Place(const void* pc) { check_place(pc, text, sizeof text); }
};

// "thread [1 0 0]", and of which threadgroup and dispatch if they are others.
struct Who {
    char text[200];
    explicit Who(const Access& a) {
        const Start& s = start_of(a);
        const MslCmd& c = state.memory.cmds[s.cmd];
        u64 g = s.group;
        u32 pos[3] = {(u32)(g % c.groups[0]), (u32)(g / c.groups[0] % c.groups[1]), (u32)(g / c.groups[0] / c.groups[1])}, size[3];
        for (int i = 0; i < 3; ++i) {
            u32 rest = c.threads[i] - pos[i] * c.tpg[i];
            size[i] = rest < c.tpg[i] ? rest : c.tpg[i];
        }
        u32 t = a.thread;
        int n = t >= whole_simdgroup ? snprintf(text, sizeof text, "simdgroup %u", t - whole_simdgroup)
                                     : snprintf(text, sizeof text, "thread [%u %u %u]", t % size[0], t / size[0] % size[1], t / size[0] / size[1]);
        if (a.epoch < state.epoch) n += snprintf(text + n, sizeof text - n, " of threadgroup [%u %u %u]", pos[0], pos[1], pos[2]);
        if (s.cmd != state.command) snprintf(text + n, sizeof text - n, " of kernel %s, dispatch %u", c.k->name, s.cmd);
    }
};

[[noreturn]] void die_of_race(const Access& other, const Now& n, bool write, const void* pc, const char* where, const char* flags) {
    Access mine = {n.epoch, n.thread, 0, write, n.simd_epoch, pc};
    static char between[160];
    if (start_of(other).cmd != state.command)
        snprintf(between, sizeof between, "without a memoryBarrierWithScope: between the dispatches of a concurrent encoder");
    else if (!same_group(other, mine)) snprintf(between, sizeof between, "which nothing orders: the threadgroups of a dispatch run in any order");
    else snprintf(between, sizeof between, "without a %s_barrier(mem_flags::%s) between", same_simdgroup(other, mine) ? "simdgroup" : "threadgroup", flags);
    check_die(code_internal, pc, "data race in %s: %s by %s here, %s by %s in %s %s", where, write ? "write" : "read",
             Who(mine).text, other.write ? "write" : "read", Who(other).text, Place(other.pc).text, between);
}

const MslArg& argument(const Range& r) { return state.group->cmd->k->args[r.arg]; }
const char* name(const Range& r) { return state.group->cmd->k->arg_names[r.arg]; }

// ---- threadgroup memory ----

[[noreturn]] void die_of_threadgroup_bounds(u32 at, u32 n, bool write, const void* pc) {
    const Variable* v = 0;  // the last one that begins before
    for (u32 i = 0; i < state.nvariables; ++i)
        if (state.variables[i].at <= at && (!v || v->at < state.variables[i].at)) v = &state.variables[i];
    const char* what = write ? "store" : "load";
    if (!v) check_die(code_page_fault, pc, "invalid threadgroup %s of %u bytes, before the first variable", what, n);
    check_die(code_page_fault, pc, "invalid threadgroup %s of %u bytes at %s[%u], which has %u elements (%u bytes)", what, n,
             v->name, (at - v->at) / v->element, v->size / v->element, v->size);
}

// A part of an element is accessed: from now on each byte has a cell.
void split(Variable* v) {
    for (u32 i = 0; i < v->size; ++i) state.arena_cells[v->at + i] = state.arena_cells[v->at + i - i % v->granule];
    v->granule = 1;
}

void access_threadgroup(uintptr_t a, u32 n, bool write, bool atomic, const void* pc) {
    u32 at = (u32)(a - (uintptr_t)state.arena);
    Variable* v = 0;
    for (u32 i = 0; i < state.nvariables && !v; ++i)
        if (at >= state.variables[i].at && at + n <= state.variables[i].at + state.variables[i].size) v = &state.variables[i];
    if (!v) die_of_threadgroup_bounds(at, n, write, pc);
    if ((at - v->at) % v->granule || n % v->granule) split(v);
    Now t = now(threadgroup_space);
    for (u32 i = at; i < at + n; i += v->granule) {
        Cell& c = state.arena_cells[i];
        const Access* other = collision(c, t, state.epoch, write, atomic);
        bool unwritten = !write && c.write.epoch < state.epoch;
        if (__builtin_expect(other || unwritten, 0)) {
            static char where[200];
            snprintf(where, sizeof where, "threadgroup memory (byte %u, %s[%u])", v->logical + i - v->at, v->name, (i - v->at) / v->element);
            if (!other) check_die(code_internal, pc, "uninitialised read of %s: no thread of the threadgroup has written it", where);
            die_of_race(*other, t, write, pc, where, "mem_threadgroup");
        }
        note(c, t, state.epoch, write, atomic, pc);
    }
}

// ---- buffers ----

[[noreturn]] void die_of_bounds(uintptr_t a, u32 n, bool write, const void* pc) {
    const Range* best = 0;
    u64 distance = ~0ull;
    for (u32 i = 0; i < state.nranges; ++i) {
        const Range& r = state.ranges[i];
        u64 d = a < r.lo ? r.lo - a : a + n > r.hi ? a + n - r.hi : 0;
        if (d < distance) best = &r, distance = d;
    }
    const char* what = write ? "store" : "load";
    if (!best || distance > 1ull << 30)
        check_die(code_page_fault, pc, "invalid device %s of %u bytes, far from every bound buffer", what, n);
    u32 size = argument(*best).size;
    long long at = (long long)(a - best->lo), i = at >= 0 ? at / size : -((-at + size - 1) / size);
    if (!distance)
        check_die(code_page_fault, pc, "invalid device store of %u bytes at %s[%lld], buffer(%u): the kernel takes it as %s", n, name(*best),
                 i, argument(*best).index, argument(*best).flags & MSL_CONSTANT ? "constant" : "const");
    check_die(code_page_fault, pc, "invalid device %s of %u bytes at %s[%lld], buffer(%u), which has %llu elements (%llu bytes)", what, n,
             name(*best), i, argument(*best).index, (u64)(best->hi - best->lo) / size, (u64)(best->hi - best->lo));
}

size_t cells_of(const Shadow& s) { return (s.hi - s.lo) / s.granule + 1; }

void map_cells(Shadow& s) {
    void* p = mmap(0, cells_of(s) * sizeof(Cell), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "host Metal device: out of memory for the checked mode\n");
        abort();
    }
    s.cells = (Cell*)p;
}
void unmap_cells(Shadow& s) {
    if (s.cells) munmap((void*)s.cells, cells_of(s) * sizeof(Cell));
    s.cells = 0;
}

void access_shadow(const Range& r, uintptr_t a, u32 n, bool write, bool atomic, const void* pc) {
    Shadow& s = *r.shadow;
    if (n < s.granule || (a - s.lo) % s.granule) {  // a part of an element: from here on byte by byte
        unmap_cells(s);
        s.granule = 1;
        map_cells(s);
    }
    Now t = now(device_space);
    for (uintptr_t i = (a - s.lo) / s.granule, end = (a + n - 1 - s.lo) / s.granule; i <= end; ++i) {
        Cell& c = s.cells[i];
        if (const Access* other = collision(c, t, s.first, write, atomic)) {
            static char where[200];
            long long at = (long long)(s.lo + i * s.granule - r.lo), size = argument(r).size;
            snprintf(where, sizeof where, "device memory (%s[%lld], buffer(%u))", name(r), at >= 0 ? at / size : -((-at + size - 1) / size), argument(r).index);
            die_of_race(*other, t, write, pc, where, "mem_device");
        }
        note(c, t, s.first, write, atomic, pc);
    }
}

// ---- every load and store ----

// Memory that kernels may read, and the runtime's own code in them may write.
bool is_internal(uintptr_t a, bool write) {
    const CheckMemory& m = state.memory;
    if (a - (uintptr_t)m.worker < m.worker_size) return true;
    if (write) return false;
    return a - (uintptr_t)m.cmds < m.n * sizeof(MslCmd) || (a >= state.image_lo && a < state.image_hi) || (a >= state.self_lo && a < state.self_hi);
}

}  // namespace

void check_access(uintptr_t a, u32 n, bool write, bool atomic, const void* pc) {
    if (a >= state.stack_lo && a < state.stack_hi) return;
    if (a - (uintptr_t)state.arena < arena_size) return access_threadgroup(a, n, write, atomic, pc);
    for (u32 i = 0; i < state.nranges; ++i) {
        const Range& r = state.ranges[i];
        if (a < r.lo || a + n > r.hi || (write && !r.writable)) continue;
        if (r.shadow) access_shadow(r, a, n, write, atomic, pc);
        return;
    }
    if (!is_internal(a, write)) die_of_bounds(a, n, write, pc);
}

void check_die(int code, const void* pc, const char* fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    exec_die(running(), code, Place(pc).text, fmt, ap);
}

// ---- commands ----

namespace {

// The library that holds an address.
struct Image {
    uintptr_t at, lo, hi;
};
int find_image(dl_phdr_info* info, size_t, void* arg) {
    Image* im = (Image*)arg;
    uintptr_t lo = ~(uintptr_t)0, hi = 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const ElfW(Phdr)& p = info->dlpi_phdr[i];
        if (p.p_type != PT_LOAD) continue;
        uintptr_t from = info->dlpi_addr + p.p_vaddr;
        if (from < lo) lo = from;
        if (from + p.p_memsz > hi) hi = from + p.p_memsz;
    }
    if (im->at < lo || im->at >= hi) return 0;
    im->lo = lo;
    im->hi = hi;
    return 1;
}
void image_of(const void* p, uintptr_t* lo, uintptr_t* hi) {
    Image im = {(uintptr_t)p, 0, 0};
    dl_iterate_phdr(find_image, &im);
    *lo = im.lo;
    *hi = im.hi;
}

bool takes_buffer(const MslArg& a) { return a.kind == MSL_ARG_BUFFER; }
bool writes(const MslArg& a) { return takes_buffer(a) && !(a.flags & MSL_CONST); }

Shadow* shadow_at(uintptr_t a) {
    for (Shadow& s : state.shadows)
        if (s.segment == state.segment && a >= s.lo && a < s.hi) return &s;
    return 0;
}

// The buffer's shadow becomes one of the segment's; past 64 buffers, there is none.
void use_shadow(uintptr_t lo, uintptr_t hi) {
    Shadow* best = &state.shadows[0];
    for (Shadow& s : state.shadows) {
        if (s.cells && s.lo == lo && s.hi == hi) {
            s.segment = state.segment;
            s.first = state.segment_first;
            return;
        }
        if (s.segment < best->segment) best = &s;
    }
    if (best->segment == state.segment) return;
    unmap_cells(*best);
    *best = Shadow{lo, hi, 4, state.segment_first, state.segment, 0};
    map_cells(*best);
}

// After all that was done so far.
void next_epoch() {
    state.epoch += state.passed + 1;
    state.passed = 0;
}

// Epochs begin again.
void forget() {
    for (Shadow& s : state.shadows) {
        unmap_cells(s);
        s = Shadow{};
    }
    memset((void*)state.arena_cells, 0, arena_size * sizeof(Cell));
    state.epoch = 1;
}

// Commands from i on that nothing orders. All buffers that one of them writes are watched in all of them.
void begin_segment(u32 i) {
    const CheckMemory& m = state.memory;
    ++state.segment;
    if (state.epoch >> 31) forget();
    next_epoch();
    state.segment_first = state.epoch;
    state.nstarts = 0;
    state.segment_end = i + 1;
    while (state.segment_end < m.n && m.cmds[state.segment_end].concurrent) ++state.segment_end;
    for (u32 c = i; c < state.segment_end; ++c)
        for (u32 a = 0; a < m.cmds[c].k->nargs; ++a) {
            const MslArg& arg = m.cmds[c].k->args[a];
            const MslBuf& b = m.cmds[c].buf[arg.index];
            if (writes(arg)) use_shadow((uintptr_t)b.p - b.off, (uintptr_t)b.p + b.len);
        }
    for (u32 c = i; c < state.segment_end; ++c)
        for (u32 a = 0; a < m.cmds[c].k->nargs; ++a) {
            const MslArg& arg = m.cmds[c].k->args[a];
            Shadow* s = takes_buffer(arg) ? shadow_at((uintptr_t)m.cmds[c].buf[arg.index].p) : 0;
            if (!s || arg.align >= s->granule) continue;
            unmap_cells(*s);
            s->granule = arg.align;
            map_cells(*s);
        }
}

void add_variable(u32 logical, u32 size, u32 align, u32 element, const char* name) {
    u32 at = gap, granule = align < 4 ? align : 4;
    if (state.nvariables) at += state.variables[state.nvariables - 1].at + state.variables[state.nvariables - 1].size;
    if (align < 16) align = 16;
    state.variables[state.nvariables++] = {(at + align - 1) & ~(align - 1), size, element, granule, logical, name};
}

}  // namespace

void check_begin(const CheckMemory& m) {
    State& s = state;
    s.memory = m;
    s.segment_end = 0;
    if (s.arena) return;
    s.epoch = 1;
    s.arena = (msl_u8*)aligned_alloc(64, arena_size);
    s.arena_cells = (Cell*)calloc(arena_size, sizeof(Cell));
    image_of((void*)check_begin, &s.self_lo, &s.self_hi);
}

void check_command(MslGroup* g, u32 i) {
    State& s = state;
    const MslCmd* c = g->cmd;
    const MslKernel* k = c->k;
    s.group = g;
    s.command = i;
    random_state = (check_seed + 1) * 0x9e3779b97f4a7c15u ^ (i + 1) * 0xbf58476d1ce4e5b9u;
    if (i >= s.segment_end) begin_segment(i);
    next_epoch();
    for (u32 f = 0; f < c->nfences; ++f)
        if (Shadow* fenced = shadow_at((uintptr_t)c->fences[f])) fenced->first = s.epoch;
    image_of((void*)k, &s.image_lo, &s.image_hi);
    if (k->flags & MSL_SYNCS) {
        s.stack_lo = (uintptr_t)s.memory.threads - MSL_STACKS;
        s.stack_hi = (uintptr_t)(s.memory.threads + MSL_THREADS);
    } else {
        s.stack_hi = (uintptr_t)__builtin_frame_address(0) + 8192;  // what called this, or will call the kernel
        s.stack_lo = s.stack_hi - (1 << 20);
    }
    s.nranges = s.nvariables = 0;
    g->tg_mem = s.arena;
    for (u32 a = 0; a < k->nargs; ++a) {
        const MslArg& arg = k->args[a];
        if (arg.kind == MSL_ARG_BUFFER) {
            const MslBuf& b = c->buf[arg.index];
            s.ranges[s.nranges++] = {(uintptr_t)b.p, (uintptr_t)b.p + b.len, a, writes(arg), shadow_at((uintptr_t)b.p)};
        } else if (arg.kind == MSL_ARG_THREADGROUP) {
            add_variable(g->tg_ofs[arg.index], c->tg_len[arg.index], arg.align, arg.size, k->arg_names[a]);
            g->tg_ofs[arg.index] = s.variables[s.nvariables - 1].at;
        }
    }
    s.nbound = s.nvariables;
}

void check_group(u64 index) {
    State& s = state;
    next_epoch();
    s.nvariables = s.nbound;
    memset(s.behind, 0, sizeof s.behind);
    if (s.nstarts == s.starts_room) {
        s.starts_room = s.starts_room ? 2 * s.starts_room : 1024;
        s.starts = (Start*)realloc((void*)s.starts, s.starts_room * sizeof(Start));
    }
    s.starts[s.nstarts++] = {s.epoch, s.command, index};
}

void check_place(const void* pc, char* text, size_t room) {
    Dl_info i;
    if (dladdr(pc, &i)) snprintf(text, room, "\x1f%lx %s\x1f", (unsigned long)((uintptr_t)pc - 1 - (uintptr_t)i.dli_fbase), i.dli_fname);
    else snprintf(text, room, "an unknown place");
}

void check_thread(u32 id) { state.thread = id; }

void check_passed(MslThread* t, u32 flags, bool whole) {
    const MslGroup* g = t->grp;
    u32 lanes = g->nthreads - t->simd->id * MSL_SIMD, all = lanes < MSL_SIMD ? (1u << lanes) - 1 : ~0u;
    u32 passed = whole ? all : t->simd->mask[(t->simd->gen - 1) & 1];
    if (passed != all)
        check_die(code_internal, __builtin_return_address(0), "simdgroup_barrier: lanes 0x%x of the simdgroup do not reach it", all & ~passed);
    Behind& b = state.behind[t->tid];
    u32* n = whole ? b.barriers : b.simd_barriers;
    n[device_space] += flags & 1;
    n[threadgroup_space] += flags >> 1 & 1;
    if (whole && n[device_space] + n[threadgroup_space] > state.passed) state.passed = n[device_space] + n[threadgroup_space];
}

void* check_variable(MslThread* t, u32 size, u32 align, u32 element, const char* name) {
    State& s = state;
    u32 to = align < 16 ? 16 : align, logical = (t->bump + to - 1) & ~(to - 1), i = s.nbound;
    const void* pc = __builtin_return_address(0);
    if (logical + size > MSL_TG_BYTES) check_die(code_internal, pc, "threadgroup memory exceeds 32768 bytes with %s", name);
    t->bump = logical + size;
    if (t->bump > t->grp->tg_high) t->grp->tg_high = t->bump;
    while (i < s.nvariables && s.variables[i].logical != logical) ++i;
    if (i == sizeof s.variables / sizeof *s.variables) check_die(code_internal, pc, "more than 64 threadgroup variables");
    if (i == s.nvariables) add_variable(logical, size, align, element, name);
    return s.arena + s.variables[i].at;
}

void check_together(MslThread* t, bool on) { state.behind[t->tid].together = on; }
