// SPDX-License-Identifier: Apache-2.0
// Long: truncate, fork and delete are one operation, which waits, copies a chunk, and ends in the same way.
#include "coordinator/rows/reshape.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "common/memory/block.h"
#include "coordinator/check/seals.h"
#include "coordinator/cluster/gather.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/place/forget.h"
#include "coordinator/session/cuts.h"
#include "coordinator/session/keys.h"
#include "coordinator/session/spec.h"
#include "coordinator/session/states.h"
#include "coordinator/session/table.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/dropping.h"
#include "coordinator/sync/layout_send.h"
#include "coordinator/sync/named.h"
#include "coordinator/sync/recovery.h"
#include "coordinator/sync/repair.h"
#include "coordinator/sync/returned.h"
#include "coordinator/sync/unavailable.h"
#include "coordinator/tenants/quota.h"
#include "proto/model/spec.h"

#define STATES_LEFT    "the session that it has states of is gone"
#define STATES_SEEN_TO 2 // SessionTruncateRequest.states

struct reshape { // one operation; `request` is NULL when nobody asked (an idle session)
    struct coordinator_sessions *sessions;
    struct proto_request *request;
    struct coordinator_session *s;     // alone
    struct coordinator_session *fork;  // the new one
    uint64_t length, key, idle_ttl_ns; // key, idle_ttl_ns (0: its origin's): of a fork
    struct coordinator_cut cutting;    // of a truncate
    char name[COORDINATOR_NAME_BYTES];
    struct coordinator_fork_wish wish;  // of a fork that answers a create; instead NULL: it does not
    const char *why;                    // of a deletion that no client asked for
    coordinator_discarded_fn discarded; // of it; may be NULL
    void *discarded_arg;
    struct proto_status refusal; // of a fork that waits for room
    uint64_t idle_ns; // a deletion for idleness: when the session was last used; 0: another operation
    bool copying;
    struct coordinator_chunk cut; // what is copied
    struct coordinator_chunk copy;
    uint64_t instances[COORDINATOR_COPIES_MAX]; // which processes were asked for one
};

static void reshape_fail(struct reshape *r, const struct proto_status *status)
{
    struct proto_request *request = r->request;
    r->request = NULL;
    if (!request)
        return;
    if (r->wish.instead && !proto_request_over(request) && !r->sessions->core->stopping)
        r->wish.instead(r->wish.arg, request);
    else
        proto_request_fail_status(request, status);
}

static void reshape_fail_why(struct reshape *r, enum common_code code, enum proto_reason reason,
                             const char *text)
{
    struct proto_status status;
    proto_status_set(&status, code == COMMON_CANCELLED ? COMMON_UNAVAILABLE : code, reason, "%s", text);
    reshape_fail(r, &status);
}

static void reshape_fail_code(struct reshape *r, enum common_code code, const char *text)
{
    reshape_fail_why(r, code, PROTO_REASON_NONE, text);
}

static void reshape_fail_stored(struct reshape *r, enum common_code code, const char *text)
{
    reshape_fail_why(r, code, coordinator_store_reason(code), text);
}

// A worker has not made what it was asked for. One that lost its layout is not a session that does not exist, and one that
// cannot be spoken to (another release, at its first words) is one that is not there yet.
static void reshape_fail_copy(struct reshape *r, enum common_code code, const char *text)
{
    bool not_there = code == COMMON_NOT_FOUND || code == COMMON_FAILED_PRECONDITION;
    reshape_fail_code(r, not_there ? COMMON_UNAVAILABLE : code, text);
}

static void reshape_end(struct reshape *r)
{
    struct coordinator_session *s = r->s;
    free(r);
    coordinator_session_release(s);
}

// `as` says what is wished, without its request; id: of the session.
static void reshape_start(const struct reshape *as, struct proto_request *request, uint64_t id,
                          enum coordinator_session_state state, coordinator_session_fn fn)
{
    struct coordinator_sessions *sessions = as->sessions;
    struct coordinator_session *s = coordinator_session_asked(sessions, request, id);
    if (!s) {
        struct proto_status status;
        coordinator_session_unknown(id, &status);
        struct reshape none = *as;
        none.request = request;
        reshape_fail(&none, &status);
        return;
    }
    struct reshape *r = coordinator_alloc(sizeof(*r));
    *r = *as;
    r->request = request;
    if (coordinator_session_exclusive(s, state, fn, r) != COMMON_OK) {
        reshape_fail_why(r, COMMON_RESOURCE_EXHAUSTED, PROTO_REASON_NONE,
                         "too many operations are waiting for this session: try again");
        free(r);
    }
}

