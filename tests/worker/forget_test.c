// SPDX-License-Identifier: Apache-2.0
// A worker that receives what a session has forgotten: memory goes, rows count as they did, and nothing that
// needs them is answered.
#include "tests/worker/service.h"
#include "worker/core/state.h"

enum { WINDOWED = 0x900, TWIN = 0x901, WINDOW = 8, CHUNKS = 3 };
static const struct chunk_place mine[CHUNKS] = {{900, 0}, {901, TOKENS}, {902, 2 * TOKENS}};

static bool incoming; // the chunks of the next layouts are on their way

static enum common_code lay_out(struct setup *s, uint64_t session, uint64_t incarnation, uint32_t n,
                                uint64_t forgotten)
{
    Banyan__Pb__LayoutChunk chunk[CHUNKS], *list[CHUNKS];
    Banyan__Pb__LayoutSetRequest r = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    Banyan__Pb__Spec spec;
    spec_init(&spec);
    spec.window = WINDOW;
    spec.forget = 1;
    for (uint32_t i = 0; i < n; i++) {
        banyan__pb__layout_chunk__init(&chunk[i]);
        chunk[i].chunk = mine[i].chunk + (incarnation - INCARNATION) * 10;
        chunk[i].first = mine[i].first;
        chunk[i].compute = !incoming;
        chunk[i].incoming = incoming;
        list[i] = &chunk[i];
    }
    r.term = TERM;
    r.session = session;
    r.incarnation = incarnation;
    r.epoch = EPOCH;
    r.spec = &spec;
    r.replace = n > 0;
    r.n_chunks = n;
    r.chunks = list;
    r.forgotten = forgotten;
    return cluster_call(&s->c, s->c.edges[0], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &r.base, NULL, 0, NULL);
}

// Bytes of K and V, once all rows have been looked at: they are all ready, forgotten or not.
static uint64_t bytes_held(struct setup *s, uint64_t session)
{
    struct answer answer;
    Banyan__Pb__InventoryRequest r = BANYAN__PB__INVENTORY_REQUEST__INIT;
    r.term = TERM;
    r.session = session;
    assert_int_equal(cluster_call(&s->c, s->c.edges[0], BANYAN__PB__METHOD__METHOD_INVENTORY, &r.base, NULL,
                                  0, &answer),
                     COMMON_OK);
    const Banyan__Pb__InventoryReply *reply = (const void *)answer.body;
    uint64_t bytes = reply->sessions[0]->bytes;
    for (size_t i = 0; i < reply->sessions[0]->n_chunks; i++)
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            assert_int_equal(reply->sessions[0]->chunks[i]->layer_rows[layer], TOKENS);
    answer_free(&answer);
    return bytes;
}

static void begin_windowed(struct setup *s)
{
    begin(s);
    assert_int_equal(lay_out(s, WINDOWED, INCARNATION, CHUNKS, 0), COMMON_OK);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        cluster_attach(&s->c, 0, WINDOWED, layer, 0, CHUNKS * TOKENS);
}

static void end_windowed(struct setup *s)
{
    free(s->before);
    cluster_stop(&s->c);
}

static void attend(struct setup *s, uint64_t first, enum common_code want, const char *reason)
{
    struct proto_step *step = step_new(1);
    struct outcome out;
    step_item(step, 0, WINDOWED, 1, first, 1, mine, CHUNKS);
    assert_int_equal(cluster_step(&s->c, 0, step, &out), COMMON_OK);
    assert_int_equal(out.result->items[0].code, want);
    assert_string_equal(out.result->items[0].reason, reason);
    outcome_free(&out);
    proto_step_free(step);
}

static void weigh(struct setup *s, uint64_t first, enum common_code want, const char *reason)
{
    float q[Q_HEADS * K_DIM] = {0}, lse[Q_HEADS] = {0};
    struct common_slice pieces[2] = {{q, sizeof q}, {lse, sizeof lse}};
    struct proto_tensor_out tensors[2] = {{BANYAN__PB__DTYPE__DTYPE_U8, 1, {sizeof q}, &pieces[0], 1},
                                          {BANYAN__PB__DTYPE__DTYPE_U8, 1, {sizeof lse}, &pieces[1], 1}};
    Banyan__Pb__MassRequest r = BANYAN__PB__MASS_REQUEST__INIT;
    struct answer answer;
    r.term = TERM;
    r.session = WINDOWED;
    r.incarnation = INCARNATION;
    r.epoch = EPOCH;
    r.first = first;
    r.rows = 1;
    r.visible = first + 1;
    r.bin_chunks = 1;
    assert_int_equal(cluster_call(&s->c, s->c.edges[0], BANYAN__PB__METHOD__METHOD_MASS, &r.base, tensors, 2,
                                  &answer),
                     want);
    assert_string_equal(answer.reason, reason);
    answer_free(&answer);
}

