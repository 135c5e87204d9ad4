// SPDX-License-Identifier: Apache-2.0
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <string.h>

#include "coordinator/cluster/pace.h"
#include "tests/common/named.h"

#define S UINT64_C(1000000000)
#define W (5 * S)
enum { MOST = 5 };

struct cluster {
    struct coordinator_pace paces[MOST];
    struct coordinator_pace_report reports[MOST];
    bool changed[MOST];
    uint32_t n;
    uint64_t looks;
};

// A window: worker i is busy for a tenth of it, at pace[i], or all the time where it is very slow; 0: it has
// no work.
static void look(struct cluster *c, const double *pace)
{
    struct coordinator_pace *paces[MOST];
    for (uint32_t i = 0; i < c->n; i++) {
        struct coordinator_pace_report *r = &c->reports[i];
        r->up_ns += W;
        uint64_t taken = pace[i] <= 0 ? 0 : pace[i] < 0.01 ? W : W / 10;
        r->taken_ns += taken;
        r->planned_ns += (uint64_t)(pace[i] * (double)taken);
        coordinator_pace_hear(&c->paces[i], r);
        paces[i] = &c->paces[i];
    }
    coordinator_pace_look(paces, c->n, W, c->looks++, c->changed);
}

static void looks(struct cluster *c, const double *pace, uint32_t n)
{
    while (n-- > 0)
        look(c, pace);
}

static struct cluster of(uint32_t n)
{
    struct cluster c = {.n = n};
    looks(&c, (double[MOST]){1, 1, 1, 1, 1}, 3);
    return c;
}

static void assert_slow(const struct cluster *c, uint32_t who, uint32_t n)
{
    uint32_t slow = 0;
    for (uint32_t i = 0; i < c->n; i++)
        slow += c->paces[i].slow;
    assert_int_equal(slow, n);
    assert_true(n == 0 || c->paces[who].slow);
}

static void one_of_three(void **state)
{
    (void)state;
    struct cluster c = of(3);
    look(&c, (double[]){1, 0.2, 1});
    assert_slow(&c, 0, 0); // one window may be chance
    look(&c, (double[]){1, 0.2, 1});
    assert_slow(&c, 1, 1);
    assert_true(c.changed[1] && !c.changed[0] && !c.changed[2]);
    assert_float_equal(c.paces[1].factor, 0.2, 0.01);
    looks(&c, (double[]){1, 0.2, 1}, 50); // said once
    assert_false(c.changed[1]);
    looks(&c, (double[]){1, 0.7, 1}, 50); // neither one nor the other: it stays
    assert_slow(&c, 1, 1);
    looks(&c, (double[]){1, 0.9, 1}, 3);
    look(&c, (double[]){1, 0.7, 1});
    looks(&c, (double[]){1, 0.9, 1}, 3);
    assert_slow(&c, 1, 1);
    look(&c, (double[]){1, 0.9, 1});
    assert_slow(&c, 0, 0);
    assert_true(c.changed[1]);
}

static void not_in_a_row(void **state)
{
    (void)state;
    struct cluster c = of(3);
    for (uint32_t i = 0; i < 20; i++) {
        look(&c, (double[]){1, 0.2, 1});
        look(&c, (double[]){1, 0.6, 1});
    }
    assert_slow(&c, 0, 0);
}

static void all_alike(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MOST; n++) {
        struct cluster c = of(n);
        looks(&c, (double[]){0.2, 0.25, 0.15, 0.2, 0.3}, 50);
        assert_slow(&c, 0, 0);
    }
    struct cluster most = of(3); // most are: a fast one is the exception
    looks(&most, (double[]){0.2, 0.2, 1}, 50);
    assert_slow(&most, 0, 0);
    most = of(5);
    looks(&most, (double[]){0.2, 0.2, 1, 1, 1}, 2);
    assert_slow(&most, 1, 2);
    struct cluster c = of(3); // one of them is slower still
    looks(&c, (double[]){0.4, 0.05, 0.4}, 2);
    assert_slow(&c, 1, 1);
    assert_float_equal(c.paces[1].factor, 0.125, 0.01);
}

static void others_that_are_faster_than_measured(void **state)
{
    (void)state;
    struct cluster c = of(3);
    looks(&c, (double[]){3, 0.9, 3}, 50); // it is as fast as it is planned with
    assert_slow(&c, 0, 0);
}

