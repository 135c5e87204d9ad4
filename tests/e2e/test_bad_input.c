// SPDX-License-Identifier: Apache-2.0
// Bad input, one kind after the other: each gets its own status and its own sentence, and changes nothing:
// not the session beside it, not the cluster, not a bit of an answer. Prints a table.
#include "tests/e2e/support.h"

#include <inttypes.h>
#include <math.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "proto/ticket.h"
#include "tests/e2e/wire.h"

#define TOKENS 100
#define LAYERS 2

static struct harness_cluster *cluster;
static banyan_client *client;
static banyan_session *session; // the witness
static struct context context;

static const banyan_spec spec = {.layers = LAYERS,
                                 .q_heads = 4,
                                 .kv_heads = 2,
                                 .k_dim = 32,
                                 .v_dim = 32,
                                 .kv_type = BANYAN_F32,
                                 .chunk_tokens = 32,
                                 .members = 2};

// ---- what must not change ---------------------------------------------------------------------------------

struct snapshot {
    uint64_t incarnation, epoch, chunks, bytes, lengths[LAYERS], sessions, cluster_chunks, workers;
    char members[2][72];
    struct step step;
};

static struct snapshot before;

static struct snapshot take(void)
{
    struct snapshot s;
    memset(&s, 0, sizeof(s));
    s.step = (struct step){.session = session, .first = TOKENS - 1, .rows = 1, .seed = 5};
    banyan_session_info info;
    banyan_cluster_info all;
    OK(banyan_session_get_info(session, &info, ERR));
    s.incarnation = info.incarnation;
    s.epoch = info.epoch;
    s.chunks = info.chunks;
    s.bytes = info.bytes;
    memcpy(s.lengths, info.layer_lengths, sizeof(s.lengths));
    assert_int_equal(info.n_members, 2);
    for (int i = 0; i < 2; i++)
        snprintf(s.members[i], sizeof(s.members[i]), "%s", info.members[i]);
    banyan_session_info_free(&info);
    OK(banyan_cluster_get_info(client, &all, ERR));
    s.sessions = all.sessions;
    s.cluster_chunks = all.chunks;
    for (uint32_t i = 0; i < all.n_workers; i++)
        s.workers += strcmp(all.workers[i].state, "active") == 0;
    banyan_cluster_info_free(&all);
    OK(step_run(client, &s.step));
    return s;
}

static void nothing_changed(const char *after)
{
    struct snapshot now = take();
    if (!step_same_bits(&now.step, &before.step) || now.step.digest != before.step.digest)
        fail_msg("%s: the witness answers otherwise than before", after);
    step_free(&now.step);
    size_t fields = offsetof(struct snapshot, step);
    if (memcmp(&now, &before, fields) != 0)
        fail_msg("%s: something changed: epoch %" PRIu64 "/%" PRIu64 ", chunks %" PRIu64 "/%" PRIu64
                 ", sessions %" PRIu64 "/%" PRIu64 ", active workers %" PRIu64 "/%" PRIu64,
                 after, before.epoch, now.epoch, before.cluster_chunks, now.cluster_chunks, before.sessions,
                 now.sessions, before.workers, now.workers);
    assert_true(support_alive(cluster));
}

// ---- the table --------------------------------------------------------------------------------------------

static char said[128][512];
static unsigned n_said;

static void row(const char *input, const char *code, const char *message)
{
    printf("  %-46s %-20s %.100s\n", input, code, message);
}

static void judged(const char *input, banyan_code got, banyan_code want, const char *reason)
{
    row(input, banyan_code_name(got), ERR->message);
    if (got != want)
        fail_msg("%s: %s, should be %s: %s", input, banyan_code_name(got), banyan_code_name(want),
                 got ? ERR->message : "");
    assert_int_equal(ERR->code, want);
    if (!ERR->message[0] || strpbrk(ERR->message, "\n\r"))
        fail_msg("%s: no one-line message", input);
    if (strcmp(ERR->reason, reason ? reason : "") != 0)
        fail_msg("%s: reason '%s', should be '%s'", input, ERR->reason, reason ? reason : "");
    nothing_changed(input);
}

// The input was refused with this code and a sentence of its own; nothing changed.
static void refused(const char *input, banyan_code got, banyan_code want, const char *reason)
{
    judged(input, got, want, reason);
    for (unsigned i = 0; i < n_said; i++)
        if (strcmp(said[i], ERR->message) == 0)
            fail_msg("%s: the sentence was used for another input before: %s", input, ERR->message);
    assert_true(n_said < 128);
    snprintf(said[n_said++], sizeof(said[0]), "%s", ERR->message);
    *ERR = (banyan_error){0};
}

// Another case of the rule that refused the input before: the same sentence will do.
static void refused_too(const char *input, banyan_code got, banyan_code want, const char *reason)
{
    judged(input, got, want, reason);
    *ERR = (banyan_error){0};
}

static banyan_code try_step(struct step step)
{
    banyan_code code = step_run(client, &step);
    step_free(&step);
    return code;
}

static banyan_code try_create(banyan_spec s, const char *name)
{
    banyan_session *none = NULL;
    banyan_code code = banyan_session_create(client, &s, name, &none, ERR);
    if (code == BANYAN_OK) {
        banyan_session_delete(none, NULL);
        banyan_session_close(none);
    } else {
        assert_null(none);
    }
    return code;
}

static void specs(void **state)
{
    (void)state;
    banyan_spec s = spec;
#define BAD(what, change)                                                                                    \
    s = spec;                                                                                                \
    change;                                                                                                  \
    refused(what, try_create(s, NULL), BANYAN_INVALID_ARGUMENT, NULL)
    static float slopes[4] = {1, 2, NAN, 4}, sinks[4] = {1, INFINITY, 2, 3};
    BAD("no layers", s.layers = 0);
    s.layers = 2000;
    refused_too("2000 layers", try_create(s, NULL), BANYAN_INVALID_ARGUMENT, NULL);
    BAD("no query heads", s.q_heads = 0);
    BAD("no KV heads", s.kv_heads = 0);
    s = spec;
    s.kv_heads = 3;
    refused_too("4 query heads over 3 KV heads", try_create(s, NULL), BANYAN_INVALID_ARGUMENT, NULL);
    BAD("k_dim 0", s.k_dim = 0);
    BAD("v_dim 5000", s.v_dim = 5000);
    BAD("an unknown KV type", s.kv_type = (banyan_kv_type)9);
    BAD("scale NaN", s.scale = NAN);
    BAD("a negative soft cap", s.soft_cap = -1);
    BAD("chunks of 17 tokens", s.chunk_tokens = 17);
    BAD("an ALiBi slope of NaN", s.alibi = slopes);
    BAD("a sink of infinity", s.sinks = sinks);
#undef BAD
    refused("a name with a line feed", try_create(spec, "a\nb"), BANYAN_INVALID_ARGUMENT, NULL);
    char long_name[200];
    memset(long_name, 'x', sizeof(long_name));
    long_name[199] = '\0';
    refused("a name of 199 characters", try_create(spec, long_name), BANYAN_INVALID_ARGUMENT, NULL);
    refused("a name that is taken", try_create(spec, "witness"), BANYAN_ALREADY_EXISTS, NULL);
}

