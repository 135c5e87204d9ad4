// SPDX-License-Identifier: Apache-2.0
// Snapshots and restores of chaos_test, by a client of their own: libbanyan as it is (sim_caller.h), with the
// decisions of 'session snapshot' and 'session restore' (client/snapshot/snapshot_session.h). What these do
// with files is left out.
#include "tests/sim/chaos_snapshot.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/core/internal.h"
#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "coordinator/state.h"

#define NAME_BEGINS "snapshot-of-"

struct snapshotter chaos_snapshotter;
static struct snapshotter *const it = &chaos_snapshotter;

void chaos_choose_snapshots(struct coordinator_options *options)
{
    uint64_t draw = common_mix64(chaos.seed + UINT64_C(0x736e6170));
    chaos.snapshots.on = draw % 2;
    if (chaos.snapshots.on && draw / 2 % 8) // else two minutes: pins outlive what is done here
        options->ticket_ns = (2 + draw / 16 % 8) * COMMON_NS_PER_S;
}

// ---- what may be refused ----------------------------------------------------------------------------------

// Time goes on while a snapshot is taken: copies may have been removed since all of this was looked at last.
bool chaos_snapshot_lost(const struct model *m)
{
    chaos_look_for_losses();
    return chaos_kills_excuse() || (m && m->lossy);
}

bool chaos_snapshot_excused(void)
{
    return it->dead || chaos.wrong || it->wrongs != chaos.wrongs;
}

bool chaos_snapshot_cut(void)
{
    return it->unsure || it->of->cuts != it->cuts;
}

// What is reported as lost was never acknowledged: a chunk was placed at a worker that was killed before it
// received that.
static bool nothing_is_lost(const banyan_error *error)
{
    for (uint32_t i = 0; i < error->n_ranges && chaos.lives; i++)
        for (uint64_t at = error->ranges[i].first;
             at < TOKENS && at - error->ranges[i].first < error->ranges[i].count; at++)
            for (uint32_t l = 0; l < LAYERS; l++)
                if (it->of->acked[l][at] && !chaos_row_may_be_forgotten(it->of, l, at))
                    return false;
    return chaos.lives && error->n_ranges;
}

// Since it was used last. While a ticket is good it counts as used; a restarted coordinator has none of them.
static uint64_t pin_lasts_ns(void)
{
    const struct coordinator *c = chaos.cluster->coordinator;
    return it->ttl_ns + (it->ticketed && it->lives == chaos.lives && c ? c->core.options.ticket_ns : 0);
}

static bool may_be_refused(const banyan_error *error)
{
    bool forgotten = error->reason == BANYAN_REASON_FORGOTTEN;
    bool over = it->stage <= PINNING && it->of->deleted;
    bool late = (it->stage == PINNING || it->stage == READING) && sim_clock() - it->used_ns >= pin_lasts_ns();
    switch ((int)error->code) {
    case BANYAN_NOT_FOUND:
        return over || late;
    case BANYAN_OUT_OF_RANGE:
        return (it->stage == PINNING && chaos_snapshot_cut()) ||
               (it->stage <= READING && chaos_snapshot_lost(it->of));
    case BANYAN_DATA_LOSS: // or rows are not what was sealed, or attached
        if (error->reason == BANYAN_REASON_HASH_MISMATCH)
            return chaos.flipped || (it->stage != READING && chaos.rotten);
        return chaos_snapshot_lost(it->of) || chaos_snapshot_lost(it->pin) || chaos_snapshot_lost(it->made) ||
               nothing_is_lost(error);
    case BANYAN_FAILED_PRECONDITION:
        return forgotten ? it->stage == PINNING && chaos.forget : it->stage >= READING && !it->calm;
    default:
        return chaos_passes((enum common_code)error->code);
    }
}

