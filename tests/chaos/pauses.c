// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "tests/chaos/faults.h"
#include "tests/chaos/held.h"
#include "tests/chaos/quiet.h"
#include "tests/e2e/support.h"

enum { ROUNDS = 4, CROWD = 100 };

// What is aimed at, where links close at once (a process died) and where there is silence (it stands still).
enum { CLOSED_MS = 300, SILENT_MS = 3000, RESTART_MS = 2000, RATE_PERCENT = 95 };

static struct pauses {
    uint64_t seed;
    uint64_t kill_ms[ROUNDS], stop_ms[ROUNDS], calm_ms[ROUNDS + 1]; // the longest step of each round
    uint64_t kill_failed, stop_failed;
    // Steps a second: before anything happens, and when all is whole after each round. And of another cluster
    // with the same load, to which nothing happens: sessions grow, and longer ones take longer.
    uint64_t rate[ROUNDS + 1], calm_rate[ROUNDS + 1];
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

// In calm: the longest step, and how many there are a second.
static void measure_calm(struct load *load, uint64_t *longest, uint64_t *rate)
{
    struct load_counts from, to;
    assert_true(load_settle(load, 60 * COMMON_NS_PER_S));
    support_sleep_ms(1000);
    load_forget_pauses(load);
    load_get(load, &from);
    uint64_t begun = common_clock_ns();
    support_sleep_ms(4000);
    load_get(load, &to);
    *longest = longest_ms(load);
    *rate = (to.steps - from.steps) * COMMON_NS_PER_S / (common_clock_ns() - begun);
}

enum { HURT_MS = 6000 };

// The longest step while `sig` reaches worker `who` and for some seconds after.
static uint64_t hurt(struct faults *faults, struct load *load, uint32_t who, int sig)
{
    assert_true(faults_over(faults) && load_settle(load, 60 * COMMON_NS_PER_S));
    support_sleep_ms(500);
    load_forget_pauses(load);
    load_lost(load, 1);
    harness_cluster_signal(faults_cluster(faults), who, sig);
    support_sleep_ms(HURT_MS);
    uint64_t longest = longest_ms(load);
    if (sig == SIGSTOP)
        harness_cluster_signal(faults_cluster(faults), who, SIGCONT);
    else
        assert_true(faults_start_again(faults, who));
    return longest;
}

struct scene {
    struct faults *faults;
    struct load *load;
};

static struct scene begin(void)
{
    struct scene s = {.faults = faults_start(&(struct faults_options){.seed = pauses.seed, .direct = true})};
    struct load_options options = {.seed = pauses.seed, .replicas = 2, .plain = true};
    for (int i = 0; i < LOAD_CLIENTS; i++)
        options.endpoints[i] = faults_endpoint(s.faults, i);
    s.load = load_start(&options);
    return s;
}

static void end(struct scene s)
{
    bool right = load_end(s.load);
    if (!right)
        print_error("%s\n", load_wrong(s.load));
    load_free(s.load);
    assert_int_equal(faults_stop(s.faults, !right), 0);
}

static void a_worker_goes(void **state)
{
    (void)state;
    struct scene s = begin();
    for (uint32_t i = 0; i < ROUNDS && !load_wrong(s.load); i++) {
        measure_calm(s.load, &pauses.calm_ms[i], &pauses.rate[i]);
        uint64_t failed = failed_steps(s.load);
        pauses.kill_ms[i] = hurt(s.faults, s.load, i % FAULTS_WORKERS, SIGKILL);
        pauses.kill_failed += failed_steps(s.load) - failed;
        failed = failed_steps(s.load);
        pauses.stop_ms[i] = hurt(s.faults, s.load, (i + 1) % FAULTS_WORKERS, SIGSTOP);
        pauses.stop_failed += failed_steps(s.load) - failed;
    }
    if (!load_wrong(s.load) && faults_over(s.faults))
        measure_calm(s.load, &pauses.calm_ms[ROUNDS], &pauses.rate[ROUNDS]);
    end(s);
}

static void nobody_goes(void **state)
{
    (void)state;
    struct scene s = begin();
    for (uint32_t i = 0; i <= ROUNDS && !load_wrong(s.load); i++) {
        uint64_t longest;
        if (i)
            support_sleep_ms(2 * HURT_MS);
        measure_calm(s.load, &longest, &pauses.calm_rate[i]);
    }
    end(s);
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
    struct faults *faults = faults_start(&(struct faults_options){.seed = pauses.seed, .direct = true});
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

// ---- the aims ---------------------------------------------------------------------------------------------

static void below(const char *what, const uint64_t *ms, uint64_t most)
{
    for (int i = 0; i < ROUNDS; i++)
        if (ms[i] >= most)
            fail_msg("%s: %" PRIu64 " ms in round %d, not less than %" PRIu64, what, ms[i], i, most);
}

// What other programs do to one measurement does not count.
static uint64_t best_afterwards(const uint64_t *rates)
{
    uint64_t best = 0;
    for (int i = 1; i <= ROUNDS; i++)
        best = rates[i] > best ? rates[i] : best;
    return best;
}

static void what_is_aimed_at(void **state)
{
    (void)state;
    uint64_t hurt_rate = best_afterwards(pauses.rate), calm_rate = best_afterwards(pauses.calm_rate);
    below("a worker is killed", pauses.kill_ms, CLOSED_MS);
    below("a worker is stopped", pauses.stop_ms, SILENT_MS);
    below("the coordinator starts: one of each session", pauses.all_ms, RESTART_MS);
    assert_int_equal(pauses.kill_failed + pauses.stop_failed, 0);
    if (!calm_rate || hurt_rate * 100 < calm_rate * RATE_PERCENT)
        fail_msg("%" PRIu64 " steps a second afterwards, %" PRIu64 " where nothing happens", hurt_rate,
                 calm_rate);
}

static void print_list(const char *name, const uint64_t *ms, int n)
{
    printf("\"%s\": [", name);
    for (int i = 0; i < n; i++)
        printf("%s%" PRIu64, i ? ", " : "", ms[i]);
    printf("], ");
}

int quiet_pauses(uint64_t seed, uint64_t steps, bool json)
{
    (void)steps;
    (void)json;
    pauses.seed = seed;
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_worker_goes), cmocka_unit_test(nobody_goes),
                                       cmocka_unit_test(the_coordinator_restarts),
                                       cmocka_unit_test(what_is_aimed_at)};
    int failed = cmocka_run_group_tests_name("pauses", tests, NULL, NULL);
    printf("{");
    print_list("calm_ms", pauses.calm_ms, ROUNDS + 1);
    print_list("steps_per_s", pauses.rate, ROUNDS + 1);
    print_list("steps_per_s_if_nothing_happens", pauses.calm_rate, ROUNDS + 1);
    print_list("kill_worker_ms", pauses.kill_ms, ROUNDS);
    print_list("stop_worker_ms", pauses.stop_ms, ROUNDS);
    print_list("coordinator_first_step_ms", pauses.first_ms, ROUNDS);
    print_list("coordinator_all_sessions_ms", pauses.all_ms, ROUNDS);
    printf("\"kill_failed_steps\": %" PRIu64 ", \"stop_failed_steps\": %" PRIu64 ", \"sessions\": %d}\n",
           pauses.kill_failed, pauses.stop_failed, CROWD);
    return failed;
}
