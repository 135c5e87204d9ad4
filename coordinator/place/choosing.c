// SPDX-License-Identifier: Apache-2.0
#include "coordinator/place/choosing.h"

#include <string.h>

#include "common/base/clock.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/place/candidates.h"
#include "coordinator/place/wishes.h"
#include "coordinator/session/move_queue.h"
#include "coordinator/sync/returned.h"
#include "proto/model/spec.h"

#define BATCH_S     2                   // how long the rows of one move travel, at the rate that is allowed
#define SMALL_BYTES (UINT64_C(1) << 20) // of a move that is not big,
#define SMALL_S     64                  // and the part of a second for which it travels, at that rate

static uint32_t candidate_of(const struct coordinator_choice *c, const struct coordinator_worker *w)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->active[i] == w)
            return i;
    return UINT32_MAX;
}

static struct coordinator_worker *draining_holder(const struct coordinator_chunk *chunk)
{
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++)
        if (coordinator_chunk_holder(chunk, i)->draining)
            return coordinator_chunk_holder(chunk, i);
    return NULL;
}

// Who should get the copy: not on the hosts of those that stay.
static uint32_t choose_target(const struct coordinator_choice *c, const struct coordinator_chunk *chunk,
                              const struct coordinator_worker *replaces)
{
    uint32_t has[COORDINATOR_COPIES_MAX], n_has = 0;
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++) {
        const struct coordinator_worker *w = coordinator_chunk_holder(chunk, i);
        uint32_t at = w == replaces ? UINT32_MAX : candidate_of(c, w);
        if (at != UINT32_MAX)
            has[n_has++] = at;
    }
    return coordinator_placement_follow(c->candidates, c->n, has, n_has, c->s->layout.chunk_tokens,
                                        coordinator_session_chunk_room(c->s));
}

// Who would be chosen without some: those that have no room for the move, or (all false) this one alone. UINT32_MAX: nobody,
// or it would make it a session of more members.
static uint32_t choose_without(struct coordinator_choice *c, const struct coordinator_chunk *chunk,
                               const struct coordinator_worker *replaces, uint32_t busy, bool all)
{
    uint64_t *free_bytes = coordinator_alloc((c->n + 1) * sizeof(*free_bytes));
    for (uint32_t i = 0; i < c->n; i++) {
        free_bytes[i] = c->candidates[i].free_bytes;
        if (i == busy || (all && !coordinator_worker_takes_move(c->active[i], c->big)))
            c->candidates[i].free_bytes = 0;
    }
    uint32_t other = choose_target(c, chunk, replaces);
    for (uint32_t i = 0; i < c->n; i++)
        c->candidates[i].free_bytes = free_bytes[i];
    free(free_bytes);
    bool same = other != UINT32_MAX && c->candidates[other].member == c->candidates[busy].member;
    return same ? other : UINT32_MAX;
}

// Who has come back with it, where a copy could be put.
static uint32_t choose_returned(const struct coordinator_choice *c, const struct coordinator_chunk *chunk)
{
    const struct coordinator_worker *back = coordinator_returned_holder(c->s, chunk);
    uint32_t to = back ? candidate_of(c, back) : UINT32_MAX;
    if (to == UINT32_MAX || (c->candidates[to].apart && !c->candidates[to].member))
        return UINT32_MAX;
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++)
        if (strcmp(coordinator_chunk_holder(chunk, i)->host, back->host) == 0)
            return UINT32_MAX; // there may be another host by now
    return to;
}

// Rows that the worker keeps for another session count as there, and a chunk without a seal is compared with nothing.
static bool is_kept_uncompared(const struct coordinator_choice *c, const struct coordinator_chunk *chunk,
                               const struct coordinator_worker *to)
{
    return !chunk->seal && coordinator_returned_keeps(c->s->sessions, to, chunk);
}

