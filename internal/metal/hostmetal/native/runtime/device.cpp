// MTLDevice, and what it makes out of memory and source text.
#include "check.h"
#include "metal.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <wchar.h>

void assertion(const char* method, const char* fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "-[%s]: failed assertion `%s'\n", method, text);
    abort();
}

void set_label(Labelled* o, SEL, String* s) {
    keep(s);
    objc_drop(o->label);
    o->label = s;
}
String* get_label(Labelled* o, SEL) { return later(keep(o->label)); }
id get_owner(Labelled* o, SEL) { return o->owner; }

namespace {

// ---- MTLDevice ----

Device the_device = {{&Device_, -1}};
u64 allocated;  // bytes of all buffers; atomic

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

// ---- MTLBuffer: the bytes end at a guard, rounded up to 16, so that a kernel cannot leave them ----

const u64 guard = buffer_guard;
const u64 storage_private = 2, untracked = 1;

Buffer* device_new_buffer(Device* d, SEL, u64 length, u64 options) {
    if (length == 0 || length > device_max_buffer(d, 0)) return 0;
    if ((options >> 8 & 3) == untracked)
        assertion("MTLDevice newBufferWithLength:options:", "MTLResourceHazardTrackingModeUntracked is not served by the host device");
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
    b->is_private = (options >> 4 & 15) == storage_private;
    __atomic_fetch_add(&allocated, body, __ATOMIC_RELAXED);
    if (check_on && !guard_map(b)) {
        objc_drop(b);
        return 0;
    }
    if (check_on && b->is_private) wmemset((wchar_t*)b->data, 0x7fff7fff, bytes / 4);  // NaN: Metal promises nothing
    return b;
}
void* buffer_contents(Buffer* b, SEL) { return b->is_private ? 0 : b->host ? b->host : b->data; }
u64 buffer_length(Buffer* b, SEL) { return b->length; }
u64 buffer_allocated(Buffer* b, SEL) { return b->mapped - 2 * guard; }
void buffer_dealloc(id o) {
    Buffer* b = (Buffer*)o;
    __atomic_fetch_sub(&allocated, b->mapped - 2 * guard, __ATOMIC_RELAXED);
    if (b->host) guard_unmap(b);
    munmap(b->map, b->mapped);
    objc_drop(b->label);
    objc_drop(b->device);
}

// ---- MTLCompileOptions: fast until told otherwise, as in Metal ----

enum { mode_safe = 0, mode_relaxed = 1, mode_fast = 2, functions_fast = 0, functions_precise = 1 };
const msl_u32 default_language = 3 << 16 | 1;

CompileOptions* options_init(CompileOptions* o, SEL) {
    o->language = default_language;
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
    msl_u32     fast_math, fast_functions, checked, version;
    char*       out;   // the library's path, or why there is none
    u64         room, used;
};
static uintptr_t (*compile)(CompileRequest*);  // 0: path; else a MTLLibraryError

// The other thing it is asked: to name the places in an error's text, which are between two bytes 0x1f.
struct PlacesRequest {
    const char* text;
    u64         bytes;
    char*       out;
    u64         room, used;
};
static uintptr_t (*find_places)(PlacesRequest*);

EXPORT msl_u32 hostmetal_attach(msl_u32 threads, uintptr_t (*compile_fn)(CompileRequest*), uintptr_t (*places_fn)(PlacesRequest*)) {
    objc_init();
    if (!compile) exec_init(threads);
    compile = compile_fn;
    find_places = places_fn;
    return MSL_ABI;
}

void name_places(Error* e) {
    const char* text = string_utf8(e->text);
    if (!strchr(text, 0x1f)) return;
    PlacesRequest r = {text, e->text->bytes, 0, 2 * e->text->bytes + 256, 0};
    r.out = (char*)malloc(r.room);
    find_places(&r);
    if (String* s = new_string(r.out, r.used)) {
        objc_drop(e->text);
        e->text = s;
    }
    free(r.out);
}

// What is made from now on is checked or not; the seed is that of all that runs from now on.
EXPORT void hostmetal_validate(bool on, u64 seed) {
    check_on = on;
    check_seed = on ? seed : 0;
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
    MslKernel* kernels = entry ? entry(check_on ? &exec_checked_runtime : &exec_runtime, &n, &abi) : 0;
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
    CompileRequest r = {string_utf8(source), source->bytes, 1, 1, check_on, default_language, (char*)malloc(room), room, 0};
    if (o) {
        r.fast_math = o->math_mode != mode_safe;
        r.fast_functions = o->functions == functions_fast;
        r.version = (msl_u32)o->language;
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
// Known only once the kernel has run: before, 0.
u64 pipeline_static_memory(Pipeline* p, SEL) { return __atomic_load_n(&p->kernel->tg_static, __ATOMIC_RELAXED); }
id pipeline_device(Pipeline* p, SEL) { return p->library->device; }
void pipeline_dealloc(id o) { objc_drop(((Pipeline*)o)->library); }

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
    {"device", (void*)get_owner},
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
    {"device", (void*)get_owner},
    LABEL,
    {0, 0},
};
}  // namespace

Class Device_ = PRIVATE_CLASS("MTLDevice", Device, 0, device_methods);
Class Library_ = PRIVATE_CLASS("MTLLibrary", Library, library_dealloc, library_methods);
Class Function_ = PRIVATE_CLASS("MTLFunction", Function, function_dealloc, function_methods);
Class Pipeline_ = PRIVATE_CLASS("MTLComputePipelineState", Pipeline, pipeline_dealloc, pipeline_methods);
Class Buffer_ = PRIVATE_CLASS("MTLBuffer", Buffer, buffer_dealloc, buffer_methods);
Class CompileOptions_ = {{0, -1}, "MTLCompileOptions", &NSObject_, sizeof(CompileOptions), 0, options_methods, options_class_methods, 0, 0};

Class* const client_classes[] = {&Device_, &Library_, &Function_, &Pipeline_, &Buffer_, &Queue_, &CommandBuffer_, &Encoder_, &CompileOptions_,
                                &MatrixDescriptor_, &Matrix_, &MatrixMultiplication_, 0};

EXPORT id MTLCreateSystemDefaultDevice() {
    objc_init();
    return &the_device;
}
EXPORT id MTLCopyAllDevices() {
    objc_init();
    Array* a = new_array(1);
    a->items[0] = &the_device;
    return a;
}
