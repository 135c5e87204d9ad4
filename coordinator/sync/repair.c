// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sync/repair.h"

#include <inttypes.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/sync/moving.h"
#include "coordinator/sync/named.h"

enum { TRIES = 4, WINDOW = 32, LOGS_A_SECOND = 10 };
#define PAUSE_FIRST_NS (10 * COMMON_NS_PER_MS)
#define PAUSE_MOST_NS  (5 * COMMON_NS_PER_S)

enum repair_state { REPAIR_QUEUED, REPAIR_RUNNING, REPAIR_RESTING, REPAIR_OVER, REPAIR_STATES };

struct coordinator_repair {
    struct coordinator_repair *next; // of its session
    struct common_list link;         // QUEUED: in its worker's list
    struct coordinator_sessions *sessions;
    struct coordinator_session *s; // NULL: nobody waits for it; it ends with the visit that is under way
    struct coordinator_worker *w;  // its record stays while there are visitors
    struct common_timer *timer;    // RESTING: the pause
    uint64_t session;
    uint32_t
        visit; // w->visit when it began: another one means that the worker has been told everything since
    enum repair_state state;
    bool again; // doubted while RUNNING
    bool broken;
    uint32_t tries;
};

#define TO(state) (1u << REPAIR_##state)
const struct common_machine coordinator_repair_machine = {
    .name = "repair",
    .n = REPAIR_STATES,
    .states = {"queued", "running", "resting", "over"},
    .next =
        {
            [REPAIR_QUEUED] = TO(RUNNING) | TO(OVER),
            [REPAIR_RUNNING] = TO(RESTING) | TO(OVER),
            [REPAIR_RESTING] = TO(QUEUED) | TO(OVER),
            [REPAIR_OVER] = 0,
        },
};

static void repair_set_state(struct coordinator_repair *r, enum repair_state state)
{
    common_machine_move(&coordinator_repair_machine, r->state, state);
    r->state = state;
}

// ---- who waits for it ---------------------------------------------------------------------------

static struct coordinator_repair *repair_of(const struct coordinator_session *s,
                                            const struct coordinator_worker *w)
{
    struct coordinator_repair *r = s->repairs;
    while (r && r->w != w)
        r = r->next;
    return r;
}

bool coordinator_session_in_doubt(const struct coordinator_session *s, const struct coordinator_worker *w)
{
    return repair_of(s, w) != NULL;
}

static void repair_leave(struct coordinator_repair *r)
{
    struct coordinator_session *s = r->s;
    struct coordinator_repair **at = &s->repairs;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    *(r->broken ? &s->broken : &s->repairing) -= 1;
    r->s = NULL;
    coordinator_session_recount(s);
    coordinator_session_settle(s);
}

static void repair_free(struct coordinator_repair *r)
{
    repair_set_state(r, REPAIR_OVER);
    if (r->s)
        repair_leave(r);
    r->w->visitors--;
    common_list_remove(&r->link);
    common_timer_free(r->timer);
    free(r);
}

// The session need not wait any more.
static void repair_give_up(struct coordinator_repair *r)
{
    if (r->state == REPAIR_RUNNING)
        repair_leave(r);
    else
        repair_free(r);
}

// ---- trying -------------------------------------------------------------------------------------

static bool may_log(struct coordinator_sessions *sessions)
{
    uint64_t now = common_clock_ns();
    if (now - sessions->logging_since_ns >= COMMON_NS_PER_S) {
        if (sessions->logged > LOGS_A_SECOND)
            common_log_error("more sessions could not be repaired sessions=%u",
                             sessions->logged - LOGS_A_SECOND);
        sessions->logging_since_ns = now;
        sessions->logged = 0;
    }
    return ++sessions->logged <= LOGS_A_SECOND;
}

static void repair_break(struct coordinator_repair *r, enum common_code code, const char *text)
{
    r->broken = true;
    r->s->repairing--;
    r->s->broken++;
    coordinator_session_recount(r->s);
    coordinator_session_settle(r->s);
    const struct coordinator_event event = {.kind = PROTO_EVENT_WORKER_TROUBLE,
                                            .severity = PROTO_EVENT_ERROR,
                                            .worker = r->w->name,
                                            .session = r->session,
                                            .session_name = r->s->name};
    if (may_log(r->sessions))
        coordinator_events_tell(r->sessions->core->events, &event,
                                "a worker rejects an update of a session: %s code=%s worker=%s "
                                "session=%016" PRIx64,
                                text, common_code_name(code), r->w->name, r->session);
}

static void repair_rest(struct coordinator_repair *r)
{
    uint32_t shift = r->tries < 16 ? r->tries : 16;
    uint64_t pause = PAUSE_FIRST_NS << shift;
    r->tries++;
    repair_set_state(r, REPAIR_RESTING);
    common_timer_start(r->timer, pause < PAUSE_MOST_NS ? pause : PAUSE_MOST_NS, false);
}

static void repair_run(struct coordinator_repair *r);

// Those of a worker whose link has broken end when that is drained (coordinator_repairs_recheck).
static void next_of_worker(struct coordinator_worker *w)
{
    while (w->repairing < WINDOW && !common_list_empty(&w->repairs) && w->channel &&
           proto_channel_connected(w->channel))
        repair_run(common_list_entry(w->repairs.next, struct coordinator_repair, link));
}

