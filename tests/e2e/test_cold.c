// SPDX-License-Identifier: Apache-2.0
// Sessions that take several times a worker's memory (--store-limit), on real processes: stepped in turns,
// appended to, over the death of the worker and of all; every answer is compared with float64. A file that is
// damaged while its rows are in it alone is never served.
#include "tests/e2e/support.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"

#define LONG_NS (UINT64_C(300) * COMMON_NS_PER_S) // no test is to fail for want of speed

enum { CHUNK = 32, LAYERS = 3, LENGTH = 512, ROOM = LENGTH + 64, SESSIONS = 6, WORKERS_MAX = 2 };

// A token takes 1.5 KiB: six sessions take 4.5 MiB, and half of this is for K and V.
#define MEMORY       "2M"
#define MEMORY_BYTES (UINT64_C(1) << 20)

struct cluster {
    char dirs[WORKERS_MAX][64];
    const char *args[WORKERS_MAX][3];
    const char *const *each[WORKERS_MAX];
    uint32_t workers;
    struct harness_cluster *daemons;
    banyan_client *client;
    banyan_session *sessions[SESSIONS];
    struct context contexts[SESSIONS];
    uint64_t length[SESSIONS];
};

static void start(struct cluster *c, uint32_t workers, uint32_t replicas)
{
    static const char *const same[] = {"--bandwidth", "8G", "--store-limit", "64M", NULL};
    const banyan_spec spec = {.layers = LAYERS,
                              .q_heads = 4,
                              .kv_heads = 2,
                              .k_dim = 32,
                              .v_dim = 32,
                              .kv_type = BANYAN_F32,
                              .chunk_tokens = CHUNK,
                              .replicas = replicas};
    *c = (struct cluster){.workers = workers};
    for (uint32_t i = 0; i < workers; i++) {
        snprintf(c->dirs[i], sizeof c->dirs[i], "/tmp/banyan-e2e-cold-%ld-%u", (long)getpid(), i);
        c->args[i][0] = "--store";
        c->args[i][1] = c->dirs[i];
        c->each[i] = c->args[i];
    }
    c->daemons = support_start(&(struct harness_options){
        .workers = workers, .memory = MEMORY, .worker_args = same, .each_args = c->each});
    c->client = support_connect(c->daemons, "tcp");
    for (uint32_t i = 0; i < SESSIONS; i++) {
        context_init(&c->contexts[i], &spec, ROOM);
        context_random(&c->contexts[i], 0, ROOM, 100 + i);
        OK(banyan_session_create(c->client, &spec, NULL, &c->sessions[i], ERR));
        support_fill(c->sessions[i], &c->contexts[i], 0, LENGTH);
        c->length[i] = LENGTH;
    }
}

static void stop(struct cluster *c)
{
    char command[160];
    for (uint32_t i = 0; i < SESSIONS; i++)
        support_drop(c->sessions[i], &c->contexts[i]);
    banyan_disconnect(c->client);
    support_stop(c->daemons);
    for (uint32_t i = 0; i < c->workers; i++) {
        snprintf(command, sizeof command, "rm -r -- '%s'", c->dirs[i]);
        if (system(command) != 0)
            fail_msg("cannot remove %s", c->dirs[i]);
    }
}

static banyan_code step_on(struct cluster *c, uint32_t nth, uint32_t layer, uint64_t first, bool append)
{
    struct step step = {.session = c->sessions[nth],
                        .layer = layer,
                        .first = first,
                        .rows = 1,
                        .seed = first + nth,
                        .timeout_ns = LONG_NS};
    if (append)
        step_append(&step, &c->contexts[nth]);
    banyan_code code = step_run(c->client, &step);
    if (code == BANYAN_OK)
        context_check(&c->contexts[nth], layer, first, 1, 0, step.made_q, step.o, step.lse, NULL, "step");
    step_free(&step);
    return code;
}

// A token of each session through all layers, in turns.
static void token_of_each(struct cluster *c)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t i = 0; i < SESSIONS; i++)
            OK(step_on(c, i, layer, c->length[i], true));
    for (uint32_t i = 0; i < SESSIONS; i++)
        c->length[i]++;
}

static uint64_t cold_bytes(struct cluster *c)
{
    banyan_cluster_info info;
    uint64_t bytes = 0;
    OK(banyan_cluster_get_info(c->client, &info, ERR));
    for (uint32_t i = 0; i < info.n_workers; i++)
        bytes += info.workers[i].cold_bytes;
    banyan_cluster_info_free(&info);
    return bytes;
}

