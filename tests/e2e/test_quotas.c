// SPDX-License-Identifier: Apache-2.0
// Quotas of two tenants on one cluster, by libbanyan and banyanctl: what one may not have the other gets;
// refusals say which quota, how much and when; they hold at once and over restarts; and a flood of one leaves
// the other's bits alone.
#include "tests/e2e/support.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/e2e/banyanctl.h"
#include "tests/e2e/token_files.h"

static struct harness_cluster *cluster;

// ---- clients ----------------------------------------------------------------------------------------------

static void make_tokens(void)
{
    banyan_client *anybody, *admin;
    OK(banyan_connect(harness_cluster_endpoint(cluster, "unix"), NULL, &anybody, ERR));
    token_files_of(cluster);
    token_make(anybody, "root", "admin", NULL);
    banyan_disconnect(anybody);
    admin = token_client("root", "unix");
    token_make(admin, "a", "user", "a");
    token_make(admin, "b", "user", "b");
    token_make(admin, "op", "operator", NULL);
    banyan_disconnect(admin);
}

static void quota_set(banyan_client *admin, const char *tenant, const char *name, uint64_t max)
{
    banyan_quota quota = {.max = max};
    banyan_tenant_quotas now;
    snprintf(quota.name, sizeof quota.name, "%s", name);
    OK(banyan_quota_set(admin, tenant, &quota, 1, &now, ERR));
    assert_string_equal(now.tenant, tenant);
    for (uint32_t i = 0; i < now.n; i++)
        if (!strcmp(now.quotas[i].name, name))
            assert_int_equal(now.quotas[i].max, max);
}

static banyan_quota quota_of(banyan_client *client, const char *tenant, const char *name)
{
    banyan_quota_list list;
    banyan_quota found = {.max = UINT64_MAX};
    OK(banyan_quota_get_list(client, tenant, &list, ERR));
    assert_int_equal(list.n, 1);
    assert_string_equal(list.tenants[0].tenant, tenant);
    for (uint32_t i = 0; i < list.tenants[0].n; i++)
        if (!strcmp(list.tenants[0].quotas[i].name, name))
            found = list.tenants[0].quotas[i];
    banyan_quota_list_free(&list);
    return found;
}

static const banyan_spec spec = {.layers = 1,
                                 .q_heads = 2,
                                 .kv_heads = 1,
                                 .k_dim = 16,
                                 .v_dim = 16,
                                 .kv_type = BANYAN_F32,
                                 .chunk_tokens = 16};

static float rows[256 * 16];

static banyan_session *make_session(banyan_client *client, const char *name, uint64_t tokens)
{
    banyan_session *session;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        rows[i] = (float)(i % 7) / 7;
    OK(banyan_session_create(client, &spec, name, &session, ERR));
    OK(banyan_attach(session, 0, 0, tokens, rows, rows, ERR));
    OK(banyan_commit(session, 0, 0, tokens, ERR));
    return session;
}

static void drop(banyan_session *session)
{
    OK(banyan_session_delete(session, ERR));
    banyan_session_close(session);
}

static const float query[2 * 16] = {1, 2, 3};

static banyan_code one_step(banyan_client *client, banyan_session *session, uint64_t first, float o[2 * 16],
                            uint64_t *digest)
{
    banyan_item item = {.session = session, .first = first, .rows = 1, .q = query, .o = o, .error = ERR};
    banyan_code code = banyan_attend(client, &item, 1, 0, NULL, ERR);
    *digest = item.digest;
    return code != BANYAN_OK ? code : item.code;
}

// ---- the tests --------------------------------------------------------------------------------------------

