// SPDX-License-Identifier: Apache-2.0
// Masses from one worker: those of the partials, whatever computes them and however they are cut; and what is
// refused.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "kernels/reference.h"
#include "proto/rpc/status.h"
#include "tests/common/named.h"
#include "tests/worker/fixture.h"

enum { CHUNKS = 12, KEYS = CHUNKS * TOKENS - 7 };

struct got { // an answer with its tensor
    bool done;
    enum common_code code;
    char reason[64];
    float *values;
    size_t n;
    uint64_t tokens, sum;
};

static void on_reply(void *arg, const struct proto_reply *reply)
{
    struct got *got = arg;
    got->done = true;
    got->code = reply->code;
    if (reply->code != COMMON_OK) {
        struct proto_status status;
        proto_status_from_pb(reply->status, &status);
        snprintf(got->reason, sizeof got->reason, "%s", status.reason);
        return;
    }
    const Banyan__Pb__MassReply *body = (const Banyan__Pb__MassReply *)reply->message->body;
    got->tokens = body->cover_tokens;
    got->sum = body->cover_sum;
    if (reply->message->n_tensors == 0)
        return;
    got->n = reply->message->tensors[0].bytes / sizeof(float);
    got->values = malloc(reply->message->tensors[0].bytes);
    assert_non_null(got->values);
    memcpy(got->values, reply->message->tensors[0].data, reply->message->tensors[0].bytes);
}

static Banyan__Pb__MassRequest request_of(uint64_t first, uint32_t rows, uint32_t bin_chunks)
{
    Banyan__Pb__MassRequest m = BANYAN__PB__MASS_REQUEST__INIT;
    m.term = TERM;
    m.session = SESSION;
    m.incarnation = INCARNATION;
    m.epoch = EPOCH;
    m.first = first;
    m.rows = rows;
    m.visible = first + rows;
    m.bin_chunks = bin_chunks;
    return m;
}

// q and lse of these sizes, of which the worker may think what it likes.
static struct got call_sized(struct cluster *c, const Banyan__Pb__MassRequest *m, const float *q,
                             size_t q_bytes, const float *lse, size_t lse_bytes, size_t n_tensors)
{
    struct got got = {0};
    const struct common_slice slices[2] = {{q, q_bytes}, {lse, lse_bytes}};
    struct proto_tensor_out tensors[2];
    for (int i = 0; i < 2; i++)
        tensors[i] = (struct proto_tensor_out){.dtype = BANYAN__PB__DTYPE__DTYPE_U8,
                                               .n_dims = 1,
                                               .dims = {slices[i].len},
                                               .pieces = &slices[i],
                                               .n_pieces = 1};
    struct proto_call call = {.method = BANYAN__PB__METHOD__METHOD_MASS,
                              .body = &m->base,
                              .tensors = tensors,
                              .n_tensors = n_tensors,
                              .deadline_ns = common_clock_after(30 * COMMON_NS_PER_S),
                              .done = on_reply,
                              .arg = &got};
    struct common_error err;
    assert_int_equal(proto_channel_call(c->edges[0], &call, NULL, &err), COMMON_OK);
    assert_true(cluster_wait(c, &got.done));
    return got;
}

static struct got call(struct cluster *c, const Banyan__Pb__MassRequest *m, const float *q, const float *lse)
{
    size_t pairs = (size_t)m->rows * Q_HEADS;
    return call_sized(c, m, q, pairs * K_DIM * sizeof(float), lse, pairs * sizeof(float), 2);
}

static void start(struct cluster *c, const struct cluster_options *options, struct chunk_place *chunks)
{
    for (uint32_t i = 0; i < CHUNKS; i++)
        chunks[i] = (struct chunk_place){100 + i, (uint64_t)i * TOKENS};
    cluster_start(c, options);
    cluster_layout_ok(c, 0, SESSION, chunks, CHUNKS);
    cluster_plan(c, false);
    cluster_attach(c, 0, SESSION, 0, 0, KEYS);
}

// lse of the rows as a step serves it.
static void step_lse(struct cluster *c, const struct chunk_place *chunks, uint64_t first, uint32_t rows,
                     float *lse, uint64_t *tokens, uint64_t *sum)
{
    struct proto_step *step = step_new(1);
    struct outcome out;
    step_item(step, 0, SESSION, 0, first, rows, chunks, CHUNKS);
    assert_int_equal(cluster_step(c, 0, step, &out), COMMON_OK);
    assert_exact(step, &out, 0);
    memcpy(lse, out.result->tensors[1], (size_t)rows * Q_HEADS * sizeof(float));
    *tokens = step->items[0].cover_tokens;
    *sum = step->items[0].cover_sum;
    outcome_free(&out);
    proto_step_free(step);
}

