// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sync/returned.h"

#include <stdlib.h>

#include "common/base/clock.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/sync/dropping.h"
#include "coordinator/sync/keeping.h"
#include "coordinator/sync/moving.h"
#include "coordinator/sync/repair.h"
#include "proto/model/spec.h"

// Nothing has come of any of them for so long: the worker lets go of them.
#define IDLE_NS  (30 * COMMON_NS_PER_S)
#define TICK_MAX 1024 // so many are looked at with each tick

struct kept {
    uint32_t index;
    uint64_t id; // 0: no more
};

struct coordinator_returned { // of one worker, in one session
    struct coordinator_returned *next;
    struct common_list link; // in returns.keepers
    struct coordinator_session *s;
    struct coordinator_worker *w; // its record stays: a visitor
    uint32_t visit;               // w->visit when it named them: another one, and it is asked again
    uint64_t idle_ns;             // since when nothing has come of them
    struct kept *chunks;          // [n], ascending by index
    uint32_t n, cap, wanted;      // wanted: of them, when they were looked at last
};

struct coordinator_returns {    // of the room
    struct common_list keepers; // workers, once for each session, that keep chunks of it
    struct coordinator_keeping keeping;
};

static struct coordinator_returned *returned_of(const struct coordinator_session *s,
                                                const struct coordinator_worker *w)
{
    struct coordinator_returned *r = s->returned;
    while (r && (r->w != w || r->visit != w->visit))
        r = r->next;
    return r;
}

// Nobody keeps it where it is not sealed, or its copies are as many as they should be without this one. A lost
// chunk has none that counts (regain.h).
static bool is_wanted(const struct coordinator_session *s, const struct coordinator_chunk *chunk,
                      const struct coordinator_worker *w)
{
    return chunk && chunk->seal && (chunk->lost || coordinator_chunk_copies(chunk) < s->spec->replicas) &&
           coordinator_chunk_copy_at(chunk, w) == COORDINATOR_COPIES_MAX;
}

static const struct coordinator_chunk *chunk_of(const struct coordinator_session *s,
                                                const struct coordinator_returned *r, const struct kept *kept)
{
    const struct coordinator_chunk *chunk =
        kept->id ? coordinator_layout_find(&s->layout, kept->index) : NULL;
    return chunk && chunk->id == kept->id && is_wanted(s, chunk, r->w) ? chunk : NULL;
}

static struct kept *kept_find(const struct coordinator_returned *r, const struct coordinator_chunk *chunk)
{
    uint32_t low = 0, high = r->n;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (r->chunks[mid].index < chunk->index)
            low = mid + 1;
        else
            high = mid;
    }
    return low < r->n && r->chunks[low].index == chunk->index && r->chunks[low].id == chunk->id
               ? &r->chunks[low]
               : NULL;
}

static void returned_free(struct coordinator_session *s, struct coordinator_returned *r)
{
    struct coordinator_returned **at = &s->returned;
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    common_list_remove(&r->link);
    for (uint32_t i = 0; i < r->n; i++)
        if (r->chunks[i].id)
            coordinator_keeping_remove(&s->sessions->returns->keeping, r->w->slot, r->chunks[i].id);
    r->w->visitors--;
    free(r->chunks);
    free(r);
}

// ---- noting -------------------------------------------------------------------------------------

// Whether all rows are there that anybody may read, and the seal is about all of them.
static bool is_full(const struct coordinator_session *s, const struct coordinator_chunk *chunk,
                    const Banyan__Pb__InventoryChunk *held)
{
    for (uint32_t l = 0; l < s->spec->layers; l++)
        if (proto_spec_stores(s->spec, l) && !coordinator_session_given_back(s, l, chunk->index) &&
            (!proto_spec_keeps(s->spec, l) || l >= held->n_layer_rows ||
             held->layer_rows[l] < s->layout.chunk_tokens))
            return false;
    return true;
}