static void choose_item(struct coordinator_choice *c, const struct coordinator_chunk *chunk,
                        struct coordinator_worker *replaces)
{
    uint64_t bytes = coordinator_session_chunk_bytes(c->s), room = coordinator_session_chunk_room(c->s);
    uint32_t to = replaces ? UINT32_MAX : choose_returned(c, chunk);
    if (to == UINT32_MAX)
        to = choose_target(c, chunk, replaces);
    if (to != UINT32_MAX && !coordinator_worker_takes_move(c->active[to], c->big)) {
        uint32_t other = choose_without(c, chunk, replaces, to, true);
        if (other == UINT32_MAX) {
            c->busy = c->active[to];
            c->any = c->any || choose_without(c, chunk, replaces, to, false) != UINT32_MAX;
            return;
        }
        to = other;
    }
    if (to == UINT32_MAX || !coordinator_chunk_may_move(c->s, chunk, c->active[to], replaces) ||
        is_kept_uncompared(c, chunk, c->active[to])) {
        c->refused = true;
        return;
    }
    if (c->to && c->to != c->active[to]) {
        c->more = true; // the next move's
        return;
    }
    c->to = c->active[to];
    c->items[c->n_items++] =
        (struct coordinator_move_item){.index = chunk->index,
                                       .replaces = replaces,
                                       .returned = coordinator_returned_keeps(c->s->sessions, c->to, chunk)};
    struct coordinator_candidate *candidate = &c->candidates[to];
    candidate->free_bytes -= room < candidate->free_bytes ? room : candidate->free_bytes;
    candidate->load_bytes += bytes;
    candidate->follows += c->s->layout.chunk_tokens;
    coordinator_candidates_join(c->candidates, c->active, c->n, to);
}

// A copy too many: a coordinator died between giving a chunk to another holder and taking it from the first. Or one that
// was to leave, and must stay.
static void tidy(struct coordinator_choice *c, struct coordinator_chunk *chunk)
{
    const struct coordinator_session *s = c->s;
    uint32_t copies = coordinator_chunk_copies(chunk);
    if (chunk->leaving) { // a chunk that may be struck off is, before anybody looks here
        chunk->leaving = 0;
        c->tidied = true;
        return;
    }
    if (copies <= s->spec->replicas || coordinator_chunk_unfit(chunk))
        return;
    const struct coordinator_worker *w = draining_holder(chunk);
    chunk->leaving = (uint8_t)(1u << (w ? coordinator_chunk_copy_at(chunk, w) : copies - 1));
    c->tidied = true;
}

// What was planned has come true, or cannot any more.
static bool wish_is_void(const struct coordinator_choice *c, const struct coordinator_wish *wish)
{
    const struct coordinator_chunk *chunk = coordinator_layout_find(&c->s->layout, wish->index);
    return !chunk || chunk->id != wish->id || chunk->lost || !coordinator_chunk_held_by(chunk, wish->from) ||
           coordinator_chunk_held_by(chunk, wish->to) || candidate_of(c, wish->to) == UINT32_MAX ||
           (wish->slow && !coordinator_worker_slow(wish->from));
}

static void drop_void_wishes(struct coordinator_choice *c)
{
    struct coordinator_wishes *wishes = c->s->sessions->wishes;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < wishes->n; i++)
        if (wishes->list[i].session != c->s->id || !wish_is_void(c, &wishes->list[i]))
            wishes->list[kept++] = wishes->list[i];
    wishes->n = kept;
}

static void choose_wishes(struct coordinator_choice *c)
{
    const struct coordinator_wishes *wishes = c->s->sessions->wishes;
    bool any = false;
    drop_void_wishes(c);
    for (uint32_t i = 0; i < wishes->n && c->n_items < COORDINATOR_MOVE_CHUNKS; i++) {
        const struct coordinator_wish *wish = &wishes->list[i];
        any = any || wish->session == c->s->id;
        if (wish->session != c->s->id || (c->to && c->to != wish->to) ||
            candidate_of(c, wish->to) == UINT32_MAX)
            continue;
        if (!coordinator_worker_takes_move(wish->to, c->big)) {
            c->busy = wish->to;
            continue;
        }
        const struct coordinator_chunk *chunk = coordinator_layout_find(&c->s->layout, wish->index);
        if (!chunk || chunk->id != wish->id || chunk->moving ||
            !coordinator_chunk_may_move(c->s, chunk, wish->to, wish->from) ||
            is_kept_uncompared(c, chunk, wish->to))
            continue;
        c->to = wish->to;
        c->items[c->n_items++] =
            (struct coordinator_move_item){.index = wish->index,
                                           .replaces = wish->from,
                                           .returned =
                                               coordinator_returned_keeps(c->s->sessions, wish->to, chunk)};
    }
    c->s->wished = any;
    c->refused = c->refused || (any && !c->n_items);
}

