// SPDX-License-Identifier: Apache-2.0
#include "coordinator/check/seals.h"

#include <inttypes.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/hash/hash.h"
#include "common/log/log.h"
#include "common/loop/machine.h"
#include "coordinator/cluster/gather.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/layout_send.h"
#include "coordinator/sync/repair.h"
#include "coordinator/sync/returned.h"
#include "proto/model/spec.h"

#define AGAIN_NS    (5 * COMMON_NS_PER_S)    // after a check that came to nothing
#define DISPUTED_NS (3600 * COMMON_NS_PER_S) // after one that nobody can decide
#define BYTES_PER_S (UINT64_C(256) << 20)    // in the background, at each worker: some 2 % of one core
#define CHUNK_S     2                        // one chunk takes so long at most: its call has a deadline

enum check_state { CHECK_ASKING, CHECK_TWICE, CHECK_STORING, CHECK_OVER, CHECK_STATES };

#define TO(state) (1u << CHECK_##state)
const struct common_machine coordinator_check_machine = {
    .name = "check",
    .n = CHECK_STATES,
    .states = {"asking", "twice", "storing", "over"},
    .next = {[CHECK_ASKING] = TO(TWICE) | TO(STORING) | TO(OVER),
             [CHECK_TWICE] = TO(STORING) | TO(OVER),
             [CHECK_STORING] = TO(OVER),
             [CHECK_OVER] = 0},
};

struct asked { // one holder
    struct check *check;
    struct coordinator_worker *w; // its record stays: a visitor
    uint32_t visit;               // of the worker when it was asked
    bool answered;                // with a seal
    bool knows_none;              // it is of a build that knows no sums
    uint64_t want; // what it is to look for in its files, where its memory has something else; 0: nothing
    uint64_t seal;
};

struct check {
    struct coordinator_sessions *sessions;
    uint64_t session, id; // of the chunk
    uint32_t index;
    enum check_state state;
    uint32_t for_ask; // chunk.asked when it began
    bool in_haste;
    uint32_t n, waiting;
    struct asked asked[COORDINATOR_COPIES_MAX];
    uint64_t seal; // STORING
    coordinator_checked_fn done;
    void *arg;
};

static void set_state(struct check *c, enum check_state state)
{
    common_machine_move(&coordinator_check_machine, c->state, state);
    c->state = state;
}

// ---- what may be checked ------------------------------------------------------------------------

bool coordinator_chunk_full(const struct coordinator_session *s, const struct coordinator_chunk *chunk)
{
    uint64_t ct = s->layout.chunk_tokens;
    bool any = false;
    for (uint32_t l = s->first_layer; l < s->spec->layers; l++) {
        if (!proto_spec_keeps(s->spec, l))
            continue;
        if (!coordinator_rangeset_contains(&s->layers[l], chunk->index * ct, ct))
            return false;
        any = true;
    }
    return any;
}

// All are there, have said what they have, and know sums.
static bool may_seal(const struct coordinator_session *s, const struct coordinator_chunk *chunk)
{
    if (!chunk->known || coordinator_chunk_unfit(chunk) || chunk->leaving || chunk->moving || s->named ||
        s->repairing || s->awaited || !coordinator_session_chunk_whole(chunk))
        return false;
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++)
        if (!coordinator_worker_sums(coordinator_chunk_holder(chunk, i)))
            return false;
    return coordinator_chunk_full(s, chunk);
}

// A fork changes no full chunk: a session that is forked all the time is sealed, too.
static bool stays(const struct coordinator_session *s)
{
    return s->state == COORDINATOR_SESSION_ACTIVE || s->state == COORDINATOR_SESSION_FORKING;
}

bool coordinator_chunk_may_check(const struct coordinator_session *s, const struct coordinator_chunk *chunk)
{
    return stays(s) && !s->withheld && !s->broken && !s->sessions->core->stopping && chunk->ready &&
           !chunk->lost && !chunk->checking && !coordinator_returned_holder(s, chunk) &&
           (chunk->seal ? coordinator_session_chunk_usable(chunk) : may_seal(s, chunk));
}

// Chunks that came together are compared apart from each other.
void coordinator_chunk_sealed(struct coordinator_session *s, struct coordinator_chunk *chunk, uint64_t seal)
{
    uint64_t period = s->sessions->core->options.scrub_ns;
    chunk->seal = seal;
    chunk->differ = false;
    chunk->check_ns = period ? common_clock_ns() + common_mix64(chunk->id) % period : UINT64_MAX;
}

