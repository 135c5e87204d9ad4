// SPDX-License-Identifier: Apache-2.0
// XXH3 of much, in the instruction set that the including file is compiled for: hash.c and, for processors
// that have it, hash_avx2.c. The values are the same. Private to common.
#ifndef COMMON_XXH3_H
#define COMMON_XXH3_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#define XXH_INLINE_ALL // the state lives on the stack: its size must be this header's
#include <xxhash.h>

static inline uint64_t common_xxh3_run(const struct iovec *pieces, size_t n)
{
    XXH3_state_t state;
    if (n == 1)
        return XXH3_64bits(pieces->iov_base, pieces->iov_len);
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    for (size_t i = 0; i < n; i++)
        XXH3_64bits_update(&state, pieces[i].iov_base, pieces[i].iov_len);
    uint64_t hash = XXH3_64bits_digest(&state);
    explicit_bzero(state.buffer, sizeof state.buffer); // the last bytes, on everybody's stack
    return hash;
}

uint64_t common_xxh3_gather_avx2(const struct iovec *pieces, size_t n); // x86-64 with AVX2 only

#endif
