// SPDX-License-Identifier: Apache-2.0
// The algorithms of research/paper behind one table. Every step starts with q on rank 0 alone and ends with o
// and lse there; what the others must know they are sent. One query row.
#ifndef RESEARCH_PAPER_ALGO_H
#define RESEARCH_PAPER_ALGO_H

#include "research/paper_local.h"
#include "research/paper_world.h"

#define PAPER_RANKS_MOST 1024u

struct paper_step {
    struct paper_world *world;
    const struct paper_geometry *g;
    const uint64_t *tokens, *first; // [size] of each rank's shard
    uint64_t total;                 // tokens of the context
    uint64_t most_tokens;           // of any shard
    struct paper_local *local;
    struct paper_block home; // this rank's shard
    float *q;                // [q_heads][dim]; filled on rank 0
    float *o, *lse;          // result on rank 0
    // Workspace of the algorithms
    float *partial;               // q_heads * (dim + 2): m, s, o
    float *inbox;                 // as many for each of `size` ranks
    float *elements;              // q_heads elements m, s, o[dim]
    struct paper_block buffer[2]; // of the ring: blocks of most_tokens
    uint32_t holds;               // shard in buffer[0]
    bool compute_blocks;          // of the ring: false leaves the passing alone
};

struct paper_algo {
    const char *name;
    enum paper_form form;
    bool library; // reduces by the library's collectives, whose messages are counted on its sockets alone
    bool (*init)(struct paper_step *step); // NULL: nothing to do. False: no memory
    void (*run)(struct paper_step *step);
    void (*fini)(struct paper_step *step); // the shard is in step->home again
};

extern const struct paper_algo paper_algos[]; // ends with name NULL
extern const struct paper_algo paper_ring, paper_ring_lean;

bool paper_step_init(struct paper_step *step);
void paper_step_fini(struct paper_step *step);

// Puts this rank's shard into a block, step->home or a larger one. Ends the job where there is no memory.
void paper_step_place(struct paper_step *step, struct paper_block *block, size_t bytes, bool travels);

// Where the ring's time must go at the least, measured now. All ranks call it between init and fini.
struct paper_floor {
    double compute_us; // the root's attention over all blocks, alone; with a device, what stages them too
    double library_us; // the same passes without any attention
    double socket_us;  // the same bytes along the same links by plain tcp sockets
};
void paper_ring_floor(struct paper_step *step, bool lean, struct paper_floor *out);

// Sends `bytes` from each rank to the next and receives as many from the one before, `passes` times, over
// plain sockets; microseconds of one pass on the slowest rank, on every rank. Negative: no sockets.
double paper_socket_ring(struct paper_world *world, void *out, void *in, size_t bytes, uint32_t passes);

#endif