void coordinator_seals_spread(struct coordinator_sessions *sessions)
{
    uint64_t now = common_clock_ns();
    for (uint32_t i = 0; i < sessions->n_slots; i++) {
        struct coordinator_session *s = sessions->slots[i];
        for (uint32_t k = 0; s && k < s->layout.n; k++) {
            struct coordinator_chunk *chunk = &s->layout.chunks[k];
            if (chunk->seal && chunk->check_ns > now)
                coordinator_chunk_sealed(s, chunk, chunk->seal);
        }
    }
}

void coordinator_chunk_ask(struct coordinator_session *s, struct coordinator_chunk *chunk)
{
    struct coordinator_seals *seals = s->sessions->seals;
    seals->asks += seals->asks + 1 ? 1 : 2; // 0 is nobody
    chunk->asked = seals->asks;
    chunk->check_ns = common_clock_ns();
    seals->due = true;
    coordinator_turn_mark(&s->sessions->core->turn, COORDINATOR_PHASE_SESSIONS);
}

// ---- the end ------------------------------------------------------------------------------------

static struct coordinator_session *session_of(const struct check *c)
{
    return coordinator_session_any(c->sessions, c->session);
}

// NULL: it is not there any more, as it was.
static struct coordinator_chunk *chunk_of(const struct check *c)
{
    const struct coordinator_session *s = session_of(c);
    struct coordinator_chunk *chunk = s ? coordinator_layout_find(&s->layout, c->index) : NULL;
    return chunk && chunk->id == c->id ? chunk : NULL;
}

// next_ns: when it is looked at again; 0: as it is. over: whoever has asked for it has what he wanted.
static void check_over(struct check *c, enum common_code code, const char *text, uint64_t next_ns, bool over)
{
    struct coordinator_chunk *chunk = chunk_of(c);
    set_state(c, CHECK_OVER);
    if (chunk) {
        chunk->checking -= chunk->checking > 0;
        chunk->asked = over && chunk->asked == c->for_ask ? 0 : chunk->asked;
        if (over && chunk->asked) // since it began
            next_ns = common_clock_ns();
        chunk->check_ns = next_ns ? next_ns : chunk->check_ns;
    }
    for (uint32_t i = 0; i < c->n; i++)
        c->asked[i].w->visitors--;
    c->sessions->seals->n--;
    c->sessions->seals->due = true;
    coordinator_turn_mark(&c->sessions->core->turn, COORDINATOR_PHASE_SESSIONS);
    if (c->done)
        c->done(c->arg, code, text);
    free(c);
}

// ---- judging ------------------------------------------------------------------------------------

// The copy that it has answered for, while it still counts and the worker has not been told anything else since.
static uint32_t copy_of(const struct asked *a, const struct coordinator_chunk *chunk)
{
    uint32_t copy = coordinator_chunk_copy_at(chunk, a->w);
    bool counts = copy < COORDINATOR_COPIES_MAX && !(coordinator_chunk_unfit(chunk) & 1u << copy) &&
                  a->w->visit == a->visit;
    return counts ? copy : COORDINATOR_COPIES_MAX;
}

static uint32_t votes_for(const struct check *c, const struct coordinator_chunk *chunk, uint64_t seal)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i++)
        n += c->asked[i].answered && c->asked[i].seal == seal &&
             copy_of(&c->asked[i], chunk) < COORDINATOR_COPIES_MAX;
    return n;
}

// What all copies should have: the seal, or what more than half of all the holders say. 0: nobody can tell.
static uint64_t right_seal(const struct check *c, const struct coordinator_chunk *chunk)
{
    if (chunk->seal)
        return chunk->seal;
    for (uint32_t i = 0; i < c->n; i++)
        if (c->asked[i].answered &&
            2 * votes_for(c, chunk, c->asked[i].seal) > coordinator_chunk_copies(chunk))
            return c->asked[i].seal;
    return 0;
}

static bool all_answered(const struct check *c, const struct coordinator_chunk *chunk)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i++)
        n += c->asked[i].answered && copy_of(&c->asked[i], chunk) < COORDINATOR_COPIES_MAX;
    return n == coordinator_chunk_copies(chunk);
}

