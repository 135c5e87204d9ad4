// SPDX-License-Identifier: Apache-2.0
// What a worker says of its health over HTTP.
//
//   check        ready when                                                            live when
//   shutdown     it is not leaving                                                     the same
//   coordinator  it is registered and active there, which answers its heartbeats       –
//
// It is alive without a coordinator: it waits for it, and starting it again would only lose what it holds.
#ifndef WORKER_HEALTH_H
#define WORKER_HEALTH_H

#include "common/http/health.h"

struct worker;

// Tables of checks; their daemon is the struct worker.
extern const struct common_health_check *const worker_health_live, *const worker_health_ready;

bool worker_health_is_ready(const struct worker *worker);

#endif
