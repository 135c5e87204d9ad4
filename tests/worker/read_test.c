// SPDX-License-Identifier: Apache-2.0
// Clients read rows with a ticket, and nothing else: another ticket, other positions, rows that may still
// change. (The bytes that travel: tests/e2e/test_snapshot.c.)
#include "proto/rights/ticket.h"
#include "proto/sums/rows_sum.h"
#include "tests/worker/service.h"

#define READ BANYAN__PB__METHOD__METHOD_CHUNK_READ

struct wish {
    struct proto_ticket ticket;
    uint64_t session, chunk, first;
    uint32_t layer, count;
    bool foreign; // another secret's ticket
};

static struct wish good(void)
{
    return (struct wish){.ticket = {.session = SESSION,
                                    .incarnation = INCARNATION,
                                    .term = TERM,
                                    .first = 8,
                                    .count = 32,
                                    .expires_wall_ns = UINT64_MAX,
                                    .permit = PROTO_TICKET_READ},
                         .session = SESSION,
                         .chunk = 100,
                         .first = 8,
                         .layer = 1,
                         .count = TOKENS - 8};
}

static enum common_code ask(struct setup *s, const struct wish *wish, struct answer *answer)
{
    struct common_secret secret = s->c.secret;
    uint8_t bytes[PROTO_TICKET_MAX];
    secret.bytes[0] ^= wish->foreign ? 1 : 0;
    Banyan__Pb__ChunkReadRequest m = BANYAN__PB__CHUNK_READ_REQUEST__INIT;
    m.ticket.len = proto_ticket_make(&secret, &wish->ticket, bytes);
    m.ticket.data = bytes;
    m.session = wish->session;
    m.incarnation = INCARNATION + 7; // of no account: the ticket's counts
    m.chunk = wish->chunk;
    m.layer = wish->layer;
    m.first = wish->first;
    m.count = wish->count;
    return cluster_call(&s->c, s->c.clients[0], READ, &m.base, NULL, 0, answer);
}

static void committed_rows_are_read(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    const struct wish wish = good();
    float k[TOKENS * K_ROW], v[TOKENS * V_ROW];
    fill_rows(wish.layer, wish.first, wish.count, 0, k, v);
    struct answer answer;
    assert_int_equal(ask(&s, &wish, &answer), COMMON_OK);
    struct proto_rows_piece piece = {.data = k,
                                     .len = K_DIM * sizeof *k,
                                     .row_pitch = K_ROW * sizeof *k,
                                     .head_pitch = K_DIM * sizeof *k,
                                     .part = PROTO_ROWS_K,
                                     .heads = KV_HEADS,
                                     .first = wish.first,
                                     .count = wish.count};
    uint64_t sum = proto_rows_sum(&piece);
    piece.data = v;
    piece.len = piece.head_pitch = V_DIM * sizeof *v;
    piece.row_pitch = V_ROW * sizeof *v;
    piece.part = PROTO_ROWS_V;
    assert_int_equal(((const Banyan__Pb__ChunkReadReply *)answer.body)->sum, sum + proto_rows_sum(&piece));
    answer_free(&answer);
    end(&s);
}

// One thing changed in a read that is right.
#define REFUSED(s, want, why, change)                                                                        \
    do {                                                                                                     \
        struct wish wish = good();                                                                           \
        struct answer answer;                                                                                \
        change;                                                                                              \
        assert_int_equal(ask(s, &wish, &answer), want);                                                      \
        assert_string_equal(answer.reason, why);                                                             \
        answer_free(&answer);                                                                                \
        unchanged(s);                                                                                        \
    } while (0)

