// SPDX-License-Identifier: Apache-2.0
// The coordinator is away for a while: killed over workers that hold many sessions, or stopped by a signal.
// Workers keep what they hold, and what clients asked for meanwhile is answered.
#include "tests/e2e/support.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

#define LONG_NS     (UINT64_C(300) * COMMON_NS_PER_S)
#define PATIENCE_MS 3500 // of a coordinator with a heartbeat of 1 s

static const banyan_spec narrow = {.layers = 1,
                                   .q_heads = 2,
                                   .kv_heads = 1,
                                   .k_dim = 16,
                                   .v_dim = 16,
                                   .kv_type = BANYAN_F32,
                                   .chunk_tokens = 32,
                                   .members = 1};

static unsigned count(const struct harness_cluster *cluster, uint32_t who, const char *text)
{
    unsigned n = 0;
    char *log = harness_cluster_log(cluster, who);
    assert_non_null(log);
    for (const char *at = log; (at = strstr(at, text)); at++)
        n++;
    free(log);
    return n;
}

static banyan_code check(banyan_client *client, banyan_session *session, const struct context *context,
                         uint64_t first)
{
    struct step step = {.session = session, .first = first, .rows = 1, .seed = first, .timeout_ns = LONG_NS};
    banyan_code code = step_run(client, &step);
    if (code == BANYAN_OK)
        context_check(context, 0, first, 1, 0, step.made_q, step.o, step.lse, NULL, "step");
    step_free(&step);
    return code;
}

// ---- killed, over many sessions ---------------------------------------------------------------------------

enum { WORKERS = 2, SESSIONS = 1400, LEAST = 600 };

static void many_sessions(void **state)
{
    (void)state;
    static const char *const same_speed[] = {"--bandwidth", "8G", NULL};
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = WORKERS, .worker_args = same_speed});
    banyan_client *client = support_connect(cluster, "unix");
    static banyan_session *sessions[SESSIONS];
    struct context context;
    context_init(&context, &narrow, 100);
    context_random(&context, 0, 100, 7);
    for (uint32_t i = 0; i < SESSIONS; i++) { // one to four chunks each
        OK(banyan_session_create(client, &narrow, NULL, &sessions[i], ERR));
        support_fill(sessions[i], &context, 0, 1 + i % 100);
    }
    unsigned held[WORKERS] = {0};
    for (uint32_t i = 0; i < SESSIONS; i++) {
        banyan_session_info info;
        OK(banyan_session_get_info(sessions[i], &info, ERR));
        for (uint32_t m = 0; m < info.n_members; m++)
            held[atoi(info.members[m] + 1)]++; // "w0", "w1"
        banyan_session_info_free(&info);
    }
    for (uint32_t w = 0; w < WORKERS; w++)
        if (held[w] < LEAST)
            fail_msg("worker %u holds %u sessions only", w, held[w]);
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    for (uint32_t i = 0; i < SESSIONS; i++)
        OK(check(client, sessions[i], &context, i % 100));
    assert_true(support_alive(cluster));
    for (uint32_t i = 0; i < SESSIONS; i++)
        banyan_session_close(sessions[i]);
    context_free(&context);
    banyan_disconnect(client);
    support_stop(cluster);
}

// ---- stopped ----------------------------------------------------------------------------------------------

static const char *const beat_of_a_second[] = {"--heartbeat", "1s", NULL};

struct runner { // steps one after another, until it is stopped, or one fails
    pthread_t thread;
    banyan_client *client;
    banyan_session *session;
    const struct context *context;
    unsigned done;
    bool stop;
    banyan_code code;
    banyan_error error;
};

