// SPDX-License-Identifier: Apache-2.0
// The engine `mpi`, from mpirun to the client: exact answers, the same bits as usual, no processor time when
// idle, and ranks that die or hang in the middle of steps.
#include "tests/e2e/engines.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"

#define WORKERS 4
#define LONG_NS (UINT64_C(100) * COMMON_NS_PER_S) // who fails at once fails before

static const char *const ends_job[] = {"mpirun", "--oversubscribe", "--bind-to", "none", NULL};
static const char *const survivors[] = {"mpirun", "--oversubscribe",   "--bind-to",
                                        "none",   "--enable-recovery", NULL};
static const char *const by_mpi[] = {"--engine", "mpi", "--bandwidth", "8G", NULL};

static struct harness_cluster *start(const char *const *launcher)
{
    return support_start(
        &(struct harness_options){.workers = WORKERS, .launcher = launcher, .worker_args = by_mpi});
}

static void exact_and_the_same_bits(void **state)
{
    (void)state;
    struct harness_cluster *cluster = start(ends_job);
    banyan_client *client = support_connect(cluster, "unix");
    static const uint32_t members[] = {WORKERS, 2, 1};
    for (size_t m = 0; m < sizeof members / sizeof *members; m++) {
        struct held h;
        held_make(client, &h, members[m], 300);
        assert_true(
            engine_is(h.session, members[m] > 1 ? "mpi" : "stream")); // alone there is nothing to merge
        held_exercise(client, &h, 300);
        struct step kept = {.session = h.session, .first = 297, .rows = 3, .seed = 77};
        OK(step_run(client, &kept));
        held_same_bits(client, &h, &kept, 50);
        step_free(&kept);
        support_drop(h.session, &h.context);
    }
    banyan_disconnect(client);
    support_stop(cluster);
}

// A rank that sits in MPI would burn a core: a hundred ticks a second.
static void idle_workers_burn_nothing(void **state)
{
    (void)state;
    struct harness_cluster *cluster = start(ends_job);
    banyan_client *client = support_connect(cluster, "unix");
    struct held h;
    held_make(client, &h, WORKERS, 200);
    OK(held_step(client, &h, 199, 1, 0));
    assert_true(engine_is(h.session, "mpi"));
    workers_are_idle(cluster, WORKERS);
    OK(held_step(client, &h, 199, 1, 0));
    support_drop(h.session, &h.context);
    banyan_disconnect(client);
    support_stop(cluster);
}

// ---- ranks that die -----------------------------------------------------------------------------

static void survivors_go_on_by_stream(void **state)
{
    (void)state;
    struct harness_cluster *cluster = start(survivors);
    banyan_client *client = support_connect(cluster, "unix");
    struct held pair, wide;
    struct step by[2]; // engines
    pthread_t thread;
    uint32_t victim;
    held_make(client, &pair, 2, 200);
    held_make(client, &wide, WORKERS, 200);
    assert_true(engine_is(pair.session, "mpi") && engine_is(wide.session, "mpi"));
    by[0] = (struct step){.session = pair.session, .first = 150, .rows = 5, .seed = 1};
    OK(step_run(client, &by[0]));
    victim = no_member(cluster, pair.session);
    struct stepper stepper = {.client = client, .held = &pair};
    assert_int_equal(pthread_create(&thread, NULL, stepper_run, &stepper), 0);
    stepper_await(&stepper, 50);

    harness_cluster_signal(cluster, victim, SIGKILL);
    FAILS(BANYAN_UNAVAILABLE, "MISSING_RANGE", held_step(client, &wide, 199, 1, LONG_NS));
    assert_string_equal(ERR->worker, harness_cluster_worker_name(cluster, victim));
    EVENTUALLY(20, engine_is(pair.session, "stream"));
    stepper_await(&stepper, 50);
    OK(held_step(client, &pair, 199, 1, LONG_NS));
    stepper.stop = true;
    pthread_join(thread, NULL);
    assert_int_equal(stepper.failed, BANYAN_OK);

    // The tree and its order of merging are the same: so are the bits. The digest names the engine.
    by[1] = (struct step){.session = pair.session, .first = 150, .rows = 5, .seed = 1};
    OK(step_run(client, &by[1]));
    assert_true(step_same_bits(&by[0], &by[1]));
    assert_int_not_equal(by[0].digest, by[1].digest);
    step_free(&by[0]);
    step_free(&by[1]);

    // New sessions of the survivors go by stream, too.
    struct held fresh;
    held_make(client, &fresh, 2, 100);
    assert_true(engine_is(fresh.session, "stream"));
    OK(held_step(client, &fresh, 0, 100, 0));
    support_drop(fresh.session, &fresh.context);
    support_drop(wide.session, &wide.context);
    support_drop(pair.session, &pair.context);
    banyan_disconnect(client);
    support_stop(cluster);
}

