// SPDX-License-Identifier: Apache-2.0
#include "coordinator/check/regain.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/log/log.h"
#include "common/loop/machine.h"
#include "coordinator/check/seals.h"
#include "coordinator/cluster/gather.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/layout_send.h"
#include "coordinator/sync/moving.h"
#include "coordinator/sync/repair.h"
#include "coordinator/sync/returned.h"

enum regain_state {
    REGAIN_COMPARING,
    REGAIN_WAITING,
    REGAIN_STORING,
    REGAIN_TELLING,
    REGAIN_OVER,
    REGAIN_STATES
};

#define TO(state) (1u << REGAIN_##state)
const struct common_machine coordinator_regain_machine = {
    .name = "regain",
    .n = REGAIN_STATES,
    .states = {"comparing", "waiting", "storing", "telling", "over"},
    .next = {[REGAIN_COMPARING] = TO(WAITING) | TO(OVER),
             [REGAIN_WAITING] = TO(STORING) | TO(OVER),
             [REGAIN_STORING] = TO(TELLING) | TO(OVER), // OVER: the store refused
             [REGAIN_TELLING] = TO(OVER),
             [REGAIN_OVER] = 0},
};

struct item { // a chunk
    uint32_t index;
    uint64_t id, seal;
};

struct regain { // at one worker
    struct coordinator_sessions *sessions;
    uint64_t session;
    struct coordinator_worker *w; // its record stays: a visitor
    uint32_t visit;               // w->visit when it began
    enum regain_state state;
    struct item items[COORDINATOR_MOVE_CHUNKS];
    uint32_t n, at;
};

static void set_state(struct regain *r, enum regain_state state)
{
    common_machine_move(&coordinator_regain_machine, r->state, state);
    r->state = state;
}

// NULL: it is not there any more, as it was, or it is not lost.
static struct coordinator_chunk *chunk_of(const struct coordinator_session *s, const struct item *item)
{
    struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, item->index);
    return chunk && chunk->id == item->id && chunk->lost && chunk->seal == item->seal ? chunk : NULL;
}

// Whether the worker has it yet, as it was when it was compared, and no move that began before brings another.
static bool has(const struct regain *r, const struct coordinator_session *s,
                const struct coordinator_chunk *chunk)
{
    return !chunk->moving && coordinator_worker_active(r->w) && !r->w->draining && r->w->visit == r->visit &&
           coordinator_returned_has(s, r->w, chunk);
}

static void regain_over(struct regain *r)
{
    struct coordinator_session *s = coordinator_session_any(r->sessions, r->session);
    for (uint32_t i = 0; s && i < r->n; i++) {
        struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, r->items[i].index);
        if (chunk && chunk->id == r->items[i].id)
            chunk->regaining = false;
    }
    set_state(r, REGAIN_OVER);
    r->w->visitors--;
    free(r);
}

// ---- storing ------------------------------------------------------------------------------------

// With this worker as its only holder.
static struct coordinator_chunk regained(const struct regain *r, const struct coordinator_chunk *was)
{
    struct coordinator_chunk chunk = *was;
    uint32_t copies = coordinator_chunk_copies(&chunk);
    if (copies == COORDINATOR_COPIES_MAX) // all are unfit
        coordinator_chunk_strike(&chunk, 1u << --copies, 0);
    coordinator_chunk_expect(&chunk, r->w);
    coordinator_chunk_arrive(&chunk, COORDINATOR_COPY_SYNC);
    coordinator_chunk_strike(&chunk, (1u << copies) - 1, copies);
    coordinator_chunk_counts(r->sessions, &chunk, 1);
    chunk.lost = false;
    chunk.known = true; // all of it is acknowledged: it was sealed
    return chunk;
}

static void told(void *arg, enum common_code code, const char *text)
{
    struct regain *r = arg;
    struct coordinator_session *s = coordinator_session_any(r->sessions, r->session);
    (void)text;
    if (code != COMMON_OK)
        coordinator_session_doubt_all(s);
    regain_over(r);
    coordinator_session_release(s);
}

// What the store has and the worker does not, any more: lost, as before.
static void lose_again(struct coordinator_session *s, const struct coordinator_chunk *chunk)
{
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_copies(batch, s->id, chunk);
    coordinator_store_submit(s->sessions->store, batch, NULL, NULL); // it says so again at each start
}

static void stored(void *arg, enum common_code code, const char *text)
{
    struct regain *r = arg;
    struct coordinator_session *s = coordinator_session_any(r->sessions, r->session);
    (void)text;
    if (code != COMMON_OK) {
        regain_over(r);
        coordinator_session_release(s);
        return;
    }
    set_state(r, REGAIN_TELLING);
    for (uint32_t i = 0; i < r->n; i++) {
        const struct coordinator_chunk *was = chunk_of(s, &r->items[i]);
        if (!was)
            continue;
        if (!has(r, s, was)) {
            lose_again(s, was);
            continue;
        }
        struct coordinator_chunk chunk = regained(r, was);
        if (!coordinator_session_put_chunk(s, &chunk))
            abort(); // there was one in its place
        r->sessions->returned_chunks++;
    }
    coordinator_session_add_member(s, r->w);
    coordinator_session_raise_epoch(s, "lost chunks are regained");
    coordinator_session_recount(s);
    coordinator_session_tell(s, COPY_REGAINED, WARN,
                             "a worker came back with lost chunks, and they match their seals "
                             "session=%016" PRIx64 " chunks=%u worker=%s epoch=%" PRIu64,
                             s->id, r->n, r->w->name, s->layout.epoch);
    struct coordinator_gather *gather = coordinator_gather_new(&r->sessions->core->turn, told, r);
    coordinator_layout_send_members(s, gather);
    coordinator_gather_seal(gather);
}

