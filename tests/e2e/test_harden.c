// SPDX-License-Identifier: Apache-2.0
// What daemons have given up, seen from outside; and that nothing of a session which has ended is found in an
// answer to another one, nor in the memory of a worker.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/secure/harden.h"
#include "tests/e2e/support.h"

enum { LAYERS = 2, DIM = 64, KV_HEADS = 2, TOKENS = 1500, MORE = 40, NEEDLE = 16 };

// What functions leave on stacks, until others use these: a stripe of a hash, registers that were put aside.
// A row of a head alone has more.
enum { FRAGMENTS = DIM * sizeof(float) / NEEDLE - 1 };

// Floats that stand nowhere else; K and V consist of nothing else.
static const uint32_t marker[2] = {0x3f9e3779, 0x3fa5c3b1};

static const banyan_spec spec = {.layers = LAYERS,
                                 .q_heads = 2 * KV_HEADS,
                                 .kv_heads = KV_HEADS,
                                 .k_dim = DIM,
                                 .v_dim = DIM,
                                 .kv_type = BANYAN_F32,
                                 .chunk_tokens = 64};

// ---- what daemons have given up ------------------------------------------------------------------------

static bool file_says(const char *path, const char *text)
{
    char buf[8192];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, buf, sizeof buf - 1);
    if (fd >= 0)
        close(fd);
    buf[n < 0 ? 0 : n] = '\0';
    return strstr(buf, text) != NULL;
}

// Of every thread. *threads: how many there are.
static bool each_thread_says(int pid, const char *text, unsigned *threads)
{
    char path[300];
    struct dirent *entry;
    bool all = true;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *folder = opendir(path);
    *threads = 0;
    while (folder && (entry = readdir(folder)))
        if (entry->d_name[0] != '.') {
            snprintf(path, sizeof path, "/proc/%d/task/%s/status", pid, entry->d_name);
            all = all && file_says(path, text);
            ++*threads;
        }
    if (folder)
        closedir(folder);
    return all && *threads > 0;
}

static void threads_are_held(void **state)
{
    (void)state;
    unsigned threads;
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 1, .threads = 2, .public_nng = true});
    const uint32_t who[] = {HARNESS_COORDINATOR, 0};
    for (size_t i = 0; i < 2; i++) {
        char limits[64];
        int pid = harness_cluster_pid(cluster, who[i]);
        assert_true(each_thread_says(pid, "NoNewPrivs:\t1\n", &threads));
        assert_true(threads > 1); // nng's are among them
        if (COMMON_HARDEN_FILTER && !COMMON_HARDEN_SANITIZED)
            assert_true(each_thread_says(pid, "Seccomp:\t2\n", &threads));
        snprintf(limits, sizeof limits, "/proc/%d/limits", pid);
        assert_true(file_says(limits, "Max core file size        0  "));
    }
    support_stop(cluster);
}

static void off_is_off(void **state)
{
    (void)state;
    static const char *const off[] = {"--seccomp=off", "--core-dumps", NULL};
    char own[64], limits[64];
    unsigned threads;
    snprintf(own, sizeof own, "/proc/%d/limits", getpid());
    bool none = file_says(own, "Max core file size        0  ");
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 1, .coordinator_args = off, .worker_args = off});
    const uint32_t who[] = {HARNESS_COORDINATOR, 0};
    for (size_t i = 0; i < 2; i++) {
        int pid = harness_cluster_pid(cluster, who[i]);
        assert_true(each_thread_says(pid, "Seccomp:\t0\n", &threads));
        snprintf(limits, sizeof limits, "/proc/%d/limits", pid);
        assert_int_equal(file_says(limits, "Max core file size        0  "), none);
    }
    support_stop(cluster);
}

