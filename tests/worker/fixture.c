// SPDX-License-Identifier: Apache-2.0
#include "tests/worker/fixture.h"

#include <event2/event.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/hash/hash.h"
#include "common/log/log.h"
#include "kernels/reference.h"
#include "proto/rights/ticket.h"

#define PATIENCE (UINT64_C(30) * COMMON_NS_PER_S)

// ---- the cluster --------------------------------------------------------------------------------

bool cluster_wait(struct cluster *c, const bool *flag)
{
    uint64_t deadline = common_clock_after(PATIENCE);
    while (!*flag && common_clock_left(deadline) > 0) {
        struct timeval tick = {0, 50000};
        event_base_loopexit(common_loop_base(c->loop), &tick);
        event_base_loop(common_loop_base(c->loop), EVLOOP_ONCE);
    }
    return *flag;
}

void cluster_start(struct cluster *c, const struct cluster_options *options)
{
    *c = (struct cluster){.n = options->workers ? options->workers : 1, .dir = "/tmp/banyan-worker-XXXXXX"};
    common_log_set_level(COMMON_LOG_ERROR);
    assert_non_null(mkdtemp(c->dir));
    assert_int_equal(common_loop_new(&c->loop), COMMON_OK);
    memset(c->secret.bytes, 0x5a, sizeof c->secret.bytes);
    for (uint32_t i = 0; i < c->n; i++) {
        char name[16], listen[128], edge[128];
        snprintf(name, sizeof name, "w%u", i);
        snprintf(listen, sizeof listen, "unix://%s/p%u", c->dir, i);
        snprintf(edge, sizeof edge, "unix://%s/e%u", c->dir, i);
        struct worker_config config = {.name = name,
                                       .host = "h",
                                       .listen = listen,
                                       .edge_listen = edge,
                                       .secret = c->secret,
                                       .memory_bytes =
                                           options->memory_bytes ? options->memory_bytes : 64 << 20,
                                       .threads = options->threads ? options->threads : 1,
                                       .inline_madds = options->inline_madds,
                                       .bandwidth = 1000000};
        struct common_error err;
        if (worker_new(c->loop, &config, &c->workers[i], &err) != COMMON_OK)
            fail_msg("%s", err.message);
        struct proto_channel_options channel = {.name = "test",
                                                .role = BANYAN__PB__ROLE__ROLE_COORDINATOR,
                                                .secret = &c->secret};
        assert_int_equal(proto_channel_open(c->loop, worker_edge_endpoint(c->workers[i]), &channel,
                                            &c->edges[i], &err),
                         0);
        channel = (struct proto_channel_options){.name = "client", .role = BANYAN__PB__ROLE__ROLE_CLIENT};
        assert_int_equal(
            proto_channel_open(c->loop, worker_endpoint(c->workers[i]), &channel, &c->clients[i], &err), 0);
    }
}

static void set_flag(void *arg)
{
    *(bool *)arg = true;
}

void cluster_kill(struct cluster *c, uint32_t worker)
{
    bool drained = false;
    proto_channel_close(c->edges[worker]);
    proto_channel_close(c->clients[worker]);
    c->edges[worker] = c->clients[worker] = NULL;
    assert_int_equal(worker_drain(c->workers[worker], 0, set_flag, &drained), COMMON_OK);
    assert_true(cluster_wait(c, &drained));
    worker_free(c->workers[worker]);
    c->workers[worker] = NULL;
}

void cluster_stop(struct cluster *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->workers[i])
            cluster_kill(c, i);
    for (int i = 0; i < 20; i++) // what is still to be closed
        event_base_loop(common_loop_base(c->loop), EVLOOP_NONBLOCK);
    common_loop_free(c->loop);
    rmdir(c->dir);
}

