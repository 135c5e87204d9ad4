// SPDX-License-Identifier: Apache-2.0
// What a full chunk takes of a worker's memory: its K and V, and the worker's tables beside them. The
// coordinator places by it, so that a worker is not promised more than it has; what it has taken a worker
// counts itself (worker/store/store.h).
//
//     worker's memory:  | slack | chunk | chunk | chunk | ... | free, for less than one chunk |
//                                 K and V, padding, tables, its part of what a mapping's end leaves over
//
// Never too low for chunks that came whole (tests/worker/store_test.c). Pure, any thread.
#ifndef PROTO_FOOTPRINT_H
#define PROTO_FOOTPRINT_H

#include <stdint.h>

#include "proto/banyan.pb-c.h"

// Of a spec that proto_spec_check has let through, with its chunk_tokens.
uint64_t proto_footprint_chunk(const Banyan__Pb__Spec *spec);

// What must stay free of a worker's capacity beside all its chunks: the last extent, which may be used in
// part only.
uint64_t proto_footprint_slack(uint64_t capacity_bytes);

#endif
