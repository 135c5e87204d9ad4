// SPDX-License-Identifier: Apache-2.0
// Attach: tickets for a range, and the commit of what clients have put, in two phases.
//
//   AttachCommit
//     RowsPrepare to all holders of all copies: the rows are frozen
//          │
//          ▼
//     all present, sums agree? ──yes──▶ store: durable ──▶ RowsCommit to all ──▶ answered
//          │                              │
//          │                              └─ refused ──▶ RowsAbort to all ──▶ the store's words
//          └──no──▶ RowsAbort to all ──▶ FAILED_PRECONDITION: HOLE; DATA_LOSS: HASH_MISMATCH
//
// Sums are those of rows (docs/reference/wire.md): the client says what it has attached, the workers what they have.
// Rows that are not what was attached go with the abort, so that nobody commits them.
//
// Commits of one session and layer may overlap and run side by side. Each has a number of its own (commits.h),
// and what it freezes at a worker is its own: rows that several have frozen thaw when the last of them lets go.
// Making overlapping commits wait for each other instead would not do: an abort that nobody answered may
// still arrive after the next commit's prepare, and would thaw its rows.
//
// How a commit ends at a holder:
//   RowsCommit answered    the rows are committed there
//   RowsCommit refused     it lacks rows of a durable commit: DATA_LOSS to the client, reason COVERAGE, with the
//                          worker and the range. Attaching and committing the range again heals it.
//   RowsCommit unheard     durable means that it has happened, so the client is told OK. The session is in doubt at
//                          this worker: it is told again there, and steps wait for that (repair.h).
//   RowsAbort unheard      in doubt too: a repair ends by telling which commits are over, and rows that only
//                          these have frozen thaw; so do those of a coordinator that was killed in between.
// A range that is committed already goes the same way but for the store: OK means that the holders have it now.
#ifndef COORDINATOR_ATTACH_H
#define COORDINATOR_ATTACH_H

#include "coordinator/session/session.h"
#include "proto/rpc/rpc.h"

#define COORDINATOR_ATTACH_CHUNKS 1024 // of one open or commit

// Handlers (proto_method.handle); arg: the room of sessions.
void coordinator_handle_attach_open(void *arg, struct proto_request *request);
void coordinator_handle_attach_commit(void *arg, struct proto_request *request);

#endif
