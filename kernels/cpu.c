// SPDX-License-Identifier: Apache-2.0
#include "kernels/variants.h"

#include <cpuid.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

// x86-64-v3 and -v4 as far as the compiler may use them; every CPU with AVX2 has F16C, LZCNT and MOVBE.
bool kernels_cpu_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2");
}

bool kernels_cpu_avx512(void)
{
    return kernels_cpu_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

uint32_t kernels_cpu_streams(void)
{
    return __builtin_cpu_is("intel") ? 4 : 1;
}

// Tiles are 8 KB of state a thread, so Linux gives them only to a process that asks (5.16 and later; older
// ones refuse).
bool kernels_cpu_amx(void)
{
    enum { UNKNOWN, YES, NO };
    static atomic_int known = UNKNOWN;
    int state = atomic_load(&known);
    if (state == UNKNOWN) {
        const unsigned tile = 1u << 24, bf16 = 1u << 22;
        const long ask = 0x1023, tile_data = 18; // ARCH_REQ_XCOMP_PERM
        unsigned a, b, c, d;
        bool has =
            kernels_cpu_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & tile) && (d & bf16);
        state = has && syscall(SYS_arch_prctl, ask, tile_data) == 0 ? YES : NO;
        atomic_store(&known, state);
    }
    return state == YES;
}
