// SPDX-License-Identifier: Apache-2.0
// precision: what keeping K and V as f16, bf16, int8 or fp8 costs, on the activations of a real model. No
// cluster: attention is the float64 reference of attention64.c, so what differs is the type alone.
//
//   precision --model DIR --text F --skip 4272279 --tokens 8192
//
// The model reads the text once with K and V as float32. At each layer the same q attends over the same K and
// V kept in each type: errors of K, V and o by layer. Then it reads the text again with all layers' K and V
// in that type: errors of the logits, tokens, bits a token. Prints the tables of docs/internals/precision.md.
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/cli/options.h"
#include "examples/attention64.h"
#include "examples/llama.h"
#include "examples/pool.h"
#include "examples/rounding.h"
#include "examples/text.h"

#define BLOCK      256 // rows at a time
#define LAYERS_MAX 256
#define DIM_MAX    1024

static const banyan_kv_type types[] = {BANYAN_F16, BANYAN_BF16, BANYAN_INT8, BANYAN_FP8};
#define TYPES (sizeof(types) / sizeof(*types))

struct error { // of many numbers
    double difference2, value2;
    double worst; // largest relative error of a row (one head of one token)
};

enum { OF_K, OF_V, OF_O, PARTS };

struct measure { // arg of measure_attend
    const struct llama_config *config;
    struct attention64 *exact, *kept[TYPES];
    float *o; // [BLOCK][q_heads][head_dim]
    struct error error[LAYERS_MAX][TYPES][PARTS];
};

static void add_row(struct error *e, double difference2, double value2)
{
    e->difference2 += difference2;
    e->value2 += value2;
    if (value2 > 0)
        e->worst = fmax(e->worst, sqrt(difference2 / value2));
}

static void compare_kept(struct error *e, banyan_kv_type type, const float *x, size_t rows, uint32_t dim)
{
    float element[DIM_MAX];
    for (size_t r = 0; r < rows; r++, x += dim) {
        double difference2 = 0, value2 = 0, scale = (double)rounding_floats(type, x, dim, element);
        for (uint32_t i = 0; i < dim; i++) {
            double d = scale * (double)element[i] - (double)x[i];
            difference2 += d * d;
            value2 += (double)x[i] * (double)x[i];
        }
        add_row(e, difference2, value2);
    }
}

static void compare_o(struct error *e, const float *got, const float *want, size_t rows, uint32_t dim)
{
    for (size_t r = 0; r < rows; r++, got += dim, want += dim) {
        double difference2 = 0, value2 = 0;
        for (uint32_t i = 0; i < dim; i++) {
            double d = (double)got[i] - (double)want[i];
            difference2 += d * d;
            value2 += (double)want[i] * (double)want[i];
        }
        add_row(e, difference2, value2);
    }
}

// A llama_attend_fn: answers with K and V as float32, and measures the others beside it.
static enum common_code measure_attend(void *arg, uint32_t layer, uint64_t first, uint32_t rows,
                                       const float *q, const float *k, const float *v, float *o,
                                       struct common_error *err)
{
    struct measure *m = arg;
    const struct llama_config *c = m->config;
    enum common_code code = attention64_attend(m->exact, layer, first, rows, q, k, v, o, err);
    for (size_t t = 0; t < TYPES && code == COMMON_OK; t++) {
        struct error *e = m->error[layer][t];
        compare_kept(&e[OF_K], types[t], k, (size_t)rows * c->kv_heads, c->head_dim);
        compare_kept(&e[OF_V], types[t], v, (size_t)rows * c->kv_heads, c->head_dim);
        code = attention64_attend(m->kept[t], layer, first, rows, q, k, v, m->o, err);
        compare_o(&e[OF_O], m->o, o, (size_t)rows * c->q_heads, c->head_dim);
    }
    return code;
}

