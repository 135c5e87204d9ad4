// SPDX-License-Identifier: Apache-2.0
// The record of a run on disk, and its check in another process: the same tokens through the same model with
// float64 attention. File: "BNYNREC1", then the fixed fields below, then tokens (u32), rows (u64), logits
// (f32), little endian as in memory.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "examples/attention64.h"
#include "examples/generate.h"

#define BLOCK 512 // rows of the reference's prefill

struct fixed {
    char magic[8];
    uint32_t vocab, kv_type;
    uint64_t prompt_tokens, n_tokens, n_rows, seed;
    double temperature, top_p;
};

enum common_code generate_record_write(const struct generate_record *r, const char *path,
                                       struct common_error *err)
{
    struct fixed f = {{'B', 'N', 'Y', 'N', 'R', 'E', 'C', '1'},
                      r->vocab,
                      r->kv_type,
                      r->prompt_tokens,
                      r->n_tokens,
                      r->n_rows,
                      r->seed,
                      r->temperature,
                      r->top_p};
    FILE *file = fopen(path, "wb");
    if (!file)
        return common_error_set(err, COMMON_PERMISSION_DENIED, "cannot write %s: %m", path);
    bool ok = fwrite(&f, sizeof(f), 1, file) == 1 &&
              fwrite(r->tokens, sizeof(*r->tokens), r->n_tokens, file) == r->n_tokens &&
              fwrite(r->rows, sizeof(*r->rows), r->n_rows, file) == r->n_rows &&
              fwrite(r->logits, r->vocab * sizeof(float), r->n_rows, file) == r->n_rows;
    if (fclose(file) != 0 || !ok)
        return common_error_set(err, COMMON_UNKNOWN, "cannot write %s: %m", path);
    return COMMON_OK;
}

static bool record_sane(const struct generate_record *r)
{
    if (r->rows[r->n_rows - 1] + 1 != r->n_tokens)
        return false;
    for (uint64_t i = 0; i < r->n_rows; i++)
        if (r->rows[i] >= r->n_tokens || (i && r->rows[i] <= r->rows[i - 1]))
            return false;
    return true;
}

enum common_code generate_record_read(const char *path, struct generate_record *r, struct common_error *err)
{
    struct fixed f;
    FILE *file = fopen(path, "rb");
    if (!file)
        return common_error_set(err, COMMON_NOT_FOUND, "cannot read %s: %m", path);
    const uint64_t limit = UINT64_C(1) << 30;
    bool ok = fread(&f, sizeof(f), 1, file) == 1 && memcmp(f.magic, "BNYNREC1", 8) == 0 && f.vocab > 0 &&
              f.vocab < 1 << 22 && f.n_tokens > 0 && f.n_tokens < limit && f.prompt_tokens > 0 &&
              f.prompt_tokens <= f.n_tokens && f.n_rows > 0 && f.n_rows <= f.n_tokens &&
              f.n_rows < limit * 16 / f.vocab;
    if (ok) {
        *r = (struct generate_record){.vocab = f.vocab,
                                      .kv_type = f.kv_type,
                                      .prompt_tokens = f.prompt_tokens,
                                      .n_tokens = f.n_tokens,
                                      .temperature = f.temperature,
                                      .top_p = f.top_p,
                                      .seed = f.seed,
                                      .n_rows = f.n_rows};
        r->tokens = calloc(f.n_tokens, sizeof(*r->tokens));
        r->rows = calloc(f.n_rows, sizeof(*r->rows));
        r->logits = calloc(f.n_rows, f.vocab * sizeof(float));
        ok = r->tokens && r->rows && r->logits &&
             fread(r->tokens, sizeof(*r->tokens), f.n_tokens, file) == f.n_tokens &&
             fread(r->rows, sizeof(*r->rows), f.n_rows, file) == f.n_rows &&
             fread(r->logits, f.vocab * sizeof(float), f.n_rows, file) == f.n_rows && record_sane(r);
    }
    fclose(file);
    if (!ok)
        return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                "%s is not a complete record of a run; write it with --record", path);
    return COMMON_OK;
}

// A NaN on one side only is an infinite difference.
static double difference(const float *a, const float *b, uint32_t n)
{
    double max = 0;
    for (uint32_t i = 0; i < n; i++) {
        double d = a[i] == b[i] || (isnan(a[i]) && isnan(b[i])) ? 0 : fabs((double)a[i] - (double)b[i]);
        max = isnan(d) ? INFINITY : d > max ? d : max;
    }
    return max;
}

enum common_code generate_check_run(const struct generate_record *r, const struct llama *model,
                                    struct pool *pool, bool color, struct generate_check *out,
                                    struct common_error *err)
{
    uint64_t start = common_clock_ns(), row = 0;
    enum common_code code = COMMON_OK;
    struct sampler sampler = {r->temperature, r->top_p, r->seed};
    struct generate_check check = {0};
    if (r->vocab != model->config.vocab || r->kv_type < BANYAN_F32 || r->kv_type > BANYAN_FP8)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "the record was made with another model");
    struct attention64 *cache =
        attention64_new(&model->config, pool, (banyan_kv_type)r->kv_type, r->n_tokens);
    uint32_t wanted[BLOCK];
    float *logits = malloc(BLOCK * sizeof(float) * r->vocab);
    if (!cache || !logits)
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for the reference");
    for (uint64_t first = 0; code == COMMON_OK && first < r->n_tokens; first += BLOCK) {
        uint32_t rows = r->n_tokens - first < BLOCK ? (uint32_t)(r->n_tokens - first) : BLOCK, n = 0;
        while (row + n < r->n_rows && r->rows[row + n] < first + rows) {
            wanted[n] = (uint32_t)(r->rows[row + n] - first);
            n++;
        }
        code = llama_forward(model, pool, r->tokens + first, first, rows, attention64_attend, cache, wanted,
                             n, logits, err);
        for (uint32_t i = 0; code == COMMON_OK && i < n; i++, row++) {
            uint64_t position = r->rows[row];
            double d = difference(r->logits + row * r->vocab, logits + (size_t)i * r->vocab, r->vocab);
            check.max_abs_diff = d > check.max_abs_diff ? d : check.max_abs_diff;
            check.rows++;
            check.prefill_rows += position + 1 < r->prompt_tokens;
            if (position + 1 >= r->prompt_tokens &&
                position + 1 < r->n_tokens) { // this row chose the next token
                uint32_t token;
                check.tokens++;
                if (sampler_choose(&sampler, logits + (size_t)i * r->vocab, r->vocab, &token) == 0)
                    check.tokens_agree += token == r->tokens[position + 1];
            }
        }
        if (code == COMMON_OK)
            generate_progress("checking in float64", first + rows, r->n_tokens,
                              (double)(common_clock_ns() - start) * 1e-9, color);
    }
    attention64_free(cache);
    free(logits);
    check.seconds = (double)(common_clock_ns() - start) * 1e-9;
    if (code == COMMON_OK)
        *out = check;
    return code;
}