static void keep(struct coordinator_session *s, struct coordinator_worker *w,
                 const struct coordinator_chunk *chunk)
{
    struct coordinator_returned *r = returned_of(s, w);
    if (!r) {
        r = coordinator_alloc(sizeof(*r));
        *r = (struct coordinator_returned){.next = s->returned, .s = s, .w = w, .visit = w->visit};
        s->returned = r;
        common_list_push(&s->sessions->returns->keepers, &r->link);
        w->visitors++;
    }
    if (r->n && r->chunks[r->n - 1].index >= chunk->index)
        return; // a page once more, or another chunk in its place
    if (r->n == r->cap) {
        r->cap = r->cap ? 2 * r->cap : 16;
        r->chunks = realloc(r->chunks, r->cap * sizeof(*r->chunks));
        if (!r->chunks)
            abort();
    }
    r->chunks[r->n++] = (struct kept){chunk->index, chunk->id};
    coordinator_keeping_add(&s->sessions->returns->keeping, w->slot, chunk->id);
    r->wanted = r->n;
}

bool coordinator_returned_note(struct coordinator_session *s, struct coordinator_worker *w,
                               const Banyan__Pb__InventorySession *held)
{
    for (size_t i = 0; i < held->n_chunks && !w->draining && coordinator_worker_sums(w); i++) {
        const Banyan__Pb__InventoryChunk *h = held->chunks[i];
        const struct coordinator_chunk *chunk =
            coordinator_layout_find(&s->layout, h->first / s->layout.chunk_tokens);
        if (is_wanted(s, chunk, w) && chunk->id == h->chunk && is_full(s, chunk, h))
            keep(s, w, chunk);
    }
    return coordinator_returned_any(s, w);
}

// ---- asking -------------------------------------------------------------------------------------

bool coordinator_returned_any(const struct coordinator_session *s, const struct coordinator_worker *w)
{
    return returned_of(s, w) != NULL;
}

bool coordinator_returned_has(const struct coordinator_session *s, const struct coordinator_worker *w,
                              const struct coordinator_chunk *chunk)
{
    const struct coordinator_returned *r = returned_of(s, w);
    const struct kept *kept = r ? kept_find(r, chunk) : NULL;
    return kept && chunk_of(s, r, kept) == chunk;
}

uint32_t coordinator_returned_chunks(const struct coordinator_session *s, const struct coordinator_worker *w,
                                     const struct coordinator_chunk **out)
{
    const struct coordinator_returned *r = returned_of(s, w);
    uint32_t n = 0;
    for (uint32_t i = 0; r && i < r->n; i++) {
        const struct coordinator_chunk *chunk = chunk_of(s, r, &r->chunks[i]);
        if (chunk && out)
            out[n] = chunk;
        n += chunk != NULL;
    }
    return n;
}

struct coordinator_worker *coordinator_returned_holder(const struct coordinator_session *s,
                                                       const struct coordinator_chunk *chunk)
{
    for (const struct coordinator_returned *r = s->returned; r; r = r->next)
        if (coordinator_worker_active(r->w) && !r->w->draining && coordinator_returned_has(s, r->w, chunk))
            return r->w;
    return NULL;
}

bool coordinator_returned_keeps(const struct coordinator_sessions *sessions,
                                const struct coordinator_worker *w, const struct coordinator_chunk *chunk)
{
    return coordinator_keeping_has(&sessions->returns->keeping, w->slot, chunk->id);
}

// ---- the end ------------------------------------------------------------------------------------

void coordinator_returned_forget(struct coordinator_session *s, const struct coordinator_worker *w,
                                 const struct coordinator_chunk *chunk)
{
    struct coordinator_returned *r = returned_of(s, w);
    struct kept *kept = r && chunk ? kept_find(r, chunk) : NULL;
    if (kept) {
        coordinator_keeping_remove(&s->sessions->returns->keeping, r->w->slot, kept->id);
        kept->id = 0;
    } else if (r && !chunk) {
        returned_free(s, r);
    }
}