void chaos_snapshot_refused(const banyan_error *error)
{
    static const char *const stages[] = {"opened", "pinned", "read", "made", "filled"};
    if (chaos.verbose)
        printf("  %" PRIu64 " a snapshot is not %s: %s %s (%s)\n", sim_clock(), stages[it->stage],
               banyan_code_name(error->code), error->message, banyan_reason_name(error->reason));
    it->again = chaos_passes((enum common_code)error->code);
    it->unheard = error->code == BANYAN_DATA_LOSS && error->n_ranges && nothing_is_lost(error);
    chaos.snapshots.refused++;
    if (chaos_snapshot_excused() || may_be_refused(error))
        return;
    fprintf(stderr, "session=%016" PRIx64 " it is not %s: %s %s (%s)\n", it->of->id, stages[it->stage],
            banyan_code_name(error->code), error->message, banyan_reason_name(error->reason));
    chaos_violated(NULL, "a snapshot is refused");
}

uint32_t chaos_snapshot_shortest(const struct model *m)
{
    uint32_t least = TOKENS;
    for (uint32_t l = 0; l < LAYERS; l++)
        least = chaos_prefix(m, l) < least ? chaos_prefix(m, l) : least;
    return least;
}

void chaos_snapshot_think(void)
{
    if (!it->calm && !sim_random(3))
        sim_caller_sleep(sim_random(3) ? sim_random(20 * COMMON_NS_PER_MS) : sim_random(COMMON_NS_PER_S));
}

// ---- its client -------------------------------------------------------------------------------------------

static void live(void *arg)
{
    (void)arg;
    banyan_options options = {.timeout_ns = (it->calm ? 20 : 1 + sim_random(10)) * COMMON_NS_PER_S};
    banyan_error error;
    it->stage = OPENING;
    if (banyan_connect(SIM_COORDINATOR "," SIM_SECOND, &options, &it->client, &error) != BANYAN_OK) {
        chaos_snapshot_refused(&error);
        return;
    }
    banyan_session *of;
    if (!chaos_snapshot_take(&of))
        return;
    if (it->calm || sim_random(3)) {
        chaos_snapshot_think();
        banyan_spec spec = *banyan_session_spec(of);
        spec.members = (uint32_t)sim_random(chaos.n_workers + 1);
        chaos_snapshot_restore(&spec);
    }
    banyan_session_close(of);
}

static void begin(struct model *m)
{
    struct model *fresh = it->fresh;
    *it = (struct snapshotter){.of = m,
                               .fresh = fresh,
                               .n = it->n + 1,
                               .wrongs = chaos.wrongs,
                               .ttl_ns = (1 + sim_random(8)) * COMMON_NS_PER_S};
    if (chaos.verbose)
        printf("%" PRIu64 " a snapshot of session=%016" PRIx64 " begins\n", sim_clock(), m->id);
    it->caller = sim_caller_start(live, NULL);
}

static void end(void)
{
    sim_caller_free(it->caller);
    banyan_disconnect(it->client);
    snapshot_clear(&it->snapshot);
    free(it->form);
    it->caller = NULL;
    it->client = NULL;
    it->form = NULL;
}

// Nothing of what it had in hand goes out any more, and its pin is not deleted.
static void die(void)
{
    if (chaos.verbose)
        printf("%" PRIu64 " the client of a snapshot dies\n", sim_clock());
    it->dead = true;
    chaos.snapshots.died++;
    sim_loop_mute(it->client->loop);
    banyan_shutdown(it->client);
}

static void stop_for_a_while(void)
{
    struct common_loop *threads[2] = {it->client->loop, sim_caller_loop(it->caller)};
    for (int i = 0; i < 2; i++)
        sim_loop_freeze(threads[i]);
    sim_advance(sim_random(2 * COMMON_NS_PER_S));
    chaos_check_all();
    for (int i = 0; i < 2; i++)
        sim_loop_thaw(threads[i]);
}

