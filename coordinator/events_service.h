// SPDX-License-Identifier: Apache-2.0
// Events over RPC: a client reads what the ring has, or waits for what comes. Who waits is answered at the end of the turn
// in which an event comes that it asks for, or when its time is over: once, whatever becomes of the call.
//
//   Events ──▶ there is one ────────────────────────────────▶ answered
//        └───▶ waits ──▶ one comes, or its time is over ────▶ answered
//                   ├──▶ cancelled, its caller has gone ────▶ CANCELLED
//                   └──▶ the coordinator stops ─────────────▶ UNAVAILABLE
#ifndef COORDINATOR_EVENTS_SERVICE_H
#define COORDINATOR_EVENTS_SERVICE_H

#include <stdint.h>

#include "common/base/status.h"
#include "proto/rpc/rpc.h"

struct coordinator;

#define COORDINATOR_EVENT_READERS_MAX 64 // that wait

struct coordinator_event_readers;

// The ring and its readers, and what a server reports of refusals (proto_server_options.refusing, with the
// coordinator as its argument). RESOURCE_EXHAUSTED.
enum common_code coordinator_event_readers_new(struct coordinator *c);
void coordinator_event_readers_stop(struct coordinator *c); // who waits gets UNAVAILABLE
void coordinator_event_readers_free(struct coordinator *c);
uint32_t coordinator_event_readers_waiting(const struct coordinator *c);

// Handler (proto_method.handle).
void coordinator_handle_events(struct coordinator *c, struct proto_request *request);

void coordinator_event_refusing(void *arg, enum proto_refusal refusal, const char *peer, const char *why);
void coordinator_events_look(struct coordinator *c); // with each tick: what only counters say

#endif