static void more_than_memory(void **state)
{
    (void)state;
    struct cluster c;
    start(&c, 1, 1);
    EVENTUALLY(60, support_used_bytes(c.client) > 4 * MEMORY_BYTES); // as much is held
    assert_true(cold_bytes(&c) > 3 * MEMORY_BYTES);
    for (int round = 0; round < 3; round++)
        token_of_each(&c);
    harness_cluster_signal(c.daemons, 0, SIGKILL);
    assert_true(harness_cluster_restart(c.daemons, 0));
    token_of_each(&c);
    harness_cluster_signal(c.daemons, HARNESS_COORDINATOR, SIGKILL);
    harness_cluster_signal(c.daemons, 0, SIGKILL);
    assert_true(harness_cluster_restart(c.daemons, HARNESS_COORDINATOR));
    assert_true(harness_cluster_restart(c.daemons, 0));
    token_of_each(&c);
    // A fork that shares cold chunks, and one that is cut inside of one.
    banyan_session *fork;
    struct context of;
    OK(banyan_session_fork(c.sessions[0], LENGTH / 2 + 5, NULL, &fork, ERR));
    context_copy(&of, &c.contexts[0]);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        support_check_step(c.client, fork, &of, layer, LENGTH / 2 + 4, 1, 0, NULL, "fork");
    support_drop(fork, &of);
    OK(banyan_session_truncate(c.sessions[1], LENGTH / 2 + 7, ERR));
    c.length[1] = LENGTH / 2 + 7;
    token_of_each(&c);
    stop(&c);
}

// ---- what is damaged while it is on the disk alone ----------------------------------------------

// Flips a byte of each sealed file of a worker's, or of one of them. Returns how many.
static uint32_t flip(const struct cluster *c, uint32_t worker)
{
    char path[128], name[320];
    struct dirent *entry;
    uint32_t n = 0;
    snprintf(path, sizeof path, "%s/chunks", c->dirs[worker]);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    while ((entry = readdir(dir))) {
        const char *dot = strrchr(entry->d_name, '.');
        struct stat st;
        uint8_t byte;
        if (!dot || strcmp(dot, ".sealed") != 0)
            continue;
        snprintf(name, sizeof name, "%s/%.128s", path, entry->d_name);
        int fd = open(name, O_RDWR);
        assert_true(fd >= 0 && fstat(fd, &st) == 0);
        for (uint32_t part = 0; part < LAYERS; part++) { // each layer has a third of it, or nearly
            off_t at = st.st_size * (2 * part + 1) / (2 * LAYERS);
            assert_int_equal(pread(fd, &byte, 1, at), 1);
            byte ^= 16;
            assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        }
        close(fd);
        n++;
    }
    closedir(dir);
    return n;
}

static void allow_damage(struct cluster *c)
{
    harness_cluster_allow_error(c->daemons, "a file of --store is damaged");
    harness_cluster_allow_error(c->daemons, "a worker lacks rows whose commit is durable");
}

static void damaged_alone(void **state)
{
    (void)state;
    struct cluster c;
    uint32_t lost = 0;
    start(&c, 1, 1);
    token_of_each(&c);
    allow_damage(&c);
    assert_true(flip(&c, 0) > 0);
    for (uint32_t i = 0; i < SESSIONS; i++)
        for (uint32_t layer = 0; layer < LAYERS; layer++) { // an answer is right, or the range is named
            banyan_code code = step_on(&c, i, layer, c.length[i] - 1, false);
            assert_true(code == BANYAN_OK || code == BANYAN_DATA_LOSS);
            if (code == BANYAN_OK)
                continue;
            assert_string_equal(ERR->reason, "MISSING_RANGE");
            assert_true(ERR->n_ranges >= 1 && ERR->ranges[0].first % CHUNK == 0);
            lost++;
        }
    assert_true(lost > 0);
    for (uint32_t i = 0; i < SESSIONS; i++) { // it is taken back to before the loss, and goes on
        OK(banyan_session_truncate(c.sessions[i], 0, ERR));
        support_fill(c.sessions[i], &c.contexts[i], 0, c.length[i]);
    }
    token_of_each(&c);
    stop(&c);
}

static void damaged_with_another_holder(void **state)
{
    (void)state;
    struct cluster c;
    start(&c, 2, 2);
    token_of_each(&c);
    allow_damage(&c);
    assert_true(flip(&c, 0) > 0);
    for (int round = 0; round < 2; round++)
        token_of_each(&c); // no step fails: the other one's rows count
    stop(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_than_memory),
        cmocka_unit_test(damaged_alone),
        cmocka_unit_test(damaged_with_another_holder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
