// SPDX-License-Identifier: Apache-2.0
// Steps through real workers: exact, the same bits however they are computed, and never a number where the
// layout is not what it should be.
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/worker/fixture.h"

enum { CHUNKS = 20, KEYS = CHUNKS * TOKENS };

static void places(struct chunk_place *chunks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        chunks[i] = (struct chunk_place){100 + i, (uint64_t)i * TOKENS};
}

// Chunks go round the workers; all rows but those beyond `keys` are committed.
static void spread(struct cluster *c, const struct chunk_place *chunks, uint32_t n, uint32_t keys)
{
    for (uint32_t w = 0; w < c->n; w++) {
        struct chunk_place mine[CHUNKS];
        uint32_t count = 0;
        for (uint32_t i = w; i < n; i += c->n)
            mine[count++] = chunks[i];
        cluster_layout_ok(c, w, SESSION, mine, count);
        for (uint32_t i = 0; i < count; i++) {
            uint64_t left = mine[i].first < keys ? keys - mine[i].first : 0;
            for (uint32_t layer = 0; left > 0 && layer < LAYERS; layer++)
                cluster_attach(c, w, SESSION, layer, mine[i].first, left < TOKENS ? (uint32_t)left : TOKENS);
        }
    }
}

static void assert_same_bits(const struct outcome *a, const struct outcome *b)
{
    assert_int_equal(a->result->tensor_bytes[0], b->result->tensor_bytes[0]);
    assert_memory_equal(a->result->tensors[0], b->result->tensors[0], a->result->tensor_bytes[0]);
    assert_memory_equal(a->result->tensors[1], b->result->tensors[1], a->result->tensor_bytes[1]);
    for (uint32_t i = 0; i < a->result->n_items; i++)
        assert_int_equal(a->result->items[i].digest, b->result->items[i].digest);
}

static void one_worker_and_trees_are_exact(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        for (int chain = 0; chain < 2; chain++) {
            struct cluster c;
            struct chunk_place chunks[CHUNKS];
            places(chunks, CHUNKS);
            cluster_start(&c, &(struct cluster_options){.workers = n});
            spread(&c, chunks, CHUNKS, KEYS);
            cluster_plan(&c, chain);
            struct proto_step *step = step_new(4);
            step_item(step, 0, SESSION, 0, KEYS - 1, 1, chunks, CHUNKS);
            step_item(step, 1, SESSION, 1, 0, 1, chunks, CHUNKS); // one key, on one worker
            step_item(step, 2, SESSION, 1, 300, 40, chunks, CHUNKS);
            step_item(step, 3, SESSION, 0, 31, 2, chunks, CHUNKS);
            struct outcome out;
            assert_int_equal(cluster_step(&c, 0, step, &out), COMMON_OK);
            for (uint32_t i = 0; i < 4; i++)
                assert_exact(step, &out, i);
            assert_int_equal(out.result->n_traces, n);
            uint64_t tokens = 0;
            for (uint32_t i = 0; i < n; i++)
                tokens += out.result->traces[i].tokens;
            assert_int_equal(tokens, KEYS + 1 + 340 + 33);
            outcome_free(&out);
            proto_step_free(step);
            cluster_stop(&c);
        }
    }
}

// Three ways to the same rows: whole chunks attached, pieces attached backwards, appended row by row.
static void arrive(struct cluster *c, const struct chunk_place *chunks, uint32_t n, uint32_t keys, int way)
{
    cluster_layout_ok(c, 0, SESSION, chunks, n);
    cluster_plan(c, false);
    if (way == 0)
        cluster_attach(c, 0, SESSION, 0, 0, keys);
    for (uint32_t at = keys; way == 1 && at > 0;) {
        uint32_t count = at < 7 ? at : 7;
        at -= count;
        cluster_attach(c, 0, SESSION, 0, at, count);
    }
    for (uint32_t at = 0; way == 2 && at < keys; at++) {
        struct proto_step *step = step_new(1);
        struct outcome out;
        step_item(step, 0, SESSION, 0, at, 1, chunks, n);
        step_append(step, 0, chunks[at / TOKENS].chunk, 0, at + 1, at, 0);
        assert_int_equal(cluster_step(c, 0, step, &out), COMMON_OK);
        assert_int_equal(out.result->items[0].code, COMMON_OK);
        outcome_free(&out);
        proto_step_free(step);
    }
}

