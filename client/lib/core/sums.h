// SPDX-License-Identifier: Apache-2.0
// What a session's handle has attached and not committed: the sums of its rows (proto/sums/rows_sum.h), taken
// of the caller's buffers. A commit says them, and the workers' must be the same. Any thread.
#ifndef CLIENT_SUMS_H
#define CLIENT_SUMS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define CLIENT_SUMS_MAX                                                                                      \
    65536u // stretches of a layer; of more, nothing is kept and their chunks are not compared

struct client_sum {
    uint64_t first, count, sum;
};

struct client_sums_layer {
    struct client_sum *at; // ascending, apart
    uint32_t n, room;
};

struct client_sums {
    pthread_mutex_t lock;
    struct client_sums_layer *layers; // NULL: nothing yet
    uint32_t n_layers;
};

void client_sums_init(struct client_sums *sums, uint32_t layers);
void client_sums_fini(struct client_sums *sums);

// Forgets every stretch that has a row of the range.
void client_sums_forget(struct client_sums *sums, uint32_t layer, uint64_t first, uint64_t count);
// The same for all layers, from a position on.
void client_sums_truncate(struct client_sums *sums, uint64_t length);
// Keeps a stretch, in the place of what overlaps it. Without memory it is not kept.
void client_sums_keep(struct client_sums *sums, uint32_t layer, struct client_sum sum);

// The sum of exactly this range. False: stretches that are kept do not make it up.
bool client_sums_of(struct client_sums *sums, uint32_t layer, uint64_t first, uint64_t count, uint64_t *out);

#endif
