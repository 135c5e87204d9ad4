// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/metrics.h"

static struct common_metric *add(struct common_metrics *t, enum common_metric_kind kind, const char *name,
                                 const char *label, const char *value)
{
    struct common_metric *m = NULL;
    struct common_metric_spec spec = {
        .kind = kind, .name = name, .help = "Help.", .label = label, .value = value};
    assert_int_equal(common_metrics_add(t, &spec, &m), COMMON_OK);
    return m;
}

static void assert_text(const struct common_metrics *t, const char *expected)
{
    char *text;
    size_t len;
    assert_int_equal(common_metrics_render(t, &text, &len), COMMON_OK);
    assert_string_equal(text, expected);
    assert_int_equal(len, strlen(expected));
    free(text);
}

static void test_text(void **state)
{
    (void)state;
    struct common_metrics *t = common_metrics_new();
    assert_text(t, "");
    // Added out of order: a family must stand together.
    struct common_metric *b2 = add(t, COMMON_METRIC_GAUGE, "b_bytes", "worker", "w2");
    struct common_metric *a = add(t, COMMON_METRIC_COUNTER, "a_total", NULL, NULL);
    struct common_metric *b1 = add(t, COMMON_METRIC_GAUGE, "b_bytes", "worker", "w1");
    common_metric_add(a, 2);
    common_metric_add(a, 1000000);
    common_metric_add(b1, 0.1);
    common_metric_add(b2, -3);
    assert_text(t, "# HELP a_total Help.\n# TYPE a_total counter\na_total 1000002\n"
                   "# HELP b_bytes Help.\n# TYPE b_bytes gauge\n"
                   "b_bytes{worker=\"w1\"} 0.1\nb_bytes{worker=\"w2\"} -3\n");
    common_metrics_remove(t, b1);
    common_metrics_remove(t, NULL);
    assert_text(t, "# HELP a_total Help.\n# TYPE a_total counter\na_total 1000002\n"
                   "# HELP b_bytes Help.\n# TYPE b_bytes gauge\nb_bytes{worker=\"w2\"} -3\n");
    common_metrics_free(t);
    common_metrics_free(NULL);
}

static void test_escapes(void **state)
{
    (void)state;
    struct common_metrics *t = common_metrics_new();
    struct common_metric *m;
    struct common_metric_spec spec = {COMMON_METRIC_GAUGE, "g", "one\\two\nthree", "l", "a\"b\\c\nd"};
    assert_int_equal(common_metrics_add(t, &spec, &m), COMMON_OK);
    assert_text(t, "# HELP g one\\\\two\\nthree\n# TYPE g gauge\ng{l=\"a\\\"b\\\\c\\nd\"} 0\n");
    common_metrics_free(t);
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        double number;
        const char *text;
    } cases[] = {
        {0.0, "0"},
        {1e15 - 1, "999999999999999"},
        {9007199254740991.0, "9007199254740991"},
        {INFINITY, "+Inf"},
        {-INFINITY, "-Inf"},
        {NAN, "NaN"},
        {0.25, "0.25"},
        {1.0 / 3, "0.33333333333333331"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct common_metrics *t = common_metrics_new();
        char expected[120];
        snprintf(expected, sizeof expected, "# HELP g Help.\n# TYPE g gauge\ng %s\n", cases[i].text);
        common_metric_add(add(t, COMMON_METRIC_GAUGE, "g", NULL, NULL), cases[i].number);
        assert_text(t, expected);
        common_metrics_free(t);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    struct common_metrics *t = common_metrics_new();
    add(t, COMMON_METRIC_COUNTER, "steps_total", "worker", "1");
    static const struct {
        struct common_metric_spec spec;
        enum common_code code;
    } cases[] = {
        {{COMMON_METRIC_COUNTER, "steps_total", "x", "worker", "1"}, COMMON_ALREADY_EXISTS},
        {{COMMON_METRIC_GAUGE, "steps_total", "x", "worker", "2"},
         COMMON_INVALID_ARGUMENT}, // the family counts
        {{COMMON_METRIC_GAUGE, "steps_total", "x", NULL, NULL}, COMMON_INVALID_ARGUMENT},
        {{COMMON_METRIC_GAUGE, "", "x", NULL, NULL}, COMMON_INVALID_ARGUMENT},
        {{COMMON_METRIC_GAUGE, "9lives", "x", NULL, NULL}, COMMON_INVALID_ARGUMENT},
        {{COMMON_METRIC_GAUGE, "two words", "x", NULL, NULL}, COMMON_INVALID_ARGUMENT},
        {{COMMON_METRIC_GAUGE, "ok", "x", "a:b", "v"}, COMMON_INVALID_ARGUMENT},
        {{COMMON_METRIC_GAUGE, "ok", "x", "label", NULL}, COMMON_INVALID_ARGUMENT},
        {{COMMON_METRIC_GAUGE, "ok", NULL, NULL, NULL}, COMMON_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct common_metric *m = NULL;
        assert_int_equal(common_metrics_add(t, &cases[i].spec, &m), cases[i].code);
        assert_null(m);
    }
    assert_text(t, "# HELP steps_total Help.\n# TYPE steps_total counter\nsteps_total{worker=\"1\"} 0\n");
    common_metrics_free(t);
}

static void test_many(void **state)
{
    (void)state;
    struct common_metrics *t = common_metrics_new();
    struct common_metric *all[100];
    for (int i = 0; i < 100; i++) {
        char value[8];
        snprintf(value, sizeof value, "%02d", i * 37 % 100);
        all[i] = add(t, COMMON_METRIC_GAUGE, "g", "n", value);
        common_metric_add(all[i], i * 37 % 100);
    }
    char *text;
    size_t len;
    assert_int_equal(common_metrics_render(t, &text, &len), COMMON_OK);
    const char *line = strstr(text, "g{");
    for (int i = 0; i < 100; i++, line = strchr(line, '\n') + 1) {
        char expected[32];
        int n = snprintf(expected, sizeof expected, "g{n=\"%02d\"} %d\n", i, i);
        assert_memory_equal(line, expected, n);
    }
    free(text);
    for (int i = 0; i < 100; i++)
        common_metrics_remove(t, all[i]);
    assert_text(t, "");
    common_metrics_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),     cmocka_unit_test(test_escapes), cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
