// SPDX-License-Identifier: Apache-2.0
// What 'session verify' compares with agrees with the kernels' float64 reference, which shares no line with
// it, over every type and bend; and an answer that is off by more than is promised is called wrong.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client/ctl/exact.h"
#include "common/tensor/float16.h"
#include "common/tensor/quantise.h"
#include "kernels/attention.h"
#include "kernels/reference.h"

enum { KEYS = 77, Q_HEADS = 4, KV_HEADS = 2, GROUP = Q_HEADS / KV_HEADS, DIM = 24, V_DIM = 16 };

static uint64_t state;

static float draw(void)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)(state >> 40) * 0x1p-23f - 1.0f;
}

struct data {
    banyan_kv_type type;
    size_t element;
    bool scaled, v_in_k;
    uint8_t k[KEYS * KV_HEADS * DIM * 4], v[KEYS * KV_HEADS * V_DIM * 4]; // [key][head][dim]
    float k_scale[KEYS * KV_HEADS], v_scale[KEYS * KV_HEADS];
    float q[Q_HEADS * DIM];
};

static void put(banyan_kv_type type, const float *x, uint32_t dim, uint8_t *to, float *scale)
{
    for (uint32_t i = 0; i < dim; i++) {
        uint16_t half = type == BANYAN_F16 ? common_f16_from_float(x[i]) : common_bf16_from_float(x[i]);
        if (type == BANYAN_F32)
            memcpy(to + 4 * i, &x[i], 4);
        else if (type == BANYAN_F16 || type == BANYAN_BF16)
            memcpy(to + 2 * i, &half, 2);
    }
    if (type == BANYAN_INT8)
        *scale = common_quantise_int8(x, dim, (int8_t *)to);
    if (type == BANYAN_FP8)
        *scale = common_quantise_fp8(x, dim, to);
}

static void fill(struct data *d, banyan_kv_type type, bool v_in_k)
{
    *d = (struct data){.type = type, .v_in_k = v_in_k, .scaled = type >= BANYAN_INT8};
    d->element = type == BANYAN_F32 ? 4 : d->scaled ? 1 : 2;
    for (size_t i = 0; i < KEYS * KV_HEADS; i++) {
        float x[DIM];
        for (int j = 0; j < DIM; j++)
            x[j] = 2 * draw();
        put(type, x, DIM, d->k + i * DIM * d->element, &d->k_scale[i]);
        for (int j = 0; j < V_DIM; j++)
            x[j] = draw();
        put(type, x, V_DIM, d->v + i * V_DIM * d->element, &d->v_scale[i]);
    }
    for (size_t i = 0; i < Q_HEADS * DIM; i++)
        d->q[i] = 3 * draw();
}

// The kernels' reference, head by head.
static void reference(const struct data *d, const struct proto_layer *layer, uint64_t position,
                      uint64_t visible, float *o, float *lse)
{
    static uint8_t k[KEYS * DIM * 4], v[KEYS * V_DIM * 4];
    static float ks[KEYS], vs[KEYS];
    struct kernels_spec spec = {.kv_type = (enum kernels_kv_type)d->type,
                                .k_dim = DIM,
                                .v_dim = V_DIM,
                                .q_heads = Q_HEADS,
                                .kv_heads = KV_HEADS,
                                .scale = layer->scale,
                                .soft_cap = layer->soft_cap,
                                .window = layer->window,
                                .mask_chunk = layer->mask_chunk,
                                .not_causal = layer->not_causal,
                                .v_in_k = d->v_in_k,
                                .alibi = layer->alibi};
    for (uint32_t h = 0; h < KV_HEADS; h++) {
        for (size_t i = 0; i < KEYS; i++) {
            size_t at = i * KV_HEADS + h;
            memcpy(k + i * DIM * d->element, d->k + at * DIM * d->element, DIM * d->element);
            memcpy(v + i * V_DIM * d->element, d->v + at * V_DIM * d->element, V_DIM * d->element);
            ks[i] = d->k_scale[at];
            vs[i] = d->v_scale[at];
        }
        struct kernels_run run = {.k = k, .v = v, .rows = KEYS, .k_scale = ks, .v_scale = vs};
        struct kernels_job job = {.spec = &spec,
                                  .kv_head = h,
                                  .rows = 1,
                                  .q_first = position,
                                  .visible = visible,
                                  .q = d->q + h * GROUP * DIM,
                                  .q_row_stride = Q_HEADS * DIM,
                                  .q_head_stride = DIM,
                                  .runs = &run,
                                  .run_count = 1};
        double want[GROUP * V_DIM];
        struct kernels_reference_row rows[GROUP];
        kernels_reference(&job, layer->sinks, want, rows);
        for (uint32_t i = 0; i < GROUP; i++) {
            lse[h * GROUP + i] = (float)rows[i].lse;
            for (uint32_t j = 0; j < V_DIM; j++)
                o[(h * GROUP + i) * V_DIM + j] = (float)want[i * V_DIM + j];
        }
    }
}

// In pieces of 10 keys, the last ones first.
static struct exact_row *exact(const struct data *d, const struct proto_layer *layer, uint64_t position,
                               uint64_t visible)
{
    struct exact_row *row = exact_row_new(layer, d->type, position, visible, d->q);
    assert_non_null(row);
    for (uint64_t at = KEYS / 10 * 10 + 10; at > 0; at -= 10) {
        uint64_t first = at - 10, n = KEYS - first < 10 ? KEYS - first : 10, head = first * KV_HEADS;
        exact_row_add(row, first, n, d->k + head * DIM * d->element, d->scaled ? d->k_scale + head : NULL,
                      d->v_in_k ? NULL : d->v + head * V_DIM * d->element,
                      d->scaled && !d->v_in_k ? d->v_scale + head : NULL);
    }
    return row;
}

