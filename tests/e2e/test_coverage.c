// SPDX-License-Identifier: Apache-2.0
// A caller with the cluster's secret alters a worker's layout behind the coordinator's back: removes a chunk,
// gives one to two workers, ages an epoch. Steps then fail with words; none answers with other numbers.
#include "tests/e2e/support.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "proto/rights/ticket.h"
#include "tests/e2e/wire.h"

#define WORKERS 3
#define CHUNK   32
#define TOKENS  (9 * CHUNK)

static struct harness_cluster *cluster;
static banyan_client *client;
static struct common_secret secret;
static int edge[WORKERS]; // links as a coordinator
static uint64_t term, request_id = 1;

static const banyan_spec spec = {.layers = 1,
                                 .q_heads = 4,
                                 .kv_heads = 2,
                                 .k_dim = 32,
                                 .v_dim = 32,
                                 .kv_type = BANYAN_F32,
                                 .scale = 0.2f,
                                 .chunk_tokens = CHUNK,
                                 .members = WORKERS};

struct victim {
    banyan_session *session;
    struct context context;
    uint64_t epoch, incarnation;
    struct {
        uint64_t id, first;
    } chunks[WORKERS][16];
    uint32_t n[WORKERS];
};

static struct wire_answer call(int fd, uint32_t method, const ProtobufCMessage *body,
                               const struct proto_tensor_out *tensors, size_t n_tensors)
{
    struct wire_frame frame = wire_request(method, ++request_id, body, tensors, n_tensors);
    assert_true(wire_send(fd, frame.bytes, frame.len));
    free(frame.bytes);
    struct wire_answer answer = wire_read(fd, 20000);
    assert_false(answer.closed || answer.silent);
    return answer;
}

static void must(int fd, uint32_t method, const ProtobufCMessage *body)
{
    struct wire_answer answer = call(fd, method, body, NULL, 0);
    if (answer.code != COMMON_OK)
        fail_msg("method %u: %s", method, answer.message);
    wire_answer_free(&answer);
}

// Which chunks of the session each worker holds, as the worker says.
static void ask_inventory(struct victim *v)
{
    for (uint32_t w = 0; w < WORKERS; w++) {
        Banyan__Pb__InventoryRequest ask = BANYAN__PB__INVENTORY_REQUEST__INIT;
        ask.term = term;
        struct wire_answer answer = call(edge[w], BANYAN__PB__METHOD__METHOD_INVENTORY, &ask.base, NULL, 0);
        assert_int_equal(answer.code, COMMON_OK);
        Banyan__Pb__InventoryReply *reply =
            banyan__pb__inventory_reply__unpack(NULL, answer.body_len, answer.body);
        assert_non_null(reply);
        for (size_t s = 0; s < reply->n_sessions; s++) {
            const Banyan__Pb__InventorySession *one = reply->sessions[s];
            if (one->session != banyan_session_id(v->session))
                continue;
            for (size_t i = 0; i < one->n_chunks; i++) {
                assert_true(v->n[w] < 16);
                v->chunks[w][v->n[w]].id = one->chunks[i]->chunk;
                v->chunks[w][v->n[w]++].first = one->chunks[i]->first;
            }
        }
        banyan__pb__inventory_reply__free_unpacked(reply, NULL);
        wire_answer_free(&answer);
        assert_true(v->n[w] >= 2);
    }
}

static void make(struct victim *v)
{
    banyan_session_info info;
    *v = (struct victim){0};
    context_init(&v->context, &spec, TOKENS);
    context_random(&v->context, 0, TOKENS, 5);
    OK(banyan_session_create(client, &spec, NULL, &v->session, ERR));
    support_fill(v->session, &v->context, 0, TOKENS);
    support_check_step(client, v->session, &v->context, 0, TOKENS - 1, 1, 0, NULL, "before");
    OK(banyan_session_get_info(v->session, &info, ERR));
    v->epoch = info.epoch;
    v->incarnation = info.incarnation;
    banyan_session_info_free(&info);
    ask_inventory(v);
}

