// SPDX-License-Identifier: Apache-2.0
// What a step's hand-off to threads costs: the worker's parked team (worker/processors/team.h), bound to
// cores or not, beside OpenMP's with each of its ways of waiting. As many processes as workers compute their
// parts of the same step at the same time, as the workers of one host do; then all of them idle.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/main.h"
#include "bench/report.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/metrics/histogram.h"
#include "kernels/split.h"
#include "worker/processors/team.h"

enum { Q_HEADS = 32, KV_HEADS = 8, DIM = 128, CHUNK = 256, WORKERS_MAX = 64, PEER_FD = 3 };

static bool json;
static const char *only; // NULL: all teams
static uint64_t rounds = 200, idle_ms = 1000, threads = 2;

static const struct kernels_spec spec = {.kv_type = KERNELS_KV_BF16,
                                         .k_dim = DIM,
                                         .v_dim = DIM,
                                         .q_heads = Q_HEADS,
                                         .kv_heads = KV_HEADS,
                                         .scale = 0.088f};

// ---- a worker's part ----------------------------------------------------------------------------

struct part {
    struct kernels_item item;
    struct kernels_split split;
    struct kernels_partial out;
    struct worker_team *team;
    uint64_t scratch_bytes;
    void *scratch[256]; // OpenMP's threads'
};

static void *memory_of(size_t bytes)
{
    void *memory = aligned_alloc(KERNELS_ALIGN, (bytes + KERNELS_ALIGN) / KERNELS_ALIGN * KERNELS_ALIGN);
    if (!memory)
        abort();
    memset(memory, 0x3c, bytes);
    return memory;
}

static void part_init(struct part *part, uint32_t chunks)
{
    const size_t half = (size_t)CHUNK * DIM * 2;
    struct kernels_run *runs = memory_of(KV_HEADS * chunks * sizeof *runs);
    for (uint32_t i = 0; i < chunks; i++) {
        uint8_t *block = memory_of(2 * half * KV_HEADS);
        for (uint32_t head = 0; head < KV_HEADS; head++)
            runs[head * chunks + i] = (struct kernels_run){.k = block + 2 * head * half,
                                                           .v = block + (2 * head + 1) * half,
                                                           .first = (uint64_t)i * CHUNK,
                                                           .rows = CHUNK};
    }
    part->item = (struct kernels_item){.spec = &spec,
                                       .kernel = kernels_attention_default(&spec),
                                       .rows = 1,
                                       .q_first = (uint64_t)chunks * CHUNK - 1,
                                       .visible = (uint64_t)chunks * CHUNK,
                                       .q = memory_of(Q_HEADS * DIM * sizeof(float)),
                                       .q_row_stride = (uint64_t)Q_HEADS * DIM,
                                       .q_head_stride = DIM,
                                       .chunk_tokens = CHUNK,
                                       .run_count = chunks,
                                       .runs = runs};
    kernels_split_init(&part->split, &part->item, memory_of(kernels_split_bytes(&part->item)));
    kernels_partial_view(memory_of(kernels_partial_bytes(1, Q_HEADS, DIM)), 1, Q_HEADS, DIM, &part->out);
    part->scratch_bytes = kernels_split_scratch(&part->item);
}

static void task(void *arg, uint32_t index, void *scratch)
{
    struct part *part = arg;
    kernels_split_run(&part->split, index, scratch);
}

static void step_parked(struct part *part)
{
    struct worker_job job = {
        .tasks = part->split.tasks, .scratch_bytes = part->scratch_bytes, .run = task, .arg = part};
    worker_team_run(part->team, &job);
}

#ifdef _OPENMP
#include <omp.h>

static void step_openmp(struct part *part)
{
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)threads)
    for (uint32_t i = 0; i < part->split.tasks; i++) {
        void **scratch = &part->scratch[omp_get_thread_num()];
        if (!*scratch && part->scratch_bytes)
            *scratch = memory_of(part->scratch_bytes);
        kernels_split_run(&part->split, i, *scratch);
    }
}
#else
static void step_openmp(struct part *part)
{
    (void)part;
    fprintf(stderr, "team_cost: built without OpenMP\n");
    exit(1);
}
#endif

// A process that was started for it: a byte comes, a step is computed, a byte goes back, until there are
// none.
static int serve(const char *how, uint32_t chunks)
{
    static struct part part;
    struct worker_place_options options = {.bind = strcmp(how, "parked-cores") == 0 ? WORKER_BIND_CORES
                                                                                    : WORKER_BIND_NONE,
                                           .numa = WORKER_NUMA_AUTO,
                                           .threads = (uint32_t)threads};
    struct worker_place *place = NULL;
    struct common_loop *loop = NULL;
    char byte;
    bool parked = strncmp(how, "parked", 6) == 0;
    part_init(&part, chunks);
    if (common_loop_new(&loop) != COMMON_OK || worker_place_new(&options, &place, NULL) != COMMON_OK ||
        (parked && worker_team_new(loop, (uint32_t)threads, place, &part.team, NULL) != COMMON_OK))
        return 1;
    while (read(PEER_FD, &byte, 1) == 1) {
        (parked ? step_parked : step_openmp)(&part);
        kernels_split_merge(&part.split, &part.out);
        if (write(PEER_FD, &byte, 1) != 1)
            break;
    }
    worker_team_free(part.team);
    worker_place_free(place);
    common_loop_free(loop);
    return 0;
}

