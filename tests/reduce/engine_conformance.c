// SPDX-License-Identifier: Apache-2.0
#include "tests/reduce/engine_conformance.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "reduce/topology.h"
#include "tests/reduce/ranks.h"

static bool is_collective; // partials are carried outside of the answers

static const struct shape SHAPES[] = {{1, 4, 8}, {3, 2, 5}, {1, 32, 128}, {2, 1, 64}};
#define N_SHAPES 4

static const struct reduce_engine_ops *ops_of(void **state)
{
    return *state;
}

// Parents of a tree of n ranks, from the shapes that plans use.
static void tree_of(uint32_t n, uint32_t fan, int32_t *parents)
{
    struct reduce_node nodes[RANKS_MAX];
    uint32_t scratch[RANKS_MAX + 1];
    reduce_topology_join(1, &n, fan, 1, nodes, scratch);
    for (uint32_t r = 0; r < n; r++)
        parents[r] = nodes[r].parent;
}

// Steps of that number until all ranks take part in them.
static void await_collective(struct ranks *ranks, uint32_t n, uint64_t number)
{
    struct script script = SCRIPT_PLAIN;
    uint32_t joined = 0;
    for (int tries = 0; joined != n; tries++) {
        struct reduce_outcome outcome;
        struct proto_step *step = step_new(number, &script, SHAPES, 1);
        ranks_run(ranks, step, &outcome);
        assert_int_equal(outcome.code, COMMON_OK);
        joined = outcome.result->joined;
        outcome_clear(&outcome);
        step_free(step);
        if (tries > 10000)
            fail_msg("%u ranks of %u take part", joined, n);
        usleep(2000);
    }
}

static struct ranks *start(void **state, uint32_t n, const int32_t *parents)
{
    const struct ranks_options options = {
        .ops = ops_of(state), .n = n, .parents = parents, .absent = NO_RANK};
    struct ranks *ranks = ranks_start(&options);
    if (is_collective && n > 1)
        await_collective(ranks, n, 0);
    return ranks;
}

static void run_and_compare_as(struct ranks *ranks, const struct proto_step *step, const int32_t *parents,
                               uint32_t n, bool joined)
{
    struct script script;
    struct reduce_outcome outcome;
    struct expected expected;
    memcpy(&script, step->q, sizeof script);
    ranks_run(ranks, step, &outcome);
    expect(step, &script, parents, n, &expected);
    assert_expected(step, &outcome, &expected);
    if (is_collective && n > 1 && joined)
        assert_int_equal(outcome.result->joined, n); // it did not go by stream
    expected_clear(&expected);
    outcome_clear(&outcome);
}

static void run_and_compare(struct ranks *ranks, const struct proto_step *step, const int32_t *parents,
                            uint32_t n)
{
    run_and_compare_as(ranks, step, parents, n, true);
}

// ---- tests --------------------------------------------------------------------------------------

static void test_equals_the_sequential_merge(void **state)
{
    const uint32_t sizes[] = {1, 2, 3, 4, 7}, fans[] = {1, 2, 6, REDUCE_FAN_BINOMIAL};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (size_t f = 0; f < sizeof fans / sizeof *fans; f++) {
            int32_t parents[RANKS_MAX];
            tree_of(sizes[s], fans[f], parents);
            struct ranks *ranks = start(state, sizes[s], parents);
            for (uint32_t i = 0; i < 3; i++) {
                struct script script = SCRIPT_PLAIN;
                script.seed = 100 * sizes[s] + i;
                struct proto_step *step = step_new(i + 1, &script, SHAPES, N_SHAPES);
                run_and_compare(ranks, step, parents, sizes[s]);
                step_free(step);
            }
            ranks_stop(ranks);
        }
    }
}

