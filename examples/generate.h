// SPDX-License-Identifier: Apache-2.0
// What the parts of the example share. A run writes a *record* (tokens and logits), which a second process
// checks against float64 attention.
#ifndef EXAMPLES_GENERATE_H
#define EXAMPLES_GENERATE_H

#include <stdbool.h>
#include <stdint.h>

#include "client/banyan.h"
#include "common/metrics/histogram.h"
#include "examples/llama.h"
#include "examples/sampler.h"

struct generate_options {
    const char *model_dir, *endpoint, *token_file, *prompt_file, *ask, *kv_name, *record_file, *json_file,
        *session_name, *check_file;
    uint64_t prompt_tokens, generate_tokens, block, members, threads, seed;
    double temperature, top_p;
    bool full_check, no_color, local, keep_session;
    banyan_kv_type kv_type;
};

struct generate_worker { // summed over the traces of the run
    char name[65];
    uint64_t compute_ns;
    double mass; // attention that the last token's layers gave to what it holds, summed over `masses` layers
};

// What a run reports. Times of steps are of generated tokens: one attend call of one layer each.
struct generate_stats {
    uint64_t workers, prompt_tokens, generated_tokens;
    double prefill_s, generate_s;
    struct common_histogram step, rpc, tree, compute;
    struct generate_worker worker[64];
    uint32_t n_traced, masses;
};

// Tokens of the sequence (prompt, then generated) and the logits of some of its rows, in ascending order.
struct generate_record {
    uint32_t vocab, kv_type;
    uint64_t prompt_tokens, n_tokens;
    double temperature, top_p;
    uint64_t seed, n_rows;
    uint32_t *tokens; // [n_tokens]
    uint64_t *rows;   // [n_rows] positions
    float *logits;    // [n_rows][vocab]
};

struct generate_check {
    double max_abs_diff; // of the logits
    uint64_t rows, prefill_rows, tokens, tokens_agree;
    double seconds;
};

// generate_cluster.c: the run itself, over a cluster, or with the float64 reference in this process
// (options->local).
enum common_code generate_run(const struct generate_options *options, const struct llama *model,
                              struct pool *pool, struct generate_record *record, struct generate_stats *stats,
                              struct common_error *err);
// Makes room for the rows that will be kept: every generated token's, and a sample of the prompt's (all of
// them with full_check).
enum common_code generate_record_init(struct generate_record *record, const struct generate_options *options,
                                      uint32_t vocab, uint64_t prompt_tokens, struct common_error *err);
void generate_record_free(struct generate_record *record);

// generate_check.c
enum common_code generate_record_write(const struct generate_record *record, const char *path,
                                       struct common_error *err);
enum common_code generate_record_read(const char *path, struct generate_record *record,
                                      struct common_error *err);
// Runs the recorded tokens with float64 attention and compares.
enum common_code generate_check_run(const struct generate_record *record, const struct llama *model,
                                    struct pool *pool, bool color, struct generate_check *out,
                                    struct common_error *err);

// generate_report.c
// Whether standard output is a terminal and colours were not refused.
bool generate_color(const struct generate_options *options);
void generate_progress(const char *what, uint64_t done, uint64_t total, double seconds, bool color);
void generate_report_print(const struct generate_stats *stats, const banyan_cluster_info *cluster);
void generate_report_check(const struct generate_check *check);
// Writes the run's numbers; with check, adds its numbers to the file that the run wrote.
enum common_code generate_report_json(const char *path, const struct generate_stats *stats,
                                      const struct generate_check *check, struct common_error *err);

#endif
