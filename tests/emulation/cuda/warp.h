// SPDX-License-Identifier: Apache-2.0
// One block of threads at a time, each thread a fiber of the one thread that emulates the device. A fiber
// runs until it must wait for its warp or its block.
//
// What it catches beside wrong numbers: a warp whose lanes do not meet at the same operation; a copy that is
// read before its wait or overwritten while it is read (the place holds rubbish from the start of a copy
// until its lane's wait); a missing barrier, as the order of lanes changes from turn to turn.
#pragma once

#include <cstdint>

// A byte that makes finite numbers of every type, most of them large: NaN would send a task to the plain
// code, which would put it right.
#define EMULATED_RUBBISH 0x5a

enum emulated_operation {
    EMULATED_SYNC,
    EMULATED_ANY,
    EMULATED_SHUFFLE, // value, lane to read
    EMULATED_TRANSPOSE,
    EMULATED_MATRICES, // address of a row of 16 bytes
    EMULATED_MATRICES_TRANSPOSED,
    EMULATED_MMA_BF16, // a[4], b[2], c[4]
    EMULATED_MMA_F16
};

struct emulated_index {
    uint32_t x, y, z;
};

struct emulated_thread {
    emulated_index thread, block, grid;
    char *shared;
};

extern emulated_thread *emulated_self; // the fiber that runs

// All 32 lanes of the warp call with the same operation.
void emulated_warp(emulated_operation operation, const uint32_t *in, int ins, uint32_t *out, int outs);
// __syncthreads_or.
bool emulated_block(bool x);

void emulated_copy(void *to, const void *from, uint32_t bytes, bool wanted);
void emulated_copy_commit();
void emulated_copy_wait(int groups);

// Runs a grid of blocks of 128 threads, in an order that changes from launch to launch. Ends the process on a
// fault of the kernel's own.
void emulated_grid(void (*body)(void *), void *arg, uint32_t blocks, uint32_t shared_bytes);
