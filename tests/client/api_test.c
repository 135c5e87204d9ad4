// SPDX-License-Identifier: Apache-2.0
// The whole public API against a real cluster (one coordinator, three workers as processes), over each
// transport: argv[1]. Here the cluster and the life of sessions; the others are in api_attention.c and
// api_flight.c.
#include <math.h>
#include <string.h>

#include "tests/client/api.h"

static void test_cluster(void **state)
{
    (void)state;
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(api_client, &info, err));
    assert_string_equal(info.version, banyan_version());
    assert_int_equal(info.n_workers, 3);
    assert_true(info.term > 0);
    for (uint32_t i = 0; i < info.n_workers; i++) {
        assert_string_equal(info.workers[i].state, "active");
        assert_in_range(info.workers[i].capacity_bytes, 1, UINT64_C(64) << 20);
        assert_true(info.workers[i].bandwidth > 0);
    }
    banyan_cluster_info_free(&info);
    uint64_t rtt;
    OK(banyan_ping(api_client, &rtt, err));
}

static void test_session_life(void **state)
{
    (void)state;
    banyan_session *session, *again, *by_name, *none = NULL;
    banyan_session_info info;
    banyan_session_list list;
    banyan_error error;
    float slopes[4] = {0.1f, 0.2f, 0.3f, 0.4f};
    banyan_spec spec = api_spec;
    spec.alibi = slopes;
    OK(banyan_session_create(api_client, &spec, "a name", &session, err));
    uint64_t id = banyan_session_id(session);
    assert_int_not_equal(id, 0);
    assert_int_equal(banyan_session_create(api_client, &spec, "a name", &none, &error),
                     BANYAN_ALREADY_EXISTS);
    OK(banyan_session_open(api_client, id, NULL, &again, err));
    OK(banyan_session_open(api_client, 0, "a name", &by_name, err));
    assert_int_equal(banyan_session_id(by_name), id);
    assert_memory_equal(banyan_session_spec(again)->alibi, slopes, sizeof slopes);
    assert_int_equal(banyan_session_spec(again)->k_dim, 16);
    OK(banyan_session_get_info(again, &info, err));
    assert_string_equal(info.name, "a name");
    assert_int_equal(info.id, id);
    assert_int_equal(info.n_layers, 2);
    assert_int_equal(info.length, 0);
    banyan_session_info_free(&info);
    banyan_session_memory memory;
    OK(banyan_session_get_memory(again, &memory, err));
    assert_int_equal(memory.bytes + memory.shared_bytes + memory.n_holdings, 0);
    banyan_session_memory_free(&memory);
    banyan_session_memory_free(NULL);
    assert_int_equal(banyan_session_get_memory(again, NULL, &error), BANYAN_INVALID_ARGUMENT);
    OK(banyan_session_get_list(api_client, &list, err));
    unsigned seen = 0;
    for (uint32_t i = 0; i < list.n; i++)
        seen += list.sessions[i].id == id;
    assert_int_equal(seen, 1);
    banyan_session_list_free(&list);
    banyan_session_close(again);
    OK(banyan_session_get_info(by_name, &info, err)); // closing one hold leaves the others
    banyan_session_info_free(&info);
    OK(banyan_session_delete(session, err));
    assert_int_equal(banyan_session_delete(session, &error), BANYAN_NOT_FOUND);
    assert_int_equal(banyan_session_get_info(by_name, &info, &error), BANYAN_NOT_FOUND);
    assert_int_equal(banyan_session_get_memory(by_name, &memory, &error), BANYAN_NOT_FOUND);
    assert_int_equal(banyan_session_open(api_client, id, NULL, &none, &error), BANYAN_NOT_FOUND);
    assert_int_equal(banyan_session_open(api_client, 0, "a name", &none, &error), BANYAN_NOT_FOUND);
    assert_int_equal(banyan_session_open(api_client, 0, NULL, &none, &error), BANYAN_INVALID_ARGUMENT);
    assert_null(none);
    struct mirror *m = mirror_new(&api_spec, 4, 1);
    assert_int_equal(api_ask(session, m, 0, 0, 1, true, &error), BANYAN_NOT_FOUND);
    assert_int_equal(banyan_attach(session, 0, 0, 4, mirror_k(m, 0, 0), mirror_v(m, 0, 0), &error),
                     BANYAN_NOT_FOUND);
    mirror_free(m);
    banyan_session_close(by_name);
    banyan_session_close(session);
}

static void test_bad_specs(void **state)
{
    (void)state;
    banyan_session *none = NULL;
    banyan_error error;
    banyan_spec spec = api_spec;
    spec.kv_heads = 3;
    assert_int_equal(banyan_session_create(api_client, &spec, NULL, &none, &error), BANYAN_INVALID_ARGUMENT);
    spec = api_spec;
    spec.k_dim = 0;
    assert_int_equal(banyan_session_create(api_client, &spec, NULL, &none, &error), BANYAN_INVALID_ARGUMENT);
    spec = api_spec;
    spec.layers = 100000;
    assert_int_equal(banyan_session_create(api_client, &spec, NULL, &none, &error), BANYAN_INVALID_ARGUMENT);
    spec = api_spec;
    spec.chunk_tokens = 100;
    assert_int_equal(banyan_session_create(api_client, &spec, NULL, &none, &error), BANYAN_INVALID_ARGUMENT);
    spec = api_spec;
    spec.kv_type = 9;
    assert_int_equal(banyan_session_create(api_client, &spec, NULL, &none, &error), BANYAN_INVALID_ARGUMENT);
    spec = api_spec;
    spec.scale = NAN;
    assert_int_equal(banyan_session_create(api_client, &spec, NULL, &none, &error), BANYAN_INVALID_ARGUMENT);
    assert_null(none);
}

