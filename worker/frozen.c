// SPDX-License-Identifier: Apache-2.0
#include "worker/frozen.h"

#include <stdlib.h>
#include <string.h>

#include "worker/store.h"

static bool freeze_before(const struct worker_freeze *a, uint32_t layer, uint64_t first)
{
    return a->layer != layer ? a->layer < layer : a->first < first;
}

// Index of the first entry that is not before (layer, first).
static uint32_t frozen_bound(const struct worker_frozen *frozen, uint32_t layer, uint64_t first)
{
    uint32_t lo = 0, hi = frozen->n;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (freeze_before(&frozen->entries[mid], layer, first))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

// Index of this very entry; n: there is none.
static uint32_t frozen_find(const struct worker_frozen *frozen, const struct worker_freeze *freeze)
{
    for (uint32_t i = frozen_bound(frozen, freeze->layer, freeze->first); i < frozen->n; i++) {
        const struct worker_freeze *at = &frozen->entries[i];
        if (at->layer != freeze->layer || at->first != freeze->first)
            break;
        if (at->commit == freeze->commit && at->count == freeze->count)
            return i;
    }
    return frozen->n;
}

bool worker_frozen_has(const struct worker_frozen *frozen, const struct worker_freeze *freeze)
{
    return frozen_find(frozen, freeze) < frozen->n;
}

bool worker_frozen_add(struct worker_frozen *frozen, struct worker_store *store,
                       const struct worker_freeze *freeze)
{
    uint32_t known = frozen_find(frozen, freeze);
    if (known < frozen->n) {
        frozen->entries[known].holes = freeze->holes;
        return true;
    }
    if (frozen->n == WORKER_FROZEN_MAX)
        return false;
    if (frozen->n == frozen->cap) {
        uint32_t cap = frozen->cap ? 2 * frozen->cap : 4;
        uint64_t bytes = (cap - frozen->cap) * sizeof *frozen->entries;
        if (!worker_store_take(store, bytes))
            return false;
        struct worker_freeze *entries = realloc(frozen->entries, cap * sizeof *entries);
        if (!entries) {
            worker_store_give(store, bytes);
            return false;
        }
        frozen->entries = entries;
        frozen->cap = cap;
    }
    uint32_t at = frozen_bound(frozen, freeze->layer, freeze->first);
    memmove(&frozen->entries[at + 1], &frozen->entries[at], (frozen->n - at) * sizeof *frozen->entries);
    frozen->entries[at] = *freeze;
    frozen->n++;
    return true;
}

// Takes entry `at` out. The entries of its layer are in the order of their starts: one pass finds the gaps.
static void frozen_remove(struct worker_frozen *frozen, struct worker_store *store, uint32_t at,
                          worker_thaw_fn thaw, void *arg)
{
    struct worker_freeze gone = frozen->entries[at];
    frozen->n--;
    memmove(&frozen->entries[at], &frozen->entries[at + 1], (frozen->n - at) * sizeof *frozen->entries);
    uint64_t free_from = gone.first, end = gone.first + gone.count;
    for (uint32_t i = frozen_bound(frozen, gone.layer, 0); i < frozen->n && free_from < end; i++) {
        const struct worker_freeze *other = &frozen->entries[i];
        if (other->layer != gone.layer || other->first >= end)
            break;
        if (other->first > free_from)
            thaw(arg, gone.layer, free_from, other->first - free_from);
        if (other->first + other->count > free_from)
            free_from = other->first + other->count;
    }
    if (free_from < end)
        thaw(arg, gone.layer, free_from, end - free_from);
    if (frozen->n == 0)
        worker_frozen_clear(frozen, store);
}

void worker_frozen_drop(struct worker_frozen *frozen, struct worker_store *store,
                        const struct worker_freeze *freeze, worker_thaw_fn thaw, void *arg)
{
    uint32_t at = frozen_find(frozen, freeze);
    if (at < frozen->n)
        frozen_remove(frozen, store, at, thaw, arg);
}

void worker_frozen_settle(struct worker_frozen *frozen, struct worker_store *store, uint64_t before,
                          worker_thaw_fn thaw, void *arg)
{
    for (uint32_t i = frozen->n; i-- > 0;)
        if (frozen->entries[i].commit < before)
            frozen_remove(frozen, store, i, thaw, arg);
}

void worker_frozen_clear(struct worker_frozen *frozen, struct worker_store *store)
{
    worker_store_give(store, frozen->cap * sizeof *frozen->entries);
    free(frozen->entries);
    *frozen = (struct worker_frozen){0};
}
