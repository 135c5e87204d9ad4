// SPDX-License-Identifier: Apache-2.0
#include "client/lib/rows/ticket.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define TOKENS 256

// An answer for n chunks from `first` on; the holder of chunk i is who[i] - 'a'.
struct answer {
    Banyan__Pb__AttachOpenReply reply;
    Banyan__Pb__AttachChunk chunks[8], *chunk_ptrs[8];
    Banyan__Pb__AttachWorker workers[3], *worker_ptrs[3];
    uint32_t holders[8];
};

static void make_answer(struct answer *a, uint64_t first, const char *who)
{
    static const char *const endpoints[] = {"tcp://a:1", "tcp://b:1", "tcp://c:1"};
    banyan__pb__attach_open_reply__init(&a->reply);
    a->reply.ticket.data = (uint8_t *)"proof";
    a->reply.ticket.len = 5;
    a->reply.life_ns = 60 * COMMON_NS_PER_S;
    a->reply.incarnation = 3;
    a->reply.chunks = a->chunk_ptrs;
    a->reply.workers = a->worker_ptrs;
    a->reply.n_workers = 3;
    for (size_t i = 0; i < 3; i++) {
        banyan__pb__attach_worker__init(&a->workers[i]);
        a->workers[i].endpoint = (char *)endpoints[i];
        a->worker_ptrs[i] = &a->workers[i];
    }
    a->reply.n_chunks = strlen(who);
    for (size_t i = 0; who[i]; i++) {
        banyan__pb__attach_chunk__init(&a->chunks[i]);
        a->holders[i] = (uint32_t)(who[i] - 'a');
        a->chunks[i].first = first + i * TOKENS;
        a->chunks[i].holders = &a->holders[i];
        a->chunks[i].n_holders = 1;
        a->chunk_ptrs[i] = &a->chunks[i];
    }
}

static struct client_ticket *make_ticket(uint64_t first, const char *who)
{
    struct answer a;
    struct client_ticket *ticket = NULL;
    make_answer(&a, first, who);
    assert_int_equal(client_ticket_read(&a.reply, first, strlen(who) * TOKENS, TOKENS, common_clock_ns(),
                                        &ticket, NULL),
                     BANYAN_OK);
    return ticket;
}

static void test_cut_at_holders_and_bytes(void **state)
{
    (void)state;
    struct client_ticket *t = make_ticket(1024, "aabca");
    assert_int_equal(client_ticket_cut(t, 1024, 10000, 1000), 512);  // both chunks of a
    assert_int_equal(client_ticket_cut(t, 1024, 100, 1000), 100);    // the range ends
    assert_int_equal(client_ticket_cut(t, 1030, 10000, 1000), 506);  // from inside a chunk
    assert_int_equal(client_ticket_cut(t, 1024, 10000, 16384), 256); // 4 MiB hold one chunk
    assert_int_equal(client_ticket_cut(t, 1024, 10000, 20000), 208); // a part of one, at a page
    assert_int_equal(client_ticket_cut(t, 1030, 10000, 20000), 202); // up to 1232
    assert_int_equal(client_ticket_cut(t, 1024, 10000, 8 << 20), 1); // a row larger than a put
    assert_int_equal(client_ticket_cut(t, 1024, 10000, 600000), 6);  // fewer rows than a page
    assert_int_equal(client_ticket_cut(t, 1536, 10000, 1), 256);     // b
    assert_int_equal(client_ticket_cut(t, 2048, 10000, 1), 256);     // the ticket ends
    assert_string_equal(client_ticket_endpoint(t, 1535, 0), "tcp://a:1");
    assert_string_equal(client_ticket_endpoint(t, 1536, 0), "tcp://b:1");
    assert_string_equal(client_ticket_endpoint(t, 1800, 0), "tcp://c:1");
    assert_int_equal(client_ticket_holders(t, 1024), 1);
    client_ticket_unref(t);
}

static void expect_refused(struct answer *a, uint64_t first, uint64_t count)
{
    struct client_ticket *ticket = NULL;
    banyan_error error;
    assert_int_equal(client_ticket_read(&a->reply, first, count, TOKENS, 0, &ticket, &error),
                     BANYAN_INTERNAL);
    assert_null(ticket);
}

static void test_answers_that_make_no_sense(void **state)
{
    (void)state;
    struct answer a;
    make_answer(&a, 0, "abc");
    expect_refused(&a, 0, 4 * TOKENS); // fewer chunks than asked for
    expect_refused(&a, 0, 2 * TOKENS);
    expect_refused(&a, TOKENS, 3 * TOKENS); // elsewhere
    a.chunks[1].first = 5;
    expect_refused(&a, 0, 3 * TOKENS);
    make_answer(&a, 0, "abc");
    a.holders[2] = 3; // there is no such worker
    expect_refused(&a, 0, 3 * TOKENS);
    make_answer(&a, 0, "abc");
    a.chunks[0].n_holders = 0;
    expect_refused(&a, 0, 3 * TOKENS);
    make_answer(&a, 0, "abc");
    a.chunks[0].n_holders = CLIENT_TICKET_HOLDERS + 1;
    expect_refused(&a, 0, 3 * TOKENS);
    make_answer(&a, 0, "abc");
    a.reply.ticket.len = 513;
    expect_refused(&a, 0, 3 * TOKENS);
    make_answer(&a, 0, "abc");
    a.reply.n_workers = 0;
    expect_refused(&a, 0, 3 * TOKENS);
    char longest[200];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    make_answer(&a, 0, "abc");
    a.workers[1].endpoint = longest;
    expect_refused(&a, 0, 3 * TOKENS);
}

