// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/metrics.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct common_metric {
    enum common_metric_kind kind;
    char *name, *help;
    char *label, *value, *label2, *value2; // NULL or both set
    double number;
    struct common_buckets *buckets;     // of a histogram; NULL: nothing was counted
    struct common_exemplars *exemplars; // of its buckets; NULL: none
};

struct common_metrics {
    struct common_metric **sorted; // by name, then by label values: families stand together
    size_t count, cap;
};

struct common_metrics *common_metrics_new(void)
{
    return calloc(1, sizeof(struct common_metrics));
}

static void free_metric(struct common_metric *metric)
{
    if (!metric)
        return;
    free(metric->name);
    free(metric->help);
    free(metric->label);
    free(metric->value);
    free(metric->label2);
    free(metric->value2);
    free(metric->buckets);
    free(metric->exemplars);
    free(metric);
}

void common_metrics_free(struct common_metrics *table)
{
    if (!table)
        return;
    for (size_t i = 0; i < table->count; i++)
        free_metric(table->sorted[i]);
    free(table->sorted);
    free(table);
}

static bool valid_name(const char *name, bool colons)
{
    for (const char *c = name; *c; c++) {
        bool letter =
            (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || *c == '_' || (colons && *c == ':');
        bool digit = *c >= '0' && *c <= '9';
        if (!letter && !(digit && c != name))
            return false;
    }
    return *name != '\0';
}

static const char *value_of(const char *value)
{
    return value ? value : "";
}

static int order_of(const struct common_metric *m, const char *name, const char *value, const char *value2)
{
    int order = strcmp(m->name, name);
    if (order == 0)
        order = strcmp(value_of(m->value), value_of(value));
    return order ? order : strcmp(value_of(m->value2), value_of(value2));
}

// First index whose name and values are not below the given ones.
static size_t lower_bound(const struct common_metrics *table, const char *name, const char *value,
                          const char *value2)
{
    size_t low = 0, high = table->count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (order_of(table->sorted[mid], name, value, value2) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static bool copy_string(const char *text, char **out)
{
    *out = text ? strdup(text) : NULL;
    return !text || *out;
}

static bool ends_in(const char *name, size_t len, const char *suffix)
{
    size_t n = strlen(suffix);
    return len > n && memcmp(name + len - n, suffix, n) == 0;
}

// Of a kind whose samples have a name of their own: the suffix that the name of the family lacks.
static const char *suffix_of(enum common_metric_kind kind)
{
    return kind == COMMON_METRIC_COUNTER ? "_total" : kind == COMMON_METRIC_INFO ? "_info" : NULL;
}

static bool valid_spec(const struct common_metric_spec *spec)
{
    static const char *const reserved[] = {"_total", "_info", "_bucket", "_count", "_sum", "_created"};
    const char *suffix = suffix_of(spec->kind);
    size_t len = strlen(spec->name);
    if (!valid_name(spec->name, true) || !spec->help || !spec->label != !spec->value ||
        !spec->label2 != !spec->value2 || (spec->label2 && !spec->label))
        return false;
    if (spec->label && (!valid_name(spec->label, false) || !strcmp(spec->label, "le")))
        return false;
    if (spec->label2 && (!valid_name(spec->label2, false) || !strcmp(spec->label2, "le") ||
                         !strcmp(spec->label, spec->label2)))
        return false;
    for (size_t i = 0; !suffix && i < sizeof reserved / sizeof *reserved; i++)
        if (ends_in(spec->name, len, reserved[i]))
            return false;
    return !suffix || ends_in(spec->name, len, suffix);
}

// The metric is the table's and starts at 0. NULL: a name that Prometheus refuses or that is not its kind's,
// another kind than its family's, the same name and label values once more, or no memory.
static struct common_metric *add(struct common_metrics *table, const struct common_metric_spec *spec)
{
    if (!valid_spec(spec))
        return NULL;
    size_t at = lower_bound(table, spec->name, spec->value, spec->value2);
    size_t family = lower_bound(table, spec->name, NULL, NULL);
    if (family < table->count && strcmp(table->sorted[family]->name, spec->name) == 0 &&
        table->sorted[family]->kind != spec->kind)
        return NULL;
    if (at < table->count && order_of(table->sorted[at], spec->name, spec->value, spec->value2) == 0)
        return NULL;
    if (table->count == table->cap) {
        size_t cap = table->cap ? table->cap * 2 : 16;
        struct common_metric **sorted = reallocarray(table->sorted, cap, sizeof *sorted);
        if (!sorted)
            return NULL;
        table->sorted = sorted;
        table->cap = cap;
    }
    struct common_metric *metric = calloc(1, sizeof *metric);
    if (!metric)
        return NULL;
    metric->kind = spec->kind;
    if (!copy_string(spec->name, &metric->name) || !copy_string(spec->help, &metric->help) ||
        !copy_string(spec->label, &metric->label) || !copy_string(spec->value, &metric->value) ||
        !copy_string(spec->label2, &metric->label2) || !copy_string(spec->value2, &metric->value2)) {
        free_metric(metric);
        return NULL;
    }
    memmove(table->sorted + at + 1, table->sorted + at, (table->count - at) * sizeof *table->sorted);
    table->sorted[at] = metric;
    table->count++;
    return metric;
}

bool common_metrics_put(struct common_metrics *table, const struct common_metric_spec *spec, double number)
{
    struct common_metric *metric = add(table, spec);
    if (!metric)
        return false;
    metric->number = number;
    return true;
}

bool common_metrics_put_traced(struct common_metrics *table, const struct common_metric_spec *spec,
                               const struct common_buckets *buckets, const struct common_exemplars *exemplars)
{
    struct common_buckets *copy = malloc(sizeof *copy);
    struct common_exemplars *traced = exemplars ? malloc(sizeof *traced) : NULL;
    assert(spec->kind == COMMON_METRIC_HISTOGRAM);
    struct common_metric *metric = copy && (!exemplars || traced) ? add(table, spec) : NULL;
    if (!metric) {
        free(copy);
        free(traced);
        return false;
    }
    *copy = *buckets;
    metric->buckets = copy;
    if (traced)
        *traced = *exemplars;
    metric->exemplars = traced;
    return true;
}

bool common_metrics_put_buckets(struct common_metrics *table, const struct common_metric_spec *spec,
                                const struct common_buckets *buckets)
{
    return common_metrics_put_traced(table, spec, buckets, NULL);
}

static void write_escaped(FILE *f, const char *text, bool quotes)
{
    for (; *text; text++) {
        if (*text == '\n')
            fputs("\\n", f);
        else if (*text == '\\' || (quotes && *text == '"'))
            fprintf(f, "\\%c", *text);
        else
            fputc(*text, f);
    }
}

static void write_number(FILE *f, double number)
{
    if (isnan(number)) {
        fputs("NaN", f);
        return;
    }
    if (isinf(number)) {
        fputs(number > 0 ? "+Inf" : "-Inf", f);
        return;
    }
    char text[40];
    snprintf(text, sizeof text, "%.15g", number); // short where that is exact
    if (strtod(text, NULL) != number)
        snprintf(text, sizeof text, "%.17g", number);
    fputs(text, f);
}

// {label="value",…,le="bound"}; bound NULL: none.
static void write_labels(FILE *f, const struct common_metric *m, const double *bound)
{
    const char *const labels[] = {m->label, m->label2}, *const values[] = {m->value, m->value2};
    char before = '{';
    for (int i = 0; i < 2 && labels[i]; i++, before = ',') {
        fprintf(f, "%c%s=\"", before, labels[i]);
        write_escaped(f, values[i], true);
        fputc('"', f);
    }
    if (bound) {
        fprintf(f, "%cle=\"", before);
        write_number(f, *bound);
        fputc('"', f);
        before = ',';
    }
    if (before == ',')
        fputc('}', f);
    fputc(' ', f);
}

// Of OpenMetrics 1.0.0: at most 128 characters of names and values, of which these have 63.
static void write_exemplar(FILE *f, const struct common_exemplar *exemplar)
{
    char trace[COMMON_TRACE_ID_TEXT], span[COMMON_TRACE_ID_TEXT];
    common_trace_hex(exemplar->trace.trace_id, sizeof exemplar->trace.trace_id, trace);
    common_trace_hex(exemplar->trace.span_id, sizeof exemplar->trace.span_id, span);
    fprintf(f, " # {trace_id=\"%s\",span_id=\"%s\"} ", trace, span);
    write_number(f, (double)exemplar->ns / 1e9);
    fprintf(f, " %" PRIu64 ".%03u", exemplar->wall_ns / COMMON_NS_PER_S,
            (unsigned)(exemplar->wall_ns % COMMON_NS_PER_S / COMMON_NS_PER_MS));
}

static void write_sample(FILE *f, const struct common_metric *m, const char *suffix, const double *bound,
                         double number, const struct common_exemplar *exemplar)
{
    fprintf(f, "%s%s", m->name, suffix);
    write_labels(f, m, bound);
    write_number(f, number);
    if (exemplar && exemplar->trace.flags)
        write_exemplar(f, exemplar);
    fputc('\n', f);
}

static void write_buckets(FILE *f, const struct common_metric *m, bool openmetrics)
{
    static const struct common_buckets none;
    const struct common_buckets *buckets = m->buckets ? m->buckets : &none;
    uint64_t so_far = 0;
    for (uint32_t i = 0; i <= COMMON_BUCKETS_BOUNDS; i++) {
        double bound = i < COMMON_BUCKETS_BOUNDS ? common_buckets_bound_seconds(i) : INFINITY;
        so_far += buckets->counts[i];
        write_sample(f, m, "_bucket", &bound, (double)so_far,
                     openmetrics && m->exemplars ? &m->exemplars->last[i] : NULL);
    }
    write_sample(f, m, "_sum", NULL, (double)buckets->sum_ns / 1e9, NULL);
    write_sample(f, m, "_count", NULL, (double)so_far, NULL);
}

static void write_family(FILE *f, const struct common_metric *m, bool openmetrics)
{
    static const char *const kinds[] = {"counter", "gauge", "info", "histogram"};
    static const char *const units[] = {"seconds", "bytes"};
    const char *suffix = suffix_of(m->kind);
    int len = (int)(strlen(m->name) - (openmetrics && suffix ? strlen(suffix) : 0));
    fprintf(f, "# HELP %.*s ", len, m->name);
    write_escaped(f, m->help, openmetrics);
    fprintf(f, "\n# TYPE %.*s %s\n", len, m->name,
            m->kind == COMMON_METRIC_INFO && !openmetrics ? "gauge" : kinds[m->kind]);
    for (size_t i = 0; openmetrics && i < sizeof units / sizeof *units; i++) {
        char end[16];
        snprintf(end, sizeof end, "_%s", units[i]);
        if (ends_in(m->name, (size_t)len, end))
            fprintf(f, "# UNIT %.*s %s\n", len, m->name, units[i]);
    }
}

enum common_code common_metrics_render(const struct common_metrics *table, enum common_metrics_format format,
                                       char **out, size_t *len)
{
    bool openmetrics = format == COMMON_METRICS_OPENMETRICS;
    char *text = NULL;
    size_t text_len = 0;
    FILE *f = open_memstream(&text, &text_len);
    if (!f)
        return COMMON_RESOURCE_EXHAUSTED;
    for (size_t i = 0; i < table->count; i++) {
        const struct common_metric *m = table->sorted[i];
        if (i == 0 || strcmp(table->sorted[i - 1]->name, m->name) != 0)
            write_family(f, m, openmetrics);
        if (m->kind == COMMON_METRIC_HISTOGRAM)
            write_buckets(f, m, openmetrics);
        else
            write_sample(f, m, "", NULL, m->number, NULL);
    }
    if (openmetrics)
        fputs("# EOF\n", f);
    bool failed = ferror(f);
    if (fclose(f) != 0 || failed) {
        free(text);
        return COMMON_RESOURCE_EXHAUSTED;
    }
    *out = text;
    *len = text_len;
    return COMMON_OK;
}
