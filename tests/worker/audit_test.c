// SPDX-License-Identifier: Apache-2.0
// Audits of one worker: parts of steps' rows in float64, over chunks that are named; and what is refused.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "kernels/reference.h"
#include "proto/model/limits.h"
#include "proto/model/spec.h"
#include "proto/rpc/status.h"
#include "tests/common/named.h"
#include "tests/worker/fixture.h"

enum { CHUNKS = 6, KEYS = CHUNKS * TOKENS - 7, PART = PROTO_AUDIT_HEAD + V_DIM };

struct got { // an answer with its tensor
    bool done;
    enum common_code code;
    char reason[64];
    double values[PROTO_KEPT_ROWS_MAX * Q_HEADS * PART];
    size_t n;
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
    assert_int_equal(reply->message->n_tensors, 1);
    assert_true(reply->message->tensors[0].bytes <= sizeof got->values);
    got->n = reply->message->tensors[0].bytes / sizeof(double);
    memcpy(got->values, reply->message->tensors[0].data, reply->message->tensors[0].bytes);
}

struct audit { // a request and what it points to
    Banyan__Pb__AuditRequest m;
    Banyan__Pb__AuditChunk chunks[CHUNKS], *pointers[CHUNKS];
    uint64_t positions[PROTO_KEPT_ROWS_MAX];
    float q[PROTO_KEPT_ROWS_MAX * Q_HEADS * K_DIM];
    size_t q_bytes;
};

// Rows at `first` and on, all heads, over chunks [from, end).
static void audit_init(struct audit *a, uint64_t first, uint32_t rows, uint32_t from, uint32_t end)
{
    banyan__pb__audit_request__init(&a->m);
    a->m.term = TERM;
    a->m.session = SESSION;
    a->m.incarnation = INCARNATION;
    a->m.positions = a->positions;
    a->m.n_positions = rows;
    a->m.visible = first + rows;
    a->m.q_heads = Q_HEADS;
    a->m.chunks = a->pointers;
    for (uint32_t i = from; i < end; i++) {
        Banyan__Pb__AuditChunk *chunk = a->pointers[a->m.n_chunks] = &a->chunks[a->m.n_chunks];
        banyan__pb__audit_chunk__init(chunk);
        chunk->chunk = 100 + i;
        chunk->first = (uint64_t)i * TOKENS;
        chunk->rows = i + 1 == CHUNKS ? TOKENS - 7 : TOKENS;
        a->m.n_chunks++;
    }
    for (uint32_t i = 0; i < rows; i++)
        a->positions[i] = first + i;
    fill_q(first, rows, a->q);
    a->q_bytes = (size_t)rows * Q_HEADS * K_DIM * sizeof(float);
}

static void begin(struct cluster *c, struct audit *a, struct got *got)
{
    const struct common_slice slice = {a->q, a->q_bytes};
    const struct proto_tensor_out tensor = {.dtype = BANYAN__PB__DTYPE__DTYPE_U8,
                                            .n_dims = 1,
                                            .dims = {slice.len},
                                            .pieces = &slice,
                                            .n_pieces = 1};
    struct proto_call call = {.method = BANYAN__PB__METHOD__METHOD_AUDIT,
                              .body = &a->m.base,
                              .tensors = &tensor,
                              .n_tensors = 1,
                              .deadline_ns = common_clock_after(30 * COMMON_NS_PER_S),
                              .done = on_reply,
                              .arg = got};
    struct common_error err;
    *got = (struct got){.done = false};
    assert_int_equal(proto_channel_call(c->edges[0], &call, NULL, &err), COMMON_OK);
}

static void ask(struct cluster *c, struct audit *a, struct got *got)
{
    begin(c, a, got);
    assert_true(cluster_wait(c, &got->done));
}

static void start(struct cluster *c)
{
    struct chunk_place chunks[CHUNKS];
    for (uint32_t i = 0; i < CHUNKS; i++)
        chunks[i] = (struct chunk_place){100 + i, (uint64_t)i * TOKENS};
    cluster_start(c, &(struct cluster_options){0});
    cluster_layout_ok(c, 0, SESSION, chunks, CHUNKS);
    cluster_attach(c, 0, SESSION, 0, 0, KEYS);
}