#ifdef BANYAN_FAILPOINTS
// Code that an attacker runs in a worker starts a program: the worker ends, with a line, and no program
// starts.
static void a_worker_that_starts_a_program_ends(void **state)
{
    (void)state;
    char path[] = "/tmp/banyan-harden-XXXXXX";
    struct context context;
    int code = 0, fd = mkstemp(path);
    assert_true(fd >= 0);
    setenv("BANYAN_FAILPOINT_FILE", path, 1);
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 1});
    harness_cluster_allow_error(cluster, "seccomp: refused call=execve");
    const banyan_options options = {.token_file = harness_cluster_token_file(cluster),
                                    .timeout_ns = 5 * COMMON_NS_PER_S}; // the read has no answer
    banyan_client *client;
    OK(banyan_connect(harness_cluster_endpoint(cluster, "tcp"), &options, &client, ERR));
    banyan_session *session;
    context_init(&context, &spec, 64);
    context_random(&context, 0, 64, 3);
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    support_fill(session, &context, 0, 64);
    assert_true(dprintf(fd, "read_received exec 1\n") > 0);
    float *rows = malloc(2 * 64 * sizeof(float) * KV_HEADS * DIM);
    assert_non_null(rows);
    assert_int_not_equal(
        banyan_read_rows(session, 0, 0, 64, rows, NULL, rows + 64 * KV_HEADS * DIM, NULL, ERR), BANYAN_OK);
    EVENTUALLY(30, harness_cluster_ended(cluster, 0, &code));
    assert_int_equal(code, 128 + SIGSYS);
    char *log = harness_cluster_log(cluster, 0);
    assert_non_null(strstr(log, "ERROR banyan-worker: seccomp: refused call=execve"));
    free(log);
    free(rows);
    unsetenv("BANYAN_FAILPOINT_FILE");
    unlink(path);
    context_free(&context);
    banyan_session_close(session);
    banyan_disconnect(client);
    support_stop(cluster);
}
#endif

// ---- what is left of a session -------------------------------------------------------------------------

static const void *needle(void)
{
    static uint32_t four[NEEDLE / 4];
    for (size_t i = 0; i < NEEDLE / 4; i++)
        four[i] = marker[i % 2];
    return four;
}

static bool has_needle(const void *bytes, size_t len)
{
    return memmem(bytes, len, needle(), NEEDLE) != NULL;
}

// How often it stands in what a process can write to. where: the first of them, for people.
static unsigned needles_in(int pid, char where[160])
{
    enum { PIECE = 1 << 20 };
    char path[64], line[512];
    unsigned found = 0;
    where[0] = '\0';
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    int memory = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "re");
    uint8_t *piece = malloc(PIECE);
    assert_true(memory >= 0 && maps && piece);
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char mode[8];
        if (sscanf(line, "%lx-%lx %4s", &from, &to, mode) != 3 || strncmp(mode, "rw", 2) != 0)
            continue;
        for (unsigned long at = from; at < to; at += PIECE - NEEDLE) {
            ssize_t n = pread(memory, piece, to - at < PIECE ? to - at : PIECE, (off_t)at);
            for (uint8_t *hit = piece, *end = piece + (n > 0 ? n : 0);
                 (hit = memmem(hit, (size_t)(end - hit), needle(), NEEDLE)); hit += NEEDLE)
                if (found++ == 0)
                    snprintf(where, 160, "at %lx of %.120s", at + (unsigned long)(hit - piece), line);
        }
    }
    free(piece);
    fclose(maps);
    close(memory);
    return found;
}

static void fill_with_marker(struct context *context)
{
    float row[DIM];
    for (uint32_t d = 0; d < DIM; d++)
        memcpy(&row[d], &marker[d % 2], sizeof *row);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint64_t p = 0; p < context->room; p++)
            for (uint32_t h = 0; h < KV_HEADS; h++)
                context_set(context, l, p, h, row, row);
}

// One that is attached to, stepped over, read, forked and truncated. tokens: of rows that are attached; some
// more are appended.
static void live(banyan_client *client, const struct context *context, uint64_t tokens, bool mine)
{
    banyan_session *session, *fork;
    const size_t row = (size_t)KV_HEADS * DIM;
    float *k = malloc(64 * row * sizeof *k), *v = malloc(64 * row * sizeof *v);
    assert_true(k && v);
    OK(banyan_session_create(client, &spec, NULL, &session, ERR));
    support_fill(session, context, 0, tokens);
    for (uint64_t p = tokens; p < tokens + MORE; p++)
        for (uint32_t l = 0; l < LAYERS; l++) {
            struct step step = {.session = session, .layer = l, .rows = 1, .first = p, .seed = p};
            step_append(&step, context);
            OK(step_run(client, &step));
            assert_true(mine || !has_needle(step.o, step_floats(&step) * sizeof(float)));
            step_free(&step);
        }
    for (uint64_t first = 0; first < tokens; first += 64) {
        uint64_t n = tokens - first < 64 ? tokens - first : 64;
        OK(banyan_read_rows(session, 1, first, n, k, NULL, v, NULL, ERR));
        bool there = has_needle(k, n * row * sizeof *k) || has_needle(v, n * row * sizeof *v);
        assert_int_equal(there, mine);
    }
    OK(banyan_session_fork(session, tokens - 1, NULL, &fork, ERR));
    OK(banyan_session_truncate(session, tokens / 2 + 1, ERR));
    OK(banyan_session_delete(fork, ERR));
    OK(banyan_session_delete(session, ERR));
    free(k);
    free(v);
}

