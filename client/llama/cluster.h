// SPDX-License-Identifier: Apache-2.0
// The cluster that holds the cache: settings from the environment, one connection of the process, and, where
// no endpoint is given, workers on this machine.
#ifndef BANYAN_LLAMA_CLUSTER_H
#define BANYAN_LLAMA_CLUSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/banyan.h"

struct settings {
    const char *endpoint;   // BANYAN_ENDPOINT; NULL: workers on this machine
    unsigned local;         // BANYAN_LOCAL: how many
    unsigned local_threads; // BANYAN_LOCAL_THREADS, of each; 0: the cores, shared out
    const char *
        local_memory; // BANYAN_LOCAL_MEMORY, of each, as banyan-worker --memory; NULL: its part of what is free
    const char *session; // BANYAN_SESSION: what its sessions' names begin with; "llama.cpp" otherwise
    uint64_t ttl_ns;     // BANYAN_TTL seconds: so long after the end of this process its sessions are kept
    uint64_t timeout_ns; // BANYAN_TIMEOUT seconds, of each call
    unsigned replicas;   // BANYAN_REPLICAS
    uint64_t
        keep_ns; // BANYAN_KEEP: so long the rows of a saved state stay in the cluster; 0: a state has them
    bool q8_as_int8; // BANYAN_Q8=int8
};

// The settings, read once; NULL: one of them is wrong, and why says which. why may be NULL.
const struct settings *cluster_settings(char *why, size_t why_bytes);

// Connected at the first call, kept until the process ends; any thread. An endpoint that does not answer
// within 3 s is named in the log, then it is waited for as long as a call may take, once: what a later call
// tries again takes 3 s. NULL: why says what to do.
banyan_client *cluster_client(char *why, size_t why_bytes);

// In words where the cache is, for people: "the cluster at tcp://…, 4 workers", "a worker on this machine".
void cluster_where(char *out, size_t bytes);

// K and V that the workers still have room for, and in all; 0, 0: not known. Connects.
void cluster_memory(size_t *available, size_t *total);

// Starts a coordinator and `workers` workers in a folder of their own under TMPDIR, on unix sockets. They end
// with this process, however it ends, and the folder with them. NULL: why. Else the endpoint, forever.
const char *local_start(const struct settings *settings, char *why, size_t why_bytes);

#endif