static void slower_still(void **state)
{
    (void)state;
    struct cluster c = of(3);
    looks(&c, (double[]){1, 0.4, 1}, 2);
    looks(&c, (double[]){1, 0.3, 1}, 20);
    assert_float_equal(c.paces[1].factor, 0.4, 0.01);
    look(&c, (double[]){1, 0.1, 1});
    look(&c, (double[]){1, 0.1, 1});
    assert_true(c.changed[1]);
    assert_float_equal(c.paces[1].factor, 0.1, 0.01);
    looks(&c, (double[]){1, 0.00001, 1}, 2);
    assert_float_equal(c.paces[1].factor, COORDINATOR_PACE_LEAST, 0.0001);
}

// Work of a few ms in a window does not count, however long it takes.
static void tiny_work(void **state)
{
    (void)state;
    struct cluster c = of(3);
    for (uint32_t i = 0; i < 50; i++) {
        c.reports[1].planned_ns += S / 1000;
        c.reports[1].taken_ns += S;
        look(&c, (double[]){1, 0, 1});
    }
    assert_slow(&c, 0, 0);
}

// There is no worker to compare it with: others that are idle are asked to measure, one at a time.
static void alone_with_work(void **state)
{
    (void)state;
    struct cluster c = of(3);
    looks(&c, (double[]){0, 1, 0}, 20); // what the others did is forgotten
    assert_false(c.paces[0].probe || c.paces[1].probe || c.paces[2].probe);
    look(&c, (double[]){0, 0.2, 0});
    assert_slow(&c, 0, 0);
    assert_int_equal(c.paces[0].probe + c.paces[2].probe, 1);
    assert_false(c.paces[1].probe);
    looks(&c, (double[]){0, 0.2, 0}, 20);
    assert_slow(&c, 0, 0);
    look(&c, (double[]){1, 0.2, 0}); // one has measured
    look(&c, (double[]){0, 0.2, 0});
    assert_slow(&c, 1, 1);
}

// Without work it is asked to measure, and else gets another try.
static void the_way_back(void **state)
{
    (void)state;
    struct cluster c = of(3);
    looks(&c, (double[]){1, 0.2, 1}, 2);
    uint32_t asked = 0, n;
    for (n = 0; n < 200 && c.paces[1].slow; n++) {
        look(&c, (double[]){1, 0, 1});
        asked += c.paces[1].probe;
        c.paces[1].probe = false;
    }
    assert_int_equal(n, 120);
    assert_in_range(asked, 8, 12);
    looks(&c, (double[]){1, 0.2, 1}, 2);
    assert_slow(&c, 1, 1);
    for (n = 0; n < 200 && c.paces[1].slow; n++) { // it measures when it is asked
        look(&c, (double[]){1, c.paces[1].probe ? 1 : 0, 1});
        c.paces[1].probe = c.paces[1].probe && c.paces[1].silent > 0;
    }
    assert_in_range(n, 30, 60);
}

// Its loop does not run for most of the time.
static void one_that_stalls(void **state)
{
    (void)state;
    for (uint32_t with_work = 0; with_work < 2; with_work++) {
        struct cluster c = of(3);
        double paces[3] = {1, with_work, 1};
        for (uint32_t i = 0; i < 2; i++) {
            assert_slow(&c, 0, 0);
            c.reports[1].stalled_ns += W * 4 / 5;
            look(&c, paces);
        }
        assert_slow(&c, 1, 1);
        assert_float_equal(c.paces[1].factor, 0.2, 0.01);
        c = of(3);
        for (uint32_t i = 0; i < 20; i++) { // a pause now and then
            c.reports[1].stalled_ns += W * 2 / 5;
            look(&c, paces);
        }
        assert_slow(&c, 0, 0);
        for (uint32_t i = 0; i < 20; i++) { // a machine that hangs for all
            for (uint32_t w = 0; w < 3; w++)
                c.reports[w].stalled_ns += W * 4 / 5;
            look(&c, paces);
        }
        assert_slow(&c, 0, 0);
    }
}