static void answered(void *arg, const struct proto_reply *reply)
{
    struct answer *answer = arg;
    answer->done = true;
    answer->code = reply->code;
    snprintf(answer->text, sizeof answer->text, "%s", reply->text);
    if (reply->status && reply->status->n_details > 0) {
        snprintf(answer->reason, sizeof answer->reason, "%s", reply->status->details[0]->reason);
        if (reply->status->details[0]->n_workers > 0)
            snprintf(answer->worker, sizeof answer->worker, "%s", reply->status->details[0]->workers[0]);
    }
    if (reply->code == COMMON_OK && reply->message->body) {
        const ProtobufCMessage *body = reply->message->body;
        size_t bytes = protobuf_c_message_get_packed_size(body);
        uint8_t *packed = malloc(bytes + 1);
        protobuf_c_message_pack(body, packed);
        answer->type = body->descriptor;
        answer->body = protobuf_c_message_unpack(body->descriptor, NULL, bytes, packed);
        free(packed);
    }
}

enum common_code cluster_call(struct cluster *c, struct proto_channel *channel, uint32_t method,
                              const ProtobufCMessage *body, const struct proto_tensor_out *tensors,
                              size_t n_tensors, struct answer *out)
{
    struct answer own = {0}, *answer = out ? out : &own;
    *answer = (struct answer){0};
    struct proto_call call = {.method = method,
                              .body = body,
                              .tensors = tensors,
                              .n_tensors = n_tensors,
                              .deadline_ns = common_clock_after(PATIENCE),
                              .done = answered,
                              .arg = answer};
    uint64_t id;
    struct common_error err;
    if (proto_channel_call(channel, &call, &id, &err) != COMMON_OK)
        fail_msg("%s", err.message);
    assert_true(cluster_wait(c, &answer->done));
    enum common_code code = answer->code;
    if (!out)
        answer_free(&own);
    return code;
}

void cluster_call_begin(struct cluster *c, struct proto_channel *channel, uint32_t method,
                        const ProtobufCMessage *body, struct answer *answer)
{
    struct proto_call call = {.method = method,
                              .body = body,
                              .deadline_ns = common_clock_after(10 * PATIENCE),
                              .done = answered,
                              .arg = answer};
    uint64_t id;
    struct common_error err;
    (void)c;
    if (proto_channel_call(channel, &call, &id, &err) != COMMON_OK)
        fail_msg("%s", err.message);
}

void answer_free(struct answer *answer)
{
    if (answer->body)
        protobuf_c_message_free_unpacked(answer->body, NULL);
    answer->body = NULL;
}

// ---- contents -----------------------------------------------------------------------------------

static float number(uint64_t seed)
{
    return (float)((double)(common_mix64(seed) >> 40) / (double)(1 << 23) - 1.0);
}

void fill_rows(uint32_t layer, uint64_t first, uint32_t count, uint32_t version, float *k, float *v)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t seed = common_mix64((first + i) << 16 | layer << 8 | version);
        for (uint32_t d = 0; d < K_ROW; d++)
            k[i * K_ROW + d] = 2 * number(seed + d);
        for (uint32_t d = 0; d < V_ROW; d++)
            v[i * V_ROW + d] = number(seed + 5000 + d);
    }
}

void fill_q(uint64_t first, uint32_t rows, float *q)
{
    for (uint32_t i = 0; i < rows * Q_HEADS * K_DIM; i++)
        q[i] = 2 * number(first * 7919 + i + 77);
}

// ---- control ------------------------------------------------------------------------------------

void spec_init(Banyan__Pb__Spec *spec)
{
    banyan__pb__spec__init(spec);
    spec->layers = LAYERS;
    spec->q_heads = Q_HEADS;
    spec->kv_heads = KV_HEADS;
    spec->k_dim = K_DIM;
    spec->v_dim = V_DIM;
    spec->kv_type = BANYAN__PB__DTYPE__DTYPE_F32;
    spec->chunk_tokens = TOKENS;
}