static void handles(void **state)
{
    (void)state;
    banyan_session *none = NULL;
    refused("session 0 without a name", banyan_session_open(client, 0, NULL, &none, ERR),
            BANYAN_INVALID_ARGUMENT, NULL);
    refused("an unknown session", banyan_session_open(client, UINT64_C(0x700000000007), NULL, &none, ERR),
            BANYAN_NOT_FOUND, NULL);
    refused("an unknown name", banyan_session_open(client, 0, "nobody", &none, ERR), BANYAN_NOT_FOUND, NULL);
    assert_null(none);

    banyan_session *gone, *fork = NULL;
    banyan_session_info info;
    OK(banyan_session_create(client, &spec, NULL, &gone, ERR));
    OK(banyan_session_delete(gone, ERR));
    const void *k = context_k(&context, 0, 0), *v = context_v(&context, 0, 0);
    // One kind of input, and one sentence is enough for it; the code is what counts
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_session_delete(gone, ERR));
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_session_get_info(gone, &info, ERR));
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_session_truncate(gone, 0, ERR));
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_session_fork(gone, 0, NULL, &fork, ERR));
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_attach(gone, 0, 0, 4, k, v, ERR));
    FAILS(BANYAN_NOT_FOUND, NULL, banyan_commit(gone, 0, 0, 4, ERR));
    FAILS(BANYAN_NOT_FOUND, NULL, try_step((struct step){.session = gone, .rows = 1, .k = k, .v = v}));
    row("a deleted session (7 calls)", banyan_code_name(ERR->code), ERR->message);
    banyan_session_close(gone);
    nothing_changed("a deleted session");
}

static void steps(void **state)
{
    (void)state;
    const void *k = context_k(&context, 0, 0), *v = context_v(&context, 0, 0);
    struct step good = {.session = session, .first = TOKENS - 1, .rows = 1}, s;
    float *q = context_queries(&spec, 1, 1), o[128], lse[4];
    banyan_item item = {.session = session, .first = 0, .rows = 1, .q = q, .o = o, .lse = lse, .error = ERR};
#define BAD_ITEM(what, change)                                                                               \
    do {                                                                                                     \
        banyan_item bad = item;                                                                              \
        change;                                                                                              \
        OK(banyan_attend(client, &bad, 1, 0, NULL, NULL));                                                   \
        refused(what, bad.code, BANYAN_INVALID_ARGUMENT, NULL);                                              \
    } while (0)
    BAD_ITEM("no session", bad.session = NULL);
    BAD_ITEM("0 rows", bad.rows = 0);
    BAD_ITEM("no q", bad.q = NULL);
    BAD_ITEM("k without v", bad.k = k);
    BAD_ITEM("a layer that is not there", bad.layer = LAYERS);
    BAD_ITEM("positions that wrap", bad.first = UINT64_MAX);
#undef BAD_ITEM
    free(q);
    s = good;
    s.first = TOKENS;
    refused("a position beyond the end", try_step(s), BANYAN_OUT_OF_RANGE, NULL);
    s = good;
    s.visible = TOKENS + 1;
    s.first = TOKENS + 5;
    refused_too("keys beyond the end", try_step(s), BANYAN_OUT_OF_RANGE, NULL);
    s = good;
    s.first = TOKENS + 40;
    s.k = k;
    s.v = v;
    refused("an append beyond the end", try_step(s), BANYAN_OUT_OF_RANGE, NULL);
    s.first = UINT64_C(1) << 60;
    refused("an append at 2^60", try_step(s), BANYAN_OUT_OF_RANGE, "LIMIT");
    s.first = TOKENS - 1; // holds other bytes
    refused("other bytes where rows are acknowledged", try_step(s), BANYAN_FAILED_PRECONDITION, NULL);
    s = good;
    s.first = 0;
    s.rows = 2500; // of 512 bytes: 1.2 MiB
    s.k = s.v = calloc(2500, 512);
    assert_non_null(s.k);
    refused("an append of more than 1 MiB", try_step(s), BANYAN_INVALID_ARGUMENT, NULL);
    free((void *)(uintptr_t)s.k);

    banyan_session *other;
    OK(banyan_session_open(client, banyan_session_id(session), NULL, &other, ERR));
    banyan_client *second = support_connect(cluster, "unix");
    struct step foreign = {.session = other, .rows = 1};
    item = step_item(&foreign);
    OK(banyan_attend(second, &item, 1, 0, NULL, NULL));
    refused("a session of another client", item.code, BANYAN_INVALID_ARGUMENT, NULL);
    step_free(&foreign);
    banyan_session_close(other);
    banyan_disconnect(second);

    // Hole: in a session of its own, for the witness has none
    banyan_session *holed;
    OK(banyan_session_create(client, &spec, NULL, &holed, ERR));
    OK(banyan_attach(holed, 0, 64, 20, k, v, ERR));
    OK(banyan_commit(holed, 0, 64, 20, ERR));
    struct step over = {.session = holed, .first = 70, .rows = 1};
    FAILS(BANYAN_FAILED_PRECONDITION, "HOLE", step_run(client, &over));
    assert_int_equal(ERR->n_ranges, 1);
    assert_true(ERR->ranges[0].first == 0 && ERR->ranges[0].count == 64);
    row("a step over a hole", banyan_code_name(ERR->code), ERR->message);
    FAILS(BANYAN_FAILED_PRECONDITION, "HOLE", banyan_commit(holed, 0, 60, 10, ERR));
    row("a commit of what has not come", banyan_code_name(ERR->code), ERR->message);
    step_free(&over);
    OK(banyan_session_delete(holed, ERR));
    banyan_session_close(holed);
    nothing_changed("a hole");
}