static void bits_depend_on_nothing_but_the_data(void **state)
{
    (void)state;
    struct chunk_place chunks[CHUNKS];
    places(chunks, CHUNKS);
    const uint32_t keys = KEYS - 5;
    struct proto_step *alone = step_new(1), *together = step_new(6);
    step_item(alone, 0, SESSION, 0, keys - 9, 9, chunks, CHUNKS);
    for (uint32_t i = 0; i < 6; i++) // the same item as the fourth
        step_item(together, i, SESSION, 0, i == 3 ? keys - 9 : 50 * i, i == 3 ? 9 : 3 + i, chunks, CHUNKS);
    struct outcome first = {0};
    for (int way = 0; way < 3; way++) {
        for (uint32_t threads = 0; threads <= 3; threads++) { // 0: inline
            struct cluster c;
            struct outcome out, many;
            cluster_start(&c, &(struct cluster_options){.threads = threads,
                                                        .inline_madds = threads ? 1 : UINT64_MAX});
            arrive(&c, chunks, CHUNKS, keys, way);
            assert_int_equal(cluster_step(&c, 0, alone, &out), COMMON_OK);
            assert_exact(alone, &out, 0);
            assert_int_equal(cluster_step(&c, 0, together, &many), COMMON_OK);
            const float *o = many.result->tensors[0];
            for (uint32_t i = 0; i < 3; i++)
                o += together->items[i].rows * Q_HEADS * V_DIM;
            assert_memory_equal(o, out.result->tensors[0], out.result->tensor_bytes[0]);
            assert_int_equal(many.result->items[3].digest, out.result->items[0].digest);
            outcome_free(&many);
            if (first.result) {
                assert_same_bits(&first, &out);
                outcome_free(&out);
            } else {
                first = out;
            }
            cluster_stop(&c);
        }
    }
    outcome_free(&first);
    proto_step_free(alone);
    proto_step_free(together);
}

// Many frames at once, on the team: each the bits that it has alone.
static void load_changes_no_bits(void **state)
{
    (void)state;
    enum { FRAMES = 24 };
    struct cluster c;
    struct chunk_place chunks[CHUNKS];
    places(chunks, CHUNKS);
    cluster_start(&c, &(struct cluster_options){.workers = 3, .threads = 2, .inline_madds = 1});
    spread(&c, chunks, CHUNKS, KEYS);
    cluster_plan(&c, true);
    struct proto_step *steps[FRAMES];
    struct outcome alone[FRAMES], loaded[FRAMES];
    for (uint32_t i = 0; i < FRAMES; i++) {
        steps[i] = step_new(1);
        step_item(steps[i], 0, SESSION, i % LAYERS, 20 * i, 1 + i, chunks, CHUNKS);
        assert_int_equal(cluster_step(&c, 0, steps[i], &alone[i]), COMMON_OK);
        assert_exact(steps[i], &alone[i], 0);
    }
    for (uint32_t i = 0; i < FRAMES; i++)
        cluster_step_begin(&c, 0, steps[i], &loaded[i]);
    for (uint32_t i = 0; i < FRAMES; i++) {
        assert_true(cluster_wait(&c, &loaded[i].done));
        assert_int_equal(loaded[i].code, COMMON_OK);
        assert_same_bits(&alone[i], &loaded[i]);
        outcome_free(&alone[i]);
        outcome_free(&loaded[i]);
        proto_step_free(steps[i]);
    }
    cluster_stop(&c);
}

