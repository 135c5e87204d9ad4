// SPDX-License-Identifier: Apache-2.0
// Steps per second of 1, 8 and 64 sessions: stepped in one attend call ("batched"), and each by a client of
// its own with a connection of its own, all at once ("clients"). Small geometry: one chunk a session, on one
// worker. Large: over one plan of all workers; its ratio is to plain sockets that move the same bytes along
// the same tree, one message per attend call, measured in the same run.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/floor.h"
#include "bench/main.h"
#include "bench/report.h"
#include "bench/service.h"
#include "common/base/clock.h"
#include "tests/harness/cluster.h"

#define SESSIONS_MAX 64
#define CYCLE        16 // new positions; then the same again

static bool json;
static uint64_t workers = 4, milliseconds = 1500;

// Of steps: a second, and a second of processor time of client, coordinator and workers together.
struct rates {
    double per_s, per_cpu_s;
};

static void report(const char *mode, const struct service_geometry *g, uint32_t members, uint32_t sessions,
                   struct rates rates, double ratio, double least_share)
{
    const struct report_field fields[] = {{"bench", "sessions", 0},
                                          {"mode", mode, 0},
                                          {"geometry", g->name, 0},
                                          {"workers", NULL, members},
                                          {"sessions", NULL, sessions},
                                          {"steps_per_s", NULL, rates.per_s},
                                          {"steps_per_cpu_s", NULL, rates.per_cpu_s},
                                          {"ratio", NULL, ratio},
                                          {"least_share", NULL, least_share},
                                          {0}};
    report_line(json, fields);
}

// One worker: half a chunk. Several: as few tokens as give each a part, because here the wire is measured.
static uint32_t chunk_of(uint32_t members)
{
    return members == 1 ? 256 : 16;
}

static uint64_t tokens_of(uint32_t members)
{
    return members == 1 ? 128 : 16 * (uint64_t)members;
}

// ---- batched ------------------------------------------------------------------------------------

static bool batched(const struct harness_cluster *cluster, banyan_client *client,
                    const struct service_geometry *g, uint32_t members, uint32_t n, struct rates *rates)
{
    banyan_session *sessions[SESSIONS_MAX] = {0};
    struct service_step steps[SESSIONS_MAX];
    banyan_item items[SESSIONS_MAX];
    banyan_error error = {0}, item_error = {0};
    uint64_t tokens = tokens_of(members), calls = 0;
    bool ok = true;
    for (uint32_t i = 0; ok && i < n; i++)
        ok = (sessions[i] = service_session(client, g, members, chunk_of(members), tokens)) != NULL &&
             service_step_init(&steps[i], g);
    uint64_t warm_up = 5, start = common_clock_ns(), limit = milliseconds * COMMON_NS_PER_MS;
    double used_s = 0;
    for (uint64_t c = 0; ok && (c < warm_up || common_clock_ns() - start < limit); c++) {
        if (c == warm_up) {
            used_s = service_cpu_s(cluster);
            start = common_clock_ns();
        }
        for (uint32_t i = 0; i < n; i++) {
            items[i] = service_item(sessions[i], &steps[i], tokens + c % CYCLE);
            items[i].error = &item_error;
        }
        ok =
            banyan_attend(client, items, n, 0, NULL, &error) == BANYAN_OK || service_failed("attend", &error);
        for (uint32_t i = 0; ok && i < n; i++)
            ok = items[i].code == BANYAN_OK || service_failed("item", &item_error);
        calls += c >= warm_up;
    }
    rates->per_s = (double)(calls * n) / ((double)(common_clock_ns() - start) * 1e-9);
    rates->per_cpu_s = (double)(calls * n) / (service_cpu_s(cluster) - used_s);
    for (uint32_t i = 0; i < n && sessions[i]; i++) {
        banyan_session_delete(sessions[i], NULL);
        banyan_session_close(sessions[i]);
        service_step_free(&steps[i]);
    }
    return ok;
}

// ---- clients ------------------------------------------------------------------------------------

struct stepper {
    banyan_client *client;
    banyan_session *session;
    struct service_step step;
    banyan_item item;
    banyan_error error;
    uint64_t tokens, done, started;
    const bool *stop;
    bool ended, failed;
    pthread_mutex_t *lock;
    pthread_cond_t *changed;
};

