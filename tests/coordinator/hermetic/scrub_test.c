// SPDX-License-Identifier: Apache-2.0
// Copies are compared with their seals: on request, and regularly.
#include "coordinator/check/seals.h"
#include "tests/coordinator/hermetic/hermetic.h"
#include "tests/coordinator/hermetic/sealed.h"

#include "coordinator/cluster/membership.h"
#include "proto/rpc/rpc.h"
#include "worker/core/state.h"

#define SECOND COMMON_NS_PER_S

// A request for all chunks of all sessions takes many turns, each of them bounded, and others are served in
// between.
static void a_scrub_takes_many_turns(void **state)
{
    (void)state;
    enum { SESSIONS = 5, CHUNKS = 8, SLICE = 3, COST = 64 /* of a chunk without a seal */ };
    struct sim_cluster *cluster = cluster_of(3);
    uint64_t sessions[SESSIONS];
    for (int i = 0; i < SESSIONS; i++)
        sessions[i] = sealed_new(cluster, 2, CHUNKS * 16 + 5);
    struct coordinator_seals *seals = cluster->coordinator->sessions.seals;
    seals->slice = SLICE;
    seals->passed_most = 0;
    struct sim_call *all = sim_scrub(cluster->client, 0, false);
    struct sim_call *one = sim_scrub(cluster->client, sessions[3], true);
    struct sim_call *info = sim_info(cluster->client, sessions[0]);
    OK(info);
    assert_false(all->done);
    OK(all);
    assert_int_equal(all->sealed, SESSIONS * CHUNKS);
    OK(one);
    assert_int_equal(one->sealed, CHUNKS);
    assert_true(seals->passed_most >= SLICE && seals->passed_most < SLICE + COST);
    assert_int_equal(sealed_scrub(cluster, 0)->corrupt, 0); // all of them have been compared
    // Sessions go meanwhile: the others are counted.
    all = sim_scrub(cluster->client, 0, true);
    for (int i = 0; i < 3; i++)
        OK(sim_delete(cluster->client, sessions[i]));
    OK(all);
    assert_true(all->sealed >= 2 * CHUNKS && all->sealed <= SESSIONS * CHUNKS);
    // The coordinator stops meanwhile.
    all = sim_scrub(cluster->client, 0, true);
    sim_advance(COMMON_NS_PER_MS);
    assert_non_null(seals->asked);
    sim_coordinator_stop(cluster);
    ENDS(COMMON_UNAVAILABLE, all);
    sim_cluster_free(cluster);
}

// No one can tell whose rows are right: each scrub reports that, as long as it is so, and has them asked
// again.
static void a_dispute_is_shown(void **state)
{
    (void)state;
    for (uint32_t store = 0; store < 2; store++) {
        struct sim_cluster *cluster =
            sim_cluster_new(&(struct sim_cluster_options){.workers = 2, .store = store});
        sim_cluster_start(cluster);
        uint64_t session = sealed_wrongly(cluster, 2, store ? 3 : 1); // with files: both are wrong
        sim_advance(5 * SECOND);
        struct sim_call *call = sealed_scrub(cluster, session);
        assert_int_equal(call->differ, 1);
        assert_int_equal(call->unsealed, 1);
        assert_int_equal(call->disputed, 2); // now, and when it was full
        assert_int_equal(call->lost + call->corrupt, 0);
        struct sim_call *fork = sim_fork(cluster->client, session, 32, "f");
        OK(fork);
        assert_int_equal(sealed_scrub(cluster, fork->session)->differ, 1);
        OK(sim_truncate(cluster->client, session, 16));
        OK(call = sim_scrub(cluster->client, session, true));
        assert_int_equal(call->differ, 0);
        for (uint32_t copy = 0; copy < 2; copy++) // right again
            if (copy == 0 || store)
                assert_true(sim_worker_flip_chunk(copy_of(cluster, fork->session, 1, copy),
                                                  sealed_chunk(cluster, fork->session, 1)->id, 0, 5 + copy,
                                                  22));
        call = sealed_scrub(cluster, fork->session);
        assert_int_equal(call->differ + call->unsealed, 0);
        assert_true(sealed_seal(cluster, fork->session, 1) != 0);
        sim_cluster_free(cluster);
    }
}

static uint32_t told_wrong;

static void tell_wrong(void *arg, struct proto_request *request)
{
    Banyan__Pb__ChunkSumReply reply = BANYAN__PB__CHUNK_SUM_REPLY__INIT;
    (void)arg;
    told_wrong++;
    reply.seal = 4711;
    proto_request_reply(request, &reply.base, NULL, 0, NULL, NULL);
}

