// SPDX-License-Identifier: Apache-2.0
#include "coordinator/place/spread.h"

#include <inttypes.h>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/gather.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/placement.h"
#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "coordinator/store/store.h"
#include "coordinator/sync/layout_send.h"
#include "coordinator/sync/moving.h"
#include "coordinator/sync/repair.h"

_Static_assert(sizeof(((struct coordinator_spread_chunk *)0)->holder) / sizeof(uint32_t) ==
                   COORDINATOR_COPIES_MAX,
               "room for all copies");

#define SPREADS_MAX 64    // under way
#define LOOK_CHUNKS 65536 // of sessions that are looked at together, or so
#define AGAIN_NS    COMMON_NS_PER_S

struct spread { // the session is its own: RELAYOUT
    struct coordinator_sessions *sessions;
    struct coordinator_session *s;           // NULL: gone
    struct coordinator_spread_chunk *chunks; // [s->layout.n]
};

// Fills spread->chunks. Copies that are leaving do not count.
static bool is_worth_it(struct spread *spread)
{
    const struct coordinator_session *s = spread->s;
    const struct coordinator_cluster *cluster = spread->sessions->cluster;
    uint64_t speeds[COORDINATOR_WORKERS_MAX], load[COORDINATOR_WORKERS_MAX];
    for (uint32_t i = 0; i < cluster->n_workers; i++)
        speeds[i] = cluster->workers[i] ? coordinator_worker_speed(cluster->workers[i]) : 1;
    free(spread->chunks);
    spread->chunks = coordinator_alloc((s->layout.n + 1) * sizeof(*spread->chunks));
    for (uint32_t i = 0; i < s->layout.n; i++) {
        const struct coordinator_chunk *chunk = &s->layout.chunks[i];
        bool fixed = !chunk->ready || !chunk->known || chunk->lost || coordinator_chunk_unfit(chunk) ||
                     chunk->leaving || !coordinator_session_chunk_whole(chunk);
        spread->chunks[i].n = fixed ? 1 : coordinator_chunk_copies(chunk);
        for (uint32_t k = 0; k < spread->chunks[i].n; k++)
            spread->chunks[i].holder[k] = coordinator_chunk_holder(chunk, k)->slot;
    }
    return coordinator_placement_spread(spread->chunks, s->layout.n, speeds, load, cluster->n_workers);
}

static void spread_over(struct spread *spread)
{
    struct coordinator_session *s = spread->s;
    spread->sessions->spreads--;
    coordinator_turn_mark(&spread->sessions->core->turn, COORDINATOR_PHASE_SESSIONS);
    free(spread->chunks);
    free(spread);
    if (s)
        coordinator_session_release(s);
}

static void spread_told(void *arg, enum common_code code, const char *text)
{
    struct spread *spread = arg;
    (void)text;
    if (code != COMMON_OK)
        coordinator_session_doubt_all(spread->s); // it has happened: whoever did not hear of it will
    spread_over(spread);
}

static void spread_stored(void *arg, enum common_code code, const char *text)
{
    struct spread *spread = arg;
    struct coordinator_session *s = spread->s;
    uint32_t n = 0;
    (void)text;
    if (code != COMMON_OK) {
        coordinator_session_uneven(s);
        s->move_again_ns = common_clock_after(AGAIN_NS);
        spread_over(spread);
        return;
    }
    COMMON_FAILPOINT("spread_stored");
    for (uint32_t i = 0; i < s->layout.n; i++) {
        struct coordinator_chunk chunk = s->layout.chunks[i];
        if (!spread->chunks[i].serves)
            continue;
        coordinator_chunk_strike(&chunk, 0, spread->chunks[i].serves);
        if (!coordinator_session_put_chunk(s, &chunk))
            abort(); // there was one in its place
        n++;
    }
    spread->sessions->spread_sessions++;
    coordinator_session_raise_epoch(s, "serving holders re-weighted by speed");
    coordinator_session_recount(s);
    common_log_info("serving holders re-weighted by speed session=%016" PRIx64 " chunks=%u epoch=%" PRIu64,
                    s->id, n, s->layout.epoch);
    struct coordinator_gather *gather = coordinator_gather_new(&s->sessions->core->turn, spread_told, spread);
    coordinator_layout_send_members(s, gather);
    coordinator_gather_seal(gather);
}