static void slabs_are_parts_of_the_whole(void **state)
{
    (void)state;
    struct cluster c;
    struct chunk_place chunks[CHUNKS];
    places(chunks, CHUNKS);
    cluster_start(&c, &(struct cluster_options){.workers = 2});
    spread(&c, chunks, CHUNKS, KEYS);
    cluster_plan(&c, false);
    struct proto_step *whole = step_new(1), *slabs = step_new(KV_HEADS);
    struct outcome all, parts;
    const uint32_t rows = 5, group = Q_HEADS / KV_HEADS;
    step_item(whole, 0, SESSION, 0, 400, rows, chunks, CHUNKS);
    for (uint32_t i = 0; i < KV_HEADS; i++) {
        step_item(slabs, i, SESSION, 0, 400, rows, chunks, CHUNKS);
        struct proto_step_item *item = &slabs->items[i];
        slabs->q_bytes -= item->q_bytes;
        item->kv_head = i;
        item->kv_heads = 1;
        item->q_heads = group;
        item->q_bytes /= KV_HEADS;
        float *q = (float *)(slabs->blob->data + item->q_offset);
        const float *from = (const float *)whole->q;
        for (uint32_t r = 0; r < rows; r++)
            memcpy(q + r * group * K_DIM, from + (r * Q_HEADS + i * group) * K_DIM,
                   group * K_DIM * sizeof *q);
        slabs->q_bytes += item->q_bytes;
    }
    assert_int_equal(cluster_step(&c, 0, whole, &all), COMMON_OK);
    assert_int_equal(cluster_step(&c, 0, slabs, &parts), COMMON_OK);
    assert_exact(whole, &all, 0);
    const float *o = all.result->tensors[0], *slab = parts.result->tensors[0];
    for (uint32_t i = 0; i < KV_HEADS; i++, slab += rows * group * V_DIM)
        for (uint32_t r = 0; r < rows; r++)
            assert_memory_equal(slab + r * group * V_DIM, o + (r * Q_HEADS + i * group) * V_DIM,
                                group * V_DIM * sizeof *o);
    outcome_free(&all);
    outcome_free(&parts);
    proto_step_free(whole);
    proto_step_free(slabs);
    cluster_stop(&c);
}

// ---- coverage -----------------------------------------------------------------------------------

static void assert_refused(struct cluster *c, const struct chunk_place *chunks, uint32_t n,
                           enum common_code code, const char *reason, const char *worker)
{
    struct proto_step *step = step_new(2);
    struct outcome out;
    step_item(step, 0, SESSION, 0, n * TOKENS - 1, 1, chunks, n);
    step_item(step, 1, SESSION, 0, 3, 2, chunks, n); // sees the first chunk only
    assert_int_equal(cluster_step(c, 0, step, &out), COMMON_OK);
    assert_int_equal(out.result->items[0].code, code);
    assert_string_equal(out.result->items[0].reason, reason);
    assert_string_equal(out.result->items[0].worker, worker);
    const float *o = out.result->tensors[0];
    for (uint32_t i = 0; i < Q_HEADS * V_DIM; i++)
        assert_true(o[i] == 0); // never numbers
    outcome_free(&out);
    proto_step_free(step);
}

static void a_removed_chunk_is_noticed(void **state)
{
    (void)state;
    struct cluster c;
    struct chunk_place chunks[6];
    places(chunks, 6);
    cluster_start(&c, &(struct cluster_options){.workers = 2});
    spread(&c, chunks, 6, 6 * TOKENS);
    cluster_plan(&c, false);
    struct chunk_place fewer[2] = {chunks[1], chunks[5]}; // of worker 1, without chunk 3
    cluster_layout_ok(&c, 1, SESSION, fewer, 2);
    assert_refused(&c, chunks, 6, COMMON_DATA_LOSS, "COVERAGE", "w0");
    // The chunk is named again, but its rows are gone.
    struct chunk_place empty[3] = {chunks[1], chunks[3], chunks[5]};
    cluster_layout_ok(&c, 1, SESSION, empty, 3);
    assert_refused(&c, chunks, 6, COMMON_DATA_LOSS, "COVERAGE", "w0");
    cluster_stop(&c);
}