// The same step under many orders of arrival: ranks contribute after delays drawn for each.
static void test_order_of_arrival_does_not_matter(void **state)
{
    const int32_t parents[] = {-1, 0, 0, 2, 0, 4, 4};
    struct ranks *ranks = start(state, 7, parents);
    for (uint32_t i = 0; i < 40; i++) {
        struct script script = SCRIPT_PLAIN;
        script.seed = 5;
        script.delay_us = 1 + i % 4 * 700;
        struct proto_step *step = step_new(i + 1, &script, SHAPES, N_SHAPES);
        run_and_compare(ranks, step, parents, 7);
        step_free(step);
    }
    ranks_stop(ranks);
}

static void test_ranks_that_hold_nothing(void **state)
{
    const int32_t parents[] = {-1, 0, 0, 2};
    struct ranks *ranks = start(state, 4, parents);
    for (uint32_t mask = 0; mask < 16; mask++) { // all of them at last: the identity comes out
        struct script script = SCRIPT_PLAIN;
        script.identity = mask;
        struct proto_step *step = step_new(mask + 1, &script, SHAPES, N_SHAPES);
        run_and_compare(ranks, step, parents, 4);
        step_free(step);
    }
    ranks_stop(ranks);
}

static void test_failed_items_fail_alone(void **state)
{
    const int32_t parents[] = {-1, 0, 0, 2};
    struct ranks *ranks = start(state, 4, parents);
    for (uint16_t rank = 0; rank < 4; rank++) {
        for (uint16_t item = 0; item < N_SHAPES; item++) {
            struct script script = SCRIPT_PLAIN;
            script.n_fails = 1;
            script.fails[0].rank = rank;
            script.fails[0].item = item;
            struct proto_step *step = step_new(1u + rank * N_SHAPES + item, &script, SHAPES, N_SHAPES);
            run_and_compare(ranks, step, parents, 4);
            step_free(step);
        }
    }
    ranks_stop(ranks);
}

static void test_the_first_failure_in_rank_order_wins(void **state)
{
    const int32_t parents[] = {-1, 0, 0, 2};
    struct ranks *ranks = start(state, 4, parents);
    struct script script = SCRIPT_PLAIN;
    script.delay_us = 1000;
    script.n_fails = 4;
    for (uint16_t i = 0; i < 4; i++) {
        script.fails[i].rank = (uint16_t)(3 - i / 2 * 2); // ranks 3, 3, 1, 1
        script.fails[i].item = i % 2;
    }
    for (uint32_t i = 0; i < 10; i++) {
        struct proto_step *step = step_new(i + 1, &script, SHAPES, N_SHAPES);
        struct reduce_outcome outcome;
        ranks_run(ranks, step, &outcome);
        assert_int_equal(outcome.code, COMMON_OK);
        assert_string_equal(outcome.result->items[0].worker, "w1");
        assert_string_equal(outcome.result->items[1].worker, "w1");
        assert_int_equal(outcome.result->items[2].code, COMMON_OK);
        outcome_clear(&outcome);
        step_free(step);
    }
    ranks_stop(ranks);
}

static void test_every_item_may_fail(void **state)
{
    const int32_t parents[] = {-1, 0, 0};
    struct ranks *ranks = start(state, 3, parents);
    struct script script = SCRIPT_PLAIN;
    script.n_fails = 4;
    for (uint16_t i = 0; i < 4; i++) {
        script.fails[i].rank = 0;
        script.fails[i].item = i;
    }
    struct proto_step *step = step_new(1, &script, SHAPES, N_SHAPES);
    run_and_compare(ranks, step, parents, 3);
    step_free(step);
    ranks_stop(ranks);
}