enum common_code cluster_layout(struct cluster *c, uint32_t worker, uint64_t session,
                                const struct chunk_place *chunks, size_t n)
{
    Banyan__Pb__Spec spec;
    Banyan__Pb__LayoutChunk list[64], *pointers[64];
    spec_init(&spec);
    for (size_t i = 0; i < n; i++) {
        banyan__pb__layout_chunk__init(&list[i]);
        list[i].chunk = chunks[i].chunk;
        list[i].first = chunks[i].first;
        list[i].compute = true;
        pointers[i] = &list[i];
    }
    Banyan__Pb__LayoutSetRequest request = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    request.term = TERM;
    request.session = session;
    request.incarnation = INCARNATION;
    request.epoch = EPOCH;
    request.spec = &spec;
    request.replace = true;
    request.n_chunks = n;
    request.chunks = pointers;
    return cluster_call(c, c->edges[worker], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &request.base, NULL, 0,
                        NULL);
}

void cluster_layout_ok(struct cluster *c, uint32_t worker, uint64_t session, const struct chunk_place *chunks,
                       size_t n)
{
    assert_int_equal(cluster_layout(c, worker, session, chunks, n), COMMON_OK);
}

void cluster_plan(struct cluster *c, bool chain)
{
    Banyan__Pb__PlanMember members[WORKERS_MAX], *pointers[WORKERS_MAX];
    char names[WORKERS_MAX][16];
    for (uint32_t i = 0; i < c->n; i++) {
        banyan__pb__plan_member__init(&members[i]);
        snprintf(names[i], sizeof names[i], "w%u", i);
        members[i].rank = i;
        members[i].parent = i == 0 ? -1 : chain ? (int32_t)i - 1 : 0;
        members[i].name = names[i];
        members[i].host = "h";
        members[i].edge_endpoint = (char *)worker_edge_endpoint(c->workers[i]);
        pointers[i] = &members[i];
    }
    for (uint32_t i = 0; i < c->n; i++) {
        Banyan__Pb__PlanInstallRequest request = BANYAN__PB__PLAN_INSTALL_REQUEST__INIT;
        request.term = TERM;
        request.plan = PLAN;
        request.epoch = 1;
        request.self_rank = i;
        request.engine = "stream";
        request.n_members = c->n;
        request.members = pointers;
        request.digest = 99;
        assert_int_equal(cluster_call(c, c->edges[i], BANYAN__PB__METHOD__METHOD_PLAN_INSTALL, &request.base,
                                      NULL, 0, NULL),
                         COMMON_OK);
    }
}

enum common_code cluster_put(struct cluster *c, uint32_t worker, uint64_t session, uint32_t layer,
                             uint64_t first, uint32_t count, uint32_t version)
{
    float *k = malloc((size_t)count * K_ROW * sizeof *k), *v = malloc((size_t)count * V_ROW * sizeof *v);
    fill_rows(layer, first, count, version, k, v);
    struct proto_ticket ticket = {.session = session,
                                  .incarnation = INCARNATION,
                                  .term = TERM,
                                  .first = 0,
                                  .count = 1 << 20,
                                  .expires_wall_ns = UINT64_MAX};
    uint8_t bytes[PROTO_TICKET_MAX];
    Banyan__Pb__ChunkPutRequest request = BANYAN__PB__CHUNK_PUT_REQUEST__INIT;
    request.ticket.len = proto_ticket_make(&c->secret, &ticket, bytes);
    request.ticket.data = bytes;
    request.session = session;
    request.layer = layer;
    request.first = first;
    request.count = count;
    struct common_slice pieces[2] = {{k, (size_t)count * K_ROW * sizeof *k},
                                     {v, (size_t)count * V_ROW * sizeof *v}};
    struct proto_tensor_out tensors[2] = {
        {BANYAN__PB__DTYPE__DTYPE_F32, 3, {count, KV_HEADS, K_DIM}, &pieces[0], 1},
        {BANYAN__PB__DTYPE__DTYPE_F32, 3, {count, KV_HEADS, V_DIM}, &pieces[1], 1},
    };
    enum common_code code = cluster_call(c, c->clients[worker], BANYAN__PB__METHOD__METHOD_CHUNK_PUT,
                                         &request.base, tensors, 2, NULL);
    free(k);
    free(v);
    return code;
}

