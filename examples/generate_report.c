// SPDX-License-Identifier: Apache-2.0
// What a run and its check say, for people and as JSON.
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cli/options.h"
#include "examples/generate.h"

bool generate_color(const struct generate_options *options)
{
    return !options->no_color && !getenv("NO_COLOR") && isatty(STDERR_FILENO);
}

void generate_progress(const char *what, uint64_t done, uint64_t total, double seconds, bool color)
{
    static unsigned last_tenth; // one process, one bar at a time
    unsigned tenth = (unsigned)(done * 10 / total);
    double rate = seconds > 0 ? (double)done / seconds : 0;
    if (!color) {
        if (tenth == last_tenth && done != total)
            return;
        last_tenth = done == total ? 0 : tenth;
        fprintf(stderr, "%s: %" PRIu64 " of %" PRIu64 " tokens, %.0f/s\n", what, done, total, rate);
        return;
    }
    const unsigned width = 32;
    unsigned full = (unsigned)(done * width / total);
    fprintf(stderr, "\r\033[K%s \033[32m", what);
    for (unsigned i = 0; i < width; i++)
        fputs(i < full ? "━" : i == full ? "\033[2m━" : "━", stderr);
    fprintf(stderr, "\033[0m %" PRIu64 "/%" PRIu64 " tokens  %.0f/s%s", done, total, rate,
            done == total ? "\n" : "");
    fflush(stderr);
}

static void print_quantiles(const char *name, const struct common_histogram *h)
{
    printf("  %-22s %10.0f %10.0f\n", name, (double)common_histogram_quantile(h, 0.5) / 1e3,
           (double)common_histogram_quantile(h, 0.99) / 1e3);
}

void generate_report_print(const struct generate_stats *s, const banyan_cluster_info *cluster)
{
    uint64_t compute = 0;
    char bytes[32], time[32];
    for (uint32_t i = 0; i < s->n_traced; i++)
        compute += s->worker[i].compute_ns;
    printf("\nPrompt      %" PRIu64 " tokens in %.1f s (%.0f tokens/s)\n", s->prompt_tokens, s->prefill_s,
           s->prefill_s > 0 ? (double)s->prompt_tokens / s->prefill_s : 0);
    printf("Generated   %" PRIu64 " tokens in %.1f s (%.1f tokens/s)\n", s->generated_tokens, s->generate_s,
           s->generate_s > 0 ? (double)s->generated_tokens / s->generate_s : 0);
    printf("\nA step (one layer of one token), µs\n  %-22s %10s %10s\n", "", "p50", "p99");
    print_quantiles("total", &s->step);
    print_quantiles("RPC to the root", &s->rpc);
    print_quantiles("tree", &s->tree);
    print_quantiles("compute (slowest)", &s->compute);
    printf("\n%-12s %12s %12s %12s %10s %20s\n", "worker", "tokens", "K and V", "compute", "of work",
           "last token's attention");
    for (uint32_t i = 0; i < cluster->n_workers; i++) {
        const banyan_worker_info *w = &cluster->workers[i];
        uint64_t ns = 0;
        double mass = 0;
        for (uint32_t t = 0; t < s->n_traced; t++)
            if (strcmp(s->worker[t].name, w->name) == 0) {
                ns = s->worker[t].compute_ns;
                mass = s->worker[t].mass;
            }
        printf("%-12s %12" PRIu64 " %12s %12s %9.1f%% %19.1f%%\n", w->name, w->tokens,
               common_format_bytes(w->used_bytes, bytes, sizeof(bytes)),
               common_format_ns(ns, time, sizeof(time)), compute ? 100.0 * (double)ns / (double)compute : 0,
               s->masses ? 100 * mass / s->masses : 0);
    }
}

void generate_report_check(const struct generate_check *c)
{
    printf("\nChecked against float64 attention in a separate process (%.1f s):\n", c->seconds);
    printf("  positions compared     %" PRIu64 " of the prompt, evenly spread, and all %" PRIu64
           " after it\n",
           c->prefill_rows, c->rows - c->prefill_rows);
    printf("  largest difference     %.3g of a logit\n", c->max_abs_diff);
    printf("  tokens that agree      %" PRIu64 " of %" PRIu64 "\n", c->tokens_agree, c->tokens);
}

static json_t *stats_json(const struct generate_stats *s)
{
    return json_pack("{s:I,s:I,s:I,s:f,s:f,s:f,s:f}", "workers", (json_int_t)s->workers, "prompt_tokens",
                     (json_int_t)s->prompt_tokens, "generated_tokens", (json_int_t)s->generated_tokens,
                     "tokens_per_s", s->generate_s > 0 ? (double)s->generated_tokens / s->generate_s : 0.0,
                     "prefill_tokens_per_s", s->prefill_s > 0 ? (double)s->prompt_tokens / s->prefill_s : 0.0,
                     "step_p50_us", (double)common_histogram_quantile(&s->step, 0.5) / 1e3, "step_p99_us",
                     (double)common_histogram_quantile(&s->step, 0.99) / 1e3);
}

enum common_code generate_report_json(const char *path, const struct generate_stats *stats,
                                      const struct generate_check *check, struct common_error *err)
{
    json_error_t je;
    json_t *object = stats ? stats_json(stats) : json_load_file(path, 0, &je);
    if (!json_is_object(object)) {
        json_decref(object);
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "%s does not contain the run's numbers: run with --json first", path);
    }
    if (check) {
        json_object_set_new(object, "tokens_agree", json_boolean(check->tokens_agree == check->tokens));
        json_object_set_new(object, "max_abs_diff",
                            isfinite(check->max_abs_diff) ? json_real(check->max_abs_diff) : json_null());
        json_object_set_new(object, "rows_compared", json_integer((json_int_t)check->rows));
    }
    int failed = json_dump_file(object, path, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(object);
    return failed ? common_error_set(err, COMMON_PERMISSION_DENIED, "cannot write %s", path) : COMMON_OK;
}