static void a_doubled_chunk_is_noticed(void **state)
{
    (void)state;
    struct cluster c;
    struct chunk_place chunks[6];
    places(chunks, 6);
    cluster_start(&c, &(struct cluster_options){.workers = 2});
    spread(&c, chunks, 6, 6 * TOKENS);
    cluster_plan(&c, false);
    struct chunk_place more[4] = {chunks[1], chunks[2], chunks[3], chunks[5]}; // chunk 2 is worker 0's
    cluster_layout_ok(&c, 1, SESSION, more, 4);
    cluster_attach(&c, 1, SESSION, 0, chunks[2].first, TOKENS);
    assert_refused(&c, chunks, 6, COMMON_DATA_LOSS, "COVERAGE", "w0");
    cluster_stop(&c);
}

static void a_chunk_in_anothers_place_is_noticed(void **state)
{
    (void)state;
    struct cluster c;
    struct chunk_place chunks[6];
    places(chunks, 6);
    cluster_start(&c, &(struct cluster_options){.workers = 2});
    spread(&c, chunks, 6, 6 * TOKENS);
    cluster_plan(&c, false);
    struct chunk_place other[3] = {chunks[1],
                                   {999, chunks[3].first},
                                   chunks[5]}; // as many tokens, another chunk
    cluster_layout_ok(&c, 1, SESSION, other, 3);
    cluster_attach(&c, 1, SESSION, 0, chunks[3].first, TOKENS);
    assert_refused(&c, chunks, 6, COMMON_DATA_LOSS, "COVERAGE", "w0");
    cluster_stop(&c);
}

static void an_aged_layout_is_noticed(void **state)
{
    (void)state;
    struct cluster c;
    struct chunk_place chunks[6];
    places(chunks, 6);
    cluster_start(&c, &(struct cluster_options){.workers = 2});
    spread(&c, chunks, 6, 6 * TOKENS);
    cluster_plan(&c, false);
    Banyan__Pb__LayoutSetRequest newer = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    newer.term = TERM;
    newer.session = SESSION;
    newer.incarnation = INCARNATION;
    newer.epoch = EPOCH + 1;
    assert_int_equal(cluster_call(&c, c.edges[1], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &newer.base, NULL, 0,
                                  NULL),
                     COMMON_OK);
    assert_refused(&c, chunks, 6, COMMON_ABORTED, "OLD_EPOCH", "w1");
    cluster_stop(&c);
}

static void a_forgotten_session_is_noticed(void **state)
{
    (void)state;
    struct cluster c;
    struct chunk_place chunks[6];
    places(chunks, 6);
    cluster_start(&c, &(struct cluster_options){.workers = 2});
    spread(&c, chunks, 6, 6 * TOKENS);
    cluster_plan(&c, false);
    Banyan__Pb__SessionDropRequest drop = BANYAN__PB__SESSION_DROP_REQUEST__INIT;
    drop.term = TERM;
    drop.session = SESSION;
    for (int again = 0; again < 2; again++)
        assert_int_equal(cluster_call(&c, c.edges[1], BANYAN__PB__METHOD__METHOD_SESSION_DROP, &drop.base,
                                      NULL, 0, NULL),
                         COMMON_OK);
    assert_refused(&c, chunks, 6, COMMON_DATA_LOSS, "COVERAGE", "w1");
    cluster_stop(&c);
}

