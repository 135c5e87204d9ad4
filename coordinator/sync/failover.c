// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sync/failover.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/gather.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/placement.h"
#include "coordinator/session/table.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/layout_send.h"
#include "coordinator/sync/named.h"
#include "coordinator/sync/recovery.h"
#include "coordinator/sync/repair.h"

#define STRIKE_AGAIN_NS (100 * COMMON_NS_PER_MS)

struct strike { // of one chunk
    uint32_t index, struck, serves;
};

struct failover { // the session is its own: RELAYOUT
    struct coordinator_session *s;
    struct strike *strikes; // [n]
    uint32_t n;
};

// ---- choosing -----------------------------------------------------------------------------------

// Nobody waits for this worker any more.
static bool is_away(const struct coordinator_session *s, const struct coordinator_worker *w)
{
    return w->state == COORDINATOR_WORKER_LOST ||
           (w->state == COORDINATOR_WORKER_ABSENT && !coordinator_recovering(s));
}

static uint32_t to_be_struck(const struct coordinator_session *s, const struct coordinator_chunk *chunk)
{
    uint32_t struck = 0;
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++)
        if ((coordinator_chunk_unfit(chunk) & 1u << i) || is_away(s, coordinator_chunk_holder(chunk, i)))
            struck |= 1u << i;
    return struck | coordinator_session_copies_leaving(chunk);
}

// Of the copies that can be used the one that is done first with the session: tokens, by worker, are what it serves.
static uint32_t choose_serving(const struct coordinator_session *s, const struct coordinator_chunk *chunk,
                               uint32_t struck, const uint64_t *tokens)
{
    struct coordinator_candidate copies[COORDINATOR_COPIES_MAX];
    uint32_t at[COORDINATOR_COPIES_MAX], n = 0;
    if (coordinator_session_copy_usable(chunk, 0) && !(struck & 1))
        return 0; // it goes on
    for (uint32_t i = 1; i < coordinator_chunk_copies(chunk); i++) {
        const struct coordinator_worker *w = coordinator_chunk_holder(chunk, i);
        if (!coordinator_session_copy_usable(chunk, i) || (struck & 1u << i))
            continue;
        copies[n] = (struct coordinator_candidate){.bandwidth = coordinator_worker_speed(w),
                                                   .tokens = tokens[w->slot],
                                                   .member = true};
        at[n++] = i;
    }
    return at[coordinator_placement_choose(copies, n, 0, s->layout.chunk_tokens, 0)];
}

static struct failover *failover_new(struct coordinator_session *s)
{
    uint64_t tokens[COORDINATOR_WORKERS_MAX];
    uint32_t ct = s->layout.chunk_tokens;
    struct failover *f = coordinator_alloc(sizeof(*f));
    f->s = s;
    f->strikes = coordinator_alloc((s->layout.n + 1) * sizeof(*f->strikes));
    memset(tokens, 0, s->sessions->cluster->n_workers * sizeof(*tokens));
    for (uint32_t i = 0; i < s->layout.n; i++)
        if (coordinator_session_copy_usable(&s->layout.chunks[i], 0))
            tokens[s->layout.chunks[i].holder->slot] += ct;
    for (uint32_t i = 0; i < s->layout.n; i++) {
        const struct coordinator_chunk *chunk = &s->layout.chunks[i];
        uint32_t struck = to_be_struck(s, chunk);
        if (!struck || !coordinator_session_chunk_usable(chunk))
            continue; // of those that are away the first that comes back serves
        uint32_t serves = choose_serving(s, chunk, struck, tokens);
        tokens[coordinator_chunk_holder(chunk, serves)->slot] += serves ? ct : 0;
        f->strikes[f->n++] = (struct strike){.index = chunk->index, .struck = struck, .serves = serves};
    }
    return f;
}

bool coordinator_failover_without(struct coordinator_session *s, const struct coordinator_worker *w,
                                  uint64_t first, uint64_t count)
{
    uint64_t ct = s->layout.chunk_tokens;
    bool all = true;
    for (uint32_t i = coordinator_layout_lower(&s->layout, first / ct);
         i < s->layout.n && s->layout.chunks[i].index * ct < first + count; i++) {
        struct coordinator_chunk *chunk = &s->layout.chunks[i];
        uint32_t copy = coordinator_chunk_copy_at(chunk, w),
                 every = (1u << coordinator_chunk_copies(chunk)) - 1;
        if (copy == COORDINATOR_COPIES_MAX)
            continue;
        if (chunk->lost || (coordinator_chunk_unfit(chunk) | 1u << copy) == every)
            all = false;
        else
            chunk->gone |= (uint8_t)(1u << copy);
    }
    coordinator_session_recount(s);
    if (s->awaited)
        coordinator_session_settle(s);
    return all;
}

bool coordinator_failover_cut_short(struct coordinator_session *s, struct coordinator_worker *w,
                                    uint64_t first, uint64_t count)
{
    uint64_t ct = s->layout.chunk_tokens;
    struct coordinator_batch *batch = NULL;
    if (coordinator_failover_without(s, w, first, count))
        return true;
    for (uint32_t i = coordinator_layout_lower(&s->layout, first / ct);
         i < s->layout.n && s->layout.chunks[i].index * ct < first + count; i++) {
        struct coordinator_chunk *chunk = &s->layout.chunks[i];
        uint32_t copy = coordinator_chunk_copy_at(chunk, w);
        if (copy == COORDINATOR_COPIES_MAX || chunk->lost || (chunk->gone & 1u << copy))
            continue;
        chunk->gone |= (uint8_t)(1u << copy);
        chunk->lost = true;
        batch = batch ? batch : coordinator_batch_new();
        coordinator_batch_chunk_lost(batch, s->id, chunk->index, chunk->id);
    }
    if (batch) { // it says so again at each start
        coordinator_store_submit(s->sessions->store, batch, NULL, NULL);
        coordinator_session_dirty(s, w); // and it lets go of what is left of them
        coordinator_session_doubt(s, w);
    }
    coordinator_session_recount(s);
    if (s->awaited)
        coordinator_session_settle(s);
    return false;
}

