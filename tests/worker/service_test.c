// SPDX-License-Identifier: Apache-2.0
// Bad calls: each gets its own status, and the worker's state stays what it was.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/hash.h"
#include "proto/ticket.h"
#include "tests/worker/fixture.h"

enum { OTHER = 0x777 };

static const struct chunk_place chunks[2] = {{100, 0}, {101, TOKENS}};

struct setup {
    struct cluster c;
    char *before;
};

// One worker: two chunks of SESSION, 40 rows of both layers committed, rows 40..43 put; OTHER without chunks;
// the plan.
static void begin(struct setup *s)
{
    cluster_start(&s->c, &(struct cluster_options){.memory_bytes = 1 << 20});
    cluster_layout_ok(&s->c, 0, SESSION, chunks, 2);
    cluster_layout_ok(&s->c, 0, OTHER, NULL, 0);
    cluster_plan(&s->c, false);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        cluster_attach(&s->c, 0, SESSION, layer, 0, 40);
    assert_int_equal(cluster_put(&s->c, 0, SESSION, 0, 40, 4, 0), COMMON_OK);
    s->before = cluster_state(&s->c, 0);
}

static void unchanged(struct setup *s)
{
    char *after = cluster_state(&s->c, 0);
    assert_string_equal(s->before, after);
    free(after);
}

static void end(struct setup *s)
{
    unchanged(s);
    // It still serves.
    struct proto_step *step = step_new(1);
    struct outcome out;
    step_item(step, 0, SESSION, 0, 39, 1, chunks, 2);
    assert_int_equal(cluster_step(&s->c, 0, step, &out), COMMON_OK);
    assert_exact(step, &out, 0);
    outcome_free(&out);
    proto_step_free(step);
    free(s->before);
    cluster_stop(&s->c);
}

// ---- put ----------------------------------------------------------------------------------------

struct put {
    struct proto_ticket ticket;
    uint64_t session, first, count;
    uint32_t layer, version, rows; // rows in the tensors; 0: count
    size_t n_tensors;
    bool foreign, swapped; // another secret's ticket; K and V in the wrong order
    enum common_code want;
    const char *text; // part of the message; NULL: any
};

static struct put good_put(void)
{
    return (struct put){.ticket = {.session = SESSION,
                                   .incarnation = INCARNATION,
                                   .term = 1,
                                   .first = 0,
                                   .count = 64,
                                   .expires_wall_ns = UINT64_MAX},
                        .session = SESSION,
                        .first = 44,
                        .count = 2,
                        .n_tensors = 2};
}

static void try_put(struct setup *s, const struct put *put)
{
    static float k[TOKENS * 4 * K_ROW], v[TOKENS * 4 * V_ROW];
    struct common_secret secret = s->c.secret;
    uint8_t bytes[PROTO_TICKET_MAX];
    uint32_t rows = put->rows ? put->rows : (uint32_t)put->count;
    secret.bytes[0] ^= put->foreign ? 1 : 0;
    Banyan__Pb__ChunkPutRequest request = BANYAN__PB__CHUNK_PUT_REQUEST__INIT;
    request.ticket.len = proto_ticket_make(&secret, &put->ticket, bytes);
    request.ticket.data = bytes;
    request.session = put->session;
    request.layer = put->layer;
    request.first = put->first;
    request.count = put->count;
    fill_rows(put->layer, put->first, rows, put->version, k, v);
    struct common_slice pieces[2] = {{k, rows * K_ROW * sizeof *k}, {v, rows * V_ROW * sizeof *v}};
    struct proto_tensor_out tensors[2] = {
        {BANYAN__PB__DTYPE__DTYPE_F32, 3, {rows, KV_HEADS, K_DIM}, &pieces[0], 1},
        {BANYAN__PB__DTYPE__DTYPE_F32, 3, {rows, KV_HEADS, V_DIM}, &pieces[1], 1}};
    if (put->swapped) {
        struct proto_tensor_out first = tensors[0];
        tensors[0] = tensors[1];
        tensors[1] = first;
    }
    struct answer answer;
    assert_int_equal(cluster_call(&s->c, s->c.clients[0], BANYAN__PB__METHOD__METHOD_CHUNK_PUT, &request.base,
                                  tensors, put->n_tensors, &answer),
                     put->want);
    if (put->text && !strstr(answer.text, put->text))
        fail_msg("'%s' does not say '%s'", answer.text, put->text);
    answer_free(&answer);
    if (put->want != COMMON_OK)
        unchanged(s);
}

#define TRY_PUT(setup, code, words, ...)                                                                     \
    do {                                                                                                     \
        struct put put = good_put();                                                                         \
        put.want = (code);                                                                                   \
        put.text = (words);                                                                                  \
        __VA_ARGS__;                                                                                         \
        try_put(setup, &put);                                                                                \
    } while (0)

