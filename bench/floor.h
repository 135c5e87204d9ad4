// SPDX-License-Identifier: Apache-2.0
// What the machine itself costs, measured beside what is compared with it: round trips of plain sockets and
// of nng, a tree of plain sockets, a copy through a plain socket. Peers are processes. Every function returns
// false with the reason on stderr.
#ifndef BENCH_FLOOR_H
#define BENCH_FLOOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/metrics/histogram.h"

enum floor_socket { FLOOR_UNIX, FLOOR_TCP };

// Call first in main: when this process was started as a peer by floor_nng, serves and exits.
void floor_peer_main(int argc, char **argv);

// Blocking request and reply over one connected socket, two processes.
bool floor_pingpong(enum floor_socket kind, size_t request_bytes, size_t reply_bytes, uint32_t rounds,
                    struct common_histogram *out);

// REQ/REP contexts with aio callbacks at both ends, over nng's tcp.
bool floor_nng(size_t request_bytes, size_t reply_bytes, uint32_t rounds, struct common_histogram *out);

// A relay (the coordinator's place) and `workers` processes in a given tree, all on unix sockets, the caller
// on `client`. A round moves `request_bytes` to the relay, to the root and from each parent to its children,
// `partial_bytes` from each child to its parent, and `reply_bytes` from the root back to the caller.
struct floor_tree {
    enum floor_socket client;
    uint32_t workers;
    const int32_t *parent; // [workers] rank, −1 for rank 0
    size_t request_bytes, partial_bytes, reply_bytes;
};
bool floor_tree_rounds(const struct floor_tree *tree, uint32_t rounds, struct common_histogram *out);

// Bytes per second from one process into `peers` others over tcp on loopback, `total_bytes` in all, each
// chunk of 1 MiB acknowledged, 4 outstanding a peer.
bool floor_copy(uint32_t peers, uint64_t total_bytes, double *bytes_per_s);

#endif