static void what_the_ticket_does_not_say_is_refused(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    REFUSED(&s, COMMON_PERMISSION_DENIED, "", wish.ticket.permit = PROTO_TICKET_PUT);
    REFUSED(&s, COMMON_PERMISSION_DENIED, "", wish.foreign = true);
    REFUSED(&s, COMMON_PERMISSION_DENIED, "", wish.ticket.session = OTHER);
    REFUSED(&s, COMMON_PERMISSION_DENIED, "", wish.session = OTHER);
    REFUSED(&s, COMMON_PERMISSION_DENIED, "", wish.first = 7);
    REFUSED(&s, COMMON_PERMISSION_DENIED, "", wish.ticket.count = wish.count - 1);
    REFUSED(&s, COMMON_PERMISSION_DENIED, "", wish.first = UINT64_MAX);
    REFUSED(&s, COMMON_PERMISSION_DENIED, "", wish.count = UINT32_MAX);
    REFUSED(&s, COMMON_FAILED_PRECONDITION, "OLD_TICKET", wish.ticket.expires_wall_ns = 1);
    REFUSED(&s, COMMON_FAILED_PRECONDITION, "OLD_TICKET", wish.ticket.term = TERM - 1);
    REFUSED(&s, COMMON_ABORTED, "OLD_INCARNATION", wish.ticket.incarnation--);
    end(&s);
}

static void what_is_not_there_is_refused(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    REFUSED(&s, COMMON_NOT_FOUND, "", wish.chunk = 777);
    REFUSED(&s, COMMON_NOT_FOUND, "",
            wish.session = wish.ticket.session = OTHER);           // the chunk is not of that one
    REFUSED(&s, COMMON_INVALID_ARGUMENT, "", wish.chunk = 101);    // begins behind the rows
    REFUSED(&s, COMMON_INVALID_ARGUMENT, "", wish.count = TOKENS); // ends behind the chunk
    REFUSED(&s, COMMON_INVALID_ARGUMENT, "", wish.count = 0);
    REFUSED(&s, COMMON_INVALID_ARGUMENT, "", wish.layer = LAYERS);
    // Rows 40 to 43 of layer 0 are put, and may change; the coordinator gives no ticket for them.
    REFUSED(&s, COMMON_FAILED_PRECONDITION, "HOLE",
            (wish.layer = 0, wish.chunk = 101, wish.first = 38, wish.count = 3, wish.ticket.count = 99));
    end(&s);
}

static void a_read_ticket_puts_nothing(void **state)
{
    (void)state;
    struct setup s;
    begin(&s);
    struct proto_ticket ticket = good().ticket;
    uint8_t bytes[PROTO_TICKET_MAX];
    float rows[K_ROW + V_ROW] = {0};
    ticket.first = 40;
    Banyan__Pb__ChunkPutRequest m = BANYAN__PB__CHUNK_PUT_REQUEST__INIT;
    struct common_slice pieces[2] = {{rows, K_ROW * sizeof *rows}, {rows, V_ROW * sizeof *rows}};
    struct proto_tensor_out tensors[2] = {
        {BANYAN__PB__DTYPE__DTYPE_F32, 3, {1, KV_HEADS, K_DIM}, &pieces[0], 1},
        {BANYAN__PB__DTYPE__DTYPE_F32, 3, {1, KV_HEADS, V_DIM}, &pieces[1], 1}};
    m.ticket.data = bytes;
    m.session = SESSION;
    m.first = 40;
    m.count = 1;
    for (int i = 0; i < 2; i++) {
        ticket.permit = i ? PROTO_TICKET_PUT : PROTO_TICKET_READ;
        m.ticket.len = proto_ticket_make(&s.c.secret, &ticket, bytes);
        assert_int_equal(cluster_call(&s.c, s.c.clients[0], BANYAN__PB__METHOD__METHOD_CHUNK_PUT, &m.base,
                                      tensors, 2, NULL),
                         i ? COMMON_OK : COMMON_PERMISSION_DENIED);
        if (i == 0)
            unchanged(&s);
    }
    free(s.before);
    cluster_stop(&s.c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(committed_rows_are_read),
        cmocka_unit_test(what_the_ticket_does_not_say_is_refused),
        cmocka_unit_test(what_is_not_there_is_refused),
        cmocka_unit_test(a_read_ticket_puts_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
