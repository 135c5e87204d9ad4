// SPDX-License-Identifier: Apache-2.0
// What disturbs the cluster of chaos_test.
#include "tests/sim/chaos.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "coordinator/cluster/membership.h"
#include "coordinator/session/session.h"
#include "coordinator/session/table.h"
#include "coordinator/state.h"
#include "proto/banyan.pb-c.h"
#include "tests/sim/sim_memory.h"
#include "worker/core/state.h"
#include "worker/store/chunk.h"

#define METHOD(name) BANYAN__PB__METHOD__METHOD_##name

// Memory that something else on the machine has taken.
static void take_memory(struct sim_worker *worker)
{
    uint32_t i = 0;
    while (chaos.cluster->workers[i] != worker)
        i++;
    struct worker_store *store = worker->worker->store;
    uint64_t left = worker_store_limit(store) - worker_store_used(store),
             taken = left - (left >> sim_random(20));
    if (worker_store_take(store, taken))
        chaos.taken[i] += taken;
}

static void give_memory_back(uint32_t i)
{
    if (chaos.taken[i])
        worker_store_give(chaos.cluster->workers[i]->worker->store, chaos.taken[i]);
    chaos.taken[i] = 0;
}

// What it has of a session that no layout has, or none yet.
static void prepared_die(const struct coordinator_session *s, const struct sim_worker *worker,
                         struct lost *lost)
{
    const struct worker_session *held =
        worker->worker ? worker_map_get(&worker->worker->sessions, s->id) : NULL;
    for (uint32_t i = 0; held && i < held->n_chunks; i++) {
        const struct worker_chunk *chunk = held->chunks[i].chunk;
        uint64_t index = chunk->first / CHUNK_TOKENS;
        bool counts = false;
        for (uint32_t k = 0; k < s->layout.n; k++)
            counts = counts || s->layout.chunks[k].id == chunk->id;
        if (!counts && index < CHUNKS)
            lost[index].prepared = chunk->id;
    }
}

// With several copies the last one decides (chaos_look_for_losses).
static void copies_die(struct model *m, const struct sim_worker *worker, struct lost (*lost)[CHUNKS])
{
    const struct coordinator_session *s =
        coordinator_session_any(&chaos.cluster->coordinator->sessions, m->id);
    uint32_t w = (uint32_t)(worker->name[1] - '0');
    for (uint32_t i = 0; s && i < s->layout.n; i++)
        for (uint32_t copy = 0; copy < coordinator_chunk_copies(&s->layout.chunks[i]); copy++)
            if (!strcmp(coordinator_chunk_holder(&s->layout.chunks[i], copy)->name, worker->name) &&
                s->layout.chunks[i].index < CHUNKS)
                lost[w][s->layout.chunks[i].index].counted = s->layout.chunks[i].id;
    if (s)
        prepared_die(s, worker, lost[w]);
}

static void give_back_of(const struct sim_worker *worker)
{
    for (uint32_t i = 0; i < chaos.n_workers; i++)
        if (chaos.cluster->workers[i] == worker)
            give_memory_back(i);
}

enum loss { DEAD, DARK, ROTTEN }; // of what a worker holds: see the arrays of a model

static void lose_copies(const struct sim_worker *worker, enum loss loss)
{
    bool several = chaos.replicas > 1 && !chaos.wrong;
    for (uint32_t i = 0; i < chaos.n_models; i++) {
        struct model *m = &chaos.models[i];
        if (several)
            copies_die(m, worker, loss == DARK ? m->dark : loss == ROTTEN ? m->rotten : m->dead);
        for (uint64_t at = 0; at < TOKENS && !several && !m->lossy; at += CHUNK_TOKENS)
            m->lossy = sim_worker_holds(worker, m->id, at);
    }
}

// With what it holds.
static void lose_worker(struct sim_worker *worker, enum loss loss)
{
    give_back_of(worker);
    lose_copies(worker, loss);
    chaos.kills++;
    sim_worker_kill(worker);
    chaos_look_for_losses();
}

