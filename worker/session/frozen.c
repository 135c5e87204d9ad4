// SPDX-License-Identifier: Apache-2.0
#include "worker/session/frozen.h"

#include <stdlib.h>

#include "common/hash/hash.h"
#include "worker/store/store.h"

// A treap: a search tree by (layer, first, commit, count) and a heap by `weight`, which is a hash of these; so its shape is that of
// chance, and the same for the same entries.
struct worker_frozen_node {
    uint32_t left, right; // indices + 1; 0: none
    uint32_t reach_layer; // the largest (layer, end) below it and of its own: end of rows that are frozen
    uint64_t weight, reach;
};

static struct worker_frozen_node *node(const struct worker_frozen *frozen, uint32_t at)
{
    return &frozen->nodes[at - 1];
}

static struct worker_freeze *entry(struct worker_frozen *frozen, uint32_t at)
{
    frozen->looked++;
    return &frozen->entries[at - 1];
}

static int order(const struct worker_freeze *a, const struct worker_freeze *b)
{
    if (a->layer != b->layer)
        return a->layer < b->layer ? -1 : 1;
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    if (a->commit != b->commit)
        return a->commit < b->commit ? -1 : 1;
    return a->count < b->count ? -1 : a->count > b->count;
}

// ---- the tree -----------------------------------------------------------------------------------

static void reach_over(struct worker_frozen_node *to, uint32_t layer, uint64_t end)
{
    if (layer < to->reach_layer || (layer == to->reach_layer && end <= to->reach))
        return;
    to->reach_layer = layer;
    to->reach = end;
}

static void refresh(struct worker_frozen *frozen, uint32_t at)
{
    struct worker_frozen_node *self = node(frozen, at);
    const struct worker_freeze *own = entry(frozen, at);
    self->reach_layer = own->layer;
    self->reach = own->first + own->count;
    if (self->left)
        reach_over(self, node(frozen, self->left)->reach_layer, node(frozen, self->left)->reach);
    if (self->right)
        reach_over(self, node(frozen, self->right)->reach_layer, node(frozen, self->right)->reach);
}

// All of `low` is before all of `high`.
static uint32_t merge(struct worker_frozen *frozen, uint32_t low, uint32_t high)
{
    if (!low || !high)
        return low ? low : high;
    bool lower = node(frozen, low)->weight > node(frozen, high)->weight;
    uint32_t top = lower ? low : high;
    if (lower)
        node(frozen, low)->right = merge(frozen, node(frozen, low)->right, high);
    else
        node(frozen, high)->left = merge(frozen, low, node(frozen, high)->left);
    refresh(frozen, top);
    return top;
}

// What of the tree is before this entry, and what is after it.
static void split(struct worker_frozen *frozen, uint32_t at, const struct worker_freeze *freeze,
                  uint32_t *low, uint32_t *high)
{
    if (!at) {
        *low = *high = 0;
        return;
    }
    struct worker_frozen_node *self = node(frozen, at);
    if (order(entry(frozen, at), freeze) < 0) {
        *low = at;
        split(frozen, self->right, freeze, &self->right, high);
    } else {
        *high = at;
        split(frozen, self->left, freeze, low, &self->left);
    }
    refresh(frozen, at);
}

// The tree without this entry, which is in it.
static uint32_t without(struct worker_frozen *frozen, uint32_t at, const struct worker_freeze *freeze)
{
    struct worker_frozen_node *self = node(frozen, at);
    int where = order(freeze, entry(frozen, at));
    if (where == 0)
        return merge(frozen, self->left, self->right);
    if (where < 0)
        self->left = without(frozen, self->left, freeze);
    else
        self->right = without(frozen, self->right, freeze);
    refresh(frozen, at);
    return at;
}

static uint32_t find(struct worker_frozen *frozen, const struct worker_freeze *freeze) // 0: there is none
{
    uint32_t at = frozen->root;
    int where = 1;
    while (at && (where = order(freeze, entry(frozen, at))) != 0)
        at = where < 0 ? node(frozen, at)->left : node(frozen, at)->right;
    return at;
}

// How far what starts at or before the position is frozen; 0: nothing of the layer starts there.
static uint64_t reach_from(struct worker_frozen *frozen, uint32_t layer, uint64_t position)
{
    struct worker_frozen_node best = {0};
    for (uint32_t at = frozen->root; at;) {
        const struct worker_freeze *own = entry(frozen, at);
        const struct worker_frozen_node *self = node(frozen, at);
        if (own->layer > layer || (own->layer == layer && own->first > position)) {
            at = self->left;
            continue;
        }
        reach_over(&best, own->layer, own->first + own->count);
        if (self->left)
            reach_over(&best, node(frozen, self->left)->reach_layer, node(frozen, self->left)->reach);
        at = self->right;
    }
    return best.reach_layer == layer ? best.reach : 0;
}