// Reports begin again with another process, and one of an older release has none.
static void other_processes(void **state)
{
    (void)state;
    struct cluster c = of(3);
    look(&c, (double[]){1, 0.2, 1});
    memset(&c.reports[1], 0, sizeof c.reports[1]);
    look(&c, (double[]){1, 0.2, 1});
    assert_slow(&c, 0, 0);
    struct coordinator_pace *paces[3] = {&c.paces[0], &c.paces[1], &c.paces[2]};
    memset(&c.paces[1], 0, sizeof c.paces[1]);
    for (uint32_t i = 0; i < 50; i++) {
        coordinator_pace_hear(&c.paces[1], &(struct coordinator_pace_report){0});
        coordinator_pace_look(paces, 3, W, i, c.changed);
    }
    assert_slow(&c, 0, 0);
    assert_float_equal(coordinator_pace_seen(&c.paces[1]), 0, 0);
}

struct share { // of a window, in ms
    double planned, taken, stalled;
};

static void report(struct cluster *c, uint32_t i, const struct share *share)
{
    struct coordinator_pace_report *r = &c->reports[i];
    r->up_ns += S;
    r->planned_ns += (uint64_t)(share->planned * 1e6);
    r->taken_ns += (uint64_t)(share->taken * 1e6);
    r->stalled_ns += (uint64_t)(share->stalled * 1e6);
    coordinator_pace_hear(&c->paces[i], r);
}

// What heartbeats of three workers say in a window of a second, in ms: w1 is the suspect. Taken from workers
// on a Zen 3 (AVX2, two processors, 6,000 tokens of float32, some 10 to 30 steps a second) that had measured
// 3 to 7 GB/s, and from some that were started with --bandwidth 40G.
static void as_workers_report(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        struct share w0, w1;
        bool slow;
        double factor;
    } table[] = {
        {"nothing is wrong", {30, 17, 0}, {27, 25, 0}, false, 0},
        {"nothing is wrong, fast", {0, 0, 0}, {0, 0, 0}, false, 0},
        {"stopped for 80 of 100 ms while it has nothing to compute",
         {9.2, 11, 0},
         {10.2, 8, 760},
         true,
         0.24},
        {"the same with thin work", {0, 0, 0}, {0, 0, 760}, true, 0.24},
        {"the same, and one stop falls into computing", {18, 16, 0}, {16, 92, 750}, true, 0.17},
        {"computes at a fifth", {17, 14, 0}, {15, 75, 0}, true, 0.2},
        {"computes at a fifth, fast, and its work is thin", {8, 12, 0}, {8, 60, 0}, true, 0.2},
        {"too little work", {0.8, 1, 0}, {0.7, 5, 0}, false, 0},
        {"stopped for a third of the time", {30, 17, 0}, {27, 25, 330}, false, 0},
        {"load that all have in common", {9.2, 40, 600}, {10.2, 50, 700}, false, 0},
    };
    for (uint32_t k = 0; k < sizeof table / sizeof *table; k++) {
        named_case_begin(table[k].name);
        struct cluster c = {.n = 3};
        struct coordinator_pace *paces[3] = {&c.paces[0], &c.paces[1], &c.paces[2]};
        for (uint32_t at = 0; at < 20; at++) {
            for (uint32_t i = 0; i < 3; i++)
                report(&c, i, i == 1 ? &table[k].w1 : &table[k].w0);
            coordinator_pace_look(paces, c.n, S, c.looks++, c.changed);
            if (at == 1) // the first look begins, and one window is not enough
                assert_slow(&c, 0, 0);
        }
        assert_slow(&c, 1, table[k].slow);
        if (table[k].slow)
            assert_float_equal(c.paces[1].factor, table[k].factor, 0.02);
    }
    named_cases_end();
}

// Its plan counts with more than it has measured: a neighbour of the same kind has measured that.
static void planned_with_more(void **state)
{
    (void)state;
    struct cluster c = of(3);
    c.paces[1].scale = 0.3;
    looks(&c, (double[]){1, 1, 1}, 2);
    assert_slow(&c, 1, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_of_three),      cmocka_unit_test(not_in_a_row),
        cmocka_unit_test(all_alike),         cmocka_unit_test(others_that_are_faster_than_measured),
        cmocka_unit_test(slower_still),      cmocka_unit_test(tiny_work),
        cmocka_unit_test(alone_with_work),   cmocka_unit_test(the_way_back),
        cmocka_unit_test(one_that_stalls),   cmocka_unit_test(other_processes),
        cmocka_unit_test(planned_with_more), named_cases_test(as_workers_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
