// SPDX-License-Identifier: Apache-2.0
// Bits that flip in the memory of chaos_test's workers, in rows of sealed chunks.
#include "tests/sim/chaos.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "coordinator/check/seals.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "coordinator/state.h"
#include "proto/model/spec.h"

static struct coordinator_sessions *sessions(void)
{
    return chaos.cluster->coordinator && !chaos.wrong ? &chaos.cluster->coordinator->sessions : NULL;
}

static struct coordinator_chunk *chunk_in(const struct coordinator_session *s, const struct flip *flip)
{
    struct coordinator_chunk *chunk = s ? coordinator_layout_find(&s->layout, flip->index) : NULL;
    return chunk && chunk->id == flip->chunk ? chunk : NULL;
}

static uint32_t number_of(const struct coordinator_worker *w)
{
    return (uint32_t)(w->name[1] - '0');
}

// As far as the coordinator's store says, a copy that counts.
static bool counts_at(const struct coordinator_chunk *chunk, uint32_t worker)
{
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++)
        if (number_of(coordinator_chunk_holder(chunk, i)) == worker)
            return !chunk->lost && !(coordinator_chunk_unfit(chunk) & 1u << i);
    return false;
}

// It is not in use, and not in the store yet: a restarted coordinator would use it.
static bool is_being_struck(const struct coordinator_chunk *chunk, uint32_t worker)
{
    for (uint32_t i = 0; chunk && i < coordinator_chunk_copies(chunk); i++)
        if (number_of(coordinator_chunk_holder(chunk, i)) == worker)
            return !chunk->lost && (coordinator_chunk_unfit(chunk) & 1u << i);
    return false;
}

bool chaos_is_tainted(const struct model *m)
{
    const struct coordinator_session *s =
        sessions() && chaos.n_flips ? coordinator_session_any(sessions(), m->id) : NULL;
    bool tainted = chaos.n_flips && !s; // there is no record of which chunks it has
    for (uint32_t i = 0; i < chaos.n_flips && s; i++)
        tainted = tainted || chunk_in(s, &chaos.flips[i]);
    return tainted;
}

// ---- the end of one -----------------------------------------------------------------------------

// All copies have been compared since it was asked for: this one was removed everywhere, or is right again.
static void flip_over(uint32_t at)
{
    const struct flip flip = chaos.flips[at];
    chaos.flips[at] = chaos.flips[--chaos.n_flips];
    if (chaos.verbose)
        printf("%" PRIu64 " no flip any more: worker w%u chunk %" PRIu64 "\n", sim_clock(), flip.worker,
               flip.chunk);
    for (uint32_t i = 0; i < chaos.n_models; i++) {
        struct model *m = &chaos.models[i];
        const struct coordinator_chunk *chunk = chunk_in(coordinator_session_any(sessions(), m->id), &flip);
        if (chunk && counts_at(chunk, flip.worker))
            chaos_not_lost(&m->dead[flip.worker][flip.index], flip.chunk);
    }
}

// True: it is over. One session that has the chunk speaks for all: what is removed for it is removed for the
// others.
static bool look_at(struct flip *flip, bool at_once)
{
    const struct coordinator_sessions *all = sessions();
    bool due = at_once || sim_clock() >= flip->ask_at_ns;
    for (uint32_t i = 0; i < all->n_slots; i++)
        if (is_being_struck(chunk_in(all->slots[i], flip), flip->worker))
            return false;
    if (flip->life != chaos.lives)
        flip->asked_of = 0; // what another one was asked for is forgotten
    for (uint32_t i = 0; i < all->n_slots; i++) {
        struct coordinator_chunk *chunk = chunk_in(all->slots[i], flip);
        if (!chunk || !counts_at(chunk, flip->worker) ||
            (flip->asked_of && flip->asked_of != all->slots[i]->id))
            continue;
        if (flip->asked_of || !due || !chunk->seal)
            return flip->asked_of && !chunk->asked;
        coordinator_chunk_ask(all->slots[i], chunk);
        flip->asked_of = all->slots[i]->id;
        flip->life = chaos.lives;
        return false;
    }
    bool again =
        flip->asked_of != 0; // that one is deleted, or has the chunk no more: another one, the next time
    flip->asked_of = 0;
    return !again;
}

void chaos_look_for_flips(void)
{
    for (uint32_t i = chaos.n_flips; i > 0 && sessions(); i--)
        if (look_at(&chaos.flips[i - 1], false))
            flip_over(i - 1);
}

