// SPDX-License-Identifier: Apache-2.0
// Products of a warpgroup, d[64][64] = a[64][16] b[16][64] (+ d), over the fibers of warp.h. All 128 threads
// make the same ones. A product is made when its group is waited for, from what shared memory holds then:
// what was overwritten too early is rubbish, and so is d until then. What it catches beside: threads whose
// products differ; descriptors of another swizzle or alignment, or that reach past shared memory; a product
// without a fence since the last wait; copies that were waited for without wgmma_shared() after it; products
// that are never waited for.
#pragma once

#include <cstdint>

struct emulated_product {
    bool bf16, add;
    bool columns;      // a in registers, b by its rows; else both in shared memory, by rows and by columns
    uint32_t a[4];     // columns
    uint64_t a_matrix; // not columns
    uint64_t b_matrix;
    float *d; // [32]
};

void emulated_group_product(const emulated_product &product);
void emulated_group_shared();
void emulated_group_fence();
void emulated_group_commit();
void emulated_group_wait(int groups);

// ---- between warp.cc and warpgroup.cc

#define EMULATED_THREADS 128

// A sum as the least exact of tensor cores makes it (warp.cc).
float emulated_cut_sum(const double *terms, int n);
double emulated_element(bool bf16, uint16_t half);
[[noreturn]] void emulated_fault(const char *what);
// Until all threads of the block are here; the last one runs `meet` for all.
void emulated_meet(void (*meet)(int arg), int arg);

// Of thread i, by warp.cc.
void emulated_group_start(unsigned i);
bool emulated_group_done(unsigned i);    // nothing is under way
void emulated_group_written(unsigned i); // to shared memory, not by products
uint32_t emulated_shared_bytes();