static void attaches(void **state)
{
    (void)state;
    const void *k = context_k(&context, 0, 0), *v = context_v(&context, 0, 0);
    banyan_session *none = NULL;
    refused("an attach of nothing", banyan_attach(session, 0, 0, 0, k, v, ERR), BANYAN_INVALID_ARGUMENT,
            NULL);
    refused("an attach without v", banyan_attach(session, 0, 0, 1, k, NULL, ERR), BANYAN_INVALID_ARGUMENT,
            NULL);
    refused("an attach to layer 7", banyan_attach(session, 7, 0, 1, k, v, ERR), BANYAN_INVALID_ARGUMENT,
            NULL);
    FAILS(BANYAN_INVALID_ARGUMENT, NULL,
          banyan_attach(session, 0, UINT64_MAX - 1, 4, k, v, ERR)); // as of nothing
    refused("an attach at 2^60", banyan_attach(session, 0, UINT64_C(1) << 60, 4, k, v, ERR),
            BANYAN_OUT_OF_RANGE, "LIMIT");
    refused("other bytes where rows are committed", banyan_attach(session, 0, 4, 4, k, v, ERR),
            BANYAN_FAILED_PRECONDITION, NULL);
    FAILS(BANYAN_FAILED_PRECONDITION, "HOLE", banyan_commit(session, 0, TOKENS, 1, ERR));
    refused("a truncate to more than there is", banyan_session_truncate(session, TOKENS + 1, ERR),
            BANYAN_OUT_OF_RANGE, NULL);
    refused("a fork beyond the shortest layer", banyan_session_fork(session, TOKENS + 1, NULL, &none, ERR),
            BANYAN_OUT_OF_RANGE, NULL);
    refused_too("a fork with a name that is taken", banyan_session_fork(session, 10, "witness", &none, ERR),
                BANYAN_ALREADY_EXISTS, NULL);
    assert_null(none);
}

// ---- by hand ----------------------------------------------------------------------------------------------

static uint64_t request_id = 100;

// Sends a request on an established link. Afterwards the link must be as good as before.
static struct wire_answer call(int fd, uint32_t method, const ProtobufCMessage *body,
                               const struct proto_tensor_out *tensors, size_t n_tensors)
{
    struct wire_frame frame = wire_request(method, ++request_id, body, tensors, n_tensors);
    assert_true(wire_send(fd, frame.bytes, frame.len));
    free(frame.bytes);
    struct wire_answer answer = wire_read(fd, 30000);
    assert_false(answer.closed || answer.silent);
    assert_int_equal(answer.header->request, request_id);
    return answer;
}

// Takes the answer as if the client library had.
static void judge(const char *input, struct wire_answer *answer, banyan_code want, const char *reason,
                  bool like_before)
{
    *ERR = (banyan_error){.code = (banyan_code)answer->code};
    snprintf(ERR->message, sizeof(ERR->message), "%.380s", answer->message);
    snprintf(ERR->reason, sizeof(ERR->reason), "%.31s", answer->reason);
    banyan_code code = (banyan_code)answer->code;
    wire_answer_free(answer);
    (like_before ? refused_too : refused)(input, code, want, reason);
}

static const char *worker_endpoint(uint32_t nth)
{
    static char endpoint[128];
    banyan_cluster_info info;
    OK(banyan_cluster_get_info(client, &info, ERR));
    assert_true(nth < info.n_workers);
    snprintf(endpoint, sizeof(endpoint), "%s", info.workers[nth].endpoint);
    banyan_cluster_info_free(&info);
    return endpoint;
}

static void requests(void **state)
{
    (void)state;
    int fd = wire_dial(harness_cluster_endpoint(cluster, "tcp"));
    assert_true(wire_hello(fd));
    struct wire_answer a;

    Banyan__Pb__ClusterInfoRequest info = BANYAN__PB__CLUSTER_INFO_REQUEST__INIT;
    Banyan__Pb__SessionInfoRequest session_info = BANYAN__PB__SESSION_INFO_REQUEST__INIT;
    a = call(fd, BANYAN__PB__METHOD__METHOD_SESSION_INFO, &session_info.base, NULL, 0);
    judge("the zero handle", &a, BANYAN_INVALID_ARGUMENT, NULL, false);
    a = call(fd, 77, &info.base, NULL, 0);
    judge("a method that does not exist", &a, BANYAN_UNIMPLEMENTED, NULL, false);
    Banyan__Pb__HeartbeatRequest heartbeat = BANYAN__PB__HEARTBEAT_REQUEST__INIT;
    a = call(fd, BANYAN__PB__METHOD__METHOD_HEARTBEAT, &heartbeat.base, NULL, 0);
    judge("a client that says it is a worker", &a, BANYAN_PERMISSION_DENIED, NULL, false);

    // A body that is no message
    static const uint8_t noise[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                    0xff, 0xff, 0xff, 0x7f, 8,    8,    8};
    Banyan__Pb__Header header = BANYAN__PB__HEADER__INIT;
    header.method = BANYAN__PB__METHOD__METHOD_ATTEND;
    header.request = ++request_id;
    header.remaining_ns = 1000000000;
    header.body = (ProtobufCBinaryData){sizeof(noise), (uint8_t *)(uintptr_t)noise};
    struct wire_frame frame = wire_pack(&header, NULL, 0);
    assert_true(wire_send(fd, frame.bytes, frame.len));
    free(frame.bytes);
    a = wire_read(fd, 30000);
    judge("a body that is no message", &a, BANYAN_INVALID_ARGUMENT, NULL, false);

    // No time left
    frame = wire_encode(&(struct proto_outgoing){.kind = PROTO_FRAME_REQUEST,
                                                 .method = BANYAN__PB__METHOD__METHOD_CLUSTER_INFO,
                                                 .request = ++request_id,
                                                 .body = &info.base});
    assert_true(wire_send(fd, frame.bytes, frame.len));
    free(frame.bytes);
    a = wire_read(fd, 30000);
    judge("no time left on arrival", &a, BANYAN_DEADLINE_EXCEEDED, NULL, false);

    // A payload above the limit: answered before it comes, then skipped
    struct common_slice none = {0};
    uint64_t huge = PROTO_PAYLOAD_MAX + 64;
    uint8_t *zeros = calloc(1, huge);
    assert_non_null(zeros);
    none = (struct common_slice){zeros, huge};
    struct proto_tensor_out tensor = {
        .dtype = BANYAN__PB__DTYPE__DTYPE_U8, .n_dims = 1, .dims = {huge}, .pieces = &none, .n_pieces = 1};
    Banyan__Pb__AttendRequest attend = BANYAN__PB__ATTEND_REQUEST__INIT;
    a = call(fd, BANYAN__PB__METHOD__METHOD_ATTEND, &attend.base, &tensor, 1);
    judge("an oversize frame", &a, BANYAN_RESOURCE_EXHAUSTED, NULL, false);
    free(zeros);

    a = call(fd, BANYAN__PB__METHOD__METHOD_ATTEND, &attend.base, NULL, 0);
    judge("an attend without items", &a, BANYAN_INVALID_ARGUMENT, NULL, false);
    close(fd);
}

