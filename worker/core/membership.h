// SPDX-License-Identifier: Apache-2.0
// The worker's link to its coordinator: dials, registers, sends heartbeats, and does so again after a lost
// link, a new term or a refusal, forever. With several endpoints (A,B: coordinators on one store, of which
// one is active) it does so at each: it is a member where it is accepted, and the highest term counts. What
// the worker serves does not depend on it. Loop thread.
#ifndef WORKER_MEMBERSHIP_H
#define WORKER_MEMBERSHIP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/loop/loop.h"
#include "common/secure/secret.h"
#include "proto/model/limits.h"
#include "proto/rpc/rpc.h"
#include "reduce/module.h"
#include "worker/store/store.h"

struct worker_membership; // opaque

struct worker_membership_stats { // what a heartbeat says
    uint64_t used_bytes, chunks, steps, last_compute_ns;
    uint64_t store_bytes, store_refused, store_damaged; // of files
    uint64_t planned_ns, taken_ns;                      // of what it has computed (worker/core/pace.h)
    struct worker_cold_stats cold;                      // of rows that are in files alone
    uint32_t n_lacking;
    uint64_t lacking[PROTO_LACKING_MAX]; // sessions that have lost chunks here
    bool engine_lost;                    // plans are to use `stream`
    uint32_t n_edges_down;
    char *edges_down[PROTO_EDGES_DOWN_MAX]; // endpoints, borrowed
    uint32_t n_limits;
    struct proto_limit_use limits[PROTO_WORKER_LIMITS_MAX];
};

struct worker_membership_options { // strings are copied
    const char *coordinator, *name, *host, *endpoint, *edge_endpoint, *kernel, *engine;
    // Host that stands in the endpoints in place of their own; NULL: theirs, and where that is 0.0.0.0 or [::] the address
    // by which this worker reaches the coordinator. A public endpoint on loopback stays so with keep_endpoint.
    const char *advertise;
    bool keep_endpoint;
    const char *no_device; // why it computes on its processor (device.h); NULL: nothing to say
    const struct reduce_module_group *group; // of the engine, kept; NULL: none
    const struct common_secret *secret;
    struct common_tls *tls; // for a coordinator at tls://; NULL: none
    uint64_t capacity_bytes, bandwidth;
    uint32_t threads, cores; // cores: processors that it may run on; 0: as many as threads
    uint64_t *term;          // the worker's highest: read, and raised by what the coordinator says
    // The coordinator's count of the lives of tickets when common_clock_ns was 0, as each answer of the coordinator that
    // this worker is a member at says it; 0: none has. May be NULL.
    uint64_t *clock_zero_ns;
    void (*stats)(void *arg, struct worker_membership_stats *out);
    void (*measure)(void *arg);    // the coordinator asks how fast it computes now; may be NULL
    void (*registered)(void *arg); // each time that it becomes active, with its layouts; may be NULL
    void *arg;
};

// INVALID_ARGUMENT: an invalid endpoint.
enum common_code worker_membership_new(struct common_loop *loop,
                                       const struct worker_membership_options *options,
                                       struct worker_membership **out, struct common_error *err);
// As they are sent to the coordinator that it is a member at, or to the first one.
const char *worker_membership_endpoint(const struct worker_membership *membership);
const char *worker_membership_edge_endpoint(const struct worker_membership *membership);
// Why it is a member nowhere, for people; NULL: it is one.
const char *worker_membership_lacks(const struct worker_membership *membership);
// That it registers with; of NULL 0.
uint64_t worker_membership_instance(const struct worker_membership *membership);
// To the coordinator that it is a member at, or to the first one of the list: for further calls of the worker's, which
// end before the membership does.
struct proto_channel *worker_membership_channel(const struct worker_membership *membership);
void worker_membership_free(struct worker_membership *membership); // hangs up; NULL is allowed

#endif