// Who may set and see them.
static void whose_they_are(void **state)
{
    (void)state;
    banyan_client *admin = token_client("root", "unix"), *a = token_client("a", "tcp"),
                  *op = token_client("op", "nng+tcp");
    banyan_quota quota = {.name = "sessions", .max = 1};
    banyan_quota_list list;
    FAILS(BANYAN_PERMISSION_DENIED, NULL, banyan_quota_set(a, "a", &quota, 1, NULL, ERR));
    FAILS(BANYAN_PERMISSION_DENIED, NULL, banyan_quota_set(op, "a", &quota, 1, NULL, ERR));
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_quota_set(admin, "c", &quota, 1, NULL, ERR));
    FAILS(BANYAN_INVALID_ARGUMENT, NULL, banyan_quota_set(admin, "a", &quota, 0, NULL, ERR));
    OK(banyan_quota_get_list(a, NULL, &list, ERR)); // its own
    assert_int_equal(list.n, 1);
    assert_string_equal(list.tenants[0].tenant, "a");
    banyan_quota_list_free(&list);
    OK(banyan_quota_get_list(op, NULL, &list, ERR));
    assert_int_equal(list.n, 3); // default, a, b
    banyan_quota_list_free(&list);
    // Another tenant is what never was.
    char never[sizeof ERR->message];
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_quota_get_list(a, "x", &list, ERR));
    snprintf(never, sizeof never, "%s", ERR->message);
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_quota_get_list(a, "b", &list, ERR));
    assert_non_null(strstr(never, " x:"));
    strstr(never, " x:")[1] = 'b';
    assert_string_equal(ERR->message, never);
    banyan_disconnect(admin);
    banyan_disconnect(a);
    banyan_disconnect(op);
}

static void one_is_held_to_them_and_the_other_is_not(void **state)
{
    (void)state;
    banyan_client *admin = token_client("root", "unix"), *a = token_client("a", "tcp"),
                  *b = token_client("b", "unix");
    float o[2 * 16];
    uint64_t digest;
    quota_set(admin, "a", "sessions", 1);
    banyan_session *theirs = make_session(a, "s", 32), *ours = make_session(b, "s", 32), *more;
    FAILS(BANYAN_RESOURCE_EXHAUSTED, "QUOTA", banyan_session_create(a, &spec, "t", &more, ERR));
    assert_non_null(strstr(ERR->message, "the quota sessions of tenant a, 1 sessions, is reached"));
    assert_non_null(strstr(ERR->message, "(banyanctl quota set a --sessions N)"));
    FAILS(BANYAN_RESOURCE_EXHAUSTED, "QUOTA", banyan_session_fork(theirs, 16, "t", &more, ERR));
    OK(banyan_session_create(b, &spec, "t", &more, ERR));
    drop(more);
    // Memory: as much as it has now.
    quota_set(admin, "a", "bytes", quota_of(a, "a", "bytes").used);
    FAILS(BANYAN_RESOURCE_EXHAUSTED, "QUOTA", banyan_attach(theirs, 0, 32, 48, rows, rows, ERR));
    OK(banyan_attach(ours, 0, 32, 48, rows, rows, ERR));
    OK(banyan_commit(ours, 0, 32, 48, ERR));
    OK(one_step(a, theirs, 31, o, &digest)); // what is there goes on
    // Steps a second: no more than two seconds' worth while it tries, and the error says when.
    quota_set(admin, "a", "steps_per_s", 20);
    unsigned good = 0, refused = 0;
    uint64_t until = support_now_ns() + UINT64_C(1000000000);
    while (support_now_ns() < until) {
        banyan_code code = one_step(a, theirs, 31, o, &digest);
        good += code == BANYAN_OK;
        if (code == BANYAN_OK)
            continue;
        FAILS(BANYAN_RESOURCE_EXHAUSTED, "QUOTA", code);
        assert_in_range(ERR->retry_ns, 1, 51 * 1000000);
        refused++;
    }
    assert_true(refused == 0 || good >= 20);
    assert_true(good <= 20 + 20 * (support_now_ns() - until + UINT64_C(2000000000)) / 1000000000u);
    for (int i = 0; i < 100; i++)
        OK(one_step(b, ours, 31, o, &digest));
    assert_int_equal(quota_of(admin, "a", "steps_per_s").refused, refused);
    assert_int_equal(quota_of(admin, "b", "steps_per_s").refused, 0);
    assert_int_equal(quota_of(admin, "a", "steps_in_flight").used, 0);
    quota_set(admin, "a", "steps_per_s", 0);
    drop(theirs);
    drop(ours);
    assert_int_equal(quota_of(admin, "a", "bytes").used, 0);
    quota_set(admin, "a", "sessions", 0);
    quota_set(admin, "a", "bytes", 0);
    banyan_disconnect(a);
    banyan_disconnect(b);
    banyan_disconnect(admin);
}