// Items whose numbers do not fit what came with them. A bad item fails alone where it can be told apart.
static void attend_by_hand(void **state)
{
    (void)state;
    int fd = wire_dial(harness_cluster_endpoint(cluster, "unix"));
    assert_true(wire_hello(fd));
    static uint8_t bytes[8192];
    struct common_slice slice[3] = {{bytes, 512}, {bytes, 256}, {bytes, 256}};
    struct proto_tensor_out tensor[3];
    Banyan__Pb__AttendItem item = BANYAN__PB__ATTEND_ITEM__INIT, *items[1] = {&item};
    Banyan__Pb__AttendRequest attend = BANYAN__PB__ATTEND_REQUEST__INIT;
    attend.n_items = 1;
    attend.items = items;
    item.session = banyan_session_id(session);
    item.rows = 1;
    static const struct {
        const char *input;
        uint32_t rows, append, layer;
        uint64_t q, k, v, first, q_bytes;
        banyan_code want;
    } bad[] = {
        {"q too short", 1, 0, 0, 256, 0, 0, 5, 0, BANYAN_INVALID_ARGUMENT},
        {"q too long", 1, 0, 0, 1024, 0, 0, 5, 0, BANYAN_INVALID_ARGUMENT},
        {"k too short", 1, 1, 0, 512, 128, 256, TOKENS, 0, BANYAN_INVALID_ARGUMENT},
        {"v too long", 1, 1, 0, 512, 256, 512, TOKENS, 0, BANYAN_INVALID_ARGUMENT},
        {"rows 0 by hand", 0, 0, 0, 512, 0, 0, 5, 0, BANYAN_INVALID_ARGUMENT},
        {"5000 rows in an item", 5000, 0, 0, 512, 0, 0, 5, 0, BANYAN_INVALID_ARGUMENT},
        {"2^32 - 1 rows", UINT32_MAX, 0, 0, 512, 0, 0, 5, 0, BANYAN_INVALID_ARGUMENT},
        {"layer 2^31", 1, 0, 1u << 31, 512, 0, 0, 5, 0, BANYAN_INVALID_ARGUMENT},
        {"a position of 2^64 - 1", 1, 0, 0, 512, 0, 0, UINT64_MAX, 0, BANYAN_OUT_OF_RANGE},
        {"q_bytes that wrap", 1, 0, 0, 512, 0, 0, 5, UINT64_MAX - 100, BANYAN_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        item.rows = bad[i].rows;
        item.append = bad[i].append;
        item.layer = bad[i].layer;
        item.first = bad[i].first;
        item.q_bytes = bad[i].q_bytes;
        const uint64_t sizes[3] = {bad[i].q, bad[i].k, bad[i].v};
        for (int t = 0; t < 3; t++) {
            slice[t].len = sizes[t];
            tensor[t] = (struct proto_tensor_out){.dtype = BANYAN__PB__DTYPE__DTYPE_U8,
                                                  .n_dims = 1,
                                                  .dims = {sizes[t]},
                                                  .pieces = &slice[t],
                                                  .n_pieces = 1};
        }
        struct wire_answer a =
            call(fd, BANYAN__PB__METHOD__METHOD_ATTEND, &attend.base, tensor, bad[i].append ? 3 : 1);
        banyan_code code = (banyan_code)a.code;
        char message[400];
        snprintf(message, sizeof(message), "%.390s", a.message);
        if (a.code == COMMON_OK) { // the call was answered: the item's own status
            Banyan__Pb__AttendReply *reply = banyan__pb__attend_reply__unpack(NULL, a.body_len, a.body);
            assert_non_null(reply);
            assert_int_equal(reply->n_items, 1);
            assert_non_null(reply->items[0]->status);
            code = (banyan_code)reply->items[0]->status->code;
            snprintf(message, sizeof(message), "%.390s", reply->items[0]->status->message);
            banyan__pb__attend_reply__free_unpacked(reply, NULL);
        }
        wire_answer_free(&a);
        row(bad[i].input, banyan_code_name(code), message);
        if (code != bad[i].want)
            fail_msg("%s: %s, should be %s: %s", bad[i].input, banyan_code_name(code),
                     banyan_code_name(bad[i].want), message);
        assert_true(message[0] != '\0');
        nothing_changed(bad[i].input);
    }
    close(fd);
}

// Tensor descriptors that point elsewhere than into the payload.
static void descriptors(void **state)
{
    (void)state;
    static const struct {
        const char *input;
        uint64_t dims[2], offset, bytes;
        uint32_t dtype;
    } bad[] = {
        {"a tensor outside the payload", {1, 512}, 64, 512, BANYAN__PB__DTYPE__DTYPE_U8},
        {"a tensor that begins off a multiple of 64", {1, 448}, 4, 448, BANYAN__PB__DTYPE__DTYPE_U8},
        {"a tensor whose end wraps", {1, UINT64_MAX - 63}, 64, UINT64_MAX - 63, BANYAN__PB__DTYPE__DTYPE_U8},
        {"a shape whose product wraps",
         {UINT64_C(1) << 33, UINT64_C(1) << 33},
         0,
         512,
         BANYAN__PB__DTYPE__DTYPE_U8},
        {"a shape that is not the bytes", {3, 100}, 0, 512, BANYAN__PB__DTYPE__DTYPE_U8},
        {"an unknown type of tensor", {1, 512}, 0, 512, 99},
    };
    uint8_t payload[512] = {0};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        int fd = wire_dial(harness_cluster_endpoint(cluster, "tcp"));
        assert_true(wire_hello(fd));
        Banyan__Pb__AttendItem item = BANYAN__PB__ATTEND_ITEM__INIT, *items[1] = {&item};
        Banyan__Pb__AttendRequest attend = BANYAN__PB__ATTEND_REQUEST__INIT;
        attend.n_items = 1;
        attend.items = items;
        item.session = banyan_session_id(session);
        item.rows = 1;
        uint8_t packed[256];
        size_t packed_len = banyan__pb__attend_request__pack(&attend, packed);
        uint64_t dims[2] = {bad[i].dims[0], bad[i].dims[1]};
        Banyan__Pb__Tensor tensor = BANYAN__PB__TENSOR__INIT, *tensors[1] = {&tensor};
        tensor.dtype = (Banyan__Pb__Dtype)bad[i].dtype;
        tensor.n_dims = 2;
        tensor.dims = dims;
        tensor.offset = bad[i].offset;
        tensor.bytes = bad[i].bytes;
        Banyan__Pb__Header header = BANYAN__PB__HEADER__INIT;
        header.method = BANYAN__PB__METHOD__METHOD_ATTEND;
        header.request = ++request_id;
        header.remaining_ns = 5000000000u;
        header.n_tensors = 1;
        header.tensors = tensors;
        header.body = (ProtobufCBinaryData){packed_len, packed};
        struct wire_frame frame = wire_pack(&header, payload, sizeof(payload));
        assert_true(wire_send(fd, frame.bytes, frame.len));
        free(frame.bytes);
        struct wire_answer a = wire_read(fd, 30000);
        assert_false(a.closed || a.silent);
        judge(bad[i].input, &a, BANYAN_INVALID_ARGUMENT, NULL, i > 0);
        close(fd);
    }
}

