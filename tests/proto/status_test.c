// SPDX-License-Identifier: Apache-2.0
#include "proto/rpc/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);

static bool no_memory;

void *__wrap_malloc(size_t size)
{
    return no_memory ? NULL : __real_malloc(size);
}

// Over the wire and back.
static void carry(const struct proto_status *from, struct proto_status *to)
{
    Banyan__Pb__Status *pb = proto_status_to_pb(from);
    assert_non_null(pb);
    size_t len = banyan__pb__status__get_packed_size(pb);
    uint8_t *bytes = malloc(len + 1);
    assert_non_null(bytes);
    banyan__pb__status__pack(pb, bytes);
    proto_status_pb_free(pb);
    pb = banyan__pb__status__unpack(NULL, len, bytes);
    assert_non_null(pb);
    proto_status_from_pb(pb, to);
    banyan__pb__status__free_unpacked(pb, NULL);
    free(bytes);
}

static void test_round_trip(void **state)
{
    (void)state;
    struct proto_status a, b;
    assert_int_equal(proto_status_set(&a, COMMON_FAILED_PRECONDITION, "HOLE", "layer %d has a hole", 3),
                     COMMON_FAILED_PRECONDITION);
    a.session = 11;
    a.layer = 3;
    a.chunk = 12;
    proto_status_add_range(&a, 100, 20);
    proto_status_add_range(&a, 500, 1);
    proto_status_add_worker(&a, "w1");
    carry(&a, &b);
    assert_int_equal(b.code, COMMON_FAILED_PRECONDITION);
    assert_string_equal(b.message, "layer 3 has a hole");
    assert_string_equal(b.reason, "HOLE");
    assert_int_equal(b.session, 11);
    assert_int_equal(b.layer, 3);
    assert_int_equal(b.chunk, 12);
    assert_int_equal(b.n_ranges, 2);
    assert_int_equal(b.ranges[1].first, 500);
    assert_int_equal(b.n_workers, 1);
    assert_string_equal(b.workers[0], "w1");
    // Setting again forgets the details; a status without any carries none.
    proto_status_set(&a, COMMON_NOT_FOUND, NULL, "gone");
    carry(&a, &b);
    assert_int_equal(b.code, COMMON_NOT_FOUND);
    assert_int_equal(b.n_ranges + b.n_workers, 0);
    assert_string_equal(b.reason, "");
    proto_status_from_pb(NULL, &b);
    assert_int_equal(b.code, COMMON_OK);
    proto_status_pb_free(NULL);
}

static void test_more_than_fits(void **state)
{
    (void)state;
    struct proto_status a, b;
    proto_status_set(&a, COMMON_DATA_LOSS, "MISSING_RANGE", "%s", "");
    for (uint64_t i = 0; i < 40; i++)
        proto_status_add_range(&a, i * 100, 10);
    proto_status_add_range(&a, UINT64_MAX - 5, 10); // wraps: the last range ends at the end
    for (int i = 0; i < 40; i++)
        proto_status_add_worker(
            &a, "a name that is much longer than any worker may have, so that it has to be cut somewhere");
    carry(&a, &b);
    assert_int_equal(b.n_ranges, PROTO_STATUS_RANGES);
    assert_int_equal(b.ranges[14].first, 1400);
    assert_int_equal(b.ranges[15].first, 1500);
    assert_true(b.ranges[15].first + b.ranges[15].count == UINT64_MAX);
    assert_int_equal(b.n_workers, PROTO_STATUS_WORKERS);
    assert_int_equal(strlen(b.workers[7]), 64);
}

// One that comes last and lies before the others: the last range reaches back to it.
static void test_a_range_before_the_last(void **state)
{
    (void)state;
    struct proto_status a;
    proto_status_set(&a, COMMON_DATA_LOSS, "MISSING_RANGE", "%s", "");
    for (uint64_t i = 0; i < PROTO_STATUS_RANGES; i++)
        proto_status_add_range(&a, 1000 + i * 100, 10);
    proto_status_add_range(&a, 5, 10);
    assert_int_equal(a.n_ranges, PROTO_STATUS_RANGES);
    assert_int_equal(a.ranges[PROTO_STATUS_RANGES - 1].first, 5);
    assert_int_equal(a.ranges[PROTO_STATUS_RANGES - 1].count,
                     1000 + (PROTO_STATUS_RANGES - 1) * 100 + 10 - 5);
}

// A failure is one, also where there is no memory to say which: no status would say OK.
static void test_no_memory(void **state)
{
    (void)state;
    struct proto_status a, b;
    proto_status_set(&a, COMMON_DATA_LOSS, "MISSING_RANGE", "tokens are gone");
    proto_status_add_range(&a, 1, 2);
    no_memory = true;
    Banyan__Pb__Status *pb = proto_status_to_pb(&a);
    no_memory = false;
    proto_status_from_pb(pb, &b);
    proto_status_pb_free(pb);
    assert_int_equal(b.code, COMMON_UNAVAILABLE);
    assert_string_equal(b.reason, "UNCONFIRMED");
    assert_int_equal(b.n_ranges, 0);
    assert_non_null(strstr(b.message, "out of memory"));
}

static void test_hostile_status(void **state)
{
    (void)state;
    // A peer may send more than we keep, several details, an unknown code.
    Banyan__Pb__Range range = BANYAN__PB__RANGE__INIT, *ranges[16];
    char *workers[16], long_text[2000];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    range.first = UINT64_MAX;
    range.count = UINT64_MAX;
    for (int i = 0; i < 16; i++) {
        ranges[i] = &range;
        workers[i] = long_text;
    }
    Banyan__Pb__Detail detail = BANYAN__PB__DETAIL__INIT, *details[] = {&detail, &detail};
    detail.reason = long_text;
    detail.n_ranges = detail.n_workers = 16;
    detail.ranges = ranges;
    detail.workers = workers;
    Banyan__Pb__Status status = BANYAN__PB__STATUS__INIT;
    status.code = 99;
    status.message = long_text;
    status.n_details = 2;
    status.details = details;
    struct proto_status out;
    proto_status_from_pb(&status, &out);
    assert_int_equal(out.code, COMMON_UNKNOWN);
    assert_int_equal(strlen(out.message), COMMON_ERROR_BYTES - 1);
    assert_int_equal(strlen(out.reason), 31);
    assert_int_equal(out.n_ranges, 16);
    assert_int_equal(out.n_workers, PROTO_STATUS_WORKERS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_more_than_fits),
        cmocka_unit_test(test_a_range_before_the_last),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_hostile_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