static const float slopes[Q_HEADS] = {0.5f, 0.25f, 0.1f, 0.01f}, sinks[Q_HEADS] = {2, -INFINITY, -3, 40};

static struct proto_layer layer_of(int bend, bool v_in_k)
{
    struct proto_layer layer = {.q_heads = Q_HEADS,
                                .kv_heads = KV_HEADS,
                                .k_dim = DIM,
                                .v_dim = V_DIM,
                                .scale = 0.3f,
                                .v_in_k = v_in_k};
    layer.soft_cap = bend == 1 ? 5 : 0;
    layer.window = bend == 2 ? 20 : 0;
    layer.mask_chunk = bend == 3 ? 16 : 0;
    layer.not_causal = bend == 4;
    layer.alibi = bend == 5 ? slopes : NULL;
    layer.sinks = bend == 6 ? sinks : NULL;
    return layer;
}

static void it_agrees_with_the_reference(void **unused)
{
    (void)unused;
    for (banyan_kv_type type = BANYAN_F32; type <= BANYAN_FP8; type++)
        for (int bend = 0; bend < 7; bend++)
            for (int v_in_k = 0; v_in_k < 2; v_in_k++) {
                static struct data d;
                float o[Q_HEADS * V_DIM], lse[Q_HEADS];
                struct proto_layer layer = layer_of(bend, v_in_k);
                uint64_t position = bend == 4 ? 30 : KEYS - 5, visible = bend == 4 ? KEYS - 2 : position + 1;
                fill(&d, type, v_in_k);
                reference(&d, &layer, position, visible, o, lse);
                struct exact_row *row = exact(&d, &layer, position, visible);
                struct exact_verdict verdict = exact_row_judge(row, o, lse);
                assert_int_equal(verdict.keys, bend == 4   ? KEYS - 2
                                               : bend == 2 ? 20
                                               : bend == 3 ? KEYS - 5 - 64 + 1
                                                           : KEYS - 4);
                if (!(verdict.o < 0.2 &&
                      verdict.lse < 0.2)) // rounding to float32 is a sixteenth or so of the promise
                    fail_msg("type %d bend %d v_in_k %d: %g %g: head %u has %.9g, want %.9g", type, bend,
                             v_in_k, verdict.o, verdict.lse, verdict.head, verdict.got, verdict.want);
                exact_row_free(row);
            }
}

static void what_is_off_is_wrong(void **unused)
{
    (void)unused;
    static struct data d;
    float o[Q_HEADS * V_DIM], lse[Q_HEADS];
    struct proto_layer layer = layer_of(0, false);
    fill(&d, BANYAN_F32, false);
    for (int i = 0; i < 6; i++) {
        reference(&d, &layer, KEYS - 1, KEYS, o, lse);
        struct exact_row *row = NULL;
        if (i == 0) // one output
            o[2 * V_DIM + 3] += 3e-5f;
        else if (i == 1)
            lse[2] += 1e-3f;
        else if (i == 2)
            o[2 * V_DIM + 3] = NAN;
        else if (i == 3)
            lse[2] = -INFINITY;
        else if (i == 4) { // a bit of one element of one value, which only head group 1 sees
            uint32_t bits;
            memcpy(&bits, d.v + (40 * KV_HEADS + 1) * V_DIM * 4, 4);
            bits ^= 1u << 29;
            memcpy(d.v + (40 * KV_HEADS + 1) * V_DIM * 4, &bits, 4);
        } else { // a key that was left out
            row = exact_row_new(&layer, BANYAN_F32, KEYS - 1, KEYS, d.q);
            exact_row_add(row, 0, KEYS - 1, d.k, NULL, d.v, NULL);
        }
        row = row ? row : exact(&d, &layer, KEYS - 1, KEYS);
        struct exact_verdict verdict = exact_row_judge(row, o, lse);
        assert_true(verdict.o > 1 || verdict.lse > 1);
        if (i < 5)
            assert_in_range(verdict.head, 2, 3);
        exact_row_free(row);
    }
}

// NaN in a key shows in the answer, and is expected there.
static void nan_is_not_hidden(void **unused)
{
    (void)unused;
    static struct data d;
    float o[Q_HEADS * V_DIM], lse[Q_HEADS];
    struct proto_layer layer = layer_of(0, false);
    fill(&d, BANYAN_F32, false);
    const float nan = NAN;
    memcpy(d.k + 5 * KV_HEADS * DIM * 4, &nan, 4); // KV head 0
    reference(&d, &layer, KEYS - 1, KEYS, o, lse);
    struct exact_row *row = exact(&d, &layer, KEYS - 1, KEYS);
    struct exact_verdict verdict = exact_row_judge(row, o, lse);
    assert_true(isnan(o[0]) && !isnan(o[2 * V_DIM]));
    assert_true(verdict.o < 0.2 && verdict.lse < 0.2);
    exact_row_free(row);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_agrees_with_the_reference),
        cmocka_unit_test(what_is_off_is_wrong),
        cmocka_unit_test(nan_is_not_hidden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
