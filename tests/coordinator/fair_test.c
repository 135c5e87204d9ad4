// SPDX-License-Identifier: Apache-2.0
// Deficit round robin: order within a tenant, no tenant starves, shares follow cost and weight, a tenant that
// was away goes first but not twice, and the work of a choice is bounded.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "coordinator/steps/fair.h"

#define TENANTS 200

struct thing {
    struct common_list link;
    uint32_t tenant, cost, nth; // nth of its tenant
};

static struct coordinator_fair fair;
static uint32_t pushed[TENANTS];

static void push(uint32_t tenant, uint32_t weight, uint32_t cost)
{
    struct thing *t = calloc(1, sizeof(*t));
    assert_non_null(t);
    *t = (struct thing){.tenant = tenant, .cost = cost, .nth = pushed[tenant]++};
    common_list_init(&t->link);
    coordinator_fair_push(&fair, tenant, weight, &t->link);
}

static struct thing pop(void)
{
    struct common_list *link = coordinator_fair_next(&fair);
    assert_non_null(link);
    assert_ptr_equal(coordinator_fair_next(&fair), link); // asking again changes nothing
    struct thing *t = common_list_entry(link, struct thing, link), out = *t;
    coordinator_fair_take(&fair, link, t->cost);
    free(t);
    return out;
}

static int setup(void **state)
{
    (void)state;
    coordinator_fair_init(&fair);
    memset(pushed, 0, sizeof(pushed));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    while (fair.n)
        pop();
    assert_null(coordinator_fair_next(&fair));
    coordinator_fair_fini(&fair);
    return 0;
}

static void test_one_tenant_is_a_queue(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 1000; i++)
        push(7, 1, 1 + i % 90);
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(pop().nth, i);
    assert_int_equal(fair.n, 0);
}

static void test_a_flood_delays_nobody(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 5000; i++)
        push(1, 1, 1);
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(pop().tenant, 1);
    push(2, 1, 1);
    assert_int_equal(pop().tenant, 2); // it was not here: before all 4900
    // Two that come together go both before the flood, in the order in which they came.
    push(3, 1, 1);
    push(4, 1, 1);
    assert_int_equal(pop().tenant, 3);
    assert_int_equal(pop().tenant, 4);
    assert_int_equal(pop().tenant, 1);
}

// Who comes back after each of its steps is in turn like the others: the flood gets every other place.
static void test_coming_back_gains_nothing(void **state)
{
    (void)state;
    uint32_t of[3] = {0};
    for (uint32_t i = 0; i < 1000; i++)
        push(1, 1, 1);
    push(2, 1, 1);
    for (uint32_t i = 0; i < 400; i++) {
        uint32_t tenant = pop().tenant;
        of[tenant]++;
        if (tenant == 2)
            push(2, 1, 1); // its next one comes as soon as one is answered
    }
    assert_in_range(of[1], 199, 201);
    assert_in_range(of[2], 199, 201);
}

// Likewise who owes and goes away: it does not get rid of its debt so.
static void test_debts_are_kept(void **state)
{
    (void)state;
    uint32_t light = 0;
    for (uint32_t i = 0; i < 1000; i++)
        push(1, 1, 1);
    push(2, 1, 32);
    for (uint32_t heavy = 0; heavy < 10;) {
        if (pop().tenant == 2) {
            heavy++;
            push(2, 1, 32);
        } else {
            light++;
        }
    }
    assert_in_range(light, 9 * 31, 9 * 33);
}

static void test_shares_follow_cost_and_weight(void **state)
{
    (void)state;
    uint64_t spent[4] = {0};
    const uint32_t cost[4] = {0, 1, 10, 40}, weight[4] = {0, 1, 1, 3};
    for (uint32_t t = 1; t <= 3; t++)
        for (uint32_t i = 0; i < 20000 / cost[t] * weight[t]; i++)
            push(t, weight[t], cost[t]);
    for (uint32_t total = 0; total < 20000;) {
        struct thing got = pop();
        spent[got.tenant] += got.cost;
        total += got.cost;
    }
    assert_in_range(spent[1], 4000 - 80, 4000 + 80);
    assert_in_range(spent[2], 4000 - 80, 4000 + 80);
    assert_in_range(spent[3], 12000 - 160, 12000 + 160);
}

// However dear it is, an item is sent at last, and at once where no other one waits.
static void test_nobody_starves(void **state)
{
    (void)state;
    push(1, 1, UINT32_MAX);
    push(1, 1, UINT32_MAX);
    assert_int_equal(pop().nth, 0);
    assert_int_equal(pop().nth, 1);
    push(1, 1, UINT32_MAX);
    uint32_t before = 0;
    for (uint32_t i = 0; i < 10 * COORDINATOR_FAIR_COST_MOST; i++)
        push(2, 1, 1);
    while (pop().tenant == 2)
        before++;
    assert_in_range(before, 1, 2 * COORDINATOR_FAIR_COST_MOST);
}

