// SPDX-License-Identifier: Apache-2.0
// A session whose layers differ, on a worker: rows of the wrong shape, and of layers that have none of their
// own, are refused and nothing is changed; memory counts what each layer holds.
#include "common/hash/hash.h"
#include "proto/rights/ticket.h"
#include "tests/common/named.h"
#include "tests/worker/service.h"

enum { KINDS = 3, KIND_LAYERS = 5, LATENT_K = 12, LATENT_V = 8, MIXED = 0x900 };
enum {
    ALIKE,
    LATENT,
    LOCAL,
    READER,
    LAST
}; // layers: as in the fixture; V in K; nothing; reads ALIKE's; as ALIKE

struct kinds { // the spec, and what it points to
    Banyan__Pb__Spec spec;
    Banyan__Pb__LayerKind kind[KINDS], *list[KINDS];
    uint32_t layer_kind[KIND_LAYERS], shares[KIND_LAYERS];
};

static void kind_init(Banyan__Pb__LayerKind *kind, uint32_t q_heads, uint32_t kv_heads, uint32_t k_dim,
                      uint32_t v_dim)
{
    banyan__pb__layer_kind__init(kind);
    kind->q_heads = q_heads;
    kind->kv_heads = kv_heads;
    kind->k_dim = k_dim;
    kind->v_dim = v_dim;
}

static void kinds_init(struct kinds *k)
{
    static const uint32_t of[KIND_LAYERS] = {0, 1, UINT32_MAX, 2, 0},
                          shares[KIND_LAYERS] = {[READER] = 1 + ALIKE};
    memset(k, 0, sizeof *k);
    banyan__pb__spec__init(&k->spec);
    kind_init(&k->kind[0], Q_HEADS, KV_HEADS, K_DIM, V_DIM);
    kind_init(&k->kind[1], 2, 1, LATENT_K, LATENT_V);
    kind_init(&k->kind[2], KV_HEADS, KV_HEADS, K_DIM, V_DIM);
    k->kind[1].v_in_k = true;
    for (uint32_t i = 0; i < KINDS; i++)
        k->list[i] = &k->kind[i];
    memcpy(k->layer_kind, of, sizeof of);
    memcpy(k->shares, shares, sizeof shares);
    k->spec.layers = k->spec.n_layer_kind = k->spec.n_shares = KIND_LAYERS;
    k->spec.layer_kind = k->layer_kind;
    k->spec.shares = k->shares;
    k->spec.n_kinds = KINDS;
    k->spec.kinds = k->list;
    k->spec.kv_type = BANYAN__PB__DTYPE__DTYPE_F32;
    k->spec.chunk_tokens = TOKENS;
}

static enum common_code lay_out(struct setup *s, Banyan__Pb__Spec *spec)
{
    Banyan__Pb__LayoutChunk chunk = BANYAN__PB__LAYOUT_CHUNK__INIT, *list = &chunk;
    Banyan__Pb__LayoutSetRequest r = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    chunk.chunk = 900;
    chunk.compute = true;
    r.term = TERM;
    r.session = MIXED;
    r.incarnation = INCARNATION;
    r.epoch = EPOCH;
    r.spec = spec;
    r.replace = true;
    r.n_chunks = 1;
    r.chunks = &list;
    return cluster_call(&s->c, s->c.edges[0], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &r.base, NULL, 0, NULL);
}

// Rows of K and V of so many floats a token, all alike.
static enum common_code put(struct setup *s, uint32_t layer, uint32_t count, uint32_t k_row, uint32_t v_row)
{
    static float values[TOKENS * 64];
    for (uint32_t i = 0; i < sizeof values / sizeof *values; i++)
        values[i] = (float)(common_mix64(i) % 1000) / 1000;
    struct proto_ticket ticket = {.session = MIXED,
                                  .incarnation = INCARNATION,
                                  .term = TERM,
                                  .count = TOKENS,
                                  .expires_wall_ns = UINT64_MAX};
    uint8_t bytes[PROTO_TICKET_MAX];
    Banyan__Pb__ChunkPutRequest r = BANYAN__PB__CHUNK_PUT_REQUEST__INIT;
    r.ticket.len = proto_ticket_make(&s->c.secret, &ticket, bytes);
    r.ticket.data = bytes;
    r.session = MIXED;
    r.layer = layer;
    r.count = count;
    struct common_slice pieces[2] = {{values, (size_t)count * k_row * sizeof(float)},
                                     {values, (size_t)count * v_row * sizeof(float)}};
    struct proto_tensor_out tensors[2] = {{BANYAN__PB__DTYPE__DTYPE_U8, 1, {pieces[0].len}, &pieces[0], 1},
                                          {BANYAN__PB__DTYPE__DTYPE_U8, 1, {pieces[1].len}, &pieces[1], 1}};
    return cluster_call(&s->c, s->c.clients[0], BANYAN__PB__METHOD__METHOD_CHUNK_PUT, &r.base, tensors, 2,
                        NULL);
}

