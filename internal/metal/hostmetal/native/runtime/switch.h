// Switching stacks.
#pragma once
#include <string.h>

// msl_switch(&save, load) keeps the callee-saved registers on the old stack and takes up the new one.
extern "C" void msl_switch(void** save, void* load);
#if defined(__x86_64__)
asm(R"(
.text
.globl msl_switch
.hidden msl_switch
msl_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmp *%rcx
)");
static void* fresh_stack(char* top, void (*fn)()) {
    void** sp = (void**)top;
    *--sp = 0;  // fn sees an aligned stack and no caller
    *--sp = (void*)fn;
    for (int i = 0; i < 6; ++i) *--sp = 0;
    return sp;
}
#elif defined(__aarch64__)
asm(R"(
.text
.globl msl_switch
.hidden msl_switch
msl_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");
static void* fresh_stack(char* top, void (*fn)()) {
    char* sp = top - 160;
    memset(sp, 0, 160);
    ((void**)sp)[11] = (void*)fn;  // x30
    return sp;
}
#endif
