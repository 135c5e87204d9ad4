// SPDX-License-Identifier: Apache-2.0
// The last hour, as columns: a number of each sample, the oldest first.
#include <stddef.h>

#include "coordinator/dashboard/ask.h"
#include "coordinator/dashboard/history.h"

static const struct column {
    const char *name;
    size_t offset; // of its uint64_t in a sample
    bool none;     // 0 stands for no answer at all
} columns[] = {
#define COLUMN(field, none)                                                                                  \
    {                                                                                                        \
#field, offsetof(struct coordinator_history_sample, field), none                                     \
    }
    COLUMN(at_ns, false),          COLUMN(span_ns, false), COLUMN(steps, false),  COLUMN(failures, false),
    COLUMN(retries, false),        COLUMN(p50_ns, true),   COLUMN(p99_ns, true),  COLUMN(used_bytes, false),
    COLUMN(capacity_bytes, false), COLUMN(workers, false), COLUMN(active, false), COLUMN(sessions, false),
    COLUMN(thin_chunks, false)
#undef COLUMN
};

COORDINATOR_DASHBOARD_ASK(history)
{
    (void)query, (void)id, (void)err;
    const struct coordinator_history *history = &d->history;
    json_t *series = json_object();
    for (size_t c = 0; c < sizeof(columns) / sizeof(*columns); c++) {
        json_t *values = json_array();
        for (uint32_t i = 0; i < history->n; i++) {
            const char *sample = (const char *)coordinator_history_at(history, i);
            uint64_t n = *(const uint64_t *)(const void *)(sample + columns[c].offset);
            json_array_append_new(values, n || !columns[c].none ? coordinator_dashboard_u64(n) : json_null());
        }
        json_object_set_new(series, columns[c].name, values);
    }
    *out =
        json_pack("{s:o, s:o, s:i, s:{s:o, s:o, s:o}, s:o}", "now_ns",
                  coordinator_dashboard_u64(common_clock_ns()), "every_ns",
                  coordinator_dashboard_u64(COORDINATOR_HISTORY_EVERY_NS), "most", COORDINATOR_HISTORY_MOST,
                  "counters", "steps", coordinator_dashboard_u64(history->last.steps), "failures",
                  coordinator_dashboard_u64(history->last.failures), "retries",
                  coordinator_dashboard_u64(history->last.retries), "series", series);
    return COMMON_OK;
}
