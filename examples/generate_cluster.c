// SPDX-License-Identifier: Apache-2.0
// The run: prefill in blocks, then one token after the other. Each layer's K and V go to the cluster and
// nowhere else.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "examples/attention64.h"
#include "examples/generate.h"
#include "examples/rounding.h"

struct cluster {
    banyan_client *client;
    banyan_session *session;
    struct generate_stats *stats;
    banyan_kv_type kv_type;
    uint32_t kv_heads, dim;
    void *k, *v;              // packed, of one block
    float *k_scale, *v_scale; // likewise; NULL for a type without
    bool generating;
    uint64_t last; // position of the last token: its steps say where they looked, too
};

static enum common_code from_banyan(const banyan_error *e, const char *what, struct common_error *err)
{
    return common_error_set(err, (enum common_code)e->code, "%s: %s (%s)", what, e->message,
                            banyan_code_name(e->code));
}

static void count_trace(struct generate_stats *stats, const banyan_trace *trace, bool generating)
{
    uint64_t slowest = 0;
    for (uint32_t i = 0; i < trace->n_workers; i++) {
        const banyan_worker_trace *t = &trace->workers[i];
        uint32_t w = 0;
        while (w < stats->n_traced && strcmp(stats->worker[w].name, t->worker) != 0)
            w++;
        if (w == stats->n_traced) {
            if (w == sizeof(stats->worker) / sizeof(stats->worker[0]))
                continue;
            snprintf(stats->worker[w].name, sizeof(stats->worker[w].name), "%s", t->worker);
            stats->n_traced++;
        }
        stats->worker[w].compute_ns += t->compute_ns;
        slowest = t->compute_ns > slowest ? t->compute_ns : slowest;
    }
    if (!generating)
        return;
    uint64_t tree = trace->tree_ns > slowest ? trace->tree_ns - slowest : 0;
    common_histogram_add(&stats->step, trace->total_ns);
    common_histogram_add(&stats->compute, slowest);
    common_histogram_add(&stats->tree, tree);
    common_histogram_add(&stats->rpc,
                         trace->total_ns > trace->tree_ns ? trace->total_ns - trace->tree_ns : 0);
}

static void count_mass(struct generate_stats *stats, const banyan_mass *mass)
{
    if (mass->n_bins == 0)
        return; // it is not worth the answer
    stats->masses++;
    for (uint32_t i = 0; i < mass->n_workers; i++)
        for (uint32_t w = 0; w < stats->n_traced; w++)
            if (strcmp(stats->worker[w].name, mass->workers[i].name) == 0)
                stats->worker[w].mass += (double)mass->worker[i];
}

// A llama_attend_fn. A block of the prompt is attached and committed; a generated token is appended by its
// step.
static enum common_code cluster_attend(void *arg, uint32_t layer, uint64_t first, uint32_t rows,
                                       const float *q, const float *k, const float *v, float *o,
                                       struct common_error *err)
{
    struct cluster *c = arg;
    banyan_error e = {0}, ie = {0};
    banyan_trace trace = {0};
    banyan_mass mass = {.bins = 72}; // what 'banyanctl session mass' draws of them fits in a terminal
    rounding_pack(c->kv_type, k, (size_t)rows * c->kv_heads, c->dim, c->k, c->k_scale);
    rounding_pack(c->kv_type, v, (size_t)rows * c->kv_heads, c->dim, c->v, c->v_scale);
    if (!c->generating) {
        banyan_code attached = c->k_scale ? banyan_attach_scaled(c->session, layer, first, rows, c->k,
                                                                 c->k_scale, c->v, c->v_scale, &e)
                                          : banyan_attach(c->session, layer, first, rows, c->k, c->v, &e);
        if (attached != BANYAN_OK)
            return from_banyan(&e, "attach", err);
        if (banyan_commit(c->session, layer, first, rows, &e) != BANYAN_OK)
            return from_banyan(&e, "commit", err);
    }
    banyan_item item = {
        .session = c->session, .layer = layer, .first = first, .rows = rows, .q = q, .o = o, .error = &ie};
    if (c->generating) {
        item.k = c->k;
        item.v = c->v;
        item.k_scale = c->k_scale;
        item.v_scale = c->v_scale;
        item.mass = first == c->last ? &mass : NULL;
    }
    enum common_code code = COMMON_OK;
    if (banyan_attend(c->client, &item, 1, 0, &trace, &e) != BANYAN_OK)
        code = from_banyan(&e, "attend", err);
    else if (item.code != BANYAN_OK)
        code = from_banyan(&ie, "attend", err);
    else
        count_trace(c->stats, &trace, c->generating);
    if (code == COMMON_OK && item.mass)
        count_mass(c->stats, &mass);
    banyan_mass_free(&mass);
    banyan_trace_free(&trace);
    return code;
}