static void disturb(void)
{
    const struct sim_cluster *cluster = chaos.cluster;
    const struct sim_worker *worker = cluster->workers[sim_random(chaos.n_workers)];
    if (!it->client || it->dead)
        return;
    switch (sim_random(48)) {
    case 0:
    case 1:
    case 2:
        die();
        break;
    case 3:
    case 4:
        sim_net_cut(it->client->loop, sim_random(2) || !worker->loop ? cluster->loop : worker->loop);
        break;
    case 5:
        if (worker->loop)
            sim_net_half_open(it->client->loop, worker->loop);
        break;
    case 6:
        stop_for_a_while();
        break;
    default:
        break;
    }
}

static void read_fresh(void)
{
    struct model *m = it->fresh;
    it->fresh = NULL;
    for (uint32_t l = 0; m && l < LAYERS && chaos.n_ops < OPS / 2; l++)
        if (chaos_prefix(m, l))
            chaos_start_read(m, l, chaos_prefix(m, l) - 1);
}

// Rather a long one.
static struct model *a_session(void)
{
    struct model *m = &chaos.models[sim_random(chaos.n_models)];
    for (int i = 0; i < 2; i++) {
        struct model *other = &chaos.models[sim_random(chaos.n_models)];
        m = !other->deleted && chaos_snapshot_shortest(other) > chaos_snapshot_shortest(m) ? other : m;
    }
    return m;
}

void chaos_snapshot_step(void)
{
    if (!chaos.snapshots.on)
        return;
    read_fresh();
    if (it->caller && sim_caller_over(it->caller)) {
        end();
    } else if (it->caller) {
        disturb();
    } else if (chaos.n_models && it->n < SNAPSHOTS && !sim_random(12)) {
        struct model *m = a_session();
        if (!m->held && !m->gone_ns)
            begin(m);
    }
}

void chaos_snapshot_over(void)
{
    for (uint64_t until = sim_clock() + 600 * COMMON_NS_PER_S; it->caller && !sim_caller_over(it->caller);) {
        if (sim_clock() > until)
            chaos_violated(NULL, "a snapshot does not end");
        sim_advance(10 * COMMON_NS_PER_MS);
        chaos_check_all();
    }
    if (it->caller)
        end();
}

// One with fewer rows than it has forgotten is not whole yet, and cannot be pinned.
static bool can_be_taken(const struct model *m)
{
    return !m->deleted && !m->must_cut && !m->held && !chaos_snapshot_lost(m) &&
           !chaos_any_forgotten(m, chaos_snapshot_shortest(m));
}

void chaos_snapshot_calm(void)
{
    for (uint32_t i = 0; i < chaos.n_models && chaos.snapshots.on; i++) {
        struct model *m = &chaos.models[i];
        if (!can_be_taken(m))
            continue;
        uint32_t restored = chaos.snapshots.restored;
        it->unheard = false;
        for (int tries = 0; chaos.snapshots.restored == restored && !it->unheard; tries++) {
            if (tries == 100 || (tries && !it->again))
                chaos_violated(NULL, "a snapshot that nothing disturbs is not taken and restored");
            if (chaos.n_models + 2 > sizeof chaos.models / sizeof *chaos.models)
                return;
            begin(m);
            it->calm = true;
            chaos_snapshot_over();
            sim_advance(100 * COMMON_NS_PER_MS);
        }
        if (!it->unheard)
            return;
    }
}

// They are not in use: they were deleted, or their clients are dead.
void chaos_pins_are_gone(void)
{
    const struct coordinator_sessions *sessions = &chaos.cluster->coordinator->sessions;
    uint64_t until = sim_clock() + 20 * COMMON_NS_PER_S + chaos.cluster->coordinator->core.options.ticket_ns;
    for (bool any = true; any; sim_advance(COMMON_NS_PER_S)) {
        any = false;
        for (uint32_t i = 0; i < sessions->n_slots; i++)
            any = any || (sessions->slots[i] &&
                          !strncmp(sessions->slots[i]->name, NAME_BEGINS, strlen(NAME_BEGINS)));
        if (any && sim_clock() > until)
            chaos_violated(NULL, "a pin outlives its client");
    }
}
