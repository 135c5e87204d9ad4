// SPDX-License-Identifier: Apache-2.0
// Saved states that have names in the place of rows (BANYAN_KEEP).
//
// llama.cpp saves a sequence by reading its rows, and restores it by writing them. With BANYAN_KEEP a row
// that is read says where it is, in place of what it is: the session is forked under a name that is drawn at
// random, and stays in the cluster for that long after its last use, whatever becomes of this process. When
// such rows are written, that session is forked again: not one row is moved, and they are in their positions,
// whatever the order of cells.
//
//     bytes of a row   0 magic   8 the name's 16 bytes   24 position, ordered << 63   32 sum of 0 to 31   0 …
#ifndef BANYAN_LLAMA_CACHE_KEPT_H
#define BANYAN_LLAMA_CACHE_KEPT_H

#include "client/llama/cache.h"

enum { CACHE_KEPT_ROW = 40 }; // a row of fewer bytes has no room for it: such states have rows

struct cache_kept {
    unsigned char id[16];
    uint64_t position;
    bool ordered;
};

// Whether states are to have names: BANYAN_KEEP, and rows of all layers have room. The caller has locked.
bool cache_kept_wanted(const struct cache *cache);
// Forks the stream's session as it is, unless the last fork is the same. false: cache->why. The caller has
// locked.
bool cache_kept_make(struct cache *cache, uint32_t stream);
void cache_kept_write(const struct cache_kept *row, void *out, size_t row_bytes);
// false: it is a row.
bool cache_kept_read(const void *row, size_t row_bytes, struct cache_kept *out);
// The stream's session becomes a fork of the one that is kept. false: cache->why. The caller has locked.
bool cache_kept_open(struct cache *cache, uint32_t stream, const struct cache_kept *row);

#endif
