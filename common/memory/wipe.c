// SPDX-License-Identifier: Apache-2.0
#include "common/memory/wipe.h"

#include <stdint.h>
#include <string.h>

enum { LINE = 64, WORD = 16 }; // bytes

atomic_size_t common_wiped_past;

#ifdef __SSE2__
#include <emmintrin.h>

static void wipe_lines(uint8_t *at, size_t bytes)
{
    const __m128i zero = _mm_setzero_si128();
    for (size_t i = 0; i < bytes; i += WORD)
        _mm_stream_si128((__m128i *)(void *)(at + i), zero);
    _mm_sfence(); // another thread may get the memory next
    atomic_fetch_add_explicit(&common_wiped_past, bytes, memory_order_relaxed);
}
#else
static void wipe_lines(uint8_t *at, size_t bytes)
{
    explicit_bzero(at, bytes);
}
#endif

void common_wipe(void *memory, size_t bytes)
{
    uint8_t *at = memory;
    if (bytes >= COMMON_WIPE_LARGE) {
        size_t head = (size_t)(-(uintptr_t)at & (LINE - 1)), lines = (bytes - head) / LINE * LINE;
        explicit_bzero(at, head);
        wipe_lines(at + head, lines);
        at += head + lines;
        bytes -= head + lines;
    }
    explicit_bzero(at, bytes);
}
