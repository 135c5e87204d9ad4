// SPDX-License-Identifier: Apache-2.0
// What a user of the library sees when daemons die, stop and come back.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/banyan.h"
#include "common/base/clock.h"
#include "tests/client/mirror.h"
#include "tests/harness/cluster.h"

enum { TOKENS = 1024 };

static struct harness_cluster *cluster;
static banyan_client *client;
static banyan_session *session;
static struct mirror *m;
static const banyan_spec spec = {
    .layers = 1, .q_heads = 4, .kv_heads = 2, .k_dim = 16, .v_dim = 16, .kv_type = BANYAN_BF16, .members = 3};

static void ok(banyan_code code, const banyan_error *error)
{
    if (code != BANYAN_OK)
        fail_msg("%s: %s (%s)", banyan_code_name(code), error->message, error->reason);
}

static int set_up(void **state)
{
    (void)state;
    banyan_error error;
    cluster = harness_cluster_start(&(struct harness_options){.workers = 3, .memory = "64M"});
    if (!cluster)
        return -1;
    m = mirror_new(&spec, TOKENS + 4, 1);
    if (banyan_connect(harness_cluster_endpoint(cluster, "unix"), NULL, &client, &error) != BANYAN_OK ||
        banyan_session_create(client, &spec, "s", &session, &error) != BANYAN_OK ||
        banyan_attach(session, 0, 0, TOKENS, mirror_k(m, 0, 0), mirror_v(m, 0, 0), &error) != BANYAN_OK ||
        banyan_commit(session, 0, 0, TOKENS, &error) != BANYAN_OK) {
        fprintf(stderr, "%s\n", error.message);
        return -1;
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    banyan_disconnect(client);
    banyan_session_close(session);
    mirror_free(m);
    return harness_cluster_stop(cluster);
}

static banyan_code ask(banyan_session *of, uint64_t position, bool append, uint64_t timeout_ns,
                       banyan_error *error)
{
    float o[4 * 16], lse[4];
    banyan_item item = {
        .session = of,
        .first = position,
        .rows = 1,
        .q = mirror_q(m, position),
        .k = append ? mirror_k(m, 0, position) : NULL,
        .v = append ? mirror_v(m, 0, position) : NULL,
        .o = o,
        .lse = lse,
        .error = error,
    };
    banyan_code code = banyan_attend(client, &item, 1, timeout_ns, NULL, error);
    if (code == BANYAN_OK)
        code = item.code;
    if (code == BANYAN_OK)
        mirror_check(m, 0, position, 1, 0, o, lse);
    return code;
}

static void test_worker_dies(void **state)
{
    (void)state;
    banyan_error error;
    banyan_session *other;
    ok(ask(session, TOKENS - 1, false, 0, &error), &error);
    harness_cluster_signal(cluster, 1, SIGKILL);
    // Never numbers; once the loss is known, the ranges that are gone.
    banyan_code code = ask(session, TOKENS - 1, false, 0, &error);
    while (code == BANYAN_ABORTED)
        code = ask(session, TOKENS - 1, false, 0, &error);
    assert_true(code == BANYAN_UNAVAILABLE || code == BANYAN_DATA_LOSS);
    assert_string_equal(error.reason, "MISSING_RANGE");
    assert_true(error.n_ranges > 0);
    assert_string_equal(error.worker, "w1");
    // The rest of the service goes on.
    banyan_spec narrow = spec;
    narrow.members = 0;
    ok(banyan_session_create(client, &narrow, NULL, &other, &error), &error);
    ok(ask(other, 0, true, 0, &error), &error);
    ok(banyan_session_delete(other, &error), &error);
    banyan_session_close(other);
    // An attach goes to those who are there.
    ok(banyan_session_create(client, &narrow, NULL, &other, &error), &error);
    ok(banyan_attach(other, 0, 0, TOKENS, mirror_k(m, 0, 0), mirror_v(m, 0, 0), &error), &error);
    ok(banyan_commit(other, 0, 0, TOKENS, &error), &error);
    ok(ask(other, TOKENS - 1, false, 0, &error), &error);
    banyan_session_close(other);
}

static void test_coordinator_restarts(void **state)
{
    (void)state;
    banyan_error error;
    ok(ask(session, TOKENS, true, 0, &error), &error);
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    // Workers find it again by themselves; until then the answer is UNAVAILABLE, never a wrong one.
    banyan_code code;
    uint64_t give_up = common_clock_after(60 * COMMON_NS_PER_S);
    do {
        code = ask(session, TOKENS, true, 60 * COMMON_NS_PER_S, &error); // again: the same bytes
        if (code == BANYAN_UNAVAILABLE)
            usleep(20000);
    } while (code == BANYAN_UNAVAILABLE && common_clock_left(give_up) > 0);
    ok(code, &error);
    ok(ask(session, TOKENS + 1, true, 0, &error), &error);
}

static void test_worker_stands_still(void **state)
{
    (void)state;
    banyan_error error;
    harness_cluster_signal(cluster, 2, SIGSTOP);
    banyan_code code = ask(session, TOKENS - 1, false, 300 * COMMON_NS_PER_MS, &error);
    assert_true(code == BANYAN_DEADLINE_EXCEEDED || code == BANYAN_UNAVAILABLE);
    assert_string_not_equal(error.reason, "UNCONFIRMED"); // it has appended nothing
    for (uint32_t w = 0; w < 3; w++)
        harness_cluster_signal(cluster, w, SIGSTOP);
    code = ask(session, TOKENS, true, 300 * COMMON_NS_PER_MS, &error);
    assert_true(code == BANYAN_DEADLINE_EXCEEDED || code == BANYAN_UNAVAILABLE);
    assert_string_equal(error.reason, "UNCONFIRMED");
    for (uint32_t w = 0; w < 3; w++)
        harness_cluster_signal(cluster, w, SIGCONT);
    uint64_t give_up = common_clock_after(60 * COMMON_NS_PER_S);
    do {
        code = ask(session, TOKENS - 1, false, 0, &error);
        if (code == BANYAN_UNAVAILABLE || code == BANYAN_ABORTED)
            usleep(20000);
    } while ((code == BANYAN_UNAVAILABLE || code == BANYAN_ABORTED) && common_clock_left(give_up) > 0);
    ok(code, &error);
    ok(ask(session, TOKENS, true, 0, &error), &error); // the same append settles it
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_worker_dies, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_coordinator_restarts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_worker_stands_still, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
