// SPDX-License-Identifier: Apache-2.0
// A session whose chunks have two holders each, on real processes: one of them is killed under its steps. No
// step fails, every answer is the reference's, and no token that was acknowledged is gone.
#include "tests/e2e/support.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

#define LONG_NS (UINT64_C(300) * COMMON_NS_PER_S) // no test is to fail for want of speed

enum { ATTACHED = 200, STEPS = 120, KILLED_AT = 40, ROOM = ATTACHED + 3 * STEPS };

static const banyan_spec spec = {.layers = 1,
                                 .q_heads = 4,
                                 .kv_heads = 2,
                                 .k_dim = 32,
                                 .v_dim = 32,
                                 .kv_type = BANYAN_F32,
                                 .chunk_tokens = 32,
                                 .members = 3,
                                 .replicas = 2};

struct stepping { // of one thread, with a session of its own
    banyan_client *client;
    banyan_session *session;
    struct context context;
    uint64_t length;
};

static void step_once(struct stepping *s, bool append)
{
    uint64_t first = append ? s->length : s->length * 2 / 3;
    struct step step = {
        .session = s->session, .first = first, .rows = 1, .seed = first, .timeout_ns = LONG_NS};
    if (append)
        step_append(&step, &s->context);
    OK(step_run(s->client, &step));
    context_check(&s->context, 0, first, 1, 0, step.made_q, step.o, step.lse, NULL, "step");
    if (append)
        assert_int_equal(step.length, ++s->length);
    step_free(&step);
}

static void state_is(const struct stepping *s, const char *state)
{
    banyan_session_info info;
    OK(banyan_session_get_info(s->session, &info, ERR));
    assert_string_equal(info.state, state);
    assert_int_equal(info.length, s->length);
    banyan_session_info_free(&info);
}

struct killing {
    struct harness_cluster *cluster;
    uint32_t who;
};

static void *kill_it(void *arg)
{
    const struct killing *k = arg;
    harness_cluster_signal(k->cluster, k->who, SIGKILL);
    return NULL;
}

// Steps go on while the worker dies at some moment between or in them.
static void step_while_killed(struct stepping *s, struct harness_cluster *cluster, uint32_t who)
{
    struct killing killing = {cluster, who};
    pthread_t killer;
    for (int i = 0; i < STEPS; i++) {
        if (i == KILLED_AT && pthread_create(&killer, NULL, kill_it, &killing) != 0)
            fail_msg("no thread");
        step_once(s, i % 3 != 2);
    }
    pthread_join(killer, NULL);
}

// What a caller leaves to the coordinator is said in the answer: a caller that counts on two holders sees
// whether there are.
static void as_many_as_there_are_hosts(void **state)
{
    (void)state;
    static const char *const apart[] = {"x", "y"};
    for (int hosts = 1; hosts <= 2; hosts++) {
        struct harness_cluster *cluster =
            support_start(&(struct harness_options){.workers = 2, .hosts = hosts == 2 ? apart : NULL});
        banyan_client *client = support_connect(cluster, "tcp");
        banyan_spec open = spec;
        banyan_session *session, *again;
        open.replicas = 0;
        OK(banyan_session_create(client, &open, "s", &session, ERR));
        OK(banyan_session_open(client, 0, "s", &again, ERR));
        assert_int_equal(banyan_session_spec(session)->replicas, hosts);
        assert_int_equal(banyan_session_spec(again)->replicas, hosts);
        banyan_session_close(session);
        banyan_session_close(again);
        banyan_disconnect(client);
        support_stop(cluster);
    }
}

static void a_killed_holder(void **state)
{
    (void)state;
    static const char *const slowly[] = {"--move-rate", "1K", NULL}; // no lost copy is restored meanwhile
    for (uint32_t victim = 0; victim < 3; victim++) {
        struct harness_cluster *cluster =
            support_start(&(struct harness_options){.workers = 3, .coordinator_args = slowly});
        struct stepping s = {.client = support_connect(cluster, "nng+tcp"), .length = ATTACHED};
        context_init(&s.context, &spec, ROOM);
        context_random(&s.context, 0, ROOM, victim + 1);
        OK(banyan_session_create(s.client, &spec, NULL, &s.session, ERR));
        assert_int_equal(banyan_session_spec(s.session)->replicas, 2);
        support_fill(s.session, &s.context, 0, ATTACHED);
        state_is(&s, "active");
        step_while_killed(&s, cluster, victim);
        state_is(&s, "degraded");
        harness_cluster_signal(cluster, HARNESS_COORDINATOR,
                               SIGKILL); // what is acknowledged outlives it, too
        assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
        for (int i = 0; i < 10; i++)
            step_once(&s, i % 2);
        assert_true(harness_cluster_restart(cluster, victim)); // with nothing of what it had
        for (int i = 0; i < 40; i++)
            step_once(&s, i % 2);
        state_is(&s, "degraded");
        support_drop(s.session, &s.context);
        banyan_disconnect(s.client);
        support_stop(cluster);
    }
}

static uint64_t unsealed(const struct stepping *s)
{
    banyan_scrub info;
    OK(banyan_get_scrub(s->client, banyan_session_id(s->session), &info, ERR));
    return info.unsealed;
}

static banyan_cluster_info cluster_of(const struct stepping *s)
{
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(s->client, &info, ERR));
    banyan_cluster_info_free(&info);
    return info; // its numbers
}

// It was given up, and has not ended: what it has of sealed chunks counts again, and does not travel. The
// other one may go.
static void a_holder_that_was_stopped(void **state)
{
    (void)state;
    static const char *const beat[] = {"--heartbeat", "500ms", NULL};
    struct harness_cluster *cluster =
        support_start(&(struct harness_options){.workers = 2, .coordinator_args = beat});
    struct stepping s = {.client = support_connect(cluster, "tcp")};
    uint64_t token = 2 * 2 * 32 * sizeof(float);
    context_init(&s.context, &spec, ROOM);
    context_random(&s.context, 0, ROOM, 7);
    OK(banyan_session_create(s.client, &spec, NULL, &s.session, ERR));
    while (s.length < ATTACHED) // not attached: what a ticket is good for does not move
        step_once(&s, true);
    EVENTUALLY(60, unsealed(&s) == 0);
    for (uint32_t victim = 0; victim < 2; victim++) {
        uint64_t before = cluster_of(&s).moved_bytes, sealed = s.length / 32 * 32;
        harness_cluster_signal(cluster, victim, SIGSTOP);
        EVENTUALLY(60, cluster_of(&s).thin_chunks > 0);
        for (int i = 0; i < 10; i++)
            step_once(&s, i % 2);
        harness_cluster_signal(cluster, victim, SIGCONT);
        EVENTUALLY(60, cluster_of(&s).thin_chunks == 0 && cluster_of(&s).moves == 0);
        state_is(&s, "active");
        assert_true(cluster_of(&s).moved_bytes - before <= (s.length - sealed) * token);
        EVENTUALLY(60, unsealed(&s) == 0);
    }
    harness_cluster_signal(cluster, 0, SIGKILL);
    for (int i = 0; i < 20; i++)
        step_once(&s, i % 2);
    support_drop(s.session, &s.context);
    banyan_disconnect(s.client);
    support_stop(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_many_as_there_are_hosts),
                                       cmocka_unit_test(a_killed_holder),
                                       cmocka_unit_test(a_holder_that_was_stopped)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
