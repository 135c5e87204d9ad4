// SPDX-License-Identifier: Apache-2.0
// Two coordinators on one store, under steps: the active one is killed, and stopped and continued. No step fails, every
// answer is the reference's, the same step has the same bits, and who was taken over ends by itself.
//   e2e_standby [aims]     aims: no step may stand still for 3 s or more
#include "tests/e2e/support.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"

#define LONG_NS (UINT64_C(300) * COMMON_NS_PER_S)

enum { WORKERS = 3, RUNNERS = 8, START = 60, ROOM = 100000, FIXED = 41, TAKEN_OVER = 5, MANY = 100 };

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

struct runner { // appends rows and reads, one step after another, until it is told to stop, or one fails
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

static bool has_said(const struct harness_cluster *cluster, uint32_t who, const char *text)
{
    char *log = harness_cluster_log(cluster, who);
    assert_non_null(log);
    bool found = strstr(log, text) != NULL;
    free(log);
    return found;
}

// Since it became active: it may have been so before.
static bool is_watched(const struct harness_cluster *cluster, uint32_t who)
{
    char *log = harness_cluster_log(cluster, who), *from = log, *next;
    assert_non_null(log);
    while ((next = strstr(from, "took the store over")))
        from = next + 1;
    bool watched = strstr(from, "another coordinator stands by") != NULL;
    free(log);
    return watched;
}

static bool has_ended(struct harness_cluster *cluster, uint32_t who, int *code)
{
    return harness_cluster_ended(cluster, who, code);
}

static void steps_go_on(void **state)
{
    (void)state;
    static const char *const transports[] = {"nng+tcp", "tcp", "unix"};
    static const char *const same_speed[] = {"--bandwidth", "8G", NULL};
    struct harness_cluster *cluster = support_start(
        &(struct harness_options){.workers = WORKERS, .standby = true, .worker_args = same_speed});
    harness_cluster_allow_error(cluster, "another coordinator has taken the store over");
    static struct runner runners[RUNNERS];
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
    uint32_t active = HARNESS_COORDINATOR, other = HARNESS_STANDBY;
    for (int round = 0; round < 4; round++) {
        bool kill = round % 2 == 0;
        double before = wait_for_steps(runners, 20);
        EVENTUALLY(30, is_watched(cluster, active));
        harness_cluster_signal(cluster, active, kill ? SIGKILL : SIGSTOP);
        double pause = wait_for_steps(runners, 20);
        print_message("%s: longest pause %.0f ms (%.0f ms before), %d sessions\n",
                      kill ? "killed" : "stopped", pause, before, RUNNERS);
        if (with_aims && pause >= AIM_MS)
            fail_msg("a step stood still for %.0f ms", pause);
        assert_true(has_said(cluster, other, "took the store over"));
        if (!kill) {
            int code = -1;
            harness_cluster_signal(cluster, active, SIGCONT);
            EVENTUALLY(30, has_ended(cluster, active, &code));
            assert_int_equal(code, TAKEN_OVER);
            assert_true(has_said(cluster, active, "exiting: another coordinator has taken the store over"));
        }
        assert_true(harness_cluster_restart(cluster, active)); // now that one stands by
        uint32_t was = active;
        active = other;
        other = was;
    }
    wait_for_steps(runners, 20);
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
    harness_cluster_signal(cluster, HARNESS_STANDBY, SIGTERM);
    support_stop(cluster);
}

// How long it takes until a step of each of many sessions is answered.
static void many_sessions(void **state)
{
    (void)state;
    struct harness_cluster *cluster = support_start(&(struct harness_options){.workers = 2, .standby = true});
    harness_cluster_allow_error(cluster, "another coordinator has taken the store over");
    banyan_client *client = support_connect(cluster, "tcp");
    static banyan_session *sessions[MANY];
    struct context context;
    context_init(&context, &spec, START);
    context_random(&context, 0, START, 7);
    for (int i = 0; i < MANY; i++) {
        OK(banyan_session_create(client, &spec, NULL, &sessions[i], ERR));
        support_fill(sessions[i], &context, 0, START);
    }
    static const char *const what[] = {"killed, and the standby takes over",
                                       "stopped, and the standby takes over",
                                       "killed, and started again alone"};
    uint32_t active = HARNESS_COORDINATOR, other = HARNESS_STANDBY;
    for (int round = 0; round < 3; round++) {
        EVENTUALLY(30, round == 2 || has_said(cluster, active, "another coordinator stands by"));
        if (round == 2)
            harness_cluster_signal(cluster, other, SIGKILL); // or it would take over
        uint64_t from = support_now_ns(), first = 0;
        harness_cluster_signal(cluster, active, round == 1 ? SIGSTOP : SIGKILL);
        if (round == 2)
            assert_true(harness_cluster_restart(cluster, active));
        for (int i = 0; i < MANY; i++) {
            struct step step = {
                .session = sessions[i], .first = FIXED, .rows = 1, .seed = FIXED, .timeout_ns = LONG_NS};
            OK(step_run(client, &step));
            context_check(&context, 0, FIXED, 1, 0, step.made_q, step.o, step.lse, NULL, "step");
            step_free(&step);
            first = first ? first : support_now_ns() - from;
        }
        double all = (double)(support_now_ns() - from) / 1e6;
        print_message("%d sessions, %s: first step after %.0f ms, all after %.0f ms\n", MANY, what[round],
                      (double)first / 1e6, all);
        if (with_aims && all >= AIM_MS)
            fail_msg("%d sessions waited for %.0f ms", MANY, all);
        if (round == 2)
            break;
        int code = -1;
        harness_cluster_signal(cluster, active, SIGCONT);
        EVENTUALLY(30, round == 0 || has_ended(cluster, active, &code));
        assert_true(harness_cluster_restart(cluster, active));
        uint32_t was = active;
        active = other;
        other = was;
    }
    for (int i = 0; i < MANY; i++)
        banyan_session_close(sessions[i]);
    context_free(&context);
    banyan_disconnect(client);
    support_stop(cluster);
}

int main(int argc, char **argv)
{
    with_aims = argc == 2 && strcmp(argv[1], "aims") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_go_on),
        cmocka_unit_test(many_sessions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
