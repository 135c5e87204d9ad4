// SPDX-License-Identifier: Apache-2.0
// Who is there: registration, heartbeats, links to workers and their loss. States: state.h.
#ifndef COORDINATOR_MEMBERSHIP_H
#define COORDINATOR_MEMBERSHIP_H

#include "coordinator/state.h"

#define COORDINATOR_CONTROL_NS                                                                               \
    (UINT64_C(10) * 1000 * 1000 * 1000) // a worker answers control calls within this time

const char *coordinator_worker_state_name(enum coordinator_worker_state state);

// The only way to alter a state; a transition that the diagram lacks is our bug.
void coordinator_worker_set_state(struct coordinator_worker *w, enum coordinator_worker_state state);

struct coordinator_worker *coordinator_worker_find(const struct coordinator *c,
                                                   const char *name); // NULL: unknown

// The worker with this name, made (ABSENT) when there is none. NULL: the table is full.
struct coordinator_worker *coordinator_worker_named(struct coordinator *c, const char *name);

static inline bool coordinator_worker_active(const struct coordinator_worker *w)
{
    return w->state == COORDINATOR_WORKER_ACTIVE;
}

// A control call. `done` runs exactly once; at once, with UNAVAILABLE, when there is no link. reply as in
// proto_reply_fn.
void coordinator_worker_call(struct coordinator_worker *w, uint32_t method, const ProtobufCMessage *body,
                             proto_reply_fn done, void *arg);

// The same for a gather: adds to it and finishes it.
void coordinator_worker_call_gather(struct coordinator_worker *w, uint32_t method,
                                    const ProtobufCMessage *body, struct coordinator_gather *gather);

// A control call failed in a way that leaves open what the worker knows: it is asked and told everything
// again.
void coordinator_worker_doubt(struct coordinator_worker *w);

void coordinator_worker_member(const struct coordinator_worker *w,
                               struct reduce_member *out); // as the planner sees it

void coordinator_worker_lose(struct coordinator_worker *w, const char *why);
void coordinator_workers_tick(struct coordinator *c, uint64_t now_ns); // missed heartbeats
void coordinator_workers_close(struct coordinator *c);                 // links
void coordinator_workers_free(struct coordinator *c);

// Handlers (proto_method.handle).
void coordinator_handle_register(void *arg, struct proto_request *request);
void coordinator_handle_heartbeat(void *arg, struct proto_request *request);
void coordinator_link_closed(void *arg, uint64_t link);

// reconcile.c: asks what a JOINING worker holds, tells it what it should hold, and makes it ACTIVE.
void coordinator_reconcile_start(struct coordinator_worker *w);
void coordinator_reconcile_cancel(struct coordinator_worker *w); // its callbacks come to nothing
// Whether the inventory under way has named this session, or is past it, without a reason to keep it there.
bool coordinator_reconcile_passed(const struct coordinator_worker *w, uint64_t session);
void coordinator_reconcile_dirty(
    struct coordinator_worker *w); // a layout has changed meanwhile: tell all again at the end

#endif
