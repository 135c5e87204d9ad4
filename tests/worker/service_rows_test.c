// SPDX-License-Identifier: Apache-2.0
// Rows and chunks as a worker keeps them: puts and what is wrong with them, reports, truncation, inventories
// in pages.
#include "tests/worker/service.h"

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "proto/rights/ticket.h"

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
                                   .term = TERM,
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
    TRY_PUT(&s, COMMON_PERMISSION_DENIED, "does not come from", put.foreign = true);
    TRY_PUT(&s, COMMON_PERMISSION_DENIED, "another session", put.ticket.session = OTHER);
    TRY_PUT(&s, COMMON_PERMISSION_DENIED, "another session", put.session = 0);
    TRY_PUT(&s, COMMON_FAILED_PRECONDITION, "expired",
            put.ticket.expires_wall_ns = common_clock_wall_ns() - 1);
    TRY_PUT(&s, COMMON_FAILED_PRECONDITION, "has begun", put.ticket.term = TERM - 1);
    TRY_PUT(&s, COMMON_PERMISSION_DENIED, "other positions", put.ticket.first = 45);
    TRY_PUT(&s, COMMON_PERMISSION_DENIED, "other positions", put.ticket.count = 45);
    // Below a ticket without an end: the distance to its first position wraps.
    for (uint64_t before = 1; before < 4; before++)
        TRY_PUT(&s, COMMON_PERMISSION_DENIED, "other positions", put.ticket.first = 44 + before;
                put.ticket.count = UINT64_MAX; put.count = 1);
    TRY_PUT(&s, COMMON_INVALID_ARGUMENT, "invalid range", put.count = 0; put.rows = 1);
    TRY_PUT(&s, COMMON_INVALID_ARGUMENT, "invalid range", put.count = UINT64_MAX; put.rows = 1);
    TRY_PUT(&s, COMMON_INVALID_ARGUMENT, "invalid range", put.first = UINT64_MAX; put.rows = 1);
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

// The sum of rows as they travel, from the words of wire.md: heads of k_len and v_len bytes, scales behind
// them where there are any.
static uint64_t sum_of(const uint8_t *k, const uint8_t *v, uint64_t first, uint64_t rows, uint32_t heads,
                       size_t k_len, size_t v_len, size_t scale_len)
{
    uint64_t sum = 0;
    for (uint64_t row = 0; row < rows; row++)
        for (uint64_t part = 0; part < (scale_len ? 4 : 2); part++)
            for (uint64_t head = 0; head < heads; head++) {
                size_t len = part % 2 ? v_len : k_len;
                const uint8_t *at = (part % 2 ? v : k) + row * heads * (len + scale_len);
                at += part < 2 ? head * len : heads * len + head * scale_len;
                sum += common_mix64(common_xxh3(at, part < 2 ? len : scale_len, 0) ^
                                    common_mix64((first + row) << 16 | head << 2 | part));
            }
    return sum;
}

static void expect_sum(struct cluster *c, uint64_t session, uint64_t first, uint64_t count, size_t nth,
                       uint64_t sum)
{
    Banyan__Pb__RowsPrepareRequest prepare = BANYAN__PB__ROWS_PREPARE_REQUEST__INIT;
    struct answer answer;
    prepare.term = TERM;
    prepare.session = session;
    prepare.incarnation = INCARNATION;
    prepare.first = first;
    prepare.count = count;
    prepare.sums = true;
    assert_int_equal(cluster_call(c, c->edges[0], BANYAN__PB__METHOD__METHOD_ROWS_PREPARE, &prepare.base,
                                  NULL, 0, &answer),
                     COMMON_OK);
    const Banyan__Pb__RowsPrepareReply *reply = (const Banyan__Pb__RowsPrepareReply *)answer.body;
    assert_true(nth < reply->n_chunks);
    assert_int_equal(reply->chunks[nth]->hash, 0);
    assert_true(reply->chunks[nth]->sum == sum);
    answer_free(&answer);
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
    struct proto_ticket ticket = {SESSION, INCARNATION, TERM, 0, ROWS, UINT64_MAX, PROTO_TICKET_PUT, 0};
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
    for (uint64_t nth = 0; nth < 2; nth++) { // in a block, by the team; then a part of a chunk, at once
        const uint8_t *from[2] = {(const uint8_t *)(k + nth * HALF / 2),
                                  (const uint8_t *)(v + nth * HALF / 2)};
        expect_sum(&c, SESSION, 0, ROWS, nth,
                   sum_of(from[0], from[1], nth * ROWS / 2, ROWS / 2, HEADS, DIM * 4, DIM * 4, 0));
        expect_sum(&c, SESSION, nth * ROWS / 2, 7, 0,
                   sum_of(from[0], from[1], nth * ROWS / 2, 7, HEADS, DIM * 4, DIM * 4, 0));
    }
    assert_int_equal(cluster_commit(&c, 0, SESSION, 0, 0, ROWS), COMMON_OK);
    free(k);
    free(flat);
    cluster_stop(&c);
}