static void a_lost_worker_is_named(void **state)
{
    (void)state;
    struct cluster c;
    struct chunk_place chunks[6];
    places(chunks, 6);
    cluster_start(&c, &(struct cluster_options){.workers = 3});
    spread(&c, chunks, 6, 6 * TOKENS);
    cluster_plan(&c, false);
    cluster_kill(&c, 2);
    struct proto_step *step = step_new(1);
    struct outcome out;
    step_item(step, 0, SESSION, 0, 6 * TOKENS - 1, 1, chunks, 6);
    step->deadline_ns = common_clock_after(2 * COMMON_NS_PER_S);
    enum common_code code = cluster_step(&c, 0, step, &out);
    if (code == COMMON_OK) {
        assert_true(out.result->items[0].code == COMMON_UNAVAILABLE ||
                    out.result->items[0].code == COMMON_DEADLINE_EXCEEDED);
        assert_string_equal(out.result->items[0].worker, "w2");
    } else {
        assert_true(code == COMMON_UNAVAILABLE || code == COMMON_DEADLINE_EXCEEDED);
    }
    outcome_free(&out);
    proto_step_free(step);
    cluster_stop(&c);
}

// ---- appends ------------------------------------------------------------------------------------

static enum common_code append_one(struct cluster *c, const struct chunk_place *chunks, uint64_t at,
                                   uint64_t write, uint64_t length, uint32_t version, char *reason)
{
    struct proto_step *step = step_new(1);
    struct outcome out;
    step_item(step, 0, SESSION, 0, at, 1, chunks, 2);
    step_append(step, 0, chunks[at / TOKENS].chunk, 0, write, length, version);
    assert_int_equal(cluster_step(c, 0, step, &out), COMMON_OK);
    enum common_code code = out.result->items[0].code;
    strcpy(reason, out.result->items[0].reason);
    if (code == COMMON_OK && version == 0)
        assert_exact(step, &out, 0);
    outcome_free(&out);
    proto_step_free(step);
    return code;
}

static void writes_are_ordered(void **state)
{
    (void)state;
    struct cluster c;
    struct chunk_place chunks[2];
    char reason[64];
    places(chunks, 2);
    cluster_start(&c, &(struct cluster_options){0});
    cluster_layout_ok(&c, 0, SESSION, chunks, 2);
    cluster_plan(&c, false);
    for (uint64_t at = 0; at < 40; at++)
        assert_int_equal(append_one(&c, chunks, at, at + 1, at, 0, reason), COMMON_OK);
    assert_int_equal(append_one(&c, chunks, 39, 40, 39, 0, reason), COMMON_OK); // again
    assert_int_equal(append_one(&c, chunks, 30, 31, 30, 0, reason), COMMON_OK); // an old one, the same bytes
    assert_int_equal(append_one(&c, chunks, 30, 31, 30, 1, reason), COMMON_ABORTED);
    assert_string_equal(reason, "OLD_WRITE");
    assert_int_equal(append_one(&c, chunks, 39, 41, 39, 1, reason), COMMON_OK); // it was not acknowledged
    assert_int_equal(append_one(&c, chunks, 39, 42, 39, 0, reason), COMMON_OK);
    assert_int_equal(append_one(&c, chunks, 39, 43, 40, 1, reason), COMMON_FAILED_PRECONDITION); // it was
    assert_int_equal(append_one(&c, chunks, 39, 44, 39, 1, reason), COMMON_FAILED_PRECONDITION); // for good
    assert_int_equal(append_one(&c, chunks, 40, 43, 40, 0, reason),
                     COMMON_ABORTED); // overtaken, nothing there
    assert_int_equal(append_one(&c, chunks, 40, 45, 40, 0, reason), COMMON_OK);
    assert_int_equal(append_one(&c, chunks, 40, 45, 40, 1, reason),
                     COMMON_FAILED_PRECONDITION); // same write, other bytes
    cluster_stop(&c);
}