static uint64_t bytes_held(struct setup *s)
{
    struct answer answer;
    Banyan__Pb__InventoryRequest r = BANYAN__PB__INVENTORY_REQUEST__INIT;
    r.term = TERM;
    r.session = MIXED;
    assert_int_equal(cluster_call(&s->c, s->c.edges[0], BANYAN__PB__METHOD__METHOD_INVENTORY, &r.base, NULL,
                                  0, &answer),
                     COMMON_OK);
    const Banyan__Pb__InventoryReply *reply = (const void *)answer.body;
    uint64_t bytes = reply->sessions[0]->bytes;
    assert_int_equal(reply->sessions[0]->chunks[0]->n_layer_rows, KIND_LAYERS);
    answer_free(&answer);
    return bytes;
}

static void begin_mixed(struct setup *s, struct kinds *k)
{
    begin(s);
    kinds_init(k);
    assert_int_equal(lay_out(s, &k->spec), COMMON_OK);
    free(s->before);
    s->before = cluster_state(&s->c, 0);
}

static void rows_have_their_layers_shape(void **state)
{
    (void)state;
    struct setup s;
    struct kinds k;
    begin_mixed(&s, &k);
    static const struct {
        uint32_t layer, k_row, v_row;
        enum common_code want;
    } puts[] = {
        {ALIKE, LATENT_K, 0, COMMON_INVALID_ARGUMENT},
        {ALIKE, K_ROW, V_ROW - 1, COMMON_INVALID_ARGUMENT},
        {LATENT, LATENT_K, LATENT_V, COMMON_INVALID_ARGUMENT}, // V lies in K
        {LATENT, K_ROW, V_ROW, COMMON_INVALID_ARGUMENT},
        {LOCAL, K_ROW, V_ROW, COMMON_INVALID_ARGUMENT},
        {READER, K_ROW, V_ROW, COMMON_INVALID_ARGUMENT},
        {KIND_LAYERS, K_ROW, V_ROW, COMMON_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof puts / sizeof *puts; i++) {
        assert_int_equal(put(&s, puts[i].layer, 4, puts[i].k_row, puts[i].v_row), puts[i].want);
        unchanged(&s);
    }
    // Pages of 16 tokens: of each head K and V, or K alone, each a multiple of 64 bytes.
    assert_int_equal(put(&s, ALIKE, 4, K_ROW, V_ROW), COMMON_OK);
    uint64_t page = KV_HEADS * (16 * K_DIM + 16 * V_DIM) * sizeof(float),
             latent = 16 * LATENT_K * sizeof(float);
    assert_int_equal(bytes_held(&s), page);
    assert_int_equal(put(&s, LATENT, 4, LATENT_K, 0), COMMON_OK);
    assert_int_equal(bytes_held(&s), page + latent);
    assert_int_equal(put(&s, LAST, 17, K_ROW, V_ROW), COMMON_OK);
    assert_int_equal(bytes_held(&s), 3 * page + latent);
    // Another spec for the same session, which differs in one layer.
    k.layer_kind[LAST] = 1;
    assert_int_equal(lay_out(&s, &k.spec), COMMON_FAILED_PRECONDITION);
    free(s.before);
    s.before = cluster_state(&s.c, 0);
    end(&s);
}

static void no_rows_of_their_own(void **state)
{
    (void)state;
    struct setup s;
    struct kinds k;
    begin_mixed(&s, &k);
    static const uint32_t layers[] = {LOCAL, READER, KIND_LAYERS};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        Banyan__Pb__RowsPrepareRequest prepare = BANYAN__PB__ROWS_PREPARE_REQUEST__INIT;
        Banyan__Pb__RowsCommitRequest commit = BANYAN__PB__ROWS_COMMIT_REQUEST__INIT, again = commit;
        Banyan__Pb__RowsAbortRequest give_up = BANYAN__PB__ROWS_ABORT_REQUEST__INIT;
        Banyan__Pb__RowsRange range = BANYAN__PB__ROWS_RANGE__INIT, *ranges = &range;
        prepare.term = commit.term = again.term = give_up.term = TERM;
        prepare.session = commit.session = again.session = give_up.session = MIXED;
        prepare.incarnation = commit.incarnation = again.incarnation = give_up.incarnation = INCARNATION;
        prepare.layer = commit.layer = give_up.layer = range.layer = layers[i];
        prepare.count = commit.count = give_up.count = range.count = 4;
        again.n_ranges = 1;
        again.ranges = &ranges;
        give_up.write = 5;
        expect(&s, BANYAN__PB__METHOD__METHOD_ROWS_PREPARE, &prepare.base, COMMON_INVALID_ARGUMENT, NULL);
        expect(&s, BANYAN__PB__METHOD__METHOD_ROWS_COMMIT, &commit.base, COMMON_INVALID_ARGUMENT, NULL);
        expect(&s, BANYAN__PB__METHOD__METHOD_ROWS_COMMIT, &again.base, COMMON_INVALID_ARGUMENT, NULL);
        expect(&s, BANYAN__PB__METHOD__METHOD_ROWS_ABORT, &give_up.base, COMMON_INVALID_ARGUMENT, NULL);
    }
    end(&s);
}

