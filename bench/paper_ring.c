// SPDX-License-Identifier: Apache-2.0
// Ring Attention decoding: shards pass round the ring, and the root attends each block while the next one is
// in flight. Two forms:
//
//     ring        as published: every rank passes on p - 1 blocks. Two buffers: the block that is attended
//     and
//                 sent, and the one that comes. A step leaves every block one rank further back, where the
//                 next step finds it, so nothing is sent back home.
//     ring-lean   a block stops once the root has seen it, half the bytes; shards stay at home, which takes a
//                 third buffer. No rank passes on more, and the busiest link carries as much.
//
// Only the root attends: it alone needs o. In the published code all ranks hold q and compute the same; here,
// where ranks share cores, that would slow the ring for nothing.
#include "bench/paper_algo.h"

#include <string.h>

#include "common/clock.h"

#define TAG_BLOCK    10
#define FLOOR_PASSES 2u

static size_t block_bytes(const struct paper_step *step, uint32_t shard)
{
    return paper_shard_bytes(step->g, step->tokens[shard]);
}

// The shard that rank r holds after `steps` passes from `held` at rank 0.
static uint32_t shard_at(uint32_t held, uint32_t rank, uint32_t passes, uint32_t size)
{
    return (held + rank + size - passes % size) % size;
}

// Attends a block on the root, looking after what is in flight between two tasks, and merges it.
static void attend_block(struct paper_step *step, const void *kv, uint32_t shard, bool first,
                         MPI_Request *flying, int n)
{
    const struct paper_geometry *g = step->g;
    float *at = first ? step->partial : step->inbox;
    struct kernels_partial all = {1,
                                  g->q_heads,
                                  g->dim,
                                  step->partial,
                                  step->partial + g->q_heads,
                                  step->partial + 2 * (size_t)g->q_heads};
    struct kernels_partial block = {1, g->q_heads, g->dim, at, at + g->q_heads, at + 2 * (size_t)g->q_heads};
    paper_compute_begin(&step->compute, kv, step->first[shard], step->tokens[shard], step->total, step->q);
    while (paper_compute_step(&step->compute)) {
        if (n > 0)
            paper_test(flying, n);
    }
    paper_compute_finish(&step->compute, &block);
    if (!first)
        kernels_partial_merge(&all, &block);
}

static void finish(struct paper_step *step)
{
    uint32_t heads = step->g->q_heads;
    struct kernels_partial all = {
        1, heads, step->g->dim, step->partial, step->partial + heads, step->partial + 2 * (size_t)heads};
    if (step->world->rank == 0 && step->compute_blocks)
        kernels_partial_finish(&all, NULL, step->o, step->lse);
}

// ---- as published ---------------------------------------------------------------------------------------

static bool ring_init(struct paper_step *step)
{
    size_t bytes = paper_shard_bytes(step->g, step->most_tokens), own = block_bytes(step, step->world->rank);
    step->buffer[0] = paper_kv_alloc(bytes);
    if (!step->buffer[0])
        return false;
    memcpy(step->buffer[0], step->kv, own);
    paper_kv_free(step->kv, own);
    step->kv = NULL;
    step->buffer[1] = paper_kv_alloc(bytes);
    step->holds = 0;
    step->compute_blocks = true;
    return step->buffer[1];
}

static void ring_run_passes(struct paper_step *step, uint32_t passes)
{
    struct paper_world *world = step->world;
    uint32_t p = world->size, next = (world->rank + 1) % p, before = (world->rank + p - 1) % p;
    for (uint32_t s = 0; s <= passes; s++) {
        uint32_t shard = shard_at(step->holds, world->rank, s, p);
        MPI_Request flying[2];
        int n = 0;
        if (s < passes) {
            uint32_t coming = shard_at(step->holds, world->rank, s + 1, p);
            paper_irecv(world, step->buffer[1], block_bytes(step, coming), before, TAG_BLOCK, &flying[n++]);
            paper_isend(world, step->buffer[0], block_bytes(step, shard), next, TAG_BLOCK, &flying[n++]);
        }
        if (world->rank == 0 && step->compute_blocks)
            attend_block(step, step->buffer[0], shard, s == 0, flying, n);
        if (n > 0) {
            paper_wait_bulk(flying, n);
            void *swap = step->buffer[0];
            step->buffer[0] = step->buffer[1];
            step->buffer[1] = swap;
        }
    }
    step->holds = shard_at(step->holds, 0, passes, p);
}

static void ring_run(struct paper_step *step)
{
    ring_run_passes(step, step->world->size - 1);
    finish(step);
}