static void spread_alone(void *arg, struct coordinator_session *s)
{
    struct spread *spread = arg;
    spread->s = s;
    if (!s) {
        spread_over(spread);
        return;
    }
    bool known = !s->withheld && !s->broken && !s->unknown && !s->named && !s->moves;
    if (!known) {
        coordinator_session_uneven(s); // later
        spread_over(spread);
        return;
    }
    if (!is_worth_it(spread)) {
        spread_over(spread);
        return;
    }
    struct coordinator_batch *batch = coordinator_batch_new();
    for (uint32_t i = 0; i < s->layout.n; i++) {
        struct coordinator_chunk chunk = s->layout.chunks[i];
        if (!spread->chunks[i].serves)
            continue;
        coordinator_chunk_strike(&chunk, 0, spread->chunks[i].serves);
        coordinator_batch_copies(batch, s->id, &chunk);
    }
    coordinator_batch_numbers(batch, s->id, s->incarnation, s->layout.epoch + 1);
    coordinator_store_submit(spread->sessions->store, batch, spread_stored, spread);
}

// Begins where it is worth it.
static void spread_session(struct coordinator_session *s)
{
    struct coordinator_sessions *sessions = s->sessions;
    if (s->moves || common_clock_ns() < s->move_again_ns || !coordinator_session_may_move(s)) {
        s->spread_seen = COORDINATOR_UNEVEN;
        common_list_remove(&s->uneven);
        common_list_push(&sessions->uneven_later, &s->uneven);
        return;
    }
    common_list_remove(&s->uneven);
    s->spread_seen = sessions->cluster->speeds;
    struct spread *spread = coordinator_alloc(sizeof(*spread));
    *spread = (struct spread){.sessions = sessions, .s = s};
    sessions->spreads++;
    bool worth = is_worth_it(spread);
    if (worth &&
        coordinator_session_exclusive(s, COORDINATOR_SESSION_RELAYOUT, spread_alone, spread) == COMMON_OK)
        return;
    if (worth) { // too many wait for it
        s->spread_seen = COORDINATOR_UNEVEN;
        common_list_push(&sessions->uneven_later, &s->uneven);
    }
    sessions->spreads--;
    free(spread->chunks);
    free(spread);
}

void coordinator_session_uneven(struct coordinator_session *s)
{
    s->spread_seen = COORDINATOR_UNEVEN;
    if (common_list_empty(&s->uneven))
        common_list_push(&s->sessions->uneven, &s->uneven);
    coordinator_turn_mark(&s->sessions->core->turn, COORDINATOR_PHASE_SESSIONS);
}

// Some of all, since speeds have changed.
static void look_at_all(struct coordinator_sessions *sessions)
{
    uint64_t speeds = sessions->cluster->speeds, chunks = 0;
    if (sessions->spread_speeds != speeds) {
        sessions->spread_speeds = speeds;
        sessions->spread_left = sessions->n_slots;
    }
    for (; sessions->spread_left && chunks < LOOK_CHUNKS && sessions->spreads < SPREADS_MAX;
         sessions->spread_left--) {
        sessions->spread_cursor = sessions->spread_cursor < sessions->n_slots ? sessions->spread_cursor : 0;
        struct coordinator_session *s = sessions->slots[sessions->spread_cursor++];
        if (!s || s->spread_seen == speeds || s->spread_seen == COORDINATOR_UNEVEN)
            continue;
        chunks += s->layout.n + 1;
        spread_session(s);
    }
}

void coordinator_spreads_drain(struct coordinator_sessions *sessions)
{
    uint64_t chunks = 0;
    look_at_all(sessions);
    while (!common_list_empty(&sessions->uneven) && chunks < LOOK_CHUNKS && sessions->spreads < SPREADS_MAX) {
        struct coordinator_session *s =
            common_list_entry(sessions->uneven.next, struct coordinator_session, uneven);
        chunks += s->layout.n + 1;
        spread_session(s);
    }
}

void coordinator_spreads_look(struct coordinator_sessions *sessions)
{
    while (!common_list_empty(&sessions->uneven_later)) {
        struct common_list *link = sessions->uneven_later.next;
        common_list_remove(link);
        common_list_push(&sessions->uneven, link);
    }
    coordinator_spreads_drain(sessions);
}
