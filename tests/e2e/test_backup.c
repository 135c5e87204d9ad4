// SPDX-License-Identifier: Apache-2.0
// The coordinator's store is copied while it serves, and a coordinator starts from the copy: what it then
// says is as it was, or an error.
#include "tests/e2e/support.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/e2e/banyanctl.h"

#define LONG_NS (UINT64_C(300) * COMMON_NS_PER_S)

static const banyan_spec spread = {.layers = 1,
                                   .q_heads = 4,
                                   .kv_heads = 2,
                                   .k_dim = 32,
                                   .v_dim = 32,
                                   .kv_type = BANYAN_F32,
                                   .chunk_tokens = 32,
                                   .members = 2};

struct held { // a session and what it should hold
    banyan_session *session;
    struct context context;
};

static void make(banyan_client *client, struct held *h, uint64_t tokens, const char *name)
{
    context_init(&h->context, &spread, 400);
    context_random(&h->context, 0, 400, 400);
    OK(banyan_session_create(client, &spread, name, &h->session, ERR));
    support_fill(h->session, &h->context, 0, tokens);
}

static void drop(struct held *h)
{
    banyan_session_close(h->session);
    context_free(&h->context);
}

static struct step step_of(const struct held *h, uint64_t first, bool append)
{
    struct step step = {
        .session = h->session, .first = first, .rows = 1, .seed = first + 7, .timeout_ns = LONG_NS};
    if (append)
        step_append(&step, &h->context);
    return step;
}

static banyan_code run_step(banyan_client *client, const struct held *h, uint64_t first, bool append)
{
    struct step step = step_of(h, first, append);
    banyan_code code = step_run(client, &step);
    if (code == BANYAN_OK)
        context_check(&h->context, 0, first, 1, 0, step.made_q, step.o, step.lse, NULL, "step");
    step_free(&step);
    return code;
}

static char *in_dir(const struct harness_cluster *cluster, const char *name)
{
    static char paths[4][600];
    static int n;
    char *path = paths[n++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", harness_cluster_dir(cluster), name);
    return path;
}

static bool is_there(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

static void shell(const struct harness_cluster *cluster, const char *command)
{
    char line[1024];
    snprintf(line, sizeof line, "cd %s && %s", harness_cluster_dir(cluster), command);
    assert_int_equal(system(line), 0);
}

// Of the stopped coordinator's store: it ends with this code and says this.
static void restore(const struct harness_cluster *cluster, const char *file, int code, const char *says)
{
    char program[4096];
    struct harness_output out = {0};
    assert_true(harness_program_path("banyan-coordinator", program, sizeof program));
    char *argv[] = {program,
                    (char *)"--store",
                    in_dir(cluster, "store.db"),
                    (char *)"--restore-backup",
                    in_dir(cluster, file),
                    NULL};
    assert_true(harness_run(argv, NULL, 300 * COMMON_NS_PER_S, &out));
    if (out.exit_code != code || !strstr(out.err, says))
        fail_msg("restoring %s: exit code %d, expected %d and '%s'; it said: %s%s", file, out.exit_code, code,
                 says, out.out, out.err);
    harness_output_free(&out);
    assert_false(is_there(in_dir(cluster, "store.db-restoring")));
    assert_int_equal(is_there(in_dir(cluster, "store.db")), code == 0 || strstr(says, "exists") != NULL);
}

static uint32_t active(banyan_client *client)
{
    banyan_cluster_info info;
    uint32_t n = 0;
    if (banyan_cluster_get_info(client, &info, NULL) != BANYAN_OK)
        return 0;
    for (uint32_t i = 0; i < info.n_workers; i++)
        n += strcmp(info.workers[i].state, "active") == 0;
    banyan_cluster_info_free(&info);
    return n;
}

// ---- as it was --------------------------------------------------------------------------------------------

struct stepping {
    banyan_client *client;
    const struct held *h;
    uint64_t from, to;
    atomic_uint_least64_t at;
};

static void *step_on(void *arg)
{
    struct stepping *s = arg;
    for (uint64_t p = s->from; p < s->to; p++) {
        OK(run_step(s->client, s->h, p, true));
        atomic_store(&s->at, p + 1);
    }
    return NULL;
}

static void a_backup_is_restored(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 2});
    banyan_client *client = support_connect(cluster, "tcp");
    struct held same, cut, gone, later, grown;
    pthread_t thread;
    make(client, &same, 100, "same");
    make(client, &cut, 100, "cut");
    make(client, &gone, 40, "gone");
    make(client, &grown, 40, "grown");
    struct stepping stepping = {.client = client, .h = &same, .from = 100, .to = 127};
    atomic_init(&stepping.at, 100);
    assert_int_equal(pthread_create(&thread, NULL, step_on, &stepping), 0);
    EVENTUALLY(60, atomic_load(&stepping.at) > 104);
    banyanctl_expect(cluster, 0, "sessions", "backup %s", in_dir(cluster, "backup"));
    pthread_join(thread, NULL);
    assert_false(is_there(in_dir(cluster, "store.db-backup")));
    struct step before = step_of(&same, 126, false), after = step_of(&same, 126, false);
    OK(step_run(client, &before));
    // What the backup does not know: in the same life of the coordinator
    OK(banyan_session_truncate(cut.session, 50, ERR));
    OK(banyan_session_delete(gone.session, ERR));
    make(client, &later, 70, "later");
    support_fill(grown.session, &grown.context, 40, 7); // within a chunk that it has

    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGTERM);
    restore(cluster, "backup", 3, "exists");
    shell(cluster, "mkdir old && mv store.db old/");
    restore(cluster, "backup", 0, "restored");
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    EVENTUALLY(60, active(client) == 2);
    for (int round = 0; round < 2; round++) {
        FAILS(BANYAN_UNAVAILABLE, "RESTORED", run_step(client, &same, 126, false));
        harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL); // and it is the same in the next life
        assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
        EVENTUALLY(60, active(client) == 2);
    }
    banyanctl_expect(cluster, 0, "sessions are served", "accept", "");
    banyanctl_expect(cluster, 9, "already been accepted", "accept", "");
    OK(step_run(client, &after));
    assert_true(step_same_bits(&before, &after));
    for (uint64_t p = 0; p < 127; p += 9)
        OK(run_step(client, &same, p, false));
    OK(run_step(client, &same, 127, true));
    OK(run_step(client, &grown, 39, false));
    FAILS(BANYAN_OUT_OF_RANGE, NULL, run_step(client, &grown, 46, false)); // committed since
    struct held old = cut;
    OK(banyan_session_open(client, 0, "cut", &old.session, ERR));
    FAILS(BANYAN_UNAVAILABLE, "QUARANTINE", run_step(client, &old, 49, false)); // the truncate is not undone
    banyan_session_close(old.session);
    FAILS(BANYAN_NOT_FOUND, NULL, run_step(client, &later, 69, false));
    FAILS(BANYAN_DATA_LOSS, NULL, run_step(client, &gone, 39, false)); // the workers have dropped it
    banyanctl_expect(cluster, 0, "not in the store", "quarantine list",
                     ""); // `later` is not taken for deleted
    banyanctl_expect(cluster, 0, "newer than the store", "quarantine list", "");
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL); // what was accepted stays so
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    OK(run_step(client, &same, 127, false));

    // The store that has them has all of it, but for what was appended in between
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGTERM);
    shell(cluster, "rm -f store.db && mv old/* .");
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    EVENTUALLY(60, active(client) == 2);
    OK(run_step(client, &cut, 49, false));
    OK(run_step(client, &later, 69, false));
    step_free(&before), step_free(&after);
    drop(&same), drop(&cut), drop(&gone), drop(&later), drop(&grown);
    banyan_disconnect(client);
    support_stop(cluster);
}

