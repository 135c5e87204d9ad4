// SPDX-License-Identifier: Apache-2.0
// Ring Attention decoding: shards pass round the ring, and the root attends each block while the next one is
// in flight. Two forms:
//
//     ring        as published: every rank passes on p - 1 blocks. Two buffers: the block that is attended
//                 and sent, and the one that comes. A step leaves every block one rank further back, where
//                 the next step finds it, so nothing is sent back home.
//     ring-lean   a block stops once the root has seen it, half the bytes; shards stay at home, which takes a
//                 third buffer. No rank passes on more, and the busiest link carries as much.
//
// Only the root attends: it alone needs o. In the published code all ranks hold q and compute the same; here,
// where ranks share cores, that would slow the ring for nothing.
//
// With a device, blocks pass by way of the host. A rank brings its block down once, at the beginning of a
// step; what came in goes out again from the host. The root takes each block up before it attends it, the
// others only the one that stays with them, so that the device has it when the next step begins. All of that
// while the next block is in flight.
#include "research/paper_algo.h"

#include "common/base/clock.h"

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

// What is in flight while a rank is busy otherwise.
struct flight {
    MPI_Request requests[2];
    int n;
};

static void look_after(struct flight *flight)
{
    if (flight->n > 0)
        paper_test(flight->requests, flight->n);
}

static void bring_up(struct paper_step *step, struct paper_block *block, uint32_t shard,
                     struct flight *flight)
{
    uint64_t at = 0;
    while (step->local->ops->up(step->local, block, block->host, step->tokens[shard], &at))
        look_after(flight);
}

static void bring_down(struct paper_step *step, struct paper_block *block, uint32_t shard)
{
    uint64_t at = 0;
    while (step->local->ops->down(step->local, block, step->tokens[shard], &at))
        ;
}

static struct kernels_partial view(struct paper_step *step, float *at)
{
    uint32_t heads = step->g->q_heads;
    return (struct kernels_partial){1, heads, step->g->dim, at, at + heads, at + 2 * (size_t)heads};
}

static void attend_begin(struct paper_step *step, const struct paper_block *block, uint32_t shard, bool first)
{
    struct kernels_partial out = view(step, first ? step->partial : step->inbox);
    step->local->ops->begin(step->local, block, step->first[shard], step->tokens[shard], step->total, step->q,
                            &out);
}

// Merges what began into the step's partial.
static void attend_end(struct paper_step *step, bool first, struct flight *flight)
{
    struct kernels_partial all = view(step, step->partial), block = view(step, step->inbox);
    while (step->local->ops->step(step->local))
        look_after(flight);
    if (!first)
        kernels_partial_merge(&all, &block);
}

static void finish(struct paper_step *step)
{
    struct kernels_partial all = view(step, step->partial);
    if (step->world->rank == 0 && step->compute_blocks)
        kernels_partial_finish(&all, NULL, step->o, step->lse);
}

// ---- as published ---------------------------------------------------------------------------------------

static bool ring_init(struct paper_step *step)
{
    size_t bytes = paper_shard_bytes(step->g, step->most_tokens);
    paper_block_free(step->local, &step->home);
    paper_step_place(step, &step->buffer[0], bytes, true);
    step->holds = 0;
    step->compute_blocks = true;
    return step->local->ops->block_init(step->local, &step->buffer[1], bytes, true);
}

