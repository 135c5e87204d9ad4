// SPDX-License-Identifier: Apache-2.0
#include <sys/prctl.h>

#include "tests/coordinator/hermetic/hermetic.h"

struct sim_cluster *cluster_of(uint32_t workers)
{
    struct sim_cluster *cluster = sim_cluster_new(&(struct sim_cluster_options){.workers = workers});
    sim_cluster_start(cluster);
    return cluster;
}

uint64_t session_of(struct sim_cluster *cluster, uint32_t tokens)
{
    struct sim_shape shape = {.members = cluster->options.workers};
    struct sim_call *call = sim_create(cluster->client, shape, "");
    OK(call);
    uint64_t session = call->session;
    for (uint32_t at = 0; at < tokens; at += 16)
        OK(sim_append(cluster->client, session, 0, at, tokens - at < 16 ? tokens - at : 16, 1));
    return session;
}

uint64_t filled_of(struct sim_cluster *cluster, uint32_t replicas, uint32_t tokens)
{
    struct sim_call *call = sim_create(cluster->client, (struct sim_shape){.replicas = replicas}, "");
    OK(call);
    uint64_t session = call->session;
    for (uint32_t at = 0; at < tokens; at += 16)
        OK(sim_append(cluster->client, session, 0, at, tokens - at < 16 ? tokens - at : 16, 1));
    return session;
}

struct coordinator_session *kept_of(struct sim_cluster *cluster, uint64_t session)
{
    return coordinator_session_find(&cluster->coordinator->sessions, session);
}

struct sim_worker *copy_of(struct sim_cluster *cluster, uint64_t session, uint32_t index, uint32_t copy)
{
    const struct coordinator_chunk *chunk =
        coordinator_layout_find(&kept_of(cluster, session)->layout, index);
    assert_true(chunk && copy < coordinator_chunk_copies(chunk));
    return cluster->workers[coordinator_chunk_holder(chunk, copy)->name[1] - '0'];
}

uint64_t length_of(struct sim_cluster *cluster, uint64_t session)
{
    struct sim_call *call = sim_info(cluster->client, session);
    OK(call);
    return call->length;
}

struct sim_worker *holder_of(struct sim_cluster *cluster, uint64_t session, uint64_t position)
{
    struct sim_worker *holder = NULL;
    for (uint32_t i = 0; i < cluster->options.workers; i++) {
        if (sim_worker_holds(cluster->workers[i], session, position)) {
            assert_null(holder);
            holder = cluster->workers[i];
        }
    }
    assert_non_null(holder);
    return holder;
}

uint64_t tokens_held(struct sim_cluster *cluster, uint64_t session)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < cluster->options.workers; i++)
        n += sim_worker_tokens(cluster->workers[i], session, 0);
    return n;
}

void state_is(struct sim_cluster *cluster, const struct sim_worker *worker, const char *state)
{
    struct sim_call *info = sim_cluster_info(cluster->client);
    OK(info);
    assert_string_equal(info->workers[worker->name[1] - '0'], state);
}

void rule_all(struct sim_cluster *cluster, uint32_t method, struct sim_rule rule)
{
    for (uint32_t i = 0; i < cluster->options.workers; i++)
        sim_serve_rule(cluster->workers[i]->loop, method, rule);
}

uint32_t held_all(struct sim_cluster *cluster)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < cluster->options.workers; i++)
        n += sim_serve_held(cluster->workers[i]->loop);
    return n;
}

void let_go_all(struct sim_cluster *cluster)
{
    for (uint32_t i = 0; i < cluster->options.workers; i++)
        sim_serve_let_go(cluster->workers[i]->loop);
}

void restart(struct sim_cluster *cluster)
{
    struct common_error err;
    sim_run_until_idle();
    if (sim_coordinator_start(cluster, &err) != COMMON_OK)
        fail_msg("the coordinator does not start: %s", err.message);
}

static int themes(void)
{
    return hermetic_workers() + hermetic_placing() + hermetic_room() + hermetic_plans() + hermetic_frames() +
           hermetic_fairness() + hermetic_quotas() + hermetic_prefixes() + hermetic_sessions() +
           hermetic_items() + hermetic_limits() + hermetic_appends() + hermetic_commits() +
           hermetic_copies() + hermetic_audits() + hermetic_partial() + hermetic_watches() +
           hermetic_events() + hermetic_holders() + hermetic_moves() + hermetic_scrub() + hermetic_seals() +
           hermetic_reading() + hermetic_reconcile() + hermetic_restarts() + hermetic_restoring() +
           hermetic_returned() + hermetic_slow() + hermetic_successors() + hermetic_truncates() +
           hermetic_visits() + hermetic_forget() + hermetic_born() + hermetic_edges();
}

// Without an argument: themes and one. themes; one, copies, all: moments with one holder of each chunk, with
// several, with both. prefixes: that theme alone.
int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    prctl(PR_SET_THP_DISABLE, 1, 0, 0,
          0); // thousands of workers with a few rows each: to clear huge pages is the most of it
    if (!strcmp(what, "prefixes"))
        return hermetic_prefixes();
    int failed = !*what || !strcmp(what, "themes") ? themes() : 0;
    if (strcmp(what, "themes") != 0)
        failed += hermetic_moments(!strcmp(what, "copies") ? 2 : 1, !*what || !strcmp(what, "one") ? 1 : 3);
    return failed;
}
