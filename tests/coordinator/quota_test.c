// SPDX-License-Identifier: Apache-2.0
// A rate lets through what it says, in whole numbers and to the nanosecond; quotas take all or nothing, and
// say why not.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <string.h>

#include "common/base/clock.h"
#include "coordinator/tenants/quota.h"

#define S COMMON_NS_PER_S

// ---- rates --------------------------------------------------------------------------------------

static void test_no_rate_is_no_limit(void **state)
{
    (void)state;
    struct coordinator_rate rate;
    uint64_t wait_ns = 7;
    coordinator_rate_set(&rate, 0, 5);
    for (int i = 0; i < 100; i++)
        assert_true(coordinator_rate_take(&rate, UINT32_MAX, 5, &wait_ns));
    assert_int_equal(coordinator_rate_used(&rate, 5), 0);
    assert_int_equal(wait_ns, 7);
}

static void test_a_second_at_once_then_by_the_clock(void **state)
{
    (void)state;
    const uint64_t rates[] = {1, 3, 7, 1000, 999999937, COORDINATOR_RATE_MOST};
    for (size_t i = 0; i < sizeof(rates) / sizeof(*rates); i++) {
        struct coordinator_rate rate;
        uint64_t wait_ns = 0, now = 12345;
        coordinator_rate_set(&rate, rates[i], now);
        assert_true(coordinator_rate_take(&rate, rates[i], now, &wait_ns));
        assert_int_equal(coordinator_rate_used(&rate, now), rates[i]);
        assert_false(coordinator_rate_take(&rate, 1, now, &wait_ns));
        assert_int_equal(wait_ns, (S + rates[i] - 1) / rates[i]);
        assert_false(rates[i] < S && coordinator_rate_take(&rate, 1, now + wait_ns - 1, &wait_ns));
        // Not earlier than it has said, and not later.
        assert_false(coordinator_rate_take(&rate, 1, now, &wait_ns));
        assert_true(coordinator_rate_take(&rate, 1, now + wait_ns, &wait_ns));
    }
}

// Over a long time it is the rate, whatever the steps of the clock.
static void test_it_keeps_the_rate(void **state)
{
    (void)state;
    struct coordinator_rate rate;
    uint64_t now = S, wait_ns, taken = 0, seed = 1;
    coordinator_rate_set(&rate, 700, now);
    while (now < 101 * S) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        now += (seed >> 33) % (5 * COMMON_NS_PER_MS);
        while (coordinator_rate_take(&rate, 1, now, &wait_ns))
            taken++;
    }
    assert_in_range(taken, 700 * 101 - 5, 700 * 101 + 5);
}

// A call that is more than a second's worth goes when all is there, and those after it wait for it.
static void test_a_large_call_leaves_a_debt(void **state)
{
    (void)state;
    struct coordinator_rate rate;
    uint64_t wait_ns;
    coordinator_rate_set(&rate, 10, S);
    assert_true(coordinator_rate_take(&rate, 4096, S, &wait_ns));
    assert_int_equal(coordinator_rate_used(&rate, S), 4096);
    assert_false(coordinator_rate_take(&rate, 1, S, &wait_ns));
    assert_int_equal(wait_ns, (4096 - 10 + 1) * S / 10);
    assert_true(coordinator_rate_take(&rate, 1, S + wait_ns, &wait_ns));
    assert_false(coordinator_rate_take(&rate, 4096, 1000 * S, &wait_ns) &&
                 coordinator_rate_take(&rate, 1, 1000 * S, &wait_ns));
}

static void test_a_clock_that_stands_gives_nothing(void **state)
{
    (void)state;
    struct coordinator_rate rate;
    uint64_t wait_ns;
    coordinator_rate_set(&rate, 5, 10 * S);
    assert_true(coordinator_rate_take(&rate, 5, 10 * S, &wait_ns));
    assert_false(coordinator_rate_take(&rate, 1, 9 * S, &wait_ns)); // another one has read it before
    assert_false(coordinator_rate_take(&rate, 1, 10 * S, &wait_ns));
    assert_true(coordinator_rate_take(&rate, 5, UINT64_MAX, &wait_ns));
}

// ---- quotas -------------------------------------------------------------------------------------

static struct coordinator_core core;
static struct coordinator_tenants tenants;
static struct coordinator_quotas quotas;

static int setup(void **state)
{
    (void)state;
    memset(&tenants, 0, sizeof(tenants));
    coordinator_tenants_init(&tenants, &core);
    coordinator_quotas_init(&quotas, &tenants);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    coordinator_quotas_fini(&quotas);
    coordinator_tenants_fini(&tenants);
    return 0;
}