enum common_code cluster_prepare(struct cluster *c, uint32_t worker, uint64_t session, uint32_t layer,
                                 uint64_t first, uint64_t count, struct answer *out)
{
    Banyan__Pb__RowsPrepareRequest request = BANYAN__PB__ROWS_PREPARE_REQUEST__INIT;
    request.term = TERM;
    request.session = session;
    request.incarnation = INCARNATION;
    request.layer = layer;
    request.first = first;
    request.count = count;
    return cluster_call(c, c->edges[worker], BANYAN__PB__METHOD__METHOD_ROWS_PREPARE, &request.base, NULL, 0,
                        out);
}

enum common_code cluster_commit(struct cluster *c, uint32_t worker, uint64_t session, uint32_t layer,
                                uint64_t first, uint64_t count)
{
    Banyan__Pb__RowsCommitRequest request = BANYAN__PB__ROWS_COMMIT_REQUEST__INIT;
    request.term = TERM;
    request.session = session;
    request.incarnation = INCARNATION;
    request.layer = layer;
    request.first = first;
    request.count = count;
    return cluster_call(c, c->edges[worker], BANYAN__PB__METHOD__METHOD_ROWS_COMMIT, &request.base, NULL, 0,
                        NULL);
}

void cluster_attach(struct cluster *c, uint32_t worker, uint64_t session, uint32_t layer, uint64_t first,
                    uint32_t count)
{
    assert_int_equal(cluster_put(c, worker, session, layer, first, count, 0), COMMON_OK);
    assert_int_equal(cluster_prepare(c, worker, session, layer, first, count, NULL), COMMON_OK);
    assert_int_equal(cluster_commit(c, worker, session, layer, first, count), COMMON_OK);
}

// ---- steps --------------------------------------------------------------------------------------

struct proto_step *step_new(uint32_t n_items)
{
    struct proto_step *step = calloc(1, sizeof *step);
    static uint64_t number_of_step;
    step->term = TERM;
    step->plan = PLAN;
    step->plan_epoch = 1;
    step->step = ++number_of_step;
    step->want_trace = true;
    step->deadline_ns = common_clock_after(PATIENCE);
    step->n_items = n_items;
    step->items = calloc(n_items, sizeof *step->items);
    step->appends = calloc(n_items, sizeof *step->appends);
    step->blob = common_blob_new(4 << 20); // q, then k and v at a MiB each
    step->q = step->blob->data;
    step->k = step->blob->data + (2 << 20);
    step->v = step->blob->data + (3 << 20);
    return step;
}

void step_item(struct proto_step *step, uint32_t i, uint64_t session, uint32_t layer, uint64_t first,
               uint32_t rows, const struct chunk_place *chunks, size_t n)
{
    struct proto_step_item *item = &step->items[i];
    struct kernels_coverage cover = {0, 0};
    *item = (struct proto_step_item){.session = session,
                                     .incarnation = INCARNATION,
                                     .epoch = EPOCH,
                                     .layer = layer,
                                     .first = first,
                                     .rows = rows,
                                     .visible = first + rows,
                                     .kv_heads = KV_HEADS,
                                     .q_heads = Q_HEADS,
                                     .v_dim = V_DIM,
                                     .q_offset = step->q_bytes,
                                     .q_bytes = (size_t)rows * Q_HEADS * K_DIM * sizeof(float)};
    for (size_t j = 0; j < n; j++)
        if (chunks[j].first < item->visible)
            kernels_coverage_count(&cover, chunks[j].chunk,
                                   item->visible - chunks[j].first < TOKENS ? item->visible - chunks[j].first
                                                                            : TOKENS,
                                   EPOCH);
    item->cover_tokens = cover.tokens;
    item->cover_sum = cover.sum;
    fill_q(first, rows, (float *)(step->blob->data + step->q_bytes));
    step->q_bytes += item->q_bytes;
}