// The session is alone; what was compared may have changed since.
static void regain_alone(void *arg, struct coordinator_session *s)
{
    struct regain *r = arg;
    uint32_t kept = 0;
    for (uint32_t i = 0; s && i < r->n; i++) {
        struct coordinator_chunk *chunk = chunk_of(s, &r->items[i]);
        if (chunk && has(r, s, chunk))
            r->items[kept++] = r->items[i];
        else if (chunk)
            chunk->regaining = false;
    }
    r->n = kept;
    if (!kept) {
        regain_over(r);
        if (s)
            coordinator_session_release(s);
        return;
    }
    set_state(r, REGAIN_STORING);
    struct coordinator_batch *batch = coordinator_batch_new();
    for (uint32_t i = 0; i < r->n; i++) {
        struct coordinator_chunk chunk = regained(r, chunk_of(s, &r->items[i]));
        coordinator_batch_copies(batch, s->id, &chunk);
    }
    coordinator_batch_joins(batch, s->id, r->w);
    coordinator_batch_numbers(batch, s->id, s->incarnation, s->layout.epoch + 1);
    coordinator_store_submit(r->sessions->store, batch, stored, r);
}

// ---- comparing ----------------------------------------------------------------------------------

static void compare_next(struct regain *r);

static void compared(void *arg, const struct proto_reply *reply)
{
    struct regain *r = arg;
    struct coordinator_session *s = coordinator_session_any(r->sessions, r->session);
    struct item *item = &r->items[r->at];
    struct coordinator_chunk *chunk = s ? chunk_of(s, item) : NULL;
    r->w->sums--;
    bool answered = reply->code == COMMON_OK,
         same = answered && ((const Banyan__Pb__ChunkSumReply *)reply->message->body)->seal == item->seal;
    if (same) {
        r->at++;
    } else {
        if (chunk)
            chunk->regaining = false;
        if (chunk && answered && has(r, s, chunk)) {
            common_log_warn("a returning worker's copy does not match its seal and is ignored "
                            "worker=%s session=%016" PRIx64 " chunk=%" PRIu64,
                            r->w->name, r->session, item->id);
            coordinator_returned_forget(s, r->w, chunk);
        }
        *item = r->items[--r->n];
    }
    compare_next(r);
}

static void compare_next(struct regain *r)
{
    struct coordinator_session *s = coordinator_session_any(r->sessions, r->session);
    for (; s && r->at < r->n; r->items[r->at] = r->items[--r->n]) {
        const struct coordinator_chunk *chunk = chunk_of(s, &r->items[r->at]);
        if (!chunk || !has(r, s, chunk))
            continue; // left out
        r->w->sums++;
        coordinator_seal_call(s, chunk, r->w, chunk->seal, true, compared, r);
        return;
    }
    if (!s || !r->n) {
        regain_over(r);
        return;
    }
    set_state(r, REGAIN_WAITING);
    if (coordinator_session_exclusive(s, COORDINATOR_SESSION_RELAYOUT, regain_alone, r) != COMMON_OK)
        regain_over(r);
}

// ---- beginning ----------------------------------------------------------------------------------

// A worker that may have the chunk, where it is lost and nothing comes of it yet; NULL: none.
static struct coordinator_worker *back_with(const struct coordinator_session *s,
                                            const struct coordinator_chunk *chunk)
{
    return chunk->lost && !chunk->regaining && !chunk->moving ? coordinator_returned_holder(s, chunk) : NULL;
}

static void begin(struct coordinator_session *s)
{
    struct coordinator_worker *w = NULL;
    uint32_t i = 0;
    while (i < s->layout.n && !(w = back_with(s, &s->layout.chunks[i])))
        i++;
    if (!w)
        return;
    struct regain *r = coordinator_alloc(sizeof(*r));
    *r = (struct regain){.sessions = s->sessions, .session = s->id, .w = w, .visit = w->visit};
    w->visitors++;
    for (; i < s->layout.n && r->n < COORDINATOR_MOVE_CHUNKS; i++) {
        struct coordinator_chunk *chunk = &s->layout.chunks[i];
        if (back_with(s, chunk) != w)
            continue; // what others have is for the next tick
        chunk->regaining = true;
        r->items[r->n++] = (struct item){.index = chunk->index, .id = chunk->id, .seal = chunk->seal};
    }
    compare_next(r);
}

void coordinator_regain_tick(struct coordinator_sessions *sessions)
{
    for (uint32_t i = 0; i < sessions->n_slots && !sessions->core->stopping; i++) {
        struct coordinator_session *s = sessions->slots[i];
        if (s && s->lost && s->returned && s->state == COORDINATOR_SESSION_ACTIVE && !s->withheld &&
            !s->broken && !s->repairing)
            begin(s);
    }
}
