// SPDX-License-Identifier: Apache-2.0
// Sessions as the coordinator keeps them: names, pages, truncate, fork, idle ones, limits, and what becomes
// of them when daemons die.
#include "tests/coordinator/helper.h"

#include <signal.h>
#include <time.h>

#include "common/base/clock.h"
#include "tests/common/group.h"

static struct harness_cluster *cluster;
static banyan_client *client;

static int start(void **state)
{
    (void)state;
    static const char *const args[] = {
        "--max-sessions", "400", "--max-session-tokens", "100000", "--heartbeat", "500ms", NULL};
    cluster = harness_cluster_start(&(struct harness_options){.workers = 3, .coordinator_args = args});
    return !cluster || banyan_connect(harness_cluster_endpoint(cluster, "unix"), NULL, &client,
                                      &helper_error) != BANYAN_OK;
}

static int stop(void **state)
{
    (void)state;
    banyan_disconnect(client);
    return harness_cluster_stop(cluster);
}

static void drop(banyan_session *session)
{
    OK(banyan_session_delete(session, &helper_error));
    banyan_session_close(session);
}

static void names(void **state)
{
    (void)state;
    banyan_spec spec = HELPER_SPEC;
    banyan_session *a = helper_session(client, &spec, "the first"), *b = NULL;
    FAILS(BANYAN_ALREADY_EXISTS, banyan_session_create(client, &spec, "the first", &b, &helper_error));
    OK(banyan_session_open(client, 0, "the first", &b, &helper_error));
    assert_int_equal(banyan_session_id(a), banyan_session_id(b));
    assert_int_equal(banyan_session_spec(b)->chunk_tokens, 16);
    banyan_session_close(b);
    drop(a);
    FAILS(BANYAN_NOT_FOUND, banyan_session_open(client, 0, "the first", &b, &helper_error));
    a = helper_session(client, &spec, "the first"); // free again
    drop(a);
}

static void many_sessions(void **state)
{
    (void)state;
    static banyan_session *sessions[400];
    banyan_spec spec = HELPER_SPEC;
    banyan_session *extra = NULL;
    for (int i = 0; i < 400; i++)
        sessions[i] = helper_session(client, &spec, NULL);
    FAILS(BANYAN_RESOURCE_EXHAUSTED, banyan_session_create(client, &spec, NULL, &extra, &helper_error));
    banyan_session_list list;
    OK(banyan_session_get_list(client, &list, &helper_error)); // more than a page
    assert_int_equal(list.n, 400);
    for (int i = 0; i < 400; i++) {
        uint32_t found = 0;
        for (uint32_t k = 0; k < list.n; k++)
            found += list.sessions[k].id == banyan_session_id(sessions[i]);
        assert_int_equal(found, 1);
    }
    banyan_session_list_free(&list);
    uint64_t old = banyan_session_id(sessions[7]);
    drop(sessions[7]);
    sessions[7] = helper_session(client, &spec, NULL); // the slot is used again, the handle is not
    assert_int_not_equal(banyan_session_id(sessions[7]), old);
    FAILS(BANYAN_NOT_FOUND, banyan_session_open(client, old, NULL, &extra, &helper_error));
    for (int i = 0; i < 400; i++)
        drop(sessions[i]);
    assert_int_equal(helper_counts(client).sessions, 0);
    assert_int_equal(helper_counts(client).chunks, 0);
}

static void truncate_and_go_on(void **state)
{
    (void)state;
    banyan_spec spec = HELPER_SPEC;
    spec.members = 3;
    banyan_session *s = helper_session(client, &spec, NULL);
    helper_fill(client, s, 0, 100);
    static const uint64_t cuts[] = {100, 99, 64, 37, 16, 1, 0};
    uint64_t length = 100;
    for (size_t i = 0; i < sizeof(cuts) / sizeof(*cuts); i++) {
        banyan_session_info before, after;
        OK(banyan_session_get_info(s, &before, &helper_error));
        OK(banyan_session_truncate(s, cuts[i], &helper_error));
        OK(banyan_session_truncate(s, cuts[i], &helper_error)); // again: nothing more happens
        OK(banyan_session_get_info(s, &after, &helper_error));
        assert_int_equal(after.length, cuts[i]);
        assert_int_equal(after.incarnation, before.incarnation + (cuts[i] < length));
        FAILS(BANYAN_OUT_OF_RANGE, helper_step(client, s, cuts[i], 1, false));
        if (cuts[i])
            OK(helper_step(client, s, cuts[i] - 1, 1, false));
        OK(helper_step(client, s, cuts[i], 3, true));
        OK(banyan_session_truncate(s, cuts[i], &helper_error));
        length = cuts[i];
        banyan_session_info_free(&before);
        banyan_session_info_free(&after);
    }
    helper_fill(client, s, 0, 50);
    assert_int_equal(helper_length(s), 50);
    drop(s);
}