// It ends before it has begun: the session is gone, or whoever asked. A truncate that comes so late could take away what
// the same client has written since.
static bool reshape_gone(struct reshape *r, struct coordinator_session *s)
{
    r->s = s;
    if (!s) {
        const char *text;
        enum common_code code = coordinator_gone(r->sessions->core, &text);
        reshape_fail_why(r, code, code == COMMON_NOT_FOUND ? PROTO_REASON_NO_SESSION : PROTO_REASON_NONE,
                         text);
        free(r);
        return true;
    }
    if (r->request && proto_request_over(r->request)) {
        reshape_fail_code(r, COMMON_DEADLINE_EXCEEDED, "the deadline passed before the call was started");
        reshape_end(r);
        return true;
    }
    s->last_used_ns = common_clock_ns();
    return false;
}

// ---- copying what a length cuts -----------------------------------------------------------------

// Finds the chunk that r->length cuts and gives its copy an id. Nothing to copy is OK too.
static enum common_code plan_copy(struct reshape *r, struct proto_status *status)
{
    struct coordinator_session *s = r->s;
    uint64_t ct = s->layout.chunk_tokens, start_at = r->length / ct * ct;
    const struct coordinator_chunk *cut = coordinator_layout_find(&s->layout, r->length / ct);
    if (r->length == start_at || !cut)
        return COMMON_OK;
    // After a restart its holder may have rows that steps appended: until it has said so, they are not dropped.
    if ((cut->known || cut->lost) && !coordinator_session_has_rows(s, start_at, r->length - start_at))
        return COMMON_OK;
    if (coordinator_session_missing(s, start_at, r->length - start_at, 0, status) != COMMON_OK)
        return status->code;
    r->cut = *cut;
    r->copy = (struct coordinator_chunk){.index = cut->index, .ready = true, .known = true};
    for (uint32_t i = 0; i < coordinator_chunk_copies(cut); i++)
        coordinator_chunk_add(&r->copy, coordinator_chunk_holder(cut, i), COORDINATOR_REPORT_HEARD);
    if (!coordinator_sessions_chunk_id(r->sessions, &r->copy.id))
        return proto_status_set(status, COMMON_UNAVAILABLE, PROTO_REASON_NONE,
                                "the store does not answer: try again");
    r->copying = true;
    return COMMON_OK;
}

static void send_copy(struct reshape *r, uint64_t session, uint64_t incarnation,
                      struct coordinator_gather *gather)
{
    Banyan__Pb__ChunkCopyRequest m = BANYAN__PB__CHUNK_COPY_REQUEST__INIT;
    m.term = r->sessions->core->term;
    m.from_chunk = r->cut.id;
    m.session = session;
    m.incarnation = incarnation;
    m.chunk = r->copy.id;
    m.rows = (uint32_t)(r->length % r->s->layout.chunk_tokens);
    for (uint32_t i = 0; i < coordinator_chunk_copies(&r->copy); i++) {
        r->instances[i] = coordinator_chunk_holder(&r->copy, i)->instance;
        coordinator_worker_call_gather(coordinator_chunk_holder(&r->copy, i),
                                       BANYAN__PB__METHOD__METHOD_CHUNK_COPY, &m.base, gather);
    }
}

// All have answered: whether they have it still. One that was started anew before the last of them answered has said
// what it has before the copy was in a layout; one that is later says so after this is stored.
static enum common_code copy_stands(const struct reshape *r, enum common_code code, const char **text)
{
    for (uint32_t i = 0; code == COMMON_OK && r->copying && i < coordinator_chunk_copies(&r->copy); i++)
        if (coordinator_chunk_holder(&r->copy, i)->instance != r->instances[i]) {
            *text = "a worker was restarted meanwhile: try again";
            code = COMMON_UNAVAILABLE;
        }
    return code;
}

