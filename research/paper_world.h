// SPDX-License-Identifier: Apache-2.0
// The ranks of research/paper, and how they talk: point-to-point messages whose bytes are counted, waits that
// leave the core to others, a barrier, and the counters of what was really sent.
#ifndef RESEARCH_PAPER_WORLD_H
#define RESEARCH_PAPER_WORLD_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct paper_world {
    MPI_Comm comm;
    uint32_t rank, size;
    uint32_t per_node;  // ranks [n * per_node, (n + 1) * per_node) share a node: fast links among them
    uint32_t neighbour; // this rank's number among those of its host
    uint64_t sent;      // bytes handed to paper_isend
};

// Settings that must be made before MPI_Init: one algorithm for each of the library's collectives.
void paper_world_settings(void);
void paper_world_init(struct paper_world *world, uint32_t per_node);

// Blocks of 64 bytes, so that a message may pass 2 GiB. bytes: a multiple of 4; above 1 GiB of 64.
void paper_isend(struct paper_world *world, const void *data, size_t bytes, uint32_t to, int tag,
                 MPI_Request *out);
void paper_irecv(struct paper_world *world, void *data, size_t bytes, uint32_t from, int tag,
                 MPI_Request *out);

// Waits for all of them, and leaves the core to others meanwhile: ranks outnumber cores, and one that polls
// takes its core from one that computes. Sleeps until one of the sockets found last has something to read;
// without sockets (shared memory) yields at first, then sleeps a sixteenth of what it has waited.
void paper_wait(MPI_Request *requests, int n);
// The same for blocks of megabytes: looks after them every 150 us (without sockets: all the time).
void paper_wait_bulk(MPI_Request *requests, int n);
void paper_sockets_find(void); // call when the connections have been made
bool paper_test(MPI_Request *requests, int n);

void paper_barrier(struct paper_world *world);

// The binomial tree over ranks, in which every subtree is a run of ranks; where per_node divides the ranks
// and is a power of two, edges between nodes are as few as can be: a node's ranks meet at its first one.
// Returns the number of children, children[32] ascending (rank + 1, + 2, + 4, ...); the root's parent is 0.
uint32_t paper_tree(uint32_t rank, uint32_t size, uint32_t *parent, uint32_t *children);

// Bytes that this process's tcp sockets have sent so far, each counted once however often it was sent again
// (TCP_INFO): messages, the library's collectives included, and the library's own headers.
uint64_t paper_socket_bytes(void);

// Bytes that left this network namespace so far, headers included (/proc/self/net/dev, without lo).
uint64_t paper_wire_bytes(void);

#endif
