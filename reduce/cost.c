// SPDX-License-Identifier: Apache-2.0
// The cost of a tree, found by playing one step over it.
//
// A member is one thread; a host's members share its cores (the most that any of them reports). Work comes in
// pieces, each held by its thread and one core from start to end:
//
//     frame    comes from the parent:   frame_cpu            (the root: 0, it holds the frame)
//                                       + frame_cpu          for each child that it is sent to, deepest first
//     local    own partial is ready:    0                    compute after the frame piece; that takes no
//     core here answer   comes from a child:      frame_cpu each of them also:                + partial_bytes
//     / merge_bandwidth   for each child that it lets be merged
//                                       + frame_cpu          to answer the parent, when the last one is
//                                       merged
//
// A child can be merged when the rank's own partial and all its earlier siblings are. A frame's bytes are at
// the other end of the edge
//
//     latency + bytes / bandwidth        (local within a host, remote between hosts; query_bytes down,
//                                         partial_bytes up)
//
// after the sender's processor time for it. Pieces run in the order in which they become ready; equal times
// go by rank, then child, so that a tree has one time on every machine. A piece waits for its thread, and
// where a host has more members than cores for the core that becomes free last before it could start (so that
// no gap is wasted).
//
//     0  |send|send|.......|recv,merge|recv,merge|        4 members, star, 2 cores: the last child's frame is
//     1       '~~~~|recv,send|~~~^                        sent third, and its answer waits for a core
//     2            '~~~~|recv,send|~~~^
//
// Left out: the frames from and to the coordinator (every tree has them), a host's network card shared by its
// edges, and what the members' computing takes from the processing of frames.
#include "reduce/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/partial.h"
#include "reduce/topology.h"

// Measured: reduce/README.md says when and how.
void reduce_cost_default(struct reduce_cost *cost, uint32_t q_heads, uint32_t k_dim, uint32_t v_dim,
                         uint32_t rows)
{
    *cost = (struct reduce_cost){
        .local_latency_ns = 200,
        .remote_latency_ns = 20000, // assumed, as remote_bandwidth: a 10 Gbit/s network
        .local_bandwidth = 6.5e9,
        .remote_bandwidth = 1.2e9,
        .frame_cpu_ns = 2400,
        .merge_bandwidth = 5.5e9,
        .compute_fixed_ns = 3000,
        .partial_bytes = kernels_partial_bytes(rows, q_heads, v_dim),
        .query_bytes = (uint64_t)rows * q_heads * k_dim * 4,
    };
}

double reduce_cost_share(uint32_t members, uint32_t cores)
{
    return members > cores ? (double)members / cores : 1.0;
}

#define PIECE_FRAME UINT32_MAX
#define PIECE_LOCAL (UINT32_MAX - 1)

struct piece {
    double ready;
    uint32_t rank, what; // PIECE_FRAME, PIECE_LOCAL, or the child whose answer it is
};

struct rank_state {
    double free;          // when its thread is
    uint32_t next;        // child to be merged next; rank + subtree: none is left
    bool local, answered; // own partial is there; its answer has been read by the parent
};

struct reduce_sim {
    struct reduce_cost cost;
    uint32_t n, n_hosts, n_pieces;
    uint32_t *hosts;      // [n]
    uint32_t *core_first; // [n_hosts + 1] into cores; an empty range: no contention
    double *cores;        // when each is free
    struct rank_state *ranks;
    struct piece *heap; // [2 n]
    int32_t *parents;
    uint32_t *heights, *children, *order; // [n] each
};

struct reduce_sim *reduce_sim_new(uint32_t n, const uint32_t *hosts, uint32_t n_hosts, const uint32_t *cores,
                                  const struct reduce_cost *cost)
{
    struct reduce_sim *sim = calloc(1, sizeof *sim);
    if (!sim)
        return NULL;
    sim->cost = *cost;
    sim->cost.local_bandwidth /= 1e9; // from here on bytes per nanosecond
    sim->cost.remote_bandwidth /= 1e9;
    sim->cost.merge_bandwidth /= 1e9;
    sim->n = n;
    sim->n_hosts = n_hosts;
    sim->hosts = calloc(n, sizeof *sim->hosts);
    sim->core_first = calloc((size_t)n_hosts + 1, sizeof *sim->core_first);
    sim->cores = calloc(n, sizeof *sim->cores); // contended hosts have fewer cores than members
    sim->ranks = calloc(n, sizeof *sim->ranks);
    sim->heap = calloc(n, 2 * sizeof *sim->heap);
    sim->parents = calloc(n, sizeof *sim->parents);
    sim->heights = calloc(n, sizeof *sim->heights);
    sim->children = calloc(n, sizeof *sim->children);
    sim->order = calloc(n, sizeof *sim->order);
    if (!sim->hosts || !sim->core_first || !sim->cores || !sim->ranks || !sim->heap || !sim->parents ||
        !sim->heights || !sim->children || !sim->order) {
        reduce_sim_free(sim);
        return NULL;
    }
    memcpy(sim->hosts, hosts, n * sizeof *hosts);
    for (uint32_t r = 0; r < n; r++)
        sim->children[hosts[r]]++; // borrowed to count members
    for (uint32_t h = 0; h < n_hosts; h++) {
        uint32_t contended = sim->children[h] > cores[h] ? cores[h] : 0;
        sim->core_first[h + 1] = sim->core_first[h] + contended;
    }
    return sim;
}

void reduce_sim_free(struct reduce_sim *sim)
{
    if (!sim)
        return;
    free(sim->hosts);
    free(sim->core_first);
    free(sim->cores);
    free(sim->ranks);
    free(sim->heap);
    free(sim->parents);
    free(sim->heights);
    free(sim->children);
    free(sim->order);
    free(sim);
}

