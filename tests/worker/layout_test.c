// SPDX-License-Identifier: Apache-2.0
// Layouts as a worker gets them: in one message or in several, and what is left of one that it refuses.
#include "tests/worker/service.h"

static enum common_code tell(struct setup *s, const Banyan__Pb__LayoutSetRequest *layout)
{
    return cluster_call(&s->c, s->c.edges[0], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &layout->base, NULL, 0,
                        NULL);
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

// What an older epoch, term or incarnation has begun is not the beginning of a newer layout.
static void a_layout_in_parts_is_of_one_time(void **state)
{
    (void)state;
    for (int newer = 0; newer < 4; newer++) {
        struct setup s;
        begin(&s);
        Banyan__Pb__LayoutChunk chunk = BANYAN__PB__LAYOUT_CHUNK__INIT, *list[1] = {&chunk};
        Banyan__Pb__LayoutSetRequest layout = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
        layout.term = TERM;
        layout.session = SESSION;
        layout.incarnation = INCARNATION;
        layout.epoch = EPOCH + 1;
        layout.replace = layout.more = true;
        layout.page = 1;
        layout.chunks = list;
        layout.n_chunks = 1;
        chunk.chunk = 100;
        assert_int_equal(tell(&s, &layout), COMMON_OK);
        chunk.chunk = 700;
        chunk.first = 2 * TOKENS;
        layout.more = false;
        layout.page = 2;
        *(newer == 1 ? &layout.epoch : newer == 2 ? &layout.term : &layout.incarnation) += newer > 0;
        assert_int_equal(tell(&s, &layout), newer ? COMMON_ABORTED : COMMON_OK);
        layout.page = 0; // the same by a coordinator that says no page: what was begun is left out
        assert_int_equal(tell(&s, &layout), COMMON_OK);
        struct answer answer;
        Banyan__Pb__InventoryRequest ask = BANYAN__PB__INVENTORY_REQUEST__INIT;
        ask.term = layout.term;
        assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_INVENTORY, &ask.base,
                                      NULL, 0, &answer),
                         COMMON_OK);
        const Banyan__Pb__InventoryReply *reply = (const Banyan__Pb__InventoryReply *)answer.body;
        assert_int_equal(reply->sessions[0]->n_chunks, 1);
        assert_int_equal(reply->sessions[0]->chunks[0]->chunk, 700);
        answer_free(&answer);
        free(s.before);
        cluster_stop(&s.c);
    }
}

// Of the chunks before the one that it fails at nothing is kept: neither their memory nor a reference, with
// which they would count as shared, and take no rows any more.
static void a_refused_layout_holds_nothing(void **state)
{
    (void)state;
    static const struct chunk_place refused[] = {{101, TOKENS}, {500, 2 * TOKENS}, {100, 3 * TOKENS}};
    struct setup s;
    begin(&s);
    for (size_t from = 0; from < 3; from++) { // the last one is held at another position
        assert_int_equal(cluster_layout(&s.c, 0, OTHER, refused + from, 3 - from),
                         COMMON_FAILED_PRECONDITION);
        unchanged(&s);
        assert_int_equal(cluster_put(&s.c, 0, SESSION, 0, 40, 4, 1), COMMON_OK); // other bytes
        assert_int_equal(cluster_put(&s.c, 0, SESSION, 0, 40, 4, 0), COMMON_OK);
    }
    end(&s);
}

// What a visit that is over says of a layout comes by a link that is gone, and late: the worker may have a
// newer one. A new term starts the count again.
static void a_layout_of_an_earlier_visit_is_refused(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    Banyan__Pb__InventoryRequest asked = BANYAN__PB__INVENTORY_REQUEST__INIT;
    Banyan__Pb__LayoutSetRequest layout = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    asked.term = TERM;
    asked.visit = 7;
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_INVENTORY, &asked.base, NULL,
                                  0, NULL),
                     COMMON_OK);
    layout.term = TERM;
    layout.session = SESSION;
    layout.incarnation = INCARNATION;
    layout.epoch = EPOCH;
    layout.replace = true; // by nothing
    layout.visit = 6;
    assert_int_equal(tell(&s, &layout), COMMON_ABORTED);
    unchanged(&s);
    layout.session = SESSION + 77; // nor does it bring back what was dropped since
    assert_int_equal(tell(&s, &layout), COMMON_ABORTED);
    layout.session = SESSION;
    layout.replace = false;
    layout.visit = 7;
    assert_int_equal(tell(&s, &layout), COMMON_OK);
    asked.term = layout.term = TERM + 1;
    asked.visit = layout.visit = 1;
    assert_int_equal(cluster_call(&s.c, s.c.edges[0], BANYAN__PB__METHOD__METHOD_INVENTORY, &asked.base, NULL,
                                  0, NULL),
                     COMMON_OK);
    assert_int_equal(tell(&s, &layout), COMMON_OK);
    free(s.before);
    cluster_stop(&s.c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_come_in_parts),
        cmocka_unit_test(a_layout_in_parts_is_of_one_time),
        cmocka_unit_test(a_refused_layout_holds_nothing),
        cmocka_unit_test(a_layout_of_an_earlier_visit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