static void bad_puts(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    TRY_PUT(&s, COMMON_PERMISSION_DENIED, "not made by", put.foreign = true);
    TRY_PUT(&s, COMMON_PERMISSION_DENIED, "another session", put.ticket.session = OTHER);
    TRY_PUT(&s, COMMON_PERMISSION_DENIED, "another session", put.session = 0);
    TRY_PUT(&s, COMMON_FAILED_PRECONDITION, "expired",
            put.ticket.expires_wall_ns = common_clock_wall_ns() - 1);
    TRY_PUT(&s, COMMON_PERMISSION_DENIED, "other positions", put.ticket.first = 45);
    TRY_PUT(&s, COMMON_PERMISSION_DENIED, "other positions", put.ticket.count = 45);
    TRY_PUT(&s, COMMON_INVALID_ARGUMENT, "no range", put.count = 0; put.rows = 1);
    TRY_PUT(&s, COMMON_INVALID_ARGUMENT, "no range", put.count = UINT64_MAX; put.rows = 1);
    TRY_PUT(&s, COMMON_INVALID_ARGUMENT, "no range", put.first = UINT64_MAX; put.rows = 1);
    TRY_PUT(&s, COMMON_PERMISSION_DENIED, NULL, put.first = UINT64_C(1) << 39; put.rows = 1);
    TRY_PUT(&s, COMMON_ABORTED, "incarnation", put.ticket.incarnation = INCARNATION - 1);
    TRY_PUT(&s, COMMON_NOT_FOUND, "unknown", put.session = put.ticket.session = 0xdead);
    TRY_PUT(&s, COMMON_NOT_FOUND, "unknown", put.session = put.ticket.session = 0);
    TRY_PUT(&s, COMMON_INVALID_ARGUMENT, "layer", put.layer = LAYERS);
    TRY_PUT(&s, COMMON_INVALID_ARGUMENT, "bytes", put.rows = 3);
    TRY_PUT(&s, COMMON_INVALID_ARGUMENT, "bytes", put.count = UINT64_C(1) << 40;
            put.ticket.count = UINT64_MAX; put.rows = 1);
    TRY_PUT(&s, COMMON_INVALID_ARGUMENT, "bytes", put.swapped = true);
    TRY_PUT(&s, COMMON_INVALID_ARGUMENT, "two tensors", put.n_tensors = 1);
    TRY_PUT(&s, COMMON_INVALID_ARGUMENT, "two tensors", put.n_tensors = 0);
    TRY_PUT(&s, COMMON_FAILED_PRECONDITION, "does not hold", put.first = 63; put.ticket.count = 100);
    TRY_PUT(&s, COMMON_FAILED_PRECONDITION, "does not hold", put.session = put.ticket.session = OTHER);
    TRY_PUT(&s, COMMON_FAILED_PRECONDITION, "position 38", put.first = 38; put.count = 4; put.version = 1);
    TRY_PUT(&s, COMMON_OK, NULL, put.first = 38; put.count = 4); // the same bytes
    end(&s);
}

static void a_full_worker_refuses(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    struct chunk_place many[40];
    enum common_code code = COMMON_OK;
    uint32_t n = 0;
    for (uint32_t i = 0; i < 40; i++)
        many[i] = (struct chunk_place){500 + i, (uint64_t)i * TOKENS};
    cluster_layout_ok(&s.c, 0, OTHER, many, 40);
    // Fill the memory by chunks that are named to no end.
    for (uint32_t round = 0; round < 4000 && code == COMMON_OK; round++) {
        free(s.before);
        s.before = cluster_state(&s.c, 0);
        for (uint32_t i = 0; i < 40; i++, n++)
            many[i].chunk = 10000 + n;
        code = cluster_layout(&s.c, 0, 0x10000 + round, many, 40);
        for (uint32_t i = 0; i < 40 && code == COMMON_OK; i++) {
            free(s.before);
            s.before = cluster_state(&s.c, 0);
            code = cluster_put(&s.c, 0, 0x10000 + round, 0, many[i].first, TOKENS, 0);
        }
    }
    assert_int_equal(code, COMMON_RESOURCE_EXHAUSTED);
    end(&s);
}

// ---- control ------------------------------------------------------------------------------------

static void expect(struct setup *s, uint32_t method, const ProtobufCMessage *body, enum common_code want,
                   const char *reason)
{
    struct answer answer;
    assert_int_equal(cluster_call(&s->c, s->c.edges[0], method, body, NULL, 0, &answer), want);
    if (reason)
        assert_string_equal(answer.reason, reason);
    answer_free(&answer);
    unchanged(s);
}