// A worker that was away when a session was cut is the only one that is there after the restore.
static void who_was_away_does_not_decide(void **state)
{
    (void)state;
    char stores[2][64];
    const char *args[2][3], *const *each[2] = {args[0], args[1]};
    for (int i = 0; i < 2; i++) {
        snprintf(stores[i], sizeof stores[i], "/tmp/banyan-backup-%d-w%d", (int)getpid(), i);
        args[i][0] = "--store", args[i][1] = stores[i], args[i][2] = NULL;
    }
    static const char *const two[] = {"--replicas", "2", NULL};
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 2, .each_args = each, .coordinator_args = two});
    banyan_client *client = support_connect(cluster, "tcp");
    struct held h;
    make(client, &h, 100, "cut");
    OK(run_step(client, &h, 99, false));
    banyanctl_expect(cluster, 0, "sessions", "backup %s", in_dir(cluster, "backup"));
    harness_cluster_signal(cluster, 1, SIGKILL);
    OK(banyan_session_truncate(h.session, 50, ERR)); // w0 alone has received it
    OK(run_step(client, &h, 49, false));
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGTERM);
    harness_cluster_signal(cluster, 0, SIGKILL);
    shell(cluster, "rm store.db");
    restore(cluster, "backup", 0, "restored");
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    assert_true(harness_cluster_restart(cluster, 1));
    EVENTUALLY(60, active(client) == 1);
    struct held old = h;
    OK(banyan_session_open(client, 0, "cut", &old.session, ERR));
    uint64_t until = support_now_ns() + 7 * COMMON_NS_PER_S; // longer than a coordinator waits for holders
    while (support_now_ns() < until) {
        FAILS(BANYAN_UNAVAILABLE, "RESTORED", run_step(client, &old, 99, false));
        support_sleep_ms(200);
    }
    banyanctl_expect(cluster, 9, "not connected: w0", "accept", "");
    assert_true(harness_cluster_restart(cluster, 0));
    EVENTUALLY(60, active(client) == 2);
    banyanctl_expect(cluster, 0, "0 sessions are served", "accept", "");
    FAILS(BANYAN_UNAVAILABLE, "QUARANTINE", run_step(client, &old, 99, false));
    banyan_session_close(old.session);
    drop(&h);
    banyan_disconnect(client);
    support_stop(cluster);
    support_remove_folder(stores[0]);
    support_remove_folder(stores[1]);
}