// Without --enable-recovery the launcher ends the job with the rank: one failure domain. A supervisor starts
// it again, and the group forms again by itself.
static void the_job_ends_and_comes_back(void **state)
{
    (void)state;
    struct harness_cluster *cluster = start(ends_job);
    banyan_client *client = support_connect(cluster, "unix");
    struct held before, after;
    held_make(client, &before, WORKERS, 200);
    OK(held_step(client, &before, 199, 1, 0));
    harness_cluster_signal(cluster, 1, SIGKILL);
    FAILS(BANYAN_UNAVAILABLE, NULL, held_step(client, &before, 199, 1, LONG_NS));
    assert_true(harness_cluster_job_ended(cluster, 30 * COMMON_NS_PER_S));
    assert_true(harness_cluster_job_restart(cluster));
    held_make(client, &after, WORKERS, 200);
    EVENTUALLY(20, engine_is(after.session, "mpi"));
    OK(held_step(client, &after, 0, 200, 0));
    OK(held_step(client, &after, 199, 1, 0));
    support_drop(after.session, &after.context);
    support_drop(before.session, &before.context);
    banyan_disconnect(client);
    support_stop(cluster);
}

// A rank that hangs delays its steps to their deadline, nothing else; when it goes on, so do they.
static void a_rank_that_hangs(void **state)
{
    (void)state;
    static const char *const patient[] = {"--heartbeat", "20s", NULL};
    struct harness_cluster *cluster = support_start(&(struct harness_options){
        .workers = WORKERS, .launcher = ends_job, .worker_args = by_mpi, .coordinator_args = patient});
    banyan_client *client = support_connect(cluster, "unix");
    struct held pair, wide;
    uint32_t hung;
    held_make(client, &pair, 2, 200);
    held_make(client, &wide, WORKERS, 200);
    hung = no_member(cluster, pair.session);
    OK(held_step(client, &wide, 199, 1, 0));
    harness_cluster_signal(cluster, hung, SIGSTOP);
    FAILS(BANYAN_DEADLINE_EXCEEDED, NULL, held_step(client, &wide, 199, 1, COMMON_NS_PER_S / 2));
    OK(held_step(client, &pair, 199, 1, 0));
    FAILS(BANYAN_DEADLINE_EXCEEDED, NULL, held_step(client, &wide, 0, 200, COMMON_NS_PER_S / 2));
    harness_cluster_signal(cluster, hung, SIGCONT);
    OK(held_step(client, &wide, 199, 1, LONG_NS));
    OK(held_step(client, &wide, 0, 200, LONG_NS));
    OK(held_step(client, &pair, 199, 1, 0));
    assert_true(engine_is(wide.session, "mpi"));
    support_drop(wide.session, &wide.context);
    support_drop(pair.session, &pair.context);
    banyan_disconnect(client);
    support_stop(cluster);
}

// ---- starting wrongly ---------------------------------------------------------------------------

static void what_is_missing_is_said(void **state)
{
    (void)state;
    static const char *const alone[] = {"--engine", "mpi", NULL};
    static const char *const unknown[] = {"--engine", "pigeon", NULL};
    static const char *const no_name[] = {"--engine", "../mpi", NULL};
    static const char *const no_module[] = {"--engine", "mpi", "--engine-module",
                                            "/nonexistent/banyan-mpi.so", NULL};
    worker_refuses(alone, 3, "mpirun");
    worker_refuses(unknown, 3, "banyan-pigeon.so");
    worker_refuses(no_name, 2, "--help");
    worker_refuses(no_module, 3, "/nonexistent/banyan-mpi.so");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_missing_is_said),     cmocka_unit_test(exact_and_the_same_bits),
        cmocka_unit_test(idle_workers_burn_nothing),   cmocka_unit_test(survivors_go_on_by_stream),
        cmocka_unit_test(the_job_ends_and_comes_back), cmocka_unit_test(a_rank_that_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