static void bad_layouts(void **state)
{
    (void)state;
    float zeros[Q_HEADS] = {0}, not_a_number[Q_HEADS] = {0, 0, __builtin_nanf(""), 0};
    struct setup s;
    begin(&s);
    const uint32_t method = BANYAN__PB__METHOD__METHOD_LAYOUT_SET;
    Banyan__Pb__Spec spec, other;
    spec_init(&spec);
    spec_init(&other);
    Banyan__Pb__LayoutChunk chunk = BANYAN__PB__LAYOUT_CHUNK__INIT, again = BANYAN__PB__LAYOUT_CHUNK__INIT;
    Banyan__Pb__LayoutChunk *list[2] = {&chunk, &again};
    chunk.chunk = 300;
    chunk.first = 2 * TOKENS;
    Banyan__Pb__LayoutSetRequest good = BANYAN__PB__LAYOUT_SET_REQUEST__INIT, r;
    good.term = TERM;
    good.session = SESSION;
    good.incarnation = INCARNATION;
    good.epoch = EPOCH;
    good.spec = &spec;
    good.chunks = list;
    good.n_chunks = 1;
    r = good, r.term = TERM - 1;
    expect(&s, method, &r.base, COMMON_ABORTED, "OLD_TERM");
    r = good, r.epoch = EPOCH - 1;
    expect(&s, method, &r.base, COMMON_ABORTED, NULL);
    r = good, r.incarnation = INCARNATION - 1;
    expect(&s, method, &r.base, COMMON_ABORTED, NULL);
    r = good, r.session = 0;
    expect(&s, method, &r.base, COMMON_INVALID_ARGUMENT, NULL);
    r = good, r.session = 0xbeef, r.spec = NULL;
    expect(&s, method, &r.base, COMMON_NOT_FOUND, NULL);
    r = good, r.more = true;
    expect(&s, method, &r.base, COMMON_INVALID_ARGUMENT, NULL);
    r = good, r.spec = &other;
    other.scale = 0.5f;
    expect(&s, method, &r.base, COMMON_FAILED_PRECONDITION, NULL);
    chunk.chunk = 0;
    expect(&s, method, &good.base, COMMON_INVALID_ARGUMENT, NULL);
    chunk.chunk = 300;
    chunk.first = 2 * TOKENS + 16;
    expect(&s, method, &good.base, COMMON_INVALID_ARGUMENT, NULL);
    chunk.first = UINT64_MAX - TOKENS + 1;
    expect(&s, method, &good.base, COMMON_INVALID_ARGUMENT, NULL);
    chunk.first = 2 * TOKENS;
    again.chunk = 300;
    again.first = 3 * TOKENS;
    r = good, r.n_chunks = 2;
    expect(&s, method, &r.base, COMMON_INVALID_ARGUMENT, NULL); // at two positions
    chunk.chunk = 100;
    r = good, r.session = OTHER;
    expect(&s, method, &r.base, COMMON_FAILED_PRECONDITION, NULL); // held at another position
    chunk.chunk = 300;
    for (int i = 0; i < 14; i++) { // specs of a session to be
        spec_init(&other);
        switch (i) {
        case 0:
            other.layers = 0;
            break;
        case 1:
            other.layers = 1025;
            break;
        case 2:
            other.q_heads = 3;
            break;
        case 3:
            other.kv_heads = 0;
            break;
        case 4:
            other.k_dim = 0;
            break;
        case 5:
            other.v_dim = 1025;
            break;
        case 6:
            other.kv_type = BANYAN__PB__DTYPE__DTYPE_INT8;
            break;
        case 7:
            other.kv_type = (Banyan__Pb__Dtype)77;
            break;
        case 8:
            other.chunk_tokens = 17;
            break;
        case 9:
            other.chunk_tokens = 8192;
            break;
        case 10:
            other.scale = -1;
            break;
        case 11:
            other.soft_cap = __builtin_inff();
            break;
        case 12:
            other.n_alibi = 1, other.alibi = zeros;
            break;
        default:
            other.n_sinks = Q_HEADS, other.sinks = not_a_number;
            break;
        }
        r = good, r.session = 0xbeef, r.spec = &other;
        expect(&s, method, &r.base, COMMON_INVALID_ARGUMENT, NULL);
    }
    end(&s);
}

static void bad_rows(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    Banyan__Pb__RowsPrepareRequest good = BANYAN__PB__ROWS_PREPARE_REQUEST__INIT, r;
    good.term = TERM;
    good.session = SESSION;
    good.incarnation = INCARNATION;
    good.first = 0;
    good.count = 10;
    for (uint32_t method = BANYAN__PB__METHOD__METHOD_ROWS_PREPARE;
         method <= BANYAN__PB__METHOD__METHOD_ROWS_ABORT; method++) {
        // The three requests have the same fields; each goes as its own type.
        Banyan__Pb__RowsCommitRequest commit = BANYAN__PB__ROWS_COMMIT_REQUEST__INIT;
        Banyan__Pb__RowsAbortRequest abort = BANYAN__PB__ROWS_ABORT_REQUEST__INIT;
        for (int i = 0; i < 7; i++) {
            enum common_code want = COMMON_INVALID_ARGUMENT;
            r = good;
            switch (i) {
            case 0:
                r.term = TERM - 1, want = COMMON_ABORTED;
                break;
            case 1:
                r.session = 0, want = COMMON_NOT_FOUND;
                break;
            case 2:
                r.session = 0xdead, want = COMMON_NOT_FOUND;
                break;
            case 3:
                r.incarnation++, want = COMMON_ABORTED;
                break;
            case 4:
                r.layer = LAYERS;
                break;
            case 5:
                r.count = 0;
                break;
            default:
                r.count = UINT64_MAX;
                break;
            }
            commit.term = abort.term = r.term;
            commit.session = abort.session = r.session;
            commit.incarnation = abort.incarnation = r.incarnation;
            commit.layer = abort.layer = r.layer;
            commit.first = abort.first = r.first;
            commit.count = abort.count = r.count;
            const ProtobufCMessage *body = method == BANYAN__PB__METHOD__METHOD_ROWS_PREPARE  ? &r.base
                                           : method == BANYAN__PB__METHOD__METHOD_ROWS_COMMIT ? &commit.base
                                                                                              : &abort.base;
            expect(&s, method, body, want, NULL);
        }
    }
    // A commit of what was not prepared, or is not there.
    assert_int_equal(cluster_commit(&s.c, 0, SESSION, 0, 40, 4), COMMON_FAILED_PRECONDITION);
    assert_int_equal(cluster_commit(&s.c, 0, SESSION, 0, 50, 4), COMMON_FAILED_PRECONDITION);
    assert_int_equal(cluster_commit(&s.c, 0, SESSION, 0, 0, 40), COMMON_OK); // again
    end(&s);
}