// Whatever it is behind by: what an older write brings is not stored over a newer one's rows.
static void a_write_that_is_older_by_one_is_refused(void **state)
{
    (void)state;
    struct cluster c;
    struct chunk_place chunks[2];
    char reason[64];
    places(chunks, 2);
    cluster_start(&c, &(struct cluster_options){0});
    cluster_layout_ok(&c, 0, SESSION, chunks, 2);
    cluster_plan(&c, false);
    assert_int_equal(append_one(&c, chunks, 0, 7, 0, 0, reason), COMMON_OK);
    for (uint64_t write = 6; write > 0; write--) {
        assert_int_equal(append_one(&c, chunks, 0, write, 0, 1, reason), COMMON_ABORTED);
        assert_string_equal(reason, "OLD_WRITE");
        assert_int_equal(append_one(&c, chunks, 0, write, 0, 0, reason), COMMON_OK); // the same bytes
    }
    assert_int_equal(append_one(&c, chunks, 0, 8, 0, 1, reason), COMMON_OK);
    cluster_stop(&c);
}

// A part of an append of [0, 2 * TOKENS): that of one chunk.
static enum common_code append_part(struct cluster *c, const struct chunk_place *chunks, uint32_t nth,
                                    uint64_t write, uint32_t version)
{
    struct proto_step *step = step_new(1);
    struct outcome out;
    step_item(step, 0, SESSION, 0, nth * TOKENS, TOKENS, chunks, 2);
    step_append(step, 0, chunks[nth].chunk, 0, write, 0, version);
    step->items[0].write_end = 2 * TOKENS;
    assert_int_equal(cluster_step(c, 0, step, &out), COMMON_OK);
    enum common_code code = out.result->items[0].code;
    outcome_free(&out);
    proto_step_free(step);
    return code;
}

// What the worker says of layer 0: how much is acknowledged, which append may not be, and its rows.
static void says(struct cluster *c, uint64_t length, uint64_t write, uint32_t first_rows,
                 uint32_t second_rows)
{
    Banyan__Pb__InventoryRequest m = BANYAN__PB__INVENTORY_REQUEST__INIT;
    struct answer answer;
    m.term = TERM;
    assert_int_equal(cluster_call(c, c->edges[0], BANYAN__PB__METHOD__METHOD_INVENTORY, &m.base, NULL, 0,
                                  &answer),
                     COMMON_OK);
    const Banyan__Pb__InventoryReply *reply = (const void *)answer.body;
    const Banyan__Pb__InventorySession *s = reply->sessions[0];
    assert_int_equal(s->n_lengths, LAYERS);
    assert_int_equal(s->lengths[0], length);
    assert_int_equal(s->lengths[1], 0);
    assert_int_equal(s->n_unconfirmed, write ? 1 : 0);
    if (write) {
        assert_int_equal(s->unconfirmed[0]->layer, 0);
        assert_int_equal(s->unconfirmed[0]->write, write);
        assert_int_equal(s->unconfirmed[0]->end, 2 * TOKENS);
    }
    assert_int_equal(s->chunks[0]->layer_rows[0], first_rows);
    assert_int_equal(s->chunks[1]->layer_rows[0], second_rows);
    answer_free(&answer);
}

static void a_newer_append_replaces_the_whole_of_one_that_failed(void **state)
{
    (void)state;
    struct cluster c;
    struct chunk_place chunks[2];
    char reason[64];
    places(chunks, 2);
    cluster_start(&c, &(struct cluster_options){0});
    cluster_layout_ok(&c, 0, SESSION, chunks, 2);
    cluster_plan(&c, false);
    says(&c, 0, 0, 0, 0);
    for (uint64_t write = 1; write < 4; write++) {
        assert_int_equal(append_part(&c, chunks, 0, write, write & 1), COMMON_OK);
        says(&c, 0, write, TOKENS, 0); // nothing is left of the one before
        assert_int_equal(append_part(&c, chunks, 1, write, write & 1), COMMON_OK);
        says(&c, 0, write, TOKENS, TOKENS);
    }
    assert_int_equal(append_part(&c, chunks, 1, 4, 0), COMMON_DATA_LOSS); // the first part is still to come
    says(&c, 0, 4, 0, TOKENS);
    assert_int_equal(append_part(&c, chunks, 0, 4, 0), COMMON_OK);
    assert_int_equal(append_part(&c, chunks, 0, 4, 0), COMMON_OK); // another attempt
    says(&c, 0, 4, TOKENS, TOKENS);
    assert_int_equal(append_one(&c, chunks, 30, 5, 2 * TOKENS, 0, reason), COMMON_OK); // it was acknowledged
    says(&c, 2 * TOKENS, 0, TOKENS, TOKENS);
    cluster_stop(&c);
}