static void test_many_steps_in_flight(void **state)
{
    enum { STEPS = 200 };
    static struct proto_step *steps[STEPS];
    static struct ranks_call *calls[STEPS];
    const int32_t parents[] = {-1, 0, 0, 2, 0, 4, 4};
    struct script script = SCRIPT_PLAIN;
    script.delay_us = 2000;
    struct ranks *ranks = start(state, 7, parents);
    struct ranks_counts before[7];
    for (uint32_t r = 1; r < 7; r++)
        ranks_counts_get(ranks, r, &before[r]);
    for (uint32_t i = 0; i < STEPS; i++) {
        steps[i] = step_new(i + 1, &script, SHAPES, 1 + i % N_SHAPES);
        calls[i] = ranks_begin(ranks, steps[i]);
    }
    for (uint32_t i = 0; i < STEPS; i++) {
        struct reduce_outcome outcome;
        struct expected expected;
        ranks_wait(calls[i], &outcome);
        expect(steps[i], &script, parents, 7, &expected);
        assert_expected(steps[i], &outcome, &expected);
        expected_clear(&expected);
        outcome_clear(&outcome);
        step_free(steps[i]);
    }
    for (uint32_t r = 1; r < 7; r++) {
        struct ranks_counts counts;
        ranks_counts_get(ranks, r, &counts);
        assert_int_equal(counts.steps - before[r].steps, STEPS);
        assert_false(counts.out_of_order); // later slabs of a session rely on it
    }
    ranks_stop(ranks);
}

static void test_kv_goes_only_towards_holders(void **state)
{
    //  0 ├1 ├2─3 └4 ├5 └6
    const int32_t parents[] = {-1, 0, 0, 2, 0, 4, 4};
    const struct {
        uint32_t holders[2], n;
        bool with_kv[7];
    } cases[] = {
        {{3}, 1, {0, 0, 1, 1, 0, 0, 0}},    {{0}, 1, {0}},
        {{1, 6}, 2, {0, 1, 0, 0, 1, 0, 1}}, {{4}, 1, {0, 0, 0, 0, 1, 0, 0}},
        {{0, 2}, 2, {0, 0, 1, 0, 0, 0, 0}},
    };
    struct ranks *ranks = start(state, 7, parents);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct script script = SCRIPT_PLAIN;
        struct ranks_counts before[7], after;
        for (uint32_t r = 1; r < 7; r++)
            ranks_counts_get(ranks, r, &before[r]);
        struct proto_step *step = step_new(c + 1, &script, SHAPES, N_SHAPES);
        step_append(step, 1, cases[c].holders, cases[c].n);
        run_and_compare(ranks, step, parents, 7); // appends are summed, too
        for (uint32_t r = 1; r < 7; r++) {
            ranks_counts_get(ranks, r, &after);
            assert_int_equal(after.with_kv - before[r].with_kv, cases[c].with_kv[r]);
        }
        step_free(step);
    }
    ranks_stop(ranks);
}

static void test_traces_of_all_ranks(void **state)
{
    const int32_t parents[] = {-1, 0, 0, 2, 0, 4, 4};
    struct ranks *ranks = start(state, 7, parents);
    struct script script = SCRIPT_PLAIN;
    script.delay_us = 1000;
    struct proto_step *step = step_new(1, &script, SHAPES, N_SHAPES);
    struct reduce_outcome outcome;
    ranks_run(ranks, step, &outcome);
    assert_int_equal(outcome.code, COMMON_OK);
    assert_int_equal(outcome.result->n_traces, 7);
    uint32_t seen = 0;
    for (uint32_t i = 0; i < 7; i++) {
        const struct proto_trace *trace = &outcome.result->traces[i];
        seen |= 1u << trace->rank;
        assert_string_equal(trace->worker, ranks_name(trace->rank));
        if (trace->rank == 0 || trace->rank == 2 || trace->rank == 4)
            assert_true(trace->wait_ns > 0); // they merge another's partial
    }
    assert_int_equal(seen, 0x7f);
    outcome_clear(&outcome);
    step->want_trace = false;
    step->step = 2;
    ranks_run(ranks, step, &outcome);
    assert_int_equal(outcome.result->n_traces, 0);
    outcome_clear(&outcome);
    step_free(step);
    ranks_stop(ranks);
}