static void ring_fini(struct paper_step *step)
{
    size_t bytes = paper_shard_bytes(step->g, step->most_tokens);
    uint32_t rank = step->world->rank;
    paper_kv_free(step->buffer[0], bytes);
    paper_kv_free(step->buffer[1], bytes);
    step->buffer[0] = step->buffer[1] = NULL;
    step->kv = paper_kv_alloc(block_bytes(step, rank));
    if (step->kv)
        paper_shard_fill(step->g, step->kv, step->first[rank], step->tokens[rank]);
}

// ---- lean -----------------------------------------------------------------------------------------------

static bool lean_init(struct paper_step *step)
{
    size_t bytes = paper_shard_bytes(step->g, step->most_tokens);
    step->buffer[0] = paper_kv_alloc(bytes);
    step->buffer[1] = paper_kv_alloc(bytes);
    step->compute_blocks = true;
    return step->buffer[0] && step->buffer[1];
}

// Before pass s rank r holds the block of rank r - s; the root, at the ring's end, that of p - s. Rank r > 0
// sends in passes 0 .. r - 1.
static void lean_run_passes(struct paper_step *step, uint32_t passes)
{
    struct paper_world *world = step->world;
    uint32_t p = world->size, r = world->rank, next = (r + 1) % p, before = (r + p - 1) % p;
    const void *held = step->kv;
    for (uint32_t s = 0; s <= passes; s++) {
        uint32_t shard = (r + p - s % p) % p;
        bool sends = s < passes && r > 0 && s < r;
        bool receives = s < passes && (r == 0 || s + 1 < r);
        void *into = step->buffer[s % 2];
        MPI_Request flying[2];
        int n = 0;
        if (receives)
            paper_irecv(world, into, block_bytes(step, (shard + p - 1) % p), before, TAG_BLOCK, &flying[n++]);
        if (sends)
            paper_isend(world, held, block_bytes(step, shard), next, TAG_BLOCK, &flying[n++]);
        if (r == 0 && step->compute_blocks)
            attend_block(step, held, shard, s == 0, flying, n);
        if (n > 0)
            paper_wait_bulk(flying, n);
        if (receives)
            held = into;
    }
}

static void lean_run(struct paper_step *step)
{
    lean_run_passes(step, step->world->size - 1);
    finish(step);
}

static void lean_fini(struct paper_step *step)
{
    size_t bytes = paper_shard_bytes(step->g, step->most_tokens);
    paper_kv_free(step->buffer[0], bytes);
    paper_kv_free(step->buffer[1], bytes);
    step->buffer[0] = step->buffer[1] = NULL;
}

// ---- floors ---------------------------------------------------------------------------------------------

static double slowest(struct paper_world *world, uint64_t since)
{
    double us = (double)(common_clock_ns() - since) / 1e3, all;
    MPI_Allreduce(&us, &all, 1, MPI_DOUBLE, MPI_MAX, world->comm);
    return all;
}

void paper_ring_floor(struct paper_step *step, bool lean, struct paper_floor *out)
{
    struct paper_world *world = step->world;
    uint32_t p = world->size, passes = p - 1 < FLOOR_PASSES ? p - 1 : FLOOR_PASSES;
    size_t bytes = paper_shard_bytes(step->g, step->most_tokens);
    double scale = passes ? (double)(p - 1) / passes : 0;

    paper_barrier(world);
    uint64_t start = common_clock_ns();
    for (uint32_t s = 0; world->rank == 0 && s < p; s++)
        attend_block(step, lean ? step->kv : step->buffer[0], lean ? 0 : step->holds, s == 0, NULL, 0);
    out->compute_us = (double)(common_clock_ns() - start) / 1e3;

    step->compute_blocks = false;
    paper_barrier(world);
    start = common_clock_ns();
    // The lean form idles its first ranks later on, but its first passes use all links alike.
    if (lean)
        lean_run_passes(step, p - 1);
    else
        ring_run_passes(step, passes);
    out->library_us = slowest(world, start) * (lean ? 1 : scale);
    step->compute_blocks = true;

    paper_barrier(world);
    double pass = paper_socket_ring(world, step->buffer[0], step->buffer[1], bytes, passes);
    out->socket_us = pass < 0 ? -1 : pass * (p - 1);
}

const struct paper_algo paper_ring = {
    .name = "ring", .form = PAPER_FORM_RING, .init = ring_init, .run = ring_run, .fini = ring_fini};
const struct paper_algo paper_ring_lean = {
    .name = "ring-lean", .form = PAPER_FORM_RING_LEAN, .init = lean_init, .run = lean_run, .fini = lean_fini};