static void reports_name_ranges_and_hashes(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    struct answer answer;
    assert_int_equal(cluster_put(&s.c, 0, SESSION, 1, 50, 3, 0), COMMON_OK);
    assert_int_equal(cluster_prepare(&s.c, 0, SESSION, 1, 20, 44, &answer), COMMON_OK);
    const Banyan__Pb__RowsPrepareReply *reply = (const Banyan__Pb__RowsPrepareReply *)answer.body;
    assert_int_equal(reply->n_chunks, 2);
    assert_int_equal(reply->chunks[0]->chunk, 100);
    assert_int_equal(reply->chunks[0]->n_present, 1);
    assert_int_equal(reply->chunks[0]->present[0]->first, 20);
    assert_int_equal(reply->chunks[0]->present[0]->count, 12);
    assert_true(reply->chunks[0]->hash != 0);
    assert_int_equal(reply->chunks[1]->n_present, 2);
    assert_int_equal(reply->chunks[1]->present[1]->first, 50);
    assert_int_equal(reply->chunks[1]->present[1]->count, 3);
    assert_int_equal(reply->chunks[1]->hash, 0);
    answer_free(&answer);
    assert_int_equal(cluster_put(&s.c, 0, SESSION, 1, 50, 3, 1), COMMON_FAILED_PRECONDITION); // frozen
    Banyan__Pb__RowsAbortRequest abort = BANYAN__PB__ROWS_ABORT_REQUEST__INIT;
    abort.term = TERM;
    abort.session = SESSION;
    abort.incarnation = INCARNATION;
    abort.layer = 1;
    abort.first = 20;
    abort.count = 44;
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_ROWS_ABORT, &abort.base,
                                  NULL, 0, NULL),
                     COMMON_OK);
    assert_int_equal(cluster_put(&s.c, 0, SESSION, 1, 50, 3, 1), COMMON_OK);
    free(s.before);
    s.before = cluster_state(&s.c, 0);
    end(&s);
}

static void bad_copies_and_a_good_one(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    const struct chunk_place target = {200, 0};
    cluster_layout_ok(&s.c, 0, OTHER, &target, 1);
    free(s.before);
    s.before = cluster_state(&s.c, 0);
    const uint32_t method = BANYAN__PB__METHOD__METHOD_CHUNK_COPY;
    Banyan__Pb__ChunkCopyRequest good = BANYAN__PB__CHUNK_COPY_REQUEST__INIT, r;
    good.term = TERM;
    good.from_chunk = 100;
    good.session = OTHER;
    good.incarnation = INCARNATION;
    good.chunk = 200;
    good.rows = 17;
    r = good, r.term = TERM - 1;
    expect(&s, method, &r.base, COMMON_ABORTED, "OLD_TERM");
    r = good, r.incarnation++;
    expect(&s, method, &r.base, COMMON_ABORTED, "OLD_INCARNATION");
    r = good, r.session = 0;
    expect(&s, method, &r.base, COMMON_NOT_FOUND, NULL);
    r = good, r.from_chunk = 0;
    expect(&s, method, &r.base, COMMON_NOT_FOUND, NULL);
    r = good, r.chunk = 101; // another session's
    expect(&s, method, &r.base, COMMON_NOT_FOUND, NULL);
    r = good, r.rows = TOKENS + 1;
    expect(&s, method, &r.base, COMMON_INVALID_ARGUMENT, NULL);
    struct answer first, again;
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], method, &good.base, NULL, 0, &first), COMMON_OK);
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], method, &good.base, NULL, 0, &again), COMMON_OK);
    assert_int_equal(((const Banyan__Pb__ChunkCopyReply *)first.body)->hash,
                     ((const Banyan__Pb__ChunkCopyReply *)again.body)->hash);
    answer_free(&first);
    answer_free(&again);
    struct proto_step *step = step_new(1);
    struct outcome out;
    step_item(step, 0, OTHER, 1, 16, 1, &target, 1);
    assert_int_equal(cluster_step(&s.c, 0, step, &out), COMMON_OK);
    assert_exact(step, &out, 0);
    outcome_free(&out);
    proto_step_free(step);
    free(s.before);
    s.before = cluster_state(&s.c, 0);
    end(&s);
}

