// SPDX-License-Identifier: Apache-2.0
// turn.h on its own: a loop of the simulator, and six phases that write down that they ran.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdlib.h>
#include <string.h>

#include "coordinator/turn.h"
#include "tests/sim/sim.h"

#define WORKERS  COORDINATOR_PHASE_WORKERS
#define PLANS    COORDINATOR_PHASE_PLANS
#define SESSIONS COORDINATOR_PHASE_SESSIONS
#define STEPS    COORDINATOR_PHASE_STEPS
#define FRAMES   COORDINATOR_PHASE_FRAMES

struct ground {
    struct common_loop *loop;
    struct coordinator_turn turn;
    char ran[64]; // a letter for each phase, in order: w p s t f; digits are completions
    struct phase {
        struct ground *ground;
        char letter;
        unsigned marks; // bits: what this phase marks when it runs next
        bool drains;    // it asks for a drain inside the drain
    } phases[COORDINATOR_PHASES];
};

static void write_down(struct ground *ground, char letter)
{
    size_t n = strlen(ground->ran);
    assert_true(n + 1 < sizeof ground->ran);
    ground->ran[n] = letter;
}

static void drain(void *arg)
{
    struct phase *phase = arg;
    unsigned marks = phase->marks;
    phase->marks = 0;
    write_down(phase->ground, phase->letter);
    for (unsigned p = 0; p < COORDINATOR_PHASES; p++)
        if (marks & (1u << p))
            coordinator_turn_mark(&phase->ground->turn, (enum coordinator_phase)p);
    if (phase->drains)
        coordinator_turn_drain(&phase->ground->turn);
}

static int set_up(void **state)
{
    struct ground *ground = calloc(1, sizeof *ground);
    assert_non_null(ground);
    sim_begin(0);
    assert_int_equal(common_loop_new(&ground->loop), COMMON_OK);
    assert_int_equal(coordinator_turn_init(&ground->turn, ground->loop), COMMON_OK);
    for (unsigned p = WORKERS; p < COORDINATOR_PHASES; p++) {
        ground->phases[p] = (struct phase){.ground = ground, .letter = "-wpstf"[p]};
        coordinator_turn_set(&ground->turn, (enum coordinator_phase)p, drain, &ground->phases[p]);
    }
    *state = ground;
    return 0;
}

static int tear_down(void **state)
{
    struct ground *ground = *state;
    coordinator_turn_fini(&ground->turn);
    common_loop_free(ground->loop);
    sim_end();
    free(ground);
    return 0;
}

static void phases_run_from_the_bottom_to_the_top(void **state)
{
    struct ground *ground = *state;
    for (unsigned p = FRAMES; p >= WORKERS; p--)
        coordinator_turn_mark(&ground->turn, (enum coordinator_phase)p);
    assert_string_equal(ground->ran, ""); // nothing on the stack of the mark
    sim_run_until_idle();
    assert_string_equal(ground->ran, "wpstf");
    sim_run_until_idle();
    assert_string_equal(ground->ran, "wpstf"); // once
}

static void a_phase_that_is_not_marked_does_not_run(void **state)
{
    struct ground *ground = *state;
    coordinator_turn_mark(&ground->turn, SESSIONS);
    sim_run_until_idle();
    assert_string_equal(ground->ran, "s");
}

static void marks_of_a_drain_run_in_the_same_turn_from_the_lowest(void **state)
{
    struct ground *ground = *state;
    ground->phases[WORKERS].marks = 1u << FRAMES | 1u << SESSIONS; // upward
    ground->phases[STEPS].marks = 1u << WORKERS | 1u << STEPS;     // downward, and itself
    coordinator_turn_mark(&ground->turn, STEPS);
    coordinator_turn_mark(&ground->turn, FRAMES);
    sim_run_until_idle();
    assert_string_equal(ground->ran, "twstf");
    assert_int_equal(ground->turn.turns, 1);
}

static void mark_handler(void *arg)
{
    struct ground *ground = arg;
    coordinator_turn_mark(&ground->turn, PLANS);
    coordinator_turn_mark(&ground->turn, STEPS);
}

static void handlers_that_are_ready_together_share_a_turn(void **state)
{
    struct ground *ground = *state;
    static struct common_mail mails[100];
    for (int i = 0; i < 100; i++)
        common_loop_mail(ground->loop, &mails[i], mark_handler, ground);
    sim_run_until_idle();
    assert_string_equal(ground->ran, "pt");
    assert_int_equal(ground->turn.turns, 1);
    common_loop_mail(ground->loop, &mails[0], mark_handler, ground);
    sim_run_until_idle();
    assert_string_equal(ground->ran, "ptpt");
    assert_int_equal(ground->turn.turns, 2);
}