// ---- the other side -----------------------------------------------------------------------------

static pid_t start(const char *how, uint32_t chunks, int *fd)
{
    int pair[2];
    char chunks_text[16], threads_text[16];
    snprintf(chunks_text, sizeof chunks_text, "%u", chunks);
    snprintf(threads_text, sizeof threads_text, "%u", (unsigned)threads);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        if (strncmp(how, "openmp-", 7) == 0)
            setenv("OMP_WAIT_POLICY", how + 7, 1);
        if (dup2(pair[1], PEER_FD) == PEER_FD)
            execl("/proc/self/exe", "team_cost", "peer", how, chunks_text, threads_text, (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    *fd = pair[0];
    return pid;
}

static double cpu_us(pid_t pid) // so far; clock ticks are too coarse: the scheduler's own count
{
    char path[64];
    unsigned long long ns = 0, total = 0;
    snprintf(path, sizeof path, "/proc/%ld/task", (long)pid);
    char command[160];
    snprintf(command, sizeof command, "cat %s/*/schedstat", path);
    FILE *file = popen(command, "r");
    while (file && fscanf(file, "%llu %*u %*u", &ns) == 1)
        total += ns;
    if (file)
        pclose(file);
    return (double)total / 1e3;
}

static bool measure(const char *how, uint32_t workers, uint32_t tokens)
{
    static struct common_histogram h;
    pid_t pids[WORKERS_MAX];
    int fds[WORKERS_MAX];
    char byte = 0;
    bool ok = true;
    uint32_t chunks = tokens / CHUNK / workers;
    for (uint32_t i = 0; i < workers; i++)
        if ((pids[i] = start(how, chunks ? chunks : 1, &fds[i])) < 0)
            return false;
    double before = 0, after = 0, idle = 0;
    common_histogram_reset(&h);
    for (uint64_t round = 0; ok && round < rounds + 20; round++) { // the first ones warm up
        uint64_t start_ns = common_clock_ns();
        for (uint32_t i = 0; ok && i < workers; i++)
            ok = write(fds[i], &byte, 1) == 1;
        for (uint32_t i = 0; ok && i < workers; i++)
            ok = read(fds[i], &byte, 1) == 1;
        if (round >= 20)
            common_histogram_add(&h, common_clock_ns() - start_ns);
        for (uint32_t i = 0; round == 19 && i < workers; i++)
            before += cpu_us(pids[i]);
        usleep(200); // between steps a worker waits
    }
    for (uint32_t i = 0; i < workers; i++)
        after += cpu_us(pids[i]);
    usleep((useconds_t)(idle_ms * 1000));
    for (uint32_t i = 0; i < workers; i++)
        idle += cpu_us(pids[i]);
    for (uint32_t i = 0; i < workers; i++) {
        close(fds[i]);
        waitpid(pids[i], NULL, 0);
    }
    const struct report_field fields[] = {{"bench", "team_cost", 0},
                                          {"team", how, 0},
                                          {"workers", NULL, workers},
                                          {"threads", NULL, (double)threads},
                                          {"tokens", NULL, tokens},
                                          {"p50_us", NULL, (double)common_histogram_quantile(&h, 0.5) / 1e3},
                                          {"p90_us", NULL, (double)common_histogram_quantile(&h, 0.9) / 1e3},
                                          {"cpu_us_per_step", NULL, (after - before) / (double)rounds},
                                          {"idle_cpu_us_per_s", NULL,
                                           (idle - after) / ((double)idle_ms / 1e3)},
                                          {0}};
    if (ok)
        report_line(json, fields);
    else
        fprintf(stderr, "team_cost: a peer with team '%s' is gone\n", how);
    return ok;
}

static bool measure_all(void)
{
    static const char *const teams[] = {"parked", "parked-cores", "openmp-passive", "openmp-active"};
    static const uint32_t workers[] = {1, 4}, tokens[] = {2048, 32768};
    bool ok = true;
    for (int w = 0; w < 2; w++)
        for (int t = 0; t < 2; t++)
            for (int i = 0; ok && i < 4; i++)
                ok = (only && strcmp(only, teams[i]) != 0) || measure(teams[i], workers[w], tokens[t]);
    return ok;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "peer") == 0) {
        threads = (uint64_t)atoi(argv[4]);
        return serve(argv[2], (uint32_t)atoi(argv[3]));
    }
    const struct common_option options[] = {
        {"rounds", 'n', COMMON_OPTION_U64, &rounds, "N", "steps of each kind (default 200)", 1, 1000000},
        {"threads", 't', COMMON_OPTION_U64, &threads, "N", "threads of each worker (default 2)", 1, 256},
        {"idle", 'i', COMMON_OPTION_U64, &idle_ms, "MS", "how long idle workers are watched (default 1000)",
         1, 60000},
        {"only", 'o', COMMON_OPTION_STRING, &only, "TEAM",
         "parked, parked-cores, openmp-passive or openmp-active (default: all)", 0, 0},
        {0},
    };
    const struct bench_program program = {
        .name = "team_cost",
        .about = "Steps over 1 and 4 workers of one host, by the kind of team that computes them: time,\n"
                 "processor time of all workers, and their processor time when idle.",
        .options = options,
        .json = &json,
        .measure = measure_all,
    };
    return bench_main(&program, argc, argv);
}
