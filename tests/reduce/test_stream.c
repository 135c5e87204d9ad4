// SPDX-License-Identifier: Apache-2.0
// What the engine `stream` promises beyond the conformance suite: credits, answers that do not fit,
// deadlines, links that never come.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "common/base/clock.h"
#include "tests/reduce/ranks.h"

static const struct shape SHAPES[] = {{1, 4, 8}, {3, 2, 5}};
#define N_SHAPES 2

static const int32_t STAR[] = {-1, 0, 0, 0};

static struct ranks *start(const int32_t *parents, uint32_t frames, uint32_t queue, uint32_t absent)
{
    const struct ranks_options options = {.ops = &reduce_engine_stream,
                                          .n = 4,
                                          .parents = parents,
                                          .edge_frames_max = frames,
                                          .edge_queue_max = queue,
                                          .absent = absent};
    return ranks_start(&options);
}

// Edges link when their first step goes: later steps of a test find them up.
static void link_up(struct ranks *ranks)
{
    struct script script = SCRIPT_PLAIN;
    struct reduce_outcome outcome;
    struct proto_step *step = step_new(0, &script, SHAPES, N_SHAPES);
    ranks_run(ranks, step, &outcome);
    assert_int_equal(outcome.code, COMMON_OK);
    assert_int_equal(outcome.result->items[0].code, COMMON_OK);
    outcome_clear(&outcome);
    step_free(step);
}

static void assert_lost(const struct proto_step *step, const struct reduce_outcome *outcome,
                        enum common_code code, const char *reason, uint32_t rank)
{
    assert_int_equal(outcome->code, COMMON_OK);
    for (uint32_t i = 0; i < step->n_items; i++) {
        assert_int_equal(outcome->result->items[i].code, code);
        assert_string_equal(outcome->result->items[i].reason, reason);
        assert_string_equal(outcome->result->items[i].worker, ranks_name(rank));
        assert_identity(step, i, outcome);
    }
}

static void test_credits_bound_what_is_outstanding(void **state)
{
    (void)state;
    enum { STEPS = 60 };
    struct proto_step *steps[STEPS];
    struct ranks_call *calls[STEPS];
    struct script script = SCRIPT_PLAIN;
    script.delay_us = 500;
    struct ranks *ranks = start(STAR, 3, 0, NO_RANK);
    for (uint32_t i = 0; i < STEPS; i++) {
        steps[i] = step_new(i + 1, &script, SHAPES, N_SHAPES);
        calls[i] = ranks_begin(ranks, steps[i]);
    }
    for (uint32_t i = 0; i < STEPS; i++) {
        struct reduce_outcome outcome;
        struct expected expected;
        ranks_wait(calls[i], &outcome);
        expect(steps[i], &script, STAR, 4, &expected);
        assert_expected(steps[i], &outcome, &expected);
        expected_clear(&expected);
        outcome_clear(&outcome);
        step_free(steps[i]);
    }
    for (uint32_t child = 1; child < 4; child++) {
        struct reduce_edge_stats stats;
        struct ranks_counts counts;
        ranks_edge_stats(ranks, 0, child, &stats);
        assert_int_equal(stats.outstanding_max, 3);
        assert_int_equal(stats.outstanding, 0);
        assert_int_equal(stats.waiting, 0);
        assert_int_equal(stats.sent, STEPS);
        ranks_counts_get(ranks, child, &counts);
        assert_false(counts.out_of_order);
    }
    ranks_stop(ranks);
}

static void test_a_full_queue_refuses(void **state)
{
    (void)state;
    struct proto_step *steps[4];
    struct ranks_call *calls[4];
    struct reduce_outcome outcome;
    struct script script = SCRIPT_PLAIN;
    struct ranks *ranks = start(STAR, 1, 2, NO_RANK);
    link_up(ranks);
    script.hang = 2;
    for (uint32_t i = 0; i < 4; i++) { // one is sent to rank 2, two wait, the fourth finds no room
        steps[i] = step_new(i + 2, &script, SHAPES, N_SHAPES);
        calls[i] = ranks_begin(ranks, steps[i]);
        ranks_await_idle(ranks, 0, 1);
        ranks_await_idle(ranks, 0, 3);
    }
    ranks_wait(calls[3], &outcome);
    assert_lost(steps[3], &outcome, COMMON_RESOURCE_EXHAUSTED, "", 2);
    outcome_clear(&outcome);
    for (uint32_t i = 3; i-- > 0;) { // those that wait first
        ranks_cancel(calls[i]);
        ranks_wait(calls[i], &outcome);
        assert_int_equal(outcome.code, COMMON_CANCELLED);
    }
    ranks_await_cancelled(ranks, 2, 1);
    for (uint32_t i = 0; i < 4; i++)
        step_free(steps[i]);

    script.hang = NO_RANK; // all credits came back
    struct proto_step *last = step_new(9, &script, SHAPES, N_SHAPES);
    ranks_run(ranks, last, &outcome);
    assert_int_equal(outcome.result->items[0].code, COMMON_OK);
    outcome_clear(&outcome);
    step_free(last);
    struct reduce_edge_stats stats;
    ranks_edge_stats(ranks, 0, 2, &stats);
    assert_int_equal(stats.outstanding, 0);
    assert_int_equal(stats.waiting, 0);
    ranks_stop(ranks);
}