static void whole_chunks_go_and_count_as_they_did(void **state)
{
    (void)state;
    struct setup s;
    begin_windowed(&s);
    uint64_t all = bytes_held(&s, WINDOWED);
    assert_int_equal(lay_out(&s, WINDOWED, INCARNATION, 0, 70), COMMON_OK); // rows below 63
    assert_int_equal(bytes_held(&s, WINDOWED), all / 3 * 2);
    attend(&s, 70, COMMON_OK, "");
    attend(&s, 38, COMMON_FAILED_PRECONDITION, "FORGOTTEN"); // its window begins at 31
    attend(&s, 39, COMMON_OK, "");                           // what is there still is exact
    assert_int_equal(lay_out(&s, WINDOWED, INCARNATION, 0, 71), COMMON_OK);
    assert_int_equal(bytes_held(&s, WINDOWED), all / 3);
    attend(&s, 70, COMMON_FAILED_PRECONDITION, "FORGOTTEN");
    attend(&s, 71, COMMON_OK, "");
    attend(&s, 95, COMMON_OK, "");
    weigh(&s, 70, COMMON_FAILED_PRECONDITION, "FORGOTTEN");
    weigh(&s, 71, COMMON_OK, "");
    assert_int_equal(lay_out(&s, WINDOWED, INCARNATION, 0, 40), COMMON_OK); // it comes late
    assert_int_equal(lay_out(&s, WINDOWED, INCARNATION, CHUNKS, 0), COMMON_OK);
    assert_int_equal(bytes_held(&s, WINDOWED), all / 3);
    attend(&s, 71, COMMON_OK, "");
    assert_int_equal(lay_out(&s, WINDOWED, INCARNATION, 0, UINT64_MAX), COMMON_INVALID_ARGUMENT);
    end_windowed(&s);
}

static void nothing_is_put_there_or_prepared(void **state)
{
    (void)state;
    struct setup s;
    struct answer answer;
    begin_windowed(&s);
    assert_int_equal(lay_out(&s, WINDOWED, INCARNATION, 0, 70), COMMON_OK);
    assert_int_equal(cluster_put(&s.c, 0, WINDOWED, 0, 0, 4, 0), COMMON_FAILED_PRECONDITION);
    assert_int_equal(cluster_put(&s.c, 0, WINDOWED, 0, 31, 4, 0), COMMON_FAILED_PRECONDITION);
    assert_int_equal(cluster_put(&s.c, 0, WINDOWED, 0, 63, 4, 0), COMMON_OK); // the same bytes
    assert_int_equal(cluster_prepare(&s.c, 0, WINDOWED, 0, 31, 4, &answer), COMMON_FAILED_PRECONDITION);
    assert_string_equal(answer.reason, "FORGOTTEN");
    answer_free(&answer);
    assert_int_equal(cluster_prepare(&s.c, 0, WINDOWED, 0, 63, 4, NULL), COMMON_OK);
    // The chunk in which they end is whole: below that place its rows are as they are.
    assert_int_equal(cluster_put(&s.c, 0, WINDOWED, 0, 62, 4, 0), COMMON_OK);
    assert_int_equal(cluster_put(&s.c, 0, WINDOWED, 0, 62, 4, 1), COMMON_FAILED_PRECONDITION);
    assert_int_equal(cluster_prepare(&s.c, 0, WINDOWED, 0, 62, 4, NULL), COMMON_OK);
    assert_int_equal(cluster_commit(&s.c, 0, WINDOWED, 0, 0, CHUNKS * TOKENS), COMMON_OK); // repeated
    end_windowed(&s);
}

// Chunks of a fork: they go when the last session that needs them forgets, or goes.
static void what_sessions_share_goes_with_the_last(void **state)
{
    (void)state;
    for (int dropped = 0; dropped < 2; dropped++) {
        struct setup s;
        begin_windowed(&s);
        assert_int_equal(lay_out(&s, TWIN, INCARNATION, CHUNKS, 0), COMMON_OK);
        uint64_t all = bytes_held(&s, TWIN);
        assert_int_equal(lay_out(&s, WINDOWED, INCARNATION, 0, 71), COMMON_OK);
        assert_int_equal(bytes_held(&s, WINDOWED), all);
        if (dropped) {
            Banyan__Pb__SessionDropRequest r = BANYAN__PB__SESSION_DROP_REQUEST__INIT;
            r.term = TERM;
            r.session = TWIN;
            assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_SESSION_DROP,
                                          &r.base, NULL, 0, NULL),
                             COMMON_OK);
        } else {
            assert_int_equal(lay_out(&s, TWIN, INCARNATION, CHUNKS, 39), COMMON_OK);
            assert_int_equal(bytes_held(&s, WINDOWED), all / 3 * 2);
            assert_int_equal(lay_out(&s, TWIN, INCARNATION, 0, 90), COMMON_OK);
        }
        assert_int_equal(bytes_held(&s, WINDOWED), all / 3);
        attend(&s, 71, COMMON_OK, "");
        end_windowed(&s);
    }
}

