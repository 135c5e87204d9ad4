// SPDX-License-Identifier: Apache-2.0
// The first steps of a session that has left memory for the disk: all layers, one after the other, as a
// decode goes, beside plain reads of the same files. The page cache is dropped before each.
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/main.h"
#include "bench/report.h"
#include "bench/service.h"
#include "common/base/clock.h"
#include "tests/harness/cluster.h"

enum {
    HEADS = 32,
    KV_HEADS = 8,
    DIM = 128,
    TOKEN_BYTES = 2 * KV_HEADS * DIM * 2,
    CHUNK = 256,
    READ = 1 << 20
};
enum { SESSIONS = 3, READERS = 4, ROUNDS_MAX = 99, NAME = 32 };

static bool json;
static uint64_t n_layers = 8, n_tokens = 16384, n_rounds = 5, read_ahead = 2;
static const char *folder = ".";

static struct {
    char store[4096], chunks[4112];
    char (*files)[NAME]; // of the session that is measured
    size_t n_files;
    struct harness_cluster *cluster;
    banyan_client *client;
    banyan_session *sessions[SESSIONS];
    float q[HEADS * DIM];
    float *first; // answers before it was cold: [layers][HEADS * DIM]
    _Atomic size_t next;
    _Atomic uint64_t bytes;
} cold;

// ---- files --------------------------------------------------------------------------------------

static int open_file(size_t nth)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", cold.chunks, cold.files[nth]);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static bool drop_cache(void)
{
    for (size_t i = 0; i < cold.n_files; i++) {
        int fd = open_file(i);
        if (fd < 0 || fdatasync(fd) != 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0) {
            perror("cold: a file's pages cannot be dropped");
            return false;
        }
        close(fd);
    }
    return true;
}

static void *read_files(void *arg)
{
    char *buffer = malloc(READ);
    (void)arg;
    for (size_t i; buffer && (i = atomic_fetch_add(&cold.next, 1)) < cold.n_files;) {
        int fd = open_file(i);
        ssize_t n;
        if (fd < 0)
            continue;
        posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        while ((n = read(fd, buffer, READ)) > 0)
            atomic_fetch_add(&cold.bytes, (uint64_t)n);
        close(fd);
    }
    free(buffer);
    return NULL;
}

// Bytes a second of a plain read of all files by so many threads.
static double floor_rate(uint32_t readers)
{
    pthread_t threads[READERS];
    if (!drop_cache())
        return 0;
    cold.next = 0;
    cold.bytes = 0;
    uint64_t start = common_clock_ns();
    for (uint32_t i = 0; i < readers; i++)
        if (pthread_create(&threads[i], NULL, read_files, NULL))
            abort();
    for (uint32_t i = 0; i < readers; i++)
        pthread_join(threads[i], NULL);
    return (double)cold.bytes * 1e9 / (double)(common_clock_ns() - start);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

// The sealed files that there are. False: some chunk has not been sealed yet.
static bool list_files(void)
{
    DIR *dir = opendir(cold.chunks);
    const struct dirent *entry;
    bool all = dir != NULL;
    cold.n_files = 0;
    // cppcheck-suppress readdirCalled ; the stream is this function's
    while (dir && (entry = readdir(dir))) {
        const char *dot = strrchr(entry->d_name, '.');
        if (!dot || entry->d_name[0] == '.')
            continue;
        all = all && strcmp(dot, ".sealed") == 0;
        cold.files = realloc(cold.files, (cold.n_files + 1) * sizeof *cold.files);
        if (!cold.files)
            abort();
        snprintf(cold.files[cold.n_files++], NAME, "%.31s", entry->d_name);
    }
    if (dir)
        closedir(dir);
    qsort(cold.files, cold.n_files, sizeof *cold.files, compare_names);
    return all && cold.n_files > 0;
}

static bool wait_sealed(void)
{
    for (int i = 0; i < 600; i++) {
        if (list_files())
            return true;
        nanosleep(&(struct timespec){0, 100000000}, NULL);
    }
    fprintf(stderr, "cold: the chunks were not sealed within a minute\n");
    return false;
}

// ---- sessions -----------------------------------------------------------------------------------

static uint16_t random_bf16(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint16_t)((*state >> 63) << 15 | (0x3e00 + (*state >> 40 & 0x1ff))); // 0.125 to 1
}