// The row's attention over keys [from, to), all heads, from what the test has put.
static void expect(uint64_t position, const float *q, uint64_t from, uint64_t to, double *o,
                   struct kernels_reference_row *rows)
{
    static float k[KEYS * K_ROW], v[KEYS * V_ROW], k_head[KEYS * K_DIM], v_head[KEYS * V_DIM];
    fill_rows(0, 0, KEYS, 0, k, v);
    Banyan__Pb__Spec pb;
    spec_init(&pb);
    const struct kernels_spec spec = {.kv_type = KERNELS_KV_F32,
                                      .k_dim = K_DIM,
                                      .v_dim = V_DIM,
                                      .q_heads = Q_HEADS,
                                      .kv_heads = KV_HEADS,
                                      .scale = proto_spec_scale(pb.scale, K_DIM),
                                      .soft_cap = pb.soft_cap,
                                      .window = pb.window};
    for (uint32_t h = 0; h < KV_HEADS; h++) {
        for (size_t i = 0; i < KEYS; i++) {
            memcpy(k_head + i * K_DIM, k + i * K_ROW + h * K_DIM, K_DIM * sizeof(float));
            memcpy(v_head + i * V_DIM, v + i * V_ROW + h * V_DIM, V_DIM * sizeof(float));
        }
        const struct kernels_run run = {.k = k_head + from * K_DIM,
                                        .v = v_head + from * V_DIM,
                                        .first = from,
                                        .rows = (uint32_t)(to - from)};
        const uint32_t group = Q_HEADS / KV_HEADS;
        const struct kernels_job job = {.spec = &spec,
                                        .kv_head = h,
                                        .rows = 1,
                                        .q_first = position,
                                        .visible = KEYS,
                                        .q = q + (size_t)h * group * K_DIM,
                                        .q_row_stride = Q_HEADS * K_DIM,
                                        .q_head_stride = K_DIM,
                                        .runs = &run,
                                        .run_count = 1};
        kernels_reference(&job, NULL, o + (size_t)h * group * V_DIM, rows + h * group);
    }
}

static void close_to(double got, double want)
{
    if (fabs(got - want) > 1e-12 * fmax(1, fabs(want)) && got != want)
        fail_msg("%.17g, not %.17g", got, want);
}

static void parts_are_the_references(void **state)
{
    (void)state;
    struct cluster c;
    struct got got;
    start(&c);
    for (uint32_t rows = 1; rows <= PROTO_KEPT_ROWS_MAX; rows++)
        for (uint32_t from = 0; from < CHUNKS; from += 2)
            for (uint32_t head = 0; head < Q_HEADS; head++) {
                static struct audit a;
                a = (struct audit){.q_bytes = 0};
                audit_init(&a, KEYS - rows, rows, from, CHUNKS);
                uint32_t heads = Q_HEADS - head, n = 0;
                a.m.q_head = head;
                a.m.q_heads = heads;
                static float q[PROTO_KEPT_ROWS_MAX * Q_HEADS * K_DIM];
                memcpy(q, a.q, sizeof q);
                for (uint32_t r = 0; r < rows; r++, n += heads) // those heads alone
                    memcpy(a.q + (size_t)n * K_DIM, q + ((size_t)r * Q_HEADS + head) * K_DIM,
                           heads * K_DIM * sizeof(float));
                a.q_bytes = (size_t)n * K_DIM * sizeof(float);
                ask(&c, &a, &got);
                assert_int_equal(got.code, COMMON_OK);
                assert_int_equal(got.n, (size_t)rows * heads * PART);
                for (uint32_t r = 0; r < rows; r++) {
                    double o[Q_HEADS * V_DIM];
                    struct kernels_reference_row want[Q_HEADS];
                    expect(a.positions[r], q + (size_t)r * Q_HEADS * K_DIM, (uint64_t)from * TOKENS, KEYS, o,
                           want);
                    for (uint32_t h = head; h < Q_HEADS; h++) {
                        const double *part = got.values + ((size_t)r * heads + h - head) * PART;
                        close_to(part[0], want[h].lse);
                        close_to(part[1], want[h].x_abs);
                        close_to(part[2], want[h].v_abs);
                        assert_int_equal((uint64_t)part[3], want[h].keys);
                        for (uint32_t d = 0; d < V_DIM; d++)
                            close_to(part[PROTO_AUDIT_HEAD + d], o[h * V_DIM + d]);
                    }
                }
            }
    cluster_stop(&c);
}

