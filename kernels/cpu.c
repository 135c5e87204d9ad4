// SPDX-License-Identifier: Apache-2.0
#include "kernels/variants.h"

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