static void bad_plans(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    const uint32_t method = BANYAN__PB__METHOD__METHOD_PLAN_INSTALL;
    for (int i = 0; i < 11; i++) {
        Banyan__Pb__PlanMember members[4], *list[4];
        char endpoint[] = "unix:///tmp/none", name[4][3] = {"w0", "x1", "x2", "x3"};
        enum common_code want = COMMON_INVALID_ARGUMENT;
        Banyan__Pb__PlanInstallRequest r = BANYAN__PB__PLAN_INSTALL_REQUEST__INIT;
        r.term = TERM;
        r.plan = PLAN + 1;
        r.epoch = 1;
        r.engine = "stream";
        r.members = list;
        r.n_members = 4;
        for (uint32_t m = 0; m < 4; m++) {
            banyan__pb__plan_member__init(&members[m]);
            members[m].rank = m;
            members[m].parent = m == 0 ? -1 : 0;
            members[m].name = name[m];
            members[m].host = "h";
            members[m].edge_endpoint = endpoint;
            list[m] = &members[m];
        }
        switch (i) {
        case 0:
            r.term = TERM - 1, want = COMMON_ABORTED;
            break;
        case 1:
            r.plan = 0;
            break;
        case 2:
            r.n_members = 0;
            break;
        case 3:
            r.self_rank = 4;
            break;
        case 4:
            r.self_rank = 1;
            break; // another's name
        case 5:
            members[2].rank = 1;
            break;
        case 6:
            members[0].parent = 0;
            break;
        case 7:
            members[1].parent = 3;
            break;
        case 8:
            members[2].parent = 1, members[3].parent = 0, members[1].parent = -1;
            break;
        case 9:
            members[2].parent = 0, members[3].parent = 1;
            break; // rank 1's subtree in two pieces
        default:
            r.engine = "carrier pigeons", want = COMMON_UNIMPLEMENTED;
            break;
        }
        expect(&s, method, &r.base, want, NULL);
    }
    // The installed one: the same again is fine, another one at its epoch is not, dropping is idempotent.
    cluster_plan(&s.c, true);
    Banyan__Pb__PlanMember member = BANYAN__PB__PLAN_MEMBER__INIT, *list[1] = {&member};
    member.parent = -1;
    member.name = "w0";
    member.host = "elsewhere";
    member.edge_endpoint = "unix:///tmp/none";
    Banyan__Pb__PlanInstallRequest r = BANYAN__PB__PLAN_INSTALL_REQUEST__INIT;
    r.term = TERM;
    r.plan = PLAN;
    r.epoch = 1;
    r.engine = "stream";
    r.members = list;
    r.n_members = 1;
    expect(&s, method, &r.base, COMMON_FAILED_PRECONDITION, NULL);
    r.epoch = 0;
    expect(&s, method, &r.base, COMMON_ABORTED, "OLD_EPOCH");
    Banyan__Pb__PlanDropRequest drop = BANYAN__PB__PLAN_DROP_REQUEST__INIT;
    drop.term = TERM;
    drop.plan = PLAN + 5;
    expect(&s, BANYAN__PB__METHOD__METHOD_PLAN_DROP, &drop.base, COMMON_OK, NULL);
    end(&s);
}

// ---- steps --------------------------------------------------------------------------------------

static void bad_frames(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    for (int i = 0; i < 5; i++) {
        struct proto_step *step = step_new(1);
        struct outcome out;
        enum common_code want = COMMON_ABORTED;
        step_item(step, 0, SESSION, 0, 39, 1, chunks, 2);
        switch (i) {
        case 0:
            step->term = TERM - 1;
            break;
        case 1:
            step->plan = 0;
            break;
        case 2:
            step->plan_epoch++;
            break;
        case 3:
            step->items[0].session = 0, want = COMMON_INVALID_ARGUMENT;
            break;
        default:
            step->items[0].q_bytes += 4, want = COMMON_INVALID_ARGUMENT;
            break;
        }
        assert_int_equal(cluster_step(&s.c, 0, step, &out), want);
        outcome_free(&out);
        proto_step_free(step);
        unchanged(&s);
    }
    end(&s);
}

