// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sync/condition.h"

#include <inttypes.h>

#include "coordinator/session/session.h"
#include "coordinator/sync/recovery.h"
#include "coordinator/sync/unavailable.h"

enum told { // a new session is WHOLE
    WHOLE,
    DEGRADED,
    UNAVAILABLE,
    LOST
};

static enum told told_of(struct coordinator_session *s)
{
    bool missing = coordinator_session_has_missing(s); // counts
    return s->lost ? LOST : missing ? UNAVAILABLE : s->thin ? DEGRADED : WHOLE;
}

static void tell(struct coordinator_session *s, enum told now)
{
    struct proto_status status = {.message = "some of its chunks are unavailable"};
    uint64_t tokens =
        s->layout.n ? ((uint64_t)s->layout.chunks[s->layout.n - 1].index + 1) * s->layout.chunk_tokens : 0;
    switch (now) {
    case LOST:
        (void)coordinator_session_missing(s, 0, tokens, 0, &status);
        coordinator_session_note(s, SESSION_LOST, ERROR, "%s session=%016" PRIx64 " lost_chunks=%u",
                                 status.message, s->id, s->lost);
        break;
    case UNAVAILABLE:
        (void)coordinator_session_missing(s, 0, tokens, 0, &status);
        coordinator_session_note(s, SESSION_UNAVAILABLE, WARN, "%s session=%016" PRIx64, status.message,
                                 s->id);
        break;
    case DEGRADED:
        coordinator_session_note(s, SESSION_DEGRADED, WARN,
                                 "some of its chunks have too few copies session=%016" PRIx64
                                 " chunks=%u replicas=%u",
                                 s->id, s->thin, s->spec->replicas);
        break;
    case WHOLE:
        coordinator_session_note(s, SESSION_WHOLE, INFO,
                                 "all of its chunks have all their copies session=%016" PRIx64, s->id);
        break;
    }
}

void coordinator_conditions_tick(struct coordinator_sessions *sessions)
{
    for (uint32_t i = 0; i < sessions->n_slots; i++) {
        struct coordinator_session *s = sessions->slots[i];
        if (!s || s->state == COORDINATOR_SESSION_CREATING || s->state == COORDINATOR_SESSION_DELETING ||
            coordinator_recovering(s))
            continue;
        enum told now = told_of(s);
        if (now != s->told_condition && now == s->seen_condition) {
            tell(s, now);
            s->told_condition = (uint8_t)now;
        }
        s->seen_condition = (uint8_t)now;
    }
}
