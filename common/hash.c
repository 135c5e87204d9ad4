// SPDX-License-Identifier: Apache-2.0
#include "common/hash.h"

#define XXH_INLINE_ALL // the state lives on the stack: its size must be this header's
#include <xxhash.h>

uint64_t common_xxh3(const void *data, size_t len, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, len, seed);
}

uint64_t common_xxh3_gather(const struct iovec *pieces, size_t n)
{
    XXH3_state_t state;
    if (n == 1)
        return XXH3_64bits(pieces->iov_base, pieces->iov_len);
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    for (size_t i = 0; i < n; i++)
        XXH3_64bits_update(&state, pieces[i].iov_base, pieces[i].iov_len);
    return XXH3_64bits_digest(&state);
}
