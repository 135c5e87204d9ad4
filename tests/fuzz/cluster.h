// SPDX-License-Identifier: Apache-2.0
// A cluster of the simulator (tests/sim) and a peer that asks what an input says: the real coordinator, real
// workers, requests through their real dispatch. The peer has proved the role that it has, so it is one whose
// key was stolen.
//
// Input: operations, u8 each, with what they take:
//
//   bits 0-2   0-5  a request (below)   6  time passes: u8, up to 25 s   7  the last request is cancelled, or a
//                                                                           new link is made
//
//   request    u8 which peer and server   u8 method   u8 tensors and deadline   the body (message.h)   tensors: u8 each, × 16 bytes
//
// What must hold: each call ends once; a request that is refused for what it says submits nothing to the
// store and changes nothing that a worker holds; at the end the coordinator answers (a peer without a token,
// once there are some: that it needs one), and what it has counted is what counting gives.
#ifndef TESTS_FUZZ_CLUSTER_H
#define TESTS_FUZZ_CLUSTER_H

#include "tests/fuzz/message.h"

struct fuzz_server {         // whom the peer may call, and as what
    const char *endpoint;    // NULL ends the list
    uint32_t role;           // of the peer
    const uint32_t *methods; // that it asks for; 0 ends the list
};

struct fuzz_cluster_options {
    uint32_t workers;
    bool store; // workers keep files, in memory
    const struct fuzz_server *servers;
};

void fuzz_cluster_run(const struct fuzz_cluster_options *options, const uint8_t *data, size_t size);

#endif