// ---- what is no frame -------------------------------------------------------------------------------------

// Bytes that cannot be answered: the link is closed, nobody else notices.
static void expect_closed(const char *input, const char *endpoint, bool greeted, const void *bytes,
                          size_t len)
{
    int fd = wire_dial(endpoint);
    if (greeted)
        assert_true(wire_hello(fd));
    wire_send(fd, bytes, len);
    struct wire_answer a = wire_read(fd, 30000);
    row(input, a.closed ? "closed" : banyan_code_name((banyan_code)a.code), a.message);
    if (!a.closed && a.code == COMMON_OK)
        fail_msg("%s: %s", input, a.silent ? "nothing happens" : "taken as good");
    if (!a.closed) { // it said why; the link itself is of no use any more
        wire_answer_free(&a);
        shutdown(fd, SHUT_WR);
        a = wire_read(fd, 30000);
        assert_true(a.closed);
    }
    wire_answer_free(&a);
    close(fd);
    nothing_changed(input);
}

static void no_frames(const char *endpoint)
{
    uint8_t noise[4096], bytes[64] = {0};
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i < sizeof(noise); i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        noise[i] = (uint8_t)x;
    }
    struct wire_frame frame = {bytes, sizeof(bytes)};
    const struct proto_prefix good = {.version = PROTO_VERSION,
                                      .kind = PROTO_FRAME_REQUEST,
                                      .header_len = 20};
    for (int greeted = 0; greeted < 2; greeted++) {
        struct proto_prefix bad = good;
        expect_closed("garbage", endpoint, greeted, noise, sizeof(noise));
        expect_closed("HTTP", endpoint, greeted, "GET / HTTP/1.1\r\nHost: banyan\r\n\r\n12345", 37);
        wire_prefix(&frame, &good);
        bytes[0] ^= 1;
        expect_closed("wrong magic", endpoint, greeted, bytes, sizeof(bytes));
        bad.version = PROTO_VERSION + 1;
        wire_prefix(&frame, &bad);
        expect_closed("wrong version", endpoint, greeted, bytes, sizeof(bytes));
        wire_prefix(&frame, &good);
        bytes[8] ^= 1;
        expect_closed("a flipped bit in a length", endpoint, greeted, bytes, sizeof(bytes));
        bad = good;
        bad.kind = 200;
        wire_prefix(&frame, &bad);
        expect_closed("an unknown kind of frame", endpoint, greeted, bytes, sizeof(bytes));
        bad = good;
        bad.header_len = UINT32_MAX - 8;
        wire_prefix(&frame, &bad);
        expect_closed("a header of 4 GiB", endpoint, greeted, bytes, sizeof(bytes));
        bad = good;
        bad.payload_len = UINT64_MAX - 8;
        bad.header_len = UINT32_MAX;
        wire_prefix(&frame, &bad);
        expect_closed("lengths that wrap", endpoint, greeted, bytes, sizeof(bytes));
        bad = good;
        bad.header_len = 0;
        wire_prefix(&frame, &bad);
        expect_closed("an empty header", endpoint, greeted, bytes, sizeof(bytes));
        memset(bytes + PROTO_PREFIX_BYTES, 0xff, sizeof(bytes) - PROTO_PREFIX_BYTES);
        wire_prefix(&frame, &good);
        expect_closed("a header that is no message", endpoint, greeted, bytes, sizeof(bytes));
    }
    // A call before the hello
    Banyan__Pb__ClusterInfoRequest info = BANYAN__PB__CLUSTER_INFO_REQUEST__INIT;
    struct wire_frame early = wire_request(BANYAN__PB__METHOD__METHOD_CLUSTER_INFO, 1, &info.base, NULL, 0);
    expect_closed("a call without a hello", endpoint, false, early.bytes, early.len);
    free(early.bytes);
    // A daemon's hello without the secret
    static uint8_t nonce[32] = {9};
    Banyan__Pb__LinkHelloRequest hello = BANYAN__PB__LINK_HELLO_REQUEST__INIT;
    hello.version = PROTO_VERSION;
    hello.role = BANYAN__PB__ROLE__ROLE_WORKER;
    hello.nonce = (ProtobufCBinaryData){sizeof(nonce), nonce};
    hello.name = (char *)"w0";
    int fd = wire_dial(endpoint);
    struct wire_answer a = call(fd, BANYAN__PB__METHOD__METHOD_LINK_HELLO, &hello.base, NULL, 0);
    if (a.code == COMMON_OK) {
        wire_answer_free(&a);
        uint8_t wrong[32] = {0};
        Banyan__Pb__LinkProofRequest proof = BANYAN__PB__LINK_PROOF_REQUEST__INIT;
        proof.proof = (ProtobufCBinaryData){sizeof(wrong), wrong};
        a = call(fd, BANYAN__PB__METHOD__METHOD_LINK_PROOF, &proof.base, NULL, 0);
    }
    row("a daemon without the secret", banyan_code_name((banyan_code)a.code), a.message);
    assert_int_equal(a.code, COMMON_UNAUTHENTICATED);
    wire_answer_free(&a);
    close(fd);
    nothing_changed("a daemon without the secret");
}

static void no_frames_to_the_coordinator(void **state)
{
    (void)state;
    no_frames(harness_cluster_endpoint(cluster, "tcp"));
    no_frames(harness_cluster_endpoint(cluster, "unix"));
}

static void no_frames_to_a_worker(void **state)
{
    (void)state;
    char edge[300];
    no_frames(worker_endpoint(0));
    snprintf(edge, sizeof(edge), "unix://%s/w0.sock", harness_cluster_dir(cluster));
    no_frames(edge);
}

