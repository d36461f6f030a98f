#include "objc.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void objc_raise(const char* exception, const char* fmt, ...) {
    char reason[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(reason, sizeof reason, fmt, ap);
    va_end(ap);
    fprintf(stderr, "*** Terminating app due to uncaught exception '%s', reason: '%s'\n", exception, reason);
    abort();
}

// ---- selectors: a hash set of interned strings ----

static pthread_mutex_t sel_mu = PTHREAD_MUTEX_INITIALIZER;
static char** sel_table;
static size_t sel_count, sel_mask;

static size_t hash_string(const char* s) {
    size_t h = 14695981039346656037u;
    for (; *s; ++s) h = (h ^ (unsigned char)*s) * 1099511628211u;
    return h;
}
static char** sel_slot(char** table, size_t mask, const char* name) {
    size_t i = hash_string(name) & mask;
    while (table[i] && strcmp(table[i], name)) i = (i + 1) & mask;
    return &table[i];
}
static SEL intern(const char* name) {
    pthread_mutex_lock(&sel_mu);
    if (2 * sel_count >= sel_mask) {
        size_t mask = sel_mask ? 2 * sel_mask + 1 : 511;
        char** table = (char**)calloc(mask + 1, sizeof *table);
        for (size_t i = 0; sel_table && i <= sel_mask; ++i)
            if (sel_table[i]) *sel_slot(table, mask, sel_table[i]) = sel_table[i];
        free(sel_table);
        sel_table = table;
        sel_mask = mask;
    }
    char** s = sel_slot(sel_table, sel_mask, name);
    if (!*s) {
        *s = strdup(name);
        ++sel_count;
    }
    SEL sel = *s;
    pthread_mutex_unlock(&sel_mu);
    return sel;
}
EXPORT SEL sel_registerName(const char* name) {
    objc_init();
    return intern(name);
}

// ---- classes and messages ----

static size_t hash_sel(SEL s) { return ((uintptr_t)s >> 4) * 0x9e3779b97f4a7c15u >> 20; }

static void* find(const Class* c, SEL s) {
    for (size_t i = hash_sel(s) & c->mask;; i = (i + 1) & c->mask) {
        if (c->table[i].name == s) return c->table[i].imp;
        if (!c->table[i].name) return 0;
    }
}
static void add_method(Class* c, SEL s, void* imp) {
    size_t i = hash_sel(s) & c->mask;
    while (c->table[i].name && c->table[i].name != s) i = (i + 1) & c->mask;
    c->table[i] = {s, imp};
}
// Fills the table, inherited methods first.
static void add_methods(Class* c, const Class* from, bool of_class) {
    if (!from) return;
    add_methods(c, from->super, of_class);
    const Method* m = of_class ? from->class_methods : from->methods;
    for (; m && m->name; ++m) add_method(c, intern(m->name), m->imp);
}
static void make_table(Class* c, const Class* from, bool of_class) {
    c->mask = 255;
    c->table = (Method*)calloc(c->mask + 1, sizeof(Method));
    add_methods(c, from, of_class);
}

static Class* const foundation[] = {&NSObject_, &NSString_, &NSError_, &NSArray_, 0};

static void init_class(Class* c) {
    Class* meta = (Class*)calloc(1, sizeof(Class));
    meta->refs = -1;
    meta->name = c->name;
    make_table(meta, c, true);
    c->isa = meta;
    make_table(c, c, false);
}
static void init_all() {
    for (Class* const* c = foundation; *c; ++c) init_class(*c);
    for (Class* const* c = client_classes; *c; ++c) init_class(*c);
}
void objc_init() {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_all);
}

EXPORT Class* objc_getClass(const char* name) {
    objc_init();
    for (Class* const* c = foundation; *c; ++c)
        if ((*c)->class_methods && !strcmp((*c)->name, name)) return *c;
    for (Class* const* c = client_classes; *c; ++c)
        if ((*c)->class_methods && !strcmp((*c)->name, name)) return *c;
    return 0;
}
// The name of class i and how many instances it has; null after the last class.
EXPORT const char* hostmetal_alive(size_t i, int64_t* n) {
    const size_t most = sizeof foundation / sizeof *foundation - 1;
    Class* const* c = i < most ? &foundation[i] : &client_classes[i - most];
    if (!*c) return 0;
    *n = __atomic_load_n(&(*c)->alive, __ATOMIC_RELAXED);
    return (*c)->name;
}
EXPORT Class* object_getClass(id o) { return o ? o->isa : 0; }

