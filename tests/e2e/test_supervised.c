// SPDX-License-Identifier: Apache-2.0
// A coordinator that ends under steps, and a supervisor that starts the next one at once: killed, stopped,
// and stopped by a SIGSTOP in the middle of its SIGTERM, so that two are there. No step fails, every answer
// is the reference's, the same step has the same bits, and what was acknowledged is there after each next
// death.
//   e2e_supervised [aims]     aims: no step may stand still for 3 s or more
//   e2e_supervised many N     how long it takes until N sessions are answered after a kill
#include "tests/e2e/support.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"

#define LONG_NS (UINT64_C(300) * COMMON_NS_PER_S)

enum { WORKERS = 3, RUNNERS = 8, START = 60, ROOM = 100000, FIXED = 41, MANY = 100 };

static const banyan_spec spec = {.layers = 1,
                                 .q_heads = 2,
                                 .kv_heads = 1,
                                 .k_dim = 16,
                                 .v_dim = 16,
                                 .kv_type = BANYAN_F32,
                                 .chunk_tokens = 32,
                                 .members = WORKERS};

#define AIM_MS 3000.0
static bool with_aims;
static uint32_t n_many;

struct runner { // appends rows and reads, one step after another, until it is to stop, or one fails
    pthread_t thread;
    banyan_client *client;
    banyan_session *session;
    struct context context;
    uint64_t length, pause_ns; // pause: the longest step since it was asked last
    unsigned done, same;       // same: steps with bits to compare
    bool stop, failed;
    char why[420];
};

static bool run_one(struct runner *r, struct step *step)
{
    uint64_t from = support_now_ns();
    banyan_code code = step_run(r->client, step);
    uint64_t took = support_now_ns() - from;
    if (took > __atomic_load_n(&r->pause_ns, __ATOMIC_RELAXED))
        __atomic_store_n(&r->pause_ns, took, __ATOMIC_RELAXED);
    if (code != BANYAN_OK)
        snprintf(r->why, sizeof r->why, "code %d: %.380s", code, ERR->message);
    return code == BANYAN_OK && context_agrees(&r->context, 0, step->first, 1, 0, step->made_q, step->o,
                                               step->lse, r->why, sizeof r->why);
}

static void *run_steps(void *arg)
{
    struct runner *r = arg;
    struct step first = {.session = r->session,
                         .first = FIXED,
                         .rows = 1,
                         .visible = FIXED + 1,
                         .seed = 9,
                         .timeout_ns = LONG_NS};
    bool ok = run_one(r, &first);
    while (ok && !__atomic_load_n(&r->stop, __ATOMIC_RELAXED)) {
        struct step append = {
            .session = r->session, .first = r->length, .rows = 1, .seed = r->length, .timeout_ns = LONG_NS};
        struct step again = {.session = r->session,
                             .first = FIXED,
                             .rows = 1,
                             .visible = FIXED + 1,
                             .seed = 9,
                             .timeout_ns = LONG_NS};
        context_random(&r->context, r->length, 1, r->length);
        step_append(&append, &r->context);
        ok = run_one(r, &append) && run_one(r, &again);
        if (ok && again.digest == first.digest) {
            r->same++;
            ok = step_same_bits(&first, &again);
            if (!ok)
                snprintf(r->why, sizeof r->why, "other bits with the same digest");
        }
        r->length += ok;
        step_free(&append);
        step_free(&again);
        __atomic_fetch_add(&r->done, 1, __ATOMIC_RELAXED);
    }
    step_free(&first);
    __atomic_store_n(&r->failed, !ok, __ATOMIC_RELAXED);
    return NULL;
}

// Until each has done so many more. The longest step meanwhile, in ms.
static double wait_for_steps(struct runner *runners, unsigned more)
{
    unsigned from[RUNNERS];
    uint64_t longest = 0;
    for (int i = 0; i < RUNNERS; i++)
        from[i] = __atomic_load_n(&runners[i].done, __ATOMIC_RELAXED);
    for (int i = 0; i < RUNNERS; i++) {
        EVENTUALLY(100, __atomic_load_n(&runners[i].done, __ATOMIC_RELAXED) >= from[i] + more ||
                            __atomic_load_n(&runners[i].failed, __ATOMIC_RELAXED));
        if (__atomic_load_n(&runners[i].failed, __ATOMIC_RELAXED))
            fail_msg("runner %d: %s", i, runners[i].why);
        uint64_t pause = __atomic_exchange_n(&runners[i].pause_ns, 0, __ATOMIC_RELAXED);
        longest = pause > longest ? pause : longest;
    }
    return (double)longest / 1e6;
}