static void forks_share_and_part(void **state)
{
    (void)state;
    banyan_spec spec = HELPER_SPEC;
    spec.members = 2;
    banyan_session *s = helper_session(client, &spec, "origin"), *fork = NULL, *second = NULL;
    helper_fill(client, s, 0, 90);
    FAILS(BANYAN_OUT_OF_RANGE, banyan_session_fork(s, 91, NULL, &fork, &helper_error));
    FAILS(BANYAN_ALREADY_EXISTS, banyan_session_fork(s, 10, "origin", &fork, &helper_error));
    OK(banyan_session_fork(s, 70, "branch", &fork, &helper_error));
    assert_int_equal(helper_length(fork), 70);
    OK(helper_step(client, fork, 69, 1, false));
    helper_fill(client, fork, 70, 30); // goes its own way
    assert_int_equal(helper_length(s), 90);
    OK(banyan_session_fork(fork, 100, NULL, &second, &helper_error));
    drop(s); // what is shared stays for the others
    OK(helper_step(client, fork, 99, 1, false));
    OK(banyan_session_truncate(fork, 40, &helper_error));
    OK(helper_step(client, second, 99, 1, false));
    OK(helper_step(client, fork, 39, 1, false));
    drop(fork);
    OK(helper_step(client, second, 0, 100, false));
    drop(second);
}

static void an_empty_fork(void **state)
{
    (void)state;
    banyan_spec spec = HELPER_SPEC;
    banyan_session *s = helper_session(client, &spec, NULL), *fork = NULL;
    OK(banyan_session_fork(s, 0, NULL, &fork, &helper_error));
    OK(helper_step(client, fork, 0, 5, true));
    assert_int_equal(helper_length(s), 0);
    drop(fork);
    drop(s);
}

static void too_far(void **state)
{
    (void)state;
    banyan_spec spec = HELPER_SPEC;
    banyan_session *s = helper_session(client, &spec, NULL);
    FAILS(BANYAN_OUT_OF_RANGE, helper_step(client, s, 99999, 2, true));
    FAILS(BANYAN_OUT_OF_RANGE, banyan_attach(s, 0, 99990, 11, helper_zeros, helper_zeros, &helper_error));
    OK(banyan_attach(s, 0, 99990, 10, helper_zeros, helper_zeros,
                     &helper_error)); // far from the start, and nothing between
    OK(banyan_commit(s, 0, 99990, 10, &helper_error));
    assert_int_equal(helper_length(s), 0);
    FAILS(BANYAN_FAILED_PRECONDITION, helper_step(client, s, 5, 1, false));
    assert_string_equal(helper_error.reason, "HOLE");
    assert_true(helper_error.n_ranges == 1 && helper_error.ranges[0].first == 0 &&
                helper_error.ranges[0].count == 99990);
    drop(s);
}

static void wait_for_sessions(uint64_t n)
{
    uint64_t end = common_clock_after(60 * COMMON_NS_PER_S);
    while (helper_counts(client).sessions > n) {
        assert_true(common_clock_left(end) > 0);
        usleep(10000);
    }
    assert_int_equal(helper_counts(client).sessions, n);
}

static void idle_ones_are_reclaimed(void **state)
{
    (void)state;
    banyan_spec spec = HELPER_SPEC;
    banyan_session *lasting = helper_session(client, &spec, NULL);
    spec.idle_ttl_ns = UINT64_C(2000000000);
    banyan_session *idle = helper_session(client, &spec, "idle");
    helper_fill(client, idle, 0, 20);
    wait_for_sessions(1);
    FAILS(BANYAN_NOT_FOUND, helper_step(client, idle, 19, 1, false));
    OK(helper_step(client, lasting, 0, 1, true));
    banyan_session_close(idle);
    drop(lasting);
}

