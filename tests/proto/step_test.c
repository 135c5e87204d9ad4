// SPDX-License-Identifier: Apache-2.0
#include "proto/rpc/step.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/proto/fixture.h"

// A step of one item that appends rows over two runs, and one that only reads, as a frame's message.
struct sample {
    Banyan__Pb__AppendRun run[2], *runs[2];
    uint32_t holders[2];
    Banyan__Pb__StepItem item[2], *items[2];
    Banyan__Pb__StepRequest request;
    struct proto_message message;
    struct common_blob *blob;
};

static void sample_init(struct sample *s, size_t n_tensors)
{
    *s = (struct sample){.holders = {0, 3}};
    for (int i = 0; i < 2; i++) {
        banyan__pb__append_run__init(&s->run[i]);
        banyan__pb__step_item__init(&s->item[i]);
        s->runs[i] = &s->run[i];
        s->items[i] = &s->item[i];
        s->run[i].chunk = 50 + (uint64_t)i;
        s->run[i].n_holders = 2;
        s->run[i].holders = s->holders;
        s->item[i].session = 9;
        s->item[i].kv_heads = 2;
        s->item[i].q_bytes = 256;
    }
    s->run[0].first = 510;
    s->run[0].rows = 2;
    s->run[1].first = 512;
    s->run[1].rows = 3;
    s->item[0].first = 510;
    s->item[0].rows = 5;
    s->item[0].visible = 515;
    s->item[0].write = 4;
    s->item[0].n_append = 2;
    s->item[0].append = s->runs;
    s->item[0].k_bytes = n_tensors == 3 ? 128 : 0;
    s->item[0].v_bytes = n_tensors == 3 ? 64 : 0;
    s->item[1].rows = 1;
    banyan__pb__step_request__init(&s->request);
    s->request.term = 2;
    s->request.plan = 3;
    s->request.step = 77;
    s->request.n_items = 2;
    s->request.items = s->items;
    s->blob = common_blob_new(1024);
    assert_non_null(s->blob);
    for (size_t i = 0; i < 1024; i++)
        s->blob->data[i] = (uint8_t)i;
    s->message.body = &s->request.base;
    s->message.blob = s->blob;
    s->message.n_tensors = n_tensors;
    static const size_t bytes[] = {512, 128, 64};
    for (size_t i = 0, at = 0; i < n_tensors; at += bytes[i++]) {
        s->message.tensors[i].data = s->blob->data + at;
        s->message.tensors[i].bytes = bytes[i];
        s->message.tensors[i].dtype = BANYAN__PB__DTYPE__DTYPE_U8;
        s->message.tensors[i].n_dims = 1;
        s->message.tensors[i].dims[0] = bytes[i];
    }
}

static void test_decode(void **state)
{
    (void)state;
    struct sample s;
    struct proto_step *step;
    struct common_error err;
    sample_init(&s, 3);
    assert_int_equal(proto_step_decode(&s.message, 12345, &step, &err), COMMON_OK);
    assert_int_equal(step->n_items, 2);
    assert_int_equal(step->n_appends, 2);
    assert_true(step->has_kv);
    assert_int_equal(step->deadline_ns, 12345);
    assert_int_equal(step->items[0].n_append, 2);
    assert_int_equal(step->items[1].n_append, 0);
    assert_int_equal(step->items[1].q_offset, 256);
    assert_int_equal(step->items[0].v_bytes, 64);
    assert_int_equal(step->appends[1].first, 512);
    assert_int_equal(step->appends[1].holders[1], 3);
    assert_ptr_equal(step->k, s.message.tensors[1].data);
    common_blob_unref(s.blob); // the step has its own reference
    assert_int_equal(step->q[511], (uint8_t)511);
    proto_step_free(step);
    proto_step_free(NULL);
    // The same without k and v: none below holds the rows.
    sample_init(&s, 1);
    assert_int_equal(proto_step_decode(&s.message, 1, &step, &err), COMMON_OK);
    assert_false(step->has_kv);
    assert_int_equal(step->items[0].n_append, 2);
    assert_int_equal(step->items[0].k_bytes, 0);
    proto_step_free(step);
    common_blob_unref(s.blob);
}

#define WRONG(n, change)                                                                                     \
    do {                                                                                                     \
        struct sample s;                                                                                     \
        struct proto_step *step = (void *)1;                                                                 \
        struct common_error err = {0};                                                                       \
        sample_init(&s, n);                                                                                  \
        change;                                                                                              \
        assert_int_equal(proto_step_decode(&s.message, 1, &step, &err), COMMON_INVALID_ARGUMENT);            \
        assert_ptr_equal(step, (void *)1);                                                                   \
        assert_true(err.message[0] != 0);                                                                    \
        common_blob_unref(s.blob);                                                                           \
    } while (0)