// Over every transport, until one goes.
static void connections_are_counted(void **state)
{
    (void)state;
    static const char *const transports[] = {"unix", "tcp", "nng+tcp"};
    banyan_client *admin = token_client("root", "unix"), *held[3], *more;
    EVENTUALLY(30, quota_of(admin, "a", "connections").used == 0); // those of the tests before are gone
    banyan_session_list list;
    quota_set(admin, "a", "connections", 3);
    for (int i = 0; i < 3; i++) {
        held[i] = token_client("a", transports[i]);
        OK(banyan_session_get_list(held[i], &list, ERR));
        banyan_session_list_free(&list);
    }
    assert_int_equal(quota_of(admin, "a", "connections").used, 3);
    for (int i = 0; i < 3; i++) {
        banyan_code code = token_connect("a", transports[i], &more);
        assert_int_equal(code, BANYAN_RESOURCE_EXHAUSTED);
        assert_non_null(strstr(ERR->message, "the quota connections of tenant a, 3 connections, is reached"));
    }
    banyan_client *other = token_client("b", "tcp");
    banyan_disconnect(other);
    banyan_disconnect(held[0]);
    EVENTUALLY(30, quota_of(admin, "a", "connections").used == 2);
    held[0] = token_client("a", "tcp");
    quota_set(admin, "a", "connections", 0);
    for (int i = 0; i < 3; i++)
        banyan_disconnect(held[i]);
    EVENTUALLY(30, quota_of(admin, "a", "connections").used == 0);
    banyan_disconnect(admin);
}

struct wave {
    banyan_client *client;
    banyan_item item;
    float o[2 * 16];
};

static atomic_bool ebb;
static atomic_uint out, done;

static void again(void *arg, banyan_code code, const banyan_error *error, banyan_item *items, size_t n)
{
    struct wave *w = arg;
    (void)error;
    atomic_fetch_add(&done, code == BANYAN_OK);
    if (atomic_load(&ebb) || banyan_attend_async(w->client, items, n, 0, again, w, NULL) != BANYAN_OK)
        atomic_fetch_sub(&out, 1);
}

// Thousands of steps of a are outstanding: b's go on, and have the bits that they have alone; a's quota of
// steps in flight holds it to what it says. How many frames a step waits is counted where time stands still
// (coordinator_hermetic_test).
static void a_flood_leaves_the_other_alone(void **state)
{
    (void)state;
    enum { WAVES = 3000 };
    static struct wave waves[WAVES];
    banyan_client *admin = token_client("root", "unix"), *a = token_client("a", "unix"),
                  *b = token_client("b", "tcp");
    banyan_session *theirs = make_session(a, NULL, 200), *ours = make_session(b, NULL, 200);
    float alone[2 * 16], o[2 * 16];
    uint64_t digest, other;
    OK(one_step(b, ours, 199, alone, &digest));
    atomic_store(&ebb, false);
    atomic_store(&out, WAVES);
    for (int i = 0; i < WAVES; i++) {
        waves[i] =
            (struct wave){.client = a,
                          .item = {.session = theirs, .first = 199, .rows = 1, .q = query, .o = waves[i].o}};
        OK(banyan_attend_async(a, &waves[i].item, 1, 0, again, &waves[i], ERR));
    }
    for (int i = 0; i < 50; i++) {
        OK(one_step(b, ours, 199, o, &other));
        assert_memory_equal(o, alone, sizeof o);
        assert_int_equal(other, digest);
    }
    assert_true(atomic_load(&done) > 0);
    quota_set(admin, "a", "steps_in_flight", 16);
    EVENTUALLY(60, quota_of(admin, "a", "steps_in_flight").refused > 0);
    EVENTUALLY(60, quota_of(admin, "a", "steps_in_flight").used <= 16);
    atomic_store(&ebb, true);
    EVENTUALLY(60, atomic_load(&out) == 0);
    quota_set(admin, "a", "steps_in_flight", 0);
    drop(theirs);
    drop(ours);
    banyan_disconnect(a);
    banyan_disconnect(b);
    banyan_disconnect(admin);
}