// Items of different shapes in one frame. A wrong one fails alone.
static void one_frame_for_all_layers(void **state)
{
    (void)state;
    struct setup s;
    struct kinds k;
    begin_mixed(&s, &k);
    static const struct chunk_place mixed[1] = {{900, 0}};
    static const struct {
        uint32_t layer, q_heads, kv_heads, k_dim, v_dim, append_k, append_v; // floats a token
        enum common_code want;
    } items[] = {
        {ALIKE, Q_HEADS, KV_HEADS, K_DIM, V_DIM, K_ROW, V_ROW, COMMON_OK},
        {LATENT, 2, 1, LATENT_K, LATENT_V, LATENT_K, 0, COMMON_OK},
        {READER, KV_HEADS, KV_HEADS, K_DIM, V_DIM, 0, 0, COMMON_OK},
        {LOCAL, Q_HEADS, KV_HEADS, K_DIM, V_DIM, 0, 0, COMMON_INVALID_ARGUMENT},
        {READER, KV_HEADS, KV_HEADS, K_DIM, V_DIM, K_ROW, V_ROW, COMMON_INVALID_ARGUMENT},
        {READER, Q_HEADS, KV_HEADS, K_DIM, V_DIM, 0, 0,
         COMMON_INVALID_ARGUMENT}, // another layer's query heads
        {LATENT, 2, 1, LATENT_K, V_DIM, 0, 0, COMMON_INVALID_ARGUMENT},
        {LAST, Q_HEADS, KV_HEADS, K_DIM, V_DIM, LATENT_K, 0, COMMON_INVALID_ARGUMENT},
        {LATENT, 2, 1, LATENT_K, LATENT_V, LATENT_K, LATENT_V, COMMON_INVALID_ARGUMENT},
        {LAST, Q_HEADS, KV_HEADS, K_DIM, V_DIM, K_ROW, V_ROW, COMMON_OK},
    };
    enum { ITEMS = sizeof items / sizeof *items };
    struct proto_step *step = step_new(ITEMS);
    struct outcome out;
    for (uint32_t i = 0; i < ITEMS; i++) {
        struct proto_step_item *item = &step->items[i];
        step_item(step, i, MIXED, items[i].layer, 0, 1, mixed, 1);
        step->q_bytes -= item->q_bytes;
        item->q_heads = items[i].q_heads;
        item->kv_heads = items[i].kv_heads;
        item->v_dim = items[i].v_dim;
        item->q_bytes = items[i].q_heads * items[i].k_dim * sizeof(float);
        step->q_bytes += item->q_bytes;
        if (items[i].append_k == 0)
            continue;
        step_append(step, i, 900, 0, 20 + i, 0, 0);
        step->k_bytes -= item->k_bytes;
        step->v_bytes -= item->v_bytes;
        item->k_bytes = items[i].append_k * sizeof(float);
        item->v_bytes = items[i].append_v * sizeof(float);
        step->k_bytes += item->k_bytes;
        step->v_bytes += item->v_bytes;
    }
    assert_int_equal(cluster_step(&s.c, 0, step, &out), COMMON_OK);
    const float *o = out.result->tensors[0];
    for (uint32_t i = 0; i < ITEMS; i++) {
        if (out.result->items[i].code != items[i].want)
            fail_msg("item %u: %s: %s", i, common_code_name(out.result->items[i].code),
                     out.result->items[i].message);
        bool any = false;
        for (uint32_t d = 0; d < items[i].q_heads * items[i].v_dim; d++)
            any = any || o[d] != 0;
        assert_int_equal(any, items[i].want == COMMON_OK);
        o += items[i].q_heads * items[i].v_dim;
    }
    // One key: every head says its value, which for layers that share is the same, and else the key's
    // beginning.
    const float *alike = out.result->tensors[0], *latent = alike + Q_HEADS * V_DIM,
                *reader = latent + 2 * LATENT_V,
                *k_of_latent = (const float *)(step->k + step->items[1].k_offset);
    for (uint32_t h = 0; h < KV_HEADS; h++)
        assert_memory_equal(reader + h * V_DIM, alike + h * (Q_HEADS / KV_HEADS) * V_DIM,
                            V_DIM * sizeof(float));
    for (uint32_t h = 0; h < 2; h++)
        assert_memory_equal(latent + h * LATENT_V, k_of_latent, LATENT_V * sizeof(float));
    outcome_free(&out);
    proto_step_free(step);
    free(s.before);
    s.before = cluster_state(&s.c, 0);
    end(&s);
}

