// SPDX-License-Identifier: Apache-2.0
// The inside of a visit, shared by reconcile.c, which asks and compares, and visit.c, which tells. What a visit is:
// reconcile.h.
#ifndef COORDINATOR_VISIT_H
#define COORDINATOR_VISIT_H

#include "common/loop/machine.h"
#include "coordinator/sync/telling.h"

extern const struct common_machine coordinator_visit_machine;

enum coordinator_visit_state {
    COORDINATOR_VISIT_ASKING,
    COORDINATOR_VISIT_STORING,
    COORDINATOR_VISIT_TELLING,
    COORDINATOR_VISIT_SETTLING,
    COORDINATOR_VISIT_OVER,
    COORDINATOR_VISIT_STATES
};

struct coordinator_visit {
    struct coordinator_sessions *sessions;
    struct coordinator_worker *w; // its record stays while there are visitors
    uint32_t number; // w->visit when it began: another one means that this one has come to nothing
    uint64_t stamp;  // its number among all visits (reconcile.h)
    enum coordinator_visit_state state;
    uint64_t one; // the session that it is for; 0: all
    coordinator_visited_fn done;
    void *arg;
    uint32_t slot;          // next session to be told
    bool again;             // not all of them: those that have been dirtied after `since`
    uint64_t since, passed; // passed: sessions.dirties when this pass over the sessions began
    uint64_t settled;       // SETTLING: the worker is told that the commits below it are over
    struct coordinator_telling telling;
    uint32_t in_flight;    // messages, or a write
    enum common_code code; // the first failure
    char text[128];
    uint64_t *unknown; // sessions that it holds and we have deleted
    uint32_t n_unknown, unknown_cap;
    uint64_t *refused; // sessions that it has not taken: for their own repairs, once it is ACTIVE
    uint32_t n_refused;
    uint64_t listed_bytes; // of the session that came last, what of it has come
    uint32_t n_lost;       // chunks that it has found to be lost
    uint64_t process;      // STORING: of the worker's, the one that is written with these
};

// The only way to alter a state; a transition that the table lacks is our bug.
void coordinator_visit_set_state(struct coordinator_visit *v, enum coordinator_visit_state state);

// Whether anybody waits for this visit; if not, it ends with its last answer.
bool coordinator_visit_counts(const struct coordinator_visit *v);

// Keeps the first failure; OK is none.
void coordinator_visit_note(struct coordinator_visit *v, enum common_code code, const char *text);

// It has come to nothing, and is gone. For a session: whoever wanted it decides. Else: when the link broke, its return
// starts anew, or the worker is lost, and registers again.
void coordinator_visit_fail(struct coordinator_visit *v, const char *what);

// Whether the session is one that the worker is told.
bool coordinator_visit_tells(const struct coordinator_visit *v, const struct coordinator_session *s);

// From ASKING or STORING on to its end. The visit may be gone when it returns.
void coordinator_visit_tell(struct coordinator_visit *v);

#endif