static void ring_run_passes(struct paper_step *step, uint32_t passes)
{
    struct paper_world *world = step->world;
    uint32_t p = world->size, next = (world->rank + 1) % p, before = (world->rank + p - 1) % p;
    bool attends = world->rank == 0 && step->compute_blocks;
    for (uint32_t s = 0; s <= passes; s++) {
        uint32_t shard = shard_at(step->holds, world->rank, s, p);
        struct paper_block *held = &step->buffer[0], *coming = &step->buffer[1];
        struct flight flight = {.n = 0};
        if (attends && s == 0)
            attend_begin(step, held, shard, true);
        if (step->compute_blocks && s == 0 && passes > 0)
            bring_down(step, held, shard);
        if (s < passes) {
            uint32_t other = shard_at(step->holds, world->rank, s + 1, p);
            paper_irecv(world, coming->host, block_bytes(step, other), before, TAG_BLOCK,
                        &flight.requests[flight.n++]);
            paper_isend(world, held->host, block_bytes(step, shard), next, TAG_BLOCK,
                        &flight.requests[flight.n++]);
        }
        if (step->compute_blocks && s > 0 && (attends || s == passes))
            bring_up(step, held, shard, &flight);
        if (attends && s > 0)
            attend_begin(step, held, shard, false);
        if (attends)
            attend_end(step, s == 0, &flight);
        if (flight.n > 0) {
            paper_wait_bulk(flight.requests, flight.n);
            struct paper_block swap = *held;
            *held = *coming;
            *coming = swap;
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
    uint32_t rank = step->world->rank;
    paper_block_free(step->local, &step->buffer[0]);
    paper_block_free(step->local, &step->buffer[1]);
    paper_step_place(step, &step->home, block_bytes(step, rank), false);
}

// ---- lean -----------------------------------------------------------------------------------------------

static bool lean_init(struct paper_step *step)
{
    size_t bytes = paper_shard_bytes(step->g, step->most_tokens);
    paper_block_free(step->local, &step->home);
    paper_step_place(step, &step->home, block_bytes(step, step->world->rank), true);
    step->compute_blocks = true;
    return step->local->ops->block_init(step->local, &step->buffer[0], bytes, true) &&
           step->local->ops->block_init(step->local, &step->buffer[1], bytes, true);
}

// Before pass s rank r holds the block of rank r - s; the root, at the ring's end, that of p - s. Rank r > 0
// sends in passes 0 .. r - 1.
static void lean_run_passes(struct paper_step *step, uint32_t passes)
{
    struct paper_world *world = step->world;
    uint32_t p = world->size, r = world->rank, next = (r + 1) % p, before = (r + p - 1) % p;
    bool attends = r == 0 && step->compute_blocks;
    struct paper_block *held = &step->home;
    if (r > 0 && step->compute_blocks)
        bring_down(step, held, r);
    for (uint32_t s = 0; s <= passes; s++) {
        uint32_t shard = (r + p - s % p) % p;
        bool sends = s < passes && r > 0 && s < r;
        bool receives = s < passes && (r == 0 || s + 1 < r);
        struct paper_block *into = &step->buffer[s % 2];
        struct flight flight = {.n = 0};
        if (receives)
            paper_irecv(world, into->host, block_bytes(step, (shard + p - 1) % p), before, TAG_BLOCK,
                        &flight.requests[flight.n++]);
        if (sends)
            paper_isend(world, held->host, block_bytes(step, shard), next, TAG_BLOCK,
                        &flight.requests[flight.n++]);
        if (attends && s > 0)
            bring_up(step, held, shard, &flight);
        if (attends) {
            attend_begin(step, held, shard, s == 0);
            attend_end(step, s == 0, &flight);
        }
        if (flight.n > 0)
            paper_wait_bulk(flight.requests, flight.n);
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
    paper_block_free(step->local, &step->buffer[0]);
    paper_block_free(step->local, &step->buffer[1]);
    paper_block_free(step->local, &step->home);
    paper_step_place(step, &step->home, block_bytes(step, step->world->rank), false);
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
    struct paper_block *block = lean ? &step->home : &step->buffer[0];
    uint32_t shard = lean ? 0 : step->holds;
    struct flight none = {.n = 0};
    double scale = passes ? (double)(p - 1) / passes : 0;

    paper_barrier(world);
    uint64_t start = common_clock_ns();
    for (uint32_t s = 0; world->rank == 0 && s < p; s++) {
        if (s > 0)
            bring_up(step, block, shard, &none);
        attend_begin(step, block, shard, s == 0);
        attend_end(step, s == 0, &none);
    }
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
    double pass = paper_socket_ring(world, step->buffer[0].host, step->buffer[1].host, bytes, passes);
    out->socket_us = pass < 0 ? -1 : pass * (p - 1);
}

const struct paper_algo paper_ring = {
    .name = "ring", .form = PAPER_FORM_RING, .init = ring_init, .run = ring_run, .fini = ring_fini};
const struct paper_algo paper_ring_lean = {
    .name = "ring-lean", .form = PAPER_FORM_RING_LEAN, .init = lean_init, .run = lean_run, .fini = lean_fini};
