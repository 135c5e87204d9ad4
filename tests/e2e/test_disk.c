// SPDX-License-Identifier: Apache-2.0
// Workers with --store, on real processes: they are killed and started again, one by one and all together
// with the coordinator. What was attached and what steps have appended is there, answers are the reference's
// and have the bits that they had before. A file that is damaged is never served. What a full disk does not
// take is refused.
#include "tests/e2e/support.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"

#define LONG_NS (UINT64_C(300) * COMMON_NS_PER_S) // no test is to fail for want of speed

enum { CHUNK = 32, ATTACHED = 200, APPENDED = 75, ROOM = ATTACHED + APPENDED + 200, WORKERS = 2, LOOKS = 4 };

struct bench {
    char dirs[WORKERS][64];
    const char *args[WORKERS][5];
    const char *const *each[WORKERS];
    struct harness_cluster *cluster;
    banyan_client *client;
    banyan_session *session;
    struct context context;
    uint64_t length;
    struct step looks[LOOKS]; // answers before anything happened
};

static void start(struct bench *b, uint32_t replicas)
{
    static const char *const same_speed[] = {"--bandwidth", "8G", NULL}; // measured ones may send all to one
    const banyan_spec spec = {.layers = 2,
                              .q_heads = 4,
                              .kv_heads = 2,
                              .k_dim = 32,
                              .v_dim = 32,
                              .kv_type = BANYAN_F32,
                              .chunk_tokens = CHUNK,
                              .members = WORKERS,
                              .replicas = replicas};
    *b = (struct bench){.length = ATTACHED};
    for (int i = 0; i < WORKERS; i++) {
        snprintf(b->dirs[i], sizeof b->dirs[i], "/tmp/banyan-e2e-disk-%ld-%d", (long)getpid(), i);
        b->args[i][0] = "--store";
        b->args[i][1] = b->dirs[i];
        b->each[i] = b->args[i];
    }
    b->cluster = support_start(
        &(struct harness_options){.workers = WORKERS, .worker_args = same_speed, .each_args = b->each});
    b->client = support_connect(b->cluster, "nng+tcp");
    context_init(&b->context, &spec, ROOM);
    context_random(&b->context, 0, ROOM, replicas);
    OK(banyan_session_create(b->client, &spec, NULL, &b->session, ERR));
    support_fill(b->session, &b->context, 0, ATTACHED);
}

static void append(struct bench *b, uint32_t tokens)
{
    for (uint32_t i = 0; i < tokens; i++, b->length++)
        for (uint32_t layer = 0; layer < 2; layer++) {
            struct step step = {.session = b->session,
                                .layer = layer,
                                .first = b->length,
                                .rows = 1,
                                .seed = b->length,
                                .timeout_ns = LONG_NS};
            step_append(&step, &b->context);
            OK(step_run(b->client, &step));
            context_check(&b->context, layer, b->length, 1, 0, step.made_q, step.o, step.lse, NULL, "append");
            step_free(&step);
        }
}

static void look(struct bench *b, uint32_t nth, struct step *step)
{
    static const uint64_t at[LOOKS / 2] = {ATTACHED / 2, ATTACHED + APPENDED - 1};
    *step = (struct step){.session = b->session,
                          .layer = nth % 2,
                          .first = at[nth / 2],
                          .rows = 1,
                          .seed = nth + 1,
                          .timeout_ns = LONG_NS};
    OK(step_run(b->client, step));
    context_check(&b->context, step->layer, step->first, 1, 0, step->made_q, step->o, step->lse, NULL,
                  "look");
}

static void look_first(struct bench *b)
{
    for (uint32_t i = 0; i < LOOKS; i++)
        look(b, i, &b->looks[i]);
}

// Where the layout is as it was, with the same bits.
static void look_again(struct bench *b)
{
    for (uint32_t i = 0; i < LOOKS; i++) {
        struct step step;
        look(b, i, &step);
        assert_true(step.digest != b->looks[i].digest || step_same_bits(&step, &b->looks[i]));
        step_free(&step);
    }
}

static uint64_t digest_of(struct bench *b)
{
    struct step step;
    look(b, 0, &step);
    uint64_t digest = step.digest;
    step_free(&step);
    return digest;
}

static void remove_folder(const char *path)
{
    char command[160];
    snprintf(command, sizeof command, "rm -r -- '%s'", path);
    if (system(command) != 0)
        fail_msg("cannot remove %s", path);
}

static void stop(struct bench *b)
{
    for (uint32_t i = 0; i < LOOKS; i++)
        step_free(&b->looks[i]);
    support_drop(b->session, &b->context);
    banyan_disconnect(b->client);
    support_stop(b->cluster);
    for (int i = 0; i < WORKERS; i++)
        remove_folder(b->dirs[i]);
}

