// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prefix/index.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/random.h"
#include "common/hash/hash.h"
#include "coordinator/core.h"

#define BUCKETS_LEAST 64u

static struct coordinator_kept *kept_of(struct common_list *used)
{
    return common_list_entry(used, struct coordinator_kept, used);
}

// ---- buckets ------------------------------------------------------------------------------------

static uint32_t power_below(uint32_t n) // the highest one that is not above n
{
    return UINT32_C(1) << (31 - __builtin_clz(n));
}

// Buckets [0, n_buckets): those that the round has not split yet are found by one bit less.
static uint32_t bucket_of(const struct coordinator_prefix_index *index, const uint8_t *hash, uint64_t scope,
                          uint32_t chunk)
{
    uint64_t mixed = common_xxh3(hash, PROTO_PREFIX_HASH, index->seed ^ (scope + chunk));
    uint32_t power = power_below(index->n_buckets), at = (uint32_t)(mixed & (2 * (uint64_t)power - 1));
    return at < index->n_buckets ? at : at & (power - 1);
}

static struct coordinator_prefix_entry **bucket_with(const struct coordinator_prefix_index *index,
                                                     const struct coordinator_prefix_entry *entry)
{
    uint32_t chunk = (uint32_t)(entry - entry->kept->entries);
    return &index->buckets[bucket_of(index, entry->hash, entry->kept->scope, chunk)];
}

static void put(struct coordinator_prefix_index *index, struct coordinator_prefix_entry *entry)
{
    struct coordinator_prefix_entry **bucket = bucket_with(index, entry);
    entry->next = *bucket;
    entry->before = NULL;
    if (entry->next)
        entry->next->before = entry;
    *bucket = entry;
}

// One bucket more: what stood in its other half is divided between the two. Without memory it stays as it is.
static void grow(struct coordinator_prefix_index *index)
{
    if (index->n_buckets == UINT32_MAX / 4)
        return;
    if (index->n_buckets == index->capacity) {
        void *more = realloc(index->buckets, 2 * (size_t)index->capacity * sizeof(*index->buckets));
        if (!more)
            return;
        index->buckets = more;
        index->capacity *= 2;
    }
    struct coordinator_prefix_entry **split =
                                        &index->buckets[index->n_buckets - power_below(index->n_buckets)],
                                    *entry = *split;
    index->buckets[index->n_buckets++] = NULL;
    *split = NULL;
    while (entry) {
        struct coordinator_prefix_entry *next = entry->next;
        put(index, entry);
        entry = next;
    }
}

bool coordinator_prefix_index_init(struct coordinator_prefix_index *index)
{
    *index = (struct coordinator_prefix_index){.n_buckets = BUCKETS_LEAST, .capacity = BUCKETS_LEAST};
    common_list_init(&index->used);
    index->buckets = calloc(BUCKETS_LEAST, sizeof(*index->buckets));
    return index->buckets != NULL;
}

void coordinator_prefix_index_fini(struct coordinator_prefix_index *index)
{
    while (index->buckets && !common_list_empty(&index->used)) {
        struct coordinator_kept *kept = kept_of(index->used.next);
        common_list_remove(&kept->used);
        free(kept);
    }
    free(index->buckets);
    index->buckets = NULL;
}

// ---- what is kept -------------------------------------------------------------------------------

struct coordinator_kept *coordinator_kept_new(const void *hashes, uint32_t n, uint64_t scope)
{
    struct coordinator_kept *kept = coordinator_alloc(sizeof(*kept) + n * sizeof(*kept->entries));
    common_list_init(&kept->used);
    kept->scope = scope;
    kept->n = n;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(kept->entries[i].hash, (const uint8_t *)hashes + (size_t)i * PROTO_PREFIX_HASH,
               PROTO_PREFIX_HASH);
        kept->entries[i].kept = kept;
    }
    return kept;
}

void coordinator_kept_free(struct coordinator_kept *kept)
{
    free(kept);
}

void coordinator_prefix_enter(struct coordinator_prefix_index *index, struct coordinator_kept *kept)
{
    if (!index->n_entries && !common_random(&index->seed, sizeof(index->seed)))
        index->seed ^= common_mix64(kept->scope); // it was drawn before, or nobody has tried to guess it yet
    for (uint32_t i = 0; i < kept->n; i++) {
        if (index->n_entries++ >= index->n_buckets)
            grow(index);
        put(index, &kept->entries[i]);
    }
    common_list_push(&index->used, &kept->used);
    kept->entered = true;
    index->bytes += kept->bytes;
    index->n++;
}

void coordinator_prefix_leave(struct coordinator_prefix_index *index, struct coordinator_kept *kept)
{
    for (uint32_t i = 0; i < kept->n; i++) {
        struct coordinator_prefix_entry *entry = &kept->entries[i];
        if (entry->next)
            entry->next->before = entry->before;
        if (entry->before)
            entry->before->next = entry->next;
        else
            *bucket_with(index, entry) = entry->next;
    }
    index->n_entries -= kept->n;
    common_list_remove(&kept->used);
    kept->entered = false;
    index->bytes -= kept->bytes;
    index->n--;
}

void coordinator_prefix_touch(struct coordinator_prefix_index *index, struct coordinator_kept *kept,
                              uint64_t now_ns)
{
    kept->used_ns = now_ns;
    common_list_remove(&kept->used);
    common_list_push(&index->used, &kept->used);
}

struct coordinator_kept *coordinator_prefix_match(
    const struct coordinator_prefix_index *index, uint64_t scope, const void *hashes, uint32_t n,
    bool (*may)(void *arg, const struct coordinator_kept *kept, uint32_t chunks), void *arg, uint32_t *chunks)
{
    for (uint32_t left = index->n ? n : 0; left > 0; left--) {
        const uint8_t *hash = (const uint8_t *)hashes + (size_t)(left - 1) * PROTO_PREFIX_HASH;
        for (struct coordinator_prefix_entry *entry = index->buckets[bucket_of(index, hash, scope, left - 1)];
             entry; entry = entry->next) {
            struct coordinator_kept *kept = entry->kept;
            // The same hash at another chunk is none of the chain that the caller says it is.
            if (kept->scope != scope || kept->leaving || entry - kept->entries != (ptrdiff_t)left - 1 ||
                memcmp(entry->hash, hash, PROTO_PREFIX_HASH) != 0 || (may && !may(arg, kept, left)))
                continue;
            *chunks = left;
            return kept;
        }
    }
    return NULL;
}

struct coordinator_kept *coordinator_prefix_oldest(const struct coordinator_prefix_index *index,
                                                   bool (*may)(void *arg, const struct coordinator_kept *kept,
                                                               uint32_t chunks),
                                                   void *arg)
{
    for (struct common_list *at = index->used.next; at != &index->used; at = at->next) {
        struct coordinator_kept *kept = kept_of(at);
        if (!kept->pinned && !kept->leaving && (!may || may(arg, kept, 0)))
            return kept;
    }
    return NULL;
}

uint64_t coordinator_prefix_index_bytes(const struct coordinator_prefix_index *index)
{
    return index->capacity * sizeof(*index->buckets) + index->n * sizeof(struct coordinator_kept) +
           index->n_entries * sizeof(struct coordinator_prefix_entry);
}
