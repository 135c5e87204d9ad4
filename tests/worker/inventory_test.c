// SPDX-License-Identifier: Apache-2.0
// The inventory, page by page to its end: every session and every chunk once, in order, whatever falls on the
// end of a page.
#include "tests/worker/fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/hash/hash.h"

// Of a packed header; a page may end with one session and one chunk more than it aims at.
enum { PAGE_MOST = 64 * 1024 };

// Session `id` has n_chunks chunks, their ids and positions in order. The id that comes after them.
static uint64_t lay(struct cluster *c, uint64_t id, uint64_t next_chunk, uint32_t n_chunks)
{
    enum { AT_ONCE = 1000 };
    Banyan__Pb__Spec spec;
    Banyan__Pb__LayoutChunk list[AT_ONCE], *pointers[AT_ONCE];
    spec_init(&spec);
    uint32_t done = 0;
    do {
        uint32_t n = n_chunks - done < AT_ONCE ? n_chunks - done : AT_ONCE;
        for (uint32_t i = 0; i < n; i++) {
            banyan__pb__layout_chunk__init(&list[i]);
            list[i].chunk = next_chunk++;
            list[i].first = (uint64_t)(done + i) * TOKENS;
            pointers[i] = &list[i];
        }
        Banyan__Pb__LayoutSetRequest layout = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
        layout.term = TERM;
        layout.session = id;
        layout.incarnation = INCARNATION;
        layout.epoch = EPOCH;
        layout.spec = &spec;
        layout.replace = done == 0;
        layout.chunks = pointers;
        layout.n_chunks = n;
        assert_int_equal(cluster_call(c, c->edges[0], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &layout.base,
                                      NULL, 0, NULL),
                         COMMON_OK);
        done += n;
    } while (done < n_chunks);
    return next_chunk;
}

static void forget(struct cluster *c, uint64_t id)
{
    Banyan__Pb__SessionDropRequest drop = BANYAN__PB__SESSION_DROP_REQUEST__INIT;
    drop.term = TERM;
    drop.session = id;
    assert_int_equal(cluster_call(c, c->edges[0], BANYAN__PB__METHOD__METHOD_SESSION_DROP, &drop.base, NULL,
                                  0, NULL),
                     COMMON_OK);
}

// Walks the pages of sessions 1 to n, whose numbers of chunks are given and whose chunks are numbered from 1
// on through all of them. Returns the number of pages.
static uint32_t walk(struct cluster *c, const uint32_t *n_chunks, uint32_t n)
{
    Banyan__Pb__InventoryRequest request = BANYAN__PB__INVENTORY_REQUEST__INIT;
    request.term = TERM;
    uint64_t session = 0, chunk = 0; // the last ones seen
    uint32_t pages = 0, of_session = 0;
    do {
        struct answer answer;
        assert_int_equal(cluster_call(c, c->edges[0], BANYAN__PB__METHOD__METHOD_INVENTORY, &request.base,
                                      NULL, 0, &answer),
                         COMMON_OK);
        const Banyan__Pb__InventoryReply *reply = (const Banyan__Pb__InventoryReply *)answer.body;
        assert_true(banyan__pb__inventory_reply__get_packed_size(reply) < PAGE_MOST);
        assert_true(reply->n_sessions > 0 || n == 0); // no page without news
        for (size_t i = 0; i < reply->n_sessions; i++) {
            const Banyan__Pb__InventorySession *s = reply->sessions[i];
            bool resumed = i == 0 && request.after_chunk != 0;
            assert_true(!resumed || s->n_chunks > 0);
            if (!resumed) {
                assert_true(session == 0 || of_session == n_chunks[session - 1]); // all of the one before
                session++;
                of_session = 0;
            }
            assert_int_equal(s->session, session);
            assert_true(session <= n);
            assert_int_equal(s->incarnation, INCARNATION);
            assert_int_equal(s->epoch, EPOCH);
            for (size_t k = 0; k < s->n_chunks; k++) {
                assert_int_equal(s->chunks[k]->chunk, ++chunk);
                assert_int_equal(s->chunks[k]->first, (uint64_t)of_session++ * TOKENS);
                assert_int_equal(s->chunks[k]->n_layer_rows, LAYERS);
            }
        }
        request.after_session = reply->next_session;
        request.after_chunk = reply->next_chunk;
        answer_free(&answer);
        pages++;
    } while (request.after_session != 0);
    assert_int_equal(session, n);
    assert_true(n == 0 || of_session == n_chunks[n - 1]);
    return pages;
}

