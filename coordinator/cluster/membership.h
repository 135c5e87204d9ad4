// SPDX-License-Identifier: Apache-2.0
// Who is there: registration, heartbeats, links to workers and their loss. States: worker.h.
#ifndef COORDINATOR_MEMBERSHIP_H
#define COORDINATOR_MEMBERSHIP_H

#include "coordinator/cluster/worker.h"

struct coordinator_gather;
struct reduce_member;

#define COORDINATOR_CONTROL_NS                                                                               \
    (UINT64_C(10) * 1000 * 1000 * 1000) // a worker answers control calls within this time

#define COORDINATOR_BEATS_MISSED 3 // in a row: the worker is lost

const char *coordinator_worker_state_name(enum coordinator_worker_state state);

// The only way to alter a state; a transition that the diagram lacks is our bug.
void coordinator_worker_set_state(struct coordinator_worker *w, enum coordinator_worker_state state);

struct coordinator_worker *coordinator_worker_find(const struct coordinator_cluster *cluster,
                                                   const char *name); // NULL: unknown

// The worker with this name, made (ABSENT) when there is none. NULL: the table is full.
struct coordinator_worker *coordinator_worker_named(struct coordinator_cluster *cluster, const char *name);

// It is not there, and not on its way.
bool coordinator_worker_gone(const struct coordinator_worker *w);
// What it last said of its memory, for people and metrics: of one that is gone nothing counts any more.
uint64_t coordinator_worker_said(const struct coordinator_worker *w, uint64_t bytes);
// It is gone, and neither a session nor anything under way needs its record.
bool coordinator_worker_idle(const struct coordinator_worker *w);
void coordinator_worker_strike(struct coordinator_worker *w); // off the table; it is idle

// A control call. `done` runs exactly once, never on this stack; with UNAVAILABLE when there is no link. reply as
// in proto_reply_fn.
void coordinator_worker_call(struct coordinator_worker *w, uint32_t method, const ProtobufCMessage *body,
                             proto_reply_fn done, void *arg);

// The same for a gather: adds to it and finishes it.
void coordinator_worker_call_gather(struct coordinator_worker *w, uint32_t method,
                                    const ProtobufCMessage *body, struct coordinator_gather *gather);

void coordinator_worker_member(const struct coordinator_worker *w,
                               struct reduce_member *out); // as the planner sees it

void coordinator_worker_lose(struct coordinator_worker *w, const char *why);
void coordinator_workers_tick(struct coordinator_cluster *cluster, uint64_t now_ns); // missed heartbeats
void coordinator_workers_close(struct coordinator_cluster *cluster);                 // links
void coordinator_workers_free(struct coordinator_cluster *cluster);

// The next worker that is JOINING and linked, and whose visit begins. For the room of sessions: it asks what the
// worker holds, tells it what it should hold, and makes it ACTIVE, or loses it. A visit whose number is not
// w->visit any more has come to nothing.
struct coordinator_worker *coordinator_workers_take_joining(struct coordinator_cluster *cluster);

// Whether the visit's inventory, under way or over, has named this session or is past it, without a reason to keep it
// there. One that is ACTIVE may not have taken its layout yet: to it the session is still of another life.
bool coordinator_worker_listed(const struct coordinator_worker *w, uint64_t session);

// A layout has changed that the worker may have been told already: it is told again before it is ACTIVE.
void coordinator_worker_dirty(struct coordinator_worker *w);

void coordinator_workers_init(struct coordinator_cluster *cluster);

// Handlers (proto_method.handle); arg: the room of the cluster.
void coordinator_handle_register(void *arg, struct proto_request *request);
void coordinator_handle_heartbeat(void *arg, struct proto_request *request);

#endif