static bool any_differs(const struct check *c, const struct coordinator_chunk *chunk, uint64_t right)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->asked[i].answered && c->asked[i].seal != right &&
            copy_of(&c->asked[i], chunk) < COORDINATOR_COPIES_MAX)
            return true;
    return false;
}

static void report(const struct check *c, const struct coordinator_session *s, const struct asked *a,
                   uint64_t right, const char *what)
{
    uint64_t ct = s->layout.chunk_tokens;
    const struct coordinator_event event = {.kind =
                                                right ? PROTO_EVENT_COPY_CORRUPT : PROTO_EVENT_COPY_DISPUTED,
                                            .severity = PROTO_EVENT_ERROR,
                                            .worker = a->w->name,
                                            .session = s->id,
                                            .session_name = s->name,
                                            .epoch = s->layout.epoch};
    coordinator_events_tell(s->sessions->core->events, &event,
                            "%s worker=%s session=%016" PRIx64 " tokens=%" PRIu64 "..%" PRIu64
                            " chunk=%" PRIu64 " has=%016" PRIx64 " sealed=%016" PRIx64,
                            what, a->w->name, c->session, c->index * ct, (c->index + 1) * ct - 1, c->id,
                            a->seal, right);
}

static void let_go_told(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("loss_told");
    struct coordinator_session *s = arg;
    (void)text;
    if (code != COMMON_OK)
        coordinator_session_doubt_all(s);
    coordinator_session_release(s);
}

// Workers let go of what is lost, once no step looks at it any more: another session that shares it may have it copied
// there again.
static void let_go_alone(void *arg, struct coordinator_session *s)
{
    (void)arg;
    if (!s)
        return;
    struct coordinator_gather *gather = coordinator_gather_new(&s->sessions->core->turn, let_go_told, s);
    coordinator_layout_send_members(s, gather);
    coordinator_gather_seal(gather);
}

struct losing { // of a chunk
    struct coordinator_sessions *sessions;
    uint64_t session, id;
    uint32_t index;
};

void coordinator_chunk_keep(struct coordinator_session *s, struct coordinator_chunk *chunk)
{
    struct coordinator_batch *batch = coordinator_batch_new();
    chunk->lost = false;
    coordinator_session_recount(s);
    coordinator_batch_copies(batch, s->id, chunk);
    coordinator_store_submit(s->sessions->store, batch, NULL,
                             NULL); // once more when the others are struck off
}

static void lost_stored(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("loss_stored");
    struct losing l = *(struct losing *)arg;
    struct coordinator_session *s = coordinator_session_any(l.sessions, l.session);
    struct coordinator_chunk *chunk = s ? coordinator_layout_find(&s->layout, l.index) : NULL;
    free(arg);
    (void)text;
    if (!chunk || chunk->id != l.id)
        return;
    chunk->losing = false; // where the store has refused: with the next look
    if (code != COMMON_OK)
        return;
    if (!coordinator_chunk_all_unfit(chunk)) { // a move has been stored meanwhile
        coordinator_chunk_keep(s, chunk);
        return;
    }
    chunk->lost = true;
    coordinator_session_recount(s);
    (void)coordinator_session_exclusive(s, COORDINATOR_SESSION_RELAYOUT, let_go_alone, NULL);
}

void coordinator_chunk_lose(struct coordinator_session *s, struct coordinator_chunk *chunk)
{
    struct losing *l = coordinator_alloc(sizeof(*l));
    *l = (struct losing){.sessions = s->sessions, .session = s->id, .id = chunk->id, .index = chunk->index};
    struct coordinator_batch *batch = coordinator_batch_new();
    chunk->losing = true;
    coordinator_batch_chunk_lost(batch, s->id, chunk->index, chunk->id);
    coordinator_store_submit(s->sessions->store, batch, lost_stored, l);
}

// The worker's memory of the chunk is wrong in every session that shares it. With the last copy the chunk is lost; until
// the store has that it is unavailable.
static void strike_in(struct coordinator_session *s, struct coordinator_chunk *chunk,
                      const struct coordinator_worker *w)
{
    uint32_t copy = coordinator_chunk_copy_at(chunk, w);
    if (copy == COORDINATOR_COPIES_MAX || chunk->lost || (coordinator_chunk_unfit(chunk) & 1u << copy))
        return;
    chunk->wrong |= (uint8_t)(1u << copy);
    if (coordinator_chunk_all_unfit(chunk))
        coordinator_chunk_lose(s, chunk);
    coordinator_session_recount(s);
    if (s->awaited)
        coordinator_session_settle(s);
}

