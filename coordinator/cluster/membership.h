// SPDX-License-Identifier: Apache-2.0
// Who is there: registration, heartbeats, links to workers and their loss. States: worker.h.
#ifndef COORDINATOR_MEMBERSHIP_H
#define COORDINATOR_MEMBERSHIP_H

#include "coordinator/cluster/worker.h"

#define COORDINATOR_BEATS_MISSED 3 // in a row: the worker is lost

void coordinator_worker_lose(struct coordinator_worker *w, const char *why);
void coordinator_workers_tick(struct coordinator_cluster *cluster, uint64_t now_ns); // missed heartbeats
void coordinator_workers_close(struct coordinator_cluster *cluster);                 // links
void coordinator_workers_free(struct coordinator_cluster *cluster);

// The next worker that is JOINING and linked, and whose visit begins. For the room of sessions: it asks what the
// worker holds, tells it what it should hold, and makes it ACTIVE, or loses it. A visit whose number is not
// w->visit any more has come to nothing.
struct coordinator_worker *coordinator_workers_take_joining(struct coordinator_cluster *cluster);

void coordinator_workers_init(struct coordinator_cluster *cluster);

// Handlers (proto_method.handle); arg: the room of the cluster.
void coordinator_handle_register(void *arg, struct proto_request *request);
void coordinator_handle_heartbeat(void *arg, struct proto_request *request);

#endif