static void stepper_end(struct stepper *s)
{
    pthread_mutex_lock(s->lock);
    s->ended = true;
    pthread_cond_signal(s->changed);
    pthread_mutex_unlock(s->lock);
}

static void stepper_next(struct stepper *s);

static void stepper_done(void *arg, banyan_code code, const banyan_error *error, banyan_item *items,
                         size_t n_items)
{
    struct stepper *s = arg;
    (void)n_items;
    if (code != BANYAN_OK || items[0].code != BANYAN_OK) {
        s->failed = !service_failed("step of a client", code != BANYAN_OK ? error : &s->error);
        stepper_end(s);
        return;
    }
    if (__atomic_load_n(s->stop, __ATOMIC_RELAXED)) {
        stepper_end(s);
        return;
    }
    __atomic_fetch_add(&s->done, 1, __ATOMIC_RELAXED);
    stepper_next(s);
}

static void stepper_next(struct stepper *s)
{
    banyan_error error;
    s->item = service_item(s->session, &s->step, s->tokens + s->started++ % CYCLE);
    s->item.error = &s->error;
    if (banyan_attend_async(s->client, &s->item, 1, 0, stepper_done, s, &error) != BANYAN_OK) {
        s->failed = !service_failed("attend", &error);
        stepper_end(s);
    }
}

static bool stepper_open(struct stepper *s, const char *endpoint, const struct service_geometry *g,
                         uint32_t members)
{
    banyan_error error = {0};
    s->tokens = tokens_of(members);
    if (banyan_connect(endpoint, NULL, &s->client, &error) != BANYAN_OK)
        return service_failed("connect", &error);
    s->session = service_session(s->client, g, members, chunk_of(members), s->tokens);
    return s->session && service_step_init(&s->step, g);
}

static bool clients(const struct harness_cluster *cluster, const struct service_geometry *g, uint32_t members,
                    uint32_t n, struct rates *rates, double *least_share)
{
    static struct stepper steppers[SESSIONS_MAX];
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
    uint64_t before[SESSIONS_MAX], total = 0, least = UINT64_MAX;
    bool stop = false, ok = true;
    uint32_t started = 0;
    memset(steppers, 0, sizeof(steppers));
    for (uint32_t i = 0; i < n; i++) {
        steppers[i].stop = &stop;
        steppers[i].lock = &lock;
        steppers[i].changed = &changed;
        ok = ok && stepper_open(&steppers[i], harness_cluster_endpoint(cluster, "unix"), g, members);
    }
    for (; ok && started < n; started++)
        stepper_next(&steppers[started]);
    const struct timespec warm_up = {0, 200000000};
    const struct timespec measured = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000 * 1000000)};
    nanosleep(&warm_up, NULL);
    double used_s = service_cpu_s(cluster);
    uint64_t start = common_clock_ns();
    for (uint32_t i = 0; i < n; i++)
        before[i] = __atomic_load_n(&steppers[i].done, __ATOMIC_RELAXED);
    nanosleep(&measured, NULL);
    double seconds = (double)(common_clock_ns() - start) * 1e-9;
    used_s = service_cpu_s(cluster) - used_s;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t done = __atomic_load_n(&steppers[i].done, __ATOMIC_RELAXED) - before[i];
        total += done;
        least = done < least ? done : least;
    }
    __atomic_store_n(&stop, true, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < started; i++) {
        pthread_mutex_lock(&lock);
        while (!steppers[i].ended)
            pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
        ok = ok && !steppers[i].failed;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (steppers[i].session)
            banyan_session_delete(steppers[i].session, NULL);
        banyan_session_close(steppers[i].session);
        banyan_disconnect(steppers[i].client);
        service_step_free(&steppers[i].step);
    }
    *rates = (struct rates){(double)total / seconds, (double)total / used_s};
    *least_share = total ? (double)least * n / (double)total : 0;
    return ok;
}

// ---- the whole ----------------------------------------------------------------------------------