static void strike_everywhere(struct check *c, const struct coordinator_worker *w)
{
    const struct coordinator_sessions *sessions = c->sessions;
    for (uint32_t i = 0; i < sessions->n_slots; i++) {
        struct coordinator_session *s = sessions->slots[i];
        struct coordinator_chunk *chunk = s ? coordinator_layout_find(&s->layout, c->index) : NULL;
        if (chunk && chunk->id == c->id)
            strike_in(s, chunk, w);
    }
}

// No step uses these copies again.
static void strike_off(struct check *c, const struct coordinator_session *s,
                       const struct coordinator_chunk *chunk, uint64_t right)
{
    for (uint32_t i = 0; i < c->n; i++) {
        struct asked *a = &c->asked[i];
        uint32_t copy = copy_of(a, chunk), all = (1u << coordinator_chunk_copies(chunk)) - 1;
        if (!a->answered || a->seal == right || copy == COORDINATOR_COPIES_MAX)
            continue;
        bool last = (coordinator_chunk_unfit(chunk) | 1u << copy) == all;
        report(c, s, a, right,
               last ? "a worker's memory does not match the seal, and no other copy is left: these tokens "
                      "are lost"
                    : "a worker's memory does not match the seal: its copy was removed");
        c->sessions->seals->corrupt++;
        strike_everywhere(c, a->w);
    }
}

static void sealed(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("seal_stored");
    struct check *c = arg;
    struct coordinator_chunk *chunk = chunk_of(c);
    if (code != COMMON_OK) {
        check_over(c, COMMON_UNAVAILABLE, text, common_clock_after(AGAIN_NS), false);
        return;
    }
    if (chunk) {
        c->sessions->seals->sealed++;
        coordinator_chunk_sealed(session_of(c), chunk, c->seal);
    }
    check_over(c, COMMON_OK, "", 0, true);
}

static void store_seal(struct check *c, const struct coordinator_session *s, uint64_t seal)
{
    uint64_t ct = s->layout.chunk_tokens;
    struct coordinator_batch *batch = coordinator_batch_new();
    c->seal = seal;
    set_state(c, CHECK_STORING);
    coordinator_batch_seal(batch, c->session, c->index, c->id, seal);
    for (uint32_t l = s->first_layer; l < s->spec->layers;
         l++) // what is sealed is there, whoever is left to say so
        if (proto_spec_keeps(s->spec, l))
            coordinator_batch_range(batch, c->session, l, c->index * ct, ct);
    coordinator_store_submit(c->sessions->store, batch, sealed, c);
}

static void disputed(struct check *c, const struct coordinator_session *s, struct coordinator_chunk *chunk)
{
    c->sessions->seals->disputed++;
    chunk->differ = true;
    for (uint32_t i = 0; i < c->n; i++)
        if (copy_of(&c->asked[i], chunk) < COORDINATOR_COPIES_MAX)
            report(c, s, &c->asked[i], 0,
                   "workers have different rows of a full chunk, and it is unknown whose are right");
    check_over(c, COMMON_OK, "", common_clock_after(DISPUTED_NS), true);
}

static uint64_t next_turn(const struct check *c, const struct coordinator_chunk *chunk)
{
    uint64_t period = c->sessions->core->options.scrub_ns, now = common_clock_ns();
    if (!period)
        return UINT64_MAX;
    return now + (c->for_ask ? common_mix64(chunk->id) % period : period); // asked: many at a time
}

static void judge_sealed(struct check *c, const struct coordinator_chunk *chunk, bool struck)
{
    bool asked_all = true;
    for (uint32_t i = 0; i < c->n; i++)
        asked_all = asked_all && (c->asked[i].answered || c->asked[i].knows_none) &&
                    copy_of(&c->asked[i], chunk) < COORDINATOR_COPIES_MAX;
    if (coordinator_chunk_all_unfit(chunk))
        check_over(c, COMMON_DATA_LOSS, "no worker has the sealed rows any longer", next_turn(c, chunk),
                   true);
    else if (struck)
        check_over(c, COMMON_UNAVAILABLE, "a copy was removed: it does not match the seal",
                   next_turn(c, chunk), true);
    else if (!asked_all || c->n < coordinator_chunk_copies(chunk))
        check_over(c, COMMON_UNAVAILABLE, "not all workers reported what they have",
                   common_clock_after(AGAIN_NS), false);
    else
        check_over(c, COMMON_OK, "", next_turn(c, chunk), true);
}