static void test_all_or_nothing(void **state)
{
    (void)state;
    struct coordinator_use *use = coordinator_use_of(&quotas, 0);
    struct proto_status status;
    assert_int_equal(coordinator_quota_take(use, COORDINATOR_QUOTA_BYTES, UINT64_MAX / 2, &status),
                     COMMON_OK);
    coordinator_quota_give(use, COORDINATOR_QUOTA_BYTES, UINT64_MAX / 2);
    coordinator_quota_set(use, COORDINATOR_QUOTA_BYTES, 1000, 0);
    assert_int_equal(coordinator_quota_take(use, COORDINATOR_QUOTA_BYTES, 600, &status), COMMON_OK);
    assert_int_equal(coordinator_quota_take(use, COORDINATOR_QUOTA_BYTES, 401, &status),
                     COMMON_RESOURCE_EXHAUSTED);
    assert_string_equal(status.reason, "QUOTA");
    assert_string_equal(
        status.message,
        "the quota bytes of tenant default, 1000 bytes of K and V, is reached (600 are used and "
        "401 more were asked for): delete or truncate sessions, or ask an admin for more "
        "(banyanctl quota set default --memory N)");
    assert_int_equal(use->used[COORDINATOR_QUOTA_BYTES], 600);
    assert_int_equal(use->refused[COORDINATOR_QUOTA_BYTES], 1);
    assert_int_equal(coordinator_quota_take(use, COORDINATOR_QUOTA_BYTES, UINT64_MAX, &status),
                     COMMON_RESOURCE_EXHAUSTED);
    assert_int_equal(coordinator_quota_take(use, COORDINATOR_QUOTA_BYTES, 400, &status), COMMON_OK);
    // Below what is there: it stays, and nothing more comes until it has fallen.
    coordinator_quota_set(use, COORDINATOR_QUOTA_BYTES, 300, 0);
    assert_int_equal(coordinator_quota_take(use, COORDINATOR_QUOTA_BYTES, 1, &status),
                     COMMON_RESOURCE_EXHAUSTED);
    coordinator_quota_give(use, COORDINATOR_QUOTA_BYTES, 701);
    assert_int_equal(coordinator_quota_take(use, COORDINATOR_QUOTA_BYTES, 1, &status), COMMON_OK);
}

static void test_steps_count_twice_or_not_at_all(void **state)
{
    (void)state;
    struct coordinator_use *use = coordinator_use_of(&quotas, 0);
    struct proto_status status;
    coordinator_quota_set(use, COORDINATOR_QUOTA_STEPS_PER_S, 100, S);
    coordinator_quota_set(use, COORDINATOR_QUOTA_STEPS_IN_FLIGHT, 10, S);
    assert_int_equal(coordinator_quota_take_steps(use, 10, S, &status), COMMON_OK);
    assert_int_equal(coordinator_quota_take_steps(use, 1, S, &status), COMMON_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(status.message, "the quota steps_in_flight of tenant default, 10 "));
    assert_int_equal(status.retry_ns, 0);
    assert_int_equal(coordinator_quota_used(use, COORDINATOR_QUOTA_STEPS_PER_S, S),
                     10); // not of the refused one
    for (int i = 0; i < 9; i++) {
        coordinator_quota_give(use, COORDINATOR_QUOTA_STEPS_IN_FLIGHT, 10);
        assert_int_equal(coordinator_quota_take_steps(use, 10, S, &status), COMMON_OK);
    }
    coordinator_quota_give(use, COORDINATOR_QUOTA_STEPS_IN_FLIGHT, 10);
    assert_int_equal(coordinator_quota_take_steps(use, 4, S, &status), COMMON_RESOURCE_EXHAUSTED);
    assert_int_equal(status.retry_ns, 40 * COMMON_NS_PER_MS);
    assert_non_null(strstr(status.message, "try again in 40 ms"));
    assert_int_equal(use->used[COORDINATOR_QUOTA_STEPS_IN_FLIGHT], 0);
    assert_int_equal(coordinator_quota_take_steps(use, 4, S + status.retry_ns, &status), COMMON_OK);
    assert_int_equal(use->steps, 104);
}

static void test_tenants_are_apart(void **state)
{
    (void)state;
    struct proto_status status;
    struct coordinator_use *first = coordinator_use_of(&quotas, 3);
    coordinator_quota_set(first, COORDINATOR_QUOTA_SESSIONS, 1, 0);
    assert_int_equal(coordinator_quota_take(first, COORDINATOR_QUOTA_SESSIONS, 1, &status), COMMON_OK);
    struct coordinator_use *last = coordinator_use_of(&quotas, COORDINATOR_TENANTS_MAX - 1);
    assert_ptr_equal(coordinator_use_of(&quotas, 3), first); // stays where it is
    assert_int_equal(coordinator_quota_take(last, COORDINATOR_QUOTA_SESSIONS, 1, &status), COMMON_OK);
    assert_int_equal(coordinator_quota_take(first, COORDINATOR_QUOTA_SESSIONS, 1, &status),
                     COMMON_RESOURCE_EXHAUSTED);
    // What a damaged store may name is no index.
    assert_ptr_equal(coordinator_use_of(&quotas, UINT32_MAX), coordinator_use_of(&quotas, UINT32_MAX - 1));
}

// Once a step costs this much, it is seen here: a look-up, a comparison and a bucket. No time is judged.
static void test_many_steps(void **state)
{
    (void)state;
    struct proto_status status;
    coordinator_quota_set(coordinator_use_of(&quotas, 7), COORDINATOR_QUOTA_STEPS_PER_S,
                          COORDINATOR_RATE_MOST, 0);
    coordinator_quota_set(coordinator_use_of(&quotas, 7), COORDINATOR_QUOTA_STEPS_IN_FLIGHT, 64, 0);
    const uint64_t n = 1000000, began = common_clock_ns();
    for (uint64_t i = 0; i < n; i++) {
        struct coordinator_use *use = coordinator_use_of(&quotas, 7);
        assert_int_equal(coordinator_quota_take_steps(use, 1, i * 100, &status), COMMON_OK);
        coordinator_quota_give(use, COORDINATOR_QUOTA_STEPS_IN_FLIGHT, 1);
    }
    print_message("a step's quotas: %.1f ns\n", (double)(common_clock_ns() - began) / (double)n);
    assert_int_equal(coordinator_use_of(&quotas, 7)->steps, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_rate_is_no_limit),
        cmocka_unit_test(test_a_second_at_once_then_by_the_clock),
        cmocka_unit_test(test_it_keeps_the_rate),
        cmocka_unit_test(test_a_large_call_leaves_a_debt),
        cmocka_unit_test(test_a_clock_that_stands_gives_nothing),
        cmocka_unit_test_setup_teardown(test_all_or_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_steps_count_twice_or_not_at_all, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tenants_are_apart, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many_steps, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