void step_append(struct proto_step *step, uint32_t i, uint64_t chunk, uint32_t holder, uint64_t write,
                 uint64_t length, uint32_t version)
{
    struct proto_step_item *item = &step->items[i];
    struct proto_append_run *run = &step->appends[step->n_appends];
    *run = (struct proto_append_run){
        .chunk = chunk, .first = item->first, .rows = item->rows, .n_holders = 1, .holders = {holder}};
    item->append_first = step->n_appends++;
    item->n_append = 1;
    item->write = write;
    item->length = length;
    item->cover_appends = item->rows;
    item->k_offset = step->k_bytes;
    item->v_offset = step->v_bytes;
    item->k_bytes = (size_t)item->rows * K_ROW * sizeof(float);
    item->v_bytes = (size_t)item->rows * V_ROW * sizeof(float);
    fill_rows(item->layer, item->first, item->rows, version,
              (float *)(step->blob->data + (2 << 20) + step->k_bytes),
              (float *)(step->blob->data + (3 << 20) + step->v_bytes));
    step->k_bytes += item->k_bytes;
    step->v_bytes += item->v_bytes;
    step->has_kv = true;
}

static void step_answered(void *arg, enum common_code code, const char *text,
                          struct proto_step_result *result)
{
    struct outcome *out = arg;
    out->done = true;
    out->code = code;
    snprintf(out->text, sizeof out->text, "%s", text);
    out->result = result;
}

void cluster_step_begin(struct cluster *c, uint32_t root, const struct proto_step *step, struct outcome *out)
{
    uint64_t call;
    struct common_error err;
    *out = (struct outcome){0};
    if (proto_step_send(c->edges[root], step, step->has_kv, step_answered, out, &call, &err) != COMMON_OK)
        fail_msg("%s", err.message);
}

enum common_code cluster_step(struct cluster *c, uint32_t root, const struct proto_step *step,
                              struct outcome *out)
{
    cluster_step_begin(c, root, step, out);
    assert_true(cluster_wait(c, &out->done));
    return out->code;
}

void outcome_free(struct outcome *out)
{
    proto_step_result_free(out->result);
    out->result = NULL;
}

void assert_exact(const struct proto_step *step, const struct outcome *out, uint32_t i)
{
    const struct proto_step_item *item = &step->items[i];
    uint32_t keys = (uint32_t)item->visible, group = Q_HEADS / KV_HEADS;
    float *k = malloc((size_t)keys * K_ROW * sizeof *k), *v = malloc((size_t)keys * V_ROW * sizeof *v);
    float *head_k = aligned_alloc(64, (size_t)keys * K_DIM * sizeof *k / 64 * 64 + 64);
    float *head_v = aligned_alloc(64, (size_t)keys * V_DIM * sizeof *v / 64 * 64 + 64);
    double *want = malloc((size_t)item->rows * group * V_DIM * sizeof *want);
    struct kernels_reference_row *rows = malloc((size_t)item->rows * group * sizeof *rows);
    struct kernels_spec spec = {.kv_type = KERNELS_KV_F32,
                                .k_dim = K_DIM,
                                .v_dim = V_DIM,
                                .q_heads = Q_HEADS,
                                .kv_heads = KV_HEADS,
                                .scale = 1 / sqrtf(K_DIM)};
    fill_rows(item->layer, 0, keys, 0, k, v);
    assert_int_equal(out->result->items[i].code, COMMON_OK);
    const float *o = out->result->tensors[0], *lse = out->result->tensors[1];
    for (uint32_t j = 0; j < i; j++) {
        o += step->items[j].rows * Q_HEADS * V_DIM;
        lse += step->items[j].rows * Q_HEADS;
    }
    for (uint32_t head = 0; head < KV_HEADS; head++) {
        for (uint32_t r = 0; r < keys; r++) {
            memcpy(head_k + (size_t)r * K_DIM, k + (size_t)r * K_ROW + head * K_DIM, K_DIM * sizeof *k);
            memcpy(head_v + (size_t)r * V_DIM, v + (size_t)r * V_ROW + head * V_DIM, V_DIM * sizeof *v);
        }
        struct kernels_run run = {.k = head_k, .v = head_v, .rows = keys};
        struct kernels_job job = {.spec = &spec,
                                  .kv_head = head,
                                  .rows = item->rows,
                                  .q_first = item->first,
                                  .visible = item->visible,
                                  .q = (const float *)(step->q + item->q_offset) + head * group * K_DIM,
                                  .q_row_stride = Q_HEADS * K_DIM,
                                  .q_head_stride = K_DIM,
                                  .runs = &run,
                                  .run_count = 1};
        kernels_reference(&job, NULL, want, rows);
        for (uint32_t r = 0; r < item->rows; r++) {
            for (uint32_t h = 0; h < group; h++) {
                const struct kernels_reference_row *row = &rows[r * group + h];
                uint32_t at = r * Q_HEADS + head * group + h;
                assert_true(fabs(lse[at] - row->lse) <= kernels_reference_bound_lse(row));
                for (uint32_t d = 0; d < V_DIM; d++)
                    assert_true(fabs(o[at * V_DIM + d] - want[(r * group + h) * V_DIM + d]) <=
                                kernels_reference_bound_o(row));
            }
        }
    }
    free(k);
    free(v);
    free(head_k);
    free(head_v);
    free(want);
    free(rows);
}