// CASE(what is wrong, expected code, its reason, the change of a good call)
#define BAD_AUDITS(CASE)                                                                                     \
    CASE(unknown_session, NOT_FOUND, "", bad->m.session = 0x999)                                             \
    CASE(another_incarnation, ABORTED, "OLD_INCARNATION", bad->m.incarnation++)                              \
    CASE(old_term, ABORTED, "OLD_TERM", bad->m.term--)                                                       \
    CASE(layer_past_the_last, INVALID_ARGUMENT, "", bad->m.layer = LAYERS)                                   \
    CASE(a_layer_without_rows, FAILED_PRECONDITION, "HOLE", bad->m.layer = 1)                                \
    CASE(no_rows, INVALID_ARGUMENT, "", bad->m.n_positions = 0)                                              \
    CASE(a_position_past_all, INVALID_ARGUMENT, "", bad->positions[0] = UINT64_MAX)                          \
    CASE(no_chunks, INVALID_ARGUMENT, "", bad->m.n_chunks = 0)                                               \
    CASE(nothing_visible, INVALID_ARGUMENT, "", bad->m.visible = 0)                                          \
    CASE(a_block_past_all, INVALID_ARGUMENT, "", bad->m.block_first = UINT64_MAX)                            \
    CASE(no_heads, INVALID_ARGUMENT, "", bad->m.q_heads = 0)                                                 \
    CASE(heads_past_the_last, INVALID_ARGUMENT, "", bad->m.q_head = 1)                                       \
    CASE(heads_that_wrap, INVALID_ARGUMENT, "", bad->m.q_head = UINT32_MAX)                                  \
    CASE(less_q, INVALID_ARGUMENT, "", bad->q_bytes -= 4)                                                    \
    CASE(a_chunk_of_another_place, NOT_FOUND, "", bad->chunks[1].chunk = 100)                                \
    CASE(a_chunk_that_is_not_here, NOT_FOUND, "", bad->chunks[1].chunk = 999)                                \
    CASE(a_chunk_twice, INVALID_ARGUMENT, "", bad->pointers[1] = bad->pointers[0])                           \
    CASE(no_rows_of_a_chunk, INVALID_ARGUMENT, "", bad->chunks[1].rows = 0)                                  \
    CASE(rows_past_a_chunk, INVALID_ARGUMENT, "", bad->chunks[1].rows = TOKENS + 1)                          \
    CASE(rows_that_are_not_there, FAILED_PRECONDITION, "HOLE", bad->chunks[CHUNKS - 1].rows = TOKENS)

#define DEFINE(name, code, why, change)                                                                      \
    static void audit_##name(struct audit *bad)                                                              \
    {                                                                                                        \
        change;                                                                                              \
    }
BAD_AUDITS(DEFINE)
#undef DEFINE

static const struct {
    const char *name;
    enum common_code want;
    const char *reason;
    void (*spoil)(struct audit *bad);
} bad_audits[] = {
#define ROW(name, code, why, change) {#name, COMMON_##code, why, audit_##name},
    BAD_AUDITS(ROW)
#undef ROW
};

static void what_is_wrong_is_refused(void **state)
{
    (void)state;
    struct cluster c;
    start(&c);
    char *before = cluster_state(&c, 0);
    for (size_t i = 0; i < sizeof bad_audits / sizeof *bad_audits; i++) {
        named_case_begin(bad_audits[i].name);
        static struct audit bad;
        struct got got;
        bad = (struct audit){.q_bytes = 0};
        audit_init(&bad, KEYS - 1, 1, 0, CHUNKS);
        bad_audits[i].spoil(&bad);
        ask(&c, &bad, &got);
        assert_int_equal(got.code, bad_audits[i].want);
        assert_string_equal(got.reason, bad_audits[i].reason);
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
    enum { CALLS = 12 };
    struct cluster c;
    static struct got got[CALLS];
    static struct audit a;
    start(&c);
    a = (struct audit){.q_bytes = 0};
    audit_init(&a, KEYS - 4, 4, 0, CHUNKS);
    for (int i = 0; i < CALLS; i++)
        begin(&c, &a, &got[i]);
    uint32_t done = 0;
    for (int i = 0; i < CALLS; i++) {
        assert_true(cluster_wait(&c, &got[i].done));
        assert_true(got[i].code == COMMON_OK || got[i].code == COMMON_RESOURCE_EXHAUSTED);
        done += got[i].code == COMMON_OK;
    }
    assert_true(done >= 4);
    cluster_stop(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_the_references),
        named_cases_test(what_is_wrong_is_refused),
        cmocka_unit_test(too_many_at_a_time),
    };
    return cmocka_run_group_tests_name("audits of a worker", tests, NULL, NULL);
}
