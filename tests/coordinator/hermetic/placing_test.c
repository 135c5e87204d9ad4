// SPDX-License-Identifier: Apache-2.0
// Placing: what is left of one that was refused, and of a holder that goes while the others get their
// layouts.
#include "tests/coordinator/hermetic/hermetic.h"

// A chunk without rows whose holder is away must be placed again. The store refuses: the chunk is where it
// was, for when its holder is back.
static void a_chunk_that_is_not_moved_after_all_takes_rows_again(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = session_of(cluster, 16);
    OK(sim_open(cluster->client, session, 16, 16));
    struct sim_worker *holder = holder_of(cluster, session, 16);
    assert_ptr_not_equal(holder, holder_of(cluster, session, 0));
    sim_net_part(NULL, holder->loop);
    sim_advance(COMMON_NS_PER_S); // its grace is over
    sim_disk_fail(SIM_DISK_PATH, 1, COMMON_RESOURCE_EXHAUSTED);
    ENDS(COMMON_RESOURCE_EXHAUSTED, sim_open(cluster->client, session, 16, 16));
    sim_net_mend(NULL, holder->loop);
    assert_true(sim_wait_active(cluster, 2));
    struct sim_call *opened = sim_open(cluster->client, session, 16, 16);
    OK(opened);
    OK(sim_put(cluster->client, opened, 0, 16, 16, 3));
    OK(sim_commit(cluster->client, session, 0, 16, 16));
    assert_ptr_equal(holder_of(cluster, session, 16), holder);
    READS(cluster, session, 32, 16 + 16 * 3);
    sim_cluster_free(cluster);
}

// Memory that was promised to chunks which the store then refused is free for the next ones.
static void a_refused_place_takes_no_memory(void **state)
{
    enum { CHUNK = 4096, CHUNKS = 6 }; // of 4 MiB: more than half of the worker's
    (void)state;
    struct sim_cluster *cluster = cluster_of(1);
    sim_client_dim(cluster->client, 128);
    struct sim_call *created =
        sim_create(cluster->client, (struct sim_shape){.chunk_tokens = CHUNK, .members = 1}, "");
    OK(created);
    for (int i = 0; i < 4; i++) {
        sim_disk_fail(SIM_DISK_PATH, 1, COMMON_UNAVAILABLE);
        ENDS(COMMON_UNAVAILABLE, sim_open(cluster->client, created->session, 0, CHUNKS * CHUNK));
    }
    OK(sim_open(cluster->client, created->session, 0, CHUNKS * CHUNK));
    struct sim_call *past = sim_open(cluster->client, created->session, CHUNKS * CHUNK, CHUNKS * CHUNK);
    ENDS(COMMON_RESOURCE_EXHAUSTED, past); // so the promises of the first do count
    assert_string_equal(past->reason, "LIMIT");
    sim_cluster_free(cluster);
}

// One of the new chunks' holders gets its layout and goes; another one is slow. No client is sent to the one
// that went.
static void a_holder_that_goes_while_another_is_told_is_replaced(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(4);
    uint64_t session = session_of(cluster, 16); // and the chunk after it is placed ahead
    sim_run_until_idle();
    struct sim_worker *others[2] = {NULL, NULL};
    for (int i = 0, n = 0; i < 4; i++)
        if (!sim_worker_holds(cluster->workers[i], session, 0) &&
            !sim_worker_holds(cluster->workers[i], session, 16))
            others[n++] = cluster->workers[i];
    struct sim_worker *goes = others[0], *slow = others[1];
    sim_serve_rule(slow->loop, METHOD(LAYOUT_SET), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    struct sim_call *opened = sim_open(cluster->client, session, 16, 48);
    sim_run_until_idle();
    assert_int_equal(sim_serve_held(slow->loop), 1);
    assert_true(sim_worker_holds(goes, session, 32) != sim_worker_holds(goes, session, 48));
    sim_net_part(NULL, goes->loop);
    sim_advance(COMMON_NS_PER_S); // its grace is over
    assert_false(opened->done);
    sim_serve_let_go(slow->loop);
    OK(opened);
    OK(sim_put(cluster->client, opened, 0, 16, 48, 3));
    OK(sim_commit(cluster->client, session, 0, 16, 48));
    READS(cluster, session, 64, 16 + 48 * 3);
    sim_net_mend(NULL, goes->loop);
    assert_true(sim_wait_active(cluster, 4));
    assert_int_equal(tokens_held(cluster, session), 64);
    READS(cluster, session, 64, 16 + 48 * 3);
    sim_cluster_free(cluster);
}

int hermetic_placing(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chunk_that_is_not_moved_after_all_takes_rows_again),
        cmocka_unit_test(a_refused_place_takes_no_memory),
        cmocka_unit_test(a_holder_that_goes_while_another_is_told_is_replaced),
    };
    return cmocka_run_group_tests_name("placing", tests, NULL, NULL);
}