// How many files of a kind a worker has; the name of one of them.
static unsigned files(const struct bench *b, uint32_t worker, const char *folder, const char *kind,
                      char out[320])
{
    char path[128];
    unsigned n = 0;
    struct dirent *entry;
    snprintf(path, sizeof path, "%s/%s", b->dirs[worker], folder);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    while ((entry = readdir(dir))) {
        const char *dot = strrchr(entry->d_name, '.');
        if (!dot || entry->d_name[0] == '.' || strcmp(dot + 1, kind) != 0)
            continue;
        snprintf(out, 320, "%s/%.128s", path, entry->d_name);
        n++;
    }
    closedir(dir);
    return n;
}

static void restart(struct bench *b, uint32_t who)
{
    assert_true(harness_cluster_restart(b->cluster, who));
}

// ---- what comes back ----------------------------------------------------------------------------

static void killed_workers(void **state)
{
    (void)state;
    struct bench b;
    char name[320];
    start(&b, 1);
    append(&b, APPENDED);
    look_first(&b);
    for (uint32_t victim = 0; victim < WORKERS;
         victim++) { // logs alone: nothing is sealed as yet, or a part of it
        harness_cluster_signal(b.cluster, victim, SIGKILL);
        restart(&b, victim);
        look_again(&b);
        assert_int_equal(digest_of(&b), b.looks[0].digest);
        append(&b, 5);
    }
    for (uint32_t i = 0; i < WORKERS; i++)
        EVENTUALLY(60, files(&b, i, "chunks", "sealed", name) >= 2);
    for (uint32_t victim = 0; victim < WORKERS; victim++) {
        harness_cluster_signal(b.cluster, victim, SIGKILL);
        restart(&b, victim);
        look_again(&b);
        append(&b, 5);
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        assert_int_equal(files(&b, i, "quarantine", "log", name), 0);
        assert_int_equal(files(&b, i, "quarantine", "sealed", name), 0);
    }
    stop(&b);
}

static void kill_all(struct bench *b)
{
    harness_cluster_signal(b->cluster, HARNESS_COORDINATOR, SIGKILL);
    for (uint32_t i = 0; i < WORKERS; i++)
        harness_cluster_signal(b->cluster, i, SIGKILL);
}

static void start_all(struct bench *b)
{
    restart(b, HARNESS_COORDINATOR);
    for (uint32_t i = 0; i < WORKERS; i++)
        restart(b, i);
}

static void the_whole_cluster(void **state)
{
    (void)state;
    for (uint32_t replicas = 1; replicas <= 2; replicas++) {
        struct bench b;
        start(&b, replicas);
        append(&b, APPENDED);
        look_first(&b);
        for (int round = 0; round < 2; round++) {
            kill_all(&b);
            start_all(&b);
            banyan_session_info info;
            OK(banyan_session_get_info(b.session, &info, ERR));
            assert_int_equal(info.length, b.length);
            banyan_session_info_free(&info);
            look_again(&b);
            append(&b, 40);
        }
        stop(&b);
    }
}

// ---- what is damaged ----------------------------------------------------------------------------

enum harm { FLIP_SEALED, CUT_SEALED, FLIP_LOG, CUT_LOG, GONE, HARMS };

