// SPDX-License-Identifier: Apache-2.0
// Attach: tickets for a range, and the commit of what clients have put, in two phases.
//
//   AttachCommit:  RowsPrepare to all holders ──▶ all present, hashes agree? ──▶ store: durable ──▶
//   RowsCommit ──▶ answered
//                         (rows are frozen)               └──no──▶ RowsAbort ──▶ FAILED_PRECONDITION: HOLE or
//                         HASH_MISMATCH
#ifndef COORDINATOR_ATTACH_H
#define COORDINATOR_ATTACH_H

#include "coordinator/state.h"

#define COORDINATOR_ATTACH_CHUNKS 1024 // of one open or commit

void coordinator_handle_attach_open(void *arg, struct proto_request *request);
void coordinator_handle_attach_commit(void *arg, struct proto_request *request);

#endif