// It may come back soon, or with the next HEAL.
static void revive(struct sim_worker *worker)
{
    sim_advance(sim_random(2 * COMMON_NS_PER_S));
    chaos_check_all();
    worker->files.room = UINT64_MAX;
    worker->files.fail_at = 0;
    sim_worker_start(worker);
}

// It has not received this chunk yet, or its files have not taken that, so that they lack it: it comes back
// without. A restarted coordinator cannot tell that nothing was in it.
static void untold_copies_die(struct model *m, const struct sim_worker *worker)
{
    const struct coordinator_session *s =
        chaos.cluster->coordinator ? coordinator_session_any(&chaos.cluster->coordinator->sessions, m->id)
                                   : NULL;
    uint32_t w = (uint32_t)(worker->name[1] - '0');
    for (uint32_t i = 0; s && i < s->layout.n; i++) {
        const struct coordinator_chunk *chunk = &s->layout.chunks[i];
        if (sim_worker_keeps(worker, m->id, (uint64_t)chunk->index * CHUNK_TOKENS))
            continue;
        for (uint32_t copy = 0; copy < coordinator_chunk_copies(chunk); copy++) {
            if (strcmp(coordinator_chunk_holder(chunk, copy)->name, worker->name) != 0)
                continue;
            m->lossy = m->lossy || chaos.replicas == 1;
            if (chunk->index < CHUNKS)
                m->dead[w][chunk->index].counted = chunk->id;
        }
    }
}

// What was placed at workers that had died, before the coordinator detected it: nothing is in it, and the
// next coordinator cannot tell that.
static void placed_at_the_dead_dies(void)
{
    const struct coordinator *c = chaos.wrong ? NULL : chaos.cluster->coordinator;
    for (uint32_t i = 0; i < chaos.n_models && c; i++) {
        struct model *m = &chaos.models[i];
        const struct coordinator_session *s = coordinator_session_any(&c->sessions, m->id);
        for (uint32_t k = 0; s && k < s->layout.n; k++) {
            const struct coordinator_chunk *chunk = &s->layout.chunks[k];
            for (uint32_t copy = 0; copy < coordinator_chunk_copies(chunk) && !chunk->ready; copy++) {
                uint32_t w = (uint32_t)(coordinator_chunk_holder(chunk, copy)->name[1] - '0');
                if (chaos.cluster->workers[w]->loop)
                    continue;
                m->lossy = m->lossy || chaos.replicas == 1;
                if (chunk->index < CHUNKS)
                    m->dead[w][chunk->index].counted = chunk->id;
            }
        }
    }
}

static void kill_worker(struct sim_worker *worker)
{
    if (!chaos.stored) {
        lose_worker(worker, DEAD);
        return;
    }
    for (uint32_t i = 0; i < chaos.n_models && !chaos.wrong; i++)
        untold_copies_die(&chaos.models[i], worker);
    give_back_of(worker);
    sim_worker_kill(worker); // its files have all that counts
    chaos_look_for_losses();
    if (!chaos.ages[worker->name[1] - '0'] && sim_random(2))
        revive(worker);
}

// Its files have lost something, or are damaged.
static void harm_files(struct sim_worker *worker, enum fault fault)
{
    if (!chaos.stored || !worker->loop)
        return;
    if (fault == FILE_ROT && chaos.cold && sim_random(2)) { // while it runs, of rows that may be there alone
        for (uint64_t n = 1 + sim_random(4); n > 0; n--)
            (void)sim_files_flip(&worker->files, ".sealed", sim_random(UINT64_MAX));
        lose_copies(worker, ROTTEN);
        chaos_look_for_losses();
        return;
    }
    bool keeps = fault == POWER && worker->synced; // all that it has answered for
    if (keeps) {
        for (uint32_t i = 0; i < chaos.n_models && !chaos.wrong; i++)
            untold_copies_die(&chaos.models[i], worker);
        give_back_of(worker);
        sim_worker_kill(worker);
    } else {
        lose_worker(worker, DARK);
    }
    if (fault == POWER)
        sim_files_power(&worker->files, sim_random(UINT64_MAX));
    if (worker->files.torn_again)
        chaos_violated(NULL, "a loss of power brings back a log that was sealed, without its end");
    if (fault == FILE_ROT && !sim_random(3))
        (void)sim_files_lose(&worker->files, sim_random(UINT64_MAX));
    for (uint64_t n = fault == FILE_ROT ? 1 + sim_random(3) : 0; n > 0; n--)
        (void)sim_files_flip(&worker->files, "", sim_random(UINT64_MAX));
    if (keeps)
        chaos_look_for_losses();
    if (!chaos.ages[worker->name[1] - '0'] && sim_random(2))
        revive(worker);
}