// A truncate to 0: what comes then is not forgotten, though it stands where the forgotten rows stood.
static void a_new_history_begins_with_nothing_forgotten(void **state)
{
    (void)state;
    struct setup s;
    begin_windowed(&s);
    assert_int_equal(lay_out(&s, WINDOWED, INCARNATION, 0, 90), COMMON_OK);
    assert_int_equal(lay_out(&s, WINDOWED, INCARNATION + 1, CHUNKS, 0), COMMON_OK);
    struct proto_step *step = step_new(1);
    struct outcome out;
    struct chunk_place fresh[1] = {{910, 0}};
    step_item(step, 0, WINDOWED, 0, 0, 1, fresh, 1);
    step->items[0].incarnation = INCARNATION + 1;
    step_append(step, 0, 910, 0, 1, 0, 0);
    assert_int_equal(cluster_step(&s.c, 0, step, &out), COMMON_OK);
    assert_int_equal(out.result->items[0].code, COMMON_OK);
    outcome_free(&out);
    proto_step_free(step);
    end_windowed(&s);
}

// All who have a chunk have forgotten it, and one more comes that has not: its rows are brought, for it
// alone.
static void what_all_have_forgotten_may_be_brought_again(void **state)
{
    (void)state;
    struct setup s;
    begin_windowed(&s);
    assert_int_equal(lay_out(&s, WINDOWED, INCARNATION, 0, 2 * TOKENS + WINDOW), COMMON_OK);
    const struct worker_chunk *chunk = worker_store_find(s.c.workers[0]->store, mine[0].chunk);
    assert_true(worker_chunk_forgotten(chunk, 0));
    incoming = true;
    for (int again = 0; again < 2; again++) {
        assert_int_equal(lay_out(&s, TWIN, INCARNATION, 1, 0), COMMON_OK);
        assert_false(worker_chunk_forgotten(chunk, 0));
        assert_int_equal(worker_chunk_row(chunk, 0, 0), WORKER_ROW_ABSENT);
    }
    incoming = false;
    assert_int_equal(lay_out(&s, TWIN, INCARNATION, 0, 2 * TOKENS + WINDOW),
                     COMMON_OK); // now it forgets them, too
    assert_true(worker_chunk_forgotten(chunk, 0));
    end_windowed(&s);
}

// Rows of a chunk that one session has forgotten, and that are being brought for another one: to the first
// they count as they did, in a step and when its rows are listed again, and nothing that needs them is
// answered.
static void what_is_brought_for_another_counts_as_it_did(void **state)
{
    (void)state;
    struct setup s;
    begin_windowed(&s);
    assert_int_equal(lay_out(&s, WINDOWED, INCARNATION, 0, 2 * TOKENS + WINDOW), COMMON_OK);
    incoming = true;
    assert_int_equal(lay_out(&s, TWIN, INCARNATION, 2, 0), COMMON_OK);
    incoming = false;
    const struct worker_chunk *chunk = worker_store_find(s.c.workers[0]->store, mine[1].chunk);
    assert_int_equal(worker_chunk_ready(chunk, 0), 0);
    attend(&s, 95, COMMON_OK, "");
    attend(&s, 71, COMMON_OK, "");
    attend(&s, 70, COMMON_FAILED_PRECONDITION, "FORGOTTEN");
    weigh(&s, 71, COMMON_OK, "");
    weigh(&s, 70, COMMON_FAILED_PRECONDITION, "FORGOTTEN");
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        assert_int_equal(cluster_commit(&s.c, 0, WINDOWED, layer, 0, CHUNKS * TOKENS), COMMON_OK);
    // The other one has no row of them.
    assert_int_equal(lay_out(&s, TWIN, INCARNATION, 2, 0), COMMON_OK);
    assert_int_equal(cluster_commit(&s.c, 0, TWIN, 0, 0, TOKENS), COMMON_FAILED_PRECONDITION);
    end_windowed(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_chunks_go_and_count_as_they_did),
        cmocka_unit_test(nothing_is_put_there_or_prepared),
        cmocka_unit_test(what_sessions_share_goes_with_the_last),
        cmocka_unit_test(a_new_history_begins_with_nothing_forgotten),
        cmocka_unit_test(what_all_have_forgotten_may_be_brought_again),
        cmocka_unit_test(what_is_brought_for_another_counts_as_it_did),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
