// SPDX-License-Identifier: Apache-2.0
// What it costs a session's steps that copies are restored: three workers, two copies of each chunk, one
// worker is killed, and what it had is copied between the others while another session is stepped.
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/main.h"
#include "bench/report.h"
#include "bench/service.h"
#include "common/base/clock.h"
#include "tests/harness/cluster.h"

enum { WORKERS = 3, LAYERS = 8, BLOCK = 2048, SAMPLES_MAX = 1 << 20 };

#define QUIET_NS (1500 * COMMON_NS_PER_MS) // no move for so long: all is restored
#define PATIENCE (600 * COMMON_NS_PER_S)

enum phase { BEFORE, DURING, AFTER, PHASES, NONE = PHASES };
static const char *const phase_names[PHASES] = {"before", "during", "after"};

static bool json;
static uint64_t moved_bytes = UINT64_C(4) << 30, stepped_tokens = 8192, seconds = 5;
static const char *rate; // NULL: the coordinator's own
static bool prefault;
static uint64_t small; // sessions, in the place of one large one; 0: none

static struct {
    struct harness_cluster *cluster;
    banyan_client *client, *stepper;
    banyan_session *bulk, *stepped;
    struct service_step step;
    atomic_int phase;
    atomic_bool stop;
    atomic_uint failed;
    uint32_t *us[PHASES]; // [SAMPLES_MAX]
    uint32_t n[PHASES];
} run = {.phase = NONE};

// The last token again and again: it is there, so each step does the same, writing included.
static void *step_on(void *arg)
{
    (void)arg;
    while (!atomic_load(&run.stop)) {
        int phase = atomic_load(&run.phase);
        banyan_item item = service_item(run.stepped, &run.step, stepped_tokens - 1);
        uint64_t begun = common_clock_ns();
        banyan_code code = banyan_attend(run.stepper, &item, 1, PATIENCE, NULL, NULL);
        uint64_t took = common_clock_ns() - begun;
        if (code != BANYAN_OK || item.code != BANYAN_OK)
            atomic_fetch_add(&run.failed, 1);
        else if (phase != NONE && phase == atomic_load(&run.phase) && run.n[phase] < SAMPLES_MAX)
            run.us[phase][run.n[phase]++] = (uint32_t)(took / 1000);
    }
    return NULL;
}

static void rest(uint64_t ns)
{
    nanosleep(&(struct timespec){(time_t)(ns / COMMON_NS_PER_S), (long)(ns % COMMON_NS_PER_S)}, NULL);
}

static bool fill(banyan_session *session, uint64_t tokens, const uint16_t *rows)
{
    banyan_error error = {0};
    const banyan_spec *spec = banyan_session_spec(session);
    for (uint32_t l = 0; l < spec->layers; l++) {
        for (uint64_t first = 0; first < tokens; first += BLOCK)
            if (banyan_attach(session, l, first, tokens - first < BLOCK ? tokens - first : BLOCK, rows, rows,
                              &error) != BANYAN_OK)
                return service_failed("attach", &error);
        if (banyan_commit(session, l, 0, tokens, &error) != BANYAN_OK)
            return service_failed("commit", &error);
    }
    return true;
}

static bool make_session(banyan_client *client, uint32_t layers, uint64_t tokens, const uint16_t *rows,
                         banyan_session **out)
{
    const struct service_geometry *g = &service_large;
    banyan_error error = {0};
    banyan_spec spec = {.layers = layers,
                        .q_heads = g->q_heads,
                        .kv_heads = g->kv_heads,
                        .k_dim = g->dim,
                        .v_dim = g->dim,
                        .kv_type = BANYAN_BF16,
                        .members = WORKERS,
                        .replicas = 2};
    if (banyan_session_create(client, &spec, NULL, out, &error) != BANYAN_OK)
        return service_failed("a session", &error);
    return fill(*out, tokens, rows);
}

static bool make_sessions(void)
{
    const struct service_geometry *g = &service_large;
    uint64_t copies = moved_bytes * WORKERS, token = 2 * service_kv_row_bytes(g) * LAYERS;
    size_t n = BLOCK * service_kv_row_bytes(g) / sizeof(uint16_t);
    uint16_t *rows = malloc(n * sizeof *rows);
    for (size_t i = 0; rows && i < n; i++)
        rows[i] = (uint16_t)(0x3c00 + i * 2654435761u % 0x300); // small numbers
    bool ok = rows && service_step_init(&run.step, g) &&
              make_session(run.client, LAYERS, copies / 2 / token, rows, &run.bulk) &&
              make_session(run.stepper, 1, stepped_tokens - 1, rows, &run.stepped);
    free(rows);
    return ok;
}