static uint32_t list_all(struct cluster *c, const uint32_t *n_chunks, uint32_t n)
{
    uint64_t next_chunk = 1;
    for (uint32_t i = 0; i < n; i++)
        next_chunk = lay(c, i + 1, next_chunk, n_chunks[i]);
    uint32_t pages = walk(c, n_chunks, n);
    for (uint32_t i = 0; i < n; i++)
        forget(c, i + 1);
    return pages;
}

static void a_page_that_is_exactly_full(void **state)
{
    (void)state;
    struct cluster c;
    cluster_start(&c, &(struct cluster_options){.memory_bytes = 64 << 20});
    static uint32_t n_chunks[800]; // a session without chunks counts 64 bytes: 768 of them fill a page
    assert_int_equal(walk(&c, n_chunks, 0), 1);
    assert_int_equal(list_all(&c, n_chunks, 767), 1);
    assert_int_equal(list_all(&c, n_chunks, 768), 1); // full, and that was all
    assert_int_equal(list_all(&c, n_chunks, 769), 2);
    // The session whose header fills the page has chunks, the next one has some or none
    for (uint32_t with = 0; with < 2; with++) {
        n_chunks[767] = 1;
        n_chunks[768] = with;
        assert_int_equal(list_all(&c, n_chunks, 768), 1);
        assert_int_equal(list_all(&c, n_chunks, 769), 2);
        n_chunks[767] = 3;
        assert_int_equal(list_all(&c, n_chunks, 769), 2);
    }
    cluster_stop(&c);
}

static void a_session_over_several_pages(void **state)
{
    (void)state;
    struct cluster c;
    cluster_start(&c, &(struct cluster_options){.memory_bytes = 64 << 20});
    static const uint32_t long_ones[] = {3, 5000, 0, 9000, 1, 0};
    for (uint32_t n = 2; n <= 6; n++)
        assert_true(list_all(&c, long_ones, n) > 2);
    cluster_stop(&c);
}

// One chunk more in the first session moves all that follows against the ends of pages.
static void every_place_of_an_end(void **state)
{
    (void)state;
    struct cluster c;
    cluster_start(&c, &(struct cluster_options){.memory_bytes = 64 << 20});
    uint32_t n_chunks[700];
    for (uint32_t first = 0; first < 12; first++) {
        for (uint32_t i = 1; i < 700; i++)
            n_chunks[i] = common_mix64(i) % 4;
        n_chunks[0] = first;
        list_all(&c, n_chunks, 700);
    }
    cluster_stop(&c);
}

static void twenty_thousand_sessions(void **state)
{
    (void)state;
    enum { MANY = 20000 };
    struct cluster c;
    cluster_start(&c, &(struct cluster_options){.memory_bytes = 256 << 20});
    uint32_t *n_chunks = malloc(MANY * sizeof *n_chunks);
    for (uint32_t i = 0; i < MANY; i++)
        n_chunks[i] = i % 16 == 0 ? 0 : 1;
    list_all(&c, n_chunks, MANY);
    free(n_chunks);
    cluster_stop(&c);
}

