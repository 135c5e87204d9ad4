// SPDX-License-Identifier: Apache-2.0
// Named counters and gauges, rendered as Prometheus text (exposition format 0.0.4). A table and its metrics
// belong to one thread.
#ifndef COMMON_METRICS_H
#define COMMON_METRICS_H

#include <stddef.h>

#include "common/status.h"

struct common_metrics; // opaque: the table
struct common_metric;  // opaque: one time series

enum common_metric_kind {
    COMMON_METRIC_COUNTER, // only rises
    COMMON_METRIC_GAUGE,
};

// Strings are copied. Metrics of one name are a family: one kind, one help text (the first), different label
// values.
struct common_metric_spec {
    enum common_metric_kind kind;
    const char *name;  // [a-zA-Z_:][a-zA-Z0-9_:]*, with the unit: "banyan_step_seconds_total"
    const char *help;  // one sentence
    const char *label; // [a-zA-Z_][a-zA-Z0-9_]*, or NULL
    const char *value; // of the label: any UTF-8
};

struct common_metrics *common_metrics_new(void);        // NULL when memory is short
void common_metrics_free(struct common_metrics *table); // and its metrics; NULL is allowed

// The metric is the table's and starts at 0. INVALID_ARGUMENT: a name that Prometheus refuses, or another
// kind than its family's. ALREADY_EXISTS: same name and label value. RESOURCE_EXHAUSTED.
enum common_code common_metrics_add(struct common_metrics *table, const struct common_metric_spec *spec,
                                    struct common_metric **out);
// Frees the metric; NULL is allowed.
void common_metrics_remove(struct common_metrics *table, struct common_metric *metric);

void common_metric_add(struct common_metric *metric, double delta); // a counter's delta is >= 0

// The whole table, families and label values in order of name. *out is the caller's to free; NUL-terminated,
// *len without the NUL. RESOURCE_EXHAUSTED.
enum common_code common_metrics_render(const struct common_metrics *table, char **out, size_t *len);

#endif
