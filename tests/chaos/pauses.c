// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>

#include "common/clock.h"
#include "tests/chaos/faults.h"
#include "tests/chaos/held.h"
#include "tests/chaos/quiet.h"
#include "tests/e2e/support.h"

enum { ROUNDS = 4, CROWD = 100 };

static struct pauses {
    uint64_t seed;
    uint64_t kill_ms[ROUNDS], stop_ms[ROUNDS], calm_ms[ROUNDS]; // the longest step of each round
    uint64_t kill_failed, stop_failed;
    uint64_t first_ms[ROUNDS], all_ms[ROUNDS]; // of the coordinator
} pauses;

// ---- a worker ---------------------------------------------------------------------------------------------

static uint64_t longest_ms(struct load *load)
{
    struct load_counts counts;
    load_get(load, &counts);
    return (counts.longest_pause_ns + COMMON_NS_PER_MS - 1) / COMMON_NS_PER_MS;
}

static uint64_t failed_steps(struct load *load)
{
    struct load_counts counts;
    load_get(load, &counts);
    return counts.failed_steps;
}

// The longest step while `sig` reaches worker `who` and for some seconds after.
static uint64_t hurt(struct faults *faults, struct load *load, uint32_t who, int sig)
{
    assert_true(faults_over(faults) && load_settle(load, 60 * COMMON_NS_PER_S));
    support_sleep_ms(500);
    load_forget_pauses(load);
    load_lost(load, 1);
    harness_cluster_signal(faults_cluster(faults), who, sig);
    support_sleep_ms(6000);
    uint64_t longest = longest_ms(load);
    if (sig == SIGSTOP)
        harness_cluster_signal(faults_cluster(faults), who, SIGCONT);
    else
        assert_true(faults_start_again(faults, who));
    return longest;
}

static void a_worker_goes(void **state)
{
    (void)state;
    struct faults *faults = faults_start(pauses.seed, false, NULL);
    struct load_options options = {.seed = pauses.seed, .replicas = 2, .plain = true};
    for (int i = 0; i < LOAD_CLIENTS; i++)
        options.endpoints[i] = faults_endpoint(faults, i);
    struct load *load = load_start(&options);
    for (uint32_t i = 0; i < ROUNDS && !load_wrong(load); i++) {
        support_sleep_ms(1000);
        load_forget_pauses(load);
        support_sleep_ms(2000);
        pauses.calm_ms[i] = longest_ms(load);
        uint64_t failed = failed_steps(load);
        pauses.kill_ms[i] = hurt(faults, load, i % FAULTS_WORKERS, SIGKILL);
        pauses.kill_failed += failed_steps(load) - failed;
        failed = failed_steps(load);
        pauses.stop_ms[i] = hurt(faults, load, (i + 1) % FAULTS_WORKERS, SIGSTOP);
        pauses.stop_failed += failed_steps(load) - failed;
    }
    bool right = load_end(load);
    if (!right)
        print_error("%s\n", load_wrong(load));
    load_free(load);
    assert_int_equal(faults_stop(faults, !right), 0);
}

// ---- the coordinator --------------------------------------------------------------------------------------

static struct crowd {
    banyan_client *client;
    struct held held[CROWD];
    uint64_t first_ns, all_ns; // when a step was answered, and one of each
} crowd;

static bool step_on(struct held *h)
{
    struct step step = {.session = h->session, .first = h->length - 1, .rows = 1, .timeout_ns = HELD_LONG_NS};
    banyan_code code = step_run(crowd.client, &step);
    if (code == BANYAN_OK)
        context_check(&h->context, 0, step.first, 1, 0, step.made_q, step.o, step.lse, NULL, "step");
    step_free(&step);
    return code == BANYAN_OK;
}

static void *ask_all(void *arg)
{
    for (int i = 0; i < CROWD; i++) {
        while (!step_on(&crowd.held[i])) {
        }
        if (i == 0)
            crowd.first_ns = common_clock_ns();
    }
    crowd.all_ns = common_clock_ns();
    return arg;
}

static void the_coordinator_restarts(void **state)
{
    (void)state;
    struct faults *faults = faults_start(pauses.seed, false, NULL);
    crowd.client = support_connect(faults_cluster(faults), "unix");
    for (uint64_t i = 0; i < CROWD; i++) {
        struct held *h = &crowd.held[i];
        held_make(h, crowd.client, i, 2, i);
        h->length = 100;
        support_fill(h->session, &h->context, 0, h->length);
    }
    for (int i = 0; i < ROUNDS; i++) {
        pthread_t thread;
        harness_cluster_signal(faults_cluster(faults), HARNESS_COORDINATOR, SIGKILL);
        assert_int_equal(pthread_create(&thread, NULL, ask_all, NULL), 0);
        support_sleep_ms(200);
        uint64_t start = common_clock_ns();
        assert_true(faults_start_again(faults, HARNESS_COORDINATOR));
        pthread_join(thread, NULL);
        pauses.first_ms[i] = (crowd.first_ns - start) / COMMON_NS_PER_MS;
        pauses.all_ms[i] = (crowd.all_ns - start) / COMMON_NS_PER_MS;
    }
    for (int i = 0; i < CROWD; i++)
        held_free(&crowd.held[i]);
    banyan_disconnect(crowd.client);
    assert_int_equal(faults_stop(faults, false), 0);
}

static void print_list(const char *name, const uint64_t *ms)
{
    printf("\"%s\": [", name);
    for (int i = 0; i < ROUNDS; i++)
        printf("%s%" PRIu64, i ? ", " : "", ms[i]);
    printf("], ");
}

int quiet_pauses(uint64_t seed, uint64_t steps, bool json)
{
    (void)steps;
    (void)json;
    pauses.seed = seed;
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_worker_goes),
                                       cmocka_unit_test(the_coordinator_restarts)};
    int failed = cmocka_run_group_tests_name("pauses", tests, NULL, NULL);
    printf("{");
    print_list("calm_ms", pauses.calm_ms);
    print_list("kill_worker_ms", pauses.kill_ms);
    print_list("stop_worker_ms", pauses.stop_ms);
    print_list("coordinator_first_step_ms", pauses.first_ms);
    print_list("coordinator_all_sessions_ms", pauses.all_ms);
    printf("\"kill_failed_steps\": %" PRIu64 ", \"stop_failed_steps\": %" PRIu64 ", \"sessions\": %d}\n",
           pauses.kill_failed, pauses.stop_failed, CROWD);
    return failed;
}
