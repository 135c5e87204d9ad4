// SPDX-License-Identifier: Apache-2.0
#include "examples/products.h"

extern const struct products products_plain;

#ifdef PRODUCTS_X86
extern const struct products products_v3, products_v4;

const struct products *products_best(void)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512cd"))
        return &products_v4;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        return &products_v3;
    return &products_plain;
}
#else
const struct products *products_best(void)
{
    return &products_plain;
}
#endif
