// SPDX-License-Identifier: Apache-2.0
#include "client/ctl/exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensor/float16.h"
#include "common/tensor/float8.h"
#include "proto/model/kv.h"

struct head {
    double m, s;         // largest logit; sum of e^(x - m)
    double x_abs, v_abs; // largest |x| and |v| of a key that is seen
    double *o;           // [v_dim] sum of e^(x - m) v
};

struct exact_row {
    struct proto_layer layer;
    banyan_kv_type type;
    uint64_t position, from, to, keys;
    const float *q;
    double *k, *v; // [dim] of one key
    struct head heads[];
};

struct exact_row *exact_row_new(const struct proto_layer *layer, banyan_kv_type type, uint64_t position,
                                uint64_t visible, const float *q)
{
    size_t n = layer->q_heads, doubles = layer->k_dim + (n + 1) * layer->v_dim;
    struct exact_row *row = calloc(1, sizeof *row + n * sizeof *row->heads + doubles * sizeof(double));
    if (!row)
        return NULL;
    row->layer = *layer;
    row->type = type;
    row->position = position;
    row->from = proto_layer_from(layer, position);
    row->to = layer->not_causal || visible <= position ? visible : position + 1;
    row->q = q;
    row->k = (double *)(row->heads + n);
    row->v = row->k + layer->k_dim;
    for (size_t h = 0; h < n; h++)
        row->heads[h] = (struct head){.m = -INFINITY, .o = row->v + (h + 1) * layer->v_dim};
    return row;
}

void exact_row_in_block(struct exact_row *row, uint64_t visible, uint64_t first, uint64_t end)
{
    if (row->position < first || row->position >= end)
        return;
    row->from = row->from < first ? row->from : first;
    row->to = row->to > end ? row->to : end;
    row->to = row->to < visible ? row->to : visible;
}

void exact_row_free(struct exact_row *row)
{
    free(row);
}

uint64_t exact_row_from(const struct exact_row *row)
{
    return row->from;
}

uint64_t exact_row_to(const struct exact_row *row)
{
    return row->to < row->from ? row->from : row->to;
}

static void fetch(banyan_kv_type type, const void *codes, float scale, size_t first, uint32_t n, double *out)
{
    const uint8_t *at = (const uint8_t *)codes + first * proto_kv_element_bytes((uint32_t)type);
    for (uint32_t i = 0; i < n; i++) {
        uint16_t half;
        float whole;
        switch (type) {
        case BANYAN_F16:
            memcpy(&half, at + 2 * i, sizeof half);
            out[i] = (double)common_f16_to_float(half);
            break;
        case BANYAN_BF16:
            memcpy(&half, at + 2 * i, sizeof half);
            out[i] = (double)common_bf16_to_float(half);
            break;
        case BANYAN_INT8:
            out[i] = (double)scale * (int8_t)at[i];
            break;
        case BANYAN_FP8:
            out[i] = (double)scale * (double)common_fp8_to_float(at[i]);
            break;
        default:
            memcpy(&whole, at + 4 * i, sizeof whole);
            out[i] = (double)whole;
        }
    }
}

static double logit(const struct exact_row *row, uint32_t head, uint64_t key)
{
    const struct proto_layer *layer = &row->layer;
    const float *q = row->q + (size_t)head * layer->k_dim;
    double x = 0;
    for (uint32_t d = 0; d < layer->k_dim; d++)
        x += (double)q[d] * row->k[d];
    x *= (double)layer->scale;
    if (layer->soft_cap > 0)
        x = (double)layer->soft_cap * tanh(x / (double)layer->soft_cap);
    if (layer->alibi)
        x -= (double)layer->alibi[head] * (double)(int64_t)(row->position - key);
    return x;
}

