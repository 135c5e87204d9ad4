// SPDX-License-Identifier: Apache-2.0
// Step latency of clusters that are not here, by the planner's own cost model. See --help.
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/main.h"
#include "bench/report.h"
#include "reduce/plan.h"
#include "research/simulate_fit.h"
#include "research/simulate_gpu.h"

#define POINTS_MOST 1024u

static const char *algo = "service-stream";
static const char *measured;
static uint64_t cores = 2, fit_workers = 4;
static bool json;

// Lines of research/paper and paper_service; the last one of a size counts. Negative: cannot be read.
static int read_points(const char *path, struct simulate_point *points)
{
    char *line = NULL;
    size_t room = 0;
    int n = 0;
    FILE *file = fopen(path, "re");
    if (!file) {
        fprintf(stderr, "simulate: cannot open '%s'\n", path);
        return -1;
    }
    while (n >= 0 && getline(&line, &room, file) > 0) {
        json_error_t error;
        json_t *o = json_loads(line, 0, &error);
        const char *name = json_string_value(json_object_get(o, "algo"));
        if (!name) {
            fprintf(stderr, "simulate: '%s' has a line that is none of research/paper --json\n", path);
            n = -1;
        } else if (!strcmp(name, algo) && n < (int)POINTS_MOST) {
            points[n++] = (struct simulate_point){
                .workers = (uint32_t)json_number_value(json_object_get(o, "workers")),
                .q_heads = (uint32_t)json_number_value(json_object_get(o, "q_heads")),
                .kv_heads = (uint32_t)json_number_value(json_object_get(o, "kv_heads")),
                .dim = (uint32_t)json_number_value(json_object_get(o, "dim")),
                .tokens = (uint64_t)json_number_value(json_object_get(o, "tokens_per_worker")),
                .median_us = json_number_value(json_object_get(o, "median_us"))};
            const struct simulate_point *p = &points[n - 1];
            if (p->workers == 0 || p->q_heads == 0 || p->dim == 0 || p->kv_heads == 0 ||
                !(p->median_us > 0)) {
                fprintf(stderr, "simulate: '%s' has a line without workers, heads, dim or median_us\n", path);
                n = -1;
            }
        }
        json_decref(o);
    }
    free(line);
    fclose(file);
    return n;
}

static bool run_fit(const char *path)
{
    static struct simulate_point points[POINTS_MOST];
    double terms[SIMULATE_TERMS], worst = 0;
    int n = read_points(path, points);
    if (n < 0)
        return false;
    uint32_t used = simulate_fit(points, (uint32_t)n, (uint32_t)fit_workers, (uint32_t)cores, terms);
    if (used == 0) {
        fprintf(stderr, "simulate: fewer than %u steps of %s on up to %u workers\n", SIMULATE_TERMS, algo,
                (uint32_t)fit_workers);
        return false;
    }
    const struct report_field fitted[] = {{"bench", "simulate", 0},
                                          {"what", "terms", 0},
                                          {"algo", algo, 0},
                                          {"points", NULL, used},
                                          {"cores", NULL, (double)cores},
                                          {"client_us", NULL, terms[SIMULATE_CLIENT_NS] / 1e3},
                                          {"frame_cpu_us", NULL, terms[SIMULATE_FRAME_CPU_NS] / 1e3},
                                          {"latency_us", NULL, terms[SIMULATE_LATENCY_NS] / 1e3},
                                          {"compute_fixed_us", NULL, terms[SIMULATE_COMPUTE_FIXED_NS] / 1e3},
                                          {"bandwidth", NULL, terms[SIMULATE_BANDWIDTH]},
                                          {0}};
    report_line(json, fitted);
    for (int i = 0; i < n; i++) {
        struct simulate_point *p = &points[i];
        p->predicted_us = simulate_predict(terms, p, (uint32_t)cores);
        bool in_fit = p->workers <= fit_workers;
        double off = p->predicted_us / p->median_us - 1;
        worst = in_fit ? worst : fmax(worst, fabs(off));
        const struct report_field fields[] = {{"bench", "simulate", 0},
                                              {"what", in_fit ? "fitted" : "predicted", 0},
                                              {"workers", NULL, p->workers},
                                              {"tokens_per_worker", NULL, (double)p->tokens},
                                              {"measured_us", NULL, p->median_us},
                                              {"predicted_us", NULL, p->predicted_us},
                                              {"error", NULL, off},
                                              {0}};
        report_line(json, fields);
        simulate_point_fini(p);
    }
    const struct report_field summary[] = {
        {"bench", "simulate", 0}, {"what", "worst_error", 0}, {"error", NULL, worst}, {0}};
    report_line(json, summary);
    return true;
}

