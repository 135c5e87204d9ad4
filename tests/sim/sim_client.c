// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_client.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "proto/status.h"
#include "tests/sim/sim.h"

#define METHOD(name) BANYAN__PB__METHOD__METHOD_##name

enum { Q_HEADS = 2, DIM = 4, ROWS_MAX = 256 };

struct sim_client {
    struct common_loop *loop;
    struct proto_channel *channel;
    struct sim_call *calls;
    uint64_t deadline_ns;
    uint8_t bytes[ROWS_MAX * Q_HEADS * DIM * sizeof(float)]; // copied as a call is made
};

struct sim_client *sim_client_new(const char *coordinator, const char *token)
{
    struct sim_client *client = calloc(1, sizeof *client);
    struct common_error err;
    if (!client || common_loop_new(&client->loop) != COMMON_OK)
        abort();
    sim_loop_name(client->loop, "client");
    client->deadline_ns = 10 * COMMON_NS_PER_S;
    struct proto_channel_options options = {.name = "client",
                                            .role = BANYAN__PB__ROLE__ROLE_CLIENT,
                                            .token = token};
    if (proto_channel_open(client->loop, coordinator, &options, &client->channel, &err) != COMMON_OK) {
        fprintf(stderr, "sim: client: %s\n", err.message);
        abort();
    }
    return client;
}

void sim_client_free(struct sim_client *client)
{
    if (!client)
        return;
    sim_loop_thaw(client->loop);
    proto_channel_close(client->channel);
    common_loop_free(client->loop);
    while (client->calls) {
        struct sim_call *call = client->calls;
        client->calls = call->next;
        assert(call->times == 1);
        free(call);
    }
    free(client);
}

struct common_loop *sim_client_loop(struct sim_client *client)
{
    return client->loop;
}

void sim_client_deadline(struct sim_client *client, uint64_t ns)
{
    client->deadline_ns = ns;
}

// ---- outcomes -------------------------------------------------------------------------------------------

static void take_failure(struct sim_call *call, const Banyan__Pb__Status *status)
{
    struct proto_status plain;
    proto_status_from_pb(status, &plain);
    call->code = plain.code;
    snprintf(call->text, sizeof call->text, "%s", plain.message);
    snprintf(call->reason, sizeof call->reason, "%s", plain.reason);
    call->n_missing = plain.n_ranges;
    call->first_missing = plain.n_ranges ? plain.ranges[0].first : 0;
    call->count_missing = plain.n_ranges ? plain.ranges[0].count : 0;
}

static void take_reply(struct sim_call *call, const ProtobufCMessage *body)
{
    switch (call->method) {
    case METHOD(SESSION_CREATE):
        call->session = ((const Banyan__Pb__SessionCreateReply *)body)->session;
        call->incarnation = ((const Banyan__Pb__SessionCreateReply *)body)->incarnation;
        break;
    case METHOD(SESSION_FORK):
        call->session = ((const Banyan__Pb__SessionForkReply *)body)->session;
        call->incarnation = ((const Banyan__Pb__SessionForkReply *)body)->incarnation;
        break;
    case METHOD(SESSION_TRUNCATE):
        call->incarnation = ((const Banyan__Pb__SessionTruncateReply *)body)->incarnation;
        break;
    case METHOD(SESSION_INFO): {
        const Banyan__Pb__SessionInfoReply *m = (const void *)body;
        call->session = m->session;
        call->incarnation = m->incarnation;
        call->length = m->length;
        call->epoch = m->epoch;
        snprintf(call->state, sizeof call->state, "%s", m->state);
        break;
    }
    case METHOD(CLUSTER_INFO): {
        const Banyan__Pb__ClusterInfoReply *m = (const void *)body;
        for (size_t i = 0; i < m->n_workers; i++)
            call->n_active += strcmp(m->workers[i]->state, "active") == 0;
        break;
    }
    case METHOD(ATTACH_COMMIT):
        call->length = ((const Banyan__Pb__AttachCommitReply *)body)->length;
        break;
    case METHOD(ATTEND): {
        const Banyan__Pb__AttendReply *m = (const void *)body;
        assert(m->n_items == 1);
        call->length = m->items[0]->length;
        if (m->items[0]->status)
            take_failure(call, m->items[0]->status);
        break;
    }
    default:
        break;
    }
}

static void ended(void *arg, const struct proto_reply *reply)
{
    struct sim_call *call = arg;
    call->times++;
    call->done = true;
    call->done_ns = common_clock_ns();
    call->code = reply->code;
    snprintf(call->text, sizeof call->text, "%s", reply->text);
    if (reply->code == COMMON_OK)
        take_reply(call, reply->message->body);
    else if (reply->status)
        take_failure(call, reply->status);
}

static struct sim_call *call_start(struct sim_client *client, uint32_t method, const ProtobufCMessage *body,
                                   const struct proto_tensor_out *tensors, size_t n_tensors)
{
    struct sim_call *call = calloc(1, sizeof *call);
    struct common_error err;
    if (!call)
        abort();
    call->client = client;
    call->method = method;
    call->next = client->calls;
    client->calls = call;
    struct proto_call made = {.method = method,
                              .body = body,
                              .tensors = tensors,
                              .n_tensors = n_tensors,
                              .deadline_ns = common_clock_after(client->deadline_ns),
                              .done = ended,
                              .arg = call};
    enum common_code code = proto_channel_call(client->channel, &made, &call->id, &err);
    if (code != COMMON_OK) {
        struct proto_reply reply = {.code = code, .text = err.message};
        ended(call, &reply);
    }
    return call;
}

