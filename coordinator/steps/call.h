// SPDX-License-Identifier: Apache-2.0
// A client's Attend call: it is taken apart into items, and answered once, when all of them are done, when its
// deadline has passed, or when its caller is gone.
#ifndef COORDINATOR_CALL_H
#define COORDINATOR_CALL_H

#include "coordinator/steps/item.h"

#define COORDINATOR_APPEND_BYTES (1024 * 1024) // K and V of one append; more is attached

struct coordinator_use;

struct coordinator_call {
    struct common_list link; // in steps.calls until it is answered
    struct coordinator_steps *steps;
    struct proto_request *request; // NULL once answered
    struct proto_identity who;     // asks
    struct coordinator_use *use;   // of his tenant: the items count there
    struct common_blob *blob;      // of the request: what the items point into
    uint64_t arrived_ns, deadline_ns, tree_ns, mass_ns;
    bool want_lse, want_trace, want_mass, aside;
    bool traced;   // one of its items is sampled
    uint32_t refs; // unfinished items, an answer not sent, callbacks to come
    uint32_t left; // unfinished items
    size_t o_bytes, lse_bytes;
    uint8_t *out; // o then lse, allocated when the first slab is copied in
    // Instead of `out`: the whole answer of the one frame that carried exactly this call.
    struct proto_step_result *result;
    struct proto_trace *traces;
    uint32_t n_traces, n_items;
    size_t mass_values; // of all items' masses
    uint32_t n_missing; // ranges that its items leave out, at most PROTO_MISSING_MAX
    struct coordinator_item items[];
};

// The session with this id, if it is there for who asks; else NULL.
struct coordinator_session *coordinator_call_session(const struct coordinator_call *call, uint64_t id);

// It is to be answered: its request, for which the caller has a reference of the call. NULL: it has been
// answered.
struct proto_request *coordinator_call_take_request(struct coordinator_call *call);

bool coordinator_call_room(struct coordinator_call *call);                // makes `out`; false: out of memory
const uint8_t *coordinator_call_o(const struct coordinator_call *call);   // of all items; NULL: not there yet
const uint8_t *coordinator_call_lse(const struct coordinator_call *call); // likewise

// Counts an item's masses; those that are too many for the answer become a failure.
void coordinator_call_take_masses(struct coordinator_call *call, struct coordinator_masses *masses);

void coordinator_call_unref(struct coordinator_call *call);

#endif
