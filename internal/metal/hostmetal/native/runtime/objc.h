// A miniature Objective-C runtime: classes, selectors, retain counts, autorelease pools, and the
// few Foundation classes that Metal needs.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

typedef const char* SEL;  // interned
struct Class;

struct Object {
    Class* isa;
    long   refs;  // atomic; -1 in classes and the device, which live for ever
};
typedef Object* id;

struct Method {
    const char* name;
    void*       imp;  // called as imp(self, _cmd, arguments...)
};

// A class is an object; what it does as one (alloc, new) stands in its metaclass, isa.
struct Class : Object {
    const char*   name;
    Class*        super;
    size_t        size;           // of an instance
    void (*dealloc)(id);          // releases what the instance holds; may be null
    const Method* methods;        // ends with a null name
    const Method* class_methods;  // likewise; null if clients cannot reach the class
    Method*       table;          // open hash table of all methods by selector; made by objc_init
    size_t        mask;
    long          alive = 0;      // instances; atomic
};

void    objc_init();                 // once; every exported function calls it first
id      objc_new(Class* c);          // a zeroed instance with one reference
id      objc_keep(id o);             // retain; null is allowed
void    objc_drop(id o);             // release; null is allowed
id      objc_later(id o);            // autorelease
[[noreturn]] void objc_raise(const char* exception, const char* fmt, ...);

// The classes of the client of this runtime, null-terminated; defined in device.cpp.
extern Class* const client_classes[];

template <class T> T* keep(T* o) { return (T*)objc_keep((id)o); }
template <class T> T* later(T* o) { return (T*)objc_later((id)o); }

struct String : Object {
    char*    utf8;
    size_t   bytes;
    uint64_t length;  // in UTF-16 units
};
struct Error : Object {
    String* domain;
    long    code;
    String* text;
};
struct Array : Object {
    id*      items;
    uint64_t count;
};
extern Class NSObject_, NSString_, NSError_, NSArray_;

String* new_string(const char* utf8, size_t n);  // null if not valid UTF-8
String* new_string(const char* utf8);
const char* string_utf8(const String* s);
Error*  new_error(const char* domain, long code, const char* utf8);
Array*  new_array(uint64_t count);  // filled by the caller, with references of its own
