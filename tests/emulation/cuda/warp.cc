// SPDX-License-Identifier: Apache-2.0
#include "tests/emulation/cuda/warp.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ucontext.h>
#include <vector>

#include "common/tensor/float16.h"
#include "tests/emulation/cuda/warpgroup.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace
{
constexpr int THREADS = EMULATED_THREADS, WARPS = THREADS / 32, MOST_IN = 10, MOST_OUT = 4;
constexpr size_t STACK = 64 * 1024;

struct pending_copy {
    void *to;
    const void *from;
    uint32_t bytes;
    bool wanted;
    int group;
};

struct fiber : emulated_thread {
    void *stack_pointer; // of the fiber while it does not run
#ifndef __x86_64__
    ucontext_t context;
#endif
    char *stack;
    bool done, waits_warp, waits_block, waits_group;
    emulated_operation operation;
    uint32_t in[MOST_IN], out[MOST_OUT];
    bool vote, voted;
    int group;
    std::vector<pending_copy> copies;
#ifdef __SANITIZE_ADDRESS__
    void *fake;
#endif
};

fiber fibers[THREADS];
void *main_stack_pointer;
#ifdef __SANITIZE_ADDRESS__
void *main_fake;
const void *main_bottom;
size_t main_size;
#endif
void (*kernel_body)(void *);
void *kernel_arg;
uint32_t turn, shared_size;
void (*group_meets)(int);
int group_arg;

[[noreturn]] void fault(const char *what)
{
    std::fprintf(stderr, "emulated kernel: %s (block %u, thread %u)\n", what, emulated_self->block.x,
                 emulated_self->thread.x);
    std::abort();
}

#ifdef __x86_64__ // swapcontext() asks the kernel for signal masks: ten times the time
#define OWN_SWITCH 1
extern "C" void emulated_switch(void **save, void *load);
__asm__(".text\n.globl emulated_switch\n.type emulated_switch,@function\nemulated_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size emulated_switch,.-emulated_switch\n");
#else
#define OWN_SWITCH 0
ucontext_t main_context;
#endif

void leave(fiber *f)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(f->done ? nullptr : &f->fake, main_bottom, main_size);
#endif
#if OWN_SWITCH
    emulated_switch(&f->stack_pointer, main_stack_pointer);
#else
    swapcontext(&f->context, &main_context);
#endif
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(f->fake, &main_bottom, &main_size);
#endif
}

void enter(fiber *f)
{
    emulated_self = f;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&main_fake, f->stack, STACK);
#endif
#if OWN_SWITCH
    emulated_switch(&main_stack_pointer, f->stack_pointer);
#else
    swapcontext(&main_context, &f->context);
#endif
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(main_fake, nullptr, nullptr);
#endif
}

void fiber_main()
{
    fiber *f = static_cast<fiber *>(emulated_self);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, &main_bottom, &main_size);
#endif
    kernel_body(kernel_arg);
    if (!f->copies.empty())
        fault("ends with copies that nobody waited for");
    if (!emulated_group_done(f->thread.x))
        fault("ends with products that nobody waited for");
    f->done = true;
    leave(f);
    std::abort();
}

void fiber_start(fiber *f)
{
    if (!f->stack)
        f->stack = static_cast<char *>(std::aligned_alloc(64, STACK));
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(f->stack, STACK); // of the fiber that ended here
#endif
    f->done = f->waits_warp = f->waits_block = f->waits_group = false;
    emulated_group_start(f->thread.x);
    f->group = 0;
#if OWN_SWITCH
    void **top = reinterpret_cast<void **>(f->stack + STACK) - 2;
    *top = reinterpret_cast<void *>(&fiber_main); // ret goes here, with the stack as after a call
    top -= 6;
    std::fill(top, top + 6, nullptr);
    f->stack_pointer = top;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = nullptr;
    makecontext(&f->context, fiber_main, 0);
#endif
}

double element(emulated_operation operation, uint32_t pair, int i)
{
    return emulated_element(operation == EMULATED_MMA_BF16, static_cast<uint16_t>(pair >> (16 * i)));
}