static void no_frames_over_nng(void **state)
{
    (void)state;
    const char *endpoint = strchr(harness_cluster_endpoint(cluster, "nng+tcp"), '+') + 1;
    static uint8_t junk[70000];
    memset(junk, 0x5a, sizeof(junk));
    struct proto_prefix prefix = {.version = PROTO_VERSION,
                                  .kind = PROTO_FRAME_REQUEST,
                                  .header_len = 20,
                                  .payload_len = UINT64_MAX - 100};
    uint8_t wraps[64] = {0};
    proto_prefix_encode(&prefix, wraps);
    prefix.payload_len = UINT64_C(1) << 30; // promised, and not there
    uint8_t short_of[64] = {0};
    proto_prefix_encode(&prefix, short_of);
    const struct {
        const char *input;
        const void *bytes;
        size_t len;
    } bad[] = {{"nng: nothing", junk, 0},
               {"nng: one byte", junk, 1},
               {"nng: garbage", junk, sizeof(junk)},
               {"nng: lengths that wrap", wraps, sizeof(wraps)},
               {"nng: a truncated frame", short_of, sizeof(short_of)}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        nng_socket socket;
        assert_int_equal(nng_req0_open(&socket), 0);
        nng_socket_set_ms(socket, NNG_OPT_RECVTIMEO, 20000);
        nng_socket_set_ms(socket, NNG_OPT_SENDTIMEO, 20000);
        assert_int_equal(nng_dial(socket, endpoint, NULL, 0), 0);
        assert_int_equal(nng_send(socket, (void *)(uintptr_t)bad[i].bytes, bad[i].len, 0), 0);
        char *answer;
        size_t len;
        int rv = nng_recv(socket, &answer, &len, NNG_FLAG_ALLOC);
        row(bad[i].input, rv ? nng_strerror(rv) : "empty answer", "");
        assert_int_equal(rv, 0);
        assert_int_equal(len, 0); // the caller cannot take it for a frame
        nng_free(answer, len);
        nng_close(socket);
        nothing_changed(bad[i].input);
    }
    // The nng protocol itself, over a plain socket
    char plain[128];
    snprintf(plain, sizeof(plain), "%s", endpoint);
    int fd = wire_dial(plain);
    wire_send(fd, junk, sizeof(junk));
    close(fd);
    nothing_changed("nng: no nng");
}

// ---- slow and vanished ------------------------------------------------------------------------------------

static void slow_clients_cost_nothing(void **state)
{
    (void)state;
    char edge[300];
    snprintf(edge, sizeof(edge), "unix://%s/w0.sock", harness_cluster_dir(cluster));
    const char *endpoints[] = {harness_cluster_endpoint(cluster, "tcp"),
                               harness_cluster_endpoint(cluster, "unix"),
                               strchr(harness_cluster_endpoint(cluster, "nng+tcp"), '+') + 1,
                               worker_endpoint(1), edge};
    int fds[5 * 20];
    size_t n = 0;
    for (int e = 0; e < 5; e++)
        for (int i = 0; i < 20; i++) {
            fds[n] = wire_dial(endpoints[e]);
            if (i % 2 == 0) // the other half says nothing at all
                assert_true(wire_send(fds[n], "B", 1));
            n++;
        }
    for (int i = 0; i < 20; i++)
        nothing_changed("slow clients");
    for (size_t i = 0; i < n; i++)
        close(fds[i]);
    nothing_changed("slow clients left");
}

// In the middle of a frame, of an answer, of an attach.
static void clients_that_vanish(void **state)
{
    (void)state;
    Banyan__Pb__AttendItem item = BANYAN__PB__ATTEND_ITEM__INIT, *items[200];
    Banyan__Pb__AttendRequest attend = BANYAN__PB__ATTEND_REQUEST__INIT;
    static uint8_t q[200 * 512];
    struct common_slice slice = {q, sizeof(q)};
    struct proto_tensor_out tensor = {.dtype = BANYAN__PB__DTYPE__DTYPE_U8,
                                      .n_dims = 1,
                                      .dims = {sizeof(q)},
                                      .pieces = &slice,
                                      .n_pieces = 1};
    attend.n_items = 200;
    attend.items = items;
    item.session = banyan_session_id(session);
    item.first = TOKENS - 1;
    item.rows = 1;
    for (int i = 0; i < 200; i++)
        items[i] = &item;
    struct wire_frame frame = wire_request(BANYAN__PB__METHOD__METHOD_ATTEND, 1, &attend.base, &tensor, 1);
    static const char *const transports[] = {"tcp", "unix"};
    for (int i = 0; i < 60; i++) {
        int fd = wire_dial(harness_cluster_endpoint(cluster, transports[i % 2]));
        assert_true(wire_hello(fd));
        size_t len = i % 3 == 0 ? frame.len : i % 3 == 1 ? frame.len / 2 : PROTO_PREFIX_BYTES + 3;
        assert_true(wire_send(fd, frame.bytes, len));
        if (i % 4 == 0) // the answer meets a reset
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
        close(fd);
    }
    free(frame.bytes);
    nothing_changed("clients that vanish");
    // Many sends, and never a look at the answers
    int fd = wire_dial(harness_cluster_endpoint(cluster, "unix"));
    assert_true(wire_hello(fd));
    for (uint64_t i = 0; i < 200; i++) {
        struct wire_frame more =
            wire_request(BANYAN__PB__METHOD__METHOD_ATTEND, 10 + i, &attend.base, &tensor, 1);
        ssize_t sent = send(fd, more.bytes, more.len, MSG_NOSIGNAL | MSG_DONTWAIT);
        free(more.bytes);
        if (sent != (ssize_t)more.len)
            break; // it is not read any more: that is the point
    }
    nothing_changed("a client that does not read");
    close(fd);
    nothing_changed("a client that did not read is gone");
}

// ---- tickets ----------------------------------------------------------------------------------------------