// Asks until nothing is found: memory is cleaned a little at a time.
static void expect_none(const struct harness_cluster *cluster, uint32_t who)
{
    char where[160];
    unsigned n = FRAGMENTS + 1;
    for (int i = 0; i < 200 && n > FRAGMENTS; i++) {
        support_sleep_ms(50);
        n = needles_in(harness_cluster_pid(cluster, who), where);
    }
    if (n > FRAGMENTS)
        fail_msg("process %d has %u pieces of a session that has ended, %s", (int)who, n, where);
}

struct variant {
    const char *const *args;
    bool nng, stores;
};

static void nothing_of_an_ended_session_is_left(void **state)
{
    const struct variant *variant = *state;
    struct context secret, plain;
    char where[160] = "", folder[] = "/tmp/banyan-harden-XXXXXX", stores[2][64];
    const char *each[2][3] = {{"--store", stores[0], NULL}, {"--store", stores[1], NULL}};
    const char *const *const each_args[] = {each[0], each[1]};
    assert_non_null(mkdtemp(folder));
    for (int w = 0; w < 2; w++)
        snprintf(stores[w], sizeof stores[w], "%s/w%d", folder, w);
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 2,
                                                .memory = "64M",
                                                .worker_args = variant->args,
                                                .each_args = variant->stores ? each_args : NULL,
                                                .public_nng = variant->nng});
    banyan_client *client = support_connect(cluster, "tcp");
    context_init(&secret, &spec, TOKENS + MORE);
    fill_with_marker(&secret);
    context_init(&plain, &spec, TOKENS + MORE);
    context_random(&plain, 0, TOKENS + MORE, 7);
    // The search finds it while it is there.
    banyan_session *held;
    OK(banyan_session_create(client, &spec, NULL, &held, ERR));
    support_fill(held, &secret, 0, TOKENS);
    assert_true(needles_in(harness_cluster_pid(cluster, 0), where) +
                    needles_in(harness_cluster_pid(cluster, 1), where) >
                1000);
    OK(banyan_session_delete(held, ERR));
    live(client, &secret, TOKENS, true);
    banyan_disconnect(client);
    client = support_connect(cluster, "tcp"); // another one's
    live(client, &plain, TOKENS / 3, false);
    for (uint32_t w = 0; w < 2; w++)
        expect_none(cluster, w);
    expect_none(cluster, HARNESS_COORDINATOR); // appended rows went through it
    live(client, &plain, TOKENS, false);
    context_free(&secret);
    context_free(&plain);
    banyan_disconnect(client);
    support_stop(cluster);
    support_remove_folder(folder);
}

int main(void)
{
    static const char *const prefault[] = {"--prefault", NULL}, *const cold[] = {"--store-limit=256M", NULL};
    static const struct variant plain = {NULL, false, false}, ready = {prefault, false, false},
                                nng = {NULL, true, false}, stores = {cold, false, true};
    if (COMMON_HARDEN_SANITIZED) { // whose quarantine keeps what was freed as it was
        const struct CMUnitTest some[] = {cmocka_unit_test(threads_are_held), cmocka_unit_test(off_is_off)};
        return cmocka_run_group_tests(some, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_are_held),
        cmocka_unit_test(off_is_off),
#ifdef BANYAN_FAILPOINTS
        cmocka_unit_test(a_worker_that_starts_a_program_ends),
#endif
        cmocka_unit_test_prestate(nothing_of_an_ended_session_is_left, (void *)&plain),
        cmocka_unit_test_prestate(nothing_of_an_ended_session_is_left, (void *)&ready),
        cmocka_unit_test_prestate(nothing_of_an_ended_session_is_left, (void *)&nng),
        cmocka_unit_test_prestate(nothing_of_an_ended_session_is_left, (void *)&stores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