static void one_session_alone(void **state)
{
    (void)state;
    struct cluster c;
    cluster_start(&c, &(struct cluster_options){.memory_bytes = 64 << 20});
    uint64_t next = lay(&c, 1, 1, 3);
    next = lay(&c, 2, next, 2000); // more than a page
    lay(&c, 3, next, 3);
    Banyan__Pb__InventoryRequest request = BANYAN__PB__INVENTORY_REQUEST__INIT;
    request.term = TERM;
    request.session = 2;
    uint32_t chunks = 0, pages = 0;
    do {
        struct answer answer;
        assert_int_equal(cluster_call(&c, c.edges[0], BANYAN__PB__METHOD__METHOD_INVENTORY, &request.base,
                                      NULL, 0, &answer),
                         COMMON_OK);
        const Banyan__Pb__InventoryReply *reply = (const Banyan__Pb__InventoryReply *)answer.body;
        assert_int_equal(reply->n_sessions, 1);
        assert_int_equal(reply->sessions[0]->session, 2);
        chunks += (uint32_t)reply->sessions[0]->n_chunks;
        request.after_session = reply->next_session;
        request.after_chunk = reply->next_chunk;
        request.after_first = reply->next_first;
        answer_free(&answer);
        pages++;
    } while (request.after_session);
    assert_int_equal(chunks, 2000);
    assert_true(pages > 1);
    request.session = 4;
    struct answer answer;
    assert_int_equal(cluster_call(&c, c.edges[0], BANYAN__PB__METHOD__METHOD_INVENTORY, &request.base, NULL,
                                  0, &answer),
                     COMMON_OK);
    assert_int_equal(((const Banyan__Pb__InventoryReply *)answer.body)->n_sessions, 0);
    answer_free(&answer);
    cluster_stop(&c);
}

static enum common_code lay_page(struct cluster *c, uint32_t page, uint64_t chunk, bool more)
{
    Banyan__Pb__Spec spec;
    spec_init(&spec);
    Banyan__Pb__LayoutChunk laid = BANYAN__PB__LAYOUT_CHUNK__INIT, *chunks[] = {&laid};
    laid.chunk = chunk;
    laid.first = (chunk - 1) * TOKENS;
    Banyan__Pb__LayoutSetRequest layout = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    layout.term = TERM;
    layout.session = 1;
    layout.incarnation = INCARNATION;
    layout.epoch = EPOCH;
    layout.spec = &spec;
    layout.replace = true;
    layout.more = more;
    layout.page = page;
    layout.chunks = chunks;
    layout.n_chunks = 1;
    return cluster_call(c, c->edges[0], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &layout.base, NULL, 0, NULL);
}

// A layout in several calls that was broken off does not become a part of one, nor of the next.
static void a_layout_that_was_broken_off(void **state)
{
    (void)state;
    struct cluster c;
    cluster_start(&c, &(struct cluster_options){.memory_bytes = 64 << 20});
    uint32_t three = 3, two = 2;
    lay(&c, 1, 1, 3);
    assert_int_equal(lay_page(&c, 2, 2, false), COMMON_ABORTED); // without the first
    assert_int_equal(lay_page(&c, 1, 1, true), COMMON_OK);
    assert_int_equal(lay_page(&c, 3, 3, false), COMMON_ABORTED); // without the second
    assert_int_equal(walk(&c, &three, 1), 1);
    assert_int_equal(lay_page(&c, 1, 3, true), COMMON_OK);
    assert_int_equal(lay_page(&c, 1, 1, true), COMMON_OK); // begins again
    assert_int_equal(lay_page(&c, 2, 2, false), COMMON_OK);
    assert_int_equal(walk(&c, &two, 1), 1);
    cluster_stop(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_that_is_exactly_full), cmocka_unit_test(a_session_over_several_pages),
        cmocka_unit_test(every_place_of_an_end),       cmocka_unit_test(twenty_thousand_sessions),
        cmocka_unit_test(one_session_alone),           cmocka_unit_test(a_layout_that_was_broken_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