static void tickets(void **state)
{
    (void)state;
    struct wire_answer a;
    struct common_secret secret, other;
    assert_int_equal(common_secret_load(harness_cluster_secret_file(cluster), &secret, NULL), COMMON_OK);
    common_random(&other, sizeof(other));
    banyan_session *mine;
    OK(banyan_session_create(client, &spec, NULL, &mine, ERR));
    OK(banyan_attach(mine, 0, 0, 32, context_k(&context, 0, 0), context_v(&context, 0, 0), ERR));
    before = take(); // with the second session

    // Where its first chunk lies, and a ticket for it
    int coordinator = wire_dial(harness_cluster_endpoint(cluster, "tcp"));
    assert_true(wire_hello(coordinator));
    Banyan__Pb__AttachOpenRequest open = BANYAN__PB__ATTACH_OPEN_REQUEST__INIT;
    open.session = banyan_session_id(mine);
    open.count = 32;
    a = call(coordinator, BANYAN__PB__METHOD__METHOD_ATTACH_OPEN, &open.base, NULL, 0);
    assert_int_equal(a.code, COMMON_OK);
    Banyan__Pb__AttachOpenReply *reply = banyan__pb__attach_open_reply__unpack(NULL, a.body_len, a.body);
    wire_answer_free(&a);
    assert_non_null(reply);
    assert_true(reply->n_chunks >= 1 && reply->n_workers >= 1);
    struct proto_ticket good;
    uint64_t now = common_clock_wall_ns();
    assert_int_equal(proto_ticket_check(&secret, reply->ticket.data, reply->ticket.len, now, &good, NULL),
                     COMMON_OK);
    int fd = wire_dial(reply->workers[reply->chunks[0]->holders[0]]->endpoint);
    banyan__pb__attach_open_reply__free_unpacked(reply, NULL);
    assert_true(wire_hello(fd));

    static uint8_t rows[8 * 256];
    struct common_slice slice = {rows, sizeof(rows)};
    struct proto_tensor_out tensor[2];
    for (int t = 0; t < 2; t++)
        tensor[t] = (struct proto_tensor_out){.dtype = BANYAN__PB__DTYPE__DTYPE_F32,
                                              .n_dims = 3,
                                              .dims = {8, 2, 32},
                                              .pieces = &slice,
                                              .n_pieces = 1};
    Banyan__Pb__ChunkPutRequest put = BANYAN__PB__CHUNK_PUT_REQUEST__INIT;
    put.session = banyan_session_id(mine);
    put.count = 8;
    uint8_t bytes[PROTO_TICKET_MAX];
#define PUT(what, key, change_ticket, change_put, want, why, like_before)                                    \
    do {                                                                                                     \
        struct proto_ticket ticket = good;                                                                   \
        Banyan__Pb__ChunkPutRequest bad = put;                                                               \
        change_ticket;                                                                                       \
        bad.ticket = (ProtobufCBinaryData){proto_ticket_make(&key, &ticket, bytes), bytes};                  \
        change_put;                                                                                          \
        a = call(fd, BANYAN__PB__METHOD__METHOD_CHUNK_PUT, &bad.base, tensor, 2);                            \
        judge(what, &a, want, why, like_before);                                                             \
    } while (0)
    PUT("an expired ticket", secret, ticket.expires_wall_ns = now - 1, (void)0, BANYAN_FAILED_PRECONDITION,
        "", false);
    PUT("another session's ticket", secret, ticket.session = banyan_session_id(session), (void)0,
        BANYAN_PERMISSION_DENIED, "", false);
    PUT("a ticket for other positions", secret, ticket.first = 64, (void)0, BANYAN_PERMISSION_DENIED, "",
        false);
    PUT("a ticket that nobody signed", other, (void)0, (void)0, BANYAN_PERMISSION_DENIED, "", false);
    PUT("a ticket from before a truncate", secret, ticket.incarnation = 77, (void)0, BANYAN_ABORTED,
        "OLD_INCARNATION", false);
    PUT("a ticket cut short", secret, (void)0, bad.ticket.len -= 7, BANYAN_PERMISSION_DENIED, "", true);
    PUT("a put of more rows than came", secret, (void)0, bad.count = 9, BANYAN_INVALID_ARGUMENT, "", false);
    PUT("a put into layer 9", secret, (void)0, bad.layer = 9, BANYAN_INVALID_ARGUMENT, "", false);
    PUT("a put whose end wraps", secret, (void)0, (bad.first = UINT64_MAX - 2, bad.count = 8),
        BANYAN_INVALID_ARGUMENT, "", false);
#undef PUT
    // A session that the worker does not know
    struct proto_ticket ticket = good;
    ticket.session = put.session = UINT64_C(0x600000006);
    put.ticket = (ProtobufCBinaryData){proto_ticket_make(&secret, &ticket, bytes), bytes};
    a = call(fd, BANYAN__PB__METHOD__METHOD_CHUNK_PUT, &put.base, tensor, 2);
    judge("a put into an unknown session", &a, BANYAN_NOT_FOUND, NULL, false);
    // What clients may not ask of a worker
    Banyan__Pb__InventoryRequest inventory = BANYAN__PB__INVENTORY_REQUEST__INIT;
    a = call(fd, BANYAN__PB__METHOD__METHOD_INVENTORY, &inventory.base, NULL, 0);
    assert_true(a.code == COMMON_UNIMPLEMENTED || a.code == COMMON_PERMISSION_DENIED);
    row("a client that asks for the inventory", banyan_code_name((banyan_code)a.code), a.message);
    wire_answer_free(&a);
    close(fd);
    close(coordinator);
    // None of the puts wrote anything: what was attached first is what is committed
    OK(banyan_commit(mine, 0, 0, 32, ERR));
    support_check_step(client, mine, &context, 0, 31, 1, 0, NULL, "after bad puts");
    OK(banyan_session_delete(mine, ERR));
    banyan_session_close(mine);
    step_free(&before.step);
    before = take();
}

// ---- what is not a number ---------------------------------------------------------------------------------

