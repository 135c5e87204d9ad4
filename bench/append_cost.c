// SPDX-License-Identifier: Apache-2.0
// What an append of one token costs where the worker has files (--store), beside one that has none: clusters
// of one worker stand beside each other and take turns, call by call. With --before, another build's worker
// with files takes turns, too.
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/main.h"
#include "bench/report.h"
#include "bench/service.h"
#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "common/metrics/histogram.h"
#include "tests/harness/cluster.h"

#define WARM         20
#define SESSIONS_MAX 64
#define LENGTH       256u // then other sessions take their place: what is computed stays small

static uint64_t rounds = 2000, n_sessions = 1, tokens;
static const char *before, *fsync_when = "interval", *folder = "/tmp";
static bool json;

enum { PLAIN, STORE, BEFORE, SIDES };
static const char *const names[SIDES] = {"no store", "store", "store, --before"};

static struct side { // a cluster, and a client of it
    struct harness_cluster *cluster;
    banyan_client *client;
    banyan_session *sessions[SESSIONS_MAX];
    char store[4096];
    struct common_histogram h;
    double cpu_s; // of the worker, before the first round that counts
} sides[SIDES];

static bool side_start(struct side *side, bool store)
{
    const char *const args[] = {"--store", side->store, "--fsync", fsync_when, NULL};
    banyan_error error = {0};
    snprintf(side->store, sizeof side->store, "%.4000s/append-XXXXXX", folder);
    if (store && !mkdtemp(side->store)) {
        perror("append_cost: --dir");
        side->store[0] = '\0';
        return false;
    }
    side->cluster = service_cluster_with(
        &(struct harness_options){.workers = 1, .memory = "512M", .worker_args = store ? args : NULL});
    if (!side->cluster)
        return false;
    return banyan_connect(harness_cluster_endpoint(side->cluster, "unix"), NULL, &side->client, &error) ==
               BANYAN_OK ||
           service_failed("connect", &error);
}

static void sessions_end(struct side *side)
{
    for (uint64_t i = 0; i < n_sessions; i++) {
        if (side->sessions[i])
            banyan_session_delete(side->sessions[i], NULL);
        banyan_session_close(side->sessions[i]);
        side->sessions[i] = NULL;
    }
}

static bool sessions_begin(struct side *side)
{
    sessions_end(side);
    for (uint64_t i = 0; i < n_sessions; i++)
        if (!(side->sessions[i] = service_session(side->client, &service_small, 1, 0, tokens)))
            return false;
    return true;
}

static void remove_store(const char *store)
{
    static const char *const folders[] = {"chunks", "sessions", "quarantine", ""};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char path[4400], name[4700];
        snprintf(path, sizeof path, "%s/%s", store, folders[i]);
        DIR *dir = opendir(path);
        const struct dirent *entry;
        // cppcheck-suppress readdirCalled ; the stream is this function's
        while (dir && (entry = readdir(dir))) {
            snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
            unlink(name);
        }
        if (dir)
            closedir(dir);
        rmdir(path);
    }
}

static bool side_stop(struct side *side, bool store)
{
    if (!side->cluster)
        return true;
    sessions_end(side);
    banyan_disconnect(side->client);
    bool ok = harness_cluster_stop(side->cluster) == 0;
    if (store)
        remove_store(side->store);
    return ok;
}

// Processor time that the worker has used, all threads.
static double cpu_s(const struct side *side)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", harness_cluster_pid(side->cluster, 0));
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    text[n] = '\0';
    const char *at = strrchr(text, ')'); // the name may have blanks
    unsigned long user = 0, system = 0;
    if (at)
        (void)sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static bool append(struct side *side, const struct service_step *buffers, uint64_t position, bool counts)
{
    banyan_item items[SESSIONS_MAX];
    banyan_error error = {0}, item_error = {0};
    for (uint64_t i = 0; i < n_sessions; i++) {
        items[i] = service_item(side->sessions[i], buffers, position);
        items[i].error = &item_error;
    }
    uint64_t start = common_clock_ns();
    if (banyan_attend(side->client, items, (uint32_t)n_sessions, 0, NULL, &error) != BANYAN_OK)
        return service_failed("attend", &error);
    if (counts)
        common_histogram_add(&side->h, common_clock_ns() - start);
    for (uint64_t i = 0; i < n_sessions; i++)
        if (items[i].code != BANYAN_OK)
            return service_failed("item", &item_error);
    return true;
}