static void a_bad_item_fails_alone(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    for (int i = 0; i < 16; i++) {
        struct proto_step *step = step_new(3);
        struct outcome out;
        struct proto_step_item *item = &step->items[1];
        enum common_code want = COMMON_INVALID_ARGUMENT;
        step_item(step, 0, SESSION, 0, 39, 1, chunks, 2);
        step_item(step, 1, SESSION, 1, 30, 2, chunks, 2);
        step_item(step, 2, SESSION, 1, 2, 1, chunks, 2);
        switch (i) {
        case 0:
            item->session = 0xdead, want = COMMON_DATA_LOSS;
            break; // the coordinator thinks that it is here
        case 1:
            item->layer = LAYERS;
            break;
        case 2:
            item->kv_head = 1;
            break;
        case 3:
            item->kv_heads = 1;
            break;
        case 4:
            item->q_heads = 3;
            break;
        case 5:
            item->v_dim++;
            break;
        case 6:
            item->visible = UINT64_MAX;
            break;
        case 7:
            item->first = UINT64_C(1) << 50;
            break;
        case 8:
            item->incarnation--, want = COMMON_ABORTED;
            break;
        case 9:
            item->epoch++, want = COMMON_ABORTED;
            break;
        case 10:
            item->visible = 42, item->first = 41, item->rows = 2, want = COMMON_DATA_LOSS;
            break; // put, not committed
        case 11:
            step_append(step, 1, 100, 0, 9, 40, 1), want = COMMON_FAILED_PRECONDITION;
            break; // other bytes
        case 12:
            step_append(step, 1, 100, 0, 9, 0, 1), want = COMMON_FAILED_PRECONDITION;
            break; // attached: never replaced
        case 13:
            step_append(step, 1, 101, 0, 9, 0, 0);
            break; // leaves its chunk
        case 14:
            step_append(step, 1, 999, 0, 9, 0, 0), want = COMMON_DATA_LOSS;
            break; // no such chunk here
        default:
            step_append(step, 1, 100, 0, 9, 40, 0), step->v_bytes -= 4, item->v_bytes -= 4;
            break;
        }
        assert_int_equal(cluster_step(&s.c, 0, step, &out), COMMON_OK);
        assert_int_equal(out.result->items[1].code, want);
        assert_true(out.result->items[1].message[0] != 0);
        const float *o = out.result->tensors[0];
        size_t heads = item->q_heads;
        for (size_t d = 0; d < item->rows * heads * item->v_dim; d++)
            assert_true(o[Q_HEADS * V_DIM + d] == 0);
        assert_exact(step, &out, 0);
        if (heads == Q_HEADS && item->v_dim == V_DIM)
            assert_exact(step, &out, 2);
        outcome_free(&out);
        proto_step_free(step);
        unchanged(&s);
    }
    end(&s);
}

static void nan_and_inf_flow_through(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    struct proto_step *step = step_new(2);
    struct outcome out;
    step_item(step, 0, SESSION, 0, 20, 1, chunks, 2);
    step_item(step, 1, SESSION, 0, 21, 1, chunks, 2);
    ((float *)(step->blob->data))[0] = __builtin_nanf(""); // q of head 0
    assert_int_equal(cluster_step(&s.c, 0, step, &out), COMMON_OK);
    const float *o = out.result->tensors[0];
    assert_int_equal(out.result->items[0].code, COMMON_OK);
    for (uint32_t d = 0; d < Q_HEADS * V_DIM; d++)
        assert_true((o[d] != o[d]) == (d < V_DIM)); // that head and no other
    assert_exact(step, &out, 1);
    outcome_free(&out);
    proto_step_free(step);
    end(&s);
}

// Who may call what.
static void roles_are_checked(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    Banyan__Pb__SessionDropRequest drop = BANYAN__PB__SESSION_DROP_REQUEST__INIT;
    drop.term = TERM;
    drop.session = SESSION;
    // A client has no business on the public endpoint but puts.
    assert_int_not_equal(cluster_call(&s.c, s.c.clients[0], BANYAN__PB__METHOD__METHOD_SESSION_DROP,
                                      &drop.base, NULL, 0, NULL),
                         COMMON_OK);
    unchanged(&s);
    // A parent in a tree sends steps, and nothing that changes layouts.
    struct proto_channel *parent;
    struct proto_channel_options options = {.name = "p",
                                            .role = BANYAN__PB__ROLE__ROLE_WORKER,
                                            .secret = &s.c.secret};
    assert_int_equal(proto_channel_open(s.c.loop, worker_edge_endpoint(s.c.workers[0]), &options, &parent,
                                        NULL),
                     COMMON_OK);
    assert_int_equal(cluster_call(&s.c, parent, BANYAN__PB__METHOD__METHOD_SESSION_DROP, &drop.base, NULL, 0,
                                  NULL),
                     COMMON_PERMISSION_DENIED);
    proto_channel_close(parent);
    end(&s);
}

static void a_higher_term_is_kept(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    Banyan__Pb__SessionDropRequest drop = BANYAN__PB__SESSION_DROP_REQUEST__INIT;
    drop.term = TERM + 1;
    drop.session = 0x9999;
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_SESSION_DROP, &drop.base,
                                  NULL, 0, NULL),
                     COMMON_OK);
    drop.term = TERM;
    drop.session = SESSION;
    struct answer answer;
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_SESSION_DROP, &drop.base,
                                  NULL, 0, &answer),
                     COMMON_ABORTED);
    assert_string_equal(answer.reason, "OLD_TERM");
    answer_free(&answer);
    free(s.before);
    cluster_stop(&s.c);
}