// It is a holder of all of them: there is nothing to tell.
static bool is_holder(const struct coordinator_session *s, const struct coordinator_returned *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        const struct coordinator_chunk *chunk = coordinator_layout_find(&s->layout, r->chunks[i].index);
        if (!chunk || chunk->id != r->chunks[i].id || !coordinator_chunk_held_by(chunk, r->w))
            return false;
    }
    return true;
}

// It is told what it holds, which is without them.
static void let_go(struct coordinator_session *s, struct coordinator_returned *r)
{
    struct coordinator_worker *w = r->w;
    bool holds = is_holder(s, r);
    returned_free(s, r);
    if (holds)
        return;
    if (coordinator_session_has_member(s, w))
        coordinator_session_doubt(s, w);
    else
        coordinator_session_drop_at(s->sessions, s->id, w);
}

void coordinator_returned_cut(struct coordinator_session *s)
{
    struct coordinator_returned *next;
    for (struct coordinator_returned *r = s->returned; r; r = next) {
        struct coordinator_worker *w = r->w;
        next = r->next;
        if (coordinator_session_has_member(s, w))
            continue;
        bool same = r->visit == w->visit;
        returned_free(s, r);
        if (same)
            coordinator_session_drop_at(s->sessions, s->id, w);
    }
}

// It has what nobody else has: that is not let go of for want of time.
static bool has_lost(const struct coordinator_session *s, const struct coordinator_returned *r)
{
    for (uint32_t i = 0; s->lost && i < r->n; i++) {
        const struct coordinator_chunk *chunk = chunk_of(s, r, &r->chunks[i]);
        if (chunk && chunk->lost)
            return true;
    }
    return false;
}

static void look_at(struct coordinator_session *s, struct coordinator_returned *r)
{
    uint64_t now = common_clock_ns();
    if (r->visit != r->w->visit) {
        returned_free(s, r);
        return;
    }
    if (!coordinator_worker_active(r->w) || coordinator_moves_go_to(s, r->w))
        return; // the visit is under way, or something comes of them
    uint32_t wanted = coordinator_returned_chunks(s, r->w, NULL);
    if (!r->idle_ns || wanted != r->wanted || has_lost(s, r) || r->w->moves) // one session's at a time
        r->idle_ns = now;
    r->wanted = wanted;
    if (!wanted || r->w->draining || now - r->idle_ns >= IDLE_NS)
        let_go(s, r);
}

void coordinator_returned_tick(struct coordinator_sessions *sessions)
{
    struct common_list *keepers = &sessions->returns->keepers, seen;
    common_list_init(&seen);
    for (uint32_t i = 0; i < TICK_MAX && !common_list_empty(keepers); i++) {
        struct coordinator_returned *r = common_list_entry(keepers->next, struct coordinator_returned, link);
        common_list_remove(&r->link);
        common_list_push(&seen, &r->link);
        look_at(r->s, r);
    }
    while (!common_list_empty(&seen)) { // behind those that were not looked at
        struct common_list *link = seen.next;
        common_list_remove(link);
        common_list_push(keepers, link);
    }
}

void coordinator_returned_session_gone(struct coordinator_session *s)
{
    while (s->returned) {
        struct coordinator_worker *w = s->returned->w;
        bool same = s->returned->visit == w->visit;
        returned_free(s, s->returned);
        if (same && !s->sessions->core->stopping && !coordinator_session_has_member(s, w))
            coordinator_session_drop_at(s->sessions, s->id, w);
    }
}

void coordinator_returned_init(struct coordinator_sessions *sessions)
{
    sessions->returns = coordinator_alloc(sizeof(*sessions->returns));
    common_list_init(&sessions->returns->keepers);
}

void coordinator_returned_fini(struct coordinator_sessions *sessions)
{
    coordinator_keeping_fini(&sessions->returns->keeping);
    free(sessions->returns);
    sessions->returns = NULL;
}
