// SPDX-License-Identifier: Apache-2.0
// A worker comes (back), or is in doubt: it is asked what it holds and told what it should hold, and only then
// is it ACTIVE. One try is a visit (cluster/worker.h says which one counts).
//
//   ASKING: Inventory, page by page ──▶ compared with our layouts ──┬──▶ STORING: what is lost ──┐
//                                                                   └────── no news ─────────────┤
//                                                                                                ▼
//   ACTIVE ◀── SETTLING: which commits are over ◀── all answered ── TELLING: SessionDrop, LayoutSet, RowsCommit
//                 └──────── a layout has changed meanwhile (dirty) ───────▶ TELLING
//
// What it holds and we have deleted is dropped; what we do not know is in quarantine (cluster/quarantine.h). What we count on and it lacks is lost when rows of it were
// committed: steps over them say DATA_LOSS. After a restart of the coordinator the inventory also says how
// far each layer was appended.
#ifndef COORDINATOR_RECONCILE_H
#define COORDINATOR_RECONCILE_H

#include "coordinator/machine.h"
#include "coordinator/sessions/sessions.h"

extern const struct coordinator_machine coordinator_visit_machine;

// Begins the visits that the room of the cluster wants.
void coordinator_reconciles_drain(struct coordinator_sessions *sessions);

#endif