// A cancelled step gives its credit to the one that waits, and not to one that comes in the same breath.
static void test_cancel_hands_the_credit_on(void **state)
{
    (void)state;
    struct reduce_outcome outcome;
    struct script script = SCRIPT_PLAIN;
    struct ranks *ranks = start(STAR, 1, 0, NO_RANK);
    link_up(ranks);
    script.hang = 2;
    struct proto_step *stuck = step_new(1, &script, SHAPES, N_SHAPES);
    script.hang = NO_RANK;
    struct proto_step *next[2] = {step_new(2, &script, SHAPES, N_SHAPES),
                                  step_new(3, &script, SHAPES, N_SHAPES)};
    struct ranks_call *first = ranks_begin(ranks, stuck), *calls[2];
    calls[0] = ranks_begin(ranks, next[0]);
    calls[1] = ranks_cancel_and_begin(first, next[1]);
    ranks_wait(first, &outcome);
    assert_int_equal(outcome.code, COMMON_CANCELLED);
    for (uint32_t i = 0; i < 2; i++) {
        struct expected expected;
        ranks_wait(calls[i], &outcome);
        expect(next[i], &script, STAR, 4, &expected);
        assert_expected(next[i], &outcome, &expected);
        expected_clear(&expected);
        outcome_clear(&outcome);
        step_free(next[i]);
    }
    for (uint32_t child = 1; child < 4; child++) {
        struct ranks_counts counts;
        ranks_counts_get(ranks, child, &counts);
        assert_false(counts.out_of_order);
    }
    step_free(stuck);
    ranks_stop(ranks);
}

static void test_an_answer_that_does_not_fit(void **state)
{
    (void)state;
    struct reduce_outcome outcome;
    struct script script = SCRIPT_PLAIN;
    struct ranks *ranks = start(STAR, 0, 0, NO_RANK);
    script.wrong = 2;
    struct proto_step *step = step_new(1, &script, SHAPES, N_SHAPES);
    ranks_run(ranks, step, &outcome);
    assert_lost(step, &outcome, COMMON_INTERNAL, "", 2);
    outcome_clear(&outcome);
    step_free(step);
    ranks_stop(ranks);
}

static void test_an_answer_with_bytes_behind_it(void **state)
{
    (void)state;
    struct reduce_outcome outcome;
    struct script script = SCRIPT_PLAIN;
    struct ranks *ranks = start(STAR, 0, 0, NO_RANK);
    script.large = 2;
    struct proto_step *step = step_new(1, &script, SHAPES, N_SHAPES);
    ranks_run(ranks, step, &outcome);
    assert_lost(step, &outcome, COMMON_INTERNAL, "", 2);
    outcome_clear(&outcome);
    step_free(step);
    ranks_stop(ranks);
}

// Of two that fail the first in the order of ranks is reported, whichever was first in time.
static void test_the_first_failure_is_told(void **state)
{
    (void)state;
    struct reduce_outcome outcome;
    struct script script = SCRIPT_PLAIN;
    struct ranks *ranks = start(STAR, 0, 0, NO_RANK);
    script.wrong = 2;
    script.hang = 3;
    struct proto_step *step = step_new(1, &script, SHAPES, N_SHAPES);
    step->deadline_ns = common_clock_after(300 * COMMON_NS_PER_MS);
    ranks_run(ranks, step, &outcome);
    assert_lost(step, &outcome, COMMON_INTERNAL, "", 2);
    outcome_clear(&outcome);
    step_free(step);
    ranks_stop(ranks);
}

// A trace of a rank comes from the child above it: what another child says about it is dropped.
static void test_a_child_traces_its_own_ranks(void **state)
{
    (void)state;
    struct reduce_outcome outcome;
    struct script script = SCRIPT_PLAIN;
    struct ranks *ranks = start(STAR, 0, 0, NO_RANK);
    script.alias = 1;
    struct proto_step *step = step_new(1, &script, SHAPES, N_SHAPES);
    ranks_run(ranks, step, &outcome);
    assert_int_equal(outcome.code, COMMON_OK);
    assert_int_equal(outcome.result->n_traces, 3);
    for (uint32_t i = 0; i < outcome.result->n_traces; i++)
        assert_string_equal(outcome.result->traces[i].worker, ranks_name(outcome.result->traces[i].rank));
    outcome_clear(&outcome);
    step_free(step);
    ranks_stop(ranks);
}