// Truncation as the coordinator does it: a new incarnation, the cut chunk copied, the rest left out.
static void truncation_keeps_what_it_keeps(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    Banyan__Pb__LayoutChunk cut = BANYAN__PB__LAYOUT_CHUNK__INIT, *list[1] = {&cut};
    Banyan__Pb__LayoutSetRequest layout = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    cut.chunk = 150;
    cut.compute = true;
    layout.term = TERM;
    layout.session = SESSION;
    layout.incarnation = INCARNATION + 1;
    layout.epoch = EPOCH;
    layout.chunks = list;
    layout.n_chunks = 1;
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &layout.base,
                                  NULL, 0, NULL),
                     COMMON_OK);
    Banyan__Pb__ChunkCopyRequest copy = BANYAN__PB__CHUNK_COPY_REQUEST__INIT;
    copy.term = TERM;
    copy.from_chunk = 100;
    copy.session = SESSION;
    copy.incarnation = INCARNATION + 1;
    copy.chunk = 150;
    copy.rows = 20;
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_CHUNK_COPY, &copy.base, NULL,
                                  0, NULL),
                     COMMON_OK);
    layout.replace = true;
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &layout.base,
                                  NULL, 0, NULL),
                     COMMON_OK);
    assert_int_equal(cluster_put(&s.c, 0, SESSION, 0, 30, 1, 0), COMMON_ABORTED); // an old ticket
    const struct chunk_place now = {150, 0};
    for (uint32_t at = 19; at < 21; at++) { // the second asks for more than there is
        struct proto_step *step = step_new(1);
        struct outcome out;
        step_item(step, 0, SESSION, 0, at, 1, &now, 1);
        step->items[0].incarnation = INCARNATION + 1;
        assert_int_equal(cluster_step(&s.c, 0, step, &out), COMMON_OK);
        if (at == 19)
            assert_exact(step, &out, 0);
        else
            assert_int_equal(out.result->items[0].code, COMMON_DATA_LOSS);
        outcome_free(&out);
        proto_step_free(step);
    }
    free(s.before);
    cluster_stop(&s.c);
}

// A layout in several messages takes effect with the last one.
static void layouts_come_in_parts(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    Banyan__Pb__LayoutChunk chunk = BANYAN__PB__LAYOUT_CHUNK__INIT, *list[1] = {&chunk};
    Banyan__Pb__LayoutSetRequest layout = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    layout.term = TERM;
    layout.session = SESSION;
    layout.incarnation = INCARNATION;
    layout.epoch = EPOCH + 1;
    layout.replace = true;
    layout.chunks = list;
    layout.n_chunks = 1;
    chunk.chunk = 100;
    chunk.compute = true;
    for (int again = 0; again < 2; again++) {
        layout.more = true;
        assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &layout.base,
                                      NULL, 0, NULL),
                         0);
        unchanged(&s);
        // cluster_state sends a layout of the old epoch, which ends the staging: it begins again
    }
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &layout.base,
                                  NULL, 0, NULL),
                     0);
    chunk.chunk = 700;
    chunk.first = 2 * TOKENS;
    layout.more = false;
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &layout.base,
                                  NULL, 0, NULL),
                     0);
    Banyan__Pb__InventoryRequest request = BANYAN__PB__INVENTORY_REQUEST__INIT;
    struct answer answer;
    request.term = TERM;
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_INVENTORY, &request.base,
                                  NULL, 0, &answer),
                     0);
    const Banyan__Pb__InventoryReply *reply = (const Banyan__Pb__InventoryReply *)answer.body;
    assert_int_equal(reply->n_sessions, 2);
    assert_int_equal(reply->sessions[0]->epoch, EPOCH + 1);
    assert_int_equal(reply->sessions[0]->n_chunks, 2);
    assert_int_equal(reply->sessions[0]->chunks[0]->chunk, 100);
    assert_int_equal(reply->sessions[0]->chunks[1]->chunk, 700);
    assert_int_equal(reply->sessions[0]->chunks[0]->layer_rows[0], TOKENS);
    answer_free(&answer);
    free(s.before);
    cluster_stop(&s.c);
}

// More than fits in a page: everything comes once, in order.
static void inventories_come_in_pages(void **state)
{
    (void)state;
    struct cluster c;
    cluster_start(&c, &(struct cluster_options){0});
    Banyan__Pb__Spec spec;
    spec_init(&spec);
    spec.layers = 300;
    uint64_t next_id = 1;
    for (uint64_t session = 10; session < 13; session++) {
        for (uint32_t part = 0; part < 2; part++) {
            Banyan__Pb__LayoutChunk list[100], *pointers[100];
            for (uint32_t i = 0; i < 100; i++) {
                banyan__pb__layout_chunk__init(&list[i]);
                list[i].chunk = next_id++;
                list[i].first = (part * 100 + i) * TOKENS;
                pointers[i] = &list[i];
            }
            Banyan__Pb__LayoutSetRequest layout = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
            layout.term = TERM;
            layout.session = session;
            layout.incarnation = layout.epoch = 1;
            layout.spec = &spec;
            layout.chunks = pointers;
            layout.n_chunks = 100;
            assert_int_equal(cluster_call(&c, c.edges[0], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &layout.base,
                                          NULL, 0, NULL),
                             0);
        }
    }
    Banyan__Pb__InventoryRequest request = BANYAN__PB__INVENTORY_REQUEST__INIT;
    request.term = TERM;
    uint64_t expected = 1;
    uint32_t pages = 0;
    do {
        struct answer answer;
        assert_int_equal(cluster_call(&c, c.edges[0], BANYAN__PB__METHOD__METHOD_INVENTORY, &request.base,
                                      NULL, 0, &answer),
                         0);
        const Banyan__Pb__InventoryReply *reply = (const Banyan__Pb__InventoryReply *)answer.body;
        for (size_t i = 0; i < reply->n_sessions; i++)
            for (size_t j = 0; j < reply->sessions[i]->n_chunks; j++) {
                assert_int_equal(reply->sessions[i]->chunks[j]->chunk, expected);
                assert_int_equal(reply->sessions[i]->session, 10 + (expected - 1) / 200);
                expected++;
            }
        request.after_session = reply->next_session;
        request.after_chunk = reply->next_chunk;
        answer_free(&answer);
        pages++;
    } while (request.after_session != 0 && pages < 100);
    assert_int_equal(expected, next_id);
    assert_true(pages > 2);
    cluster_stop(&c);
}