static bool turns(const struct service_step *buffers)
{
    for (uint64_t i = 0; i < rounds + WARM; i++) {
        for (uint64_t k = 0; k < SIDES; k++) {
            struct side *side = &sides[(k + i) % SIDES]; // another begins each round
            if (!side->cluster)
                continue;
            if (i % LENGTH == 0 && !sessions_begin(side))
                return false;
            if (i == WARM)
                side->cpu_s = cpu_s(side);
            if (!append(side, buffers, tokens + i % LENGTH,
                        i >= WARM && i % LENGTH > 0)) // the first makes files
                return false;
        }
    }
    return true;
}

static void report(void)
{
    double plain = (double)common_histogram_quantile(&sides[PLAIN].h, 0.5) / 1e3;
    for (int i = 0; i < SIDES; i++) {
        if (!sides[i].cluster)
            continue;
        double p50 = (double)common_histogram_quantile(&sides[i].h, 0.5) / 1e3,
               p99 = (double)common_histogram_quantile(&sides[i].h, 0.99) / 1e3,
               cpu = (cpu_s(&sides[i]) - sides[i].cpu_s) * 1e6 / (double)(rounds * n_sessions);
        const struct report_field fields[] = {
            {"bench", json ? "append_cost" : NULL, 0},
            {"what", names[i], 0},
            {"fsync", i == PLAIN ? "-" : fsync_when, 0},
            {"sessions", NULL, (double)n_sessions},
            {"tokens", NULL, (double)tokens},
            {"p50_us", NULL, p50},
            {"p99_us", NULL, p99},
            {"more_us", NULL, p50 - plain},
            {"worker_cpu_us", NULL, cpu},
            {NULL, NULL, 0},
        };
        report_line(json, json ? fields : fields + 1);
    }
}

static bool run(void)
{
    struct service_step buffers;
    if (!service_step_init(&buffers, &service_small))
        return false;
    for (int i = 0; i < SIDES; i++)
        common_histogram_reset(&sides[i].h);
    bool ok = side_start(&sides[PLAIN], false) && side_start(&sides[STORE], true);
    if (ok && before) {
        setenv("BANYAN_BUILD_DIR", before, 1);
        ok = side_start(&sides[BEFORE], true);
    }
    ok = ok && turns(&buffers);
    if (ok)
        report();
    for (int i = 0; i < SIDES; i++)
        ok = side_stop(&sides[i], i != PLAIN) && ok;
    service_step_free(&buffers);
    return ok;
}

int main(int argc, char **argv)
{
    const struct common_option options[] = {
        {"rounds", 'n', COMMON_OPTION_U64, &rounds, "N", "appends by each worker (default 2000)", 1, 1000000},
        {"sessions", 's', COMMON_OPTION_U64, &n_sessions, "N", "in each call (default 1)", 1, SESSIONS_MAX},
        {"tokens", 't', COMMON_OPTION_U64, &tokens, "N",
         "of each session before the first append (default 0)", 0, 1u << 20},
        {"fsync", 'f', COMMON_OPTION_STRING, &fsync_when, "WHEN", "interval (default), never or always", 0,
         0},
        {"dir", 'd', COMMON_OPTION_STRING, &folder, "DIR", "folder for the workers' files (default /tmp)", 0,
         0},
        {"before", 0, COMMON_OPTION_STRING, &before, "DIR",
         "build folder of an older version: its worker with files takes turns with ours", 0, 0},
        {0},
    };
    const struct bench_program program = {
        .name = "append_cost",
        .about = "Measures an append of one token at a worker with files and at one without: p50 and p99 of "
                 "a call, how much\n"
                 "more than without files, and the worker's processor time per append.",
        .options = options,
        .json = &json,
        .measure = run,
    };
    return bench_main(&program, argc, argv);
}