static void test_a_silent_child_fails_at_the_deadline(void **state)
{
    (void)state;
    struct reduce_outcome outcome;
    struct script script = SCRIPT_PLAIN;
    struct ranks *ranks = start(STAR, 0, 0, NO_RANK);
    script.hang = 3;
    struct proto_step *step = step_new(1, &script, SHAPES, N_SHAPES);
    step->deadline_ns = common_clock_after(300 * COMMON_NS_PER_MS);
    ranks_run(ranks, step, &outcome);
    assert_lost(step, &outcome, COMMON_DEADLINE_EXCEEDED, "WORKER_LOST", 3);
    outcome_clear(&outcome);
    step_free(step);
    ranks_stop(ranks);
}

static void test_a_frame_that_waits_fails_at_its_deadline(void **state)
{
    (void)state;
    struct reduce_outcome outcome;
    struct script script = SCRIPT_PLAIN;
    struct ranks *ranks = start(STAR, 1, 0, NO_RANK);
    link_up(ranks);
    script.hang = 3;
    struct proto_step *sent = step_new(1, &script, SHAPES, N_SHAPES),
                      *waiting = step_new(2, &script, SHAPES, N_SHAPES);
    waiting->deadline_ns = common_clock_after(300 * COMMON_NS_PER_MS);
    struct ranks_call *first = ranks_begin(ranks, sent), *second = ranks_begin(ranks, waiting);
    ranks_wait(second, &outcome); // the first one keeps the credit
    assert_lost(waiting, &outcome, COMMON_DEADLINE_EXCEEDED, "WORKER_LOST", 3);
    outcome_clear(&outcome);
    ranks_cancel(first);
    ranks_wait(first, &outcome);
    assert_int_equal(outcome.code, COMMON_CANCELLED);
    step_free(sent);
    step_free(waiting);
    ranks_stop(ranks);
}

static void test_frames_that_wait_fail_with_their_link(void **state)
{
    (void)state;
    struct proto_step *steps[3];
    struct ranks_call *calls[3];
    struct script script = SCRIPT_PLAIN;
    struct ranks *ranks = start(STAR, 1, 0, NO_RANK);
    link_up(ranks);
    script.hang = 3;
    for (uint32_t i = 0; i < 3; i++) {
        steps[i] = step_new(i + 1, &script, SHAPES, N_SHAPES);
        calls[i] = ranks_begin(ranks, steps[i]);
    }
    ranks_vanish(ranks, 3);
    for (uint32_t i = 0; i < 3; i++) {
        struct reduce_outcome outcome;
        ranks_wait(calls[i], &outcome);
        assert_lost(steps[i], &outcome, COMMON_UNAVAILABLE, "WORKER_LOST", 3);
        outcome_clear(&outcome);
        step_free(steps[i]);
    }
    ranks_stop(ranks);
}

// A child that was never there: UNAVAILABLE after the grace, not the deadline of a minute.
static void test_a_link_that_never_comes(void **state)
{
    (void)state;
    const int32_t chain[] = {-1, 0, 1, 2};
    struct script script = SCRIPT_PLAIN;
    struct ranks *ranks = start(chain, 0, 0, 2);
    for (uint32_t i = 0; i < 3; i++) {
        struct reduce_outcome outcome;
        struct proto_step *step = step_new(i + 1, &script, SHAPES, N_SHAPES);
        ranks_run(ranks, step, &outcome);
        assert_lost(step, &outcome, COMMON_UNAVAILABLE, "WORKER_LOST", 2);
        outcome_clear(&outcome);
        step_free(step);
    }
    ranks_stop(ranks);
}

// Shapes whose partials have no size or pass what a frame carries.
static void test_steps_without_size_are_refused(void **state)
{
    (void)state;
    struct script script = SCRIPT_PLAIN;
    struct ranks *ranks = start(STAR, 0, 0, NO_RANK);
    const struct shape bad[] = {{1, 0, 8}, {1, 8, 0}, {4096, 65535, 65535}, {1, UINT32_MAX, UINT32_MAX}};
    for (uint32_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct reduce_outcome outcome;
        struct proto_step *step = step_new(i + 1, &script, &bad[i], 1);
        ranks_run(ranks, step, &outcome);
        assert_int_equal(outcome.code, COMMON_INVALID_ARGUMENT);
        step_free(step);
    }
    ranks_stop(ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_credits_bound_what_is_outstanding),
        cmocka_unit_test(test_a_full_queue_refuses),
        cmocka_unit_test(test_cancel_hands_the_credit_on),
        cmocka_unit_test(test_an_answer_that_does_not_fit),
        cmocka_unit_test(test_an_answer_with_bytes_behind_it),
        cmocka_unit_test(test_the_first_failure_is_told),
        cmocka_unit_test(test_a_child_traces_its_own_ranks),
        cmocka_unit_test(test_a_silent_child_fails_at_the_deadline),
        cmocka_unit_test(test_a_frame_that_waits_fails_at_its_deadline),
        cmocka_unit_test(test_frames_that_wait_fail_with_their_link),
        cmocka_unit_test(test_a_link_that_never_comes),
        cmocka_unit_test(test_steps_without_size_are_refused),
    };
    return cmocka_run_group_tests_name("reduce/stream", tests, NULL, NULL);
}