static struct harness_cluster *start_cluster(void)
{
    static const char *const same_speed[] = {"--bandwidth", "8G", NULL};
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = WORKERS, .worker_args = same_speed});
    harness_cluster_allow_error(cluster, "is in use by a coordinator (process "); // of the one that is early
    return cluster;
}

static void start_runners(struct harness_cluster *cluster, struct runner *runners)
{
    static const char *const transports[] = {"nng+tcp", "tcp", "unix"};
    for (int i = 0; i < RUNNERS; i++) {
        struct runner *r = &runners[i];
        r->client = support_connect(cluster, transports[i % 3]);
        context_init(&r->context, &spec, ROOM);
        context_random(&r->context, 0, START, 7 + (uint64_t)i);
        OK(banyan_session_create(r->client, &spec, NULL, &r->session, ERR));
        support_fill(r->session, &r->context, 0, START);
        r->length = START;
        assert_int_equal(pthread_create(&r->thread, NULL, run_steps, r), 0);
    }
}

static void stop_runners(struct runner *runners)
{
    unsigned same = 0;
    for (int i = 0; i < RUNNERS; i++) {
        __atomic_store_n(&runners[i].stop, true, __ATOMIC_RELAXED);
        pthread_join(runners[i].thread, NULL);
        if (runners[i].failed)
            fail_msg("runner %d: %s", i, runners[i].why);
        same += runners[i].same;
        support_drop(runners[i].session, &runners[i].context);
        banyan_disconnect(runners[i].client);
    }
    assert_true(same > 0);
}

// SIGTERM, and SIGSTOP so much later: whatever it was at, it is there, and has the store if it had not given
// it up. Then the next one is started, again and again, and the old one goes on. How often the next one was
// refused.
static int stop_in_the_middle(struct harness_cluster *cluster, uint64_t after_us)
{
    int pid = harness_cluster_pid(cluster, HARNESS_COORDINATOR), refused = 0, code = -1;
    kill(pid, SIGTERM);
    nanosleep(&(struct timespec){.tv_nsec = (long)after_us * 1000}, NULL);
    kill(pid, SIGSTOP);
    harness_cluster_leave(cluster);
    for (int i = 0; i < 3; i++) {
        assert_true(harness_cluster_launch(cluster, HARNESS_COORDINATOR));
        bool ended = false;
        // Refused, or, where the old one has given the store and its endpoints up, ready.
        EVENTUALLY(60, (ended = harness_cluster_ended(cluster, HARNESS_COORDINATOR, &code)) ||
                           harness_cluster_is_ready(cluster, HARNESS_COORDINATOR));
        if (!ended)
            break;
        assert_int_equal(code, 3);
        refused++;
    }
    kill(pid, SIGCONT);
    if (!harness_cluster_pid(cluster, HARNESS_COORDINATOR)) {
        int more;
        assert_true(harness_cluster_supervise(cluster, &more));
        refused += more;
    }
    EVENTUALLY(60, harness_cluster_ended(cluster, HARNESS_OLD, &code));
    assert_int_equal(code, 0);
    return refused;
}

// Nothing in a client's hands but names: what was acknowledged to an operator is there.
static void make_named(banyan_client *client, int round)
{
    char name[24];
    banyan_session *session;
    struct context context;
    snprintf(name, sizeof name, "made-%d", round);
    context_init(&context, &spec, START);
    context_random(&context, 0, START, (uint64_t)round);
    OK(banyan_session_create(client, &spec, name, &session, ERR));
    support_fill(session, &context, 0, START);
    if (round % 2)
        OK(banyan_session_truncate(session, START / 2, ERR));
    banyan_session_close(session);
    context_free(&context);
}

static void check_named(banyan_client *client, int rounds)
{
    for (int round = 0; round < rounds; round++) {
        char name[24];
        banyan_session *session;
        banyan_session_info info;
        snprintf(name, sizeof name, "made-%d", round);
        OK(banyan_session_open(client, 0, name, &session, ERR));
        OK(banyan_session_get_info(session, &info, ERR));
        assert_int_equal(info.length, round % 2 ? START / 2 : START);
        banyan_session_info_free(&info);
        banyan_session_close(session);
    }
}

