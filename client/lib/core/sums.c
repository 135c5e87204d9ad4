// SPDX-License-Identifier: Apache-2.0
#include "client/lib/core/sums.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

void client_sums_init(struct client_sums *sums, uint32_t layers)
{
    *sums = (struct client_sums){.n_layers = layers};
    pthread_mutex_init(&sums->lock, NULL);
}

void client_sums_fini(struct client_sums *sums)
{
    for (uint32_t i = 0; sums->layers && i < sums->n_layers; i++)
        free(sums->layers[i].at);
    free(sums->layers);
    pthread_mutex_destroy(&sums->lock);
}

// Index of the first stretch that ends behind `position`.
static uint32_t bound(const struct client_sums_layer *layer, uint64_t position)
{
    uint32_t lo = 0, hi = layer->n;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (layer->at[mid].first + layer->at[mid].count <= position)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void cut_out(struct client_sums_layer *layer, uint64_t first, uint64_t end)
{
    uint32_t from = bound(layer, first), to = from;
    while (to < layer->n && layer->at[to].first < end)
        to++;
    memmove(layer->at + from, layer->at + to, (layer->n - to) * sizeof *layer->at);
    layer->n -= to - from;
    if (layer->n == 0) {
        free(layer->at);
        *layer = (struct client_sums_layer){0};
    }
}

void client_sums_forget(struct client_sums *sums, uint32_t layer, uint64_t first, uint64_t count)
{
    pthread_mutex_lock(&sums->lock);
    if (sums->layers && sums->layers[layer].n)
        cut_out(&sums->layers[layer], first, first + count);
    pthread_mutex_unlock(&sums->lock);
}

void client_sums_truncate(struct client_sums *sums, uint64_t length)
{
    pthread_mutex_lock(&sums->lock);
    for (uint32_t i = 0; sums->layers && i < sums->n_layers; i++)
        if (sums->layers[i].n)
            cut_out(&sums->layers[i], length, UINT64_MAX);
    pthread_mutex_unlock(&sums->lock);
}

static bool make_room(struct client_sums_layer *layer)
{
    if (layer->n < layer->room)
        return true;
    if (layer->n == CLIENT_SUMS_MAX)
        return false;
    uint32_t room = layer->room ? 2 * layer->room : 8;
    struct client_sum *at = realloc(layer->at, room * sizeof *at);
    if (!at)
        return false;
    layer->at = at;
    layer->room = room;
    return true;
}

void client_sums_keep(struct client_sums *sums, uint32_t layer, struct client_sum sum)
{
    pthread_mutex_lock(&sums->lock);
    if (!sums->layers)
        sums->layers = calloc(sums->n_layers, sizeof *sums->layers);
    struct client_sums_layer *l = sums->layers ? &sums->layers[layer] : NULL;
    if (l && l->n)
        cut_out(l, sum.first, sum.first + sum.count);
    if (l && make_room(l)) {
        uint32_t at = l->n ? bound(l, sum.first) : 0;
        memmove(l->at + at + 1, l->at + at, (l->n - at) * sizeof *l->at);
        l->at[at] = sum;
        l->n++;
    }
    pthread_mutex_unlock(&sums->lock);
}

bool client_sums_of(struct client_sums *sums, uint32_t layer, uint64_t first, uint64_t count, uint64_t *out)
{
    uint64_t sum = 0, at = first, end = first + count;
    pthread_mutex_lock(&sums->lock);
    const struct client_sums_layer *l = sums->layers ? &sums->layers[layer] : NULL;
    for (uint32_t i = l && l->n ? bound(l, first) : 0; l && i < l->n && at < end && l->at[i].first == at;
         i++) {
        sum += l->at[i].sum;
        at += l->at[i].count;
    }
    pthread_mutex_unlock(&sums->lock);
    if (at != end)
        return false;
    *out = sum;
    return true;
}