// Rows on their way to a worker are not seen by the coordinator: the ticket keeps the session. The other
// session is the younger one, so where it is gone the first would be too. A ticket's life here is the
// default, minutes.
static void a_ticket_is_use(void **state)
{
    (void)state;
    banyan_spec spec = HELPER_SPEC;
    spec.idle_ttl_ns = UINT64_C(2000000000);
    banyan_session *attaching = helper_session(client, &spec, NULL);
    OK(banyan_attach(attaching, 0, 0, 10, helper_zeros, helper_zeros, &helper_error));
    banyan_session *idle = helper_session(client, &spec, NULL);
    wait_for_sessions(1);
    OK(banyan_commit(attaching, 0, 0, 10, &helper_error));
    FAILS(BANYAN_NOT_FOUND, helper_step(client, idle, 0, 1, true));
    banyan_session_close(idle);
    drop(attaching);
}

// Steps, forks and truncates of one session at once: each gets an answer that fits a moment of the session.
static void many_at_once(void **state)
{
    (void)state;
    enum { CALLS = 300 };
    banyan_spec spec = HELPER_SPEC;
    banyan_session *s = helper_session(client, &spec, NULL), *forks[10];
    helper_fill(client, s, 0, 40);
    static banyan_item items[CALLS];
    static float o[CALLS][4 * 16], lse[CALLS][4];
    for (int i = 0; i < CALLS; i++) {
        items[i] = helper_item(s, 20, 1, false);
        items[i].o = o[i];
        items[i].lse = lse[i];
        items[i].error = NULL;
        OK(banyan_attend_queue(client, &items[i], 1, 0, &items[i], &helper_error));
        if (i % 30 == 29) {
            OK(banyan_session_fork(s, 33, NULL, &forks[i / 30], &helper_error));
            OK(banyan_session_truncate(s, 30 + (uint64_t)(i / 30) % 3, &helper_error));
            helper_fill(client, s, helper_length(s), 40 - helper_length(s));
        }
    }
    for (int got = 0; got < CALLS;) {
        banyan_completion done[16];
        size_t n = banyan_poll(client, done, 16);
        for (size_t k = 0; k < n; k++) {
            assert_int_equal(done[k].code, BANYAN_OK);
            assert_int_equal(done[k].items[0].code, BANYAN_OK);
        }
        got += (int)n;
        if (!n)
            usleep(1000);
    }
    for (int i = 0; i < 10; i++) {
        assert_int_equal(helper_length(forks[i]), 33);
        OK(helper_step(client, forks[i], 32, 1, false));
        drop(forks[i]);
    }
    drop(s);
}

// Kill the coordinator between any two operations: what was answered is there, and the service goes on.
static void the_coordinator_dies(void **state)
{
    (void)state;
    banyan_spec spec = HELPER_SPEC;
    spec.members = 2;
    spec.layers = 2;
    banyan_session *s = helper_session(client, &spec, "survivor"), *fork = NULL;
    banyan_session_info info;
    uint64_t incarnation = 0;
    for (int life = 0; life < 4; life++) {
        uint64_t at = 30 * (uint64_t)life;
        for (uint32_t l = 0; l < 2; l++) {
            OK(banyan_attach(s, l, at, 20, helper_zeros, helper_zeros, &helper_error));
            OK(banyan_commit(s, l, at, 20, &helper_error));
        }
        for (uint32_t l = 0; l < 2; l++) {
            banyan_item item = helper_item(s, at + 20, 15, true);
            item.layer = l;
            OK(banyan_attend(client, &item, 1, 0, NULL, &helper_error));
            assert_int_equal(item.code, BANYAN_OK);
        }
        if (life == 1)
            OK(banyan_session_fork(s, 50, "branch", &fork, &helper_error));
        if (life == 2)
            assert_int_equal(helper_length(fork), 50);
        OK(banyan_session_truncate(s, at + 30, &helper_error));
        OK(banyan_session_get_info(s, &info, &helper_error));
        assert_true(info.incarnation > incarnation);
        incarnation = info.incarnation;
        banyan_session_info_free(&info);
        harness_cluster_signal(cluster, HARNESS_COORDINATOR, SIGKILL);
        assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
        OK(banyan_session_get_info(s, &info, &helper_error));
        assert_int_equal(info.incarnation, incarnation);
        assert_int_equal(info.length, at + 30);
        assert_string_equal(info.state, "active");
        banyan_session_info_free(&info);
    }
    drop(fork);
    drop(s);
}