// Logits of every row: [n][vocab].
static enum common_code read_text(const struct llama *model, struct pool *pool, const uint32_t *tokens,
                                  uint64_t n, llama_attend_fn attend, void *arg, const char *what,
                                  float *logits, struct common_error *err)
{
    uint32_t all[BLOCK];
    enum common_code code = COMMON_OK;
    for (uint32_t i = 0; i < BLOCK; i++)
        all[i] = i;
    for (uint64_t first = 0; first < n && code == COMMON_OK; first += BLOCK) {
        uint32_t rows = n - first < BLOCK ? (uint32_t)(n - first) : BLOCK;
        if (isatty(STDERR_FILENO))
            fprintf(stderr, "\r%s: %" PRIu64 " of %" PRIu64 " tokens ", what, first, n);
        code = llama_forward(model, pool, tokens + first, first, rows, attend, arg, all, rows,
                             logits + first * model->config.vocab, err);
    }
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%60s\r", "");
    return code;
}

static uint32_t top(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

static double bits(const float *logits, uint32_t vocab, uint32_t token)
{
    const uint32_t best = top(logits, vocab);
    double max = (double)logits[best], sum = 1; // of the best one
    for (uint32_t i = 0; i < vocab; i++)
        sum += i == best ? 0 : exp((double)logits[i] - max);
    return (log(sum) + max - (double)logits[token]) / log(2);
}

// One line of the last table: logits against those with K and V as float32, and against the text.
static void print_run(const struct llama_config *c, banyan_kv_type type, const uint32_t *tokens, uint64_t n,
                      const float *logits, const float *exact)
{
    double difference2 = 0, largest = 0, total = 0;
    uint64_t agree = 0, right = 0;
    for (uint64_t r = 0; r < n; r++) {
        const float *a = logits + r * c->vocab, *b = exact + r * c->vocab;
        for (uint32_t i = 0; i < c->vocab; i++) {
            double d = fabs((double)a[i] - (double)b[i]);
            difference2 += d * d;
            largest = fmax(largest, d);
        }
        agree += top(a, c->vocab) == top(b, c->vocab);
        if (r + 1 < n) {
            right += top(a, c->vocab) == tokens[r + 1];
            total += bits(a, c->vocab, tokens[r + 1]);
        }
    }
    size_t head = c->head_dim * rounding_bytes(type) + (banyan_kv_scaled(type) ? sizeof(float) : 0);
    printf("| %s | %zu | %.2g | %.2g | %.3f %% | %.3f %% | %.5f |\n", rounding_name(type),
           2 * c->kv_heads * head, sqrt(difference2 / ((double)n * c->vocab)), largest,
           100 * (double)agree / (double)n, 100 * (double)right / (double)(n - 1), total / (double)(n - 1));
}

static void print_layers(const struct measure *m)
{
    static const char *const names[PARTS] = {"K", "V", "o"};
    printf("| relative error of | layer |");
    for (size_t t = 0; t < TYPES; t++)
        printf(" %s |", rounding_name(types[t]));
    printf("\n|---|---|---|---|---|---|\n");
    for (int part = 0; part < PARTS; part++)
        for (uint32_t l = 0; l < m->config->layers; l++) {
            printf("| %s | %u |", names[part], l);
            for (size_t t = 0; t < TYPES; t++) {
                const struct error *e = &m->error[l][t][part];
                printf(" %.2g (%.2g) |", sqrt(e->difference2 / e->value2), e->worst);
            }
            printf("\n");
        }
}

static enum common_code run(const struct llama *model, struct pool *pool, const uint32_t *tokens, uint64_t n,
                            struct common_error *err)
{
    const struct llama_config *c = &model->config;
    struct measure *m = calloc(1, sizeof(*m));
    float *exact = malloc(n * c->vocab * sizeof(float)), *logits = malloc(n * c->vocab * sizeof(float));
    enum common_code code = COMMON_OK;
    bool room = m && exact && logits;
    if (room) {
        m->config = c;
        m->o = malloc((size_t)BLOCK * c->q_heads * c->head_dim * sizeof(float));
        m->exact = attention64_new(c, pool, BANYAN_F32, n);
        room = m->o && m->exact;
        for (size_t t = 0; t < TYPES; t++)
            room = (m->kept[t] = attention64_new(c, pool, types[t], n)) && room;
    }
    if (!room)
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for %" PRIu64 " tokens", n);
    if (code == COMMON_OK)
        code = read_text(model, pool, tokens, n, measure_attend, m, "f32", exact, err);
    if (code == COMMON_OK) {
        print_layers(m);
        printf("\n| K and V as | bytes a token and layer | logits: RMS difference | largest | most likely "
               "token as "
               "with f32 | right | bits a token |\n|---|---|---|---|---|---|---|\n");
        print_run(c, BANYAN_F32, tokens, n, exact, exact);
    }
    for (size_t t = 0; t < TYPES && code == COMMON_OK; t++) {
        fflush(stdout);
        code = read_text(model, pool, tokens, n, attention64_attend, m->kept[t], rounding_name(types[t]),
                         logits, err);
        if (code == COMMON_OK)
            print_run(c, types[t], tokens, n, logits, exact);
    }
    for (size_t t = 0; m && t < TYPES; t++)
        attention64_free(m->kept[t]);
    if (m) {
        attention64_free(m->exact);
        free(m->o);
    }
    free(m);
    free(exact);
    free(logits);
    return code;
}

int main(int argc, char **argv)
{
    const char *model_dir = NULL, *text = NULL;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t skip = 0, n_tokens = 4096, threads = cores > 0 ? (uint64_t)cores : 1, n = 0;
    const struct common_option options[] = {
        {"model", 'm', COMMON_OPTION_STRING, &model_dir, "DIR",
         "directory with config.json and model.safetensors", 0, 0},
        {"text", 'f', COMMON_OPTION_STRING, &text, "FILE", "text (vocabulary of 256) or decimal token ids", 0,
         0},
        {"skip", 0, COMMON_OPTION_U64, &skip, "N", "tokens of the file to leave out (default 0)", 0, 0},
        {"tokens", 'n', COMMON_OPTION_U64, &n_tokens, "N", "tokens to read (default 4096)", 2, 1u << 20},
        {"threads", 0, COMMON_OPTION_U64, &threads, "N", "default: all cores", 1, 1024},
        {0},
    };
    const struct common_command command = {
        "precision", "--model DIR --text FILE [options]",
        "Measures the error of a model with K and V stored as f16, bf16, int8 or fp8, without a cluster.",
        options};
    struct common_error err = {0};
    int rest = 0;
    enum common_code code = common_options_parse(&command, argc, argv, &rest, &err);
    if (code == COMMON_CANCELLED)
        return 0;
    if (code == COMMON_OK && (rest != argc || !model_dir || !text))
        code = common_error_set(&err, COMMON_INVALID_ARGUMENT,
                                "--model DIR and --text FILE are required; try 'precision --help'");
    if (code != COMMON_OK) {
        fprintf(stderr, "precision: %s\n", err.message);
        return 2;
    }
    struct llama *model = NULL;
    uint32_t *tokens = NULL;
    struct pool *pool = pool_new((unsigned)threads);
    if (!pool)
        code = common_error_set(&err, COMMON_RESOURCE_EXHAUSTED, "no memory");
    if (code == COMMON_OK)
        code = llama_load(model_dir, &model, &err);
    if (code == COMMON_OK && (model->config.layers > LAYERS_MAX || model->config.head_dim > DIM_MAX))
        code = common_error_set(&err, COMMON_INVALID_ARGUMENT, "at most %d layers and heads of %d",
                                LAYERS_MAX, DIM_MAX);
    if (code == COMMON_OK)
        code = text_read(text, model->config.vocab, skip, n_tokens, &tokens, &n, &err);
    if (code == COMMON_OK && n < 2)
        code = common_error_set(&err, COMMON_OUT_OF_RANGE, "%s ends before token %" PRIu64, text, skip + 2);
    if (code == COMMON_OK && n > model->config.max_positions)
        code = common_error_set(&err, COMMON_OUT_OF_RANGE, "the model has %" PRIu64 " positions",
                                model->config.max_positions);
    if (code == COMMON_OK)
        code = run(model, pool, tokens, n, &err);
    if (code != COMMON_OK)
        fprintf(stderr, "precision: %s\n", err.message);
    free(tokens);
    llama_free(model);
    pool_free(pool);
    return code == COMMON_OK ? 0 : 1;
}
