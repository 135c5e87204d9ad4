// SPDX-License-Identifier: Apache-2.0
// A result as a message: what goes in comes out, and nothing that does not hold together gets in.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash/hash.h"
#include "reduce/mpi/message.h"

#define ITEMS    70 // more than come with their words
#define TRACES   3
#define PARTIALS 640

static const struct mpi_message_key key = {
    .term = 3, .plan = 7, .plan_epoch = 9, .step = 11, .attempt = 2, .version = MPI_MESSAGE_VERSION};

static struct proto_step_result *result_new(uint32_t n_failed, uint32_t traces)
{
    struct proto_step_result *result = proto_step_result_new(ITEMS, TRACES);
    assert_non_null(result);
    for (uint32_t i = 0; i < ITEMS; i++) {
        struct proto_step_result_item *item = &result->items[i];
        item->cover_tokens = 10 * i;
        item->cover_sum = common_mix64(i);
        item->digest = common_mix64(i + 1000);
        item->appends = i;
        if (i >= n_failed)
            continue;
        item->code = COMMON_NOT_FOUND;
        snprintf(item->message, sizeof item->message, "item %u is not there", i);
        snprintf(item->reason, sizeof item->reason, "WHY_%u", i);
        snprintf(item->worker, sizeof item->worker, "w%u", i);
    }
    result->n_traces = traces;
    for (uint32_t i = 0; i < traces; i++) {
        result->traces[i].rank = i;
        result->traces[i].compute_ns = 100 + i;
        snprintf(result->traces[i].worker, sizeof result->traces[i].worker, "t%u", i);
    }
    return result;
}

static struct common_blob *partials_new(void)
{
    struct common_blob *blob = common_blob_new(PARTIALS);
    assert_non_null(blob);
    for (size_t i = 0; i < PARTIALS; i++)
        blob->data[i] = (uint8_t)common_mix64(i);
    return blob;
}

static void round_trip(void **state)
{
    (void)state;
    struct common_blob *partials = partials_new();
    for (uint32_t n_failed = 0; n_failed <= ITEMS; n_failed += 10)
        for (uint32_t traces = 0; traces <= TRACES; traces++)
            for (int with = 0; with < 2; with++) {
                struct proto_step_result *in = result_new(n_failed, traces), *out;
                struct common_error err;
                size_t limit;
                assert_true(mpi_message_limit(ITEMS, TRACES, PARTIALS, &limit));
                struct common_blob *message = mpi_message_encode(&key, in, with ? partials : NULL);
                assert_non_null(message);
                assert_true(message->len <= limit);
                assert_int_equal(mpi_message_decode(&key, ITEMS, TRACES, PARTIALS, message, message->len,
                                                    &out, &err),
                                 COMMON_OK);
                common_blob_unref(message); // the result holds on to it
                for (uint32_t i = 0; i < ITEMS; i++) {
                    const struct proto_step_result_item *a = &in->items[i], *b = &out->items[i];
                    bool silent = i >= MPI_MESSAGE_TEXTS && a->code != COMMON_OK;
                    assert_int_equal(a->code, b->code);
                    assert_true(a->cover_tokens == b->cover_tokens && a->cover_sum == b->cover_sum);
                    assert_true(a->digest == b->digest && a->appends == b->appends);
                    assert_string_equal(silent ? "" : a->message, b->message);
                    assert_string_equal(silent ? "" : a->reason, b->reason);
                    assert_string_equal(silent ? "" : a->worker, b->worker);
                }
                assert_int_equal(out->n_traces, traces);
                for (uint32_t i = 0; i < traces; i++)
                    assert_string_equal(out->traces[i].worker, in->traces[i].worker);
                assert_int_equal(out->n_tensors, with);
                if (with) {
                    assert_int_equal(out->tensor_bytes[0], PARTIALS);
                    assert_int_equal((uintptr_t)out->tensors[0] % COMMON_BLOB_ALIGN, 0);
                    assert_memory_equal(out->tensors[0], partials->data, PARTIALS);
                }
                proto_step_result_free(in);
                proto_step_result_free(out);
            }
    common_blob_unref(partials);
}

static enum common_code decode(const struct mpi_message_key *of, uint32_t items, uint32_t traces,
                               size_t bytes, struct common_blob *message, size_t len)
{
    struct proto_step_result *out = NULL;
    struct common_error err;
    enum common_code code = mpi_message_decode(of, items, traces, bytes, message, len, &out, &err);
    proto_step_result_free(out);
    return code;
}

// A late answer to an earlier attempt, another step, another shape: never numbers.
static void what_is_not_expected_is_refused(void **state)
{
    (void)state;
    struct proto_step_result *in = result_new(2, TRACES);
    struct common_blob *partials = partials_new(), *message = mpi_message_encode(&key, in, partials);
    struct mpi_message_key others[6];
    for (int i = 0; i < 6; i++)
        others[i] = key;
    others[0].term++;
    others[1].plan++;
    others[2].plan_epoch++;
    others[3].step++;
    others[4].attempt++;
    others[5].version++;
    assert_int_equal(decode(&key, ITEMS, TRACES, PARTIALS, message, message->len), COMMON_OK);
    for (int i = 0; i < 6; i++)
        assert_int_equal(decode(&others[i], ITEMS, TRACES, PARTIALS, message, message->len), COMMON_INTERNAL);
    assert_int_equal(decode(&key, ITEMS - 1, TRACES, PARTIALS, message, message->len), COMMON_INTERNAL);
    assert_int_equal(decode(&key, ITEMS, TRACES - 1, PARTIALS, message, message->len), COMMON_INTERNAL);
    assert_int_equal(decode(&key, ITEMS, TRACES, PARTIALS - 64, message, message->len), COMMON_INTERNAL);
    assert_int_equal(decode(&key, ITEMS, TRACES, PARTIALS, message, message->len + 1), COMMON_INTERNAL);
    for (size_t len = 0; len < message->len; len++)
        assert_int_equal(decode(&key, ITEMS, TRACES, PARTIALS, message, len), COMMON_INTERNAL);
    proto_step_result_free(in);
    common_blob_unref(message);
    common_blob_unref(partials);
}

// Every byte of the message set to other values, in a block that ends where it ends: the sanitizers look on.
static void broken_bytes(void **state)
{
    (void)state;
    static const uint8_t values[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
    struct proto_step_result *in = result_new(3, 2);
    struct common_blob *message = mpi_message_encode(&key, in, NULL);
    unsigned refused = 0;
    for (size_t i = 0; i < message->len; i++)
        for (size_t v = 0; v < sizeof values; v++) {
            uint8_t was = message->data[i];
            message->data[i] = values[v];
            refused += decode(&key, ITEMS, TRACES, PARTIALS, message, message->len) != COMMON_OK;
            message->data[i] = was;
        }
    assert_true(refused > 100);
    proto_step_result_free(in);
    common_blob_unref(message);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(what_is_not_expected_is_refused),
        cmocka_unit_test(broken_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