static bool lives_at(banyan_session *s, uint32_t worker)
{
    banyan_session_info info;
    OK(banyan_session_get_info(s, &info, &helper_error));
    bool there = !strcmp(info.members[0], harness_cluster_worker_name(cluster, worker));
    banyan_session_info_free(&info);
    return there;
}

// A worker that dies takes its part of one session with it, and of no other; a session that never lived there
// does not notice.
static void a_worker_dies(void **state)
{
    (void)state;
    banyan_spec spec = HELPER_SPEC;
    spec.members = 1;
    banyan_session *s[6];
    uint32_t dead = 0, hurt = 0, elsewhere = 0;
    for (int i = 0; i < 6; i++) {
        s[i] = helper_session(client, &spec, NULL);
        helper_fill(client, s[i], 0, 40);
    }
    while (!lives_at(s[0], dead))
        dead++;
    while (!elsewhere) { // chance has a say in where a session begins
        for (int i = 1; i < 6; i++)
            elsewhere += !lives_at(s[i], dead);
        if (elsewhere)
            break;
        drop(s[5]);
        s[5] = helper_session(client, &spec, NULL);
        helper_fill(client, s[5], 0, 40);
    }
    harness_cluster_signal(cluster, dead, SIGKILL);
    for (int i = 0; i < 6; i++) {
        if (!lives_at(s[i], dead)) {
            OK(helper_step(client, s[i], 39, 1, false));
            continue;
        }
        hurt++;
        FAILS(BANYAN_UNAVAILABLE, helper_step(client, s[i], 39, 1, false));
        assert_string_equal(helper_error.reason, "MISSING_RANGE");
        assert_string_equal(helper_error.worker, harness_cluster_worker_name(cluster, dead));
        assert_true(helper_error.n_ranges == 1 && helper_error.ranges[0].first == 0 &&
                    helper_error.ranges[0].count == 40);
        FAILS(BANYAN_UNAVAILABLE, helper_step(client, s[i], 40, 1, true));
    }
    assert_true(hurt > 0 && hurt < 6);
    assert_true(harness_cluster_restart(cluster, dead)); // another process: what the old one held is gone
    for (int i = 0; i < 6; i++) {
        banyan_code code = helper_step(client, s[i], 39, 1, false);
        assert_true(code == BANYAN_OK || code == BANYAN_DATA_LOSS);
        hurt -= code == BANYAN_DATA_LOSS;
        if (code == BANYAN_DATA_LOSS) {
            FAILS(BANYAN_DATA_LOSS, helper_step(client, s[i], 40, 1, true));
            OK(banyan_session_truncate(s[i], 0, &helper_error)); // an operator decides: it starts again
            helper_fill(client, s[i], 0, 20);
        }
        drop(s[i]);
    }
    assert_int_equal(hurt, 0);
}

// A worker that hangs is lost by its heartbeats; when it goes on it is the same process and has everything.
static void a_worker_hangs(void **state)
{
    (void)state;
    banyan_spec spec = HELPER_SPEC;
    spec.members = 3;
    banyan_session *s = helper_session(client, &spec, NULL);
    helper_fill(client, s, 0, 100);
    harness_cluster_signal(cluster, 1, SIGSTOP);
    banyan_code code = BANYAN_OK;
    while (code == BANYAN_OK) // the signal may take a moment
        code = helper_step(client, s, 99, 1, false);
    assert_int_equal(code, BANYAN_UNAVAILABLE);
    harness_cluster_signal(cluster, 1, SIGCONT);
    while (code == BANYAN_UNAVAILABLE) {
        usleep(10000);
        code = helper_step(client, s, 99, 1, false);
    }
    assert_int_equal(code, BANYAN_OK);
    drop(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(many_sessions),
        cmocka_unit_test(truncate_and_go_on),
        cmocka_unit_test(forks_share_and_part),
        cmocka_unit_test(an_empty_fork),
        cmocka_unit_test(too_far),
        cmocka_unit_test(idle_ones_are_reclaimed),
        cmocka_unit_test(a_ticket_is_use),
        cmocka_unit_test(many_at_once),
        cmocka_unit_test(the_coordinator_dies),
        cmocka_unit_test(a_worker_dies),
        cmocka_unit_test(a_worker_hangs),
    };
    return group_run(tests, start, stop);
}
