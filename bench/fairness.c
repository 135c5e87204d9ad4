// SPDX-License-Identifier: Apache-2.0
// How long a quiet tenant's step takes while another tenant floods the coordinator with steps, beside the
// same step alone, the same flood from its own tenant (within a tenant all wait in one row), and a plain unix
// round trip at its payload. The flood is a process of its own with so many steps outstanding at any time, on
// the same workers and the same plan. frames_a_step says what the scheduler does whatever else the machine
// has to do: 2 are the frame under way and its own.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/floor.h"
#include "bench/main.h"
#include "bench/report.h"
#include "bench/service.h"
#include "common/base/clock.h"
#include "tests/harness/cluster.h"

#define CYCLE 16
#define WARM  10

static bool json;
static uint64_t rounds = 2000, outstanding = 1000, tokens = 1024, workers = 1;
static char root[256]; // file of an admin's token

static void report(const char *what, const struct common_histogram *h, double frames, double floor_us)
{
    double p50 = (double)common_histogram_quantile(h, 0.5) / 1e3,
           p99 = (double)common_histogram_quantile(h, 0.99) / 1e3;
    const struct report_field fields[] = {{"bench", "fairness", 0},
                                          {"what", what, 0},
                                          {"outstanding", NULL, (double)outstanding},
                                          {"frames_a_step", NULL, frames},
                                          {"p50_us", NULL, p50},
                                          {"p99_us", NULL, p99},
                                          {"ratio_to_floor", NULL, p50 / floor_us},
                                          {0}};
    report_line(json, fields);
}

// ---- the flood ----------------------------------------------------------------------------------

struct wave { // one step that is outstanding
    banyan_client *client;
    banyan_item item;
    banyan_error error;
    float *o;
};

static volatile sig_atomic_t failed;

static void again(void *arg, banyan_code code, const banyan_error *error, banyan_item *items, size_t n)
{
    struct wave *w = arg;
    banyan_error mine = {0};
    if (code == BANYAN_OK && items->code == BANYAN_OK &&
        banyan_attend_async(w->client, items, n, UINT64_C(60000000000), again, w, &mine) == BANYAN_OK)
        return;
    if (!failed)
        service_failed("a step of the flood", code != BANYAN_OK          ? error
                                              : items->code != BANYAN_OK ? &w->error
                                                                         : &mine);
    failed = 1;
    kill(getpid(), SIGTERM);
}

// A process: says so on `ready` once all are outstanding, and goes on until it is killed.
static void flood(const char *endpoint, const char *token_file, int ready)
{
    banyan_client *client;
    banyan_error error = {0};
    struct service_step step;
    const banyan_options options = {.token_file = token_file};
    if (banyan_connect(endpoint, &options, &client, &error) != BANYAN_OK ||
        !service_step_init(&step, &service_large)) {
        service_failed("connect the flood", &error);
        _exit(1);
    }
    banyan_session *session = service_session(client, &service_large, (uint32_t)workers, 0, tokens);
    struct wave *waves = calloc(outstanding, sizeof *waves);
    if (!session || !waves)
        _exit(1);
    for (uint64_t i = 0; i < outstanding; i++) {
        struct wave *w = &waves[i];
        w->client = client;
        w->o = malloc(service_query_bytes(&service_large));
        w->item = (banyan_item){
            .session = session, .first = tokens - 1, .rows = 1, .q = step.q, .o = w->o, .error = &w->error};
        if (!w->o ||
            banyan_attend_async(client, &w->item, 1, UINT64_C(60000000000), again, w, &error) != BANYAN_OK)
            _exit(1);
    }
    if (write(ready, "", 1) != 1)
        _exit(1);
    while (!failed)
        pause();
    _exit(1);
}

// 0: it could not be started.
static pid_t flood_start(const char *endpoint, const char *token_file)
{
    int ends[2];
    char byte;
    if (pipe(ends) != 0)
        return 0;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        flood(endpoint, token_file, ends[1]);
    }
    close(ends[1]);
    bool ok = pid > 0 && read(ends[0], &byte, 1) == 1;
    close(ends[0]);
    if (!ok)
        fprintf(stderr, "fairness: the flood does not start\n");
    return ok ? pid : 0;
}

// False: it had ended before, and said why.
static bool flood_end(pid_t pid)
{
    int status;
    bool alive = waitpid(pid, &status, WNOHANG) == 0;
    kill(pid, SIGKILL);
    if (alive)
        waitpid(pid, &status, 0);
    return alive;
}

// ---- the quiet one ------------------------------------------------------------------------------

// As an admin sees it: tenants do not see each other's.
static uint64_t frames_so_far(const char *endpoint)
{
    banyan_client *client;
    banyan_cluster_info info = {0};
    const banyan_options options = {.token_file = root};
    if (banyan_connect(endpoint, &options, &client, NULL) != BANYAN_OK)
        return 0;
    uint64_t frames = banyan_cluster_get_info(client, &info, NULL) == BANYAN_OK ? info.frames : 0;
    banyan_cluster_info_free(&info);
    banyan_disconnect(client);
    return frames;
}

