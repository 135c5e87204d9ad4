// SPDX-License-Identifier: Apache-2.0
// Tickets: what one secret made, only that secret accepts, to the letter and in time.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/memory/blob.h"
#include "proto/rights/ticket.h"

static const struct proto_ticket sample = {.session = UINT64_C(0x1234567800000001),
                                           .incarnation = 3,
                                           .term = 9,
                                           .first = 256,
                                           .count = 512,
                                           .expires_wall_ns = 1000};

static struct common_secret secret_of(uint8_t seed)
{
    struct common_secret secret;
    memset(secret.bytes, seed, sizeof secret.bytes);
    return secret;
}

static void made_tickets_are_accepted(void **state)
{
    (void)state;
    struct common_secret secret = secret_of(1);
    uint8_t bytes[PROTO_TICKET_MAX];
    size_t len = proto_ticket_make(&secret, &sample, bytes);
    struct proto_ticket out;
    assert_int_equal(proto_ticket_check(&secret, PROTO_TICKET_PUT, bytes, len, 999, &out, NULL), COMMON_OK);
    assert_int_equal(out.session, sample.session);
    assert_int_equal(out.incarnation, sample.incarnation);
    assert_int_equal(out.term, sample.term);
    assert_int_equal(out.first, sample.first);
    assert_int_equal(out.count, sample.count);
    assert_int_equal(out.expires_wall_ns, sample.expires_wall_ns);
}

static void the_largest_ticket_fits(void **state)
{
    (void)state;
    struct common_secret secret = secret_of(2);
    struct proto_ticket most = {UINT64_MAX, UINT64_MAX, UINT64_MAX,        UINT64_MAX,
                                UINT64_MAX, UINT64_MAX, PROTO_TICKET_READ, UINT64_MAX},
                        out;
    uint8_t bytes[PROTO_TICKET_MAX];
    size_t len = proto_ticket_make(&secret, &most, bytes);
    assert_true(len <= sizeof bytes);
    assert_int_equal(proto_ticket_check(&secret, PROTO_TICKET_READ, bytes, len, 0, &out, NULL), COMMON_OK);
    assert_int_equal(out.count, UINT64_MAX);
}

static void every_changed_byte_is_noticed(void **state)
{
    (void)state;
    struct common_secret secret = secret_of(3);
    uint8_t bytes[PROTO_TICKET_MAX];
    size_t len = proto_ticket_make(&secret, &sample, bytes);
    struct proto_ticket out;
    for (size_t i = 0; i < len; i++) {
        bytes[i] ^= 0x10;
        assert_int_equal(proto_ticket_check(&secret, PROTO_TICKET_PUT, bytes, len, 0, &out, NULL),
                         COMMON_PERMISSION_DENIED);
        bytes[i] ^= 0x10;
    }
    for (size_t cut = 0; cut < len; cut++)
        assert_int_equal(proto_ticket_check(&secret, PROTO_TICKET_PUT, bytes, cut, 0, &out, NULL),
                         COMMON_PERMISSION_DENIED);
    uint8_t longer[4096] = {0};
    memcpy(longer, bytes, len);
    assert_int_equal(proto_ticket_check(&secret, PROTO_TICKET_PUT, longer, len + 1, 0, &out, NULL),
                     COMMON_PERMISSION_DENIED);
    assert_int_equal(proto_ticket_check(&secret, PROTO_TICKET_PUT, longer, sizeof longer, 0, &out, NULL),
                     COMMON_PERMISSION_DENIED);
}

static void another_secret_is_refused(void **state)
{
    (void)state;
    struct common_secret ours = secret_of(4), theirs = secret_of(5);
    uint8_t bytes[PROTO_TICKET_MAX];
    size_t len = proto_ticket_make(&theirs, &sample, bytes);
    struct proto_ticket out;
    assert_int_equal(proto_ticket_check(&ours, PROTO_TICKET_PUT, bytes, len, 0, &out, NULL),
                     COMMON_PERMISSION_DENIED);
}

static void it_expires_and_says_so(void **state)
{
    (void)state;
    struct common_secret secret = secret_of(6);
    uint8_t bytes[PROTO_TICKET_MAX];
    size_t len = proto_ticket_make(&secret, &sample, bytes);
    struct proto_ticket out;
    struct common_error err;
    assert_int_equal(proto_ticket_check(&secret, PROTO_TICKET_PUT, bytes, len, 1000, &out, &err),
                     COMMON_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "expired"));
    // A forged one that has expired is a forged one.
    bytes[0] ^= 1;
    assert_int_equal(proto_ticket_check(&secret, PROTO_TICKET_PUT, bytes, len, 1000, &out, &err),
                     COMMON_PERMISSION_DENIED);
}

static void putting_and_reading_are_two_things(void **state)
{
    (void)state;
    struct common_secret secret = secret_of(8);
    for (int i = 0; i < 2; i++) {
        struct proto_ticket made = sample, out;
        made.permit = i ? PROTO_TICKET_READ : PROTO_TICKET_PUT;
        enum proto_ticket_permit other = i ? PROTO_TICKET_PUT : PROTO_TICKET_READ;
        uint8_t bytes[PROTO_TICKET_MAX];
        size_t len = proto_ticket_make(&secret, &made, bytes);
        assert_int_equal(proto_ticket_check(&secret, made.permit, bytes, len, 0, &out, NULL), COMMON_OK);
        assert_int_equal(out.permit, made.permit);
        assert_int_equal(out.session, sample.session);
        assert_int_equal(proto_ticket_check(&secret, other, bytes, len, 0, &out, NULL),
                         COMMON_PERMISSION_DENIED);
    }
}

static void a_genuine_mac_over_garbage_is_refused(void **state)
{
    (void)state;
    struct common_secret secret = secret_of(7);
    uint8_t bytes[8 + COMMON_MAC_BYTES];
    memset(bytes, 0xff, 8); // no protobuf
    struct common_slice part = {bytes, 8};
    assert_true(common_mac(&secret, &part, 1, bytes + 8));
    struct proto_ticket out;
    assert_int_equal(proto_ticket_check(&secret, PROTO_TICKET_PUT, bytes, sizeof bytes, 0, &out, NULL),
                     COMMON_PERMISSION_DENIED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(made_tickets_are_accepted),
        cmocka_unit_test(the_largest_ticket_fits),
        cmocka_unit_test(every_changed_byte_is_noticed),
        cmocka_unit_test(another_secret_is_refused),
        cmocka_unit_test(it_expires_and_says_so),
        cmocka_unit_test(putting_and_reading_are_two_things),
        cmocka_unit_test(a_genuine_mac_over_garbage_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