// Where the next one of the layer starts after the position; `end`: none does before that.
static uint64_t next_start(struct worker_frozen *frozen, uint32_t layer, uint64_t position, uint64_t end)
{
    uint64_t start = end;
    for (uint32_t at = frozen->root; at;) {
        const struct worker_freeze *own = entry(frozen, at);
        bool after = own->layer > layer || (own->layer == layer && own->first > position);
        if (after && own->layer == layer && own->first < start)
            start = own->first;
        at = after ? node(frozen, at)->left : node(frozen, at)->right;
    }
    return start;
}

// ---- entries ------------------------------------------------------------------------------------

bool worker_frozen_has(struct worker_frozen *frozen, const struct worker_freeze *freeze)
{
    return find(frozen, freeze) != 0;
}

bool worker_frozen_covers(struct worker_frozen *frozen, uint32_t layer, uint64_t position)
{
    return reach_from(frozen, layer, position) > position;
}

static bool make_room(struct worker_frozen *frozen, struct worker_store *store)
{
    if (frozen->n < frozen->cap)
        return true;
    uint32_t cap = frozen->cap ? 2 * frozen->cap : 4;
    uint64_t bytes = (cap - frozen->cap) * (sizeof *frozen->entries + sizeof *frozen->nodes);
    if (!worker_store_take(store, bytes))
        return false;
    void *more = realloc(frozen->entries, cap * sizeof *frozen->entries);
    if (more) { // if the next one fails, this one has more than it needs
        frozen->entries = more;
        more = realloc(frozen->nodes, cap * sizeof *frozen->nodes);
    }
    if (!more) {
        worker_store_give(store, bytes);
        return false;
    }
    frozen->nodes = more;
    frozen->cap = cap;
    return true;
}

bool worker_frozen_add(struct worker_frozen *frozen, struct worker_store *store,
                       const struct worker_freeze *freeze)
{
    uint32_t low, high, known = find(frozen, freeze);
    if (known) {
        entry(frozen, known)->holes = freeze->holes;
        return true;
    }
    if (frozen->n == WORKER_FROZEN_MAX || !make_room(frozen, store))
        return false;
    uint32_t at = ++frozen->n;
    *entry(frozen, at) = *freeze;
    uint64_t place = common_mix64(freeze->first ^ common_mix64(freeze->layer));
    *node(frozen, at) = (struct worker_frozen_node){
        .weight = common_mix64(place ^ common_mix64(freeze->commit ^ common_mix64(freeze->count)))};
    refresh(frozen, at);
    split(frozen, frozen->root, freeze, &low, &high);
    frozen->root = merge(frozen, merge(frozen, low, at), high);
    return true;
}

// Takes the entry out of the tree and the list, in which the last one comes to its place.
static void take_out(struct worker_frozen *frozen, uint32_t at)
{
    const struct worker_freeze gone = *entry(frozen, at);
    frozen->root = without(frozen, frozen->root, &gone);
    uint32_t last = frozen->n--, *link = &frozen->root;
    if (last == at)
        return;
    const struct worker_freeze moved = *entry(frozen, last);
    while (*link != last)
        link = order(&moved, entry(frozen, *link)) < 0 ? &node(frozen, *link)->left
                                                       : &node(frozen, *link)->right;
    *link = at;
    frozen->entries[at - 1] = moved;
    *node(frozen, at) = *node(frozen, last);
}

static void frozen_remove(struct worker_frozen *frozen, struct worker_store *store, uint32_t at,
                          worker_thaw_fn thaw, void *arg)
{
    const struct worker_freeze gone = *entry(frozen, at);
    uint64_t end = gone.first + gone.count;
    take_out(frozen, at);
    for (uint64_t from = gone.first; from < end;) {
        uint64_t held = reach_from(frozen, gone.layer, from);
        if (held <= from) {
            held = next_start(frozen, gone.layer, from, end);
            thaw(arg, gone.layer, from, held - from);
        }
        from = held;
    }
    if (frozen->n == 0)
        worker_frozen_clear(frozen, store);
}

void worker_frozen_drop(struct worker_frozen *frozen, struct worker_store *store,
                        const struct worker_freeze *freeze, worker_thaw_fn thaw, void *arg)
{
    uint32_t at = find(frozen, freeze);
    if (at)
        frozen_remove(frozen, store, at, thaw, arg);
}

void worker_frozen_settle(struct worker_frozen *frozen, struct worker_store *store, uint64_t before,
                          worker_thaw_fn thaw, void *arg)
{
    for (uint32_t at = frozen->n; at > 0; at--) // what comes to an entry's place has been looked at
        if (entry(frozen, at)->commit < before)
            frozen_remove(frozen, store, at, thaw, arg);
}

void worker_frozen_clear(struct worker_frozen *frozen, struct worker_store *store)
{
    worker_store_give(store, frozen->cap * (sizeof *frozen->entries + sizeof *frozen->nodes));
    free(frozen->entries);
    free(frozen->nodes);
    *frozen = (struct worker_frozen){.looked = frozen->looked};
}