static void fill_files(struct sim_worker *worker)
{
    uint64_t how = sim_random(3);
    if (how == 0)
        worker->files.room = sim_random(20000);
    else if (how == 1)
        worker->files.no_reads_to = worker->files.reads + sim_random(40);
    else
        worker->files.fail_at = worker->files.writes + 1 + sim_random(30);
}

// What a worker of an older build says of itself when it registers.
static void hear_register(void *arg, struct proto_request *request)
{
    Banyan__Pb__RegisterRequest *m = (void *)proto_request_message(request)->body;
    struct sim_coordinator *one = arg;
    if (chaos.ages[m->name[1] - '0'] == OLD_CONTROL)
        m->control = PROTO_CONTROL_VERSION - 1;
    coordinator_handle_register(&one->coordinator->cluster, request);
}

static void hear_registers(void)
{
    for (uint32_t i = 0; i < 2; i++)
        if (chaos.cluster->coordinators[i].loop)
            sim_serve_rule(chaos.cluster->coordinators[i].loop, METHOD(REGISTER),
                           (struct sim_rule){.verdict = SIM_TELL,
                                             .tell = hear_register,
                                             .arg = &chaos.cluster->coordinators[i]});
}

// It comes back as an older build, until the next HEAL.
static void downgrade(struct sim_worker *worker, enum age age)
{
    if (chaos.stored && !worker->loop)
        return; // what it has in its files is still to count
    if (worker->loop)
        lose_worker(worker, DEAD);
    sim_files_end(&worker->files); // of which an older build has no notion
    sim_files_init(&worker->files);
    chaos.ages[worker->name[1] - '0'] = age;
    sim_worker_start(worker);
    sim_net_old(worker->loop, age == OLD_WIRE);
    hear_registers();
}

static void upgrade(uint32_t i)
{
    struct sim_worker *worker = chaos.cluster->workers[i];
    if (chaos.ages[i] && worker->loop)
        sim_worker_kill(worker);
    if (!worker->loop)
        sim_worker_start(worker);
    chaos.ages[i] = NEW;
}

static bool holds_rows(const struct sim_worker *worker)
{
    for (uint32_t i = 0; i < chaos.n_models; i++)
        for (uint32_t l = 0; l < LAYERS; l++)
            if (sim_worker_tokens(worker, chaos.models[i].id, l))
                return true;
    return false;
}

// A call for the process before it may reach one. It is not a holder all the same, and no call waits for it:
// it has the rows of its files at most.
bool chaos_old_builds_are_out(void)
{
    const struct coordinator *c = chaos.cluster->coordinator;
    bool out = true;
    for (uint32_t i = 0; c && i < chaos.n_workers; i++) {
        const struct sim_worker *worker = chaos.cluster->workers[i];
        const struct coordinator_worker *w = coordinator_worker_find(&c->cluster, worker->name);
        bool old = chaos.ages[i] && worker->worker;
        bool in = old && w && coordinator_worker_active(w) &&
                  w->instance == worker_membership_instance(worker->worker->membership);
        out = out && !in && !(old && !chaos.stored && holds_rows(worker));
    }
    return out;
}