void sim_cancel(struct sim_call *call)
{
    if (!call->done)
        proto_channel_cancel(call->client->channel, call->id);
}

// ---- operations -----------------------------------------------------------------------------------------

struct sim_call *sim_create(struct sim_client *client, struct sim_shape shape, const char *name)
{
    Banyan__Pb__Spec spec = BANYAN__PB__SPEC__INIT;
    Banyan__Pb__SessionCreateRequest m = BANYAN__PB__SESSION_CREATE_REQUEST__INIT;
    spec.layers = shape.layers ? shape.layers : 1;
    spec.q_heads = Q_HEADS;
    spec.kv_heads = 1;
    spec.k_dim = spec.v_dim = DIM;
    spec.kv_type = BANYAN__PB__DTYPE__DTYPE_F32;
    spec.chunk_tokens = shape.chunk_tokens ? shape.chunk_tokens : 16;
    spec.members = shape.members;
    m.spec = &spec;
    m.name = (char *)(name ? name : "");
    return call_start(client, METHOD(SESSION_CREATE), &m.base, NULL, 0);
}

struct sim_call *sim_delete(struct sim_client *client, uint64_t session)
{
    Banyan__Pb__SessionDeleteRequest m = BANYAN__PB__SESSION_DELETE_REQUEST__INIT;
    m.session = session;
    return call_start(client, METHOD(SESSION_DELETE), &m.base, NULL, 0);
}

struct sim_call *sim_info(struct sim_client *client, uint64_t session)
{
    Banyan__Pb__SessionInfoRequest m = BANYAN__PB__SESSION_INFO_REQUEST__INIT;
    m.session = session;
    return call_start(client, METHOD(SESSION_INFO), &m.base, NULL, 0);
}

struct sim_call *sim_cluster_info(struct sim_client *client)
{
    Banyan__Pb__ClusterInfoRequest m = BANYAN__PB__CLUSTER_INFO_REQUEST__INIT;
    return call_start(client, METHOD(CLUSTER_INFO), &m.base, NULL, 0);
}

struct sim_call *sim_truncate(struct sim_client *client, uint64_t session, uint64_t length)
{
    Banyan__Pb__SessionTruncateRequest m = BANYAN__PB__SESSION_TRUNCATE_REQUEST__INIT;
    m.session = session;
    m.length = length;
    return call_start(client, METHOD(SESSION_TRUNCATE), &m.base, NULL, 0);
}

struct sim_call *sim_fork(struct sim_client *client, uint64_t session, uint64_t length, const char *name)
{
    Banyan__Pb__SessionForkRequest m = BANYAN__PB__SESSION_FORK_REQUEST__INIT;
    m.session = session;
    m.length = length;
    m.name = (char *)(name ? name : "");
    return call_start(client, METHOD(SESSION_FORK), &m.base, NULL, 0);
}

struct sim_call *sim_open(struct sim_client *client, uint64_t session, uint64_t first, uint64_t count)
{
    Banyan__Pb__AttachOpenRequest m = BANYAN__PB__ATTACH_OPEN_REQUEST__INIT;
    m.session = session;
    m.first = first;
    m.count = count;
    return call_start(client, METHOD(ATTACH_OPEN), &m.base, NULL, 0);
}

struct sim_call *sim_commit(struct sim_client *client, uint64_t session, uint32_t layer, uint64_t first,
                            uint64_t count)
{
    Banyan__Pb__AttachCommitRequest m = BANYAN__PB__ATTACH_COMMIT_REQUEST__INIT;
    m.session = session;
    m.layer = layer;
    m.first = first;
    m.count = count;
    return call_start(client, METHOD(ATTACH_COMMIT), &m.base, NULL, 0);
}

static struct sim_call *attend(struct sim_client *client, Banyan__Pb__AttendItem *item, uint8_t fill)
{
    Banyan__Pb__AttendRequest m = BANYAN__PB__ATTEND_REQUEST__INIT;
    Banyan__Pb__AttendItem *items = item;
    assert(item->rows <= ROWS_MAX);
    memset(client->bytes, fill, sizeof client->bytes);
    m.n_items = 1;
    m.items = &items;
    m.want_lse = true;
    struct common_slice q = {client->bytes, item->rows * Q_HEADS * DIM * sizeof(float)};
    struct common_slice kv = {client->bytes, item->rows * DIM * sizeof(float)};
    struct proto_tensor_out tensors[3];
    for (int i = 0; i < 3; i++) {
        tensors[i] = (struct proto_tensor_out){.dtype = BANYAN__PB__DTYPE__DTYPE_U8,
                                               .n_dims = 1,
                                               .dims = {i ? kv.len : q.len},
                                               .pieces = i ? &kv : &q,
                                               .n_pieces = 1};
    }
    return call_start(client, METHOD(ATTEND), &m.base, tensors, item->append ? 3 : 1);
}

struct sim_call *sim_append(struct sim_client *client, uint64_t session, uint32_t layer, uint64_t first,
                            uint32_t rows, uint8_t fill)
{
    Banyan__Pb__AttendItem item = BANYAN__PB__ATTEND_ITEM__INIT;
    item.session = session;
    item.layer = layer;
    item.first = first;
    item.rows = rows;
    item.append = true;
    return attend(client, &item, fill);
}

struct sim_call *sim_read(struct sim_client *client, uint64_t session, uint32_t layer, uint64_t first,
                          uint32_t rows)
{
    Banyan__Pb__AttendItem item = BANYAN__PB__ATTEND_ITEM__INIT;
    item.session = session;
    item.layer = layer;
    item.first = first;
    item.rows = rows;
    return attend(client, &item, 0);
}