// ---- doing --------------------------------------------------------------------------------------

static void failover_end(struct failover *f)
{
    struct coordinator_session *s = f->s;
    free(f->strikes);
    free(f);
    coordinator_session_release(s);
}

static void failover_told(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("failover_told");
    struct failover *f = arg;
    struct coordinator_session *s = f->s;
    (void)text;
    if (code != COMMON_OK)
        coordinator_session_doubt_all(s); // it has happened: whoever did not hear of it will
    failover_end(f);
}

// Holders that have named their rows since a restart have done so beside one that does not count any more.
static void learn_again(struct coordinator_session *s)
{
    for (uint32_t i = 0; i < s->layout.n; i++) {
        s->layout.chunks[i].known = s->layout.chunks[i].lost;
        s->layout.chunks[i].heard = 0;
    }
    coordinator_session_forget_named(s);
    s->relearned = s->sessions->stamps;
    coordinator_session_doubt_all(s);
}

// What it says of a chunk may have changed since it was chosen: that its last holder, too, is without it.
static bool strike_off(struct coordinator_session *s, const struct strike *strike)
{
    struct coordinator_chunk chunk = *coordinator_layout_find(&s->layout, strike->index);
    s->sessions->struck_copies += (unsigned)__builtin_popcount(strike->struck & ~(uint32_t)chunk.leaving);
    coordinator_chunk_strike(&chunk, strike->struck, strike->serves);
    bool lost = coordinator_chunk_all_unfit(&chunk);
    chunk.lost = chunk.lost || lost;
    if (!coordinator_session_put_chunk(s, &chunk))
        abort(); // there was one in its place
    return lost;
}

static void failover_stored(void *arg, enum common_code code, const char *text)
{
    COMMON_FAILPOINT("failover_stored");
    struct failover *f = arg;
    struct coordinator_session *s = f->s;
    bool unknown = s->unknown || s->named;
    if (code != COMMON_OK) {
        if (!s->sessions->core->stopping && !s->strike_again_ns) // once, until it does
            common_log_error("cannot record lost holders: steps of this session wait: %s "
                             "session=%016" PRIx64,
                             text, s->id);
        s->strike_again_ns = common_clock_after(STRIKE_AGAIN_NS);
        failover_end(f);
        return;
    }
    s->strike_again_ns = 0;
    struct coordinator_batch *late = NULL;
    uint64_t struck = s->sessions->struck_copies;
    for (uint32_t i = 0; i < f->n; i++) {
        if (!strike_off(s, &f->strikes[i]))
            continue;
        const struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, f->strikes[i].index);
        late = late ? late : coordinator_batch_new();
        coordinator_batch_chunk_lost(late, s->id, chunk->index, chunk->id);
    }
    if (late) // a holder without them says so again at each start
        coordinator_store_submit(s->sessions->store, late, NULL, NULL);
    bool moved = s->sessions->struck_copies == struck; // elsewhere
    coordinator_session_raise_epoch(s, moved ? "copies have moved" : "workers are lost");
    coordinator_session_recount(s);
    if (moved)
        common_log_info("moved copies removed from source session=%016" PRIx64 " chunks=%u epoch=%" PRIu64,
                        s->id, f->n, s->layout.epoch);
    else
        coordinator_session_tell(s, COPY_STRUCK, WARN,
                                 "copies on lost workers removed session=%016" PRIx64
                                 " chunks=%u epoch=%" PRIu64,
                                 s->id, f->n, s->layout.epoch);
    struct coordinator_gather *gather = coordinator_gather_new(&s->sessions->core->turn, failover_told, f);
    coordinator_layout_send_members(s, gather);
    if (unknown)
        learn_again(s);
    coordinator_gather_seal(gather);
}

void coordinator_failover_pump(struct coordinator_session *s)
{
    if (!s->awaited || s->shared || s->repairing || s->state != COORDINATOR_SESSION_ACTIVE ||
        s->sessions->core->stopping || common_clock_ns() < s->strike_again_ns)
        return;
    struct failover *f = failover_new(s);
    if (!f->n) {
        free(f->strikes);
        free(f);
        return;
    }
    COMMON_FAILPOINT("failover_begun");
    coordinator_session_set_state(s, COORDINATOR_SESSION_RELAYOUT);
    struct coordinator_batch *batch = coordinator_batch_new();
    for (uint32_t i = 0; i < f->n; i++) {
        struct coordinator_chunk chunk = *coordinator_layout_find(&s->layout, f->strikes[i].index);
        coordinator_chunk_strike(&chunk, f->strikes[i].struck, f->strikes[i].serves);
        coordinator_batch_copies(batch, s->id, &chunk);
    }
    coordinator_batch_numbers(batch, s->id, s->incarnation, s->layout.epoch + 1);
    coordinator_store_submit(s->sessions->store, batch, failover_stored, f);
}

void coordinator_failovers_tick(struct coordinator_sessions *sessions)
{
    for (uint32_t i = 0; i < sessions->n_slots; i++)
        if (sessions->slots[i] && sessions->slots[i]->awaited)
            coordinator_session_settle(sessions->slots[i]);
}