static void harm(const char *name, enum harm how)
{
    struct stat st;
    uint8_t byte;
    int fd = open(name, O_RDWR);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    off_t at = st.st_size / 2;
    if (how == GONE) {
        assert_int_equal(unlink(name), 0);
    } else if (how == CUT_SEALED || how == CUT_LOG) {
        assert_int_equal(ftruncate(fd, at), 0);
    } else {
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 16;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
}

// One file of one worker is damaged while the worker is down.
static void restart_harmed(struct bench *b, uint32_t victim, enum harm how)
{
    const char *kind = how == FLIP_LOG || how == CUT_LOG ? "log" : "sealed";
    char name[320];
    EVENTUALLY(60, files(b, victim, "chunks", kind, name) >= 1);
    harness_cluster_allow_error(b->cluster, "a file of --store is damaged");
    harness_cluster_allow_error(b->cluster, "a worker lacks rows whose commit is durable");
    harness_cluster_signal(b->cluster, victim, SIGKILL);
    assert_true(files(b, victim, "chunks", kind, name) >= 1);
    harm(name, how);
    restart(b, victim);
    char *log = harness_cluster_log(b->cluster, victim);
    bool moved = files(b, victim, "quarantine", kind, name) == 1;
    assert_true(how == GONE || moved == (strstr(log, "moved to quarantine/") != NULL));
    assert_true(moved || how == GONE || how == CUT_LOG);
    free(log);
}

static void a_damaged_file_alone(void **state)
{
    (void)state;
    for (int how = 0, spared = 0; how < HARMS; how++) {
        struct bench b;
        start(&b, 1);
        append(&b, APPENDED);
        look_first(&b);
        restart_harmed(&b, (uint32_t)how % WORKERS, (enum harm)how);
        struct step step = {
            .session = b.session, .first = b.length - 1, .rows = 1, .seed = 1, .timeout_ns = LONG_NS};
        banyan_code code = step_run(b.client, &step);
        if (code ==
            BANYAN_OK) { // a log whose chunk has just been sealed, perhaps: nothing is lost, and every row is right
            context_check(&b.context, 0, step.first, 1, 0, step.made_q, step.o, step.lse, NULL,
                          "a spared file");
            step_free(&step);
            look_again(&b);
            stop(&b);
            assert_true(++spared < 5);
            how--;
            continue;
        }
        FAILS(BANYAN_DATA_LOSS, "MISSING_RANGE", code);
        assert_true(ERR->n_ranges == 1 && ERR->ranges[0].count <= CHUNK);
        uint64_t lost = ERR->ranges[0].first;
        assert_int_equal(lost % CHUNK, 0);
        step_free(&step);
        if (lost > 0) // before it all is as it was
            support_check_step(b.client, b.session, &b.context, 0, lost - 1, 1, 0, NULL, "before the loss");
        OK(banyan_session_truncate(b.session, lost, ERR));
        support_fill(b.session, &b.context, lost, b.length - lost);
        look_again(&b);
        append(&b, 5);
        stop(&b);
    }
}

static void a_damaged_file_of_two(void **state)
{
    (void)state;
    for (int how = 0; how < HARMS; how++) {
        struct bench b;
        start(&b, 2);
        append(&b, APPENDED);
        look_first(&b);
        restart_harmed(&b, (uint32_t)how % WORKERS, (enum harm)how);
        look_again(&b);
        append(&b, 5);
        stop(&b);
    }
}

// ---- a full disk ----------------------------------------------------------------------------------

// Files of the workers cannot grow, or new ones get bytes (RLIMIT_FSIZE).
static void fill_disks(const struct bench *b, bool full)
{
    for (uint32_t i = 0; i < WORKERS; i++) {
        struct rlimit limit;
        int pid = harness_cluster_pid(b->cluster, i);
        assert_int_equal(prlimit(pid, RLIMIT_FSIZE, NULL, &limit), 0);
        limit.rlim_cur = full ? 0 : limit.rlim_max;
        assert_int_equal(prlimit(pid, RLIMIT_FSIZE, &limit, NULL), 0);
    }
}

// What would have to be kept is refused with a sentence that names the store, and has changed nothing.
static void nothing_can_be_written(struct bench *b)
{
    struct step step = {
        .session = b->session, .first = b->length, .rows = 1, .seed = b->length, .timeout_ns = LONG_NS};
    step_append(&step, &b->context);
    FAILS(BANYAN_RESOURCE_EXHAUSTED, NULL, step_run(b->client, &step));
    if (!strstr(ERR->message, "--store"))
        fail_msg("it does not say what is full: %s", ERR->message);
    step_free(&step);
    FAILS(BANYAN_RESOURCE_EXHAUSTED, NULL,
          context_attach(b->session, &b->context, 0, b->length, 2 * CHUNK, ERR));
    look_again(b);
}

static void a_full_disk(void **state)
{
    enum { ROOM_AGAIN, KILLED, WAYS };
    (void)state;
    signal(SIGXFSZ, SIG_IGN); // the workers inherit it: a write past the limit fails with EFBIG
    for (int way = 0; way < WAYS; way++)
        for (uint32_t replicas = 1; replicas <= 2; replicas++) {
            banyan_session_info info;
            struct bench b;
            start(&b, replicas);
            append(&b, APPENDED);
            look_first(&b);
            fill_disks(&b, true);
            nothing_can_be_written(&b);
            for (uint32_t i = 0; i < WORKERS && way == KILLED; i++) {
                harness_cluster_signal(b.cluster, i, SIGKILL);
                restart(&b, i);
            }
            if (way == ROOM_AGAIN)
                fill_disks(&b, false);
            OK(banyan_session_get_info(b.session, &info, ERR));
            assert_int_equal(info.length, b.length);
            banyan_session_info_free(&info);
            look_again(&b);
            append(&b, 2 * CHUNK);
            stop(&b);
        }
    signal(SIGXFSZ, SIG_DFL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_workers),       cmocka_unit_test(the_whole_cluster),
        cmocka_unit_test(a_damaged_file_alone), cmocka_unit_test(a_damaged_file_of_two),
        cmocka_unit_test(a_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