// Codes and scales of a session of type INT8: a put or an append of another size is refused; the hash is over
// codes first, then scales.
static void quantised_rows_have_one_size(void **state)
{
    (void)state;
    enum { QUANTISED = 0x888, ROWS = 3, K_BYTES = KV_HEADS * (K_DIM + 4), V_BYTES = KV_HEADS * (V_DIM + 4) };
    struct cluster c;
    cluster_start(&c, &(struct cluster_options){.workers = 1});
    cluster_plan(&c, false);
    Banyan__Pb__Spec spec;
    Banyan__Pb__LayoutChunk chunk = BANYAN__PB__LAYOUT_CHUNK__INIT, *list[1] = {&chunk};
    spec_init(&spec);
    spec.kv_type = BANYAN__PB__DTYPE__DTYPE_INT8;
    chunk.chunk = 100;
    chunk.compute = true;
    Banyan__Pb__LayoutSetRequest layout = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    layout.term = TERM;
    layout.session = QUANTISED;
    layout.incarnation = INCARNATION;
    layout.epoch = EPOCH;
    layout.spec = &spec;
    layout.replace = true;
    layout.n_chunks = 1;
    layout.chunks = list;
    assert_int_equal(cluster_call(&c, c.edges[0], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &layout.base, NULL,
                                  0, NULL),
                     COMMON_OK);
    static uint8_t k[1024], v[1024];
    for (uint32_t i = 0; i < sizeof k; i++) {
        k[i] = (uint8_t)common_mix64(i);
        v[i] = (uint8_t)common_mix64(i + 5000);
    }
    struct proto_ticket ticket = {.session = QUANTISED,
                                  .incarnation = INCARNATION,
                                  .term = TERM,
                                  .count = TOKENS,
                                  .expires_wall_ns = UINT64_MAX};
    uint8_t proof[PROTO_TICKET_MAX];
    Banyan__Pb__ChunkPutRequest put = BANYAN__PB__CHUNK_PUT_REQUEST__INIT;
    put.ticket.len = proto_ticket_make(&c.secret, &ticket, proof);
    put.ticket.data = proof;
    put.session = QUANTISED;
    put.count = ROWS;
    static const struct {
        size_t k, v;
        const char *says;
    } cases[] = {{ROWS * KV_HEADS * K_DIM, ROWS * V_BYTES, "K has 48 bytes"},
                 {ROWS * K_BYTES, ROWS * KV_HEADS * V_DIM, "V has 36 bytes"},
                 {ROWS * K_BYTES + 4, ROWS * V_BYTES, "K has 76 bytes"},
                 {ROWS * K_BYTES, ROWS * V_BYTES, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct common_slice pieces[2] = {{k, cases[i].k}, {v, cases[i].v}};
        struct proto_tensor_out tensors[2] = {{BANYAN__PB__DTYPE__DTYPE_U8, 1, {cases[i].k}, &pieces[0], 1},
                                              {BANYAN__PB__DTYPE__DTYPE_U8, 1, {cases[i].v}, &pieces[1], 1}};
        struct answer answer;
        assert_int_equal(cluster_call(&c, c.clients[0], BANYAN__PB__METHOD__METHOD_CHUNK_PUT, &put.base,
                                      tensors, 2, &answer),
                         cases[i].says ? COMMON_INVALID_ARGUMENT : COMMON_OK);
        if (cases[i].says && !strstr(answer.text, cases[i].says))
            fail_msg("'%s' does not say '%s'", answer.text, cases[i].says);
        answer_free(&answer);
    }
    uint8_t flat[ROWS * (K_BYTES + V_BYTES)], *to = flat;
    for (int part = 0; part < 4; part++) // K, V, scales of K, scales of V
        for (uint32_t head = 0; head < KV_HEADS; head++)
            for (uint32_t row = 0; row < ROWS; row++) {
                size_t dim = part % 2 ? V_DIM : K_DIM, bytes = part < 2 ? dim : 4;
                const uint8_t *from = part % 2 ? v + row * V_BYTES : k + row * K_BYTES;
                memcpy(to, from + (part < 2 ? 0 : KV_HEADS * dim) + head * bytes, bytes);
                to += bytes;
            }
    struct answer report;
    assert_int_equal(cluster_prepare(&c, 0, QUANTISED, 0, 0, ROWS, &report), COMMON_OK);
    const Banyan__Pb__RowsPrepareReply *reply = (const Banyan__Pb__RowsPrepareReply *)report.body;
    assert_int_equal(reply->n_chunks, 1);
    assert_int_equal(reply->chunks[0]->hash, common_xxh3(flat, sizeof flat, 0));
    answer_free(&report);
    expect_sum(&c, QUANTISED, 0, ROWS, 0, sum_of(k, v, 0, ROWS, KV_HEADS, K_DIM, V_DIM, 4));
    expect_sum(&c, QUANTISED, 1, 2, 0, sum_of(k + K_BYTES, v + V_BYTES, 1, 2, KV_HEADS, K_DIM, V_DIM, 4));
    assert_int_equal(cluster_commit(&c, 0, QUANTISED, 0, 0, ROWS), COMMON_OK);
    for (int right = 0; right < 2; right++) {
        const struct chunk_place place = {100, 0};
        struct proto_step *step = step_new(1);
        struct outcome out;
        step_item(step, 0, QUANTISED, 0, ROWS, 1, &place, 1);
        step_append(step, 0, 100, 0, 1, ROWS, 0);
        step->k_bytes = step->items[0].k_bytes = right ? K_BYTES : KV_HEADS * K_DIM;
        step->v_bytes = step->items[0].v_bytes = right ? V_BYTES : KV_HEADS * V_DIM;
        assert_int_equal(cluster_step(&c, 0, step, &out), COMMON_OK);
        assert_int_equal(out.result->items[0].code, right ? COMMON_OK : COMMON_INVALID_ARGUMENT);
        if (!right)
            assert_non_null(strstr(out.result->items[0].message, "k or v does not have the item's size"));
        outcome_free(&out);
        proto_step_free(step);
    }
    cluster_stop(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_puts),
        cmocka_unit_test(a_full_worker_refuses),
        cmocka_unit_test(reports_name_ranges_and_hashes),
        cmocka_unit_test(large_commits_hash_aside),
        cmocka_unit_test(quantised_rows_have_one_size),
        cmocka_unit_test(truncation_keeps_what_it_keeps),
        cmocka_unit_test(inventories_come_in_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