static void a_refused_part_leaves_nothing_of_its_append(void **state)
{
    (void)state;
    struct cluster c;
    struct chunk_place chunks[2];
    places(chunks, 2);
    cluster_start(&c, &(struct cluster_options){0});
    cluster_layout_ok(&c, 0, SESSION, chunks, 2);
    cluster_plan(&c, false);
    cluster_attach(&c, 0, SESSION, 0, TOKENS, 4); // other bytes past the end
    assert_int_equal(append_part(&c, chunks, 0, 1, 1), COMMON_OK);
    assert_int_equal(append_part(&c, chunks, 1, 1, 1), COMMON_FAILED_PRECONDITION);
    says(&c, 0, 0, 0, 4);
    assert_int_equal(append_part(&c, chunks, 0, 1, 1), COMMON_ABORTED); // late
    says(&c, 0, 0, 0, 4);
    cluster_stop(&c);
}

static void an_append_goes_to_its_holder(void **state)
{
    (void)state;
    struct cluster c;
    struct chunk_place chunks[4];
    places(chunks, 4);
    cluster_start(&c, &(struct cluster_options){.workers = 3});
    spread(&c, chunks, 4, 3 * TOKENS);
    cluster_plan(&c, true);
    for (uint32_t at = 3 * TOKENS; at < 4 * TOKENS;
         at += 4) { // chunk 3 is worker 0's; then also a wrong holder
        struct proto_step *step = step_new(1);
        struct outcome out;
        step_item(step, 0, SESSION, 0, at, 4, chunks, 4);
        step_append(step, 0, chunks[3].chunk, 0, at, at, 0);
        assert_int_equal(cluster_step(&c, 0, step, &out), COMMON_OK);
        assert_exact(step, &out, 0);
        outcome_free(&out);
        step->appends[0].holders[0] = 2;
        assert_int_equal(cluster_step(&c, 0, step, &out), COMMON_OK);
        assert_int_equal(out.result->items[0].code, COMMON_DATA_LOSS);
        outcome_free(&out);
        proto_step_free(step);
    }
    cluster_stop(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_worker_and_trees_are_exact),
        cmocka_unit_test(bits_depend_on_nothing_but_the_data),
        cmocka_unit_test(load_changes_no_bits),
        cmocka_unit_test(slabs_are_parts_of_the_whole),
        cmocka_unit_test(a_removed_chunk_is_noticed),
        cmocka_unit_test(a_doubled_chunk_is_noticed),
        cmocka_unit_test(a_chunk_in_anothers_place_is_noticed),
        cmocka_unit_test(an_aged_layout_is_noticed),
        cmocka_unit_test(a_forgotten_session_is_noticed),
        cmocka_unit_test(a_lost_worker_is_named),
        cmocka_unit_test(writes_are_ordered),
        cmocka_unit_test(a_write_that_is_older_by_one_is_refused),
        cmocka_unit_test(a_newer_append_replaces_the_whole_of_one_that_failed),
        cmocka_unit_test(a_refused_part_leaves_nothing_of_its_append),
        cmocka_unit_test(an_append_goes_to_its_holder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