static bool fill(uint32_t nth)
{
    enum { PIECE = 4096 };
    banyan_error error = {0};
    banyan_spec spec = {.layers = (uint32_t)n_layers,
                        .q_heads = HEADS,
                        .kv_heads = KV_HEADS,
                        .k_dim = DIM,
                        .v_dim = DIM,
                        .kv_type = BANYAN_BF16,
                        .chunk_tokens = CHUNK};
    size_t values = (size_t)PIECE * KV_HEADS * DIM;
    uint16_t *k = malloc(values * 2), *v = malloc(values * 2);
    uint64_t state = nth + 1;
    if (!k || !v)
        abort();
    for (size_t i = 0; i < values; i++) {
        k[i] = random_bf16(&state);
        v[i] = random_bf16(&state);
    }
    bool ok = banyan_session_create(cold.client, &spec, NULL, &cold.sessions[nth], &error) == BANYAN_OK;
    for (uint64_t first = 0; ok && first < n_tokens; first += PIECE)
        for (uint32_t l = 0; ok && l < n_layers; l++) {
            uint64_t count = n_tokens - first < PIECE ? n_tokens - first : PIECE;
            k[first / PIECE + l] = (uint16_t)(0x3f00 + nth); // no two pieces are the same
            ok = banyan_attach(cold.sessions[nth], l, first, count, k, v, &error) == BANYAN_OK &&
                 banyan_commit(cold.sessions[nth], l, first, count, &error) == BANYAN_OK;
        }
    free(k);
    free(v);
    return ok || service_failed("a session", &error);
}

// One row through all layers. out: [layers][HEADS * DIM]. Nanoseconds, 0: it failed.
static uint64_t pass(uint32_t nth, float *out)
{
    banyan_error error = {0};
    uint64_t start = common_clock_ns();
    for (uint32_t l = 0; l < n_layers; l++) {
        banyan_item item = {.session = cold.sessions[nth],
                            .layer = l,
                            .first = n_tokens - 1,
                            .rows = 1,
                            .q = cold.q,
                            .o = out + (size_t)l * HEADS * DIM,
                            .error = &error};
        if (banyan_attend(cold.client, &item, 1, 120 * COMMON_NS_PER_S, NULL, &error) != BANYAN_OK ||
            item.code != BANYAN_OK) {
            service_failed("a step", &error);
            return 0;
        }
    }
    return common_clock_ns() - start;
}

// ---- measuring ----------------------------------------------------------------------------------

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *of)
{
    qsort(of, n_rounds, sizeof *of, compare_numbers);
    return of[n_rounds / 2];
}

static bool measure_rounds(void)
{
    double one[ROUNDS_MAX], several[ROUNDS_MAX], steps[ROUNDS_MAX], first[ROUNDS_MAX], warm[ROUNDS_MAX];
    double bytes = (double)n_layers * (double)n_tokens * TOKEN_BYTES;
    size_t floats = n_layers * HEADS * DIM;
    float *out = malloc(floats * sizeof *out);
    bool ok = out != NULL;
    for (uint64_t r = 0; ok && r < n_rounds; r++) {
        for (uint32_t i = 1; ok && i < SESSIONS;
             i++) // which take more than the memory: the first one leaves it
            ok = pass(i, out) > 0;
        one[r] = floor_rate(1);
        several[r] = floor_rate(READERS);
        ok = ok && drop_cache() && one[r] > 0 && several[r] > 0;
        uint64_t ns = ok ? pass(0, out) : 0, again = ns ? pass(0, out) : 0;
        ok = ns && again;
        if (ok && memcmp(out, cold.first, floats * sizeof *out) != 0) {
            fprintf(stderr, "cold: an answer has other bits than before\n");
            ok = false;
        }
        steps[r] = bytes * 1e9 / (double)(ns ? ns : 1);
        warm[r] = bytes * 1e9 / (double)(again ? again : 1);
        first[r] = (double)ns / 1e6;
    }
    free(out);
    if (!ok)
        return false;
    double a = median(one), b = median(several), best = a > b ? a : b, s = median(steps);
    report_line(json, (const struct report_field[]){{"bench", "cold", 0},
                                                    {"layers", NULL, (double)n_layers},
                                                    {"tokens", NULL, (double)n_tokens},
                                                    {"read_ahead", NULL, (double)read_ahead},
                                                    {"rounds", NULL, (double)n_rounds},
                                                    {"pass_ms", NULL, median(first)},
                                                    {"cold_gb_s", NULL, s / 1e9},
                                                    {"read_gb_s", NULL, a / 1e9},
                                                    {"read4_gb_s", NULL, b / 1e9},
                                                    {"warm_gb_s", NULL, median(warm) / 1e9},
                                                    {"ratio", NULL, s / best},
                                                    {0}});
    return true;
}