// A memory that is right when it is looked at again loses nothing: not even the only copy.
static void it_is_looked_at_twice(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = sealed_new(cluster, 1, 32);
    told_wrong = 0;
    sim_serve_rule(copy_of(cluster, session, 0, 0)->loop, METHOD(CHUNK_SUM),
                   (struct sim_rule){.verdict = SIM_TELL, .times = 1, .tell = tell_wrong});
    struct sim_call *call = sealed_scrub(cluster, session);
    assert_int_equal(told_wrong, 1);
    assert_true(call->corrupt == 0 && call->lost == 0);
    READS(cluster, session, 32, 32);
    sim_cluster_free(cluster);
}

// What was read before a request does not answer the request.
static void who_asks_while_it_is_compared_has_it_compared_again(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = sealed_new(cluster, 2, 16), before;
    rule_all(cluster, METHOD(CHUNK_SUM), (struct sim_rule){.verdict = SIM_HOLD});
    OK(sim_scrub(cluster->client, session, false));
    sim_advance(SECOND);
    OK(sim_scrub(cluster->client, session, false)); // what is being read was right a moment ago
    rule_all(cluster, METHOD(CHUNK_SUM), (struct sim_rule){.verdict = SIM_DO});
    before = cluster->coordinator->sessions.seals->compared;
    let_go_all(cluster);
    sim_advance(10 * SECOND);
    struct sim_call *call = sim_scrub(cluster->client, session, true);
    OK(call);
    assert_int_equal(call->unchecked, 0);
    assert_int_equal(cluster->coordinator->sessions.seals->compared, before + 4);
    sim_cluster_free(cluster);
}

// A fork compares what it cuts while that is being compared anyway: the end of the one check is not that of
// the other, so no third begins.
static void two_checks_of_one_chunk(void **state)
{
    (void)state;
    struct sim_cluster *cluster = cluster_of(2);
    uint64_t session = sealed_new(cluster, 2, 16), seen = 0, later = 0;
    rule_all(cluster, METHOD(CHUNK_SUM), (struct sim_rule){.verdict = SIM_HOLD, .times = 1});
    OK(sim_scrub(cluster->client, session, false));
    for (int i = 0; held_all(cluster) < 2 && i < 100; i++)
        sim_advance(10 * COMMON_NS_PER_MS);
    assert_int_equal(held_all(cluster), 2);
    OK(sim_fork(cluster->client, session, 10, ""));
    for (uint32_t i = 0; i < 2; i++)
        seen += sim_serve_seen(cluster->workers[i]->loop, METHOD(CHUNK_SUM));
    assert_int_equal(seen, 2 * 3);
    OK(sim_scrub(cluster->client, session, false));
    sim_advance(SECOND);
    for (uint32_t i = 0; i < 2; i++)
        later += sim_serve_seen(cluster->workers[i]->loop, METHOD(CHUNK_SUM));
    assert_int_equal(later, seen); // the first one is under way
    let_go_all(cluster);
    sealed_scrub(cluster, session);
    assert_int_equal(sealed_chunk(cluster, session, 0)->checking, 0);
    assert_int_equal(cluster->coordinator->sessions.seals->n, 0);
    sim_cluster_free(cluster);
}

static uint64_t scrub_ns;

static void set_scrub(struct coordinator_options *options)
{
    options->heartbeat_ns = 100 * COMMON_NS_PER_MS;
    options->scrub_ns = scrub_ns;
}

// Each once in so long, without a request; and never, where it is turned off.
static void it_goes_on_by_itself(void **state)
{
    (void)state;
    for (uint32_t on = 0; on < 2; on++) {
        scrub_ns = on ? 20 * SECOND : 0;
        struct sim_cluster *cluster =
            sim_cluster_new(&(struct sim_cluster_options){.workers = 3, .tune = set_scrub});
        sim_cluster_start(cluster);
        uint64_t session = sealed_new(cluster, 2, 16 * 32);
        const struct coordinator_seals *seals = cluster->coordinator->sessions.seals;
        uint64_t before = seals->compared, in_a_part;
        sim_advance(5 * SECOND);
        in_a_part = seals->compared - before;
        sim_advance(15 * SECOND);
        uint64_t in_all = seals->compared - before;
        if (on)
            assert_true(in_a_part > 0 && in_a_part < 40 && in_all >= 60 && in_all <= 68); // of 64 copies
        else
            assert_int_equal(in_all, 0);
        sealed_flip(cluster, session, 7, 1);
        sim_advance(25 * SECOND);
        assert_int_equal(seals->corrupt, on);
        sim_cluster_free(cluster);
    }
}

int hermetic_scrub(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_scrub_takes_many_turns),
        cmocka_unit_test(a_dispute_is_shown),
        cmocka_unit_test(it_is_looked_at_twice),
        cmocka_unit_test(who_asks_while_it_is_compared_has_it_compared_again),
        cmocka_unit_test(two_checks_of_one_chunk),
        cmocka_unit_test(it_goes_on_by_itself),
    };
    return cmocka_run_group_tests_name("scrub", tests, NULL, NULL);
}