static void ask_all(struct check *c);

// What the others say, where they agree; else what the next one says that says something else. So of two that differ
// each looks for the other's rows in its own files, and whose files have them was wrong.
static uint64_t want_of(const struct check *c, uint32_t nth, uint64_t right)
{
    for (uint32_t i = 1; i < c->n && !right; i++) {
        const struct asked *other = &c->asked[(nth + i) % c->n];
        right = other->answered && other->seal != c->asked[nth].seal ? other->seal : 0;
    }
    return right;
}

static void judge(struct check *c)
{
    const struct coordinator_session *s = session_of(c);
    struct coordinator_chunk *chunk = chunk_of(c);
    if (!chunk || c->sessions->core->stopping) {
        check_over(c, COMMON_UNAVAILABLE, "the chunk is gone", 0, false);
        return;
    }
    if (!chunk->seal && (!all_answered(c, chunk) || chunk->moving || chunk->lost || !stays(s))) {
        check_over(c, COMMON_OK, "", common_clock_after(AGAIN_NS), false);
        return;
    }
    uint64_t right = right_seal(c, chunk);
    bool differs = any_differs(c, chunk, right);
    if (differs && c->state == CHECK_ASKING) { // what was read wrongly once, and not twice, is there
        set_state(c, CHECK_TWICE);
        for (uint32_t i = 0; i < c->n; i++)
            c->asked[i].want = want_of(c, i, right);
        ask_all(c);
        return;
    }
    if (!right) {
        disputed(c, s, chunk);
        return;
    }
    for (uint32_t i = 0; i < c->n; i++)
        c->sessions->seals->compared += c->asked[i].answered;
    if (differs) {
        COMMON_FAILPOINT("wrong_found");
        strike_off(c, s, chunk, right);
        COMMON_FAILPOINT("wrong_struck");
    }
    if (chunk->seal)
        judge_sealed(c, chunk, differs);
    else
        store_seal(c, s, right);
}

// ---- asking -------------------------------------------------------------------------------------

void coordinator_seal_call(const struct coordinator_session *s, const struct coordinator_chunk *chunk,
                           struct coordinator_worker *w, uint64_t want, bool in_haste,
                           void (*done)(void *arg, const struct proto_reply *reply), void *arg)
{
    Banyan__Pb__ChunkSumRequest m = BANYAN__PB__CHUNK_SUM_REQUEST__INIT;
    uint64_t least = coordinator_session_chunk_bytes(s) / CHUNK_S;
    m.term = s->sessions->core->term;
    m.session = s->id;
    m.incarnation = s->incarnation;
    m.chunk = chunk->id;
    m.first = (uint64_t)chunk->index * s->layout.chunk_tokens;
    m.want = want;
    m.bytes_per_s = in_haste ? 0 : least > BYTES_PER_S ? least : BYTES_PER_S;
    coordinator_worker_call(w, BANYAN__PB__METHOD__METHOD_CHUNK_SUM, &m.base, done, arg);
}

static void tell_healed(const struct check *c, const struct coordinator_worker *w, uint64_t n)
{
    const struct coordinator_session *s = session_of(c);
    const struct coordinator_event event = {.kind = PROTO_EVENT_COPY_HEALED,
                                            .severity = PROTO_EVENT_WARN,
                                            .worker = w->name,
                                            .session = c->session,
                                            .session_name = s ? s->name : ""};
    coordinator_events_tell(
        c->sessions->core->events, &event,
        "a worker's memory did not match the seal and was reloaded from its files worker=%s "
        "session=%016" PRIx64 " chunk=%" PRIu64 " copies=%" PRIu64,
        w->name, c->session, c->id, n);
}