// A client with no session: it gets the reason why it is refused, or an error that nothing answers.
static void old_client(void)
{
    const struct sim_cluster *cluster = chaos.cluster;
    struct sim_client *client = sim_client_new(cluster->coordinators[cluster->active].endpoint, NULL);
    sim_net_old(sim_client_loop(client), true);
    sim_client_deadline(client, COMMON_NS_PER_S);
    struct sim_call *call = sim_find(client, "name1");
    sim_run_until(&call->done, 2 * COMMON_NS_PER_S);
    chaos_check_all();
    bool told = call->code == COMMON_FAILED_PRECONDITION && strstr(call->text, "version");
    if (!call->done || (!told && !chaos_passes(call->code)))
        chaos_violated(NULL, "an old client is not refused");
    sim_net_old(sim_client_loop(client), false);
    sim_client_free(client);
}

// Held is only what a worker does beside its loop in truth, too: the others are done as they come, in the
// order of their link, so none can come into force after a later one.
static void refuse(const struct sim_worker *worker, enum sim_verdict verdict)
{
    static const uint32_t methods[] = {METHOD(ROWS_PREPARE), METHOD(CHUNK_COPY),   METHOD(CHUNK_PUT),
                                       METHOD(ROWS_COMMIT),  METHOD(ROWS_ABORT),   METHOD(LAYOUT_SET),
                                       METHOD(INVENTORY),    METHOD(PLAN_INSTALL), METHOD(SESSION_DROP)};
    static const enum common_code codes[] = {COMMON_UNAVAILABLE, COMMON_RESOURCE_EXHAUSTED, COMMON_ABORTED};
    uint64_t n = verdict == SIM_HOLD ? 3 : sizeof methods / sizeof *methods;
    sim_serve_rule(worker->loop, methods[sim_random(n)],
                   (struct sim_rule){.verdict = verdict,
                                     .times = 1 + (uint32_t)sim_random(2),
                                     .code = codes[sim_random(3)]});
}

static void freeze(struct common_loop *loop, uint64_t most_ns)
{
    sim_loop_freeze(loop);
    sim_advance(sim_random(most_ns));
    chaos_check_all();
    sim_loop_thaw(loop);
}

// It ends, and starts again on its store, or on a wrong one. Its disk is as it should be.
static void coordinator_anew(bool kill)
{
    struct sim_cluster *cluster = chaos.cluster;
    struct common_error err;
    placed_at_the_dead_dies();
    if (cluster->loop && kill)
        sim_coordinator_kill(cluster);
    else if (cluster->loop)
        sim_coordinator_stop(cluster);
    sim_advance(sim_random(COMMON_NS_PER_S));
    chaos_check_all();
    sim_disk_silence(SIM_DISK_PATH, false);
    sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
    sim_disk_unsure(SIM_DISK_PATH, 0);
    chaos.lives++;
    if (sim_coordinator_start(cluster, &err) != COMMON_OK)
        chaos_violated(NULL, err.message);
    hear_registers();
}

// A restarted coordinator does not have it: what the store has of quotas, other tests look at.
static void set_quota(enum coordinator_quota_kind kind)
{
    static const uint64_t most[COORDINATOR_QUOTAS] = {1 << 16, 8, 300, 6, 5, 3};
    struct coordinator *c = chaos.cluster->coordinator;
    if (c)
        coordinator_quota_set(coordinator_use_of(&c->quotas, PROTO_TENANT_DEFAULT), kind,
                              sim_random(most[kind]), common_clock_ns());
}

static void no_quotas(void)
{
    struct coordinator *c = chaos.cluster->coordinator;
    for (int kind = 0; c && kind < COORDINATOR_QUOTAS; kind++)
        coordinator_quota_set(coordinator_use_of(&c->quotas, PROTO_TENANT_DEFAULT),
                              (enum coordinator_quota_kind)kind, 0, common_clock_ns());
}

static void run_a_while(uint64_t most_ns)
{
    if (chaos.n_ops < OPS / 2 && !sim_random(3))
        chaos_act();
    sim_advance(sim_random(most_ns));
    chaos_check_all();
}