static void masses_of_layers(void **state)
{
    (void)state;
    struct setup s;
    struct kinds k;
    begin_mixed(&s, &k);
    assert_int_equal(put(&s, LATENT, 4, LATENT_K, 0), COMMON_OK);
    assert_int_equal(cluster_prepare(&s.c, 0, MIXED, LATENT, 0, 4, NULL), COMMON_OK);
    assert_int_equal(cluster_commit(&s.c, 0, MIXED, LATENT, 0, 4), COMMON_OK);
    float q[2 * LATENT_K] = {0}, lse[2] = {1.3862944f, 1.3862944f}; // of four keys that weigh the same
    static const struct {
        uint32_t layer;
        uint64_t visible, block_first, block_count;
        enum common_code want;
    } asks[] = {
        {LATENT, 4, 0, 0, COMMON_OK},
        {LOCAL, 4, 0, 0, COMMON_INVALID_ARGUMENT},
        {KIND_LAYERS, 4, 0, 0, COMMON_INVALID_ARGUMENT},
        {ALIKE, 4, 0, 0, COMMON_INVALID_ARGUMENT}, // q of another size
        {LATENT, 0, 0, 0, COMMON_INVALID_ARGUMENT},
        {LATENT, UINT64_MAX, 0, 0, COMMON_INVALID_ARGUMENT},
        {LATENT, 4, UINT64_MAX, 1, COMMON_INVALID_ARGUMENT},
        {LATENT, 4, 1, UINT64_MAX, COMMON_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        Banyan__Pb__MassRequest r = BANYAN__PB__MASS_REQUEST__INIT;
        r.term = TERM;
        r.session = MIXED;
        r.incarnation = INCARNATION;
        r.epoch = EPOCH;
        r.layer = asks[i].layer;
        r.first = 3;
        r.rows = 1;
        r.visible = asks[i].visible;
        r.bin_chunks = 1;
        r.block_first = asks[i].block_first;
        r.block_count = asks[i].block_count;
        struct common_slice pieces[2] = {{q, sizeof q}, {lse, sizeof lse}};
        struct proto_tensor_out tensors[2] = {{BANYAN__PB__DTYPE__DTYPE_U8, 1, {sizeof q}, &pieces[0], 1},
                                              {BANYAN__PB__DTYPE__DTYPE_U8, 1, {sizeof lse}, &pieces[1], 1}};
        struct answer answer;
        enum common_code code =
            cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_MASS, &r.base, tensors, 2, &answer);
        if (code != asks[i].want)
            fail_msg("mass %zu: %s: %s", i, common_code_name(code), answer.text);
        answer_free(&answer);
    }
    free(s.before);
    s.before = cluster_state(&s.c, 0);
    end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_their_layers_shape),
        cmocka_unit_test(no_rows_of_their_own),
        cmocka_unit_test(one_frame_for_all_layers),
        cmocka_unit_test(masses_of_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