// LayoutSet as the coordinator would send it. skip: a chunk to leave out; add: one to name besides.
static void set_layout(const struct victim *v, uint32_t w, uint64_t epoch, uint64_t skip, uint64_t add,
                       uint64_t add_first)
{
    Banyan__Pb__LayoutChunk chunk[17], *chunks[17];
    Banyan__Pb__LayoutSetRequest set = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    set.term = term;
    set.session = banyan_session_id(v->session);
    set.incarnation = v->incarnation;
    set.epoch = epoch;
    set.replace = true;
    set.claim = true; // of the life that laid it out
    set.chunks = chunks;
    for (uint32_t i = 0; i <= v->n[w]; i++) {
        uint64_t id = i < v->n[w] ? v->chunks[w][i].id : add;
        if (id == skip || id == 0)
            continue;
        banyan__pb__layout_chunk__init(&chunk[set.n_chunks]);
        chunk[set.n_chunks].chunk = id;
        chunk[set.n_chunks].first = i < v->n[w] ? v->chunks[w][i].first : add_first;
        chunk[set.n_chunks].compute = true;
        chunks[set.n_chunks] = &chunk[set.n_chunks];
        set.n_chunks++;
    }
    must(edge[w], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &set.base);
}

// Whatever it says, it says it with words, or exactly.
static banyan_code try_step(const struct victim *v)
{
    struct step step = {
        .session = v->session, .first = TOKENS - 1, .rows = 1, .timeout_ns = 2 * COMMON_NS_PER_S};
    banyan_code code = step_run(client, &step);
    if (code == BANYAN_OK)
        context_check(&v->context, 0, TOKENS - 1, 1, 0, step.made_q, step.o, step.lse, NULL,
                      "behind the back");
    step_free(&step);
    return code;
}

static void a_removed_chunk(void **state)
{
    (void)state;
    struct victim v;
    for (uint32_t w = 0; w < WORKERS; w++) { // root or not
        make(&v);
        set_layout(&v, w, v.epoch, v.chunks[w][1].id, 0, 0);
        FAILS(BANYAN_DATA_LOSS, "COVERAGE", try_step(&v));
        // Steps that need not see it go on
        if (v.chunks[w][1].first > 0)
            support_check_step(client, v.session, &v.context, 0, v.chunks[w][1].first - 1, 1, 0, NULL,
                               "below");
        support_drop(v.session, &v.context);
    }
}