// One worker has all keys: each row's masses add up, bins of several chunks are the sums of the chunks',
// coverage is the step's, and the bits do not depend on who computes.
static void masses_add_up_and_repeat(void **state)
{
    (void)state;
    static const struct {
        uint64_t first;
        uint32_t rows;
    } cases[] = {{KEYS - 1, 1}, {KEYS - 40, 40}, {5, 3}, {100, 270}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t rows = cases[i].rows;
        float *q = malloc((size_t)rows * Q_HEADS * K_DIM * sizeof(float)),
              *lse = malloc((size_t)rows * Q_HEADS * sizeof(float));
        struct got one[3] = {{0}};
        assert_true(q && lse);
        fill_q(cases[i].first, rows, q);
        for (uint32_t way = 0; way < 3; way++) { // inline, one thread, three threads
            struct chunk_place chunks[CHUNKS];
            struct cluster c;
            uint64_t tokens, sum;
            start(&c,
                  &(struct cluster_options){.threads = way == 2 ? 3 : 1,
                                            .inline_madds = way ? 1 : UINT64_MAX},
                  chunks);
            step_lse(&c, chunks, cases[i].first, rows, lse, &tokens, &sum);
            Banyan__Pb__MassRequest m = request_of(cases[i].first, rows, 1);
            one[way] = call(&c, &m, q, lse);
            assert_int_equal(one[way].code, COMMON_OK);
            assert_int_equal(one[way].tokens, tokens);
            assert_int_equal(one[way].sum, sum);
            m.bin_chunks = 5;
            struct got five = call(&c, &m, q, lse);
            assert_int_equal(five.code, COMMON_OK);
            uint32_t n = (uint32_t)((m.visible + TOKENS - 1) / TOKENS), wide = (n + 4) / 5;
            assert_int_equal(one[way].n, (size_t)rows * Q_HEADS * n);
            assert_int_equal(five.n, (size_t)rows * Q_HEADS * wide);
            for (size_t p = 0; p < (size_t)rows * Q_HEADS; p++) {
                double all = 0;
                for (uint32_t w = 0; w < wide; w++) {
                    double part = 0;
                    for (uint32_t b = 5 * w; b < n && b < 5 * w + 5; b++)
                        part += (double)one[way].values[p * n + b];
                    assert_true(fabs(part - (double)five.values[p * wide + w]) < 1e-5);
                    all += part;
                }
                assert_true(fabs(all - 1) < 1e-5);
            }
            free(five.values);
            cluster_stop(&c);
            if (way > 0)
                assert_memory_equal(one[way].values, one[0].values, one[0].n * sizeof(float));
        }
        for (uint32_t way = 0; way < 3; way++)
            free(one[way].values);
        free(q);
        free(lse);
    }
}

static void lse_that_is_none_and_nothing_to_see(void **state)
{
    (void)state;
    struct chunk_place chunks[CHUNKS];
    struct cluster c;
    float q[Q_HEADS * K_DIM], lse[Q_HEADS] = {NAN, -INFINITY, INFINITY, 0};
    start(&c, &(struct cluster_options){0}, chunks);
    fill_q(KEYS - 1, 1, q);
    Banyan__Pb__MassRequest m = request_of(KEYS - 1, 1, CHUNKS);
    struct got got = call(&c, &m, q, lse);
    assert_int_equal(got.code, COMMON_OK);
    assert_int_equal(got.n, Q_HEADS);
    assert_true(isnan(got.values[0]) && got.values[1] == 0 && got.values[2] == 0 && got.values[3] > 0);
    free(got.values);
    cluster_layout_ok(&c, 0, SESSION, NULL, 0); // the session's chunks are elsewhere now
    got = call(&c, &m, q, lse);
    assert_int_equal(got.code, COMMON_OK);
    assert_int_equal(got.n, 0);
    assert_int_equal(got.tokens, 0);
    cluster_stop(&c);
}

struct mass_call {
    Banyan__Pb__MassRequest request;
    size_t q_bytes, lse_bytes, tensors;
};

// CASE(what is wrong, expected code, its reason, the change of a good call)
#define BAD_MASSES(CASE)                                                                                     \
    CASE(unknown_session, NOT_FOUND, "", bad->request.session = 0x999)                                       \
    CASE(another_incarnation, ABORTED, "OLD_INCARNATION", bad->request.incarnation++)                        \
    CASE(another_epoch, ABORTED, "OLD_EPOCH", bad->request.epoch++)                                          \
    CASE(old_term, ABORTED, "OLD_TERM", bad->request.term--)                                                 \
    CASE(layer_past_the_last, INVALID_ARGUMENT, "", bad->request.layer = LAYERS)                             \
    CASE(no_rows, INVALID_ARGUMENT, "", bad->request.rows = 0)                                               \
    CASE(too_many_rows, INVALID_ARGUMENT, "", bad->request.rows = 4097)                                      \
    CASE(bins_of_no_chunk, INVALID_ARGUMENT, "", bad->request.bin_chunks = 0)                                \
    CASE(nothing_visible, INVALID_ARGUMENT, "", bad->request.visible = 0)                                    \
    CASE(too_many_bins, INVALID_ARGUMENT, "", bad->request.visible = UINT64_C(4097) * TOKENS)                \
    CASE(less_q, INVALID_ARGUMENT, "", bad->q_bytes -= 4)                                                    \
    CASE(more_lse, INVALID_ARGUMENT, "", bad->lse_bytes += 4)                                                \
    CASE(no_lse, INVALID_ARGUMENT, "", bad->tensors = 1)                                                     \
    CASE(too_many_values, INVALID_ARGUMENT, "", /* 65 x 4 x 4096 */                                          \
         (bad->request.rows = 65, bad->request.visible = UINT64_C(4096) * TOKENS))

