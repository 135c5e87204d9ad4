// SPDX-License-Identifier: Apache-2.0
// Standing by, taking over, and being taken over: what the coordinator does with the lease on its store
// (store/lease.h).
//
//               the store is free, or its holder does not run
//   STANDING BY ─────────────────────────────────────────────▶ ACTIVE ──another one has the store──▶ OVER: the process ends
//                                       started on a free store ─▲
#ifndef COORDINATOR_STANDBY_H
#define COORDINATOR_STANDBY_H

#include <stdbool.h>

#include "common/status.h"
#include "proto/rpc.h"

struct coordinator;
struct coordinator_standby;

// Opens the store, or begins to stand by; then *core.standing_by. Codes of coordinator_store_open.
enum common_code coordinator_standby_new(struct coordinator *c, struct common_error *err);
void coordinator_standby_stop(struct coordinator_standby *standby); // NULL is allowed
void coordinator_standby_free(struct coordinator_standby *standby); // NULL is allowed

// Whether an answer may leave now: proto_server_options.serves; arg: the coordinator.
bool coordinator_serves(void *arg);

// One that stands by answers with this, whatever it was asked.
void coordinator_standby_refuse(struct proto_request *request);

#endif
