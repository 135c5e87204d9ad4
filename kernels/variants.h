// SPDX-License-Identifier: Apache-2.0
// Private to kernels/: the ops tables that the registry lists, and what asks the CPU.
#pragma once

#include "kernels/attention.h"

extern const struct kernels_attention kernels_reference_kernel;
extern const struct kernels_attention kernels_portable;
extern const struct kernels_attention kernels_neon;
extern const struct kernels_attention kernels_avx2;
extern const struct kernels_attention kernels_avx512;
extern const struct kernels_attention kernels_amx;

// In a file of their own, compiled for the oldest CPU: the answer must not need what it asks for.
bool kernels_cpu_avx2(void);
bool kernels_cpu_avx512(void);
bool kernels_cpu_amx(void); // asks the kernel for leave to use tiles, which a process needs once

// How many streams of lines to ask ahead in. Prefetchers of Intel's cores end at each page of 4 KiB: four
// streams, a page each, draw 1.45 times what one draws. Others follow one stream better.
#if defined(__x86_64__)
uint32_t kernels_cpu_streams(void);
#else
static inline uint32_t kernels_cpu_streams(void)
{
    return 1;
}
#endif