void mma(fiber *w, emulated_operation operation)
{
    double a[16][16], b[8][16];
    for (int lane = 0; lane < 32; lane++) {
        int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 2; i++) {
            a[g][2 * t + i] = element(operation, w[lane].in[0], i);
            a[g + 8][2 * t + i] = element(operation, w[lane].in[1], i);
            a[g][2 * t + 8 + i] = element(operation, w[lane].in[2], i);
            a[g + 8][2 * t + 8 + i] = element(operation, w[lane].in[3], i);
            b[g][2 * t + i] = element(operation, w[lane].in[4], i);
            b[g][2 * t + 8 + i] = element(operation, w[lane].in[5], i);
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 4; i++) {
            int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            float sum;
            std::memcpy(&sum, &w[lane].in[6 + i], sizeof(sum));
            for (int half = 0; half < 16; half += 8) {
                double terms[9];
                for (int k = 0; k < 8; k++)
                    terms[k] = a[row][half + k] * b[column][half + k];
                terms[8] = sum;
                sum = emulated_cut_sum(terms, 9);
            }
            std::memcpy(&w[lane].out[i], &sum, sizeof(sum));
        }
    }
}

// ldmatrix .x4: row `row` of matrix m.
const char *matrix_row(const fiber *w, int m, int row)
{
    const char *p;
    static_assert(sizeof(p) == 2 * sizeof(uint32_t), "an address is two words");
    std::memcpy(&p, w[m * 8 + row].in, sizeof(p));
    if (reinterpret_cast<uintptr_t>(p) % 16)
        fault("a row of a matrix is not aligned");
    return p;
}

void matrices(fiber *w, bool transposed)
{
    for (int lane = 0; lane < 32; lane++) {
        int g = lane / 4, t = lane % 4;
        for (int m = 0; m < 4; m++) {
            char *to = reinterpret_cast<char *>(&w[lane].out[m]);
            if (!transposed) {
                std::memcpy(to, matrix_row(w, m, g) + t * 4, 4);
            } else {
                std::memcpy(to, matrix_row(w, m, 2 * t) + g * 2, 2);
                std::memcpy(to + 2, matrix_row(w, m, 2 * t + 1) + g * 2, 2);
            }
        }
    }
}

void together(fiber *w)
{
    emulated_operation operation = w[0].operation;
    for (int i = 0; i < 32; i++) {
        if (w[i].operation != operation)
            fault("lanes of a warp meet at different operations");
        w[i].waits_warp = false;
    }
    bool any = false;
    for (int i = 0; i < 32; i++)
        any = any || w[i].in[0] != 0;
    for (int i = 0; i < 32; i++) {
        int g = i / 4, t = i % 4;
        if (operation == EMULATED_ANY)
            w[i].out[0] = any;
        else if (operation == EMULATED_SHUFFLE)
            w[i].out[0] = w[w[i].in[1]].in[0];
        else if (operation == EMULATED_TRANSPOSE) // row g of the result is column g
            w[i].out[0] = (w[2 * t * 4 + g / 2].in[0] >> (16 * (g % 2)) & 0xffffu) |
                          (w[(2 * t + 1) * 4 + g / 2].in[0] >> (16 * (g % 2)) & 0xffffu) << 16;
    }
    if (operation == EMULATED_MMA_BF16 || operation == EMULATED_MMA_F16)
        mma(w, operation);
    else if (operation == EMULATED_MATRICES || operation == EMULATED_MATRICES_TRANSPOSED)
        matrices(w, operation == EMULATED_MATRICES_TRANSPOSED);
}

// Whether anything went on.
bool run_turn()
{
    bool moved = false, all_wait = true, vote = false;
    for (int i = 0; i < THREADS; i++) {
        // Warps and lanes in changing order
        int warp = static_cast<int>((turn + i / 32) % WARPS), lane = turn % 2 ? 31 - i % 32 : i % 32;
        fiber *f = &fibers[warp * 32 + lane];
        if (!f->done && !f->waits_warp && !f->waits_block && !f->waits_group) {
            enter(f);
            moved = true;
        }
        if (i % 32 == 31) {
            fiber *w = &fibers[warp * 32];
            if (std::all_of(w, w + 32, [](const fiber &x) { return x.waits_warp; })) {
                together(w);
                moved = true;
            }
        }
    }
    for (const fiber &f : fibers) {
        all_wait = all_wait && (f.done || f.waits_block);
        vote = vote || (!f.done && f.vote);
    }
    if (all_wait) {
        for (fiber &f : fibers) {
            moved = moved || f.waits_block;
            f.voted = vote;
            f.waits_block = false;
        }
    }
    if (std::all_of(fibers, fibers + THREADS, [](const fiber &x) { return x.waits_group; })) {
        for (fiber &f : fibers)
            f.waits_group = false;
        group_meets(group_arg);
        moved = true;
    }
    turn++;
    return moved;
}
} // namespace

