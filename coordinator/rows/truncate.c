// SPDX-License-Identifier: Apache-2.0
#include "coordinator/rows/reshaping.h"

#include <inttypes.h>

#include "common/base/failpoint.h"
#include "common/memory/block.h"
#include "coordinator/place/forget.h"
#include "coordinator/session/states.h"
#include "coordinator/sync/layout_send.h"
#include "coordinator/sync/named.h"
#include "coordinator/sync/recovery.h"
#include "coordinator/sync/repair.h"
#include "coordinator/sync/returned.h"
#include "coordinator/sync/unavailable.h"

#define STATES_SEEN_TO 2 // SessionTruncateRequest.states

static void answer_truncate(struct coordinator_reshape *r)
{
    COMMON_FAILPOINT("truncate_answered");
    Banyan__Pb__SessionTruncateReply m = BANYAN__PB__SESSION_TRUNCATE_REPLY__INIT;
    m.incarnation = r->s->incarnation;
    m.cut = r->s->cut;
    proto_request_reply(r->request, &m.base, NULL, 0, NULL, NULL);
    r->request = NULL;
}

static void cut_stored(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("cut_stored");
    struct coordinator_reshape *r = arg;
    if (code == COMMON_OK) {
        r->s->cut = r->cutting.cut;
        answer_truncate(r);
    } else {
        coordinator_reshape_fail_stored(r, code, text);
    }
    coordinator_reshape_end(r);
}

// No row goes. One that is numbered is stored all the same: it is not to be done when it comes again, and later.
static void truncate_nothing(struct coordinator_reshape *r)
{
    if (!r->cutting.cut) {
        answer_truncate(r);
        coordinator_reshape_end(r);
        return;
    }
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_cut(batch, r->s->id, r->cutting.cut);
    coordinator_store_submit(r->sessions->store, batch, cut_stored, r);
}

static void truncate_told(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("truncate_told");
    struct coordinator_reshape *r = arg;
    (void)text;
    if (code != COMMON_OK)
        coordinator_session_doubt_all(r->s); // it has happened: whoever did not hear of it will
    answer_truncate(r);
    coordinator_reshape_end(r);
}

static void truncate_stored(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("truncate_stored");
    struct coordinator_reshape *r = arg;
    struct coordinator_session *s = r->s;
    uint64_t ct = s->layout.chunk_tokens;
    s->copy = NULL;
    if (code != COMMON_OK) {
        coordinator_reshape_doubt_copy(r);
        coordinator_reshape_fail_stored(r, code, text);
        coordinator_reshape_end(r);
        return;
    }
    for (uint32_t i = coordinator_layout_lower(&s->layout, r->length / ct); i < s->layout.n; i++)
        coordinator_session_memory_back(s, &s->layout.chunks[i]);
    while (s->layout.n && s->layout.chunks[s->layout.n - 1].index * ct >= r->length)
        coordinator_session_remove_chunk(s, s->layout.chunks[s->layout.n - 1].index);
    if (r->copying) {
        coordinator_reshape_copy_counts(r);
        if (!coordinator_session_put_chunk(s, &r->copy))
            abort();
    } else if (r->length % ct) {
        coordinator_session_remove_chunk(s, (uint32_t)(r->length / ct)); // nothing of it is kept
    }
    for (uint32_t l = 0; l < s->spec->layers; l++)
        coordinator_rangeset_clip(&s->layers[l], r->length);
    coordinator_forget_cut(s, r->length);
    coordinator_session_count_tokens(s);
    coordinator_session_forget_named(s); // every chunk that is left is known
    s->untidy = false;
    s->cut = r->cutting.cut;
    s->cut_to = r->length < s->cut_to ? r->length : s->cut_to;
    s->incarnation++;
    common_block_hand_over();
    coordinator_returned_cut(s);
    coordinator_session_raise_epoch(s, "the session was truncated");
    coordinator_session_note(s, SESSION_TRUNCATED, INFO,
                             "the session was truncated session=%016" PRIx64 " length=%" PRIu64, s->id,
                             r->length);
    struct coordinator_gather *gather = coordinator_gather_new(&r->sessions->core->turn, truncate_told, r);
    coordinator_layout_send_members(s, gather);
    coordinator_gather_seal(gather);
}

