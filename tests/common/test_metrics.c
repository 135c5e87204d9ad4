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

#include "common/http/http.h"
#include "common/metrics/metrics.h"

static void put(struct common_metrics *t, enum common_metric_kind kind, const char *name, const char *label,
                const char *value, double number)
{
    struct common_metric_spec spec = {
        .kind = kind, .name = name, .help = "Help.", .label = label, .value = value};
    assert_true(common_metrics_put(t, &spec, number));
}

static void assert_text(const struct common_metrics *t, const char *expected)
{
    char *text;
    size_t len;
    assert_int_equal(common_metrics_render(t, COMMON_METRICS_TEXT, &text, &len), COMMON_OK);
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
    put(t, COMMON_METRIC_GAUGE, "b_bytes", "worker", "w2", -3);
    put(t, COMMON_METRIC_COUNTER, "a_total", NULL, NULL, 1000002);
    put(t, COMMON_METRIC_GAUGE, "b_bytes", "worker", "w1", 0.1);
    assert_text(t, "# HELP a_total Help.\n# TYPE a_total counter\na_total 1000002\n"
                   "# HELP b_bytes Help.\n# TYPE b_bytes gauge\n"
                   "b_bytes{worker=\"w1\"} 0.1\nb_bytes{worker=\"w2\"} -3\n");
    common_metrics_free(t);
    common_metrics_free(NULL);
}

