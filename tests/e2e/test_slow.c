// SPDX-License-Identifier: Apache-2.0
// A worker that the system stops for four fifths of the time, on real processes, while a session is stepped:
// it is flagged, others compute what it has, and it gets its work back. Each answer is compared with float64.
// How long it takes is printed, and not judged. All of it with workers that say that they are slow, and with
// some that say that they are fast: what this machine measures of itself decides nothing.
//   e2e_slow [short]     short: with two copies alone, a verdict sooner, and not until the worker is well again
#include "tests/e2e/live.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { ATTACHED = 6000, ROOM = 6200, CHUNK = 128, LONG = 400 };

static const char *options[] = {"--heartbeat", "500ms", "--slow-after", "6s", "--slow-workers", "move", NULL};
static const char *const slow_ones[] = {"--bandwidth", "5G", NULL}, *const fast_ones[] = {"--bandwidth",
                                                                                          "40G", NULL};
static bool in_short;

struct duty { // a process that runs for 20 ms of each 100
    int pid;
    pthread_t thread;
    atomic_bool over;
};

static void *stop_and_go(void *arg)
{
    struct duty *duty = arg;
    while (!atomic_load(&duty->over)) {
        kill(duty->pid, SIGSTOP);
        support_sleep_ms(80);
        kill(duty->pid, SIGCONT);
        support_sleep_ms(20);
    }
    return NULL;
}

static void slow_down(struct duty *duty, const struct harness_cluster *cluster, uint32_t worker)
{
    duty->pid = harness_cluster_pid(cluster, worker);
    atomic_store(&duty->over, false);
    if (pthread_create(&duty->thread, NULL, stop_and_go, duty) != 0)
        fail_msg("no thread");
}

static void let_go(struct duty *duty)
{
    atomic_store(&duty->over, true);
    pthread_join(duty->thread, NULL);
}

static uint64_t served(banyan_client *client, const char *name)
{
    return live_worker_info(client, name).tokens;
}

static void is_slowed(uint32_t replicas, const char *const *bandwidth)
{
    struct live l;
    struct duty duty;
    struct harness_cluster *cluster = support_start(
        &(struct harness_options){.workers = 3, .coordinator_args = options, .worker_args = bandwidth});
    const banyan_spec spec = {.layers = 1,
                              .q_heads = 8,
                              .kv_heads = 8,
                              .k_dim = 64,
                              .v_dim = 64,
                              .kv_type = BANYAN_F32,
                              .chunk_tokens = CHUNK,
                              .members = 3,
                              .replicas = replicas};
    live_start(&l, cluster, &spec, ATTACHED, ROOM);
    for (uint32_t i = 0; i < 5; i++)
        live_goes_on(&l);
    EVENTUALLY(LONG, l.wrong[0] || !live_worker_info(l.client, "w1").slow);
    uint64_t before = served(l.client, "w1"), from = support_now_ns();
    assert_true(before > 0);
    live_pause(&l, "before");
    slow_down(&duty, cluster, 1);
    EVENTUALLY(LONG, l.wrong[0] || live_worker_info(l.client, "w1").slow);
    printf("flagged after %.1f s\n", (double)(support_now_ns() - from) / 1e9);
    live_pause(&l, "until it is flagged");
    EVENTUALLY(LONG, l.wrong[0] || served(l.client, "w1") < before);
    live_goes_on(&l);
    atomic_store(&l.longest_ns, 0);
    live_goes_on(&l);
    live_pause(&l, "when others have its work");
    live_goes_on(&l);
    from = support_now_ns();
    uint64_t left = served(l.client, "w1");
    let_go(&duty);
    if (replicas > 1 && !in_short) { // copies that it follows with come back; chunks that have moved do not
        EVENTUALLY(LONG, l.wrong[0] || !live_worker_info(l.client, "w1").slow);
        printf("well again after %.1f s\n", (double)(support_now_ns() - from) / 1e9);
        EVENTUALLY(LONG, l.wrong[0] || served(l.client, "w1") > left);
    }
    live_stop(&l);
    support_stop(cluster);
}

static void work_on_copies_goes_elsewhere(void **state)
{
    (void)state;
    is_slowed(2, slow_ones);
}

static void only_copies_go_elsewhere(void **state)
{
    (void)state;
    is_slowed(1, slow_ones);
}

static void work_on_copies_of_fast_ones(void **state)
{
    (void)state;
    is_slowed(2, fast_ones);
}

static void only_copies_of_fast_ones(void **state)
{
    (void)state;
    is_slowed(1, fast_ones);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_on_copies_goes_elsewhere),
        cmocka_unit_test(work_on_copies_of_fast_ones),
        cmocka_unit_test(only_copies_go_elsewhere),
        cmocka_unit_test(only_copies_of_fast_ones),
    };
    const struct CMUnitTest some[] = {tests[0], tests[1]};
    in_short = argc == 2 && strcmp(argv[1], "short") == 0;
    if (in_short) {
        options[3] = "2s";
        return cmocka_run_group_tests_name("some", some, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
