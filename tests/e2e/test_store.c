// SPDX-License-Identifier: Apache-2.0
// The store refuses, is exchanged, or is older than the workers: what was acknowledged is there, or will be
// when the right store is. The store's file cannot grow while the coordinator may not write longer files
// (RLIMIT_FSIZE): a full disk, without one.
#include "tests/e2e/support.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"

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

static void make(banyan_client *client, struct held *h, const banyan_spec *spec, uint64_t room,
                 const char *name)
{
    context_init(&h->context, spec, room);
    context_random(&h->context, 0, room, room);
    OK(banyan_session_create(client, spec, name, &h->session, ERR));
}

static void drop(struct held *h)
{
    banyan_session_close(h->session);
    context_free(&h->context);
}

static banyan_code step_on(banyan_client *client, const struct held *h, uint64_t first)
{
    struct step step = {
        .session = h->session, .first = first, .rows = 1, .seed = first, .timeout_ns = LONG_NS};
    banyan_code code = step_run(client, &step);
    if (code == BANYAN_OK)
        context_check(&h->context, 0, first, 1, 0, step.made_q, step.o, step.lse, NULL, "step");
    step_free(&step);
    return code;
}

static banyan_code append_to(banyan_client *client, const struct held *h, uint64_t first)
{
    struct step step = {.session = h->session,
                        .first = first,
                        .rows = 1,
                        .k = context_k(&h->context, 0, first),
                        .v = context_v(&h->context, 0, first),
                        .timeout_ns = LONG_NS};
    banyan_code code = step_run(client, &step);
    if (code == BANYAN_OK)
        context_check(&h->context, 0, first, 1, 0, step.made_q, step.o, step.lse, NULL, "append");
    step_free(&step);
    return code;
}

static void kill_and_restart_coordinator(struct harness_cluster *cluster)
{
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
}

// ---- a store that cannot be written -----------------------------------------------------------------------

// The coordinator's files may not become longer than the store's log is now.
static void store_is_full(struct harness_cluster *cluster, bool full)
{
    char path[512];
    struct stat info;
    struct rlimit limit;
    int pid = harness_cluster_pid(cluster, HARNESS_COORDINATOR);
    snprintf(path, sizeof(path), "%s/store.db-wal", harness_cluster_dir(cluster));
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(prlimit(pid, RLIMIT_FSIZE, NULL, &limit), 0);
    limit.rlim_cur = full ? (rlim_t)info.st_size : limit.rlim_max;
    assert_int_equal(prlimit(pid, RLIMIT_FSIZE, &limit, NULL), 0);
}

// The first chunk of a session is refused by the store. Space is there again: what is acknowledged from now on
// outlives the coordinator.
static void a_refused_first_placement(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 2});
    banyan_client *client = support_connect(cluster, "tcp");
    struct held h, other;
    make(client, &h, &spread, 200, "refused");
    make(client, &other, &spread, 100, "before");
    support_fill(other.session, &other.context, 0, 100);
    store_is_full(cluster, true);
    banyan_code code =
        banyan_attach(h.session, 0, 0, 100, context_k(&h.context, 0, 0), context_v(&h.context, 0, 0), ERR);
    assert_int_not_equal(code, BANYAN_OK);
    if (!strstr(ERR->message, "store"))
        fail_msg("the store refused, and this is said: %s", ERR->message);
    OK(step_on(client, &other, 99)); // what needs no writing goes on
    store_is_full(cluster, false);
    support_fill(h.session, &h.context, 0, 100);
    OK(append_to(client, &h, 100));
    OK(step_on(client, &h, 100));
    kill_and_restart_coordinator(cluster);
    OK(step_on(client, &h, 100));
    OK(append_to(client, &h, 101));
    OK(step_on(client, &other, 99));
    drop(&h);
    drop(&other);
    banyan_disconnect(client);
    support_stop(cluster);
}

// Frees the store once the coordinator has said that it was refused: a worker's start waits until it is taken.
static void *free_the_store(void *arg)
{
    struct harness_cluster *cluster = arg;
    char *log = NULL;
    for (int i = 0; i < 12000 && !(log && strstr(log, "what a worker lost")); i++) {
        free(log);
        support_sleep_ms(5);
        log = harness_cluster_log(cluster, HARNESS_COORDINATOR);
    }
    free(log);
    store_is_full(cluster, false);
    return NULL;
}

// A worker comes back without its rows, and the store refuses to say so: neither that worker nor the next life
// of the coordinator may take the session for one that never had these rows.
static void a_refused_loss(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 1});
    harness_cluster_allow_error(cluster, "what a worker lost");
    banyan_client *client = support_connect(cluster, "tcp");
    banyan_spec one = spread;
    one.members = 1;
    struct held h;
    pthread_t thread;
    make(client, &h, &one, 100, "appended");
    for (uint64_t p = 0; p < 5; p++)
        OK(append_to(client, &h, p)); // no store knows these rows
    harness_cluster_signal(cluster, 0, SIGKILL);
    store_is_full(cluster, true);
    assert_int_equal(pthread_create(&thread, NULL, free_the_store, cluster), 0);
    assert_true(harness_cluster_restart(cluster, 0));
    pthread_join(thread, NULL);
    EVENTUALLY(60, step_on(client, &h, 4) == BANYAN_DATA_LOSS);
    kill_and_restart_coordinator(cluster);
    EVENTUALLY(60, step_on(client, &h, 4) == BANYAN_DATA_LOSS);
    drop(&h);
    banyan_disconnect(client);
    support_stop(cluster);
}

int main(void)
{
    signal(SIGXFSZ, SIG_IGN); // the daemons inherit it: a write past the limit fails with EFBIG
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_first_placement),
        cmocka_unit_test(a_refused_loss),
    };
    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
