// SPDX-License-Identifier: Apache-2.0
// Asking a worker what it holds, and telling it what it should hold: all of it when it comes (back), before it is
// ACTIVE; or of one session, at a worker that is and stays ACTIVE, when a call has left open what it knows
// (repair.h). One try is a visit (cluster/worker.h says which one counts).
//
//   ASKING: Inventory, page by page ──▶ compared with our layouts ──┬──▶ STORING: what is lost ──┐
//                                                                   └────── no news ─────────────┤
//                                                                                                ▼
//   ACTIVE ◀── SETTLING: which commits are over ◀── all answered ── TELLING: SessionDrop, LayoutSet, RowsCommit
//                 └──────── a layout has changed meanwhile (dirty) ───────▶ TELLING
//
// At most 64 messages of a visit are under way (4 of a visit for one session), whatever it has to tell.
//
// What is absent from an inventory was absent when it was asked for, and layouts change meanwhile: a truncate may become
// durable between two pages. So each copy of a chunk has a stamp, of the numbers that visits take in their order:
//
//   even   the last visit that has named it
//   odd    when the copy began to count (coordinator_chunk_counts), where no visit has named it since
//
// A visit judges the copies whose stamp is below its own: they counted before it began, and it has not named them. Of
// what began to count since, its inventory says nothing. That is asked for with its rows, when the worker is told them
// (RowsCommit), and by the next visit.
//
// What it holds and we have deleted is dropped; what we do not know is in quarantine (cluster/quarantine.h). What we
// count on and it lacks is lost when rows of it were committed: steps over them say DATA_LOSS. A store that cannot be
// written does not keep it away: the news are written later. After a restart of the coordinator the inventory also
// says how far each layer was appended.
#ifndef COORDINATOR_RECONCILE_H
#define COORDINATOR_RECONCILE_H

#include "coordinator/session/session.h"

struct coordinator_worker;

// Begins the visits that the room of the cluster wants.
void coordinator_reconciles_drain(struct coordinator_sessions *sessions);

// Visits an ACTIVE worker for one session. `done` runs once, never on this stack: OK when the worker has been asked and
// told, and was ACTIVE all the time.
void coordinator_visit_session(struct coordinator_sessions *sessions, struct coordinator_worker *w,
                               uint64_t session, coordinator_visited_fn done, void *arg);

#endif
