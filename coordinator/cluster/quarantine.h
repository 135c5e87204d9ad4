// SPDX-License-Identifier: Apache-2.0
// What workers hold and this store does not know: sessions of another store, or of a later state of this one
// than the file that the coordinator was started with. They are kept, neither served nor dropped, until the
// store that has them is back or an operator says so.
//
//   laid out by        this store                          becomes
//   ───────────────────────────────────────────────────────────────────────────────────────────────
//   a life of its own  has it                              told its layout
//                      has deleted it                      dropped
//   another life       has it in this state, or a later    told its layout: claimed
//                      has it in an earlier state          quarantine; the session is unavailable
//                      does not know it                    quarantine
// The lists are here; what becomes of their sessions is decided in sync/reconcile.c and
// sync/quarantine_service.c.
#ifndef COORDINATOR_QUARANTINE_H
#define COORDINATOR_QUARANTINE_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator_quarantined {
    uint64_t session, life, bytes, incarnation, epoch;
    bool newer; // the store has the session in an earlier state
};

struct coordinator_quarantine {              // of one worker, ascending by session; all zero: nothing
    struct coordinator_quarantined *entries; // [n], owned
    uint32_t n;
};

// Sessions come in ascending order; the same one again replaces its entry.
void coordinator_quarantine_add(struct coordinator_quarantine *list,
                                const struct coordinator_quarantined *entry);
bool coordinator_quarantine_has(const struct coordinator_quarantine *list, uint64_t session);
void coordinator_quarantine_fini(struct coordinator_quarantine *list);

uint64_t coordinator_quarantine_bytes(const struct coordinator_quarantine *list);

#endif