// *frames: that the coordinator has sent for each of them, of any tenant.
static bool steps(const char *endpoint, const char *token_file, uint64_t n, struct common_histogram *out,
                  double *frames)
{
    banyan_client *client;
    banyan_error error = {0}, item_error = {0};
    struct service_step step;
    const banyan_options options = {.token_file = token_file};
    if (!service_step_init(&step, &service_large))
        return false;
    if (banyan_connect(endpoint, &options, &client, &error) != BANYAN_OK)
        return service_failed("connect", &error);
    banyan_session *session = service_session(client, &service_large, (uint32_t)workers, 0, tokens);
    bool ok = session != NULL;
    common_histogram_reset(out);
    uint64_t before = frames_so_far(endpoint);
    for (uint64_t i = 0; ok && i < n + WARM; i++) {
        banyan_item item = service_item(session, &step, tokens + i % CYCLE);
        item.error = &item_error;
        uint64_t start = common_clock_ns();
        ok = banyan_attend(client, &item, 1, UINT64_C(60000000000), NULL, &error) == BANYAN_OK;
        if (ok && item.code != BANYAN_OK) {
            error = item_error;
            ok = false;
        }
        if (i >= WARM)
            common_histogram_add(out, common_clock_ns() - start);
    }
    *frames = (double)(frames_so_far(endpoint) - before) / (double)(n + WARM);
    if (!ok)
        service_failed("step", &error);
    if (session)
        banyan_session_delete(session, NULL);
    banyan_session_close(session);
    banyan_disconnect(client);
    service_step_free(&step);
    return ok;
}

static bool token_make(banyan_client *admin, const char *dir, const char *name, const char *access,
                       const char *tenant, char path[256])
{
    char token[65];
    banyan_error error = {0};
    snprintf(path, 256, "%s/%s.token", dir, name);
    if (banyan_token_create(admin, name, access, tenant, 0, token, NULL, &error) != BANYAN_OK)
        return service_failed("create a token", &error);
    FILE *file = fopen(path, "w");
    bool ok = file && fchmod(fileno(file), 0600) == 0 && fprintf(file, "%s\n", token) > 0;
    return (file && fclose(file) == 0) && ok;
}

static bool tokens_make(const char *endpoint, const char *dir, char a[256], char b[256])
{
    banyan_client *client;
    banyan_error error = {0};
    if (banyan_connect(endpoint, NULL, &client, &error) != BANYAN_OK)
        return service_failed("connect", &error);
    bool ok = token_make(client, dir, "root", "admin", NULL, root);
    banyan_disconnect(client);
    const banyan_options options = {.token_file = root};
    if (!ok || banyan_connect(endpoint, &options, &client, &error) != BANYAN_OK)
        return service_failed("connect as admin", &error);
    ok = token_make(client, dir, "noisy", "user", "noisy", a) &&
         token_make(client, dir, "quiet", "user", "quiet", b);
    banyan_disconnect(client);
    return ok;
}

static bool measure(const char *endpoint, const char *noisy, const char *quiet, double floor_us)
{
    static struct common_histogram h;
    const struct {
        const char *what, *flood, *step;
        uint64_t n;
    } cases[] = {
        {"alone", NULL, quiet, rounds},
        {"flood_of_another_tenant", noisy, quiet, rounds},
        {"flood_of_its_own_tenant", quiet, quiet, rounds / 100 + 1}, // each waits for all of it
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pid_t pid = cases[i].flood ? flood_start(endpoint, cases[i].flood) : 0;
        if (cases[i].flood && !pid)
            return false;
        double frames;
        bool ok = steps(endpoint, cases[i].step, cases[i].n, &h, &frames);
        if ((pid && !flood_end(pid)) || !ok)
            return false;
        report(cases[i].what, &h, frames, floor_us);
    }
    return true;
}

static bool run(void)
{
    static struct common_histogram h;
    const struct service_geometry *g = &service_large;
    size_t request = service_query_bytes(g) + 2 * service_kv_row_bytes(g), reply = service_query_bytes(g);
    char noisy[256], quiet[256];
    if (!floor_pingpong(FLOOR_UNIX, request, reply, (uint32_t)rounds, &h))
        return false;
    double floor_us = (double)common_histogram_quantile(&h, 0.5) / 1e3;
    report("unix_floor", &h, 0, floor_us);
    struct harness_cluster *cluster = service_cluster((uint32_t)workers, "1G");
    if (!cluster)
        return false;
    const char *endpoint = harness_cluster_endpoint(cluster, "unix");
    bool ok = tokens_make(endpoint, harness_cluster_dir(cluster), noisy, quiet) &&
              measure(endpoint, noisy, quiet, floor_us);
    return harness_cluster_stop(cluster) == 0 && ok;
}

int main(int argc, char **argv)
{
    floor_peer_main(argc, argv);
    const struct common_option options[] = {
        {"rounds", 'r', COMMON_OPTION_U64, &rounds, "N", "steps of the quiet tenant (default 2000)", 1,
         UINT64_C(1) << 30},
        {"outstanding", 'n', COMMON_OPTION_U64, &outstanding, "N",
         "unanswered steps of the flood (default 1000)", 1, 8000},
        {"tokens", 't', COMMON_OPTION_U64, &tokens, "N", "of each session (default 1024)", 1, 1 << 20},
        {"workers", 'w', COMMON_OPTION_U64, &workers, "N", "that share each session (default 1)", 1, 16},
        {0},
    };
    const struct bench_program program = {
        .name = "fairness",
        .about =
            "A quiet tenant's one-token step (32 query / 8 KV heads x 128, bfloat16) alone, while another "
            "tenant\n"
            "floods the same plan with steps, and while its own tenant does, beside a plain unix round trip.",
        .options = options,
        .json = &json,
        .measure = run,
    };
    return bench_main(&program, argc, argv);
}