static enum common_code cluster_open(struct cluster *c, const struct generate_options *options,
                                     const struct llama_config *m, struct generate_stats *stats,
                                     struct common_error *err)
{
    banyan_error e = {0};
    banyan_options bo = {.token_file = options->token_file, .timeout_ns = 120 * COMMON_NS_PER_S};
    banyan_cluster_info info;
    *c = (struct cluster){
        .stats = stats, .kv_type = options->kv_type, .kv_heads = m->kv_heads, .dim = m->head_dim};
    size_t heads = options->block * m->kv_heads, bytes = heads * m->head_dim * sizeof(float);
    bool scaled = banyan_kv_scaled(options->kv_type);
    c->k = malloc(bytes);
    c->v = malloc(bytes);
    c->k_scale = scaled ? malloc(heads * sizeof(float)) : NULL;
    c->v_scale = scaled ? malloc(heads * sizeof(float)) : NULL;
    if (!c->k || !c->v || (scaled && (!c->k_scale || !c->v_scale)))
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for a block");
    if (banyan_connect(options->endpoint, &bo, &c->client, &e) != BANYAN_OK ||
        banyan_cluster_get_info(c->client, &info, &e) != BANYAN_OK)
        return from_banyan(&e, "connect", err);
    stats->workers = info.n_workers;
    banyan_spec spec = {.layers = m->layers,
                        .q_heads = m->q_heads,
                        .kv_heads = m->kv_heads,
                        .k_dim = m->head_dim,
                        .v_dim = m->head_dim,
                        .kv_type = options->kv_type,
                        .members = options->members ? (uint32_t)options->members : info.n_workers};
    banyan_cluster_info_free(&info);
    if (banyan_session_create(c->client, &spec, options->session_name, &c->session, &e) != BANYAN_OK)
        return from_banyan(&e, "session", err);
    return COMMON_OK;
}

static void cluster_close(struct cluster *c, bool keep_session)
{
    if (c->session && !keep_session)
        banyan_session_delete(c->session, NULL);
    banyan_session_close(c->session);
    banyan_disconnect(c->client);
    free(c->k);
    free(c->v);
    free(c->k_scale);
    free(c->v_scale);
}

enum common_code generate_record_init(struct generate_record *record, const struct generate_options *options,
                                      uint32_t vocab, uint64_t prompt_tokens, struct common_error *err)
{
    uint64_t sampled = options->full_check || prompt_tokens <= 128 ? prompt_tokens : 128;
    uint64_t n_rows = sampled + options->generate_tokens;
    record->vocab = vocab;
    record->kv_type = options->kv_type;
    record->prompt_tokens = prompt_tokens;
    record->temperature = options->temperature;
    record->top_p = options->top_p;
    record->seed = options->seed;
    record->tokens = calloc(prompt_tokens + options->generate_tokens, sizeof(*record->tokens));
    record->rows = calloc(n_rows, sizeof(*record->rows));
    record->logits = calloc(n_rows, vocab * sizeof(float));
    if (!record->tokens || !record->rows || !record->logits)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED,
                                "no memory for the logits of %" PRIu64 " rows", n_rows);
    for (uint64_t i = 0; i < sampled; i++) // spread evenly, the last row always: it chooses the first token
        record->rows[i] = (i + 1) * prompt_tokens / sampled - 1;
    record->n_rows = sampled;
    record->n_tokens = prompt_tokens;
    return COMMON_OK;
}

void generate_record_free(struct generate_record *record)
{
    free(record->tokens);
    free(record->rows);
    free(record->logits);
    *record = (struct generate_record){0};
}

