// SPDX-License-Identifier: Apache-2.0
#include "common/metrics.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct common_metric {
    enum common_metric_kind kind;
    char *name, *help, *label, *value; // label and value: NULL or both set
    double number;
};

struct common_metrics {
    struct common_metric **sorted; // by name, then by label value: families stand together
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

// First index whose (name, value) is not below the given ones.
static size_t lower_bound(const struct common_metrics *table, const char *name, const char *value)
{
    size_t low = 0, high = table->count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct common_metric *m = table->sorted[mid];
        int order = strcmp(m->name, name);
        if (order == 0)
            order = strcmp(value_of(m->value), value_of(value));
        if (order < 0)
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

enum common_code common_metrics_add(struct common_metrics *table, const struct common_metric_spec *spec,
                                    struct common_metric **out)
{
    if (!valid_name(spec->name, true) || (spec->label && !valid_name(spec->label, false)) ||
        !spec->label != !spec->value || !spec->help)
        return COMMON_INVALID_ARGUMENT;
    size_t at = lower_bound(table, spec->name, spec->value);
    size_t family = lower_bound(table, spec->name, NULL);
    if (family < table->count && strcmp(table->sorted[family]->name, spec->name) == 0 &&
        table->sorted[family]->kind != spec->kind)
        return COMMON_INVALID_ARGUMENT;
    if (at < table->count && strcmp(table->sorted[at]->name, spec->name) == 0 &&
        strcmp(value_of(table->sorted[at]->value), value_of(spec->value)) == 0)
        return COMMON_ALREADY_EXISTS;
    if (table->count == table->cap) {
        size_t cap = table->cap ? table->cap * 2 : 16;
        struct common_metric **sorted = reallocarray(table->sorted, cap, sizeof *sorted);
        if (!sorted)
            return COMMON_RESOURCE_EXHAUSTED;
        table->sorted = sorted;
        table->cap = cap;
    }
    struct common_metric *metric = calloc(1, sizeof *metric);
    if (!metric)
        return COMMON_RESOURCE_EXHAUSTED;
    metric->kind = spec->kind;
    if (!copy_string(spec->name, &metric->name) || !copy_string(spec->help, &metric->help) ||
        !copy_string(spec->label, &metric->label) || !copy_string(spec->value, &metric->value)) {
        free_metric(metric);
        return COMMON_RESOURCE_EXHAUSTED;
    }
    memmove(table->sorted + at + 1, table->sorted + at, (table->count - at) * sizeof *table->sorted);
    table->sorted[at] = metric;
    table->count++;
    *out = metric;
    return COMMON_OK;
}

void common_metrics_remove(struct common_metrics *table, struct common_metric *metric)
{
    if (!metric)
        return;
    size_t at = lower_bound(table, metric->name, metric->value);
    assert(at < table->count && table->sorted[at] == metric);
    table->count--;
    memmove(table->sorted + at, table->sorted + at + 1, (table->count - at) * sizeof *table->sorted);
    free_metric(metric);
}

void common_metric_add(struct common_metric *metric, double delta)
{
    assert(metric->kind == COMMON_METRIC_GAUGE || delta >= 0);
    metric->number += delta;
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

enum common_code common_metrics_render(const struct common_metrics *table, char **out, size_t *len)
{
    char *text = NULL;
    size_t text_len = 0;
    FILE *f = open_memstream(&text, &text_len);
    if (!f)
        return COMMON_RESOURCE_EXHAUSTED;
    for (size_t i = 0; i < table->count; i++) {
        const struct common_metric *m = table->sorted[i];
        if (i == 0 || strcmp(table->sorted[i - 1]->name, m->name) != 0) {
            fprintf(f, "# HELP %s ", m->name);
            write_escaped(f, m->help, false);
            fprintf(f, "\n# TYPE %s %s\n", m->name, m->kind == COMMON_METRIC_COUNTER ? "counter" : "gauge");
        }
        fputs(m->name, f);
        if (m->label) {
            fprintf(f, "{%s=\"", m->label);
            write_escaped(f, m->value, true);
            fputs("\"}", f);
        }
        fputc(' ', f);
        write_number(f, m->number);
        fputc('\n', f);
    }
    bool failed = ferror(f);
    if (fclose(f) != 0 || failed) {
        free(text);
        return COMMON_RESOURCE_EXHAUSTED;
    }
    *out = text;
    *len = text_len;
    return COMMON_OK;
}