// ---- the queue of pieces: a binary heap ---------------------------------------------------------

static bool piece_before(const struct piece *a, const struct piece *b)
{
    if (a->ready != b->ready)
        return a->ready < b->ready;
    if (a->rank != b->rank)
        return a->rank < b->rank;
    return a->what < b->what;
}

static void heap_push(struct reduce_sim *sim, double ready, uint32_t rank, uint32_t what)
{
    struct piece piece = {ready, rank, what};
    uint32_t i = sim->n_pieces++;
    for (; i > 0 && piece_before(&piece, &sim->heap[(i - 1) / 2]); i = (i - 1) / 2)
        sim->heap[i] = sim->heap[(i - 1) / 2];
    sim->heap[i] = piece;
}

static struct piece heap_pop(struct reduce_sim *sim)
{
    struct piece top = sim->heap[0], last = sim->heap[--sim->n_pieces];
    uint32_t i = 0;
    for (uint32_t child = 1; child < sim->n_pieces; child = 2 * i + 1) {
        if (child + 1 < sim->n_pieces && piece_before(&sim->heap[child + 1], &sim->heap[child]))
            child++;
        if (!piece_before(&sim->heap[child], &last))
            break;
        sim->heap[i] = sim->heap[child];
        i = child;
    }
    sim->heap[i] = last;
    return top;
}

// ---- playing ------------------------------------------------------------------------------------

// When bytes that rank r and its parent exchange are at the other end.
static double edge_ns(const struct reduce_sim *sim, uint32_t a, uint32_t b, uint64_t bytes)
{
    const struct reduce_cost *cost = &sim->cost;
    if (sim->hosts[a] == sim->hosts[b])
        return cost->local_latency_ns + (double)bytes / cost->local_bandwidth;
    return cost->remote_latency_ns + (double)bytes / cost->remote_bandwidth;
}

// The core of a contended host that a piece takes: NULL where there is a core for every member. Raises *start
// where all are busy.
static double *core_for(struct reduce_sim *sim, uint32_t host, double *start)
{
    double *best = NULL, *soonest = NULL;
    for (uint32_t c = sim->core_first[host]; c < sim->core_first[host + 1]; c++) {
        double *core = &sim->cores[c];
        if (*core <= *start && (!best || *core > *best))
            best = core;
        if (!soonest || *core < *soonest)
            soonest = core;
    }
    if (!best && soonest) {
        best = soonest;
        *start = *soonest;
    }
    return best;
}

// Sends a frame to the children of r; each takes the sender frame_cpu. Returns when the last one is sent.
static double send_frames(struct reduce_sim *sim, const struct reduce_node *nodes, uint32_t r, double at)
{
    uint32_t n = nodes[r].n_children, child = nodes[r].first_child;
    for (uint32_t i = 0; i < n; i++) {
        sim->children[i] = child;
        child = reduce_topology_next(nodes, child);
    }
    reduce_topology_send_order(sim->children, n, sim->heights, sim->order);
    for (uint32_t i = 0; i < n; i++) {
        child = sim->children[sim->order[i]];
        at += sim->cost.frame_cpu_ns;
        heap_push(sim, at + edge_ns(sim, r, child, sim->cost.query_bytes), child, PIECE_FRAME);
    }
    return at;
}

static void sim_reset(struct reduce_sim *sim, const struct reduce_node *nodes)
{
    for (uint32_t r = 0; r < sim->n; r++) {
        sim->parents[r] = nodes[r].parent;
        sim->ranks[r] = (struct rank_state){.next = r + 1};
    }
    reduce_topology_heights(sim->parents, sim->n, sim->heights);
    memset(sim->cores, 0, sim->n * sizeof *sim->cores);
    sim->n_pieces = 0;
    heap_push(sim, 0, 0, PIECE_FRAME);
}

double reduce_sim_run(struct reduce_sim *sim, const struct reduce_node *nodes, const double *compute_ns,
                      double limit_ns)
{
    const double frame = sim->cost.frame_cpu_ns;
    const double merge = (double)sim->cost.partial_bytes / sim->cost.merge_bandwidth;
    sim_reset(sim, nodes);
    while (sim->n_pieces > 0) {
        struct piece piece = heap_pop(sim);
        uint32_t r = piece.rank;
        struct rank_state *state = &sim->ranks[r];
        double start = piece.ready > state->free ? piece.ready : state->free;
        double *core = core_for(sim, sim->hosts[r], &start);
        double end = start;
        bool completes = false;

        if (piece.what == PIECE_FRAME) {
            end = send_frames(sim, nodes, r, start + (r > 0 ? frame : 0));
            state->local = !compute_ns;
            if (compute_ns)
                heap_push(sim, end + compute_ns[r], r, PIECE_LOCAL);
        } else if (piece.what == PIECE_LOCAL) {
            state->local = true;
        } else {
            end += frame;
            sim->ranks[piece.what].answered = true;
        }
        while (state->local && state->next < r + nodes[r].subtree && sim->ranks[state->next].answered) {
            end += merge;
            state->next = reduce_topology_next(nodes, state->next);
        }
        completes = state->local && state->next == r + nodes[r].subtree;
        if (completes && r > 0)
            end += frame;
        state->free = end;
        if (core)
            *core = end;
        if (end > limit_ns)
            return INFINITY; // every piece lies on some way to the root
        if (completes && r == 0)
            return end;
        if (completes) {
            uint32_t parent = (uint32_t)nodes[r].parent;
            heap_push(sim, end + edge_ns(sim, r, parent, sim->cost.partial_bytes), parent, r);
        }
    }
    return INFINITY; // not reached: the root completes
}