// The copy is in the layout: it counts where the process that made it is still there. Another one has said what it has, or
// will, as of any other chunk.
static void copy_counts(struct reshape *r)
{
    uint32_t made = 0;
    for (uint32_t i = 0; i < coordinator_chunk_copies(&r->copy); i++)
        made |= (uint32_t)(coordinator_chunk_holder(&r->copy, i)->instance == r->instances[i]) << i;
    coordinator_chunk_counts(r->sessions, &r->copy, made);
}

// Of a sealed chunk holders copy only what was sealed: the copy has no seal of its own yet. `go` goes on.
static void copy_when_right(struct reshape *r, coordinator_checked_fn go)
{
    struct coordinator_chunk *cut = r->copying ? coordinator_layout_find(&r->s->layout, r->cut.index) : NULL;
    if (cut && cut->seal)
        coordinator_check_begin(r->s, cut, true, go, r);
    else
        go(r, COMMON_OK, "");
}

// A copy was struck off, and the request has ended: whoever asks again finds the others.
static bool copy_is_wrong(struct reshape *r, enum common_code code, const char *text)
{
    struct proto_status status;
    if (code == COMMON_OK)
        return false;
    if (coordinator_session_missing(r->s, r->length - 1, 1, 0, &status) != COMMON_OK)
        reshape_fail(r, &status);
    else
        reshape_fail_code(r, COMMON_UNAVAILABLE, text);
    reshape_end(r);
    return true;
}

// What was copied is not to be: so that its holders forget it.
static void doubt_copy(struct reshape *r)
{
    for (uint32_t i = 0; r->copying && i < coordinator_chunk_copies(&r->copy); i++)
        coordinator_session_doubt(r->s, coordinator_chunk_holder(&r->copy, i));
}

// ---- truncate -----------------------------------------------------------------------------------

static void answer_truncate(struct reshape *r)
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
    struct reshape *r = arg;
    if (code == COMMON_OK) {
        r->s->cut = r->cutting.cut;
        answer_truncate(r);
    } else {
        reshape_fail_stored(r, code, text);
    }
    reshape_end(r);
}

// No row goes. One that is numbered is stored all the same: it is not to be done when it comes again, and later.
static void truncate_nothing(struct reshape *r)
{
    if (!r->cutting.cut) {
        answer_truncate(r);
        reshape_end(r);
        return;
    }
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_cut(batch, r->s->id, r->cutting.cut);
    coordinator_store_submit(r->sessions->store, batch, cut_stored, r);
}

static void truncate_told(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("truncate_told");
    struct reshape *r = arg;
    (void)text;
    if (code != COMMON_OK)
        coordinator_session_doubt_all(r->s); // it has happened: whoever did not hear of it will
    answer_truncate(r);
    reshape_end(r);
}

static void truncate_stored(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("truncate_stored");
    struct reshape *r = arg;
    struct coordinator_session *s = r->s;
    uint64_t ct = s->layout.chunk_tokens;
    s->copy = NULL;
    if (code != COMMON_OK) {
        doubt_copy(r);
        reshape_fail_stored(r, code, text);
        reshape_end(r);
        return;
    }
    for (uint32_t i = coordinator_layout_lower(&s->layout, r->length / ct); i < s->layout.n; i++)
        coordinator_session_memory_back(s, &s->layout.chunks[i]);
    while (s->layout.n && s->layout.chunks[s->layout.n - 1].index * ct >= r->length)
        coordinator_session_remove_chunk(s, s->layout.chunks[s->layout.n - 1].index);
    if (r->copying) {
        copy_counts(r);
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
    struct reshape *r = arg;
    struct coordinator_session *s = r->s;
    uint64_t ct = s->layout.chunk_tokens;
    code = copy_stands(r, code, &text);
    if (code != COMMON_OK) {
        s->copy = NULL;
        doubt_copy(r);
        reshape_fail_copy(r, code, text);
        reshape_end(r);
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
static enum common_code untold_chunks(const struct reshape *r, struct proto_status *status)
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
static bool truncate_by_its_number(struct reshape *r)
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
        reshape_fail(r, &status);
        break;
    }
    reshape_end(r);
    return true;
}

static void truncate_copy(void *arg, enum common_code checked, const char *text)
{
    struct reshape *r = arg;
    struct coordinator_session *s = r->s;
    if (copy_is_wrong(r, checked, text))
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
        send_copy(r, s->id, s->incarnation, gather);
    }
    coordinator_gather_seal(gather);
}