emulated_thread *emulated_self;

// A sum as the least exact of tensor cores makes it: terms are cut to the 24 bits below the largest one's
// exponent, and the sum is cut to float32.
float emulated_cut_sum(const double *terms, int n)
{
    double most = 0, plain = 0;
    for (int i = 0; i < n; i++) {
        most = std::max(most, std::fabs(terms[i]));
        plain += terms[i];
    }
    if (!std::isfinite(plain) || most == 0)
        return static_cast<float>(plain);
    uint64_t bits;
    std::memcpy(&bits, &most, sizeof(bits));
    int exponent = static_cast<int>(bits >> 52) - 1023; // most is a normal double
    double up = std::ldexp(1.0, 23 - exponent);
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += static_cast<int32_t>(terms[i] * up); // toward zero
    while (std::llabs(sum) >= 1 << 24) {
        sum /= 2;
        up /= 2;
    }
    return static_cast<float>(static_cast<double>(sum) / up);
}

double emulated_element(bool bf16, uint16_t half)
{
    return bf16 ? common_bf16_to_float(half) : common_f16_to_float(half);
}

void emulated_fault(const char *what)
{
    fault(what);
}

uint32_t emulated_shared_bytes()
{
    return shared_size;
}

void emulated_meet(void (*meet)(int arg), int arg)
{
    fiber *f = static_cast<fiber *>(emulated_self);
    group_meets = meet;
    group_arg = arg;
    f->waits_group = true;
    leave(f);
}

void emulated_warp(emulated_operation operation, const uint32_t *in, int ins, uint32_t *out, int outs)
{
    fiber *f = static_cast<fiber *>(emulated_self);
    f->operation = operation;
    f->in[0] = 0;
    std::copy(in, in + ins, f->in);
    f->waits_warp = true;
    leave(f);
    std::copy(f->out, f->out + outs, out);
}

bool emulated_block(bool x)
{
    fiber *f = static_cast<fiber *>(emulated_self);
    f->vote = x;
    f->waits_block = true;
    leave(f);
    return f->voted;
}

void emulated_copy(void *to, const void *from, uint32_t bytes, bool wanted)
{
    fiber *f = static_cast<fiber *>(emulated_self);
    if (reinterpret_cast<uintptr_t>(to) % bytes || (wanted && reinterpret_cast<uintptr_t>(from) % bytes))
        fault("a copy is not aligned");
    std::memset(to, EMULATED_RUBBISH, bytes);
    f->copies.push_back({to, from, bytes, wanted, f->group});
}

void emulated_copy_commit()
{
    static_cast<fiber *>(emulated_self)->group++;
}

void emulated_copy_wait(int groups)
{
    fiber *f = static_cast<fiber *>(emulated_self);
    size_t done = 0;
    for (; done < f->copies.size() && f->copies[done].group < f->group - groups; done++) {
        const pending_copy &c = f->copies[done];
        if (c.wanted)
            std::memcpy(c.to, c.from, c.bytes);
        else
            std::memset(c.to, 0, c.bytes);
    }
    f->copies.erase(f->copies.begin(), f->copies.begin() + static_cast<long>(done));
    if (done > 0)
        emulated_group_written(f->thread.x);
}

void emulated_grid(void (*body)(void *), void *arg, uint32_t blocks, uint32_t shared_bytes)
{
    static uint32_t launches;
    launches++;
    kernel_body = body;
    kernel_arg = arg;
    shared_size = shared_bytes;
    struct release {
        void operator()(char *p) const
        {
            std::free(p);
        }
    };
    size_t bytes =
        (shared_bytes + 127) / 128 * 128 + 128; // a block of its own, so that a sanitizer sees its end
    std::unique_ptr<char, release> shared(static_cast<char *>(std::aligned_alloc(128, bytes)));
    for (uint32_t i = 0; i < blocks; i++) {
        std::memset(shared.get(), EMULATED_RUBBISH, bytes);
        for (uint32_t j = 0; j < THREADS; j++) {
            fiber *f = &fibers[j];
            f->thread = {j, 0, 0};
            f->block = {launches % 2 ? i : blocks - 1 - i, 0, 0};
            f->grid = {blocks, 1, 1};
            f->shared = shared.get();
            fiber_start(f);
        }
        while (run_turn())
            continue;
        for (const fiber &f : fibers) {
            if (!f.done) {
                emulated_self = const_cast<fiber *>(&f);
                fault("threads wait for others that never come");
            }
        }
    }
}