static void test_malformed(void **state)
{
    (void)state;
    Banyan__Pb__HealthCheckRequest other = BANYAN__PB__HEALTH_CHECK_REQUEST__INIT;
    WRONG(3, s.message.body = &other.base);
    WRONG(3, s.message.body = NULL);
    WRONG(3, s.message.n_tensors = 2);
    WRONG(3, s.message.n_tensors = 0);
    WRONG(3, s.message.tensors[1].dtype = BANYAN__PB__DTYPE__DTYPE_F32);
    WRONG(3, s.request.n_items = 0);
    WRONG(3, s.item[0].session = 0);
    WRONG(3, s.item[1].rows = 0);
    WRONG(3, s.item[1].rows = PROTO_STEP_ROWS_MAX + 1);
    WRONG(3, s.item[1].first = UINT64_MAX);
    WRONG(3, s.item[1].kv_heads = 0);
    WRONG(3, s.item[1].kv_head = UINT32_MAX);
    static uint8_t trace[COMMON_TRACE_BYTES] = {[0] = 1, [16] = 1, [24] = COMMON_TRACE_SAMPLED};
    static uint8_t unsampled[COMMON_TRACE_BYTES] = {[0] = 1, [16] = 1}, zero[COMMON_TRACE_BYTES] = {[24] = 1};
    WRONG(3, (s.item[1].trace = (ProtobufCBinaryData){sizeof trace - 1, trace}));
    WRONG(3, (s.item[1].trace = (ProtobufCBinaryData){sizeof unsampled, unsampled}));
    WRONG(3, (s.item[1].trace = (ProtobufCBinaryData){sizeof zero, zero}));
    WRONG(3, s.item[0].q_bytes = 255);        // does not fill
    WRONG(3, s.item[1].q_bytes = 257);        // beyond
    WRONG(3, s.item[1].q_bytes = UINT64_MAX); // wraps
    WRONG(3, s.item[1].q_bytes = 0);
    WRONG(3, s.item[0].k_bytes = 0);
    WRONG(3, s.item[0].v_bytes = 0);
    WRONG(3, (s.item[0].k_bytes = 0, s.item[0].v_bytes = 0));   // k and v without an item
    WRONG(3, (s.item[1].k_bytes = 64, s.item[0].k_bytes = 64)); // k without an append
    WRONG(1, s.item[0].k_bytes = 64);                           // k where there is no tensor
    WRONG(3, s.item[0].write = 0);
    WRONG(3, s.item[1].write = 1);
    WRONG(3, s.run[0].chunk = 0);
    WRONG(3, s.run[0].rows = 0);
    WRONG(3, s.run[0].first = 509);
    WRONG(3, s.run[1].first = 513); // a gap between runs
    WRONG(3, s.run[1].rows = 2);    // rows that none stores
    WRONG(3, s.run[1].rows = PROTO_STEP_ROWS_MAX - 1);
    WRONG(3, (s.item[0].block_first = UINT64_MAX, s.item[0].block_count = 1));
    WRONG(3, s.run[1].rows = UINT32_MAX);
    WRONG(3, s.run[1].n_holders = 0);
    WRONG(3, s.run[1].n_holders = 17);
}

// ---- over a channel -------------------------------------------------------------------------------------

struct served {
    struct proto_server *server;
    struct proto_step *step;
    enum common_code code;
    unsigned n, sent;
    uint8_t o[128];
    struct proto_step_result *result;
    uint32_t n_items; // of the answer
};

static void on_sent(void *arg)
{
    ((struct served *)arg)->sent++;
}

static void serve_step(void *arg, struct proto_request *request)
{
    struct served *served = arg;
    struct common_error err;
    served->n++;
    served->code = proto_step_decode(proto_request_message(request), proto_request_deadline(request),
                                     &served->step, &err);
    assert_int_equal(served->code, COMMON_OK);
    struct proto_step_result *result = proto_step_result_new(served->n_items, 3);
    assert_non_null(result);
    assert_int_equal(result->items[0].code, COMMON_OK);
    result->items[0].cover_tokens = 515;
    result->items[0].digest = 4711;
    if (served->n_items > 1) {
        result->items[1].code = COMMON_DATA_LOSS;
        snprintf(result->items[1].message, sizeof result->items[1].message, "gone");
        snprintf(result->items[1].reason, sizeof result->items[1].reason, "MISSING_RANGE");
        snprintf(result->items[1].worker, sizeof result->items[1].worker, "w7");
    }
    result->n_traces = 2;
    snprintf(result->traces[1].worker, sizeof result->traces[1].worker, "w1");
    result->traces[1].compute_ns = 99;
    result->tensors[0] = served->o;
    result->tensor_bytes[0] = sizeof served->o;
    result->tensors[1] = served->o;
    result->tensor_bytes[1] = 8;
    result->n_tensors = 2;
    proto_step_reply(request, result, on_sent, served);
    proto_step_result_free(result);
}

struct answer {
    unsigned done;
    enum common_code code;
    struct proto_step_result *result;
};

static void on_answer(void *arg, enum common_code code, const char *text, struct proto_step_result *result)
{
    struct answer *answer = arg;
    assert_non_null(text);
    answer->done++;
    answer->code = code;
    answer->result = result;
    assert_int_equal(code == COMMON_OK, result != NULL);
}