static void add_key(struct exact_row *row, uint32_t head, uint64_t key)
{
    struct head *h = &row->heads[head];
    uint32_t dim = row->layer.v_dim;
    double x = logit(row, head, key), weight = 1;
    h->x_abs = fmax(h->x_abs, fabs(x));
    for (uint32_t d = 0; d < dim; d++)
        h->v_abs = fmax(h->v_abs, fabs(row->v[d]));
    if (!(x <= h->m)) { // larger, or NaN, which then stays
        double shrink = h->s > 0 ? exp(h->m - x) : 0;
        h->s *= shrink;
        for (uint32_t d = 0; d < dim; d++)
            h->o[d] = shrink > 0 ? h->o[d] * shrink : 0;
        h->m = isnan(h->m) ? h->m : x;
    } else {
        weight = x == -INFINITY ? 0 : exp(x - h->m);
    }
    weight = x == INFINITY ? NAN : weight; // no share of an infinity is known
    h->s += weight;
    for (uint32_t d = 0; d < dim; d++)
        h->o[d] += weight * row->v[d];
}

void exact_row_add(struct exact_row *row, uint64_t first, uint64_t count, const void *k, const float *k_scale,
                   const void *v, const float *v_scale)
{
    const struct proto_layer *layer = &row->layer;
    uint64_t begin = row->from > first ? row->from : first,
             end = row->to < first + count ? row->to : first + count;
    uint32_t group = layer->q_heads / layer->kv_heads;
    for (uint64_t key = begin; key < end; key++) {
        for (uint32_t h = 0; h < layer->kv_heads; h++) {
            size_t at = (size_t)(key - first) * layer->kv_heads + h;
            fetch(row->type, k, k_scale ? k_scale[at] : 1, at * layer->k_dim, layer->k_dim, row->k);
            if (layer->v_in_k)
                memcpy(row->v, row->k, layer->v_dim * sizeof *row->v);
            else
                fetch(row->type, v, v_scale ? v_scale[at] : 1, at * layer->v_dim, layer->v_dim, row->v);
            for (uint32_t i = 0; i < group; i++)
                add_key(row, h * group + i, key);
        }
        row->keys++;
    }
}

// Error as a fraction of what is allowed. What is not finite must be so in the same way.
static double ratio(double got, double want, double allowed)
{
    if (got == want || (isnan(got) && isnan(want)))
        return 0;
    double off = fabs(got - want);
    return isfinite(off) && allowed > 0 ? off / allowed : INFINITY;
}

static void note(struct exact_verdict *verdict, double *worst, double is, uint32_t head, double got,
                 double want)
{
    if (is <= *worst)
        return;
    if (is > verdict->o && is > verdict->lse) {
        verdict->head = head;
        verdict->got = got;
        verdict->want = want;
    }
    *worst = is;
}

struct exact_verdict exact_row_judge(struct exact_row *row, const float *o, const float *lse)
{
    struct exact_verdict verdict = {.keys = row->keys};
    uint32_t dim = row->layer.v_dim;
    for (uint32_t i = 0; i < row->layer.q_heads; i++) {
        struct head *h = &row->heads[i];
        double sink = row->layer.sinks ? (double)row->layer.sinks[i] : -INFINITY, o_abs = 0, want = sink;
        if (row->keys && sink > h->m) { // the sink is the largest logit
            double shrink = exp(h->m - sink);
            h->s *= shrink;
            for (uint32_t d = 0; d < dim; d++)
                h->o[d] *= shrink;
            h->m = sink;
        }
        if (row->keys) {
            h->s += sink == -INFINITY ? 0 : exp(sink - h->m);
            h->x_abs = sink == -INFINITY ? h->x_abs : fmax(h->x_abs, fabs(sink));
            want = h->m + log(h->s);
            for (uint32_t d = 0; d < dim; d++) {
                h->o[d] /= h->s;
                o_abs = fmax(o_abs, fabs(h->o[d]));
            }
        }
        note(&verdict, &verdict.lse, ratio((double)lse[i], want, 2e-6 * fmax(1, h->x_abs)), i, (double)lse[i],
             want);
        double allowed =
            2e-6 * fmax(1, h->x_abs / 16) * fmax(o_abs, row->keys ? h->v_abs / sqrt((double)row->keys) : 0);
        for (uint32_t d = 0; d < dim; d++)
            note(&verdict, &verdict.o, ratio((double)o[(size_t)i * dim + d], h->o[d], allowed), i,
                 (double)o[(size_t)i * dim + d], h->o[d]);
    }
    return verdict;
}
