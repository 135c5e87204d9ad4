// SPDX-License-Identifier: Apache-2.0
// Which kept session has the longest prefix of a text: hashes of a chain, one a chunk, in one table. Pure.
//
//   kept session A:  h0 ─▶ h1 ─▶ h2 ─▶ h3      a hash stands for all tokens up to the end of its chunk,
//   kept session B:  h0 ─▶ h1 ─▶ x2            so a text matches as far as the last hash that both have
//   a text:          h0 ─▶ h1 ─▶ h2 ─▶ y3      longest match: A, 3 chunks
//
// A chunk costs an entry (40 bytes) and its part of the buckets (8 to 16 bytes). The table grows by a bucket
// at a time (linear hashing, Litwin 1980). Sessions that have a prefix in common stand in one bucket each
// time, so the search is for the longest match first and ends with it, and entries are taken out without a
// search.
#ifndef COORDINATOR_PREFIX_INDEX_H
#define COORDINATOR_PREFIX_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/list.h"
#include "proto/model/limits.h"

struct coordinator_kept;
struct coordinator_session;

struct coordinator_prefix_entry {
    uint8_t hash[PROTO_PREFIX_HASH];
    struct coordinator_prefix_entry *next, *before; // in its bucket
    struct coordinator_kept *kept;
};

// What is kept of a session. Its place in the order of use is the caller's list.
struct coordinator_kept {
    struct common_list used; // in the index's list, the one that was used last at its end
    struct coordinator_session *session;
    uint64_t scope; // of whom and what: hashes of another scope never match
    uint64_t used_ns, ttl_ns, hits;
    uint64_t bytes; // that it is charged with
    bool pinned;
    bool entered;                              // found by its hashes
    bool leaving;                              // being deleted: not found, and not chosen again
    uint32_t n;                                // chunks
    struct coordinator_prefix_entry entries[]; // [n]
};

struct coordinator_prefix_index {
    struct coordinator_prefix_entry **buckets; // [capacity], of which n_buckets are in use
    uint32_t n_buckets, capacity;
    uint64_t seed;           // so that no caller can choose hashes of one bucket
    struct common_list used; // those that are entered, by their last use
    uint64_t n_entries, bytes;
    uint32_t n;
};

// False: no memory.
bool coordinator_prefix_index_init(struct coordinator_prefix_index *index);
void coordinator_prefix_index_fini(struct coordinator_prefix_index *index); // frees those that are entered

// Not entered yet. hashes: n of PROTO_PREFIX_HASH bytes, behind each other; n is 1 or more.
struct coordinator_kept *coordinator_kept_new(const void *hashes, uint32_t n, uint64_t scope);
void coordinator_kept_free(struct coordinator_kept *kept); // one that is not entered

// Found from now on, as the one that was used last.
void coordinator_prefix_enter(struct coordinator_prefix_index *index, struct coordinator_kept *kept);
void coordinator_prefix_leave(struct coordinator_prefix_index *index, struct coordinator_kept *kept);
void coordinator_prefix_touch(struct coordinator_prefix_index *index, struct coordinator_kept *kept,
                              uint64_t now_ns);

// The kept session with the most leading chunks of these n, at least one, for which may(arg, kept, chunks) is
// true; NULL: none. *chunks: how many. may: NULL for any.
struct coordinator_kept *coordinator_prefix_match(const struct coordinator_prefix_index *index,
                                                  uint64_t scope, const void *hashes, uint32_t n,
                                                  bool (*may)(void *arg, const struct coordinator_kept *kept,
                                                              uint32_t chunks),
                                                  void *arg, uint32_t *chunks);

// The one that was used longest ago and that may go: neither pinned nor leaving, and of this scope's owner:
// may as above, chunks 0.
struct coordinator_kept *coordinator_prefix_oldest(const struct coordinator_prefix_index *index,
                                                   bool (*may)(void *arg, const struct coordinator_kept *kept,
                                                               uint32_t chunks),
                                                   void *arg);

// Memory of the index itself.
uint64_t coordinator_prefix_index_bytes(const struct coordinator_prefix_index *index);

#endif