static void test_send_and_reply(void **state)
{
    (void)state;
    struct fixture *f = fixture_new(TRANSPORT_UNIX);
    struct served served = {.n_items = 2};
    const struct proto_method methods[] = {{BANYAN__PB__METHOD__METHOD_STEP,
                                            1u << BANYAN__PB__ROLE__ROLE_COORDINATOR, serve_step},
                                           {0, 0, NULL}};
    struct proto_server_options options = fixture_server_options(f);
    proto_server_close(f->server);
    options.role = BANYAN__PB__ROLE__ROLE_WORKER;
    options.methods = methods;
    options.arg = &served;
    options.link_closed = NULL;
    fixture_serve(f, &options);
    memset(served.o, 5, sizeof served.o);
    struct proto_channel *channel = fixture_connect_as(
        f, &(struct proto_channel_options){.role = BANYAN__PB__ROLE__ROLE_COORDINATOR, .secret = &f->secret});
    struct sample s;
    struct proto_step *step;
    sample_init(&s, 3);
    static uint8_t trace[COMMON_TRACE_BYTES] = {[0] = 1, [16] = 2, [24] = COMMON_TRACE_SAMPLED};
    s.item[1].trace = (ProtobufCBinaryData){sizeof trace, trace};
    assert_int_equal(proto_step_decode(&s.message, common_clock_after(SECONDS(20)), &step, NULL), COMMON_OK);
    struct answer answer = {0};
    uint64_t id;
    for (unsigned with_kv = 0; with_kv < 2; with_kv++) {
        uint64_t sent_ns = common_clock_ns();
        assert_int_equal(proto_step_send(channel, step, with_kv, on_answer, &answer, &id, NULL), COMMON_OK);
        fixture_turn(f, &answer.done, with_kv + 1);
        uint64_t answered_ns = common_clock_ns();
        assert_int_equal(answer.code, COMMON_OK);
        assert_int_equal(answer.result->n_items, 2);
        assert_int_equal(answer.result->items[0].code, COMMON_OK);
        assert_int_equal(answer.result->items[0].digest, 4711);
        assert_int_equal(answer.result->items[1].code, COMMON_DATA_LOSS);
        assert_string_equal(answer.result->items[1].message, "gone");
        assert_string_equal(answer.result->items[1].reason, "MISSING_RANGE");
        assert_string_equal(answer.result->items[1].worker, "w7");
        assert_int_equal(answer.result->n_traces, 2);
        assert_string_equal(answer.result->traces[1].worker, "w1");
        assert_int_equal(answer.result->traces[1].compute_ns, 99);
        assert_int_equal(answer.result->n_tensors, 2);
        assert_int_equal(answer.result->tensor_bytes[0], 128);
        assert_memory_equal(answer.result->tensors[0], served.o, 128);
        assert_int_equal(served.sent, with_kv + 1);
        proto_step_result_free(answer.result);
        // What arrived is what was sent.
        assert_int_equal(served.step->has_kv, with_kv);
        assert_int_equal(served.step->step, 77);
        assert_int_equal(served.step->n_appends, 2);
        assert_memory_equal(served.step->q, step->q, 512);
        assert_int_equal(served.step->items[0].trace.flags, 0);
        assert_memory_equal(&served.step->items[1].trace, trace, sizeof trace);
        if (with_kv)
            assert_memory_equal(served.step->v, step->v, 64);
        // What was left at the sending counts from the arrival, which lies between the two times.
        assert_true(served.step->deadline_ns >= step->deadline_ns);
        assert_true(served.step->deadline_ns <= step->deadline_ns + (answered_ns - sent_ns));
        proto_step_free(served.step);
    }
    // An answer with the wrong number of items is the peer's fault.
    served.n_items = 1;
    assert_int_equal(proto_step_send(channel, step, true, on_answer, &answer, &id, NULL), COMMON_OK);
    fixture_turn(f, &answer.done, 3);
    assert_int_equal(answer.code, COMMON_INTERNAL);
    proto_step_free(served.step);
    // A cancelled step ends here and now.
    assert_int_equal(proto_step_send(channel, step, true, on_answer, &answer, &id, NULL), COMMON_OK);
    proto_channel_cancel(channel, id);
    assert_int_equal(answer.done, 4);
    assert_int_equal(answer.code, COMMON_CANCELLED);
    unsigned before = served.n;
    fixture_turn(f, &served.n, before + 1);
    proto_step_free(served.step);
    proto_step_free(step);
    common_blob_unref(s.blob);
    proto_channel_close(channel);
    fixture_free(f);
}

static void test_limits_of_results(void **state)
{
    (void)state;
    assert_null(proto_step_result_new(PROTO_STEP_ITEMS_MAX + 1, 0));
    assert_null(proto_step_result_new(1, 4097));
    struct proto_step_result *result = proto_step_result_new(PROTO_STEP_ITEMS_MAX, 4096);
    assert_non_null(result);
    proto_step_result_free(result);
    proto_step_result_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_send_and_reply),
        cmocka_unit_test(test_limits_of_results),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