void chaos_flips_end(void)
{
    for (int tries = 0; chaos.n_flips; tries++) {
        if (tries == 600)
            chaos_violated(NULL, "copies of sealed chunks are not compared");
        for (uint32_t i = chaos.n_flips; i > 0; i--)
            if (look_at(&chaos.flips[i - 1], true))
                flip_over(i - 1);
        sim_advance(100 * COMMON_NS_PER_MS);
        chaos_check_all();
    }
}

// ---- the beginning of one -----------------------------------------------------------------------

// Nothing is being cut out of it: that is compared just before, and not while it is copied.
static bool may_flip(const struct coordinator_session *s, const struct coordinator_chunk *chunk,
                     uint32_t worker)
{
    for (uint32_t i = 0; i < chaos.n_flips; i++)
        if (chaos.flips[i].chunk == chunk->id)
            return false;
    for (uint32_t i = 0; i < s->sessions->n_slots; i++) {
        const struct coordinator_session *other = s->sessions->slots[i];
        const struct coordinator_chunk *same =
            other ? coordinator_layout_find(&other->layout, chunk->index) : NULL;
        if (same && same->id == chunk->id &&
            (other->state != COORDINATOR_SESSION_ACTIVE || other->exclusive || !same->seal))
            return false;
    }
    return chunk->seal && counts_at(chunk, worker);
}

// It counts as dead wherever it is shared.
static void copy_dies(const struct flip *flip)
{
    for (uint32_t i = 0; i < chaos.n_models; i++) {
        struct model *m = &chaos.models[i];
        if (!chunk_in(coordinator_session_any(sessions(), m->id), flip))
            continue;
        m->dead[flip->worker][flip->index].counted = flip->chunk;
        m->lossy = m->lossy || chaos.replicas == 1;
    }
    chaos.kills++; // forks that are under way do not know
    chaos_look_for_losses();
    for (uint32_t i = 0; i < chaos.n_ops; i++)
        if (!chaos.ops[i].checked && chaos.ops[i].m)
            chaos.ops[i].tainted = chaos.ops[i].tainted || chaos_is_tainted(chaos.ops[i].m);
}

// The nth copy of a chunk that may flip, at any worker that runs. False: there are fewer, and *n are left.
static bool find_copy(uint64_t *n, struct flip *out)
{
    for (uint32_t i = 0; i < chaos.n_models; i++) {
        const struct coordinator_session *s = coordinator_session_any(sessions(), chaos.models[i].id);
        for (uint32_t k = 0; s && k < s->layout.n && s->layout.chunks[k].index < TOKENS / CHUNK_TOKENS; k++)
            for (uint32_t w = 0; w < chaos.n_workers; w++) {
                const struct coordinator_chunk *chunk = &s->layout.chunks[k];
                if (!chaos.cluster->workers[w]->loop || !may_flip(s, chunk, w) || (*n)-- > 0)
                    continue;
                *out = (struct flip){.worker = w, .chunk = chunk->id, .index = chunk->index};
                return true;
            }
    }
    return false;
}

static bool keeps(uint64_t chunk, uint32_t index, uint32_t layer)
{
    struct flip flip = {.chunk = chunk, .index = index};
    for (uint32_t i = 0; i < sessions()->n_slots; i++)
        if (chunk_in(sessions()->slots[i], &flip))
            return proto_spec_keeps(sessions()->slots[i]->spec, layer);
    return false;
}

void chaos_flip_memory(void)
{
    struct flip flip;
    uint64_t n = UINT64_MAX, left = n;
    if (!sessions() || chaos.n_flips == FLIPS || find_copy(&left, &flip) || n == left)
        return;
    left = sim_random(n - left);
    if (!find_copy(&left, &flip))
        return;
    uint32_t layer = (uint32_t)sim_random(LAYERS), row = (uint32_t)sim_random(CHUNK_TOKENS),
             bit = 12 + (uint32_t)sim_random(18); // no infinities
    if (!keeps(flip.chunk, flip.index, layer) ||
        !sim_worker_flip_chunk(chaos.cluster->workers[flip.worker], flip.chunk, layer, row, bit))
        return;
    flip.ask_at_ns = sim_clock() + (sim_random(2) ? sim_random(3 * COMMON_NS_PER_S) : 0);
    if (chaos.verbose)
        printf("%" PRIu64 " flipped: worker w%u chunk %" PRIu64 " (index %u) layer %u row %u bit %u\n",
               sim_clock(), flip.worker, flip.chunk, flip.index, layer, row, bit);
    chaos.flips[chaos.n_flips++] = flip;
    chaos.flipped = true;
    copy_dies(&flip);
}
