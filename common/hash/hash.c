// SPDX-License-Identifier: Apache-2.0
#include "common/hash/hash.h"

#include "common/hash/xxh3.h"

bool common_cpu_avx2(void)
{
#ifdef COMMON_X86_64
    return __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

uint64_t common_xxh3(const void *data, size_t len, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, len, seed);
}

uint64_t common_xxh3_gather(const struct iovec *pieces, size_t n)
{
#ifdef COMMON_X86_64
    if (common_cpu_avx2())
        return common_xxh3_gather_avx2(pieces, n);
#endif
    return common_xxh3_run(pieces, n);
}
