// SPDX-License-Identifier: Apache-2.0
// nng's wire as bytes: what comes out is the same wherever the bytes are cut, and nothing is allocated but
// what was asked for.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash/hash.h"
#include "proto/sp_reader.h"

static const uint8_t req[] = {0, 'S', 'P', 0, 0, PROTO_SP_REQ, 0, 0};

struct bytes {
    size_t len;
    uint8_t at[8192];
};

static void put(struct bytes *to, const void *data, size_t len)
{
    assert_true(to->len + len <= sizeof to->at);
    memcpy(to->at + to->len, data, len);
    to->len += len;
}

static void put_be(struct bytes *to, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++) {
        uint8_t byte = (uint8_t)(value >> 8 * (bytes - 1 - i));
        put(to, &byte, 1);
    }
}

// A message behind `hops` words and the request's id. Its bytes tell their place.
static void put_message(struct bytes *to, unsigned hops, uint32_t id, size_t len)
{
    put_be(to, 4 * (hops + 1) + len, 8);
    for (unsigned i = 0; i < hops; i++)
        put_be(to, 0x100 + i, 4);
    put_be(to, 0x80000000u | id, 4);
    for (size_t i = 0; i < len; i++)
        put_be(to, (i * 7 + len) & 0xff, 1);
}

// What a reader makes of bytes, in words: its events one by one.
struct story {
    uint64_t hash;
    unsigned messages;
    enum proto_sp_state end;
    char why[128];
    bool between;
};

static void tell(struct story *story, const void *data, size_t len)
{
    story->hash = common_xxh3(data, len, story->hash);
}

// Keeps at most keep_max bytes of each message.
static void drive(struct proto_sp_reader *r, const uint8_t *at, size_t n, size_t keep_max,
                  struct story *story)
{
    for (;;) {
        enum proto_sp_event event = proto_sp_take(r, &at, &n);
        if (event == PROTO_SP_MORE) {
            assert_int_equal(n, 0);
            return;
        }
        if (event == PROTO_SP_FAILED) {
            snprintf(story->why, sizeof story->why, "%s", r->why);
            return;
        }
        if (event == PROTO_SP_ASK) {
            assert_true(r->have <= PROTO_SP_START_MAX && r->have <= r->len);
            assert_true(r->have == r->len || r->have == PROTO_SP_START_MAX);
            tell(story, r->small, r->have);
            size_t keep = r->len < keep_max ? (size_t)r->len : keep_max;
            assert_true(proto_sp_keep(r, keep));
            continue;
        }
        story->messages++;
        tell(story, r->trace, r->trace_len);
        assert_true(r->trace_len >= 4 && r->trace_len <= sizeof r->trace);
        if (r->blob) {
            assert_true(r->blob->len <= keep_max);
            assert_int_equal((uintptr_t)r->blob->data % COMMON_BLOB_ALIGN, 0);
            tell(story, r->blob->data, r->blob->len);
        }
        proto_sp_next(r);
    }
}

static struct story read_all(const struct bytes *bytes, const size_t *cuts, size_t n_cuts, size_t keep_max)
{
    struct proto_sp_reader reader;
    struct story story = {0};
    size_t from = 0;
    proto_sp_reader_init(&reader);
    for (size_t i = 0; i <= n_cuts; i++) {
        size_t to = i < n_cuts ? cuts[i] : bytes->len;
        // From a copy of its own length, so that a sanitizer sees what is read beyond it.
        uint8_t *piece = malloc(to - from + 1);
        assert_non_null(piece);
        memcpy(piece, bytes->at + from, to - from);
        drive(&reader, piece, to - from, keep_max, &story);
        free(piece);
        from = to;
    }
    story.end = reader.state;
    story.between = proto_sp_between(&reader);
    proto_sp_reader_fini(&reader);
    return story;
}

static struct story read_whole(const struct bytes *bytes)
{
    return read_all(bytes, NULL, 0, SIZE_MAX);
}

static void assert_same(const struct story *a, const struct story *b)
{
    assert_int_equal(a->hash, b->hash);
    assert_int_equal(a->messages, b->messages);
    assert_int_equal(a->end, b->end);
    assert_string_equal(a->why, b->why);
}

static struct bytes begin(void)
{
    struct bytes bytes = {0};
    put(&bytes, req, sizeof req);
    return bytes;
}

static void test_messages(void **state)
{
    (void)state;
    struct bytes bytes = begin();
    put_message(&bytes, 0, 1, 0);
    put_message(&bytes, 0, 2, 5);
    put_message(&bytes, 7, 3, 2000);
    put_message(&bytes, 1, 4, PROTO_SP_START_MAX);
    put_message(&bytes, 0, 5, PROTO_SP_START_MAX + 1);
    struct story story = read_whole(&bytes);
    assert_int_equal(story.messages, 5);
    assert_true(story.between);
    // Each byte position is a place to be cut at, alone and with its neighbour.
    for (size_t keep = 0; keep < 3; keep++) {
        size_t keep_max = (size_t[]){0, 100, SIZE_MAX}[keep];
        story = read_all(&bytes, NULL, 0, keep_max);
        assert_int_equal(story.messages, 5);
        for (size_t cut = 0; cut < bytes.len; cut++) {
            struct story other = read_all(&bytes, (size_t[]){cut, cut + 1}, 2, keep_max);
            assert_same(&other, &story);
        }
    }
    size_t *every = malloc(bytes.len * sizeof *every);
    assert_non_null(every);
    for (size_t i = 0; i < bytes.len; i++)
        every[i] = i;
    struct story single = read_all(&bytes, every, bytes.len, SIZE_MAX);
    assert_same(&single, &story);
    free(every);
}

