// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_client.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/core/internal.h"
#include "common/base/clock.h"
#include "proto/rpc/status.h"
#include "proto/sums/rows_sum.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_client_calls.h"
#include "tests/sim/sim_event.h"

enum { Q_HEADS = 2, DIM = 4, DIM_MAX = 64, ROWS_MAX = 1024, SUMS_MAX = 64 };

struct sim_rows { // what a call sends
    struct sim_rows *next;
    float values[];
};

struct sim_client *sim_client_new(const char *coordinator, const char *token)
{
    struct sim_client *client = calloc(1, sizeof *client);
    if (!client || common_loop_new(&client->loop) != COMMON_OK)
        abort();
    snprintf(client->name, sizeof client->name, "client %u", client->loop->number);
    sim_loop_name(client->loop, client->name);
    client->deadline_ns = 10 * COMMON_NS_PER_S;
    client->dim = DIM;
    client->token = token;
    sim_client_direct(client, coordinator);
    return client;
}

void sim_client_direct(struct sim_client *client, const char *coordinator)
{
    struct common_error err;
    uint32_t i = 0;
    while (i < COORDINATORS && client->coordinators[i].channel &&
           strcmp(client->coordinators[i].endpoint, coordinator) != 0)
        i++;
    assert(i < COORDINATORS);
    struct proto_channel_options options = {.name = "client",
                                            .quiet_ns = CLIENT_QUIET_NS,
                                            .mute_ns = CLIENT_MUTE_NS,
                                            .role = BANYAN__PB__ROLE__ROLE_CLIENT,
                                            .token = client->token};
    client->coordinators[i].endpoint = coordinator;
    if (!client->coordinators[i].channel &&
        proto_channel_open(client->loop, coordinator, &options, &client->coordinators[i].channel, &err) !=
            COMMON_OK) {
        fprintf(stderr, "sim: client: %s\n", err.message);
        abort();
    }
    client->channel = client->coordinators[i].channel;
}

void sim_client_one_holder(struct sim_client *client, bool on)
{
    client->one_holder = on;
}

void sim_client_partial(struct sim_client *client, bool on)
{
    client->partial = on;
}

static void opened_free(struct sim_opened *opened)
{
    if (!opened)
        return;
    free(opened->holders);
    free(opened->n_holders);
    free(opened->first);
    free(opened->chunk);
    free(opened);
}