static struct client_ticket *with_life(uint64_t life_ns, uint64_t asked_ago_ns)
{
    struct answer a;
    struct client_ticket *ticket = NULL;
    make_answer(&a, 0, "a");
    a.reply.life_ns = life_ns;
    a.reply.expires_wall_ns =
        common_clock_wall_ns() - 3600 * COMMON_NS_PER_S; // by a clock that is far behind
    assert_int_equal(client_ticket_read(&a.reply, 0, TOKENS, TOKENS, common_clock_ns() - asked_ago_ns,
                                        &ticket, NULL),
                     BANYAN_OK);
    return ticket;
}

// A life counts from the moment when the ticket was asked for, less what is spared for the way; half of it is
// left at its arrival in any case, or an attach would ask forever.
static void test_lives(void **state)
{
    (void)state;
    const uint64_t second = COMMON_NS_PER_S;
    struct {
        uint64_t life_ns, asked_ago_ns, least_ns, most_ns; // is stale in
    } lives[] = {
        {60 * second, 0, 57 * second, 58 * second},
        {60 * second, 10 * second, 47 * second, 48 * second},
        {60 * second, 50 * second, 29 * second, 30 * second},
        {second, 0, second / 4, second / 2},
        {second, 5 * second, second / 4, second / 2},
    };
    for (size_t i = 0; i < sizeof lives / sizeof *lives; i++) {
        struct client_ticket *ticket = with_life(lives[i].life_ns, lives[i].asked_ago_ns);
        uint64_t left = common_clock_left(ticket->stale_ns);
        assert_in_range(left, lives[i].least_ns - second / 4, lives[i].most_ns);
        client_ticket_unref(ticket);
    }
    struct banyan_session session = {.spec = {.chunk_tokens = TOKENS}};
    atomic_store(&session.incarnation, 3);
    client_ticket_keep(&session, with_life(0, 0)); // of an older coordinator: until a worker refuses it
    assert_non_null(client_ticket_find(&session, 0));
    client_tickets_free(&session);
    client_ticket_keep(&session, with_life(UINT64_MAX, second)); // no sum wraps
    assert_non_null(client_ticket_find(&session, 0));
    client_tickets_free(&session);
}

static void test_cache(void **state)
{
    (void)state;
    struct banyan_session session = {.spec = {.chunk_tokens = TOKENS}};
    atomic_store(&session.incarnation, 3);
    struct client_ticket *old = make_ticket(0, "aaaa"), *new = make_ticket(512, "bb");
    client_ticket_keep(&session, old);
    client_ticket_keep(&session, new);
    assert_ptr_equal(client_ticket_find(&session, 0), old);
    assert_ptr_equal(client_ticket_find(&session, 600), new); // the newest counts
    assert_null(client_ticket_find(&session, 1024));
    atomic_store(&session.incarnation, 4); // truncated meanwhile
    assert_null(client_ticket_find(&session, 0));
    atomic_store(&session.incarnation, 3);
    old->stale_ns = common_clock_ns(); // about to expire
    assert_null(client_ticket_find(&session, 0));
    client_ticket_drop(&session, new);
    assert_int_equal(session.n_tickets, 1);
    for (int i = 0; i < 200; i++) // bounded
        client_ticket_keep(&session, make_ticket((uint64_t)i * TOKENS, "c"));
    assert_int_equal(session.n_tickets, 64);
    client_tickets_free(&session);
    assert_null(session.tickets);
    assert_int_equal(session.n_tickets, 0);
}

static void test_range_asked_for(void **state)
{
    (void)state;
    struct banyan_session session = {.spec = {.chunk_tokens = TOKENS}};
    uint64_t first, count;
    client_ticket_range(&session, 0, 1, false, &first, &count); // a short session places one chunk
    assert_int_equal(first, 0);
    assert_int_equal(count, TOKENS);
    client_ticket_range(&session, 0, 4000, false, &first, &count); // and one whose length is known that
    assert_int_equal(count, 4096);
    client_ticket_range(&session, 300, 300, true, &first, &count);
    assert_int_equal(first, 256);
    assert_int_equal(count, 512);
    session.ticket_end = 16 * TOKENS;
    client_ticket_range(&session, 16 * TOKENS, TOKENS, false, &first, &count); // in order: an eighth
    assert_int_equal(first, 16 * TOKENS);
    assert_int_equal(count, 2 * TOKENS);
    client_ticket_range(&session, 16 * TOKENS, 16 * TOKENS, false, &first, &count); // no more than it needs
    assert_int_equal(count, 16 * TOKENS);
    client_ticket_range(&session, 16 * TOKENS, TOKENS, true, &first, &count);
    assert_int_equal(count, TOKENS);
    client_ticket_range(&session, 40 * TOKENS, TOKENS, false, &first, &count); // elsewhere
    assert_int_equal(count, TOKENS);
    session.ticket_end = 1000 * TOKENS;
    client_ticket_range(&session, 1000 * TOKENS, TOKENS, false, &first, &count);
    assert_int_equal(count, (1 + CLIENT_TICKET_AHEAD_MAX) * TOKENS);
    client_ticket_range(&session, 5, UINT64_C(1) << 40, false, &first, &count); // in pieces
    assert_int_equal(first, 0);
    assert_int_equal(count, CLIENT_TICKET_CHUNKS_MAX * TOKENS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_at_holders_and_bytes),
        cmocka_unit_test(test_answers_that_make_no_sense),
        cmocka_unit_test(test_lives),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_range_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