static void *run_steps(void *arg)
{
    struct runner *r = arg;
    banyan_code code = BANYAN_OK;
    while (code == BANYAN_OK && !__atomic_load_n(&r->stop, __ATOMIC_RELAXED)) {
        code = check(r->client, r->session, r->context, 99);
        r->error = *ERR;
        __atomic_store_n(&r->code, code, __ATOMIC_RELAXED);
        __atomic_fetch_add(&r->done, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void wait_for_steps(struct runner *runners, unsigned n, unsigned more)
{
    for (unsigned i = 0; i < n; i++) {
        unsigned from = __atomic_load_n(&runners[i].done, __ATOMIC_RELAXED);
        EVENTUALLY(60, __atomic_load_n(&runners[i].done, __ATOMIC_RELAXED) >= from + more ||
                           __atomic_load_n(&runners[i].code, __ATOMIC_RELAXED) != BANYAN_OK);
    }
}

static void a_stopped_coordinator(void **state)
{
    (void)state;
    enum { RUNNERS = 3 };
    static const char *const transports[RUNNERS] = {"nng+tcp", "tcp", "unix"};
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 3, .coordinator_args = beat_of_a_second});
    banyan_spec spec = narrow;
    spec.members = 3;
    struct context context;
    context_init(&context, &spec, 100);
    context_random(&context, 0, 100, 7);
    struct runner runners[RUNNERS];
    banyan_client *clients[RUNNERS];
    for (int i = 0; i < RUNNERS; i++) {
        clients[i] = support_connect(cluster, transports[i]);
        runners[i] = (struct runner){.client = clients[i], .context = &context};
        OK(banyan_session_create(clients[i], &spec, NULL, &runners[i].session, ERR));
        support_fill(runners[i].session, &context, 0, 100);
        assert_int_equal(pthread_create(&runners[i].thread, NULL, run_steps, &runners[i]), 0);
    }
    // One that goes when it is not used. Its row is appended: a ticket would keep it.
    spec.idle_ttl_ns = 2 * COMMON_NS_PER_S;
    banyan_session *brief;
    OK(banyan_session_create(clients[2], &spec, NULL, &brief, ERR));
    struct step append = {
        .session = brief, .rows = 1, .k = context_k(&context, 0, 0), .v = context_v(&context, 0, 0)};
    OK(step_run(clients[2], &append));
    step_free(&append);

    wait_for_steps(runners, RUNNERS, 20);
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGSTOP);
    struct step late = {.session = brief, .rows = 1, .seed = 1, .timeout_ns = LONG_NS};
    banyan_item item = step_item(&late);
    OK(banyan_attend_queue(clients[2], &item, 1, LONG_NS, NULL, ERR));
    support_sleep_ms(PATIENCE_MS + 1500);
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGCONT);
    banyan_completion completion;
    EVENTUALLY(60, banyan_poll(clients[2], &completion, 1) == 1);
    if (completion.code || item.code)
        fail_msg("a step asked for meanwhile: %s %s: %s", banyan_code_name(completion.code),
                 banyan_code_name(item.code), ERR->message);
    context_check(&context, 0, 0, 1, 0, late.made_q, late.o, late.lse, NULL, "asked for meanwhile");
    step_free(&late);
    support_sleep_ms(PATIENCE_MS + 1500); // everybody is judged again
    wait_for_steps(runners, RUNNERS, 20);
    for (int i = 0; i < RUNNERS; i++) {
        __atomic_store_n(&runners[i].stop, true, __ATOMIC_RELAXED);
        pthread_join(runners[i].thread, NULL);
        if (runners[i].code)
            fail_msg("a step over %s: %s: %s", transports[i], banyan_code_name(runners[i].code),
                     runners[i].error.message);
    }
    assert_int_equal(count(cluster, HARNESS_COORDINATOR, "a worker is lost"), 0);
    assert_int_equal(count(cluster, HARNESS_COORDINATOR, "a worker registers"), 3); // at the start

    // A worker that stops with it, and does not wake, is found out all the same
    harness_cluster_signal(cluster, 1, SIGSTOP);
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGSTOP);
    support_sleep_ms(PATIENCE_MS + 500);
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGCONT);
    EVENTUALLY(60, count(cluster, HARNESS_COORDINATOR, "a worker is lost") == 1);
    harness_cluster_signal(cluster, 1, SIGCONT);
    EVENTUALLY(60, check(clients[2], runners[2].session, &context, 99) == BANYAN_OK);
    banyan_session_close(brief);
    for (int i = 0; i < RUNNERS; i++) {
        banyan_session_close(runners[i].session);
        banyan_disconnect(clients[i]);
    }
    context_free(&context);
    support_stop(cluster);
}

// After a restart it waits some seconds for its workers. They are not over because it did not run.
static void stopped_while_it_recovers(void **state)
{
    (void)state;
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 1, .coordinator_args = beat_of_a_second});
    banyan_client *client = support_connect(cluster, "unix");
    struct context context;
    context_init(&context, &narrow, 100);
    context_random(&context, 0, 100, 7);
    banyan_session *session;
    OK(banyan_session_create(client, &narrow, NULL, &session, ERR));
    support_fill(session, &context, 0, 100);
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
    harness_cluster_signal(cluster, 0, SIGSTOP);
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    struct step step = {.session = session, .first = 99, .rows = 1, .seed = 1, .timeout_ns = LONG_NS};
    banyan_item item = step_item(&step);
    OK(banyan_attend_queue(client, &item, 1, LONG_NS, NULL, ERR));
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGSTOP);
    support_sleep_ms(6000); // it waits for 5 s
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGCONT);
    support_sleep_ms(500); // more than one tick
    harness_cluster_signal(cluster, 0, SIGCONT);
    banyan_completion completion;
    EVENTUALLY(60, banyan_poll(client, &completion, 1) == 1);
    if (completion.code || item.code)
        fail_msg("a step that waits for its worker: %s %s: %s", banyan_code_name(completion.code),
                 banyan_code_name(item.code), ERR->message);
    context_check(&context, 0, 99, 1, 0, step.made_q, step.o, step.lse, NULL, "waited");
    step_free(&step);
    banyan_session_close(session);
    context_free(&context);
    banyan_disconnect(client);
    support_stop(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_sessions),
        cmocka_unit_test(a_stopped_coordinator),
        cmocka_unit_test(stopped_while_it_recovers),
    };
    return cmocka_run_group_tests_name("absence", tests, NULL, NULL);
}