// Above a limit the team hashes, while the loop goes on; the hash is that of the bytes that were put.
static void large_commits_hash_aside(void **state)
{
    (void)state;
    enum { DIM = 512, HEADS = 4, ROWS = 512, HALF = ROWS * HEADS * DIM }; // two chunks of 4 MiB
    struct cluster c;
    cluster_start(&c, &(struct cluster_options){.threads = 2});
    Banyan__Pb__Spec spec;
    spec_init(&spec);
    spec.q_heads = spec.kv_heads = HEADS;
    spec.k_dim = spec.v_dim = DIM;
    spec.chunk_tokens = ROWS / 2;
    Banyan__Pb__LayoutChunk list[2], *pointers[2] = {&list[0], &list[1]};
    for (uint32_t i = 0; i < 2; i++) {
        banyan__pb__layout_chunk__init(&list[i]);
        list[i].chunk = 60 + i;
        list[i].first = i * ROWS / 2;
    }
    Banyan__Pb__LayoutSetRequest layout = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    layout.term = TERM;
    layout.session = SESSION;
    layout.incarnation = INCARNATION;
    layout.epoch = EPOCH;
    layout.spec = &spec;
    layout.chunks = pointers;
    layout.n_chunks = 2;
    const uint32_t set = BANYAN__PB__METHOD__METHOD_LAYOUT_SET;
    assert_int_equal(cluster_call(&c, c.edges[0], set, &layout.base, NULL, 0, NULL), COMMON_OK);
    float *k = malloc(2 * HALF * sizeof *k), *v = k + HALF, *flat = malloc(HALF * sizeof *k);
    for (uint32_t i = 0; i < 2 * HALF; i++)
        k[i] = (float)(i % 9973);
    struct proto_ticket ticket = {SESSION, INCARNATION, TERM, 0, ROWS, UINT64_MAX};
    uint8_t bytes[PROTO_TICKET_MAX];
    Banyan__Pb__ChunkPutRequest put = BANYAN__PB__CHUNK_PUT_REQUEST__INIT;
    put.ticket.len = proto_ticket_make(&c.secret, &ticket, bytes);
    put.ticket.data = bytes;
    put.session = SESSION;
    put.count = ROWS;
    struct common_slice pieces[2] = {{k, HALF * sizeof *k}, {v, HALF * sizeof *v}};
    struct proto_tensor_out tensors[2] = {
        {BANYAN__PB__DTYPE__DTYPE_F32, 3, {ROWS, HEADS, DIM}, &pieces[0], 1},
        {BANYAN__PB__DTYPE__DTYPE_F32, 3, {ROWS, HEADS, DIM}, &pieces[1], 1}};
    assert_int_equal(cluster_call(&c, c.clients[0], BANYAN__PB__METHOD__METHOD_CHUNK_PUT, &put.base, tensors,
                                  2, NULL),
                     COMMON_OK);
    struct answer answer;
    assert_int_equal(cluster_prepare(&c, 0, SESSION, 0, 0, ROWS, &answer), COMMON_OK);
    const Banyan__Pb__RowsPrepareReply *reply = (const Banyan__Pb__RowsPrepareReply *)answer.body;
    assert_int_equal(reply->n_chunks, 2);
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t rows = HALF / 2 / (HEADS * DIM); // of a chunk
        float *to = flat;
        for (uint32_t of_v = 0; of_v < 2; of_v++) // head after head, first K
            for (uint32_t head = 0; head < HEADS; head++)
                for (uint32_t row = 0; row < rows; row++, to += DIM)
                    memcpy(to, (of_v ? v : k) + i * HALF / 2 + (row * HEADS + head) * DIM, DIM * sizeof *to);
        assert_int_equal(reply->chunks[i]->hash, common_xxh3(flat, HALF * sizeof *k, 0));
    }
    answer_free(&answer);
    assert_int_equal(cluster_commit(&c, 0, SESSION, 0, 0, ROWS), COMMON_OK);
    free(k);
    free(flat);
    cluster_stop(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_puts),
        cmocka_unit_test(a_full_worker_refuses),
        cmocka_unit_test(bad_layouts),
        cmocka_unit_test(bad_rows),
        cmocka_unit_test(reports_name_ranges_and_hashes),
        cmocka_unit_test(large_commits_hash_aside),
        cmocka_unit_test(bad_copies_and_a_good_one),
        cmocka_unit_test(bad_plans),
        cmocka_unit_test(bad_frames),
        cmocka_unit_test(a_bad_item_fails_alone),
        cmocka_unit_test(nan_and_inf_flow_through),
        cmocka_unit_test(roles_are_checked),
        cmocka_unit_test(a_higher_term_is_kept),
        cmocka_unit_test(truncation_keeps_what_it_keeps),
        cmocka_unit_test(layouts_come_in_parts),
        cmocka_unit_test(inventories_come_in_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