static void steps_go_on(void **state)
{
    (void)state;
    enum { KILLED, STOPPED, STOPPED_IN_THE_MIDDLE, WAYS, ROUNDS = 12 };
    static const char *const ways[] = {"killed", "stopped", "stopped in the middle of SIGTERM"};
    static const uint64_t after_us[] = {500, 3000, 11000, 1};
    struct harness_cluster *cluster = start_cluster();
    static struct runner runners[RUNNERS];
    start_runners(cluster, runners);
    banyan_client *client = support_connect(cluster, "tcp");
    int refused, met = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double before = wait_for_steps(runners, 10);
        if (round % WAYS == STOPPED_IN_THE_MIDDLE) {
            refused = stop_in_the_middle(cluster, after_us[round / WAYS]);
            met += refused > 0;
        } else {
            harness_cluster_signal(cluster, HARNESS_COORDINATOR, round % WAYS == KILLED ? SIGKILL : SIGTERM);
            assert_true(harness_cluster_supervise(cluster, &refused));
        }
        double pause = wait_for_steps(runners, 10);
        print_message(
            "%s, the next one refused %d times: longest pause %.0f ms (%.0f ms before), %d sessions\n",
            ways[round % WAYS], refused, pause, before, RUNNERS);
        if (with_aims && pause >= AIM_MS)
            fail_msg("a step stood still for %.0f ms", pause);
        // What this one acknowledges, the next one has, and those after it.
        make_named(client, round);
        check_named(client, round + 1);
    }
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
    assert_true(harness_cluster_supervise(cluster, &refused));
    check_named(client, ROUNDS);
    assert_true(met > 0); // else no two were there at once
    banyan_disconnect(client);
    stop_runners(runners);
    support_stop(cluster);
}

// Until a step of each of many sessions is answered.
static void many_sessions(void **state)
{
    (void)state;
    struct harness_cluster *cluster = start_cluster();
    banyan_client *client = support_connect(cluster, "tcp");
    banyan_session **sessions = calloc(n_many, sizeof *sessions);
    assert_non_null(sessions);
    struct context context;
    context_init(&context, &spec, START);
    context_random(&context, 0, START, 7);
    for (uint32_t i = 0; i < n_many; i++) {
        OK(banyan_session_create(client, &spec, NULL, &sessions[i], ERR));
        support_fill(sessions[i], &context, 0, START);
    }
    for (int round = 0; round < 3; round++) {
        uint64_t from = support_now_ns(), ready = 0, first = 0;
        int refused;
        harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
        assert_true(harness_cluster_supervise(cluster, &refused));
        ready = support_now_ns() - from;
        for (uint32_t i = 0; i < n_many; i++) {
            struct step step = {
                .session = sessions[i], .first = FIXED, .rows = 1, .seed = FIXED, .timeout_ns = LONG_NS};
            OK(step_run(client, &step));
            context_check(&context, 0, FIXED, 1, 0, step.made_q, step.o, step.lse, NULL, "step");
            step_free(&step);
            first = first ? first : support_now_ns() - from;
        }
        double all = (double)(support_now_ns() - from) / 1e6;
        print_message("%u sessions, killed, and started again: ready after %.0f ms, first step after %.0f "
                      "ms, one of each "
                      "after %.0f ms\n",
                      n_many, (double)ready / 1e6, (double)first / 1e6, all);
        if (with_aims && all >= AIM_MS)
            fail_msg("%u sessions waited for %.0f ms", n_many, all);
    }
    for (uint32_t i = 0; i < n_many; i++)
        banyan_session_close(sessions[i]);
    free(sessions);
    context_free(&context);
    banyan_disconnect(client);
    support_stop(cluster);
}

int main(int argc, char **argv)
{
    with_aims = argc == 2 && strcmp(argv[1], "aims") == 0;
    bool many = argc == 3 && strcmp(argv[1], "many") == 0;
    n_many = many ? (uint32_t)strtoul(argv[2], NULL, 10) : MANY;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_sessions),
        cmocka_unit_test(steps_go_on),
    };
    return many ? cmocka_run_group_tests(((const struct CMUnitTest[]){tests[0]}), NULL, NULL)
                : cmocka_run_group_tests(tests, NULL, NULL);
}