static void came(void *arg, const struct proto_reply *reply)
{
    COMMON_FAILPOINT("seal_answered");
    struct asked *a = arg;
    struct check *c = a->check;
    a->w->sums--;
    a->answered = reply->code == COMMON_OK;
    if (a->answered) {
        const Banyan__Pb__ChunkSumReply *m = (const void *)reply->message->body;
        a->seal = m->seal;
        c->sessions->seals->healed += m->healed;
        if (m->healed) {
            COMMON_FAILPOINT("heal_answered");
            tell_healed(c, a->w, m->healed);
        }
    }
    a->knows_none = reply->code == COMMON_UNIMPLEMENTED;
    if (a->knows_none && a->w->visit == a->visit) {
        if (coordinator_worker_sums(a->w))
            common_log_warn(
                "a worker's older build cannot compute checksums: its chunks are not sealed worker=%s",
                a->w->name);
        a->w->sums_unknown = a->w->life;
    }
    if (--c->waiting == 0)
        judge(c);
}

// Each of them, in one turn: a step or a commit that comes between two answers changes nothing of a full chunk.
static void ask_all(struct check *c)
{
    const struct coordinator_session *s = session_of(c);
    const struct coordinator_chunk *chunk = chunk_of(c);
    c->waiting = c->n;
    for (uint32_t i = 0; i < c->n; i++) {
        struct asked *a = &c->asked[i];
        a->visit = a->w->visit;
        a->answered = a->knows_none = false;
        a->w->sums++;
        coordinator_seal_call(s, chunk, a->w, a->want, c->in_haste, came, a);
    }
}

void coordinator_check_begin(struct coordinator_session *s, struct coordinator_chunk *chunk, bool in_haste,
                             coordinator_checked_fn done, void *arg)
{
    struct check *c = coordinator_alloc(sizeof(*c));
    *c = (struct check){.sessions = s->sessions,
                        .session = s->id,
                        .id = chunk->id,
                        .index = chunk->index,
                        .for_ask = chunk->asked,
                        .in_haste = in_haste,
                        .done = done,
                        .arg = arg};
    chunk->checking++;
    s->sessions->seals->n++;
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++) {
        if (!coordinator_session_copy_usable(chunk, i))
            continue;
        c->asked[c->n].check = c;
        c->asked[c->n].want = chunk->seal;
        c->asked[c->n].w = coordinator_chunk_holder(chunk, i);
        c->asked[c->n++].w->visitors++;
    }
    ask_all(c);
}

// The chunk of the session that it was forked from, if they share it yet; NULL: it is by itself.
static struct coordinator_chunk *of_origin(const struct coordinator_session *s,
                                           const struct coordinator_chunk *chunk,
                                           struct coordinator_session **origin)
{
    *origin = s->origin ? coordinator_session_any(s->sessions, s->origin) : NULL;
    struct coordinator_chunk *same =
        *origin ? coordinator_layout_find(&(*origin)->layout, chunk->index) : NULL;
    return same && same->id == chunk->id && !same->lost ? same : NULL;
}

// The memory is the same: it is summed once, for the origin, not once for each fork. False: the origin cannot be checked.
static bool origin_checks(struct coordinator_chunk *chunk, struct coordinator_session *origin,
                          struct coordinator_chunk *same)
{
    struct coordinator_session *before;
    if (!same->checking && !coordinator_chunk_may_check(origin, same))
        return false;
    chunk->differ = same->differ;
    if (same->check_ns > chunk->check_ns)
        chunk->check_ns = same->check_ns;
    // One that is a fork itself waits for its own, or takes that seal over, when it is looked at.
    if (!same->checking && same->check_ns <= common_clock_ns() && !of_origin(origin, same, &before))
        coordinator_check_begin(origin, same, false, NULL, NULL);
    return true;
}

bool coordinator_seal_inherit(struct coordinator_session *s, struct coordinator_chunk *chunk)
{
    struct coordinator_session *origin;
    struct coordinator_chunk *same = chunk->seal ? NULL : of_origin(s, chunk, &origin);
    if (!same)
        return false;
    if (!same->seal) // who asks for this session's wants them compared now
        return !chunk->asked && origin_checks(chunk, origin, same);
    struct check *c = coordinator_alloc(sizeof(*c));
    *c = (struct check){.sessions = s->sessions,
                        .session = s->id,
                        .id = chunk->id,
                        .index = chunk->index,
                        .for_ask = chunk->asked,
                        .seal = same->seal};
    chunk->checking++;
    s->sessions->seals->n++;
    set_state(c, CHECK_STORING);
    struct coordinator_batch *batch =
        coordinator_batch_new(); // a fork's rows are in the store since it was made
    coordinator_batch_seal(batch, c->session, c->index, c->id, c->seal);
    coordinator_store_submit(c->sessions->store, batch, sealed, c);
    return true;
}
