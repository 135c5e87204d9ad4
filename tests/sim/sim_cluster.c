// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_cluster.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/place/placing.h"
#include "coordinator/session/session.h"
#include "coordinator/state.h"
#include "proto/rpc/transport.h"
#include "tests/sim/sim_edges.h"

enum { FIRST_WORKER_PORT = 7100 };
#define HEARTBEAT_NS  (100 * COMMON_NS_PER_MS)
#define WAIT_NS       (60 * COMMON_NS_PER_S)
#define WORKER_MEMORY (UINT64_C(64) << 20)

struct sim_cluster *sim_cluster_new(const struct sim_cluster_options *options)
{
    struct sim_cluster *cluster = calloc(1, sizeof *cluster);
    if (!cluster)
        abort();
    assert(options->workers <= SIM_WORKERS_MAX);
    if (!getenv("BANYAN_LOG"))
        common_log_set_level(COMMON_LOG_ERROR);
    sim_begin(options->seed);
    sim_edges_begin();
    cluster->options = *options;
    cluster->coordinators[0].endpoint = SIM_COORDINATOR;
    cluster->coordinators[1].endpoint = SIM_SECOND;
    memset(cluster->secret.bytes, 7, sizeof cluster->secret.bytes);
    for (uint32_t i = 0; i < options->workers; i++) {
        char name[16], host[16];
        snprintf(name, sizeof name, "w%u", i);
        snprintf(host, sizeof host, "h%u", i);
        cluster->workers[i] = sim_worker_new(&(struct sim_worker_options){
            .name = name,
            .host = host,
            .coordinator = options->second ? SIM_COORDINATOR "," SIM_SECOND : SIM_COORDINATOR,
            .port = FIRST_WORKER_PORT + 2 * i,
            .secret = &cluster->secret,
            .memory_bytes = options->memory_bytes ? options->memory_bytes : WORKER_MEMORY,
            .team = options->team,
            .pace = options->pace,
            .attach_ttl_ns = options->attach_ttl_ns,
            .store = options->store,
            .scrub_ns = options->scrub_ns,
            .syncs = options->syncs,
            .inventory_bytes = options->inventory_bytes});
    }
    cluster->client = sim_client_new(SIM_COORDINATOR, NULL);
    return cluster;
}

// One that is stopping serves no calls, and what it has in memory does not count.
static void look_at_active(struct sim_cluster *cluster)
{
    const struct sim_coordinator *one = &cluster->coordinators[cluster->active];
    cluster->loop = one->stopping ? NULL : one->loop;
    cluster->coordinator = one->stopping ? NULL : one->coordinator;
}

static enum common_code start(struct sim_cluster *cluster, struct sim_coordinator *one,
                              struct common_error *err)
{
    const char *const endpoints[] = {one->endpoint, NULL};
    struct coordinator_options options;
    assert(!one->loop);
    coordinator_options_default(&options);
    options.endpoints = endpoints;
    options.secret = &cluster->secret;
    options.store_path = SIM_DISK_PATH;
    options.heartbeat_ns = HEARTBEAT_NS;
    options.max_sessions = 1024;
    if (cluster->options.tune)
        cluster->options.tune(&options);
    if (common_loop_new(&one->loop) != COMMON_OK)
        abort();
    one->stopping = false;
    sim_loop_name(one->loop, one == cluster->coordinators ? "coordinator" : "second");
    sim_loop_skew(one->loop, cluster->coordinator_skew_ns);
    enum common_code code = coordinator_new(one->loop, &options, &one->coordinator, err);
    if (code != COMMON_OK) {
        one->coordinator = NULL;
        common_loop_free(one->loop);
        one->loop = NULL;
    }
    look_at_active(cluster);
    return code;
}

enum common_code sim_coordinator_start(struct sim_cluster *cluster, struct common_error *err)
{
    return start(cluster, &cluster->coordinators[cluster->active], err);
}

static void coordinator_end(struct sim_cluster *cluster, struct sim_coordinator *one)
{
    coordinator_stop(one->coordinator);
    sim_loop_end(one->loop);
    coordinator_free(one->coordinator);
    common_loop_free(one->loop);
    one->coordinator = NULL;
    one->loop = NULL;
    one->stopping = false;
    look_at_active(cluster);
}

static void coordinator_kill(struct sim_cluster *cluster, struct sim_coordinator *one)
{
    if (!one->loop)
        return;
    sim_loop_thaw(one->loop);
    sim_loop_mute(one->loop);
    sim_store_crash(one->coordinator->store);
    coordinator_end(cluster, one);
}

void sim_coordinator_kill(struct sim_cluster *cluster)
{
    coordinator_kill(cluster, &cluster->coordinators[cluster->active]);
}

void sim_coordinator_stop(struct sim_cluster *cluster)
{
    if (!cluster->loop)
        return;
    sim_loop_thaw(cluster->loop);
    coordinator_end(cluster, &cluster->coordinators[cluster->active]);
}

void sim_coordinator_stop_slowly(struct sim_cluster *cluster, uint64_t ns)
{
    struct sim_coordinator *one = &cluster->coordinators[cluster->active];
    sim_loop_thaw(one->loop);
    sim_store_stops_slowly(one->coordinator->store, ns);
    coordinator_stop(one->coordinator);
    sim_loop_freeze(one->loop); // it waits for its store
    one->stopping = true;
    look_at_active(cluster);
}