// ---- state --------------------------------------------------------------------------------------

char *cluster_state(struct cluster *c, uint32_t worker)
{
    size_t cap = 1 << 16, n = 0;
    char *text = malloc(cap);
    struct answer answer;
    Banyan__Pb__InventoryRequest request = BANYAN__PB__INVENTORY_REQUEST__INIT;
    request.term = TERM;
    assert_int_equal(cluster_call(c, c->edges[worker], BANYAN__PB__METHOD__METHOD_INVENTORY, &request.base,
                                  NULL, 0, &answer),
                     0);
    const Banyan__Pb__InventoryReply *reply = (const Banyan__Pb__InventoryReply *)answer.body;
    for (size_t i = 0; i < reply->n_sessions; i++) {
        const Banyan__Pb__InventorySession *session = reply->sessions[i];
        n += (size_t)snprintf(text + n, cap - n, "session %llx %llu %llu\n",
                              (unsigned long long)session->session, (unsigned long long)session->incarnation,
                              (unsigned long long)session->epoch);
        for (size_t j = 0; j < session->n_chunks; j++) {
            const Banyan__Pb__InventoryChunk *chunk = session->chunks[j];
            n += (size_t)snprintf(text + n, cap - n, " chunk %llu at %llu:", (unsigned long long)chunk->chunk,
                                  (unsigned long long)chunk->first);
            for (size_t l = 0; l < chunk->n_layer_rows; l++) {
                n += (size_t)snprintf(text + n, cap - n, " %u", chunk->layer_rows[l]);
                // Hashes: of committed rows, which preparing again does not change.
                struct answer rows;
                if (chunk->layer_rows[l] == 0 || session->incarnation != INCARNATION)
                    continue;
                assert_int_equal(cluster_prepare(c, worker, session->session, (uint32_t)l, chunk->first,
                                                 chunk->layer_rows[l], &rows),
                                 0);
                const Banyan__Pb__RowsPrepareReply *report = (const Banyan__Pb__RowsPrepareReply *)rows.body;
                for (size_t r = 0; r < report->n_chunks; r++)
                    n += (size_t)snprintf(text + n, cap - n, "/%llx",
                                          (unsigned long long)report->chunks[r]->hash);
                answer_free(&rows);
            }
            n += (size_t)snprintf(text + n, cap - n, "\n");
        }
    }
    answer_free(&answer);
    Banyan__Pb__LayoutSetRequest layout =
        BANYAN__PB__LAYOUT_SET_REQUEST__INIT; // that changes nothing: says what is used
    layout.term = TERM;
    layout.session = SESSION;
    layout.incarnation = INCARNATION;
    layout.epoch = EPOCH;
    assert_int_equal(cluster_call(c, c->edges[worker], BANYAN__PB__METHOD__METHOD_LAYOUT_SET, &layout.base,
                                  NULL, 0, &answer),
                     0);
    snprintf(text + n, cap - n, "used %llu\n",
             (unsigned long long)((const Banyan__Pb__LayoutSetReply *)answer.body)->used_bytes);
    answer_free(&answer);
    return text;
}
