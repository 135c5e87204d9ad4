// SPDX-License-Identifier: Apache-2.0
// Numbers in, verdict out: what counts as the coordinator's absence, and what as the silence of others.
#include "coordinator/presence.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define START 1000

static struct coordinator_presence begin(void)
{
    struct coordinator_presence p;
    coordinator_presence_init(&p, 10, START);
    return p;
}

static void ticks_in_time_are_no_absence(void **state)
{
    (void)state;
    struct coordinator_presence p = begin();
    static const uint64_t gaps[] = {10, 10, 0, 1, 19, 20, 10}; // one interval late, at most
    uint64_t now = START;
    for (size_t i = 0; i < sizeof gaps / sizeof *gaps; i++) {
        now += gaps[i];
        assert_int_equal(coordinator_presence_note(&p, now), 0);
        assert_int_equal(p.seen_ns, now);
        assert_int_equal(p.back_ns, START);
    }
}

static void a_late_tick_is_a_return(void **state)
{
    (void)state;
    struct coordinator_presence p = begin();
    assert_int_equal(coordinator_presence_note(&p, START + 21), 11); // first one that counts
    assert_int_equal(p.back_ns, START + 21);
    assert_int_equal(coordinator_presence_note(&p, START + 21), 0); // noted already
    assert_int_equal(p.back_ns, START + 21);
    assert_int_equal(coordinator_presence_note(&p, START + 41), 0);
    assert_int_equal(p.back_ns, START + 21);
    assert_int_equal(coordinator_presence_note(&p, START + 4041), 3990);
    assert_int_equal(p.back_ns, START + 4041);
}

static void a_clock_that_goes_back_is_no_absence(void **state)
{
    (void)state;
    struct coordinator_presence p = begin();
    assert_int_equal(coordinator_presence_note(&p, START - 500), 0);
    assert_int_equal(p.seen_ns, START);
    assert_int_equal(coordinator_presence_note(&p, START + 10), 0);
    assert_int_equal(p.back_ns, START);
}

static void silence_counts_while_it_runs(void **state)
{
    (void)state;
    struct coordinator_presence p = begin();
    assert_int_equal(coordinator_presence_patience(&p, START + 100, 35, START + 100), 35);
    assert_int_equal(coordinator_presence_patience(&p, START + 100, 35, START + 134), 1);
    assert_int_equal(coordinator_presence_patience(&p, START + 100, 35, START + 135), 0);
    assert_int_equal(coordinator_presence_patience(&p, START + 100, 35, START + 9999), 0);
    assert_int_equal(coordinator_presence_patience(&p, START + 100, 35, START + 50), 35); // heard since
    assert_int_equal(coordinator_presence_patience(&p, START + 100, 0, START + 100), 0);
    assert_int_equal(coordinator_presence_patience(&p, START, UINT64_MAX, UINT64_MAX), START);
}

static void silence_does_not_count_while_it_is_away(void **state)
{
    (void)state;
    struct coordinator_presence p = begin();
    assert_int_equal(coordinator_presence_patience(&p, START + 4, 35, START + 4000), 0); // as it was
    assert_int_equal(coordinator_presence_note(&p, START + 4000), 3990);
    assert_int_equal(coordinator_presence_patience(&p, START + 4, 35, START + 4000),
                     35); // all of it, from the start
    for (uint64_t t = 10; t < 35; t += 10) {
        assert_int_equal(coordinator_presence_note(&p, START + 4000 + t), 0);
        assert_int_equal(coordinator_presence_patience(&p, START + 4, 35, START + 4000 + t), 35 - t);
    }
    assert_int_equal(coordinator_presence_patience(&p, START + 4, 35, START + 4035), 0); // still silent: gone
    assert_int_equal(coordinator_presence_patience(&p, START + 4020, 35, START + 4035), 20); // has spoken
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ticks_in_time_are_no_absence),
        cmocka_unit_test(a_late_tick_is_a_return),
        cmocka_unit_test(a_clock_that_goes_back_is_no_absence),
        cmocka_unit_test(silence_counts_while_it_runs),
        cmocka_unit_test(silence_does_not_count_while_it_is_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