// Prefill of record->tokens[0, prompt). The logits of the wanted rows fall into the record as they come.
static enum common_code prefill(const struct generate_options *options, const struct llama *model,
                                struct pool *pool, struct generate_record *record, llama_attend_fn attend,
                                void *arg, struct common_error *err)
{
    uint64_t start = common_clock_ns(), row = 0;
    bool color = generate_color(options);
    enum common_code code = COMMON_OK;
    uint32_t *wanted = malloc(options->block * sizeof(*wanted));
    if (!wanted)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for a block");
    for (uint64_t first = 0; first < record->prompt_tokens && code == COMMON_OK;) {
        uint64_t left = record->prompt_tokens - first;
        uint32_t rows = (uint32_t)(left < options->block ? left : options->block), n_wanted = 0;
        while (row + n_wanted < record->n_rows && record->rows[row + n_wanted] < first + rows) {
            wanted[n_wanted] = (uint32_t)(record->rows[row + n_wanted] - first);
            n_wanted++;
        }
        code = llama_forward(model, pool, record->tokens + first, first, rows, attend, arg, wanted, n_wanted,
                             record->logits + row * record->vocab, err);
        row += n_wanted;
        first += rows;
        if (code == COMMON_OK)
            generate_progress("attaching and reading", first, record->prompt_tokens,
                              (double)(common_clock_ns() - start) * 1e-9, color);
    }
    free(wanted);
    return code;
}

static void print_token(const struct llama *model, uint32_t token)
{
    if (model->config.vocab != 256) {
        printf("%u ", token);
    } else if (token < 128) { // a byte-level model of Latin-1 text, on a UTF-8 terminal
        putchar((int)token);
    } else {
        putchar((int)(0xc0 | token >> 6));
        putchar((int)(0x80 | (token & 0x3f)));
    }
    fflush(stdout);
}

// From the last row's logits, token after token.
static enum common_code decode(const struct generate_options *options, const struct llama *model,
                               struct pool *pool, struct generate_record *record, llama_attend_fn attend,
                               void *arg, struct common_error *err)
{
    struct sampler sampler = {options->temperature, options->top_p, options->seed};
    const uint32_t last = 0;
    for (uint64_t i = 0; i < options->generate_tokens; i++) {
        uint32_t token;
        if (sampler_choose(&sampler, record->logits + (record->n_rows - 1) * record->vocab, record->vocab,
                           &token))
            return common_error_set(err, COMMON_INTERNAL,
                                    "no token can be chosen: the logits are not numbers");
        print_token(model, token);
        uint64_t position = record->n_tokens;
        enum common_code code = llama_forward(model, pool, &token, position, 1, attend, arg, &last, 1,
                                              record->logits + record->n_rows * record->vocab, err);
        if (code != COMMON_OK)
            return code;
        record->tokens[record->n_tokens++] = token;
        record->rows[record->n_rows++] = position;
    }
    putchar('\n');
    return COMMON_OK;
}

enum common_code generate_run(const struct generate_options *options, const struct llama *model,
                              struct pool *pool, struct generate_record *record, struct generate_stats *stats,
                              struct common_error *err)
{
    struct cluster cluster = {0};
    struct attention64 *local = NULL;
    llama_attend_fn attend = options->local ? attention64_attend : cluster_attend;
    enum common_code code = COMMON_OK;
    if (options->local) {
        local = attention64_new(&model->config, pool, options->kv_type,
                                record->prompt_tokens + options->generate_tokens);
        if (!local)
            code =
                common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "no memory for a KV cache in this process");
    } else {
        code = cluster_open(&cluster, options, &model->config, stats, err);
    }
    void *arg = options->local ? (void *)local : (void *)&cluster;
    uint64_t start = common_clock_ns(), middle = start;
    if (code == COMMON_OK) {
        code = prefill(options, model, pool, record, attend, arg, err);
        middle = common_clock_ns();
    }
    if (code == COMMON_OK) {
        cluster.generating = true;
        cluster.last = record->prompt_tokens + options->generate_tokens - 1;
        code = decode(options, model, pool, record, attend, arg, err);
    }
    stats->prompt_tokens = record->prompt_tokens;
    stats->generated_tokens = record->n_tokens - record->prompt_tokens;
    stats->prefill_s = (double)(middle - start) * 1e-9;
    stats->generate_s = (double)(common_clock_ns() - middle) * 1e-9;
    if (code == COMMON_OK && !options->local) {
        banyan_cluster_info info;
        banyan_error e = {0};
        if (banyan_cluster_get_info(cluster.client, &info, &e) != BANYAN_OK) {
            code = from_banyan(&e, "cluster information", err);
        } else {
            generate_report_print(stats, &info);
            banyan_cluster_info_free(&info);
        }
    }
    cluster_close(&cluster, options->keep_session && code == COMMON_OK);
    attention64_free(local);
    return code;
}