// The same rows of the same chunk on a second worker, committed there too: the data are right, and twice.
static void a_doubled_chunk(void **state)
{
    (void)state;
    struct victim v;
    make(&v);
    uint64_t id = v.chunks[0][0].id, first = v.chunks[0][0].first;
    set_layout(&v, 1, v.epoch, 0, id, first);
    uint8_t bytes[PROTO_TICKET_MAX];
    struct proto_ticket ticket = {.session = banyan_session_id(v.session),
                                  .incarnation = v.incarnation,
                                  .term = term,
                                  .first = first,
                                  .count = CHUNK,
                                  .expires_wall_ns = common_clock_wall_ns() + 60 * COMMON_NS_PER_S};
    Banyan__Pb__ChunkPutRequest put = BANYAN__PB__CHUNK_PUT_REQUEST__INIT;
    put.ticket = (ProtobufCBinaryData){proto_ticket_make(&secret, &ticket, bytes), bytes};
    put.session = ticket.session;
    put.first = first;
    put.count = CHUNK;
    struct common_slice slice[2] = {{context_k(&v.context, 0, first), CHUNK * v.context.k_row},
                                    {context_v(&v.context, 0, first), CHUNK * v.context.v_row}};
    struct proto_tensor_out tensor[2];
    for (int t = 0; t < 2; t++)
        tensor[t] = (struct proto_tensor_out){.dtype = BANYAN__PB__DTYPE__DTYPE_F32,
                                              .n_dims = 3,
                                              .dims = {CHUNK, 2, 32},
                                              .pieces = &slice[t],
                                              .n_pieces = 1};
    banyan_cluster_info info;
    int fd = -1;
    OK(banyan_cluster_get_info(client, &info, ERR));
    for (uint32_t i = 0; i < info.n_workers; i++)
        if (strcmp(info.workers[i].name, "w1") == 0)
            fd = wire_dial(info.workers[i].endpoint);
    banyan_cluster_info_free(&info);
    assert_true(fd >= 0 && wire_hello(fd));
    struct wire_answer answer = call(fd, BANYAN__PB__METHOD__METHOD_CHUNK_PUT, &put.base, tensor, 2);
    if (answer.code != COMMON_OK)
        fail_msg("put: %s", answer.message);
    wire_answer_free(&answer);
    close(fd);
    Banyan__Pb__RowsPrepareRequest prepare = BANYAN__PB__ROWS_PREPARE_REQUEST__INIT;
    prepare.term = term;
    prepare.session = put.session;
    prepare.incarnation = v.incarnation;
    prepare.first = first;
    prepare.count = CHUNK;
    must(edge[1], BANYAN__PB__METHOD__METHOD_ROWS_PREPARE, &prepare.base);
    Banyan__Pb__RowsCommitRequest commit = BANYAN__PB__ROWS_COMMIT_REQUEST__INIT;
    commit.term = term;
    commit.session = put.session;
    commit.incarnation = v.incarnation;
    commit.first = first;
    commit.count = CHUNK;
    must(edge[1], BANYAN__PB__METHOD__METHOD_ROWS_COMMIT, &commit.base);
    FAILS(BANYAN_DATA_LOSS, "COVERAGE", try_step(&v));
    support_drop(v.session, &v.context);
}

// A worker with another epoch than the coordinator's is no part of the answer.
static void an_aged_layout(void **state)
{
    (void)state;
    struct victim v;
    make(&v);
    set_layout(&v, 2, v.epoch + 1, 0, 0, 0);
    banyan_code code = try_step(&v);
    if (code != BANYAN_OK && code != BANYAN_ABORTED && code != BANYAN_DEADLINE_EXCEEDED &&
        code != BANYAN_UNAVAILABLE)
        fail_msg("a step over two epochs: %s: %s", banyan_code_name(code), ERR->message);
    printf("over two epochs: %s\n", banyan_code_name(code));
    support_drop(v.session, &v.context);
}

static int start(void **state)
{
    (void)state;
    banyan_cluster_info info;
    cluster = support_start(&(struct harness_options){.workers = WORKERS});
    harness_cluster_allow_error(cluster, "cannot send a worker its layouts"); // it has a later epoch
    client = support_connect(cluster, "unix");
    assert_int_equal(common_secret_load(harness_cluster_secret_file(cluster), &secret, NULL), COMMON_OK);
    OK(banyan_cluster_get_info(client, &info, ERR));
    term = info.term;
    banyan_cluster_info_free(&info);
    for (uint32_t w = 0; w < WORKERS; w++) {
        char endpoint[300];
        snprintf(endpoint, sizeof(endpoint), "unix://%s/w%u.sock", harness_cluster_dir(cluster), w);
        edge[w] = wire_dial(endpoint);
        assert_true(wire_hello_as(edge[w], BANYAN__PB__ROLE__ROLE_COORDINATOR, &secret));
    }
    return 0;
}

static int stop(void **state)
{
    (void)state;
    for (uint32_t w = 0; w < WORKERS; w++)
        close(edge[w]);
    banyan_disconnect(client);
    support_stop(cluster);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_removed_chunk),
        cmocka_unit_test(a_doubled_chunk),
        cmocka_unit_test(an_aged_layout),
    };
    return cmocka_run_group_tests_name("coverage", tests, start, stop);
}
