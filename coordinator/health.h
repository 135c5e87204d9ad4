// SPDX-License-Identifier: Apache-2.0
// What the coordinator says of its health over HTTP: whether its process lives, and whether it is ready to serve steps.
//
//   check     ready when                                  live when
//   shutdown  it is not being stopped                     the same
//   store     it is open, and no other coordinator's      –
//   writes    (a warning) it has taken the last change    –
//   workers   one of them is active at least              –
#ifndef COORDINATOR_HEALTH_H
#define COORDINATOR_HEALTH_H

#include "common/http/health.h"
#include "coordinator/state.h"

// Tables of checks; their daemon is the struct coordinator.
extern const struct common_health_check *const coordinator_health_live, *const coordinator_health_ready;

bool coordinator_health_is_ready(const struct coordinator *c);
// "ready", or the first reason why it is not, for anyone who may ask.
const char *coordinator_health_readiness(const struct coordinator *c);

#endif