void sim_client_free(struct sim_client *client)
{
    if (!client)
        return;
    sim_loop_thaw(client->loop);
    for (uint32_t i = 0; i < COORDINATORS; i++)
        proto_channel_close(client->coordinators[i].channel);
    for (struct sim_call *call = client->calls; call; call = call->next)
        for (uint32_t i = 0; call->opened && i < HOLDERS_MAX; i++)
            proto_channel_close(call->opened->channels[i]);
    common_loop_free(client->loop);
    while (client->calls) {
        struct sim_call *call = client->calls;
        client->calls = call->next;
        assert(call->times == 1);
        opened_free(call->opened);
        free(call->rows);
        free(call->watched);
        free(call);
    }
    while (client->rows) {
        struct sim_rows *rows = client->rows;
        client->rows = rows->next;
        free(rows);
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

void sim_client_dim(struct sim_client *client, uint32_t dim)
{
    client->dim = dim;
}

// ---- outcomes -------------------------------------------------------------------------------------------

void sim_call_failed(struct sim_call *call, const Banyan__Pb__Status *status)
{
    struct proto_status plain;
    proto_status_from_pb(status, &plain);
    call->code = plain.code;
    snprintf(call->text, sizeof call->text, "%s", plain.message);
    snprintf(call->reason, sizeof call->reason, "%s", proto_reason_name(plain.reason));
    call->n_missing = plain.n_ranges;
    call->first_missing = plain.n_ranges ? plain.ranges[0].first : 0;
    call->count_missing = plain.n_ranges ? plain.ranges[0].count : 0;
}

static void take_opened(struct sim_call *call, const Banyan__Pb__AttachOpenReply *m)
{
    struct sim_opened *opened = calloc(1, sizeof *opened);
    assert(opened && m->ticket.len <= sizeof opened->ticket && m->n_workers <= HOLDERS_MAX);
    memcpy(opened->ticket, m->ticket.data, m->ticket.len);
    opened->ticket_bytes = m->ticket.len;
    opened->n = (uint32_t)m->n_chunks;
    opened->holders = calloc(m->n_chunks + 1, sizeof(*opened->holders));
    opened->first = calloc(m->n_chunks + 1, sizeof(*opened->first));
    opened->chunk = calloc(m->n_chunks + 1, sizeof(*opened->chunk));
    opened->n_holders = calloc(m->n_chunks + 1, sizeof(*opened->n_holders));
    if (!opened->holders || !opened->n_holders || !opened->first || !opened->chunk)
        abort();
    for (size_t i = 0; i < m->n_chunks; i++) {
        assert(m->chunks[i]->n_holders <= COPIES_MAX);
        opened->n_holders[i] = call->client->one_holder ? 1 : (uint32_t)m->chunks[i]->n_holders;
        for (uint32_t k = 0; k < opened->n_holders[i]; k++)
            opened->holders[i][k] = m->chunks[i]->holders[k];
        opened->first[i] = m->chunks[i]->first;
        opened->chunk[i] = m->chunks[i]->chunk;
    }
    for (size_t i = 0; i < m->n_workers; i++) {
        struct proto_channel_options options = {.name = "client",
                                                .role = BANYAN__PB__ROLE__ROLE_CLIENT,
                                                .token = call->client->token};
        struct common_error err;
        if (proto_channel_open(call->client->loop, m->workers[i]->endpoint, &options, &opened->channels[i],
                               &err) != COMMON_OK) {
            fprintf(stderr, "sim: an attach names worker %s at '%s': %s\n", m->workers[i]->name,
                    m->workers[i]->endpoint, err.message);
            abort();
        }
    }
    opened->life_ns = m->life_ns;
    call->opened = opened;
}

uint64_t sim_opened_life(const struct sim_call *opened)
{
    return opened->opened->life_ns;
}

// Nothing is declared to a client that has not asked. The ranges are the last tensor.
static void take_missing(struct sim_call *call, const Banyan__Pb__AttendItemResult *m,
                         const struct proto_message *message)
{
    const uint64_t *words = m->missing ? message->tensors[message->n_tensors - 1].data : NULL;
    assert((call->partial || (!m->missing && !m->seen)) && m->missing <= 16);
    assert(!words || message->tensors[message->n_tensors - 1].bytes == m->missing * 2 * sizeof *words);
    call->seen = m->seen;
    call->n_declared = m->missing;
    for (uint32_t i = 0; i < m->missing; i++) {
        call->missing_first[i] = words[2 * (size_t)i];
        call->missing_count[i] = words[2 * (size_t)i + 1];
    }
}

// The last row's value in the tensor o, which must be the same in all heads and dimensions.
static void take_o(struct sim_call *call, const struct proto_message *message)
{
    size_t n = message->tensors[0].bytes / sizeof(float), row = Q_HEADS * call->client->dim;
    const float *o = message->tensors[0].data;
    assert(message->n_tensors == (call->n_declared ? 3 : 2) && n >= row);
    call->o = o[n - 1];
    call->lse = ((const float *)message->tensors[1].data)[message->tensors[1].bytes / sizeof(float) - 1];
    for (size_t i = n - row; i < n && call->code == COMMON_OK; i++)
        if (!(fabsf(o[i] - call->o) <= 1e-5f * fabsf(call->o) + 1e-6f)) {
            call->code = COMMON_INTERNAL;
            snprintf(call->text, sizeof call->text, "o differs between heads: %g and %g", (double)o[i],
                     (double)call->o);
        }
}

static void take_reply(struct sim_call *call, const struct proto_message *message)
{
    const ProtobufCMessage *body = message->body;
    switch (call->method) {
    case METHOD(SESSION_CREATE):
        call->session = ((const Banyan__Pb__SessionCreateReply *)body)->session;
        call->incarnation = ((const Banyan__Pb__SessionCreateReply *)body)->incarnation;
        call->cut = ((const Banyan__Pb__SessionCreateReply *)body)->cut;
        call->length = ((const Banyan__Pb__SessionCreateReply *)body)->length;
        break;
    case METHOD(SESSION_FORK):
        call->session = ((const Banyan__Pb__SessionForkReply *)body)->session;
        call->incarnation = ((const Banyan__Pb__SessionForkReply *)body)->incarnation;
        call->cut = ((const Banyan__Pb__SessionForkReply *)body)->cut;
        break;
    case METHOD(SESSION_TRUNCATE):
        call->incarnation = ((const Banyan__Pb__SessionTruncateReply *)body)->incarnation;
        call->cut = ((const Banyan__Pb__SessionTruncateReply *)body)->cut;
        break;
    case METHOD(SESSION_OPEN):
    case METHOD(SESSION_INFO): {
        const Banyan__Pb__SessionInfoReply *m = (const void *)body;
        call->session = m->session;
        call->incarnation = m->incarnation;
        call->cut = m->cut;
        call->length = m->length;
        call->epoch = m->epoch;
        snprintf(call->state, sizeof call->state, "%s", m->state);
        break;
    }
    case METHOD(CLUSTER_INFO): {
        const Banyan__Pb__ClusterInfoReply *m = (const void *)body;
        for (size_t i = 0; i < m->n_workers; i++) {
            unsigned number = (unsigned)strtoul(m->workers[i]->name + 1, NULL, 10); // "w3"
            call->n_active += strcmp(m->workers[i]->state, "active") == 0;
            if (number < sizeof call->workers / sizeof *call->workers)
                snprintf(call->workers[number], sizeof *call->workers, "%s", m->workers[i]->state);
        }
        break;
    }
    case METHOD(ATTACH_OPEN):
    case METHOD(READ_OPEN):
        take_opened(call, (const void *)body);
        break;
    case METHOD(SCRUB): {
        const Banyan__Pb__ScrubReply *m = (const void *)body;
        call->sealed = m->chunks;
        call->unchecked = m->left;
        call->unsealed = m->unsealed;
        call->lost = m->lost;
        call->corrupt = m->corrupt;
        call->disputed = m->disputed;
        call->differ = m->differ;
        break;
    }
    case METHOD(ATTACH_COMMIT):
        call->length = ((const Banyan__Pb__AttachCommitReply *)body)->length;
        break;
    case METHOD(ATTEND): {
        const Banyan__Pb__AttendReply *m = (const void *)body;
        assert(m->n_items == 1);
        call->length = m->items[0]->length;
        call->told = true;
        if (m->items[0]->status)
            sim_call_failed(call, m->items[0]->status);
        if (m->items[0]->status)
            break;
        call->digest = m->items[0]->plan_digest;
        take_missing(call, m->items[0], message);
        take_o(call, message);
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
        call->take(call, reply->message);
    else if (reply->status)
        sim_call_failed(call, reply->status);
}

struct sim_call *sim_call_new(struct sim_client *client, uint32_t method)
{
    struct sim_call *call = calloc(1, sizeof *call);
    if (!call)
        abort();
    call->client = client;
    call->method = method;
    call->next = client->calls;
    client->calls = call;
    return call;
}

struct sim_call *sim_call_start(struct sim_client *client, uint32_t method, const ProtobufCMessage *body,
                                const struct proto_tensor_out *tensors, size_t n_tensors,
                                sim_take_reply_fn take)
{
    struct sim_call *call = sim_call_new(client, method);
    call->take = take;
    call->deadline_ns = common_clock_after(client->deadline_ns);
    struct common_error err;
    struct proto_call made = {.method = method,
                              .body = body,
                              .tensors = tensors,
                              .n_tensors = n_tensors,
                              .deadline_ns = call->deadline_ns,
                              .done = ended,
                              .arg = call};
    call->channel = client->channel;
    enum common_code code = proto_channel_call(client->channel, &made, &call->id, &err);
    if (code != COMMON_OK) {
        struct proto_reply reply = {.code = code, .text = err.message};
        ended(call, &reply);
    }
    return call;
}

static struct sim_call *call_start(struct sim_client *client, uint32_t method, const ProtobufCMessage *body,
                                   const struct proto_tensor_out *tensors, size_t n_tensors)
{
    return sim_call_start(client, method, body, tensors, n_tensors, take_reply);
}

void sim_cancel(struct sim_call *call)
{
    if (!call->done && call->channel) // else it consists of others
        proto_channel_cancel(call->channel, call->id);
}

// ---- operations -----------------------------------------------------------------------------------------

// A kind a layer.
static void kinds_of(const struct sim_client *client, const struct sim_shape *shape,
                     Banyan__Pb__LayerKind *kinds, Banyan__Pb__LayerKind **pointers, uint32_t *layer_kind)
{
    assert(shape->layers <= LAYERS_MAX);
    for (uint32_t l = 0; l < shape->layers; l++) {
        kinds[l] = (Banyan__Pb__LayerKind)BANYAN__PB__LAYER_KIND__INIT;
        kinds[l].q_heads = Q_HEADS;
        kinds[l].kv_heads = 1;
        kinds[l].k_dim = kinds[l].v_dim = client->dim;
        kinds[l].window = shape->masks[l].window;
        kinds[l].mask_chunk = shape->masks[l].mask_chunk;
        kinds[l].not_causal = shape->masks[l].not_causal;
        pointers[l] = &kinds[l];
        layer_kind[l] = l;
    }
}

struct sim_call *sim_create_as(struct sim_client *client, struct sim_shape shape, const char *name,
                               uint64_t key)
{
    Banyan__Pb__Spec spec = BANYAN__PB__SPEC__INIT;
    Banyan__Pb__SessionCreateRequest m = BANYAN__PB__SESSION_CREATE_REQUEST__INIT;
    Banyan__Pb__LayerKind kinds[LAYERS_MAX], *pointers[LAYERS_MAX];
    uint32_t layer_kind[LAYERS_MAX];
    spec.layers = shape.layers ? shape.layers : 1;
    spec.forget = shape.forget;
    if (shape.masks) {
        kinds_of(client, &shape, kinds, pointers, layer_kind);
        spec.n_kinds = spec.n_layer_kind = shape.layers;
        spec.kinds = pointers;
        spec.layer_kind = layer_kind;
    } else {
        spec.q_heads = Q_HEADS;
        spec.kv_heads = 1;
        spec.k_dim = spec.v_dim = client->dim;
    }
    spec.kv_type = BANYAN__PB__DTYPE__DTYPE_F32;
    spec.chunk_tokens = shape.chunk_tokens ? shape.chunk_tokens : 16;
    spec.members = shape.members;
    spec.replicas = shape.replicas == 9 ? 0 : shape.replicas ? shape.replicas : 1;
    m.spec = &spec;
    m.name = (char *)(name ? name : "");
    m.key = key;
    m.floor = shape.floor;
    return call_start(client, METHOD(SESSION_CREATE), &m.base, NULL, 0);
}

struct sim_call *sim_create(struct sim_client *client, struct sim_shape shape, const char *name)
{
    return sim_create_as(client, shape, name, 0);
}

struct sim_call *sim_create_once(struct sim_client *client, uint64_t key, const char *name)
{
    return sim_create_as(client, (struct sim_shape){0}, name, key);
}

struct sim_call *sim_delete(struct sim_client *client, uint64_t session)
{
    Banyan__Pb__SessionDeleteRequest m = BANYAN__PB__SESSION_DELETE_REQUEST__INIT;
    m.session = session;
    return call_start(client, METHOD(SESSION_DELETE), &m.base, NULL, 0);
}

struct sim_call *sim_drain(struct sim_client *client, const char *worker, bool resume)
{
    Banyan__Pb__WorkerDrainRequest m = BANYAN__PB__WORKER_DRAIN_REQUEST__INIT;
    m.worker = (char *)worker;
    m.reason = (char *)"the test says so";
    m.resume = resume;
    return call_start(client, METHOD(WORKER_DRAIN), &m.base, NULL, 0);
}

struct sim_call *sim_rebalance(struct sim_client *client, bool dry_run)
{
    Banyan__Pb__RebalanceRequest m = BANYAN__PB__REBALANCE_REQUEST__INIT;
    m.dry_run = dry_run;
    return call_start(client, METHOD(REBALANCE), &m.base, NULL, 0);
}

struct sim_call *sim_scrub(struct sim_client *client, uint64_t session, bool ask)
{
    Banyan__Pb__ScrubRequest m = BANYAN__PB__SCRUB_REQUEST__INIT;
    m.session = session;
    m.ask = ask;
    return call_start(client, METHOD(SCRUB), &m.base, NULL, 0);
}

struct sim_call *sim_info(struct sim_client *client, uint64_t session)
{
    Banyan__Pb__SessionInfoRequest m = BANYAN__PB__SESSION_INFO_REQUEST__INIT;
    m.session = session;
    return call_start(client, METHOD(SESSION_INFO), &m.base, NULL, 0);
}

struct sim_call *sim_find(struct sim_client *client, const char *name)
{
    Banyan__Pb__SessionOpenRequest m = BANYAN__PB__SESSION_OPEN_REQUEST__INIT;
    m.name = (char *)name;
    return call_start(client, METHOD(SESSION_OPEN), &m.base, NULL, 0);
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

struct sim_call *sim_truncate_after(struct sim_client *client, uint64_t session, uint64_t length,
                                    uint64_t after, uint64_t cut)
{
    Banyan__Pb__SessionTruncateRequest m = BANYAN__PB__SESSION_TRUNCATE_REQUEST__INIT;
    m.session = session;
    m.length = length;
    m.after = after;
    m.cut = cut;
    return call_start(client, METHOD(SESSION_TRUNCATE), &m.base, NULL, 0);
}

struct sim_call *sim_settle(struct sim_client *client, uint64_t session, uint64_t after, uint64_t cut)
{
    Banyan__Pb__SessionTruncateRequest m = BANYAN__PB__SESSION_TRUNCATE_REQUEST__INIT;
    m.session = session;
    m.length = UINT64_MAX;
    m.after = after;
    m.cut = cut;
    m.settle = true;
    return call_start(client, METHOD(SESSION_TRUNCATE), &m.base, NULL, 0);
}

struct sim_call *sim_fork_as(struct sim_client *client, uint64_t session, uint64_t length, const char *name,
                             uint64_t key)
{
    Banyan__Pb__SessionForkRequest m = BANYAN__PB__SESSION_FORK_REQUEST__INIT;
    m.session = session;
    m.length = length;
    m.name = (char *)(name ? name : "");
    m.key = key;
    return call_start(client, METHOD(SESSION_FORK), &m.base, NULL, 0);
}

struct sim_call *sim_fork(struct sim_client *client, uint64_t session, uint64_t length, const char *name)
{
    return sim_fork_as(client, session, length, name, 0);
}

struct sim_call *sim_fork_once(struct sim_client *client, uint64_t key, uint64_t session, uint64_t length)
{
    return sim_fork_as(client, session, length, "", key);
}

struct sim_call *sim_open(struct sim_client *client, uint64_t session, uint64_t first, uint64_t count)
{
    Banyan__Pb__AttachOpenRequest m = BANYAN__PB__ATTACH_OPEN_REQUEST__INIT;
    m.session = session;
    m.first = first;
    m.count = count;
    struct sim_call *call = call_start(client, METHOD(ATTACH_OPEN), &m.base, NULL, 0);
    call->asked = session;
    return call;
}

struct sim_call *sim_read_open(struct sim_client *client, uint64_t session, uint64_t first, uint64_t count)
{
    Banyan__Pb__ReadOpenRequest m = BANYAN__PB__READ_OPEN_REQUEST__INIT;
    m.session = session;
    m.first = first;
    m.count = count;
    struct sim_call *call = call_start(client, METHOD(READ_OPEN), &m.base, NULL, 0);
    call->asked = session;
    return call;
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

struct sim_call *sim_commit_rows(struct sim_client *client, uint64_t session, uint32_t layer, uint64_t first,
                                 uint64_t count, const float *values, uint32_t chunk_tokens)
{
    Banyan__Pb__AttachCommitRequest m = BANYAN__PB__ATTACH_COMMIT_REQUEST__INIT;
    Banyan__Pb__RowsSum sums[SUMS_MAX], *pointers[SUMS_MAX];
    m.session = session;
    m.layer = layer;
    m.first = first;
    m.count = count;
    m.sums = pointers;
    for (uint64_t at = first, n; at < first + count; at += n) {
        n = chunk_tokens - at % chunk_tokens;
        n = n < first + count - at ? n : first + count - at;
        assert(m.n_sums < SUMS_MAX);
        Banyan__Pb__RowsSum *sum = pointers[m.n_sums] = &sums[m.n_sums];
        m.n_sums++;
        *sum = (Banyan__Pb__RowsSum)BANYAN__PB__ROWS_SUM__INIT;
        sum->first = at;
        sum->count = n;
        for (uint64_t i = 0; i < n; i++)
            for (enum proto_rows_part part = PROTO_ROWS_K; part <= PROTO_ROWS_V; part++) {
                float row[DIM_MAX];
                assert(client->dim <= DIM_MAX);
                for (uint32_t k = 0; k < client->dim; k++)
                    row[k] = part == PROTO_ROWS_K ? 1 : values[at + i - first];
                sum->sum += proto_rows_sum(&(struct proto_rows_piece){.data = row,
                                                                      .len = client->dim * sizeof *row,
                                                                      .part = part,
                                                                      .heads = 1,
                                                                      .first = at + i,
                                                                      .count = 1});
            }
    }
    return call_start(client, METHOD(ATTACH_COMMIT), &m.base, NULL, 0);
}

// Tensors of so many rows, whose bytes the client keeps: a call borrows them until its reply. values: of each
// row; NULL: all have `value`.
static void tensors_of(struct sim_client *client, uint32_t rows, const float *values, float value,
                       struct common_slice slices[3], struct proto_tensor_out tensors[3])
{
    assert(rows > 0 && rows <= ROWS_MAX);
    const uint32_t dim = client->dim;
    struct sim_rows *kept = malloc(sizeof *kept + rows * (Q_HEADS + 2) * dim * sizeof(float));
    if (!kept)
        abort();
    kept->next = client->rows;
    client->rows = kept;
    float *q = kept->values, *k = q + rows * Q_HEADS * dim, *v = k + rows * dim;
    for (uint32_t i = 0; i < rows * Q_HEADS * dim; i++)
        q[i] = 1;
    for (uint32_t i = 0; i < rows * dim; i++) {
        k[i] = 1;
        v[i] = values ? values[i / dim] : value;
    }
    slices[0] = (struct common_slice){q, rows * Q_HEADS * dim * sizeof(float)};
    slices[1] = (struct common_slice){k, rows * dim * sizeof(float)};
    slices[2] = (struct common_slice){v, rows * dim * sizeof(float)};
    for (int i = 0; i < 3; i++)
        tensors[i] = (struct proto_tensor_out){.dtype = BANYAN__PB__DTYPE__DTYPE_U8,
                                               .n_dims = 1,
                                               .dims = {slices[i].len},
                                               .pieces = &slices[i],
                                               .n_pieces = 1};
}

static struct sim_call *attend(struct sim_client *client, Banyan__Pb__AttendItem *item, const float *values,
                               float value)
{
    Banyan__Pb__AttendRequest m = BANYAN__PB__ATTEND_REQUEST__INIT;
    struct common_slice slices[3];
    struct proto_tensor_out tensors[3];
    tensors_of(client, item->rows, values, value, slices, tensors);
    m.n_items = 1;
    m.items = &item;
    m.want_lse = true;
    item->allow_partial = client->partial;
    struct sim_call *call = call_start(client, METHOD(ATTEND), &m.base, tensors, item->append ? 3 : 1);
    call->partial = client->partial;
    return call;
}

struct sim_call *sim_append(struct sim_client *client, uint64_t session, uint32_t layer, uint64_t first,
                            uint32_t rows, float value)
{
    Banyan__Pb__AttendItem item = BANYAN__PB__ATTEND_ITEM__INIT;
    item.session = session;
    item.layer = layer;
    item.first = first;
    item.rows = rows;
    item.append = true;
    return attend(client, &item, NULL, value);
}

struct sim_call *sim_append_rows(struct sim_client *client, uint64_t session, uint64_t incarnation,
                                 uint32_t layer, uint64_t first, uint32_t rows, const float *values)
{
    Banyan__Pb__AttendItem item = BANYAN__PB__ATTEND_ITEM__INIT;
    item.session = session;
    item.incarnation = incarnation;
    item.layer = layer;
    item.first = first;
    item.rows = rows;
    item.append = true;
    return attend(client, &item, values, 0);
}

struct sim_call *sim_read(struct sim_client *client, uint64_t session, uint32_t layer, uint64_t first,
                          uint32_t rows)
{
    return sim_read_below(client, session, layer, first, rows, 0);
}

struct sim_call *sim_read_below(struct sim_client *client, uint64_t session, uint32_t layer, uint64_t first,
                                uint32_t rows, uint64_t visible)
{
    Banyan__Pb__AttendItem item = BANYAN__PB__ATTEND_ITEM__INIT;
    item.session = session;
    item.layer = layer;
    item.first = first;
    item.rows = rows;
    item.visible = visible;
    return attend(client, &item, NULL, 0);
}

// ---- puts -----------------------------------------------------------------------------------------------

static void put_ended(void *arg, const struct proto_reply *reply)
{
    struct sim_call *call = arg;
    if (reply->code != COMMON_OK && call->code == COMMON_OK) {
        call->code = reply->code;
        snprintf(call->text, sizeof call->text, "%s", reply->text);
        if (reply->status)
            sim_call_failed(call, reply->status);
    }
    if (--call->left > 0)
        return;
    call->times++;
    call->done = true;
    call->done_ns = common_clock_ns();
}

static struct sim_call *put(struct sim_client *client, const struct sim_call *opened, uint32_t layer,
                            uint64_t first, uint64_t count, const float *values, float value)
{
    const struct sim_opened *o = opened->opened;
    struct sim_call *call = sim_call_new(client, METHOD(CHUNK_PUT));
    assert(o && count > 0);
    call->left = 1;
    for (uint32_t i = 0; i < o->n; i++) {
        uint64_t end = i + 1 < o->n ? o->first[i + 1] : UINT64_MAX,
                 from = first > o->first[i] ? first : o->first[i],
                 to = first + count < end ? first + count : end;
        if (from >= to)
            continue;
        struct common_slice slices[3];
        struct proto_tensor_out tensors[3];
        struct common_error err;
        Banyan__Pb__ChunkPutRequest m = BANYAN__PB__CHUNK_PUT_REQUEST__INIT;
        m.ticket = (ProtobufCBinaryData){o->ticket_bytes, (uint8_t *)o->ticket};
        m.session = opened->asked;
        m.layer = layer;
        m.first = from;
        m.count = to - from;
        tensors_of(client, (uint32_t)m.count, values ? values + (from - first) : NULL, value, slices,
                   tensors);
        struct proto_call made = {.method = METHOD(CHUNK_PUT),
                                  .body = &m.base,
                                  .tensors = tensors + 1,
                                  .n_tensors = 2,
                                  .deadline_ns = common_clock_after(client->deadline_ns),
                                  .done = put_ended,
                                  .arg = call};
        for (uint32_t k = 0; k < o->n_holders[i]; k++) {
            call->left++;
            enum common_code code = proto_channel_call(o->channels[o->holders[i][k]], &made, NULL, &err);
            if (code != COMMON_OK)
                put_ended(call, &(struct proto_reply){.code = code, .text = err.message});
        }
    }
    put_ended(call, &(struct proto_reply){.code = COMMON_OK, .text = ""});
    return call;
}

struct sim_call *sim_put(struct sim_client *client, const struct sim_call *opened, uint32_t layer,
                         uint64_t first, uint64_t count, float value)
{
    return put(client, opened, layer, first, count, NULL, value);
}

struct sim_call *sim_put_rows(struct sim_client *client, const struct sim_call *opened, uint32_t layer,
                              uint64_t first, uint64_t count, const float *values)
{
    return put(client, opened, layer, first, count, values, 0);
}
