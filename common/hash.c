// SPDX-License-Identifier: Apache-2.0
#include "common/hash.h"

#include <xxhash.h>

uint64_t common_xxh3(const void *data, size_t len, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, len, seed);
}
