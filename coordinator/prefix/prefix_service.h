// SPDX-License-Identifier: Apache-2.0
// Calls about prefixes (docs/reference/wire.md, "Prefixes").
#ifndef COORDINATOR_PREFIX_SERVICE_H
#define COORDINATOR_PREFIX_SERVICE_H

#include "proto/rpc/rpc.h"

// Handlers (proto_method.handle); arg: the room of sessions.
void coordinator_handle_prefix_find(void *arg, struct proto_request *request);
void coordinator_handle_prefix_keep(void *arg, struct proto_request *request);
void coordinator_handle_prefix_list(void *arg, struct proto_request *request);
void coordinator_handle_prefix_drop(void *arg, struct proto_request *request);

#endif