enum common_code sim_next_start(struct sim_cluster *cluster, struct common_error *err)
{
    enum common_code code = start(cluster, &cluster->coordinators[!cluster->active], err);
    if (code != COMMON_OK)
        return code;
    cluster->active = !cluster->active;
    look_at_active(cluster);
    return COMMON_OK;
}

bool sim_old_runs(struct sim_cluster *cluster)
{
    bool runs = false;
    for (int i = 0; i < 2; i++) {
        struct sim_coordinator *one = &cluster->coordinators[i];
        if (one->stopping && !sim_store_is_open(one->coordinator->store)) {
            sim_loop_thaw(one->loop);
            coordinator_end(cluster, one);
        }
        runs = runs || one->stopping;
    }
    return runs;
}

void sim_old_kill(struct sim_cluster *cluster)
{
    for (int i = 0; i < 2; i++)
        if (cluster->coordinators[i].stopping)
            coordinator_kill(cluster, &cluster->coordinators[i]);
}

bool sim_wait_active(struct sim_cluster *cluster, uint32_t n)
{
    for (uint64_t until = sim_clock() + 20 * COMMON_NS_PER_S; sim_clock() < until;) {
        struct sim_call *call = sim_cluster_info(cluster->client);
        if (sim_wait(call) == COMMON_OK && call->n_active == n)
            return true;
        sim_advance(10 * COMMON_NS_PER_MS);
    }
    return false;
}

void sim_cluster_start(struct sim_cluster *cluster)
{
    struct common_error err;
    if (sim_coordinator_start(cluster, &err) != COMMON_OK) {
        fprintf(stderr, "sim: the coordinator does not start: %s\n", err.message);
        abort();
    }
    uint32_t n = cluster->options.workers - cluster->options.later;
    for (uint32_t i = 0; i < n; i++)
        sim_worker_start(cluster->workers[i]);
    if (!sim_wait_active(cluster, n)) {
        fprintf(stderr, "sim: not all workers are active\n");
        abort();
    }
}

bool sim_tokens_counted(const struct sim_cluster *cluster)
{
    const struct coordinator *c = cluster->coordinator;
    for (uint32_t w = 0; w < c->cluster.n_workers; w++) {
        uint64_t tokens = 0;
        for (uint32_t i = 0; i < c->sessions.n_slots; i++) {
            const struct coordinator_session *s = c->sessions.slots[i];
            for (uint32_t k = 0; s && k < s->layout.n; k++) {
                const struct coordinator_chunk *chunk = &s->layout.chunks[k];
                uint64_t ct = s->layout.chunk_tokens, first = chunk->index * ct;
                uint64_t length = coordinator_session_layer_length(s, 0),
                         n = length > first ? length - first : 0;
                if (chunk->holder == c->cluster.workers[w])
                    tokens += n < ct ? n : ct;
            }
        }
        if (c->cluster.workers[w] && c->cluster.workers[w]->tokens != tokens)
            return false;
    }
    return true;
}

static uint64_t used_of_all(const struct coordinator_quotas *quotas, enum coordinator_quota_kind kind)
{
    uint64_t n = 0;
    for (uint32_t t = 0; t < quotas->n; t++)
        n += quotas->all[t] ? quotas->all[t]->used[kind] : 0;
    return n;
}

bool sim_quotas_counted(const struct sim_cluster *cluster)
{
    const struct coordinator *c = cluster->coordinator;
    uint64_t connections = 0;
    for (const struct common_list *at = c->server->callers.next; at != &c->server->callers; at = at->next)
        connections += common_list_entry(at, struct proto_caller, link)->entered;
    for (uint32_t t = 0; t < c->quotas.n; t++) {
        uint64_t sessions = 0, bytes = 0;
        const struct coordinator_use *use = c->quotas.all[t];
        for (uint32_t i = 0; i < c->sessions.n_slots; i++) {
            const struct coordinator_session *s = c->sessions.slots[i];
            if (!s || s->tenant != t)
                continue;
            sessions++;
            bytes += coordinator_placing_reserved(s);
            for (uint32_t k = 0; k < s->layout.n; k++)
                bytes += coordinator_session_index_quota(s, s->layout.chunks[k].index);
        }
        if (use && (use->used[COORDINATOR_QUOTA_SESSIONS] != sessions ||
                    use->used[COORDINATOR_QUOTA_BYTES] != bytes))
            return false;
    }
    return used_of_all(&c->quotas, COORDINATOR_QUOTA_STEPS_IN_FLIGHT) == c->steps.items &&
           used_of_all(&c->quotas, COORDINATOR_QUOTA_CONNECTIONS) == connections;
}

enum common_code sim_wait(struct sim_call *call)
{
    return sim_run_until(&call->done, WAIT_NS) ? call->code : COMMON_IN_PROGRESS;
}

void sim_cluster_free(struct sim_cluster *cluster)
{
    sim_old_kill(cluster);
    sim_coordinator_kill(cluster);
    for (uint32_t i = 0; i < cluster->options.workers; i++)
        sim_worker_free(cluster->workers[i]);
    sim_client_free(cluster->client);
    free(cluster);
    sim_disks_free();
    sim_end();
}