// So many chunks of it are one move, at most.
static uint32_t batch_of(const struct coordinator_session *s)
{
    uint64_t rate = s->sessions->core->options.move_bytes_per_s,
             most = rate / (coordinator_session_chunk_bytes(s) / BATCH_S + 1) + 1;
    uint32_t batch = rate && most < COORDINATOR_MOVE_CHUNKS ? (uint32_t)most : COORDINATOR_MOVE_CHUNKS;
    return batch >> s->moves_halved ? batch >> s->moves_halved : 1;
}

// By the rows that it has, which may be few in large chunks.
static bool is_big(const struct coordinator_session *s, uint32_t batch)
{
    uint64_t rate = s->sessions->core->options.move_bytes_per_s, bytes = 0,
             most = rate && rate / SMALL_S < SMALL_BYTES ? rate / SMALL_S : SMALL_BYTES;
    for (uint32_t l = 0; l < s->spec->layers; l++) {
        struct proto_layer layer = proto_spec_layer(s->spec, l);
        bytes += coordinator_session_held(s, l) * (layer.k_row + layer.v_row);
    }
    return (s->layout.n > batch ? bytes / s->layout.n * batch : bytes) > most;
}

static void choose_chunk(struct coordinator_choice *c, struct coordinator_chunk *chunk)
{
    tidy(c, chunk);
    struct coordinator_worker *drained = chunk->leaving ? NULL : draining_holder(chunk);
    if (drained)
        choose_item(c, chunk, drained);
    else if (coordinator_chunk_copies(chunk) < c->s->spec->replicas)
        choose_item(c, chunk, NULL);
}

static bool is_alone(const struct coordinator_session *s, const struct coordinator_chunk *chunk)
{
    return s->spec->replicas > 1 && coordinator_chunk_copies(chunk) == 1;
}

// From where the last choice ended, once round: chunks with one copy (alone), or the others.
static void choose_chunks(struct coordinator_choice *c, uint32_t batch, bool alone)
{
    struct coordinator_session *s = c->s;
    uint32_t left = alone ? s->single : s->layout.n;
    for (uint32_t k = 0; k < s->layout.n && left; k++) {
        if (c->n_items >= batch) {
            c->more = true;
            return;
        }
        s->move_at = s->move_at < s->layout.n ? s->move_at : 0;
        struct coordinator_chunk *chunk = &s->layout.chunks[s->move_at++];
        if (is_alone(s, chunk) != alone)
            continue;
        left--;
        if (!chunk->moving)
            choose_chunk(c, chunk);
    }
}

struct coordinator_choice *coordinator_choose(struct coordinator_session *s)
{
    struct coordinator_choice *c = coordinator_alloc(sizeof(*c));
    uint32_t batch = batch_of(s);
    uint64_t now = common_clock_ns();
    c->s = s;
    c->big = is_big(s, batch);
    c->candidates = coordinator_candidates(s, c->active, &c->n);
    for (uint32_t i = 0; i < c->n; i++)
        if (now < c->active[i]->moves_again_ns)
            c->candidates[i].free_bytes = 0; // it has failed again and again
    choose_chunks(c, batch, true);
    choose_chunks(c, batch, false);
    if (!c->n_items && s->wished)
        choose_wishes(c);
    if (c->tidied) {
        coordinator_session_recount(s);
        coordinator_session_settle(s);
    }
    return c;
}

void coordinator_choice_begun(const struct coordinator_choice *c)
{
    struct coordinator_wishes *wishes = c->s->sessions->wishes;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < wishes->n; i++) {
        bool chosen = false;
        for (uint32_t k = 0; k < c->n_items && wishes->list[i].session == c->s->id; k++)
            chosen = chosen || c->items[k].index == wishes->list[i].index;
        if (!chosen)
            wishes->list[kept++] = wishes->list[i];
    }
    wishes->n = kept;
}

void coordinator_choice_free(struct coordinator_choice *c)
{
    free(c->candidates);
    free(c);
}