static void they_are_kept(void **state)
{
    (void)state;
    banyan_client *admin = token_client("root", "unix"), *a = token_client("a", "unix");
    banyan_session *session = make_session(a, "kept", 20), *more;
    uint64_t bytes = quota_of(a, "a", "bytes").used;
    quota_set(admin, "a", "sessions", 1);
    quota_set(admin, "a", "watches", 3);
    quota_set(admin, "a", "watches", 0);
    harness_cluster_signal(cluster, HARNESS_COORDINATOR, 9);
    assert_true(harness_cluster_restart(cluster, HARNESS_COORDINATOR));
    assert_int_equal(quota_of(admin, "a", "sessions").max, 1);
    assert_int_equal(quota_of(admin, "a", "sessions").used, 1);
    assert_int_equal(quota_of(admin, "a", "watches").max, 0);
    assert_int_equal(quota_of(admin, "a", "bytes").used, bytes);
    FAILS(BANYAN_RESOURCE_EXHAUSTED, "QUOTA", banyan_session_create(a, &spec, "t", &more, ERR));
    drop(session);
    banyan_disconnect(a);
    banyan_disconnect(admin);
}

static void banyanctl_sets_and_shows_them(void **state)
{
    (void)state;
    char line[400];
    snprintf(line, sizeof line, "--token-file %s quota set b --memory 10G --steps-per-second 100",
             token_file("root"));
    banyanctl_expect(cluster, 0, "10.0 GiB", line, NULL);
    snprintf(line, sizeof line, "--token-file %s quota show b", token_file("root"));
    banyanctl_expect(cluster, 0, "steps per second", line, NULL);
    snprintf(line, sizeof line, "--token-file %s --json quota show", token_file("b"));
    struct harness_output shown = banyanctl_run(cluster, line, NULL);
    assert_int_equal(shown.exit_code, 0);
    assert_non_null(strstr(shown.out, "\"tenant\": \"b\""));
    assert_non_null(strstr(shown.out, "10737418240"));
    assert_null(strstr(shown.out, "\"a\""));
    harness_output_free(&shown);
    snprintf(line, sizeof line, "--token-file %s quota set b --sessions 1", token_file("b"));
    banyanctl_expect(cluster, 7, "does not permit Coordinator.QuotaSet", line, NULL);
    snprintf(line, sizeof line, "--token-file %s quota set b", token_file("root"));
    banyanctl_expect(cluster, 2, "nothing to set", line, NULL);
    snprintf(line, sizeof line, "--token-file %s quota set b --memory 0 --steps-per-second 0",
             token_file("root"));
    banyanctl_expect(cluster, 0, "no limit", line, NULL);
}

int main(void)
{
    cluster = support_start(&(struct harness_options){.workers = 1});
    make_tokens();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whose_they_are),
        cmocka_unit_test(one_is_held_to_them_and_the_other_is_not),
        cmocka_unit_test(connections_are_counted),
        cmocka_unit_test(a_flood_leaves_the_other_alone),
        cmocka_unit_test(banyanctl_sets_and_shows_them),
        cmocka_unit_test(they_are_kept),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    support_stop(cluster);
    return failed;
}
