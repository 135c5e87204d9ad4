// SPDX-License-Identifier: Apache-2.0
// How the figures of `bench` are shown: one JSON value, or tables made of it.
#include "client/ctl/bench.h"

#include <inttypes.h>
#include <stdio.h>

#include "client/ctl/spec.h"
#include "common/base/clock.h"

static json_t *times_json(const struct common_histogram *times, uint64_t floor_ns)
{
    uint64_t p50 = common_histogram_quantile(times, 0.5);
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:f}", "count", ctl_json_u64(times->count), "p50_ns",
                     ctl_json_u64(p50), "p90_ns", ctl_json_u64(common_histogram_quantile(times, 0.9)),
                     "p99_ns", ctl_json_u64(common_histogram_quantile(times, 0.99)), "max_ns",
                     ctl_json_u64(times->max), "floor_ns", ctl_json_u64(floor_ns), "to_floor",
                     floor_ns ? (double)p50 / (double)floor_ns : 0.0);
}

static json_t *result_json(const struct ctl_bench_figures *f, const struct ctl_bench_floor *floor)
{
    uint64_t copies = f->spec->replicas;
    uint64_t speed = (uint64_t)((double)f->bytes * 1e9 / (double)(f->attach_ns ? f->attach_ns : 1));
    uint64_t most = floor->here ? floor->bytes_per_s / (copies ? copies : 1) : 0;
    double n = (double)(f->steps.count ? f->steps.count : 1);
    return json_pack("{s:o, s:o, s:o, s:i, s:s, s:o, s:o, s:o, s:{s:o, s:o, s:o, s:o, s:f}, s:o, s:o, "
                     "s:{s:f, s:f, s:f, s:f}}",
                     "tokens", ctl_json_u64(f->tokens), "bytes", ctl_json_u64(f->bytes), "replicas",
                     ctl_json_u64(copies), "workers", (int)floor->members, "slowest_worker", floor->worker,
                     "ping_ns", ctl_json_u64(floor->ping_ns), "memory_ns", ctl_json_u64(floor->memory_ns),
                     "part_bytes", ctl_json_u64(floor->part_bytes), "attach", "bytes", ctl_json_u64(f->bytes),
                     "took_ns", ctl_json_u64(f->attach_ns), "bytes_per_s", ctl_json_u64(speed),
                     "most_bytes_per_s", most ? ctl_json_u64(most) : json_null(), "to_most",
                     most ? (double)speed / (double)most : 0.0, "step",
                     times_json(&f->steps, floor->ping_ns + floor->memory_ns), "append",
                     times_json(&f->appends, floor->ping_ns + floor->memory_ns), "step_mean", "total_ns",
                     (double)f->total_ns / n, "coordinator_ns", (double)f->coordinator_ns / n, "tree_ns",
                     (double)f->tree_ns / n, "compute_ns", (double)f->compute_ns / n);
}

static json_t *times_row(const char *what, const json_t *times)
{
    char text[5][32], ratio[32];
    static const char *const keys[] = {"p50_ns", "p90_ns", "p99_ns", "max_ns", "floor_ns"};
    for (int i = 0; i < 5; i++)
        common_format_ns((uint64_t)json_integer_value(json_object_get(times, keys[i])), text[i],
                         sizeof text[i]);
    snprintf(ratio, sizeof ratio, "%.2f", json_real_value(json_object_get(times, "to_floor")));
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "what", what, "p50", text[0], "p90", text[1],
                     "p99", text[2], "max", text[3], "floor", text[4], "ratio", ratio);
}

static void print_tables(const struct ctl *ctl, const struct ctl_bench_figures *f,
                         const struct ctl_bench_floor *floor, const json_t *result)
{
    static const struct ctl_column columns[] = {
        {"what", "", CTL_TEXT},
        {"p50", "P50", CTL_TEXT},
        {"p90", "P90", CTL_TEXT},
        {"p99", "P99", CTL_TEXT},
        {"max", "MOST", CTL_TEXT},
        {"floor", "FLOOR", CTL_TEXT},
        {"ratio", "P50 / FLOOR", CTL_TEXT},
        {0},
    };
    char text[4][32];
    const json_t *attach = json_object_get(result, "attach"), *mean = json_object_get(result, "step_mean");
    uint64_t most = (uint64_t)json_integer_value(json_object_get(attach, "most_bytes_per_s"));
    printf("%" PRIu64 " tokens, %" PRIu64 " layer%s, %u query and %u KV heads of %u"
           ", %s: %s of K and V, %u cop%s, on %u worker%s\n\n",
           f->tokens, f->layers, f->layers == 1 ? "" : "s", f->spec->q_heads, f->spec->kv_heads,
           f->spec->k_dim, ctl_type_name(f->spec->kv_type),
           common_format_bytes(f->bytes, text[0], sizeof text[0]), f->spec->replicas,
           f->spec->replicas == 1 ? "y" : "ies", floor->members, floor->members == 1 ? "" : "s");
    json_t *rows = json_array();
    json_array_append_new(rows, times_row("step", json_object_get(result, "step")));
    json_array_append_new(rows, times_row("append", json_object_get(result, "append")));
    ctl_print_rows(ctl, rows, columns);
    printf(
        "\nThe floor: the shortest round trip to the coordinator, %s, and the memory of the slowest worker,\n"
        "%s: %s of one layer at its measured speed, %s.\n",
        common_format_ns(floor->ping_ns, text[0], sizeof text[0]), floor->worker,
        common_format_bytes(floor->part_bytes, text[1], sizeof text[1]),
        common_format_ns(floor->memory_ns, text[2], sizeof text[2]));
    static const char *const parts[] = {"total_ns", "coordinator_ns", "tree_ns", "compute_ns"};
    for (int i = 0; i < 4; i++)
        common_format_ns((uint64_t)json_real_value(json_object_get(mean, parts[i])), text[i], sizeof text[i]);
    printf("Mean of a step: %s in the service; coordinator %s, tree %s, including %s of computing at the "
           "slowest worker.\n",
           text[0], text[1], text[2], text[3]);
    printf("attach %s/s",
           common_format_bytes((uint64_t)json_integer_value(json_object_get(attach, "bytes_per_s")), text[0],
                               sizeof text[0]));
    if (most)
        printf("; a plain TCP connection here carries %s/s of as many copies: %.2f of that\n",
               common_format_bytes(most, text[1], sizeof text[1]),
               json_real_value(json_object_get(attach, "to_most")));
    else
        printf("; workers are on other machines: measure the network between (iperf3) for its floor\n");
}

void ctl_bench_tell(const struct ctl *ctl, const struct ctl_bench_figures *figures,
                    const struct ctl_bench_floor *floor)
{
    json_t *result = result_json(figures, floor);
    if (ctl->json) {
        ctl_print_json(result);
        return;
    }
    print_tables(ctl, figures, floor, result);
    json_decref(result);
}