static void test_a_rank_that_vanishes_fails_the_step(void **state)
{
    const int32_t parents[] = {-1, 0, 0, 2, 0, 4, 4};
    for (uint32_t gone = 1; gone < 7; gone++) {
        struct ranks *ranks = start(state, 7, parents);
        struct script script = SCRIPT_PLAIN;
        struct proto_step *step = step_new(1, &script, SHAPES, N_SHAPES);
        run_and_compare(ranks, step, parents, 7);
        step_free(step);

        // In the middle of a step, and then from its beginning: at once, not at the deadline of a minute.
        script.vanish = gone;
        for (uint32_t i = 0; i < 3; i++) {
            struct reduce_outcome outcome;
            step = step_new(i + 2, &script, SHAPES, N_SHAPES);
            ranks_run(ranks, step, &outcome);
            assert_int_equal(outcome.code, COMMON_OK);
            for (uint32_t k = 0; k < N_SHAPES; k++) {
                assert_int_equal(outcome.result->items[k].code, COMMON_UNAVAILABLE);
                assert_string_equal(outcome.result->items[k].reason, "WORKER_LOST");
                assert_string_equal(outcome.result->items[k].worker, ranks_name(gone));
                assert_identity(step, k, &outcome); // no numbers without it
            }
            outcome_clear(&outcome);
            step_free(step);
        }
        ranks_stop(ranks);
    }
}

// A rank that never begins a step fails it, and no other: those that come next have their answers, whatever
// was carried in an order that this rank has no part in.
static void test_a_rank_that_refuses(void **state)
{
    const int32_t parents[] = {-1, 0, 0, 2};
    for (uint32_t refuse = 1; refuse < 4; refuse++) {
        struct ranks *ranks = start(state, 4, parents);
        struct script script = SCRIPT_PLAIN;
        struct reduce_outcome outcome;
        script.refuse = refuse;
        struct proto_step *step = step_new(1, &script, SHAPES, N_SHAPES);
        ranks_run(ranks, step, &outcome);
        assert_int_equal(outcome.code, COMMON_OK);
        for (uint32_t k = 0; k < N_SHAPES; k++) {
            assert_int_equal(outcome.result->items[k].code, COMMON_RESOURCE_EXHAUSTED);
            assert_string_equal(outcome.result->items[k].worker, ranks_name(refuse));
            assert_identity(step, k, &outcome);
        }
        outcome_clear(&outcome);
        step_free(step);
        script.refuse = NO_RANK;
        for (uint32_t i = 0; i < 20; i++) {
            step = step_new(i + 2, &script, SHAPES, N_SHAPES);
            run_and_compare_as(ranks, step, parents, 4, false);
            step_free(step);
        }
        if (is_collective)
            await_collective(ranks, 4, 100);
        ranks_stop(ranks);
    }
}

static void test_cancel(void **state)
{
    const int32_t parents[] = {-1, 0, 0, 2};
    struct ranks *ranks = start(state, 4, parents);
    for (uint32_t hang = 0; hang < 4; hang++) {
        struct script script = SCRIPT_PLAIN;
        struct reduce_outcome outcome;
        script.hang = hang;
        struct proto_step *step = step_new(2 * hang + 1, &script, SHAPES, N_SHAPES);
        struct ranks_call *call = ranks_begin(ranks, step);
        ranks_cancel(call);
        ranks_wait(call, &outcome);
        assert_int_equal(outcome.code, COMMON_CANCELLED);
        assert_null(outcome.result);
        assert_null(outcome.partials);
        step_free(step);

        script.hang = NO_RANK; // the tree goes on
        step = step_new(2 * hang + 2, &script, SHAPES, N_SHAPES);
        run_and_compare(ranks, step, parents, 4);
        step_free(step);
    }
    ranks_stop(ranks);
}