static bool look(banyan_cluster_info *info)
{
    banyan_error error = {0};
    if (banyan_cluster_get_info(run.client, info, &error) != BANYAN_OK)
        return service_failed("cluster", &error);
    banyan_cluster_info_free(info);
    return true;
}

// Waits for moves to begin, or to have ended.
static bool wait_moves(bool begun, uint64_t *bytes, uint64_t *last_ns)
{
    banyan_cluster_info info;
    uint64_t until = common_clock_after(PATIENCE);
    *last_ns = common_clock_ns();
    while (common_clock_ns() < until) {
        if (!look(&info))
            return false;
        if (info.moves)
            *last_ns = common_clock_ns();
        *bytes = info.moved_bytes;
        if (begun ? info.moves > 0 : common_clock_ns() - *last_ns > QUIET_NS)
            return true;
        rest(50 * COMMON_NS_PER_MS);
    }
    fprintf(stderr, "restore: copies are not restored\n");
    return false;
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double quantile(enum phase phase, double q)
{
    uint32_t n = run.n[phase];
    return n ? run.us[phase][(uint32_t)(q * (n - 1))] : 0;
}

static double mean(enum phase phase)
{
    double sum = 0;
    for (uint32_t i = 0; i < run.n[phase]; i++)
        sum += run.us[phase][i];
    return run.n[phase] ? sum / run.n[phase] : 0;
}

static void report(uint64_t bytes, uint64_t took_ns)
{
    for (int p = 0; p < PHASES; p++) {
        qsort(run.us[p], run.n[p], sizeof(uint32_t), by_size);
        report_line(json, (const struct report_field[]){{"bench", "restore", 0},
                                                        {"steps", phase_names[p], 0},
                                                        {"n", NULL, run.n[p]},
                                                        {"median_us", NULL, quantile(p, 0.5)},
                                                        {"mean_us", NULL, mean(p)},
                                                        {"p99_us", NULL, quantile(p, 0.99)},
                                                        {"most_us", NULL, quantile(p, 1)},
                                                        {0}});
    }
    report_line(json, (const struct report_field[]){
                          {"bench", "restore", 0},
                          {"rate", rate ? rate : "default", 0},
                          {"restored_mib", NULL, (double)bytes / (1 << 20)},
                          {"seconds", NULL, (double)took_ns / 1e9},
                          {"mib_per_s", NULL, (double)bytes / (1 << 20) / ((double)took_ns / 1e9)},
                          {"median_ratio", NULL, quantile(DURING, 0.5) / quantile(AFTER, 0.5)},
                          {"mean_ratio", NULL, mean(DURING) / mean(AFTER)},
                          {0}});
}

// Of as many sessions as asked for, with one token each.
static bool make_small(void)
{
    const struct service_geometry *g = &service_small;
    banyan_error error = {0};
    uint16_t *rows = calloc(1, service_kv_row_bytes(g));
    const banyan_spec spec = {.layers = 2,
                              .q_heads = g->q_heads,
                              .kv_heads = g->kv_heads,
                              .k_dim = g->dim,
                              .v_dim = g->dim,
                              .kv_type = BANYAN_BF16,
                              .replicas = 2};
    bool ok = rows != NULL;
    for (uint64_t i = 0; ok && i < small; i++) {
        banyan_session *session = NULL;
        ok = (banyan_session_create(run.client, &spec, NULL, &session, &error) == BANYAN_OK ||
              service_failed("a session", &error)) &&
             fill(session, 1, rows);
        banyan_session_close(session);
    }
    free(rows);
    return ok;
}

// From the kill until no chunk has too few copies.
static bool measure_small(void)
{
    banyan_cluster_info info;
    uint64_t lost = 0;
    banyan_error error = {0};
    if (!make_small())
        return false;
    rest(3 * COMMON_NS_PER_S);
    uint64_t from = common_clock_ns(), until = common_clock_after(PATIENCE), struck = 0;
    harness_cluster_signal(run.cluster, 0, SIGKILL);
    while (common_clock_ns() < until) {
        if (banyan_cluster_get_info(run.client, &info, &error) != BANYAN_OK)
            return service_failed("cluster", &error);
        uint64_t thin = info.thin_chunks;
        banyan_cluster_info_free(&info);
        lost = thin > lost ? thin : lost;
        struck = !struck && thin ? common_clock_ns() : struck;
        if (struck && !thin)
            break;
        rest(50 * COMMON_NS_PER_MS);
    }
    double seconds_all = (double)(common_clock_ns() - from) / 1e9;
    report_line(json, (const struct report_field[]){{"bench", "restore", 0},
                                                    {"rate", rate ? rate : "default", 0},
                                                    {"sessions", NULL, (double)small},
                                                    {"most_thin", NULL, (double)lost},
                                                    {"seconds", NULL, seconds_all},
                                                    {0}});
    return common_clock_ns() < until;
}

static bool measure_phases(void)
{
    uint64_t bytes, last_ns, begun_ns;
    atomic_store(&run.phase, BEFORE);
    rest(seconds * COMMON_NS_PER_S);
    atomic_store(&run.phase, NONE);
    harness_cluster_signal(run.cluster, 0, SIGKILL);
    if (!wait_moves(true, &bytes, &last_ns))
        return false;
    begun_ns = common_clock_ns();
    atomic_store(&run.phase, DURING);
    bool ok = wait_moves(false, &bytes, &last_ns);
    atomic_store(&run.phase, NONE);
    uint64_t took_ns = last_ns - begun_ns;
    atomic_store(&run.phase, AFTER);
    rest(seconds * COMMON_NS_PER_S);
    atomic_store(&run.phase, NONE);
    atomic_store(&run.stop, true);
    if (ok)
        report(bytes, took_ns);
    return ok;
}

static bool measure(void)
{
    char memory[32];
    const char *arguments[] = {rate ? "--move-rate" : NULL, rate, NULL};
    const char *const same_speed[] = {"--bandwidth", "8G", prefault ? "--prefault" : NULL, NULL};
    banyan_error error = {0};
    pthread_t thread;
    snprintf(memory, sizeof memory, "%" PRIu64 "M", (moved_bytes >> 20) * 2 + 2048);
    run.cluster = service_cluster_with(&(struct harness_options){
        .workers = WORKERS, .memory = memory, .coordinator_args = arguments, .worker_args = same_speed});
    if (!run.cluster)
        return false;
    bool ok = true;
    for (int p = 0; p < PHASES; p++)
        ok = (run.us[p] = malloc(SAMPLES_MAX * sizeof(uint32_t))) && ok;
    const char *endpoint = harness_cluster_endpoint(run.cluster, "unix");
    ok = ok && ((banyan_connect(endpoint, NULL, &run.client, &error) == BANYAN_OK &&
                 banyan_connect(endpoint, NULL, &run.stepper, &error) == BANYAN_OK) ||
                service_failed("connect", &error));
    if (small)
        ok = ok && measure_small();
    ok = ok && (small || make_sessions());
    if (ok && !small && pthread_create(&thread, NULL, step_on, NULL) == 0) {
        ok = measure_phases();
        atomic_store(&run.stop, true);
        pthread_join(thread, NULL);
    }
    if (atomic_load(&run.failed))
        fprintf(stderr, "restore: %u steps failed\n", atomic_load(&run.failed));
    banyan_session_close(run.bulk);
    banyan_session_close(run.stepped);
    banyan_disconnect(run.client);
    banyan_disconnect(run.stepper);
    service_step_free(&run.step);
    for (int p = 0; p < PHASES; p++)
        free(run.us[p]);
    return harness_cluster_stop(run.cluster) == 0 && ok && !atomic_load(&run.failed);
}

int main(int argc, char **argv)
{
    const struct common_option options[] = {
        {"moved", 'm', COMMON_OPTION_SIZE, &moved_bytes, "SIZE",
         "to be restored; the workers hold three times as much (default 4G)", 1 << 20, UINT64_C(1) << 40},
        {"rate", 'r', COMMON_OPTION_STRING, &rate, "SIZE", "the coordinator's --move-rate (default: its own)",
         0, 0},
        {"tokens", 't', COMMON_OPTION_U64, &stepped_tokens, "N",
         "of the session that is stepped (default 8192)", 1, 1 << 20},
        {"small", 'n', COMMON_OPTION_U64, &small, "N",
         "use so many sessions of one token instead of one large one, until all have two copies again", 1,
         1 << 20},
        {"seconds", 's', COMMON_OPTION_U64, &seconds, "N", "before and after (default 5)", 1, 1000},
        {"prefault", 'p', COMMON_OPTION_FLAG, &prefault, NULL, "of the workers: memory is there before", 0,
         0},
        {0},
    };
    const struct bench_program program = {
        .name = "restore",
        .about =
            "One of three workers is killed, and the copies of chunks that it had are restored between the\n"
            "others while another session is stepped (32/8 x 128, bfloat16, two copies). before: with\n"
            "three workers; during; after: with the two that are left. Ratios are during to after.",
        .options = options,
        .json = &json,
        .measure = measure,
    };
    return bench_main(&program, argc, argv);
}