// ---- files ------------------------------------------------------------------------------------------------

static void a_damaged_file_is_refused(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 1});
    banyanctl_expect(cluster, 0, "sessions", "backup %s", in_dir(cluster, "backup"));
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGTERM);
    shell(cluster, "mkdir old && mv store.db old/");
    struct stat st;
    assert_int_equal(stat(in_dir(cluster, "backup"), &st), 0);
    assert_true(st.st_size > 20000);
    const off_t flips[] = {0, 20, 26, 33, 90, 121, 128, 128 + 18, st.st_size / 2, st.st_size - 1};
    for (size_t i = 0; i < sizeof flips / sizeof *flips; i++) {
        uint8_t byte;
        shell(cluster, "cp backup bad");
        int fd = open(in_dir(cluster, "bad"), O_RDWR | O_CLOEXEC);
        assert_int_equal(pread(fd, &byte, 1, flips[i]), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, flips[i]), 1);
        close(fd);
        restore(cluster, "bad", 3, "or is damaged");
    }
    const off_t ends[] = {0, 127, 128, 5000, st.st_size - 1, st.st_size + 1};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        shell(cluster, "cp backup bad");
        assert_int_equal(truncate(in_dir(cluster, "bad"), ends[i]), 0);
        restore(cluster, "bad", 3, "or is damaged");
    }
    restore(cluster, "old/store.db", 3, "or is damaged"); // a store is no backup
    restore(cluster, "nowhere", 3, "cannot be opened");
    shell(cluster, "cp backup store.db"); // nor is a backup a store
    assert_false(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    shell(cluster, "rm store.db*");
    restore(cluster, "backup", 0, "restored");
    harness_cluster_allow_error(cluster, "cannot start");
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    support_stop(cluster);
}

static void a_file_is_whole_or_not_there(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 1});
    char *file = in_dir(cluster, "backup");
    shell(cluster, "echo mine >backup");
    banyanctl_expect(cluster, 11, "--force", "backup %s", file);
    shell(cluster, "grep -q mine backup");
    banyanctl_expect(cluster, 0, "sessions", "backup --force %s", file);
    shell(cluster, "! grep -q mine backup && test $(ls backup* | wc -l) = 1");
    banyanctl_expect(cluster, 11, "No space left", "backup %s", "/dev/full");
    banyanctl_expect(cluster, 11, "cannot write", "backup %s", in_dir(cluster, "no/such/folder"));
    struct harness_output out = banyanctl_run(cluster, "backup -", "");
    assert_int_equal(out.exit_code, 0);
    assert_true(out.out_len > 20000 && !memcmp(out.out, "BANYAN BACKUP\n", 14));
    harness_output_free(&out);
    support_stop(cluster);
}

// A client that stands still has the only backup; it is killed, and after a while its place is free. No name
// is left.
static void a_client_that_goes_leaves_nothing(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 1});
    banyan_client *client = support_connect(cluster, "tcp");
    struct held h[40];
    for (int i = 0; i < 40; i++)
        make(client, &h[i], 200, NULL);
    char program[4096], endpoint[512], *fifo = in_dir(cluster, "fifo");
    assert_true(harness_program_path("banyanctl", program, sizeof program));
    snprintf(endpoint, sizeof endpoint, "%s", harness_cluster_endpoint(cluster, "unix"));
    assert_int_equal(mkfifo(fifo, 0600), 0);
    int fd = open(fifo, O_RDWR | O_CLOEXEC);
    char *argv[] = {program, (char *)"--endpoint", endpoint, (char *)"backup", fifo, NULL};
    pid_t pid = harness_process_start(argv, in_dir(cluster, "stalled.log"));
    assert_true(pid > 0);
    char head[16];
    assert_int_equal(read(fd, head, sizeof head), 16); // it has its copy; the pipe takes less than all of it
    banyanctl_expect(cluster, 8, "another backup", "backup %s", in_dir(cluster, "second"));
    assert_false(is_there(in_dir(cluster, "second")));
    assert_false(is_there(in_dir(cluster, "store.db-backup")));
    OK(run_step(client, &h[0], 200, true)); // it serves meanwhile
    int status;
    kill(pid, SIGKILL);
    assert_true(harness_process_wait(pid, 60 * COMMON_NS_PER_S, &status));
    close(fd);
    EVENTUALLY(60, ({
                   struct harness_output out =
                       banyanctl_run(cluster, "backup --force %s", in_dir(cluster, "second"));
                   int code = out.exit_code;
                   harness_output_free(&out);
                   code == 0;
               }));
    for (int i = 0; i < 40; i++)
        drop(&h[i]);
    banyan_disconnect(client);
    support_stop(cluster);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_backup_is_restored),
        cmocka_unit_test(who_was_away_does_not_decide),
        cmocka_unit_test(a_damaged_file_is_refused),
        cmocka_unit_test(a_file_is_whole_or_not_there),
        cmocka_unit_test(a_client_that_goes_leaves_nothing),
    };
    return cmocka_run_group_tests_name("backup", tests, NULL, NULL);
}