static void truncate_copied(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("truncate_copied");
    struct coordinator_reshape *r = arg;
    struct coordinator_session *s = r->s;
    uint64_t ct = s->layout.chunk_tokens;
    code = coordinator_reshape_copy_stands(r, code, &text);
    if (code != COMMON_OK) {
        s->copy = NULL;
        coordinator_reshape_doubt_copy(r);
        coordinator_reshape_fail_copy(r, code, text);
        coordinator_reshape_end(r);
        return;
    }
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_numbers(batch, s->id, s->incarnation + 1, s->layout.epoch + 1);
    if (!r->cutting.cut) // the chain goes on all the same
        r->cutting.cut = coordinator_cut_next(s->cut);
    coordinator_batch_cut(batch, s->id, r->cutting.cut);
    coordinator_batch_clip(batch, s->id, r->length);
    if (s->floor && !r->length)
        coordinator_batch_floor(batch, s->id, 0);
    // Rows that steps have appended are in the store from now on: who does not hear of this truncate, and of what
    // was acknowledged before it, is not asked about them after a restart.
    for (uint32_t l = 0; l < s->spec->layers; l++) {
        uint64_t length = coordinator_rangeset_length(&s->layers[l]);
        if (length && r->length)
            coordinator_batch_range(batch, s->id, l, 0, length < r->length ? length : r->length);
    }
    for (uint32_t i = coordinator_layout_lower(&s->layout, r->length / ct); i < s->layout.n; i++)
        coordinator_batch_chunk_drop(batch, s->id, s->layout.chunks[i].index);
    if (r->copying)
        coordinator_batch_copies(batch, s->id, &r->copy);
    coordinator_store_submit(r->sessions->store, batch, truncate_stored, r);
}

static bool is_untold(const struct coordinator_chunk *chunk)
{
    bool untold = false;
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++)
        untold = untold || chunk->copies[i].untold;
    return untold;
}

// A kept chunk whose holder is away may have rows of a commit that the holder has not heard of: it would take
// the layout of a later incarnation for the word to forget them. After a restart nobody knows what it has heard,
// nor which rows steps have appended to it; and of an append over the cut, the holders past it decide as well.
static enum common_code untold_chunks(const struct coordinator_reshape *r, struct proto_status *status)
{
    struct coordinator_session *s = r->s;
    uint64_t ct = s->layout.chunk_tokens, shortest = coordinator_session_length(s);
    bool over = shortest < r->length && coordinator_session_names_rows(s, shortest, r->length - shortest);
    for (uint32_t i = 0; i < s->layout.n && (over || s->layout.chunks[i].index * ct < r->length); i++) {
        const struct coordinator_chunk *chunk = &s->layout.chunks[i];
        bool untold = is_untold(chunk) && coordinator_session_has_rows(s, chunk->index * ct, ct);
        if (chunk->lost || (chunk->known && !untold))
            continue;
        enum common_code code = coordinator_session_missing(s, chunk->index * ct, ct, 0, status);
        if (code != COMMON_OK)
            return code;
    }
    return COMMON_OK;
}

// True: its number says what becomes of it, and no row goes.
static bool truncate_by_its_number(struct coordinator_reshape *r)
{
    struct proto_status status;
    switch (coordinator_cut_judge(r->s, &r->cutting, &status)) {
    case COORDINATOR_CUT_DO:
        return false;
    case COORDINATOR_CUT_STORE:
        truncate_nothing(r);
        return true;
    case COORDINATOR_CUT_ANSWER:
        answer_truncate(r);
        break;
    case COORDINATOR_CUT_REFUSE:
        coordinator_reshape_fail(r, &status);
        break;
    }
    coordinator_reshape_end(r);
    return true;
}

static void truncate_copy(void *arg, enum common_code checked, const char *text)
{
    struct coordinator_reshape *r = arg;
    struct coordinator_session *s = r->s;
    if (coordinator_reshape_copy_is_wrong(r, checked, text))
        return;
    struct coordinator_gather *gather = coordinator_gather_new(&r->sessions->core->turn, truncate_copied, r);
    if (r->copying) {
        const struct coordinator_chunk *copy = s->copy = &r->copy;
        struct coordinator_layout_message m = {.session = s->id,
                                               .incarnation = s->incarnation,
                                               .epoch = s->layout.epoch,
                                               .spec = s->spec,
                                               .chunks = &copy,
                                               .n = 1,
                                               .copy = copy,
                                               .forgotten = s->floor};
        for (uint32_t i = 0; i < coordinator_chunk_copies(copy); i++)
            coordinator_layout_send(coordinator_chunk_holder(copy, i), &m, gather);
        coordinator_reshape_send_copy(r, s->id, s->incarnation, gather);
    }
    coordinator_gather_seal(gather);
}

