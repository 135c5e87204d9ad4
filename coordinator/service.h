// SPDX-License-Identifier: Apache-2.0
// The session calls that only create and read (those that reshape one are in reshape.h), and what the cluster
// says of itself.
#ifndef COORDINATOR_SERVICE_H
#define COORDINATOR_SERVICE_H

#include "proto/rpc/rpc.h"

// Handlers (proto_method.handle); arg: the coordinator.
void coordinator_handle_session_create(void *arg, struct proto_request *request);
void coordinator_handle_session_open(void *arg, struct proto_request *request);
void coordinator_handle_session_close(void *arg, struct proto_request *request);
void coordinator_handle_session_info(void *arg, struct proto_request *request);
void coordinator_handle_session_list(void *arg, struct proto_request *request);
void coordinator_handle_session_plan(void *arg, struct proto_request *request);
void coordinator_handle_cluster_info(void *arg, struct proto_request *request);
void coordinator_handle_health(void *arg, struct proto_request *request);

#endif
