// SPDX-License-Identifier: Apache-2.0
// The floor under anything that must read memory once: readers that load every byte into vector registers and
// do next to nothing with it. A reader goes along several streams at once (a stretch is cut into as many
// equal parts and each step takes a few cache lines from every one), with or without software prefetch; which
// is best depends on the machine, so a bench tries them all.
#ifndef BENCH_READER_H
#define BENCH_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum reader_isa { READER_PORTABLE, READER_AVX2, READER_AVX512 };

struct reader {
    const char *name; // "avx2 x4 prefetch"
    enum reader_isa isa;
    // Loads every whole 64 bytes of [data, data + bytes); data aligned to 64. The answer depends on them all.
    uint64_t (*read)(const char *data, size_t bytes);
};

extern const struct reader reader_list[];
extern const uint32_t reader_count;

// Whether this CPU has the instructions.
bool reader_isa_usable(enum reader_isa isa);
const char *reader_isa_name(enum reader_isa isa); // "portable", "avx2", "avx512"

// Runs `rounds` steps of 12 chains of float32 fused multiply-adds that nothing but the FMA units limits;
// returns flops. AVX-512 has more lanes, so more flops a round. *sink gets what was computed.
uint64_t reader_fma(enum reader_isa isa, uint64_t rounds, float *sink);

#endif
