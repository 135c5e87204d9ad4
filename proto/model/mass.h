// SPDX-License-Identifier: Apache-2.0
// Limits of attention masses (docs/concepts/energy.md), which coordinator and workers check alike. What a
// client asks for is refused before anything is allocated.
#ifndef PROTO_MASS_H
#define PROTO_MASS_H

#include <stdint.h>

#include "proto/model/limits.h"

#define PROTO_MASS_BINS_MAX    4096u          // stretches of a context
#define PROTO_MASS_VALUES_MAX  (1024u * 1024) // rows × query heads × bins of one item; and of its answer
#define PROTO_MASS_CALL_MAX    (8u * 1024 * 1024) // values of all answers of one call: 32 MiB
#define PROTO_WATCH_BINS_MAX   1024u
#define PROTO_WATCH_VALUES_MAX 65536u // (1 or query heads) × bins of a watched step

// Chunks a bin, so that `chunks` of them make at most `bins` bins (both > 0), and how many bins that makes.
static inline uint64_t proto_mass_bin_chunks(uint64_t chunks, uint32_t bins)
{
    return (chunks + bins - 1) / bins;
}
static inline uint32_t proto_mass_bins(uint64_t chunks, uint64_t bin_chunks)
{
    return (uint32_t)((chunks + bin_chunks - 1) / bin_chunks);
}

#endif