struct ending {
    struct coordinator_completion completion;
    struct ground *ground;
    char digit;
    struct ending *then; // completed by this one
    unsigned marks;
};

static void ending_run(void *arg)
{
    struct ending *ending = arg;
    struct ground *ground = ending->ground;
    write_down(ground, ending->digit);
    if (ending->then)
        coordinator_turn_complete(&ground->turn, &ending->then->completion);
    if (ending->marks)
        coordinator_turn_mark(&ground->turn, (enum coordinator_phase)ending->marks);
    free(ending); // it is the caller's
}

static struct ending *ending_new(struct ground *ground, char digit)
{
    struct ending *ending = calloc(1, sizeof *ending);
    assert_non_null(ending);
    *ending =
        (struct ending){.completion = {.fn = ending_run, .arg = ending}, .ground = ground, .digit = digit};
    return ending;
}

static void completions_run_first_and_in_their_order(void **state)
{
    struct ground *ground = *state;
    struct ending *first = ending_new(ground, '1'), *second = ending_new(ground, '2');
    coordinator_turn_mark(&ground->turn, WORKERS);
    coordinator_turn_complete(&ground->turn, &first->completion);
    coordinator_turn_complete(&ground->turn, &second->completion);
    assert_string_equal(ground->ran, ""); // never on the stack of its caller
    sim_run_until_idle();
    assert_string_equal(ground->ran, "12w");
}

static void a_completion_may_complete_another_and_mark(void **state)
{
    struct ground *ground = *state;
    struct ending *first = ending_new(ground, '1'), *second = ending_new(ground, '2');
    first->then = ending_new(ground, '3');
    first->marks = FRAMES;
    first->then->marks = PLANS;
    coordinator_turn_complete(&ground->turn, &first->completion);
    coordinator_turn_complete(&ground->turn, &second->completion);
    sim_run_until_idle();
    assert_string_equal(ground->ran, "123pf");
    assert_int_equal(ground->turn.turns, 1);
}

static void drain_completes(void *arg)
{
    struct ending *ending = arg;
    write_down(ending->ground, 't');
    coordinator_turn_complete(&ending->ground->turn, &ending->completion);
}

// A drain that ends an operation: its completion runs before any higher phase.
static void a_completion_of_a_drain_comes_before_higher_phases(void **state)
{
    struct ground *ground = *state;
    struct ending *ending = ending_new(ground, '1');
    coordinator_turn_set(&ground->turn, STEPS, drain_completes, ending);
    coordinator_turn_mark(&ground->turn, STEPS);
    coordinator_turn_mark(&ground->turn, FRAMES);
    sim_run_until_idle();
    assert_string_equal(ground->ran, "t1f");
}

static void a_drain_inside_a_drain_does_nothing(void **state)
{
    struct ground *ground = *state;
    ground->phases[WORKERS].marks = 1u << FRAMES;
    ground->phases[WORKERS].drains = true;
    coordinator_turn_mark(&ground->turn, WORKERS);
    coordinator_turn_mark(&ground->turn, PLANS);
    coordinator_turn_drain(&ground->turn);
    assert_string_equal(ground->ran, "wpf"); // each once, and in order
    assert_int_equal(ground->turn.turns, 1);
    sim_run_until_idle(); // the deferred run finds nothing
    assert_string_equal(ground->ran, "wpf");
    assert_int_equal(ground->turn.turns, 1);
}

static void marks_wait_for_a_drain_where_there_is_no_loop(void **state)
{
    struct ground *ground = *state;
    coordinator_turn_fini(&ground->turn);
    coordinator_turn_mark(&ground->turn, PLANS);
    sim_run_until_idle();
    assert_string_equal(ground->ran, "");
    coordinator_turn_drain(&ground->turn);
    assert_string_equal(ground->ran, "p");
}

static void what_is_marked_at_the_end_is_forgotten(void **state)
{
    struct ground *ground = *state;
    coordinator_turn_mark(&ground->turn, PLANS);
    coordinator_turn_fini(&ground->turn);
    sim_run_until_idle();
    assert_string_equal(ground->ran, "");
}

#define TURN_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TURN_TEST(phases_run_from_the_bottom_to_the_top),
        TURN_TEST(a_phase_that_is_not_marked_does_not_run),
        TURN_TEST(marks_of_a_drain_run_in_the_same_turn_from_the_lowest),
        TURN_TEST(handlers_that_are_ready_together_share_a_turn),
        TURN_TEST(completions_run_first_and_in_their_order),
        TURN_TEST(a_completion_may_complete_another_and_mark),
        TURN_TEST(a_completion_of_a_drain_comes_before_higher_phases),
        TURN_TEST(a_drain_inside_a_drain_does_nothing),
        TURN_TEST(marks_wait_for_a_drain_where_there_is_no_loop),
        TURN_TEST(what_is_marked_at_the_end_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