static void report_gpus(const char *what, const struct simulate_gpu *gpu, const struct simulate_size *size,
                        double published)
{
    struct simulate_times t = simulate_gpu_step(gpu, size);
    const struct report_field fields[] = {
        {"bench", "simulate", 0},
        {"what", what, 0},
        {"gpus", NULL, size->gpus},
        {"tokens", NULL, size->tokens * size->gpus},
        {"compute_us", NULL, t.compute_us},
        {"tree_us", NULL, t.tree_us},
        {"ring_card_us", NULL, t.ring_card_us},
        {"ring_cards_us", NULL, t.ring_cards_us},
        {"speedup_card", NULL, t.ring_card_us / t.tree_us},
        {"speedup_cards", NULL, t.ring_cards_us / t.tree_us},
        {"paper_speedup", NULL, published > 0 ? published : NAN},
        // What must be added to both for the published ratio: (ring + x) / (tree + x) = published
        {"overhead_us", NULL,
         published > 1 ? (t.ring_cards_us - published * t.tree_us) / (published - 1) : NAN},
        {"fan_in", NULL, t.fan_in == REDUCE_FAN_BINOMIAL ? -1 : (double)t.fan_in},
        {"fan_out", NULL, t.fan_out == REDUCE_FAN_BINOMIAL ? -1 : (double)t.fan_out},
        {0}};
    report_line(json, fields);
}

static void run_gpus(void)
{
    struct simulate_gpu gpu = simulate_gpu_h100();
    // Section 6.1: 16 heads x 128; 80,000 to 5.12 M tokens; about x8 at 128 GPUs and the longest context.
    static const uint32_t clusters[] = {8, 64, 128};
    static const double contexts[] = {80e3, 320e3, 1280e3, 5120e3};
    for (uint32_t c = 0; c < 3; c++) {
        for (uint32_t t = 0; t < 4; t++) {
            struct simulate_size size = {clusters[c], 16, 16, 128, contexts[t] / clusters[c]};
            report_gpus("gpus", &gpu, &size, clusters[c] == 128 && t == 3 ? 8 : 0);
        }
    }
    for (uint32_t n = 8; n <= 65536; n *= 2) {
        struct simulate_size size = {n, 16, 16, 128, 40000};
        report_gpus("scale", &gpu, &size, 0);
    }
}

static bool measure_all(void)
{
    if (measured && !run_fit(measured))
        return false;
    run_gpus();
    return true;
}

int main(int argc, char **argv)
{
    const struct common_option options[] = {
        {"measured", 'm', COMMON_OPTION_STRING, &measured, "FILE",
         "fit to the lines of research/paper or paper_service in it, and compare", 0, 0},
        {"algo", 'a', COMMON_OPTION_STRING, &algo, "NAME",
         "of its lines those of this one (default service-stream)", 0, 0},
        {"cores", 0, COMMON_OPTION_U64, &cores, "N", "that all its workers shared (default 2)", 1, 65535},
        {"fit-workers", 0, COMMON_OPTION_U64, &fit_workers, "N",
         "fit to sizes of up to so many workers, predict the others (default 4)", 1, 4096},
        {0},
    };
    const struct bench_program program = {
        .name = "simulate",
        .about =
            "Step latency for any number of workers, by the planner's cost model (reduce/cost.h).\n"
            "--measured: fits the model's terms to steps of few workers and prints what it says of all,\n"
            "and how far off that is. Then GPUs at the paper's sizes, and on to 65,536 of them with\n"
            "40,000 tokens each: tree, and a ring over one network card of each node's border and over\n"
            "all its cards. overhead_us: what must be added to both for the paper's ratio. The figures of\n"
            "an H100 cluster are assumed, not measured: memory 0.85 x 3.35 TB/s, launch 5 us, NVLink 450\n"
            "GB/s and 1.5 us, card 50 GB/s and 5 us, 1 us a message and side, merging 500 GB/s.",
        .options = options,
        .json = &json,
        .measure = measure_all,
    };
    return bench_main(&program, argc, argv);
}