static void test_removed_items_cost_nothing(void **state)
{
    (void)state;
    struct thing away[3];
    for (uint32_t i = 0; i < 3; i++) {
        away[i] = (struct thing){.tenant = i + 1, .cost = 1};
        common_list_init(&away[i].link);
        coordinator_fair_push(&fair, i + 1, 1, &away[i].link);
    }
    push(3, 1, 5);
    for (uint32_t i = 0; i < 3; i++)
        coordinator_fair_remove(&fair, &away[i].link);
    assert_int_equal(fair.n, 1);
    assert_int_equal(pop().tenant, 3);
    assert_null(coordinator_fair_next(&fair));
    push(1, 1, 1);
    assert_int_equal(pop().tenant, 1);
}

// Any order of pushes and sends: nothing is lost, each tenant's order holds, and one that waits sees at most
// `weight` items of each other one go between two of its turns, its debts aside (all cost 1 here).
static void test_drawn(void **state)
{
    (void)state;
    unsigned seed = 12345;
    static uint32_t next[TENANTS], waited[TENANTS][TENANTS];
    memset(next, 0, sizeof(next));
    memset(waited, 0, sizeof(waited));
    for (int round = 0; round < 200000; round++) {
        seed = seed * 1103515245u + 12345u;
        uint32_t draw = seed >> 8, tenant = draw % 17 ? draw % 5 : draw % TENANTS;
        if (draw % 2 || !fair.n) {
            push(tenant, 1, 1);
            continue;
        }
        struct thing got = pop();
        assert_int_equal(got.nth, next[got.tenant]);
        next[got.tenant]++;
        for (uint32_t t = 0; t < TENANTS; t++) {
            if (next[t] == pushed[t])
                waited[t][got.tenant] = 0; // it does not wait
            else if (t != got.tenant)
                assert_true(++waited[t][got.tenant] <= 2); // once as fresh, once in the ring
            waited[got.tenant][t] = 0;
        }
    }
    while (fair.n) {
        struct thing got = pop();
        assert_int_equal(got.nth, next[got.tenant]++);
    }
    assert_memory_equal(next, pushed, sizeof(next));
}

// What sharing adds to a step, with one tenant and with many: a push, a turn, a take. No time is judged.
static void test_many_items(void **state)
{
    (void)state;
    static struct common_list items[1000];
    for (uint32_t tenants = 1; tenants <= TENANTS; tenants *= TENANTS) {
        const uint32_t rounds = 1000;
        const uint64_t began = common_clock_ns();
        for (uint32_t r = 0; r < rounds; r++) {
            for (uint32_t i = 0; i < 1000; i++)
                coordinator_fair_push(&fair, i % tenants, 1, &items[i]);
            for (struct common_list *item; (item = coordinator_fair_next(&fair));)
                coordinator_fair_take(&fair, item, 1);
        }
        print_message("a step among %u tenants: %.1f ns\n", tenants,
                      (double)(common_clock_ns() - began) / (1000.0 * rounds));
        assert_int_equal(fair.n, 0);
    }
}

static void test_cost(void **state)
{
    (void)state;
    assert_int_equal(coordinator_fair_cost(1, 0, 4096), 1);
    assert_int_equal(coordinator_fair_cost(1, 255, 4096), 1);
    assert_int_equal(coordinator_fair_cost(1, 256, 4096), 2);
    assert_int_equal(coordinator_fair_cost(4, 256, 4096), 5);
    assert_int_equal(coordinator_fair_cost(1, 256 * 62, 4096), 63);
    assert_int_equal(coordinator_fair_cost(1, 256 * 63, 4096), 64);
    assert_int_equal(coordinator_fair_cost(1, UINT64_MAX, 4096), COORDINATOR_FAIR_COST_MOST);
    assert_int_equal(coordinator_fair_cost(UINT64_MAX, UINT64_MAX, UINT64_MAX), COORDINATOR_FAIR_COST_MOST);
    assert_int_equal(coordinator_fair_cost(4096, 1, UINT64_MAX), COORDINATOR_FAIR_COST_MOST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_tenant_is_a_queue, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_flood_delays_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(test_coming_back_gains_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_debts_are_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(test_shares_follow_cost_and_weight, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nobody_starves, setup, teardown),
        cmocka_unit_test_setup_teardown(test_removed_items_cost_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_drawn, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many_items, setup, teardown),
        cmocka_unit_test(test_cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
