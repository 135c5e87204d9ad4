// SPDX-License-Identifier: Apache-2.0
// XXH3, 64 bits, of one head's row. From 241 to 1,024 bytes, which most models' rows have, it is written out
// here: libxxhash calls a function and keeps its state in memory, which takes 1.2 to 1.3 times as long for
// 256 bytes (Zen 3, gcc 12, 2026-11). Values and names are those of the specification,
// https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md, "XXH3 algorithm (for large inputs)".
// Private to rows_sum_run.h, which includes xxhash.h with XXH_INLINE_ALL before.
#ifndef PROTO_ROWS_HASH_AVX2_H
#define PROTO_ROWS_HASH_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define ROWS_HASH_MIN 241  // bytes: below it XXH3 is another algorithm
#define ROWS_HASH_MAX 1024 // a block: behind it the accumulators are scrambled

static inline __m256i rows_hash_load(const uint8_t *from)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

// Half a stripe of 64 bytes goes into four accumulators.
static inline __m256i rows_hash_add(__m256i acc, __m256i data, __m256i secret)
{
    __m256i key = _mm256_xor_si256(data, secret);
    __m256i product = _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32)); // lower half by upper half
    return _mm256_add_epi64(acc, _mm256_add_epi64(_mm256_shuffle_epi32(data, 0x4e), product));
}

static inline uint64_t rows_hash_fold(uint64_t a, uint64_t b)
{
    __extension__ unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t rows_hash_large(const uint8_t *row, size_t len)
{
    const uint8_t *secret = XXH3_kSecret;
    const long long p32_1 = 0x9e3779b1, p32_2 = 0x85ebca77, p32_3 = 0xc2b2ae3d;
    const uint64_t p64_1 = UINT64_C(0x9e3779b185ebca87), p64_2 = UINT64_C(0xc2b2ae3d27d4eb4f),
                   p64_3 = UINT64_C(0x165667b19e3779f9), p64_4 = UINT64_C(0x85ebca77c2b2ae63),
                   p64_5 = UINT64_C(0x27d4eb2f165667c5);
    __m256i low = _mm256_set_epi64x((long long)p64_3, (long long)p64_2, (long long)p64_1, p32_3);
    __m256i high = _mm256_set_epi64x(p32_1, (long long)p64_5, p32_2, (long long)p64_4);
    for (size_t i = 0; i < (len - 1) / 64; i++) {
        low = rows_hash_add(low, rows_hash_load(row + 64 * i), rows_hash_load(secret + 8 * i));
        high = rows_hash_add(high, rows_hash_load(row + 64 * i + 32), rows_hash_load(secret + 8 * i + 32));
    }
    low = rows_hash_add(low, rows_hash_load(row + len - 64), rows_hash_load(secret + 121));
    high = rows_hash_add(high, rows_hash_load(row + len - 32), rows_hash_load(secret + 153));
    uint64_t acc[8];
    _mm256_storeu_si256((__m256i *)(void *)acc, _mm256_xor_si256(low, rows_hash_load(secret + 11)));
    _mm256_storeu_si256((__m256i *)(void *)(acc + 4), _mm256_xor_si256(high, rows_hash_load(secret + 43)));
    uint64_t hash = len * p64_1 + rows_hash_fold(acc[0], acc[1]) + rows_hash_fold(acc[2], acc[3]) +
                    rows_hash_fold(acc[4], acc[5]) + rows_hash_fold(acc[6], acc[7]);
    hash = (hash ^ hash >> 37) * UINT64_C(0x165667919e3779f9);
    return hash ^ hash >> 32;
}

static inline uint64_t rows_hash(const uint8_t *row, size_t len)
{
    return len >= ROWS_HASH_MIN && len <= ROWS_HASH_MAX ? rows_hash_large(row, len) : XXH3_64bits(row, len);
}

#endif