static void remove_store(void)
{
    static const char *const folders[] = {"chunks", "sessions", "quarantine", ""};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char path[4400], name[4700];
        snprintf(path, sizeof path, "%s/%s", cold.store, folders[i]);
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

static bool measure(void)
{
    char memory[32], ahead[32];
    uint64_t one = n_layers * n_tokens * TOKEN_BYTES, limit = one + one / 2;
    uint64_t flight = limit / 7 < UINT64_C(128) << 20 ? UINT64_C(128) << 20 : limit / 7; // worker/README.md
    snprintf(memory, sizeof memory, "%" PRIu64, limit + flight);
    snprintf(ahead, sizeof ahead, "%" PRIu64, read_ahead);
    snprintf(cold.store, sizeof cold.store, "%s/cold-XXXXXX", folder);
    if (!mkdtemp(cold.store)) {
        perror("cold: --dir");
        return false;
    }
    snprintf(cold.chunks, sizeof cold.chunks, "%s/chunks", cold.store);
    const char *arguments[] = {
        "--store", cold.store, "--store-limit", "1T", "--read-ahead", ahead, "--threads", "2", NULL};
    banyan_error error = {0};
    for (int i = 0; i < HEADS * DIM; i++)
        cold.q[i] = 0.01f * (float)(i % 17);
    cold.first = malloc(n_layers * sizeof cold.q);
    cold.cluster = service_cluster_with(
        &(struct harness_options){.workers = 1, .memory = memory, .threads = 2, .worker_args = arguments});
    bool ok = cold.first && cold.cluster;
    ok = ok && (banyan_connect(harness_cluster_endpoint(cold.cluster, "unix"), NULL, &cold.client, &error) ==
                    BANYAN_OK ||
                service_failed("connect", &error));
    ok = ok && fill(0) && pass(0, cold.first) > 0 && wait_sealed();
    char(*files)[NAME] = cold.files; // those of the first session alone
    size_t n = cold.n_files;
    cold.files = NULL;
    ok = ok && fill(1) && wait_sealed() && fill(2) && wait_sealed();
    free(cold.files);
    cold.files = files;
    cold.n_files = n;
    ok = ok && measure_rounds();
    for (uint32_t i = 0; i < SESSIONS; i++)
        banyan_session_close(cold.sessions[i]);
    banyan_disconnect(cold.client);
    ok = harness_cluster_stop(cold.cluster) == 0 && ok;
    remove_store();
    free(cold.files);
    free(cold.first);
    return ok;
}

int main(int argc, char **argv)
{
    const struct common_option options[] = {
        {"layers", 'l', COMMON_OPTION_U64, &n_layers, "N", "of each session (default 8)", 1, 1024},
        {"tokens", 't', COMMON_OPTION_U64, &n_tokens, "N",
         "of each session, in chunks of 256 (default 16384)", CHUNK, 1 << 24},
        {"rounds", 'r', COMMON_OPTION_U64, &n_rounds, "N", "one after the other (default 5)", 1, ROUNDS_MAX},
        {"read-ahead", 'a', COMMON_OPTION_U64, &read_ahead, "N",
         "layers, as banyan-worker has it (default 2)", 0, 64},
        {"dir", 'd', COMMON_OPTION_STRING, &folder, "DIR", "on the disk that is measured (default: here)", 0,
         0},
        {0},
    };
    const struct bench_program program = {
        .name = "cold",
        .about = "A session of one worker has left memory for the worker's files. pass_ms: a row through all "
                 "of its\n"
                 "layers; cold_gb_s: its K and V by that time. read_gb_s, read4_gb_s: a plain read of the "
                 "same files by\n"
                 "one and by four threads; ratio: to the better of the two. The page cache of the files is "
                 "dropped\n"
                 "before each of the three, and they take turns. Medians. warm_gb_s: the next pass. Every "
                 "answer has\n"
                 "the bits that it had before.",
        .options = options,
        .json = &json,
        .measure = measure,
    };
    if (n_rounds > ROUNDS_MAX)
        return 2;
    return bench_main(&program, argc, argv);
}