static void test_truncate(void **state)
{
    (void)state;
    banyan_spec spec = api_spec;
    spec.members = 2;
    banyan_session *session = api_session(&spec), *other;
    struct mirror *m = mirror_new(&spec, 900, 40);
    banyan_error error;
    api_attach(session, m, 0, 800);
    OK(banyan_session_open(api_client, banyan_session_id(session), NULL, &other, err));
    OK(banyan_session_truncate(session, 300, err)); // inside a sealed chunk
    assert_int_equal(api_ask(session, m, 0, 300, 1, false, &error), BANYAN_OUT_OF_RANGE);
    api_check(session, m, 1, 299, 1, false);
    // Another history from there on.
    mirror_change(m, 300, 41);
    api_check(session, m, 0, 300, 3, true);
    api_check(session, m, 1, 300, 3, true);
    api_attach(session, m, 303, 597);
    api_check(session, m, 0, 899, 1, false);
    // A hold that has not received it gets an error, and the answer when it asks.
    assert_int_equal(api_ask(other, m, 0, 899, 1, false, &error), BANYAN_ABORTED);
    assert_int_equal(banyan_attach(other, 0, 0, 10, mirror_k(m, 0, 0), mirror_v(m, 0, 0), &error),
                     BANYAN_ABORTED);
    banyan_session_info info;
    OK(banyan_session_get_info(other, &info, err));
    assert_int_equal(info.length, 900);
    banyan_session_info_free(&info);
    api_check(other, m, 0, 899, 1, false);
    assert_int_equal(banyan_session_truncate(session, 5000, &error), BANYAN_OUT_OF_RANGE);
    api_check(session, m, 0, 899, 1, false);
    OK(banyan_session_truncate(session, 0, err));
    api_check(session, m, 0, 0, 5, true);
    banyan_session_close(other);
    mirror_free(m);
    api_drop(session);
}

static void test_fork(void **state)
{
    (void)state;
    banyan_spec spec = api_spec;
    spec.members = 3;
    banyan_session *session = api_session(&spec), *fork, *none = NULL;
    struct mirror *m = mirror_new(&spec, 900, 50), *branch = mirror_new(&spec, 900, 50);
    banyan_error error;
    api_attach(session, m, 0, 800);
    OK(banyan_session_fork(session, 700, "a fork", &fork, err));
    mirror_change(branch, 700, 51);
    for (uint32_t layer = 0; layer < 2; layer++) {
        api_check(fork, branch, layer, 699, 1, false);
        api_check(fork, branch, layer, 700, 2, true);
        api_check(session, m, layer, 800, 2, true); // each goes its own way
    }
    api_check(fork, branch, 0, 701, 1, false);
    api_check(session, m, 0, 801, 1, false);
    assert_int_equal(banyan_session_fork(session, 5000, NULL, &none, &error), BANYAN_OUT_OF_RANGE);
    assert_int_equal(banyan_session_fork(session, 10, "a fork", &none, &error), BANYAN_ALREADY_EXISTS);
    api_drop(session); // what is shared stays
    api_check(fork, branch, 1, 701, 1, false);
    mirror_free(m);
    mirror_free(branch);
    api_drop(fork);
}

static void test_plan(void **state)
{
    (void)state;
    banyan_spec spec = api_spec;
    spec.members = 3;
    banyan_session *session = api_session(&spec);
    struct mirror *m = mirror_new(&spec, 1024, 60);
    api_attach(session, m, 0, 1024);
    banyan_plan_info plan;
    OK(banyan_session_get_plan(session, &plan, err));
    assert_int_equal(plan.n_nodes, 3);
    assert_string_equal(plan.engine, "stream");
    uint64_t tokens = 0;
    unsigned roots = 0;
    for (uint32_t i = 0; i < plan.n_nodes; i++) {
        tokens += plan.nodes[i].tokens;
        roots += plan.nodes[i].parent < 0;
    }
    assert_int_equal(tokens, 1024);
    assert_int_equal(roots, 1);
    banyan_plan_info_free(&plan);
    mirror_free(m);
    api_drop(session);
}

static int start_cluster(void **state)
{
    (void)state;
    api_cluster = harness_cluster_start(&(struct harness_options){.workers = 3, .memory = "64M"});
    return api_cluster ? 0 : -1;
}

static int stop_cluster(void **state)
{
    (void)state;
    int problems = harness_cluster_stop(api_cluster);
    api_cluster = NULL;
    return problems;
}

int main(int argc, char **argv)
{
    api_transport = argc > 1 ? argv[1] : "unix";
#define TEST(name) cmocka_unit_test_setup_teardown(name, api_connect, api_disconnect)
    const struct CMUnitTest tests[] = {
        TEST(test_cluster),
        TEST(test_session_life),
        TEST(test_bad_specs),
        TEST(test_attach_any_order_in_parallel),
        TEST(test_commit_names_what_is_missing),
        TEST(test_commit_compares_bytes),
        TEST(test_decode_token_by_token),
        TEST(test_positions_beyond),
        TEST(test_kinds_of_attention),
        TEST(test_quantised),
        TEST(test_scales_where_they_belong),
        TEST(test_prefill_block_in_slabs),
        TEST(test_batch_over_sessions),
        TEST(test_truncate),
        TEST(test_fork),
        TEST(test_plan),
        TEST(test_ten_thousand_in_flight),
        TEST(test_queue),
        TEST(test_disconnect_in_flight),
        TEST(test_full_memory),
    };
    return cmocka_run_group_tests_name(api_transport, tests, start_cluster, stop_cluster);
}