// It ends, or begins to, and a supervisor starts the next one at once, again and again until that one has the
// store.
static void supervise(void)
{
    enum { KILLED, STOPPED, STOPPED_SLOWLY, KILLED_WHILE_IT_STOPS, HOWS };
    static const uint64_t most_ns[HOWS] = {0, 20 * COMMON_NS_PER_MS, 4 * COMMON_NS_PER_S,
                                           4 * COMMON_NS_PER_S};
    struct sim_cluster *cluster = chaos.cluster;
    struct common_error err;
    enum common_code code;
    uint64_t how = sim_random(HOWS);
    sim_disk_silence(SIM_DISK_PATH, false);
    sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
    sim_disk_unsure(SIM_DISK_PATH, 0);
    placed_at_the_dead_dies();
    if (how == KILLED)
        sim_coordinator_kill(cluster);
    else
        sim_coordinator_stop_slowly(cluster, sim_random(most_ns[how]));
    uint64_t kill_ns = sim_clock() + sim_random((how == KILLED_WHILE_IT_STOPS ? 2 : 10) * COMMON_NS_PER_S);
    while ((code = sim_next_start(cluster, &err)) != COMMON_OK) {
        if (code != COMMON_FAILED_PRECONDITION)
            chaos_violated(NULL, err.message);
        run_a_while(50 * COMMON_NS_PER_MS);
        if (sim_clock() > kill_ns)
            sim_old_kill(cluster);
        if (sim_clock() > kill_ns + COMMON_NS_PER_S)
            chaos_violated(NULL, "the store of a coordinator that was killed is still in use");
    }
    if (sim_old_runs(cluster))
        chaos_violated(NULL, "two coordinators have the store");
    chaos.lives++;
    hear_registers();
    for (uint32_t i = 0; i < chaos.n_clients; i++)
        sim_client_direct(chaos.clients[i], cluster->coordinators[cluster->active].endpoint);
    for (uint64_t until = sim_clock() + sim_random(3 * COMMON_NS_PER_S); sim_clock() < until;)
        run_a_while(100 * COMMON_NS_PER_MS);
}

// Whether its inventory is being read.
static bool is_asked(const struct sim_worker *worker)
{
    const struct coordinator *c = chaos.cluster->coordinator;
    const struct coordinator_worker *w = c ? coordinator_worker_find(&c->cluster, worker->name) : NULL;
    return w && w->state == COORDINATOR_WORKER_JOINING && w->listed && w->listed != UINT64_MAX;
}

// Truncates and what else clients do wait for the store, and a worker comes back meanwhile: the same process,
// or another one. It is being asked what it holds when they become durable.
static void come_back(struct sim_worker *worker)
{
    const struct sim_cluster *cluster = chaos.cluster;
    if (!worker->loop || !cluster->loop)
        return;
    sim_disk_stall(SIM_DISK_PATH, true);
    chaos_act_cuts();
    for (uint64_t n = sim_random(4); n > 0 && chaos.n_ops < OPS / 2; n--)
        chaos_act();
    sim_advance(COMMON_NS_PER_MS + sim_random(10 * COMMON_NS_PER_MS));
    chaos_check_all();
    if (!sim_random(4))
        kill_worker(worker);
    else
        sim_net_cut(worker->loop, cluster->loop);
    for (uint64_t until = sim_clock() + 500 * COMMON_NS_PER_MS; sim_clock() < until && !is_asked(worker);)
        sim_advance(50 * COMMON_NS_PER_US);
    sim_advance(sim_random(2 * COMMON_NS_PER_MS));
    chaos_check_all();
    sim_disk_stall(SIM_DISK_PATH, false);
}

// A session that is in no store, without anything.
static void join(void)
{
    if (chaos.n_workers < chaos.cluster->options.workers)
        sim_worker_start(chaos.cluster->workers[chaos.n_workers++]);
}

// Between a worker and another process: for those two until it is healed; or of the links that are there now
// alone, a client's, too, for as long as they are there.
static void swallow(const struct common_loop *a, const struct common_loop *b)
{
    uint64_t ways = 1 + sim_random(3);
    bool links = sim_random(2);
    if (links && !sim_random(3))
        a = sim_client_loop(chaos.clients[sim_random(chaos.n_clients)]);
    if (!a || !b || a == b)
        return;
    for (int way = 0; way < 2; way++) {
        const struct common_loop *from = way ? b : a, *to = way ? a : b;
        if (ways & 1u << way && links)
            sim_net_swallow_links(from, to);
        else if (ways & 1u << way)
            sim_net_swallow(from, to);
    }
}