static void repair_told(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("repair_told");
    struct coordinator_repair *r = arg;
    struct coordinator_worker *w = r->w;
    w->repairing--;
    if (r->s)
        coordinator_moves_repaired(r->s, w);
    if (!r->s || r->sessions->core->stopping) {
        repair_free(r);
    } else if (code != COMMON_OK || r->again) {
        bool failed = code != COMMON_OK && !r->again;
        r->again = false;
        r->tries = failed ? r->tries : 0;
        repair_rest(r);
        if (failed && !r->broken && r->tries >= TRIES)
            repair_break(r, code, text);
    } else {
        struct coordinator_session *s = r->s;
        if (r->broken)
            common_log_info("a session was repaired worker=%s session=%016" PRIx64, w->name, r->session);
        repair_free(r);
        coordinator_session_told(s, w); // which may ask for another
    }
    next_of_worker(w);
}

static void repair_run(struct coordinator_repair *r)
{
    common_list_remove(&r->link);
    COMMON_FAILPOINT("repair_begun");
    repair_set_state(r, REPAIR_RUNNING);
    r->w->repairing++;
    r->sessions->hooks->visit(r->sessions, r->w, r->session, repair_told, r);
}

static void repair_queue(struct coordinator_repair *r)
{
    common_list_push(&r->w->repairs, &r->link);
    next_of_worker(r->w);
}

static void pause_over(void *arg)
{
    struct coordinator_repair *r = arg;
    repair_set_state(r, REPAIR_QUEUED);
    repair_queue(r);
}

// ---- doubt --------------------------------------------------------------------------------------

void coordinator_session_doubt(struct coordinator_session *s, struct coordinator_worker *w)
{
    if (s->sessions->core->stopping || s->state == COORDINATOR_SESSION_GONE)
        return;
    if (!coordinator_worker_active(w)) {
        coordinator_session_dirty(s, w);
        return;
    }
    struct coordinator_repair *r = repair_of(s, w);
    s->dirtied = ++s->sessions->dirties; // what a visit under way has told may not be all
    if (r) {
        r->again = r->state == REPAIR_RUNNING; // else it is still to be told
        return;
    }
    r = coordinator_alloc(sizeof(*r));
    *r = (struct coordinator_repair){
        .next = s->repairs, .sessions = s->sessions, .s = s, .w = w, .session = s->id, .visit = w->visit};
    common_list_init(&r->link);
    if (common_timer_new(s->sessions->core->loop, pause_over, r, &r->timer) != COMMON_OK)
        abort();
    s->repairs = r;
    s->repairing++;
    w->visitors++;
    common_log_debug("asking a worker for a session again worker=%s session=%016" PRIx64, w->name, s->id);
    repair_queue(r);
}

void coordinator_session_doubt_all(struct coordinator_session *s)
{
    for (uint32_t i = 0; i < s->n_members; i++)
        coordinator_session_doubt(s, s->members[i]);
}

// ---- told ---------------------------------------------------------------------------------------

// Holders that may have lost rows can be told now which there are: then they are certain.
static void tell_doubtful(struct coordinator_session *s)
{
    for (uint32_t m = 0; m < s->n_members; m++) {
        bool doubtful = false;
        for (uint32_t i = 0; i < s->layout.n; i++) {
            struct coordinator_chunk *chunk = &s->layout.chunks[i];
            uint32_t copy = coordinator_chunk_copy_at(chunk, s->members[m]);
            if (copy == COORDINATOR_COPIES_MAX)
                continue;
            doubtful = doubtful || coordinator_copy_doubtful(&chunk->copies[copy]);
            coordinator_copy_set_doubtful(&chunk->copies[copy], false);
        }
        if (doubtful)
            coordinator_session_doubt(s, s->members[m]);
    }
}

void coordinator_session_told(struct coordinator_session *s, const struct coordinator_worker *w)
{
    bool known = true;
    for (uint32_t i = 0; i < s->layout.n; i++) {
        struct coordinator_chunk *chunk = &s->layout.chunks[i];
        uint32_t copy = coordinator_chunk_copy_at(chunk, w);
        uint32_t all = (1u << coordinator_chunk_copies(chunk)) - 1;
        for (uint32_t c = 0; c < coordinator_chunk_copies(chunk) && copy < COORDINATOR_COPIES_MAX; c++) {
            struct coordinator_copy *of = &chunk->copies[c];
            // One without it has nothing to say; what the others have said counts when it is struck off.
            if (chunk->lost || (c == copy && of->state != COORDINATOR_COPY_GONE))
                coordinator_copy_set_heard(of, true);
            of->untold = of->untold && c != copy;
        }
        coordinator_chunk_set(chunk, coordinator_session_named_short(s, chunk), COORDINATOR_COPY_GONE);
        chunk->known = chunk->known || coordinator_chunk_heard(chunk) == all;
        known = known && chunk->known;
    }
    if (known) {
        coordinator_session_forget_named(s);
        tell_doubtful(s);
    }
    coordinator_session_recount(s);
    if (s->awaited)
        coordinator_session_settle(s);
}

// ---- the end ------------------------------------------------------------------------------------

void coordinator_repairs_recheck(struct coordinator_session *s)
{
    struct coordinator_repair *next;
    for (struct coordinator_repair *r = s->repairs; r; r = next) {
        next = r->next;
        if (!coordinator_worker_active(r->w) || r->w->visit != r->visit)
            repair_give_up(r);
    }
}

void coordinator_repairs_session_gone(struct coordinator_session *s)
{
    while (s->repairs)
        repair_give_up(s->repairs);
}

enum common_code coordinator_repairs_status(const struct coordinator_session *s, uint32_t layer,
                                            struct proto_status *status)
{
    proto_status_set(status, COMMON_UNAVAILABLE, PROTO_REASON_WORKER_LOST,
                     "a worker rejects an update of this session: try again");
    for (const struct coordinator_repair *r = s->repairs; r; r = r->next)
        if (r->broken)
            proto_status_add_worker(status, r->w->name);
    status->session = s->id;
    status->layer = layer;
    return status->code;
}