static void nan_and_infinity_flow_through(void **state)
{
    (void)state;
    static const float values[] = {NAN, INFINITY, -INFINITY};
    static const char *const places[] = {"q", "k", "v"};
    const uint32_t tokens = 70;
    for (int type = BANYAN_F32; type <= BANYAN_BF16; type++)
        for (int p = 0; p < 3; p++)
            for (int n = 0; n < 3; n++) {
                banyan_spec s = spec;
                s.kv_type = (banyan_kv_type)type;
                s.members = 3;
                banyan_session *own;
                struct context c;
                context_init(&c, &s, tokens);
                context_random(&c, 0, tokens, 6);
                float *q = context_queries(&s, 3, 8), row_k[32], row_v[32];
                for (int i = 0; i < 32; i++)
                    row_k[i] = row_v[i] = 0.1f * (float)i;
                if (p == 0)
                    q[128 + 2 * 32 + 5] = values[n]; // row 1, head 2: the others do not know
                else
                    (p == 1 ? row_k : row_v)[7] = values[n];
                if (p != 0)
                    for (uint32_t l = 0; l < LAYERS; l++)
                        context_set(&c, l, 40, 1, row_k, row_v);
                OK(banyan_session_create(client, &s, NULL, &own, ERR));
                support_fill(own, &c, 0, tokens - 1);
                struct step step = {
                    .session = own, .first = tokens - 3, .rows = 3, .q = q, .visible = tokens - 1};
                OK(step_run(client, &step));
                context_check(&c, 0, tokens - 3, 3, tokens - 1, q, step.o, step.lse, NULL, places[p]);
                step_free(&step);
                // Through an append as well, on the last row
                for (uint32_t l = 0; l < LAYERS; l++)
                    if (p != 0)
                        context_set(&c, l, tokens - 1, 0, row_k, row_v);
                struct step last = {.session = own,
                                    .layer = 1,
                                    .first = tokens - 1,
                                    .rows = 1,
                                    .q = q + 128,
                                    .k = context_k(&c, 1, tokens - 1),
                                    .v = context_v(&c, 1, tokens - 1)};
                OK(step_run(client, &last));
                context_check(&c, 1, tokens - 1, 1, 0, q + 128, last.o, last.lse, NULL, places[p]);
                bool any = false;
                for (size_t i = 0; i < step_floats(&last); i++)
                    any = any || !isfinite(last.o[i]) || !isfinite(last.lse[i / 32]);
                if (!any)
                    fail_msg("%g in %s vanished", (double)values[n], places[p]);
                step_free(&last);
                // The same bytes again are the same bytes, though NaN is not NaN
                struct step again = last;
                OK(step_run(client, &again));
                step_free(&again);
                free(q);
                OK(banyan_session_delete(own, ERR));
                banyan_session_close(own);
                context_free(&c);
            }
    row("NaN or infinity in q, k, v", "OK", "flows through as the reference says");
    nothing_changed("NaN");
}

// ---- tokens and limits ------------------------------------------------------------------------------------

static void tokens_of_clients(void **state)
{
    (void)state;
    struct harness_cluster *own =
        support_start(&(struct harness_options){.workers = 1, .token = "correct-horse-battery"});
    char wrong[300];
    snprintf(wrong, sizeof(wrong), "%s/wrong-token", harness_cluster_dir(own));
    FILE *file = fopen(wrong, "we");
    assert_non_null(file);
    fputs("wrong-horse-battery\n", file);
    fclose(file);
    assert_int_equal(chmod(wrong, 0600), 0);
    static const char *const transports[] = {"nng+tcp", "tcp", "unix"};
    for (int t = 0; t < 3; t++) {
        banyan_client *c = NULL;
        FAILS(BANYAN_UNAUTHENTICATED, NULL,
              banyan_connect(harness_cluster_endpoint(own, transports[t]), NULL, &c, ERR));
        FAILS(BANYAN_UNAUTHENTICATED, NULL,
              banyan_connect(harness_cluster_endpoint(own, transports[t]),
                             &(banyan_options){.token_file = wrong}, &c, ERR));
        assert_null(c);
        c = support_connect(own, transports[t]);
        banyan_disconnect(c);
    }
    row("no token, or a wrong one", banyan_code_name(ERR->code), ERR->message);
    support_stop(own);
}

static void memory_does_not_grow(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    const uint64_t allowed = UINT64_C(600) << 20; // freed memory is kept in quarantine
#else
    const uint64_t allowed = UINT64_C(48) << 20;
#endif
    uint64_t start[3];
    static uint8_t noise[30000];
    memset(noise, 0x77, sizeof(noise));
    struct proto_prefix prefix = {.version = PROTO_VERSION,
                                  .kind = PROTO_FRAME_REQUEST,
                                  .header_len = 64,
                                  .payload_len = UINT64_C(60) << 20};
    uint8_t promise[96] = {0};
    proto_prefix_encode(&prefix, promise);
    for (int round = 0; round < 2; round++) {
        const char *endpoints[] = {harness_cluster_endpoint(cluster, "tcp"), worker_endpoint(0),
                                   worker_endpoint(1)};
        if (round == 1) // the first round warmed up
            for (uint32_t i = 0; i < 3; i++)
                start[i] =
                    support_resident_bytes(harness_cluster_pid(cluster, i < 2 ? i : HARNESS_COORDINATOR));
        for (int i = 0; i < 200; i++) {
            char endpoint[128];
            snprintf(endpoint, sizeof(endpoint), "%s", endpoints[i % 3 ? i % 3 : 0]);
            int fd = wire_dial(endpoint);
            if (i % 2) {
                wire_send(fd, noise, sizeof(noise));
            } else if (wire_hello(fd)) {
                wire_send(fd, promise, sizeof(promise)); // 60 MiB that never come
            }
            close(fd);
        }
    }
    nothing_changed("400 bad links");
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t now = support_resident_bytes(harness_cluster_pid(cluster, i < 2 ? i : HARNESS_COORDINATOR));
        if (now > start[i] + allowed)
            fail_msg("a daemon grew from %" PRIu64 " to %" PRIu64 " bytes", start[i], now);
    }
}

static int start(void **state)
{
    (void)state;
    cluster = support_start(&(struct harness_options){.workers = 3});
    client = support_connect(cluster, "nng+tcp");
    context_init(&context, &spec, 2600);
    context_random(&context, 0, 2600, 1);
    OK(banyan_session_create(client, &spec, "witness", &session, ERR));
    support_fill(session, &context, 0, TOKENS);
    before = take();
    context_check(&context, 0, TOKENS - 1, 1, 0, before.step.made_q, before.step.o, before.step.lse, NULL,
                  "witness");
    return 0;
}

static int stop(void **state)
{
    (void)state;
    step_free(&before.step);
    banyan_session_close(session);
    banyan_disconnect(client);
    context_free(&context);
    support_stop(cluster);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(specs),
        cmocka_unit_test(handles),
        cmocka_unit_test(steps),
        cmocka_unit_test(attaches),
        cmocka_unit_test(requests),
        cmocka_unit_test(attend_by_hand),
        cmocka_unit_test(descriptors),
        cmocka_unit_test(no_frames_to_the_coordinator),
        cmocka_unit_test(no_frames_to_a_worker),
        cmocka_unit_test(no_frames_over_nng),
        cmocka_unit_test(slow_clients_cost_nothing),
        cmocka_unit_test(clients_that_vanish),
        cmocka_unit_test(tickets),
        cmocka_unit_test(nan_and_infinity_flow_through),
        cmocka_unit_test(tokens_of_clients),
        cmocka_unit_test(memory_does_not_grow),
    };
    return cmocka_run_group_tests_name("bad input", tests, start, stop);
}