// Steps per second of the plain socket tree when n steps travel in one message.
static bool floor_steps(banyan_client *client, const struct service_geometry *g, uint32_t n,
                        double *steps_per_s)
{
    banyan_error error = {0};
    banyan_plan_info plan;
    static struct common_histogram h;
    int32_t parent[HARNESS_WORKERS_MAX];
    banyan_session *session = service_session(client, g, (uint32_t)workers, chunk_of((uint32_t)workers),
                                              tokens_of((uint32_t)workers));
    if (!session)
        return false;
    bool ok = banyan_session_get_plan(session, &plan, &error) == BANYAN_OK || service_failed("plan", &error);
    banyan_session_delete(session, NULL);
    banyan_session_close(session);
    if (!ok)
        return false;
    struct floor_tree tree = {.client = FLOOR_UNIX,
                              .workers = plan.n_nodes,
                              .parent = parent,
                              .request_bytes = n * (service_query_bytes(g) + 2 * service_kv_row_bytes(g)),
                              .partial_bytes = n * service_partial_bytes(g),
                              .reply_bytes = n * service_query_bytes(g)};
    for (uint32_t i = 0; i < plan.n_nodes; i++)
        parent[plan.nodes[i].rank] = plan.nodes[i].parent;
    banyan_plan_info_free(&plan);
    uint32_t rounds = 2000 / n + 100;
    ok = floor_tree_rounds(&tree, rounds, &h);
    *steps_per_s = (double)n / (h.sum / (double)h.count * 1e-9);
    return ok;
}

static bool run_geometry(const struct harness_cluster *cluster, banyan_client *client,
                         const struct service_geometry *g, uint32_t members)
{
    const uint32_t counts[] = {1, 8, 64};
    double one_batched = 0, one_client = 0, base, share;
    struct rates rates;
    for (size_t i = 0; i < 3; i++) {
        uint32_t n = counts[i];
        if (!batched(cluster, client, g, members, n, &rates))
            return false;
        one_batched = n == 1 ? rates.per_s : one_batched;
        base = one_batched;
        if (members > 1 && !floor_steps(client, g, n, &base))
            return false;
        report("batched", g, members, n, rates, rates.per_s / base, 1);
    }
    for (size_t i = 0; i < 3; i++) {
        if (!clients(cluster, g, members, counts[i], &rates, &share))
            return false;
        one_client = counts[i] == 1 ? rates.per_s : one_client;
        report("clients", g, members, counts[i], rates, rates.per_s / one_client, share);
    }
    return true;
}

static bool measure_all(void)
{
    struct harness_cluster *cluster = service_cluster((uint32_t)workers, "1G");
    banyan_client *client = NULL;
    banyan_error error = {0};
    if (!cluster)
        return false;
    bool ok = banyan_connect(harness_cluster_endpoint(cluster, "unix"), NULL, &client, &error) == BANYAN_OK ||
              service_failed("connect", &error);
    ok = ok && run_geometry(cluster, client, &service_small, 1) &&
         run_geometry(cluster, client, &service_large, (uint32_t)workers);
    banyan_disconnect(client);
    return harness_cluster_stop(cluster) == 0 && ok;
}

int main(int argc, char **argv)
{
    floor_peer_main(argc, argv);
    const struct common_option options[] = {
        {"workers", 'w', COMMON_OPTION_U64, &workers, "P",
         "workers, all in the large geometry's plan (default 4)", 2, HARNESS_WORKERS_MAX},
        {"milliseconds", 'm', COMMON_OPTION_U64, &milliseconds, "N", "of each measurement (default 1500)", 10,
         600000},
        {0},
    };
    const struct bench_program program = {
        .name = "sessions",
        .about =
            "Steps per second of 1, 8 and 64 sessions, in one call and from as many clients. ratio:\n"
            "batched, small geometry: to one session; batched, large geometry: to plain sockets that move\n"
            "the same bytes along the same tree; clients: to one client. least_share: the slowest\n"
            "client's steps over the mean (1: all alike, 0: one starves). steps_per_cpu_s: of the\n"
            "processor time of client, coordinator and workers together.",
        .options = options,
        .json = &json,
        .measure = measure_all,
    };
    return bench_main(&program, argc, argv);
}
