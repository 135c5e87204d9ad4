// SPDX-License-Identifier: Apache-2.0
#include "bench/service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/hash/hash.h"
#include "common/memory/blob.h"
#include "common/tensor/float16.h"
#include "tests/harness/cluster.h"

const struct service_geometry service_large = {"32/8x128", 32, 8, 128};
const struct service_geometry service_small = {"8/2x64", 8, 2, 64};

size_t service_query_bytes(const struct service_geometry *g)
{
    return (size_t)g->q_heads * g->dim * sizeof(float);
}

size_t service_kv_row_bytes(const struct service_geometry *g)
{
    return (size_t)g->kv_heads * g->dim * 2;
}

size_t service_partial_bytes(const struct service_geometry *g)
{
    return 2 * common_align64(g->q_heads * sizeof(float)) + common_align64(service_query_bytes(g));
}

static double clock_s(clockid_t clock)
{
    struct timespec used;
    return clock_gettime(clock, &used) == 0 ? (double)used.tv_sec + (double)used.tv_nsec * 1e-9 : 0;
}

static double process_cpu_s(const struct harness_cluster *cluster, uint32_t who)
{
    clockid_t clock;
    return clock_getcpuclockid(harness_cluster_pid(cluster, who), &clock) == 0 ? clock_s(clock) : 0;
}

double service_cpu_s(const struct harness_cluster *cluster)
{
    double total = clock_s(CLOCK_PROCESS_CPUTIME_ID) + process_cpu_s(cluster, HARNESS_COORDINATOR);
    for (uint32_t w = 0; w < harness_cluster_workers(cluster); w++)
        total += process_cpu_s(cluster, w);
    return total;
}

bool service_failed(const char *what, const banyan_error *error)
{
    fprintf(stderr, "bench: %s: %s (%s)\n", what, error->message, banyan_code_name(error->code));
    return false;
}

// Uniform in (−1, 1).
static float random_float(uint64_t *state)
{
    return (float)((double)(common_mix64((*state)++) >> 11) * 0x1p-52 - 1.0);
}

static void random_bf16(uint16_t *out, size_t n, uint64_t *state)
{
    for (size_t i = 0; i < n; i++)
        out[i] = common_bf16_from_float(random_float(state));
}

// The daemons lie in ../bin, seen from this program: in a build as in a package.
static void find_daemons(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    for (int up = 0; up < 2 && n > 0; up++) {
        path[n] = '\0';
        char *slash = strrchr(path, '/');
        n = slash ? slash - path : 0;
    }
    if (n > 0) {
        path[n] = '\0';
        setenv("BANYAN_BUILD_DIR", path, 0);
    }
}

struct harness_cluster *service_cluster_with(const struct harness_options *options)
{
    struct harness_options measured = *options;
    find_daemons();
    measured.measured = true;
    return harness_cluster_start(&measured);
}

struct harness_cluster *service_cluster_engine(uint32_t workers, const char *memory, const char *engine,
                                               const char *device)
{
    static const char *const mpirun[] = {"mpirun", "--oversubscribe", "--bind-to", "none", NULL};
    static const char *args[] = {"--engine", NULL, "--device", NULL, NULL};
    struct harness_options options = {.workers = workers, .memory = memory, .worker_args = args};
    args[1] = engine;
    args[3] = device;
    if (strcmp(engine, "mpi") == 0)
        options.launcher = mpirun;
    return service_cluster_with(&options);
}

struct harness_cluster *service_cluster(uint32_t workers, const char *memory)
{
    return service_cluster_engine(workers, memory, "stream", "auto");
}

banyan_session *service_session(banyan_client *client, const struct service_geometry *g, uint32_t members,
                                uint32_t chunk_tokens, uint64_t tokens)
{
    const uint64_t piece = 4096;
    banyan_error error = {0};
    banyan_session *session = NULL;
    banyan_spec spec = {.layers = 1,
                        .q_heads = g->q_heads,
                        .kv_heads = g->kv_heads,
                        .k_dim = g->dim,
                        .v_dim = g->dim,
                        .kv_type = BANYAN_BF16,
                        .chunk_tokens = chunk_tokens,
                        .members = members};
    uint64_t state = tokens;
    size_t n = piece * g->kv_heads * g->dim;
    uint16_t *k = malloc(n * 2), *v = malloc(n * 2);
    if (!k || !v)
        abort();
    random_bf16(k, n, &state);
    random_bf16(v, n, &state);
    bool ok = banyan_session_create(client, &spec, NULL, &session, &error) == BANYAN_OK;
    for (uint64_t first = 0; ok && first < tokens; first += piece) {
        uint64_t count = tokens - first < piece ? tokens - first : piece;
        ok = banyan_attach(session, 0, first, count, k, v, &error) == BANYAN_OK &&
             banyan_commit(session, 0, first, count, &error) == BANYAN_OK;
    }
    free(k);
    free(v);
    if (ok)
        return session;
    service_failed("session", &error);
    banyan_session_close(session);
    return NULL;
}

bool service_step_init(struct service_step *step, const struct service_geometry *g)
{
    uint64_t state = 7;
    size_t q = (size_t)g->q_heads * g->dim, kv = (size_t)g->kv_heads * g->dim;
    *step = (struct service_step){malloc(q * 4), malloc(q * 4), malloc(kv * 2), malloc(kv * 2)};
    if (!step->q || !step->o || !step->k || !step->v)
        return false;
    for (size_t i = 0; i < q; i++)
        step->q[i] = random_float(&state);
    random_bf16(step->k, kv, &state);
    random_bf16(step->v, kv, &state);
    return true;
}

void service_step_free(struct service_step *step)
{
    free(step->q);
    free(step->o);
    free(step->k);
    free(step->v);
}

banyan_item service_item(banyan_session *session, const struct service_step *step, uint64_t position)
{
    return (banyan_item){.session = session,
                         .first = position,
                         .rows = 1,
                         .q = step->q,
                         .k = step->k,
                         .v = step->v,
                         .o = step->o};
}