static bool immortal(id o) { return o->refs < 0; }

static Class zombie;  // the class of deallocated objects

static uintptr_t answer_nil() { return 0; }

// The function that objc_msgSend jumps to. A message to nil returns 0.
extern "C" __attribute__((visibility("hidden"), used)) void* hostmetal_resolve(id o, SEL s) {
    if (!o) return (void*)answer_nil;
    if (o->isa == &zombie) objc_raise("NSGenericException", "-[%s]: message sent to deallocated instance %p", s, (void*)o);
    if (void* imp = find(o->isa, s)) return imp;
    bool of_class = !o->isa->isa;  // a metaclass has none
    objc_raise("NSInvalidArgumentException", "%c[%s %s]: unrecognized selector sent to %s %p", of_class ? '+' : '-',
               o->isa->name, s, of_class ? "class" : "instance", (void*)o);
}

// objc_msgSend(self, selector, ...): finds the method with all argument registers put aside, and
// jumps to it, so that the arguments pass through whatever their types. A message to nil also
// answers 0.0.
#if defined(__x86_64__)
asm(R"(
.text
.globl objc_msgSend
objc_msgSend:
    pushq %rbp
    movq %rsp, %rbp
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %rcx
    pushq %r8
    pushq %r9
    subq $128, %rsp
    movups %xmm0, (%rsp)
    movups %xmm1, 16(%rsp)
    movups %xmm2, 32(%rsp)
    movups %xmm3, 48(%rsp)
    movups %xmm4, 64(%rsp)
    movups %xmm5, 80(%rsp)
    movups %xmm6, 96(%rsp)
    movups %xmm7, 112(%rsp)
    call hostmetal_resolve
    movq %rax, %r11
    movups (%rsp), %xmm0
    movups 16(%rsp), %xmm1
    movups 32(%rsp), %xmm2
    movups 48(%rsp), %xmm3
    movups 64(%rsp), %xmm4
    movups 80(%rsp), %xmm5
    movups 96(%rsp), %xmm6
    movups 112(%rsp), %xmm7
    addq $128, %rsp
    popq %r9
    popq %r8
    popq %rcx
    popq %rdx
    popq %rsi
    popq %rdi
    popq %rbp
    testq %rdi, %rdi
    jnz 1f
    xorps %xmm0, %xmm0
1:  jmp *%r11
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl objc_msgSend
objc_msgSend:
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    sub sp, sp, #208
    stp x0, x1, [sp, #0]
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    str x8, [sp, #64]
    stp q0, q1, [sp, #80]
    stp q2, q3, [sp, #112]
    stp q4, q5, [sp, #144]
    stp q6, q7, [sp, #176]
    bl hostmetal_resolve
    mov x16, x0
    ldp x0, x1, [sp, #0]
    ldp x2, x3, [sp, #16]
    ldp x4, x5, [sp, #32]
    ldp x6, x7, [sp, #48]
    ldr x8, [sp, #64]
    ldp q0, q1, [sp, #80]
    ldp q2, q3, [sp, #112]
    ldp q4, q5, [sp, #144]
    ldp q6, q7, [sp, #176]
    add sp, sp, #208
    ldp x29, x30, [sp], #16
    cbnz x0, 1f
    movi d0, #0
1:  br x16
)");
#endif

// ---- objects ----

id objc_new(Class* c) {
    id o = (id)calloc(1, c->size);
    o->isa = c;
    o->refs = 1;
    __atomic_fetch_add(&c->alive, 1, __ATOMIC_RELAXED);
    return o;
}
id objc_keep(id o) {
    if (o && !immortal(o)) __atomic_fetch_add(&o->refs, 1, __ATOMIC_RELAXED);
    return o;
}

// Deallocated objects stay around for a while, so that late messages are named.
static void bury(id o) {
    static id graves[4096];
    static size_t at;
    static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mu);
    o->isa = &zombie;
    id old = graves[at];
    graves[at] = o;
    at = (at + 1) % (sizeof graves / sizeof *graves);
    pthread_mutex_unlock(&mu);
    free(old);
}
void objc_drop(id o) {
    if (!o || immortal(o) || __atomic_fetch_sub(&o->refs, 1, __ATOMIC_ACQ_REL) != 1) return;
    if (o->isa->dealloc) o->isa->dealloc(o);
    __atomic_fetch_sub(&o->isa->alive, 1, __ATOMIC_RELAXED);
    bury(o);
}

// The calling thread's pools: objects in order, a null pointer where a pool begins.
struct Pool {
    id*    objects;
    size_t n, room, pools;
};
static thread_local Pool pool;

static void pool_add(id o) {
    if (pool.n == pool.room) {
        pool.room = pool.room ? 2 * pool.room : 64;
        pool.objects = (id*)realloc((void*)pool.objects, pool.room * sizeof(id));
    }
    pool.objects[pool.n++] = o;
}
// Without a pool the object leaks, as it does on macOS.
id objc_later(id o) {
    if (o && !immortal(o) && pool.pools) pool_add(o);
    return o;
}
EXPORT void* objc_autoreleasePoolPush() {
    ++pool.pools;
    pool_add(0);
    return (void*)pool.n;
}
EXPORT void objc_autoreleasePoolPop(void* token) {
    size_t n = (size_t)token;
    if (n == 0 || n > pool.n || pool.objects[n - 1])
        objc_raise("NSGenericException", "objc_autoreleasePoolPop: invalid pool token %p: popped twice, or on another thread", token);
    while (pool.n >= n) {
        id o = pool.objects[--pool.n];
        if (o) objc_drop(o);
        else --pool.pools;
    }
}

static id object_alloc(Class* c, SEL) {
    return objc_new(c);
}
static id object_self(id o, SEL) { return o; }
static id object_retain(id o, SEL) { return objc_keep(o); }
static void object_release(id o, SEL) { objc_drop(o); }
static id object_autorelease(id o, SEL) { return objc_later(o); }
static uint64_t object_retain_count(id o, SEL) { return (uint64_t)o->refs; }
static bool object_responds(id o, SEL, SEL s) { return s && find(o->isa, s); }
static String* object_description(id o, SEL) {
    char b[200];
    snprintf(b, sizeof b, "<%s: %p>", o->isa->name, (void*)o);
    return later(new_string(b));
}

static const Method object_methods[] = {
    {"init", (void*)object_self},
    {"retain", (void*)object_retain},
    {"release", (void*)object_release},
    {"autorelease", (void*)object_autorelease},
    {"retainCount", (void*)object_retain_count},
    {"respondsToSelector:", (void*)object_responds},
    {"description", (void*)object_description},
    {0, 0},
};
static const Method object_class_methods[] = {
    {"alloc", (void*)object_alloc},
    {"new", (void*)object_alloc},
    {"retain", (void*)object_self},
    {"autorelease", (void*)object_self},
    {"respondsToSelector:", (void*)object_responds},
    {0, 0},
};
Class NSObject_ = {{0, -1}, "NSObject", 0, sizeof(Object), 0, object_methods, object_class_methods, 0, 0};

// ---- NSString ----

// The number of UTF-16 units, or -1 if s is not valid UTF-8.
static long utf16_length(const char* s, size_t n) {
    long units = 0;
    for (size_t i = 0; i < n; ++units) {
        unsigned char c = (unsigned char)s[i];
        size_t more = c < 0x80 ? 0 : c < 0xc2 ? 4 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : c < 0xf5 ? 3 : 4;
        if (more > 3 || i + more >= n) return -1;
        unsigned long point = more == 0 ? c : c & (0x3f >> more);
        for (size_t k = 1; k <= more; ++k) {
            unsigned char d = (unsigned char)s[i + k];
            if ((d & 0xc0) != 0x80) return -1;
            point = point << 6 | (d & 0x3f);
        }
        if ((more == 2 && point < 0x800) || (more == 3 && point < 0x10000)) return -1;
        if (point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return -1;
        if (point >= 0x10000) ++units;
        i += more + 1;
    }
    return units;
}
static bool set_string(String* s, const char* utf8, size_t n) {
    long units = utf16_length(utf8, n);
    if (units < 0) return false;
    free(s->utf8);
    s->utf8 = (char*)malloc(n + 1);
    if (n) memcpy(s->utf8, utf8, n);
    s->utf8[n] = 0;
    s->bytes = n;
    s->length = (uint64_t)units;
    return true;
}
String* new_string(const char* utf8, size_t n) {
    String* s = (String*)objc_new(&NSString_);
    if (set_string(s, utf8, n)) return s;
    objc_drop(s);
    return 0;
}
String* new_string(const char* utf8) { return new_string(utf8, strlen(utf8)); }

static const uint64_t utf8_encoding = 4;

static String* string_init_bytes(String* s, SEL, const char* p, uint64_t n, uint64_t encoding) {
    if (encoding != utf8_encoding)
        objc_raise("NSInvalidArgumentException", "-[NSString initWithBytes:length:encoding:]: encoding %llu is not served, only UTF-8 (4)", (unsigned long long)encoding);
    if (set_string(s, p, n)) return s;
    objc_drop(s);
    return 0;
}
static String* string_init_utf8(String* s, SEL sel, const char* p) { return string_init_bytes(s, sel, p, strlen(p), utf8_encoding); }
static String* string_with_utf8(Class*, SEL, const char* p) { return later(new_string(p)); }
const char* string_utf8(const String* s) { return s->utf8 ? s->utf8 : ""; }
static const char* string_utf8_method(String* s, SEL) { return string_utf8(s); }
static uint64_t string_length(String* s, SEL) { return s->length; }
static uint64_t string_bytes(String* s, SEL, uint64_t encoding) { return encoding == utf8_encoding ? s->bytes : 0; }
static void string_dealloc(id o) { free(((String*)o)->utf8); }

static const Method string_methods[] = {
    {"initWithBytes:length:encoding:", (void*)string_init_bytes},
    {"initWithUTF8String:", (void*)string_init_utf8},
    {"UTF8String", (void*)string_utf8_method},
    {"length", (void*)string_length},
    {"lengthOfBytesUsingEncoding:", (void*)string_bytes},
    {"description", (void*)object_self},
    {0, 0},
};
static const Method string_class_methods[] = {{"stringWithUTF8String:", (void*)string_with_utf8}, {0, 0}};
Class NSString_ = {{0, -1}, "NSString", &NSObject_, sizeof(String), string_dealloc, string_methods, string_class_methods, 0, 0};

// ---- NSError, NSArray ----

Error* new_error(const char* domain, long code, const char* utf8) {
    Error* e = (Error*)objc_new(&NSError_);
    e->domain = new_string(domain);
    e->code = code;
    e->text = new_string(utf8);
    if (!e->text) e->text = new_string("(the description is not valid UTF-8)");
    return e;
}
static long error_code(Error* e, SEL) { return e->code; }
static String* error_domain(Error* e, SEL) { return later(keep(e->domain)); }
static String* error_text(Error* e, SEL) { return later(keep(e->text)); }
static String* error_description(Error* e, SEL) {
    size_t room = e->domain->bytes + e->text->bytes + 64;
    char* b = (char*)malloc(room);
    int n = snprintf(b, room, "Error Domain=%s Code=%ld \"%s\"", e->domain->utf8, e->code, e->text->utf8);
    String* s = new_string(b, (size_t)n);
    free(b);
    return later(s);
}
static void error_dealloc(id o) {
    objc_drop(((Error*)o)->domain);
    objc_drop(((Error*)o)->text);
}
static const Method error_methods[] = {
    {"code", (void*)error_code},
    {"domain", (void*)error_domain},
    {"localizedDescription", (void*)error_text},
    {"description", (void*)error_description},
    {0, 0},
};
Class NSError_ = {{0, -1}, "NSError", &NSObject_, sizeof(Error), error_dealloc, error_methods, 0, 0, 0};

Array* new_array(uint64_t count) {
    Array* a = (Array*)objc_new(&NSArray_);
    a->items = (id*)calloc(count ? count : 1, sizeof(id));
    a->count = count;
    return a;
}
static uint64_t array_count(Array* a, SEL) { return a->count; }
static id array_at(Array* a, SEL, uint64_t i) {
    if (i >= a->count)
        objc_raise("NSRangeException", "-[NSArray objectAtIndex:]: index %llu beyond bounds for array of %llu", (unsigned long long)i, (unsigned long long)a->count);
    return later(keep(a->items[i]));
}
static void array_dealloc(id o) {
    Array* a = (Array*)o;
    for (uint64_t i = 0; i < a->count; ++i) objc_drop(a->items[i]);
    free((void*)a->items);
}
static const Method array_methods[] = {{"count", (void*)array_count}, {"objectAtIndex:", (void*)array_at}, {0, 0}};
Class NSArray_ = {{0, -1}, "NSArray", &NSObject_, sizeof(Array), array_dealloc, array_methods, 0, 0, 0};