static void test_escapes(void **state)
{
    (void)state;
    struct common_metrics *t = common_metrics_new();
    struct common_metric_spec spec = {.kind = COMMON_METRIC_GAUGE,
                                      .name = "g",
                                      .help = "one\\two\nthree",
                                      .label = "l",
                                      .value = "a\"b\\c\nd"};
    assert_true(common_metrics_put(t, &spec, 0));
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
        put(t, COMMON_METRIC_GAUGE, "g", NULL, NULL, cases[i].number);
        assert_text(t, expected);
        common_metrics_free(t);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    struct common_metrics *t = common_metrics_new();
    put(t, COMMON_METRIC_COUNTER, "steps_total", "worker", "1", 0);
    static const struct common_metric_spec cases[] = {
        {.kind = COMMON_METRIC_COUNTER, .name = "steps_total", .help = "x", .label = "worker", .value = "1"},
        {.kind = COMMON_METRIC_GAUGE, .name = "steps_total", .help = "x", .label = "worker", .value = "2"},
        {.kind = COMMON_METRIC_COUNTER, .name = "steps", .help = "x", .label = "worker", .value = "2"},
        {.kind = COMMON_METRIC_COUNTER, .name = "_total", .help = "x", .label = NULL, .value = NULL},
        {.kind = COMMON_METRIC_INFO, .name = "build", .help = "x", .label = NULL, .value = NULL},
        {.kind = COMMON_METRIC_GAUGE, .name = "x_info", .help = "x", .label = NULL, .value = NULL},
        {.kind = COMMON_METRIC_HISTOGRAM, .name = "x_count", .help = "x", .label = NULL, .value = NULL},
        {.kind = COMMON_METRIC_HISTOGRAM, .name = "x_seconds", .help = "x", .label = "le", .value = "1"},
        {.kind = COMMON_METRIC_GAUGE, .name = "", .help = "x", .label = "a", .value = "b"},
        {.kind = COMMON_METRIC_GAUGE, .name = "9lives", .help = "x", .label = NULL, .value = NULL},
        {.kind = COMMON_METRIC_GAUGE, .name = "two words", .help = "x", .label = NULL, .value = NULL},
        {.kind = COMMON_METRIC_GAUGE, .name = "ok", .help = "x", .label = "a:b", .value = "v"},
        {.kind = COMMON_METRIC_GAUGE, .name = "ok", .help = "x", .label = "label", .value = NULL},
        {.kind = COMMON_METRIC_GAUGE, .name = "ok", .help = NULL, .label = NULL, .value = NULL},
        {.kind = COMMON_METRIC_GAUGE,
         .name = "ok",
         .help = "x",
         .label = NULL,
         .value = NULL,
         .label2 = "a",
         .value2 = "b"},
        {.kind = COMMON_METRIC_GAUGE,
         .name = "ok",
         .help = "x",
         .label = "a",
         .value = "b",
         .label2 = "a",
         .value2 = "c"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_false(common_metrics_put(t, &cases[i], 1));
    assert_text(t, "# HELP steps_total Help.\n# TYPE steps_total counter\nsteps_total{worker=\"1\"} 0\n");
    common_metrics_free(t);
}

// Two labels, an info, a counter and a histogram, as both formats have them.
static void test_openmetrics(void **state)
{
    (void)state;
    struct common_metrics *t = common_metrics_new();
    struct common_buckets took = {0};
    common_buckets_add(&took, 1024);
    common_buckets_add(&took, 1025);
    common_buckets_add(&took, UINT64_C(100) * 1000 * 1000 * 1000);
    assert_true(common_metrics_put(t,
                                   &(struct common_metric_spec){.kind = COMMON_METRIC_INFO,
                                                                .name = "b_info",
                                                                .help = "\"B\".",
                                                                .label = "v",
                                                                .value = "1",
                                                                .label2 = "r",
                                                                .value2 = "2"},
                                   1));
    assert_true(common_metrics_put(
        t, &(struct common_metric_spec){.kind = COMMON_METRIC_COUNTER, .name = "a_bytes_total", .help = "A."},
        7));
    struct common_metric_spec h = {
        .kind = COMMON_METRIC_HISTOGRAM, .name = "h_seconds", .help = "H.", .label = "m", .value = "x"};
    assert_true(common_metrics_put_buckets(t, &h, &took));
    struct common_exemplars last = {0};
    struct common_trace trace = {.trace_id = {[0] = 0xab, [15] = 1}, .span_id = {[7] = 2}, .flags = 1};
    common_exemplars_note(&last, 1025, &trace);
    last.last[1].wall_ns = UINT64_C(1700000000012345678);
    h.name = "i_seconds";
    assert_true(common_metrics_put_traced(t, &h, &took, &last));
    char *text;
    size_t len;
    assert_int_equal(common_metrics_render(t, COMMON_METRICS_OPENMETRICS, &text, &len), COMMON_OK);
    static const char exemplar[] = "i_seconds_bucket{m=\"x\",le=\"1.024e-06\"} 1\n"
                                   "i_seconds_bucket{m=\"x\",le=\"2.048e-06\"} 2 # {trace_id=\""
                                   "ab000000000000000000000000000001\",span_id=\"0000000000000002\"} "
                                   "1.025e-06 1700000000.012\n"
                                   "i_seconds_bucket{m=\"x\",le=\"4.096e-06\"} 2\n";
    assert_non_null(strstr(text, exemplar));
    static const char head[] =
        "# HELP a_bytes A.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\na_bytes_total 7\n"
        "# HELP b \\\"B\\\".\n# TYPE b info\nb_info{v=\"1\",r=\"2\"} 1\n"
        "# HELP h_seconds H.\n# TYPE h_seconds histogram\n# UNIT h_seconds seconds\n"
        "h_seconds_bucket{m=\"x\",le=\"1.024e-06\"} 1\n"
        "h_seconds_bucket{m=\"x\",le=\"2.048e-06\"} 2\n";
    static const char tail[] = "h_seconds_bucket{m=\"x\",le=\"68.719476736\"} 2\n"
                               "h_seconds_bucket{m=\"x\",le=\"+Inf\"} 3\n"
                               "h_seconds_sum{m=\"x\"} 100.000002049\nh_seconds_count{m=\"x\"} 3\n";
    assert_memory_equal(text, head, strlen(head));
    assert_non_null(strstr(text, tail));
    assert_string_equal(text + len - 6, "# EOF\n");
    free(text);
    assert_int_equal(common_metrics_render(t, COMMON_METRICS_TEXT, &text, &len), COMMON_OK);
    assert_non_null(strstr(text, "# TYPE a_bytes_total counter\na_bytes_total 7\n# HELP b_info \"B\".\n"
                                 "# TYPE b_info gauge\nb_info{"));
    assert_null(strstr(text, "trace_id"));
    assert_null(strstr(text, "UNIT"));
    assert_null(strstr(text, "EOF"));
    free(text);
    common_metrics_free(t);
}

static void test_buckets(void **state)
{
    (void)state;
    static const struct {
        uint64_t ns;
        uint32_t bucket;
    } cases[] = {{0, 0},
                 {1, 0},
                 {1024, 0},
                 {1025, 1},
                 {2048, 1},
                 {2049, 2},
                 {UINT64_C(1) << 36, 26},
                 {(UINT64_C(1) << 36) + 1, 27},
                 {UINT64_MAX / 2, 27},
                 {UINT64_MAX, 27}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct common_buckets b = {0}, sum = {0};
        common_buckets_add(&b, cases[i].ns);
        assert_int_equal(b.counts[cases[i].bucket], 1);
        common_buckets_sum(&sum, &b);
        common_buckets_sum(&sum, &b);
        assert_int_equal(common_buckets_count(&sum), 2);
        assert_true(sum.sum_ns == 2 * cases[i].ns);
    }
}

static void test_accept(void **state)
{
    (void)state;
    static const struct {
        const char *accept;
        bool openmetrics;
    } cases[] = {
        {NULL, false},
        {"", false},
        {"*/*", false},
        {"text/plain", false},
        {"application/openmetrics-text", true},
        {"application/openmetrics-text; version=1.0.0", true},
        {"application/openmetrics-text;version=0.0.1", false},
        {"application/openmetrics-texture", false},
        {"application/openmetrics-text;q=0", false},
        {"text/plain;q=0.9, Application/OpenMetrics-Text;q=0.5", false},
        {"text/plain;version=0.0.4;q=0.3,*/*;q=0.2", false},
        // Prometheus 2.42's, and 3's
        {"application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
         "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
         true},
        {"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
         "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,"
         "text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
         true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(common_http_wants_openmetrics(cases[i].accept), cases[i].openmetrics);
}

static void test_many(void **state)
{
    (void)state;
    struct common_metrics *t = common_metrics_new();
    for (int i = 0; i < 100; i++) {
        char value[8];
        snprintf(value, sizeof value, "%02d", i * 37 % 100);
        put(t, COMMON_METRIC_GAUGE, "g", "n", value, i * 37 % 100);
    }
    char *text;
    size_t len;
    assert_int_equal(common_metrics_render(t, COMMON_METRICS_TEXT, &text, &len), COMMON_OK);
    const char *line = strstr(text, "g{");
    for (int i = 0; i < 100; i++, line = strchr(line, '\n') + 1) {
        char expected[32];
        int n = snprintf(expected, sizeof expected, "g{n=\"%02d\"} %d\n", i, i);
        assert_memory_equal(line, expected, n);
    }
    free(text);
    common_metrics_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),     cmocka_unit_test(test_escapes),     cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_openmetrics), cmocka_unit_test(test_buckets),
        cmocka_unit_test(test_accept),   cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
