// SPDX-License-Identifier: Apache-2.0
// Named counters, gauges and histograms, rendered for Prometheus: as text (exposition format 0.0.4) or as OpenMetrics 1.0.0.
// A table and its metrics belong to one thread.
//
//   kind        name          text                        OpenMetrics
//   COUNTER     x_total       # TYPE x_total counter      # TYPE x counter, and x_total
//   GAUGE       x             # TYPE x gauge              # TYPE x gauge
//   INFO        x_info        # TYPE x_info gauge, 1      # TYPE x info, and x_info 1
//   HISTOGRAM   x_seconds     x_seconds_bucket{le="…"}, x_seconds_sum, x_seconds_count, in both
#ifndef COMMON_METRICS_H
#define COMMON_METRICS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"
#include "common/metrics/buckets.h"
#include "common/metrics/exemplars.h"

struct common_metrics; // opaque: the table

enum common_metric_kind {
    COMMON_METRIC_COUNTER, // only rises
    COMMON_METRIC_GAUGE,
    COMMON_METRIC_INFO, // 1: what it says is in its labels
    COMMON_METRIC_HISTOGRAM,
};

enum common_metrics_format { COMMON_METRICS_TEXT, COMMON_METRICS_OPENMETRICS };

// Strings are copied. Metrics of one name are a family: one kind, one help text (the first), different label
// values.
struct common_metric_spec {
    enum common_metric_kind kind;
    const char *name; // [a-zA-Z_:][a-zA-Z0-9_:]*, with the unit: "banyan_step_seconds"
    const char *help; // one sentence
    const char *label,
        *label2; // [a-zA-Z_][a-zA-Z0-9_]*, or NULL: the second only beside the first, never "le"
    const char *value, *value2; // of the labels: any UTF-8
};

struct common_metrics *common_metrics_new(void);        // NULL when memory is short
void common_metrics_free(struct common_metrics *table); // and its metrics; NULL is allowed

// Adds a metric with this value. False: a name that Prometheus refuses or that is not its kind's, another
// kind than its family's, the same name and label values once more, or no memory.
bool common_metrics_put(struct common_metrics *table, const struct common_metric_spec *spec, double number);
bool common_metrics_put_buckets(struct common_metrics *table, const struct common_metric_spec *spec,
                                const struct common_buckets *buckets); // copied; HISTOGRAM
// With exemplars (copied), which OpenMetrics alone shows: `# {trace_id="…",span_id="…"} seconds when` behind a bucket.
bool common_metrics_put_traced(struct common_metrics *table, const struct common_metric_spec *spec,
                               const struct common_buckets *buckets,
                               const struct common_exemplars *exemplars);

// The whole table, families and label values in order of name; of names that end in _seconds or _bytes OpenMetrics has the
// unit, too. *out is the caller's to free; NUL-terminated,
// *len without the NUL. RESOURCE_EXHAUSTED.
enum common_code common_metrics_render(const struct common_metrics *table, enum common_metrics_format format,
                                       char **out, size_t *len);

#endif