static void test_close_ends_steps(void **state)
{
    enum { STEPS = 20 };
    struct proto_step *steps[STEPS];
    struct ranks_call *calls[STEPS];
    const int32_t parents[] = {-1, 0, 0, 2};
    struct script script = SCRIPT_PLAIN;
    script.hang = 3;
    struct ranks *ranks = start(state, 4, parents);
    for (uint32_t i = 0; i < STEPS; i++) {
        steps[i] = step_new(i + 1, &script, SHAPES, N_SHAPES);
        calls[i] = ranks_begin(ranks, steps[i]);
    }
    ranks_close_root(ranks);
    for (uint32_t i = 0; i < STEPS; i++) {
        struct reduce_outcome outcome;
        ranks_wait(calls[i], &outcome);
        assert_int_equal(outcome.code, COMMON_CANCELLED);
        step_free(steps[i]);
    }
    ranks_stop(ranks);
}

static void test_bad_groups_are_refused(void **state)
{
    const struct reduce_engine_ops *ops = ops_of(state);
    struct reduce_group_member members[4] = {{.name = "a"}, {.name = "b"}, {.name = "c"}, {.name = "d"}};
    const int32_t bad[][4] = {
        {0, 0, 0, 0},  // no root
        {-1, 0, 2, 0}, // its own parent
        {-1, 3, 0, 0}, // a parent behind
        {-1, 0, 0, 1}, // not contiguous
        {-1, -1, 0, 0} // two roots
    };
    for (uint32_t i = 0; i < 4; i++)
        snprintf(members[i].edge_endpoint, sizeof members[i].edge_endpoint, "unix:///nonexistent/%u", i);
    struct common_loop *loop;
    assert_int_equal(common_loop_new(&loop), COMMON_OK);
    struct common_secret secret = {{0}};
    struct reduce_env env = {.loop = loop, .name = "a", .secret = &secret};
    assert_int_equal(reduce_edges_new(&env, &env.edges), COMMON_OK);
    struct reduce_group *group = NULL;
    struct reduce_group_spec spec = {.plan = 1, .epoch = 1, .n = 4, .members = members};
    for (size_t b = 0; b < sizeof bad / sizeof *bad; b++) {
        for (uint32_t i = 0; i < 4; i++)
            members[i].parent = bad[b][i];
        assert_int_equal(ops->open(&env, &spec, &group, NULL), COMMON_INVALID_ARGUMENT);
    }
    for (uint32_t i = 0; i < 4; i++)
        members[i].parent = (int32_t)i - 1;
    spec.self = 4;
    assert_int_equal(ops->open(&env, &spec, &group, NULL), COMMON_INVALID_ARGUMENT);
    spec.self = 0;
    spec.n = 0;
    assert_int_equal(ops->open(&env, &spec, &group, NULL), COMMON_INVALID_ARGUMENT);
    assert_null(group);
    ops->close(NULL);
    reduce_edges_free(env.edges);
    common_loop_free(loop);
}

int engine_conformance_run(const struct reduce_engine_ops *ops, bool collective)
{
    is_collective = collective;
    void *state = (void *)ops;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_equals_the_sequential_merge, state),
        cmocka_unit_test_prestate(test_order_of_arrival_does_not_matter, state),
        cmocka_unit_test_prestate(test_ranks_that_hold_nothing, state),
        cmocka_unit_test_prestate(test_failed_items_fail_alone, state),
        cmocka_unit_test_prestate(test_the_first_failure_in_rank_order_wins, state),
        cmocka_unit_test_prestate(test_every_item_may_fail, state),
        cmocka_unit_test_prestate(test_many_steps_in_flight, state),
        cmocka_unit_test_prestate(test_kv_goes_only_towards_holders, state),
        cmocka_unit_test_prestate(test_traces_of_all_ranks, state),
        cmocka_unit_test_prestate(test_a_rank_that_vanishes_fails_the_step, state),
        cmocka_unit_test_prestate(test_a_rank_that_refuses, state),
        cmocka_unit_test_prestate(test_cancel, state),
        cmocka_unit_test_prestate(test_close_ends_steps, state),
        cmocka_unit_test_prestate(test_bad_groups_are_refused, state),
    };
    return cmocka_run_group_tests_name(ops->name, tests, NULL, NULL);
}
