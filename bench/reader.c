// SPDX-License-Identifier: Apache-2.0
#include "bench/reader.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif
#ifdef __aarch64__
#include <arm_neon.h>
#endif

#define LINE   64u
#define AHEAD  2048u // bytes: where software prefetch looks in each stream
#define INLINE static inline __attribute__((always_inline))

typedef uint64_t vec16 __attribute__((vector_size(16)));

// One body for every instruction set. A step takes `lines` of each stream, four or more in all.
#define BODY(V, ZERO, LOAD, XOR, streams, ahead)                                                             \
    const size_t lines = (streams) >= 4 ? 1 : 4 / (streams), step = lines * LINE;                            \
    const size_t part = bytes / (streams) / step * step;                                                     \
    V acc[LINE / sizeof(V)];                                                                                 \
    for (size_t i = 0; i < LINE / sizeof(V); i++)                                                            \
        acc[i] = ZERO;                                                                                       \
    for (size_t at = 0; at < part; at += step) {                                                             \
        _Pragma("GCC unroll 8") for (size_t s = 0; s < (streams); s++)                                       \
        {                                                                                                    \
            const char *from = data + s * part + at;                                                         \
            _Pragma("GCC unroll 4") for (size_t l = 0; l < lines; l++)                                       \
            {                                                                                                \
                if (ahead)                                                                                   \
                    __builtin_prefetch(from + l * LINE + (ahead), 0, 3);                                     \
                _Pragma("GCC unroll 4") for (size_t i = 0; i < LINE / sizeof(V); i++) acc[i] =               \
                    XOR(acc[i], LOAD((const void *)(from + l * LINE + i * sizeof(V))));                      \
            }                                                                                                \
        }                                                                                                    \
    }                                                                                                        \
    for (size_t at = (streams)*part; at + LINE <= bytes; at += LINE) {                                       \
        for (size_t i = 0; i < LINE / sizeof(V); i++)                                                        \
            acc[i] = XOR(acc[i], LOAD((const void *)(data + at + i * sizeof(V))));                           \
    }                                                                                                        \
    for (size_t i = 1; i < LINE / sizeof(V); i++)                                                            \
        acc[0] = XOR(acc[0], acc[i]);                                                                        \
    uint64_t words[sizeof(V) / 8], all = 0;                                                                  \
    __builtin_memcpy(words, &acc[0], sizeof words);                                                          \
    for (size_t i = 0; i < sizeof(V) / 8; i++)                                                               \
        all ^= words[i];                                                                                     \
    return all

#define PLAIN_LOAD(p)   (*(const vec16 *)(p))
#define PLAIN_XOR(a, b) ((a) ^ (b))

INLINE uint64_t portable(const char *data, size_t bytes, const size_t streams, const size_t ahead)
{
    BODY(vec16, (vec16){0}, PLAIN_LOAD, PLAIN_XOR, streams, ahead);
}

#ifdef __x86_64__
#define TARGET_avx2    __attribute__((target("avx2,fma")))
#define TARGET_avx512  __attribute__((target("avx512f")))
#define AVX512_LOAD(p) _mm512_load_si512(p)

INLINE TARGET_avx2 uint64_t avx2(const char *data, size_t bytes, const size_t streams, const size_t ahead)
{
    BODY(__m256i, _mm256_setzero_si256(), _mm256_load_si256, _mm256_xor_si256, streams, ahead);
}

INLINE TARGET_avx512 uint64_t avx512(const char *data, size_t bytes, const size_t streams, const size_t ahead)
{
    BODY(__m512i, _mm512_setzero_si512(), AVX512_LOAD, _mm512_xor_si512, streams, ahead);
}
#endif

#define TARGET_portable
#define READER(isa, streams, ahead)                                                                          \
    static TARGET_##isa uint64_t isa##_##streams##_##ahead(const char *data, size_t bytes)                   \
    {                                                                                                        \
        return isa(data, bytes, streams, ahead);                                                             \
    }