#define DEFINE(name, code, why, change)                                                                      \
    static void mass_##name(struct mass_call *bad)                                                           \
    {                                                                                                        \
        change;                                                                                              \
    }
BAD_MASSES(DEFINE)
#undef DEFINE

static const struct {
    const char *name;
    enum common_code want;
    const char *reason;
    void (*spoil)(struct mass_call *bad);
} bad_masses[] = {
#define ROW(name, code, why, change) {#name, COMMON_##code, why, mass_##name},
    BAD_MASSES(ROW)
#undef ROW
};

static void what_is_wrong_is_refused(void **state)
{
    (void)state;
    struct chunk_place chunks[CHUNKS];
    struct cluster c;
    static float q[64 * Q_HEADS * K_DIM], lse[64 * Q_HEADS];
    start(&c, &(struct cluster_options){0}, chunks);
    char *before = cluster_state(&c, 0);
    const size_t q1 = Q_HEADS * K_DIM * sizeof(float), lse1 = Q_HEADS * sizeof(float);
    for (size_t i = 0; i < sizeof bad_masses / sizeof *bad_masses; i++) {
        named_case_begin(bad_masses[i].name);
        struct mass_call bad = {request_of(KEYS - 1, 1, 1), q1, lse1, 2};
        bad_masses[i].spoil(&bad);
        struct got got = call_sized(&c, &bad.request, q, bad.q_bytes, lse, bad.lse_bytes, bad.tensors);
        assert_int_equal(got.code, bad_masses[i].want);
        assert_string_equal(got.reason, bad_masses[i].reason);
    }
    named_cases_end();
    char *after = cluster_state(&c, 0);
    assert_string_equal(before, after);
    free(before);
    free(after);
    cluster_stop(&c);
}

// More at a time than a worker takes: refused at once, the others end.
static void too_many_at_a_time(void **state)
{
    (void)state;
    enum { CALLS = 80 };
    struct chunk_place chunks[CHUNKS];
    struct cluster c;
    static struct got got[CALLS];
    static float q[40 * Q_HEADS * K_DIM], lse[40 * Q_HEADS];
    start(&c, &(struct cluster_options){.inline_madds = 1}, chunks);
    fill_q(KEYS - 40, 40, q);
    const struct common_slice slices[2] = {{q, sizeof q}, {lse, sizeof lse}};
    struct proto_tensor_out tensors[2];
    for (int i = 0; i < 2; i++)
        tensors[i] = (struct proto_tensor_out){.dtype = BANYAN__PB__DTYPE__DTYPE_U8,
                                               .n_dims = 1,
                                               .dims = {slices[i].len},
                                               .pieces = &slices[i],
                                               .n_pieces = 1};
    Banyan__Pb__MassRequest m = request_of(KEYS - 40, 40, 1);
    for (int i = 0; i < CALLS; i++) {
        struct common_error err;
        struct proto_call one = {.method = BANYAN__PB__METHOD__METHOD_MASS,
                                 .body = &m.base,
                                 .tensors = tensors,
                                 .n_tensors = 2,
                                 .deadline_ns = common_clock_after(30 * COMMON_NS_PER_S),
                                 .done = on_reply,
                                 .arg = &got[i]};
        assert_int_equal(proto_channel_call(c.edges[0], &one, NULL, &err), COMMON_OK);
    }
    uint32_t done = 0;
    for (int i = 0; i < CALLS; i++) {
        assert_true(cluster_wait(&c, &got[i].done));
        assert_true(got[i].code == COMMON_OK || got[i].code == COMMON_RESOURCE_EXHAUSTED);
        done += got[i].code == COMMON_OK;
        free(got[i].values);
    }
    assert_true(done >= 64);
    cluster_stop(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masses_add_up_and_repeat),
        cmocka_unit_test(lse_that_is_none_and_nothing_to_see),
        named_cases_test(what_is_wrong_is_refused),
        cmocka_unit_test(too_many_at_a_time),
    };
    return cmocka_run_group_tests_name("masses of a worker", tests, NULL, NULL);
}