static void truncate_alone(void *arg, struct coordinator_session *s)
{
    COMMON_FAILPOINT("truncate_begun");
    struct coordinator_reshape *r = arg;
    struct proto_status status;
    if (coordinator_reshape_gone(r, s) || truncate_by_its_number(r))
        return;
    enum common_code code = coordinator_session_writable(s, &status);
    if (code == COMMON_OK && s->withheld)
        code = coordinator_session_missing(s, 0, 1, 0, &status);
    if (code == COMMON_OK)
        code = untold_chunks(r, &status);
    if (code != COMMON_OK) {
        coordinator_reshape_fail(r, &status);
        coordinator_reshape_end(r);
        return;
    }
    // Rows that nobody knows of now must not come back later: every chunk at or past the cut must be known.
    uint64_t ct = s->layout.chunk_tokens, longest = coordinator_session_end(s),
             end_at = (s->layout.n ? s->layout.chunks[s->layout.n - 1].index + 1 : 0) * ct;
    bool lost = false;
    end_at = end_at > longest ? end_at : longest; // what is forgotten from the start may have no chunks yet
    for (uint32_t i = coordinator_layout_lower(&s->layout, r->length / ct); i < s->layout.n; i++)
        lost = lost || s->layout.chunks[i].lost || !s->layout.chunks[i].known;
    if (r->length > longest && !lost) {
        proto_status_set(&status, COMMON_OUT_OF_RANGE, PROTO_REASON_PAST_END,
                         "a truncate to %" PRIu64 " is past the end: the longest layer has %" PRIu64
                         " tokens",
                         r->length, longest);
        coordinator_reshape_fail(r, &status);
        coordinator_reshape_end(r);
        return;
    }
    bool anew = s->floor && !r->length; // whatever there is: it begins at 0 again
    if ((r->length >= end_at && !anew) ||
        (!anew && !coordinator_session_has_rows(s, r->length, end_at - r->length) && !lost && !s->untidy)) {
        truncate_nothing(r);
        return;
    }
    code = coordinator_forget_check(s, r->length, "a truncate", &status);
    if (code == COMMON_OK)
        code = coordinator_reshape_plan_copy(r, &status);
    if (code != COMMON_OK) {
        coordinator_reshape_fail(r, &status);
        coordinator_reshape_end(r);
        return;
    }
    coordinator_reshape_copy_when_right(r, truncate_copy);
}

struct stateless { // a truncate that waits until the session's states are gone
    struct coordinator_sessions *sessions;
    struct proto_request *request;
};

static void truncate_stateless(void *arg, enum common_code code)
{
    struct stateless at = *(struct stateless *)arg;
    free(arg);
    if (code == COMMON_OK || code == COMMON_NOT_FOUND)
        coordinator_handle_session_truncate(at.sessions, at.request);
    else
        proto_request_fail_why(at.request, code == COMMON_CANCELLED ? COMMON_UNAVAILABLE : code,
                               coordinator_store_reason(code),
                               "the session's states could not be deleted: try again");
}

// States past the length would be of a text that is no longer there. True: something comes before the
// truncate.
static bool states_first(struct coordinator_sessions *sessions, const struct coordinator_session *s,
                         struct proto_request *request)
{
    const Banyan__Pb__SessionTruncateRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_session *states =
        m->settle || m->states >= STATES_SEEN_TO ? NULL : coordinator_states_of(s);
    if (!states)
        return false;
    if (m->states) {
        Banyan__Pb__SessionTruncateReply reply = BANYAN__PB__SESSION_TRUNCATE_REPLY__INIT;
        reply.incarnation = s->incarnation;
        reply.cut = s->cut;
        reply.states = states->id;
        proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
        return true;
    }
    struct stateless *at = coordinator_alloc(sizeof(*at));
    *at = (struct stateless){sessions, request};
    if (coordinator_session_discard(states, "the session that it has states of is truncated",
                                    truncate_stateless, at))
        return true;
    free(at);
    proto_request_fail_why(request, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_NONE,
                           "too many operations are waiting for the session's states: try again");
    return true;
}

void coordinator_handle_session_truncate(void *arg, struct proto_request *request)
{
    const Banyan__Pb__SessionTruncateRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_session *s = coordinator_session_asked(arg, request, m->session);
    if (s && (coordinator_park(s, request, coordinator_handle_session_truncate, arg) ||
              states_first(arg, s, request)))
        return;
    struct coordinator_reshape as = {.sessions = arg,
                                     .length = m->length,
                                     .cutting = {.cut = m->cut, .after = m->after, .settle = m->settle}};
    struct proto_status status;
    if (coordinator_cut_check(&as.cutting, &status) != COMMON_OK)
        proto_request_fail_status(request, &status);
    else
        coordinator_reshape_start(&as, request, m->session, COORDINATOR_SESSION_TRUNCATING, truncate_alone);
}