// clang-format off
#define READERS(isa)                                                                                         \
    READER(isa, 1, 0) READER(isa, 2, 0) READER(isa, 4, 0) READER(isa, 8, 0)                                  \
    READER(isa, 1, AHEAD) READER(isa, 2, AHEAD) READER(isa, 4, AHEAD) READER(isa, 8, AHEAD)
#define READ(isa, ISA, streams) {#isa " x" #streams, ISA, isa##_##streams##_0}
#define FETCH(isa, ISA, streams) {#isa " x" #streams " prefetch", ISA, isa##_##streams##_AHEAD}
#define LIST(isa, ISA)                                                                                       \
    READ(isa, ISA, 1), READ(isa, ISA, 2), READ(isa, ISA, 4), READ(isa, ISA, 8),                              \
    FETCH(isa, ISA, 1), FETCH(isa, ISA, 2), FETCH(isa, ISA, 4), FETCH(isa, ISA, 8)

READERS(portable)
#ifdef __x86_64__
READERS(avx2)
READERS(avx512)
#endif
// clang-format on

const struct reader reader_list[] = {
    LIST(portable, READER_PORTABLE),
#ifdef __x86_64__
    LIST(avx2, READER_AVX2),
    LIST(avx512, READER_AVX512),
#endif
};
const uint32_t reader_count = sizeof reader_list / sizeof *reader_list;

bool reader_isa_usable(enum reader_isa isa)
{
#ifdef __x86_64__
    if (isa == READER_AVX2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == READER_AVX512)
        return __builtin_cpu_supports("avx512f");
#endif
    return isa == READER_PORTABLE;
}

const char *reader_isa_name(enum reader_isa isa)
{
    return isa == READER_AVX512 ? "avx512" : isa == READER_AVX2 ? "avx2" : "portable";
}

// Twelve chains: two units times a latency of four or five, and a few to spare. They converge to 2: no
// overflow, no subnormal.
#define CHAINS 12
#define FMA_BODY(V, SET, FMA, STORE)                                                                         \
    V a = SET(0.5f), b = SET(1.0f), c[CHAINS];                                                               \
    for (int i = 0; i < CHAINS; i++)                                                                         \
        c[i] = SET((float)i + *sink);                                                                        \
    for (uint64_t r = 0; r < rounds; r++) {                                                                  \
        _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) c[i] = FMA(c[i], a, b);                    \
    }                                                                                                        \
    float out[sizeof(V) / sizeof(float)];                                                                    \
    for (int i = 0; i < CHAINS; i++) {                                                                       \
        STORE(out, c[i]);                                                                                    \
        *sink += out[0];                                                                                     \
    }                                                                                                        \
    return rounds * CHAINS * sizeof(V) / sizeof(float) * 2

#ifdef __x86_64__
static TARGET_avx2 uint64_t fma_avx2(uint64_t rounds, float *sink)
{
    FMA_BODY(__m256, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_storeu_ps);
}

static TARGET_avx512 uint64_t fma_avx512(uint64_t rounds, float *sink)
{
    FMA_BODY(__m512, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_storeu_ps);
}
#endif

#ifdef __aarch64__
#define NEON_FMA(x, y, z) vfmaq_f32(z, x, y)
static uint64_t fma_portable(uint64_t rounds, float *sink)
{
    FMA_BODY(float32x4_t, vdupq_n_f32, NEON_FMA, vst1q_f32);
}
#else
typedef float float4 __attribute__((vector_size(16)));
#define FLOAT4_SET(x)       ((float4){x, x, x, x})
#define FLOAT4_FMA(x, y, z) ((x) * (y) + (z))
#define FLOAT4_STORE(p, x)  __builtin_memcpy(p, &(x), sizeof(x))
static uint64_t fma_portable(uint64_t rounds, float *sink)
{
    FMA_BODY(float4, FLOAT4_SET, FLOAT4_FMA, FLOAT4_STORE);
}
#endif

uint64_t reader_fma(enum reader_isa isa, uint64_t rounds, float *sink)
{
#ifdef __x86_64__
    if (isa == READER_AVX512)
        return fma_avx512(rounds, sink);
    if (isa == READER_AVX2)
        return fma_avx2(rounds, sink);
#endif
    (void)isa;
    return fma_portable(rounds, sink);
}