// Straight into what is kept, as a link does with large messages.
static void test_room(void **state)
{
    (void)state;
    struct bytes bytes = begin();
    put_message(&bytes, 0, 9, 3000);
    struct proto_sp_reader reader;
    struct story story = {0};
    proto_sp_reader_init(&reader);
    uint8_t *to;
    assert_int_equal(proto_sp_room(&reader, &to), 0);
    size_t start = sizeof req + 12 + PROTO_SP_START_MAX;
    const uint8_t *at = bytes.at;
    size_t n = start;
    assert_int_equal(proto_sp_take(&reader, &at, &n), PROTO_SP_ASK);
    assert_int_equal(reader.len, 3000);
    assert_true(proto_sp_keep(&reader, 2500));
    assert_int_equal(proto_sp_room(&reader, &to), 2500 - PROTO_SP_START_MAX);
    memcpy(to, bytes.at + start, 2500 - PROTO_SP_START_MAX);
    proto_sp_filled(&reader, 1);
    assert_int_equal(proto_sp_room(&reader, &to), 2499 - PROTO_SP_START_MAX);
    proto_sp_filled(&reader, 2499 - PROTO_SP_START_MAX);
    assert_int_equal(proto_sp_room(&reader, &to), 0);
    assert_memory_equal(reader.blob->data, bytes.at + sizeof req + 12, 2500);
    drive(&reader, bytes.at + start + 2500 - PROTO_SP_START_MAX, 500, SIZE_MAX, &story);
    assert_int_equal(story.messages, 1);
    assert_true(proto_sp_between(&reader));
    proto_sp_reader_fini(&reader);
}

static void expect_broken(const struct bytes *bytes, const char *why)
{
    struct story story = read_whole(bytes);
    assert_int_equal(story.end, PROTO_SP_BROKEN);
    assert_int_equal(story.messages, 0);
    assert_string_equal(story.why, why);
}

static void test_what_is_not_this_wire(void **state)
{
    (void)state;
    struct bytes bytes;
    for (size_t i = 0; i < sizeof req; i++)
        for (unsigned bit = 0; bit < 8; bit++) {
            bytes = begin();
            bytes.at[i] ^= (uint8_t)(1u << bit);
            expect_broken(&bytes,
                          i < 4 ? "not an nng handshake" : "an nng handshake for a protocol other than REQ");
        }
    static const char longer[] = "a message longer than the limit";
    static const char no_id[] = "a message without a request id";
    uint64_t lengths[] = {UINT64_C(1) << 63, UINT64_MAX, PROTO_SP_MESSAGE_MAX + 1, 0, 1, 3};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        bytes = begin();
        put_be(&bytes, lengths[i], 8);
        expect_broken(&bytes, i < 3 ? longer : no_id);
    }
    for (unsigned extra = 0; extra < 4; extra++) { // words without the high bit, and then none
        bytes = begin();
        put_be(&bytes, 8 + extra, 8);
        put_be(&bytes, 1, 4);
        put_be(&bytes, 2, 4);
        put_be(&bytes, 0, extra);
        expect_broken(&bytes, no_id);
    }
}

// nng's REP drops them and goes on.
static void test_a_trace_that_is_too_deep(void **state)
{
    (void)state;
    for (size_t len = 0; len < 20; len++) {
        struct bytes bytes = begin();
        put_message(&bytes, PROTO_SP_TRACE_MAX, 1, len);
        assert_int_equal(read_whole(&bytes).messages, 0);
        put_message(&bytes, PROTO_SP_TRACE_MAX - 1, 2, 5);
        assert_int_equal(read_whole(&bytes).messages, 1);
        assert_true(read_whole(&bytes).between);
    }
    struct bytes bytes = begin(); // it ends with its eighth word
    put_be(&bytes, 4 * PROTO_SP_TRACE_MAX, 8);
    for (unsigned i = 0; i < PROTO_SP_TRACE_MAX; i++)
        put_be(&bytes, i, 4);
    put_message(&bytes, 0, 2, 5);
    assert_int_equal(read_whole(&bytes).messages, 1);
}

static uint64_t draw(uint64_t *seed, uint64_t below)
{
    *seed = common_mix64(*seed);
    return *seed % below;
}

static void test_random_bytes(void **state)
{
    (void)state;
    uint64_t seed = 20261122, n_messages = 0, n_broken = 0;
    for (int round = 0; round < 3000; round++) {
        struct bytes bytes = begin();
        for (uint64_t i = draw(&seed, 6); i > 0; i--)
            put_message(&bytes, (unsigned)draw(&seed, 10), (uint32_t)draw(&seed, 1000), draw(&seed, 900));
        for (uint64_t i = draw(&seed, 4) * draw(&seed, 8); i > 0; i--) // some rounds stay whole
            bytes.at[draw(&seed, bytes.len)] = (uint8_t)draw(&seed, 256);
        for (uint64_t i = draw(&seed, 64); i > 0; i--)
            put_be(&bytes, draw(&seed, 256), 1);
        size_t cuts[8],
            keep_max = draw(&seed, 2) ? 64 : 1 << 16; // a damaged length is not to be allocated here
        for (size_t i = 0, from = 0; i < 8; i++)
            cuts[i] = from = from + draw(&seed, bytes.len - from + 1);
        struct story one = read_all(&bytes, NULL, 0, keep_max);
        struct story cut = read_all(&bytes, cuts, 8, keep_max);
        assert_same(&one, &cut);
        n_messages += one.messages;
        n_broken += one.end == PROTO_SP_BROKEN;
    }
    assert_true(n_messages > 1000 && n_broken > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_what_is_not_this_wire),
        cmocka_unit_test(test_a_trace_that_is_too_deep),
        cmocka_unit_test(test_random_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