static void truncate_alone(void *arg, struct coordinator_session *s)
{
    COMMON_FAILPOINT("truncate_begun");
    struct reshape *r = arg;
    struct proto_status status;
    if (reshape_gone(r, s) || truncate_by_its_number(r))
        return;
    enum common_code code = coordinator_session_writable(s, &status);
    if (code == COMMON_OK && s->withheld)
        code = coordinator_session_missing(s, 0, 1, 0, &status);
    if (code == COMMON_OK)
        code = untold_chunks(r, &status);
    if (code != COMMON_OK) {
        reshape_fail(r, &status);
        reshape_end(r);
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
        reshape_fail(r, &status);
        reshape_end(r);
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
        code = plan_copy(r, &status);
    if (code != COMMON_OK) {
        reshape_fail(r, &status);
        reshape_end(r);
        return;
    }
    copy_when_right(r, truncate_copy);
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
    struct reshape as = {.sessions = arg,
                         .length = m->length,
                         .cutting = {.cut = m->cut, .after = m->after, .settle = m->settle}};
    struct proto_status status;
    if (coordinator_cut_check(&as.cutting, &status) != COMMON_OK)
        proto_request_fail_status(request, &status);
    else
        reshape_start(&as, request, m->session, COORDINATOR_SESSION_TRUNCATING, truncate_alone);
}

// ---- fork ---------------------------------------------------------------------------------------

static void fork_undo(struct reshape *r)
{
    struct coordinator_session *fork = r->fork;
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_session_drop(batch, fork->id);
    coordinator_store_submit(r->sessions->store, batch, NULL, NULL);
    coordinator_session_drop_at_workers(fork, NULL);
    coordinator_key_settle(fork, COMMON_UNAVAILABLE, "the fork was not made: try again");
    coordinator_session_destroy(fork);
}

static void fork_alone(void *arg, struct coordinator_session *s);

// From the beginning, behind whatever waits for its origin by now.
static void fork_restart(struct reshape *r)
{
    struct reshape as = {.sessions = r->sessions,
                         .length = r->length,
                         .key = r->key,
                         .idle_ttl_ns = r->idle_ttl_ns,
                         .wish = r->wish};
    memcpy(as.name, r->name, sizeof(as.name));
    struct proto_request *request = r->request;
    uint64_t id = r->s->id;
    reshape_end(r);
    reshape_start(&as, request, id, COORDINATOR_SESSION_FORKING, fork_alone);
}

// A holder of what the fork is to share was lost since it was begun: it would be in the fork's layout, and not know of the
// fork. So it is begun again, once others hold what that one did (failover.h), or the session is known to lack it.
static bool fork_again(struct reshape *r)
{
    const struct coordinator_layout *layout = &r->s->layout;
    bool whole = true;
    for (uint32_t i = 0;
         i < layout->n && (uint64_t)layout->chunks[i].index * layout->chunk_tokens < r->length; i++)
        whole = whole && coordinator_session_chunk_whole(&layout->chunks[i]);
    if (!whole)
        fork_restart(r);
    return !whole;
}

// What was only kept as cache has gone: the fork is begun again. It has its origin alone until then.
static void fork_has_room(void *arg, bool made)
{
    struct reshape *r = arg;
    if (made) {
        fork_restart(r);
        return;
    }
    reshape_fail(r, &r->refusal);
    reshape_end(r);
}

static void fork_stored(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("fork_stored");
    struct reshape *r = arg;
    if (code != COMMON_OK) {
        fork_undo(r);
        reshape_fail_stored(r, code, text);
        reshape_end(r);
        return;
    }
    coordinator_session_enter(r->fork);
    coordinator_session_note(r->fork, SESSION_FORKED, INFO,
                             "a session was forked from %016" PRIx64 " session=%016" PRIx64
                             " tokens=%" PRIu64,
                             r->s->id, r->fork->id, r->length);
    if (r->wish.made)
        r->wish.made(r->s, r->length);
    coordinator_key_answer(r->request, r->fork);
    coordinator_key_settle(r->fork, COMMON_OK, "");
    r->request = NULL;
    for (uint32_t i = 0; i < r->fork->n_members; i++)
        if (!coordinator_worker_active(r->fork->members[i]))
            coordinator_session_dirty(r->fork, r->fork->members[i]);
    reshape_end(r);
}

static void fork_copied(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("fork_copied");
    struct reshape *r = arg;
    struct coordinator_session *fork = r->fork;
    code = copy_stands(r, code, &text);
    if (code != COMMON_OK) {
        fork_undo(r);
        if (fork_again(r))
            return;
        reshape_fail_copy(r, code, text);
        reshape_end(r);
        return;
    }
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_whole_session(batch, fork);
    for (uint32_t l = 0; l < fork->spec->layers && r->length; l++)
        if (proto_spec_stores(fork->spec, l))
            coordinator_batch_range(batch, fork->id, l, 0, r->length);
    coordinator_store_submit(r->sessions->store, batch, fork_stored, r);
}

// What its chunks count for: it keeps those that it shares when its origin goes.
static uint64_t fork_quota(const struct reshape *r)
{
    const struct coordinator_session *s = r->s;
    uint64_t ct = s->layout.chunk_tokens, bytes = 0;
    for (uint32_t i = 0; i < s->layout.n && (uint64_t)s->layout.chunks[i].index * ct < r->length; i++)
        bytes += coordinator_session_index_quota(s, s->layout.chunks[i].index);
    return bytes;
}

// The new session as it will be: in no table, nobody told.
static enum common_code make_fork(struct reshape *r, struct proto_status *status)
{
    struct coordinator_session *s = r->s;
    uint64_t ct = s->layout.chunk_tokens;
    Banyan__Pb__Spec *spec = coordinator_spec_copy(s->spec);
    spec->idle_ttl_ns = r->idle_ttl_ns || r->wish.instead ? r->idle_ttl_ns : spec->idle_ttl_ns;
    uint64_t bytes = fork_quota(r);
    enum common_code code = coordinator_quota_take(s->use, COORDINATOR_QUOTA_BYTES, bytes, status);
    if (code == COMMON_OK) {
        coordinator_quota_give(s->use, COORDINATOR_QUOTA_BYTES, bytes); // its chunks will count
        code = coordinator_session_new(r->sessions, r->name, s->tenant, spec, &r->fork, status);
    }
    if (code != COMMON_OK) {
        banyan__pb__spec__free_unpacked(spec, NULL);
        if (code == COMMON_ALREADY_EXISTS)
            proto_status_set(status, code, PROTO_REASON_NAME_TAKEN,
                             "the fork cannot be named %s: another session has this name", r->name);
        return code;
    }
    coordinator_key_enter(r->fork, r->key);
    r->fork->origin = s->id;
    const struct coordinator_session *states = coordinator_states_of(s);
    r->fork->states = states ? states->id : 0;
    coordinator_session_set_floor(r->fork, r->length ? s->floor : 0);
    for (uint32_t i = 0; i < s->n_members; i++)
        if (coordinator_worker_active(s->members[i]))
            coordinator_session_add_member(r->fork, s->members[i]);
    for (uint32_t i = 0; i < s->layout.n && ((uint64_t)s->layout.chunks[i].index + 1) * ct <= r->length;
         i++) {
        struct coordinator_chunk chunk = s->layout.chunks[i];
        chunk.moving = false;
        coordinator_chunk_call_off(&chunk);
        chunk.checking = 0;
        chunk.asked = 0;
        coordinator_chunk_counts(r->sessions, &chunk, UINT32_MAX);
        if (!coordinator_session_put_chunk(r->fork, &chunk))
            abort();
    }
    coordinator_chunk_counts(r->sessions, &r->copy, UINT32_MAX);
    if (r->copying && !coordinator_session_put_chunk(r->fork, &r->copy))
        abort();
    for (uint32_t l = 0; l < spec->layers && r->length; l++)
        if (proto_spec_stores(spec, l) && !coordinator_rangeset_add(&r->fork->layers[l], 0, r->length, NULL))
            abort();
    coordinator_session_count_tokens(r->fork);
    return COMMON_OK;
}

static void fork_copy(void *arg, enum common_code checked, const char *text)
{
    struct reshape *r = arg;
    struct proto_status status;
    if (copy_is_wrong(r, checked, text) || fork_again(r))
        return;
    if (make_fork(r, &status) != COMMON_OK) {
        r->refusal = status;
        if (status.code == COMMON_RESOURCE_EXHAUSTED &&
            r->sessions->hooks->make_room(r->sessions, &status, r->s->tenant, r->s, fork_has_room, r))
            return;
        reshape_fail(r, &status);
        reshape_end(r);
        return;
    }
    struct coordinator_gather *gather = coordinator_gather_new(&r->sessions->core->turn, fork_copied, r);
    for (uint32_t i = 0; i < r->fork->n_members; i++)
        coordinator_layout_send_all(r->fork, r->fork->members[i], gather);
    if (r->copying)
        send_copy(r, r->fork->id, r->fork->incarnation, gather);
    coordinator_gather_seal(gather);
}

static void fork_alone(void *arg, struct coordinator_session *s)
{
    COMMON_FAILPOINT("fork_begun");
    struct reshape *r = arg;
    struct proto_status status;
    if (reshape_gone(r, s))
        return;
    if (coordinator_key_known(r->sessions, s->tenant, r->key, r->request)) { // made while this one waited
        reshape_end(r);
        return;
    }
    uint64_t shortest = coordinator_session_length(s);
    enum common_code code = coordinator_session_missing(s, 0, r->length ? r->length : 1, 0, &status);
    if (code == COMMON_OK && r->length > shortest)
        code = coordinator_session_unsettled_any(s, r->length, &status);
    if (code == COMMON_OK && r->length > shortest)
        code = proto_status_set(&status, COMMON_OUT_OF_RANGE, PROTO_REASON_PAST_END,
                                "a fork at %" PRIu64 " is past the end: the shortest layer has %" PRIu64
                                " tokens",
                                r->length, shortest);
    if (code == COMMON_OK)
        code = coordinator_forget_check(s, r->length, "a fork", &status);
    if (code == COMMON_OK)
        code = plan_copy(r, &status);
    if (code != COMMON_OK) {
        reshape_fail(r, &status);
        reshape_end(r);
        return;
    }
    copy_when_right(r, fork_copy);
}

void coordinator_handle_session_fork(void *arg, struct proto_request *request)
{
    const Banyan__Pb__SessionForkRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_session *s = coordinator_session_asked(arg, request, m->session);
    struct proto_status status;
    // A fork is its origin's tenant's, whoever asks.
    uint32_t tenant = s ? s->tenant : proto_request_identity(request)->tenant;
    if (coordinator_key_known(arg, tenant, m->key, request) ||
        (s && coordinator_park(s, request, coordinator_handle_session_fork, arg)))
        return;
    if (coordinator_name_check(m->name, &status) != COMMON_OK ||
        coordinator_states_check(arg, tenant, m->name, &status) != COMMON_OK) {
        proto_request_fail_status(request, &status);
        return;
    }
    struct reshape as = {.sessions = arg, .length = m->length, .key = m->key, .idle_ttl_ns = m->idle_ttl_ns};
    snprintf(as.name, sizeof(as.name), "%s", m->name);
    reshape_start(&as, request, m->session, COORDINATOR_SESSION_FORKING, fork_alone);
}

void coordinator_session_fork_for(struct coordinator_session *s, struct proto_request *request,
                                  const struct coordinator_fork_wish *wish)
{
    struct reshape as = {.sessions = s->sessions,
                         .length = wish->length,
                         .key = wish->key,
                         .idle_ttl_ns = wish->idle_ttl_ns,
                         .wish = *wish};
    snprintf(as.name, sizeof(as.name), "%s", wish->name);
    as.wish.name = NULL; // the caller's
    reshape_start(&as, request, s->id, COORDINATOR_SESSION_FORKING, fork_alone);
}

// ---- delete -------------------------------------------------------------------------------------

static void delete_told(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("delete_told");
    struct proto_request *request = arg;
    (void)code, (void)text; // a worker that did not hear of it drops the session when it comes back
    if (!request)
        return;
    Banyan__Pb__SessionDeleteReply m = BANYAN__PB__SESSION_DELETE_REPLY__INIT;
    proto_request_reply(request, &m.base, NULL, 0, NULL, NULL);
}

static void reshape_end_discard(struct reshape *r, enum common_code code)
{
    coordinator_discarded_fn fn = r->discarded;
    void *arg = r->discarded_arg;
    reshape_end(r);
    if (fn)
        fn(arg, code);
}

static void delete_stored(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("delete_stored");
    struct reshape *r = arg;
    bool stays = code != COMMON_OK && !r->sessions->core->stopping;
    coordinator_key_settle(r->s, stays ? COMMON_OK : COMMON_UNAVAILABLE,
                           "the session has been deleted meanwhile: try again");
    if (code != COMMON_OK) {
        reshape_fail_stored(r, code, text);
        reshape_end_discard(r, code);
        return;
    }
    coordinator_session_note(r->s, SESSION_DELETED, INFO, "%s session=%016" PRIx64 " chunks=%u",
                             r->why ? r->why : "deleted by a client", r->s->id, r->s->layout.n);
    struct coordinator_gather *gather =
        coordinator_gather_new(&r->sessions->core->turn, delete_told, r->request);
    coordinator_session_drop_at_workers(r->s, gather);
    for (uint32_t i = 0; i < r->s->layout.n; i++)
        coordinator_session_memory_back(r->s, &r->s->layout.chunks[i]);
    struct coordinator_session *states = coordinator_states_of(r->s);
    if (states) // where it cannot begin now, a tick does it
        (void)coordinator_session_discard(states, STATES_LEFT, NULL, NULL);
    coordinator_session_destroy(r->s);
    if (r->discarded)
        r->discarded(r->discarded_arg, COMMON_OK);
    free(r);
    coordinator_gather_seal(gather);
}

static void delete_alone(void *arg, struct coordinator_session *s)
{
    COMMON_FAILPOINT("delete_begun");
    struct reshape *r = arg;
    if (s && r->idle_ns && (s->last_used_ns != r->idle_ns || s->n_waiting || s->doors)) { // it is used again
        r->s = s;
        reshape_end(r);
        return;
    }
    if (!s && r->discarded)
        r->discarded(r->discarded_arg, COMMON_NOT_FOUND);
    if (reshape_gone(r, s))
        return;
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_session_drop(batch, s->id);
    coordinator_store_submit(r->sessions->store, batch, delete_stored, r);
}

void coordinator_handle_session_delete(void *arg, struct proto_request *request)
{
    const Banyan__Pb__SessionDeleteRequest *m = (const void *)proto_request_message(request)->body;
    reshape_start(&(struct reshape){.sessions = arg}, request, m->session, COORDINATOR_SESSION_DELETING,
                  delete_alone);
}

void coordinator_session_reclaim_states(struct coordinator_session *s)
{
    if (coordinator_session_open(s))
        (void)coordinator_session_discard(s, STATES_LEFT, NULL, NULL);
}

void coordinator_session_reclaim(struct coordinator_session *s)
{
    struct reshape *r = coordinator_alloc(sizeof(*r));
    *r = (struct reshape){.sessions = s->sessions,
                          .idle_ns = s->last_used_ns,
                          .why = "unused for its time to live"};
    common_log_info("an idle session was deleted session=%016" PRIx64 " name=%s", s->id, s->name);
    if (coordinator_session_exclusive(s, COORDINATOR_SESSION_DELETING, delete_alone, r) != COMMON_OK)
        free(r); // it is not idle after all
}

bool coordinator_session_discard(struct coordinator_session *s, const char *why, coordinator_discarded_fn fn,
                                 void *arg)
{
    struct reshape *r = coordinator_alloc(sizeof(*r));
    *r = (struct reshape){.sessions = s->sessions, .why = why, .discarded = fn, .discarded_arg = arg};
    bool begun = coordinator_session_exclusive(s, COORDINATOR_SESSION_DELETING, delete_alone, r) == COMMON_OK;
    if (!begun)
        free(r);
    return begun;
}
