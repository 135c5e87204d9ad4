// SPDX-License-Identifier: Apache-2.0
// Audits: one step in N, once it is answered, is computed again from the session's rows, in float64, and compared with
// the answer (coordinator_options.audit). Nothing that served the step takes part: workers compute with the reference,
// one row and head at a time (worker/steps/audit.c), and their parts are put together here (audit_sum.h);
// where a chunk has several holders, one that follows is asked. So a kernel, a device, a merge, an engine, or
// memory of one holder that is wrong shows.
//
//   answered ──▶ kept (keep.h) ──▶ waits ──▶ a stretch of keys: Audit to holders ──▶ pause ──▶ ... ──▶ judged
//                                   │                 │ refused, no answer, rows gone               ├─ right
//                                   └─ too many wait ─┴──▶ skipped                                  └─ wrong: log, pin
//
// One audit is under way in a coordinator. A stretch is some 10 ms of one thread of a worker, and is followed by a pause
// of three times what it took: a step meets one at most. Of a long context some query heads are looked at only, others
// the next time. Steps do not wait, and their bits do not change.
//
// It skips a step whose rows are gone when its turn comes (a truncate, a deletion, rows that are forgotten,
// a worker that is away): these are counted as skipped. A restart forgets what waits.
#ifndef COORDINATOR_AUDIT_H
#define COORDINATOR_AUDIT_H

#include "coordinator/steps/keep.h"

#define COORDINATOR_AUDITS_WAITING 16 // beyond it they are skipped

// Whether item number `nth` (from 1) is to be audited: one of each N that follow each other, another place in each N, so
// that a period of the callers' (layers) does not hide anything.
bool coordinator_audit_picks(const struct coordinator_steps *steps, uint64_t nth);

// Its turn will come. Takes a reference.
void coordinator_audit_add(struct coordinator_steps *steps, struct coordinator_kept *kept);

enum common_code coordinator_audits_init(struct coordinator_steps *steps);
void coordinator_audits_stop(struct coordinator_steps *steps); // no stretch is begun any more
void coordinator_audits_free(struct coordinator_steps *steps); // all calls are back. Harmless before init

#endif