void chaos_disturb(enum fault fault)
{
    struct sim_cluster *cluster = chaos.cluster;
    struct sim_worker *worker = cluster->workers[sim_random(chaos.n_workers)];
    const struct common_loop *ends[2] = {
        worker->loop, sim_random(2) ? cluster->loop : cluster->workers[sim_random(chaos.n_workers)]->loop};
    bool both = ends[0] && ends[1] && ends[0] != ends[1];
    uint32_t way = (uint32_t)sim_random(2);
    int64_t skew;
    if (chaos.verbose)
        printf("%" PRIu64 " fault %d worker %s\n", sim_clock(), fault, worker->name);
    switch (fault) {
    case CUT:
        if (both)
            sim_net_cut(ends[0], ends[1]);
        break;
    case HOLD:
        if (both)
            sim_net_hold(ends[way], ends[1 - way]);
        break;
    case PART:
        if (both)
            sim_net_part(ends[0], ends[1]);
        break;
    case HEAL:
        sim_net_heal();
        no_quotas();
        for (uint32_t i = 0; i < chaos.n_workers; i++) {
            give_memory_back(i);
            cluster->workers[i]->files.room = UINT64_MAX;
            cluster->workers[i]->files.fail_at = 0;
            cluster->workers[i]->files.no_reads_to = 0;
            upgrade(i);
            sim_worker_slow(cluster->workers[i], 0);
            sim_loop_skew(cluster->workers[i]->loop, 0);
            sim_serve_let_go(cluster->workers[i]->loop);
        }
        sim_disk_stall(SIM_DISK_PATH, false);
        sim_net_delay(10 * COMMON_NS_PER_US, chaos.delay_ns);
        break;
    case KILL_WORKER:
        if (worker->loop)
            kill_worker(worker);
        break;
    case STORE_WRONG:
        chaos.wrong = chaos.was_wrong = true;
        chaos.wrongs++;
        coordinator_anew(true);
        sim_advance(sim_random(5 * COMMON_NS_PER_S));
        chaos_check_all();
        sim_coordinator_kill(cluster);
        sim_advance(COMMON_NS_PER_S); // nothing that it said is on its way
        chaos_check_all();
        chaos.wrong = false;
        chaos.wrongs++;
        coordinator_anew(true);
        break;
    case KILL_COORDINATOR:
    case STOP_COORDINATOR:
        coordinator_anew(fault == KILL_COORDINATOR);
        break;
    case FREEZE_WORKER:
        if (worker->loop)
            freeze(worker->loop, 2 * COMMON_NS_PER_S);
        break;
    case FREEZE_COORDINATOR:
        freeze(cluster->loop, 4 * COMMON_NS_PER_S);
        break;
    case DISK_FAILS:
        sim_disk_fail(SIM_DISK_PATH, 1 + (uint32_t)sim_random(6),
                      sim_random(2) ? COMMON_UNAVAILABLE : COMMON_RESOURCE_EXHAUSTED);
        break;
    case DISK_UNSURE:
        sim_disk_unsure(SIM_DISK_PATH, 1 + (uint32_t)sim_random(3));
        if (sim_random(2))
            break;
        sim_advance(sim_random(20 * COMMON_NS_PER_MS));
        chaos_check_all();
        chaos_disturb(KILL_COORDINATOR);
        break;
    case DISK_STALLS:
        sim_disk_stall(SIM_DISK_PATH, sim_random(2));
        break;
    case DISK_SILENT:
        sim_disk_silence(SIM_DISK_PATH, true);
        sim_advance(sim_random(20 * COMMON_NS_PER_MS));
        chaos_check_all();
        chaos_disturb(KILL_COORDINATOR);
        break;
    case REFUSE:
    case HOLD_REQUESTS:
        if (worker->loop)
            refuse(worker, fault == REFUSE ? SIM_FAIL : SIM_HOLD);
        break;
    case CANCEL:
        for (uint32_t i = 0; i < chaos.n_ops; i++)
            if (!chaos.ops[i].call->done && chaos.ops[i].kind != PUT && !sim_random(3))
                sim_cancel(chaos.ops[i].call);
        break;
    case CUT_CLIENT:
        sim_net_cut(sim_client_loop(chaos.clients[sim_random(chaos.n_clients)]),
                    sim_random(2) || !worker->loop ? cluster->loop : worker->loop);
        break;
    case MEMORY_SHORT:
        if (worker->loop)
            take_memory(worker);
        break;
    case CLOCK_SKEWED:
        skew = (int64_t)sim_random(7200) * (int64_t)COMMON_NS_PER_S - (int64_t)(3600 * COMMON_NS_PER_S);
        if (sim_random(3) && worker->loop)
            sim_loop_skew(worker->loop, skew);
        else
            cluster->coordinator_skew_ns = skew; // also of the one that runs
        if (cluster->loop)
            sim_loop_skew(cluster->loop, cluster->coordinator_skew_ns);
        break;
    case NET_SLOW:
        sim_net_delay(10 * COMMON_NS_PER_US, COMMON_NS_PER_MS << sim_random(10));
        break;
    case FLIP: // of all that some process sends, or is sent
        sim_net_flip(sim_random(2)   ? worker->loop
                     : sim_random(2) ? cluster->loop
                                     : NULL,
                     NULL, 4 << sim_random(6));
        break;
    case ROT:
        chaos.rotten += sim_worker_rot(worker, sim_random(UINT64_MAX));
        break;
    case HALF_OPEN: // of a client's, too
        if (!sim_random(3))
            ends[0] = sim_client_loop(chaos.clients[sim_random(chaos.n_clients)]);
        if (ends[0] && ends[1] && ends[0] != ends[1])
            sim_net_half_open(ends[way], ends[1 - way]);
        break;
    case OLD_BUILD:
        if (sim_random(3))
            downgrade(worker, sim_random(2) ? OLD_WIRE : OLD_CONTROL);
        else
            old_client();
        break;
    case DRAIN:
        sim_drain(chaos_a_client(), worker->name, sim_random(2));
        break;
    case BALANCE:
        sim_rebalance(chaos_a_client(), !sim_random(4));
        break;
    case POWER:
    case FILE_ROT:
        harm_files(worker, fault);
        break;
    case FILES_FULL:
        fill_files(worker);
        break;
    case MEMORY_FLIP:
        chaos_flip_memory();
        break;
    case SUPERVISED:
        supervise();
        break;
    case SLOW: // 5 ms: hardly slower than planned
        sim_worker_slow(worker, sim_random(4) ? (5 * COMMON_NS_PER_MS) << sim_random(5) : 0);
        break;
    case QUOTA:
        set_quota((enum coordinator_quota_kind)sim_random(COORDINATOR_QUOTAS));
        break;
    case JOIN:
        join();
        break;
    case RETURN:
        come_back(worker);
        break;
    case SWALLOW:
        swallow(ends[0], ends[1]);
        break;
    case FAULTS:
        break;
    }
}

void chaos_cool(void)
{
    for (uint32_t i = 0; i < chaos.n_workers && chaos.cold; i++) {
        if (!sim_random(3))
            sim_worker_cool(chaos.cluster->workers[i], (uint32_t)sim_random(12));
        if (!sim_random(12))
            sim_worker_anew(chaos.cluster->workers[i], sim_random(UINT64_MAX));
    }
}

void chaos_disturb_end(void)
{
    no_quotas();
    sim_memory_refuse(0);
    chaos_disturb(HEAL);
    sim_disk_fail(SIM_DISK_PATH, 0, COMMON_OK);
    sim_disk_unsure(SIM_DISK_PATH, 0);
    for (uint32_t i = 0; i < chaos.n_workers; i++) // rules that have not struck yet
        for (uint32_t method = 1; method < 128; method++)
            sim_serve_rule(chaos.cluster->workers[i]->loop, method, (struct sim_rule){.verdict = SIM_DO});
}
