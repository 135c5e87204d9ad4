// SPDX-License-Identifier: Apache-2.0
// Sessions: making, opening and ending them; their spec.
#include "client/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/quantise.h"
#include "common/random.h"
#include "common/secret.h"
#include "proto/kv.h"

#define CHUNK_TOKENS 256

_Static_assert((int)BANYAN_F32 == BANYAN__PB__DTYPE__DTYPE_F32 &&
                   (int)BANYAN_F16 == BANYAN__PB__DTYPE__DTYPE_F16 &&
                   (int)BANYAN_BF16 == BANYAN__PB__DTYPE__DTYPE_BF16 &&
                   (int)BANYAN_INT8 == BANYAN__PB__DTYPE__DTYPE_INT8 &&
                   (int)BANYAN_FP8 == BANYAN__PB__DTYPE__DTYPE_FP8_E4M3,
               "callers and the wire number KV types alike");

bool banyan_kv_scaled(banyan_kv_type type)
{
    return proto_kv_scaled((uint32_t)type);
}

banyan_code banyan_quantise(banyan_kv_type type, const float *x, size_t rows, uint32_t dim, void *codes,
                            float *scales)
{
    if (!banyan_kv_scaled(type))
        return BANYAN_INVALID_ARGUMENT;
    for (size_t i = 0; i < rows; i++)
        scales[i] = type == BANYAN_INT8 ? common_quantise_int8(x + i * dim, dim, (int8_t *)codes + i * dim)
                                        : common_quantise_fp8(x + i * dim, dim, (uint8_t *)codes + i * dim);
    return BANYAN_OK;
}

static banyan_code copy_floats(const float *from, size_t n, const float **out)
{
    *out = NULL;
    if (n == 0)
        return BANYAN_OK;
    float *copy = malloc(n * sizeof *copy);
    if (!copy)
        return BANYAN_RESOURCE_EXHAUSTED;
    memcpy(copy, from, n * sizeof *copy);
    *out = copy;
    return BANYAN_OK;
}

static void spec_free(banyan_spec *spec)
{
    free((float *)spec->alibi);
    free((float *)spec->sinks);
}

static bool within(uint32_t value, uint32_t max)
{
    return value >= 1 && value <= max;
}

banyan_code client_spec_from_pb(const Banyan__Pb__Spec *pb, banyan_spec *out, banyan_error *error)
{
    if (!pb || !within(pb->layers, PROTO_LAYERS_MAX) || !within(pb->q_heads, PROTO_KV_HEADS_MAX) ||
        !proto_kv_row_bytes(pb->kv_type, pb->kv_heads, pb->k_dim) ||
        !proto_kv_row_bytes(pb->kv_type, pb->kv_heads, pb->v_dim) ||
        (pb->n_alibi != 0 && pb->n_alibi != pb->q_heads) || (pb->n_sinks != 0 && pb->n_sinks != pb->q_heads))
        return client_error_set(error, BANYAN_INTERNAL, "the coordinator sent an invalid session spec");
    banyan_spec spec = {
        .layers = pb->layers,
        .q_heads = pb->q_heads,
        .kv_heads = pb->kv_heads,
        .k_dim = pb->k_dim,
        .v_dim = pb->v_dim,
        .kv_type = (banyan_kv_type)pb->kv_type,
        .scale = pb->scale != 0 ? pb->scale : 1.0f / sqrtf((float)pb->k_dim),
        .soft_cap = pb->soft_cap,
        .window = pb->window,
        .chunk_tokens = pb->chunk_tokens ? pb->chunk_tokens : CHUNK_TOKENS,
        .members = pb->members,
        .idle_ttl_ns = pb->idle_ttl_ns,
    };
    if (copy_floats(pb->alibi, pb->n_alibi, &spec.alibi) != BANYAN_OK ||
        copy_floats(pb->sinks, pb->n_sinks, &spec.sinks) != BANYAN_OK) {
        spec_free(&spec);
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    }
    *out = spec;
    return BANYAN_OK;
}

// The request borrows from the caller's spec.
static void spec_to_pb(const banyan_spec *spec, Banyan__Pb__Spec *pb)
{
    banyan__pb__spec__init(pb);
    pb->layers = spec->layers;
    pb->q_heads = spec->q_heads;
    pb->kv_heads = spec->kv_heads;
    pb->k_dim = spec->k_dim;
    pb->v_dim = spec->v_dim;
    pb->kv_type = (Banyan__Pb__Dtype)spec->kv_type;
    pb->scale = spec->scale;
    pb->soft_cap = spec->soft_cap;
    pb->window = spec->window;
    pb->chunk_tokens = spec->chunk_tokens;
    pb->members = spec->members;
    pb->idle_ttl_ns = spec->idle_ttl_ns;
    if (spec->alibi) {
        pb->n_alibi = spec->q_heads;
        pb->alibi = (float *)spec->alibi;
    }
    if (spec->sinks) {
        pb->n_sinks = spec->q_heads;
        pb->sinks = (float *)spec->sinks;
    }
}

struct created {
    struct banyan_client *client;
    const Banyan__Pb__Spec *spec; // NULL: the reply carries it
    struct banyan_session *session;
};

static banyan_code make(struct created *created, uint64_t id, uint64_t incarnation,
                        const Banyan__Pb__Spec *spec, banyan_error *error)
{
    if (id == 0)
        return client_error_set(error, BANYAN_INTERNAL, "the coordinator made a session without an id");
    struct banyan_session *session = calloc(1, sizeof *session);
    if (!session)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    banyan_code code = client_spec_from_pb(spec, &session->spec, error);
    if (code != BANYAN_OK) {
        free(session);
        return code;
    }
    const banyan_spec *s = &session->spec;
    session->q_row = (size_t)s->q_heads * s->k_dim * sizeof(float);
    session->o_row = (size_t)s->q_heads * s->v_dim * sizeof(float);
    session->lse_row = (size_t)s->q_heads * sizeof(float);
    session->k_row = proto_kv_row_bytes((uint32_t)s->kv_type, s->kv_heads, s->k_dim);
    session->v_row = proto_kv_row_bytes((uint32_t)s->kv_type, s->kv_heads, s->v_dim);
    session->scale_row = banyan_kv_scaled(s->kv_type) ? s->kv_heads * sizeof(float) : 0;
    session->id = id;
    atomic_store(&session->incarnation, incarnation);
    session->client = created->client;
    client_sums_init(&session->sums, s->layers);
    atomic_fetch_add(&created->client->refs, 1);
    created->session = session;
    return BANYAN_OK;
}

static banyan_code take_created(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    struct created *created = arg;
    const Banyan__Pb__SessionCreateReply *reply = (const Banyan__Pb__SessionCreateReply *)body;
    return make(created, reply->session, reply->incarnation, created->spec, error);
}

// Of one call of the application's: however often it is sent, it makes one session.
static banyan_code draw_key(uint64_t *key, banyan_error *error)
{
    do
        if (!common_random(key, sizeof *key))
            return client_error_set(error, BANYAN_INTERNAL, "the system gives no random numbers");
    while (*key == 0);
    return BANYAN_OK;
}

banyan_code banyan_session_create(banyan_client *client, const banyan_spec *spec, const char *name,
                                  banyan_session **out, banyan_error *error)
{
    if (!spec || !out)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "spec or out is NULL");
    // The coordinator checks values; here only what the arrays' lengths rest on.
    if ((spec->alibi || spec->sinks) && !within(spec->q_heads, PROTO_KV_HEADS_MAX))
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "q_heads is %u: must be 1 to %u",
                                spec->q_heads, PROTO_KV_HEADS_MAX);
    if (proto_kv_element_bytes((uint32_t)spec->kv_type) == 0)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT,
                                "kv_type %d is not one of BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_INT8, "
                                "BANYAN_FP8",
                                (int)spec->kv_type);
    Banyan__Pb__Spec pb;
    spec_to_pb(spec, &pb);
    Banyan__Pb__SessionCreateRequest request = BANYAN__PB__SESSION_CREATE_REQUEST__INIT;
    request.spec = &pb;
    request.name = (char *)(name ? name : "");
    struct created created = {.client = client, .spec = &pb};
    banyan_code code = draw_key(&request.key, error);
    if (code == BANYAN_OK)
        code = client_unary(client, BANYAN__PB__METHOD__METHOD_SESSION_CREATE, &request.base, true, 0,
                            take_created, &created, error);
    if (code == BANYAN_OK)
        *out = created.session;
    return code;
}

static banyan_code take_opened(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    const Banyan__Pb__SessionInfoReply *reply = (const Banyan__Pb__SessionInfoReply *)body;
    return make(arg, reply->session, reply->incarnation, reply->spec, error);
}

banyan_code banyan_session_open(banyan_client *client, uint64_t id, const char *name, banyan_session **out,
                                banyan_error *error)
{
    if (!out || (id == 0 && (!name || !*name)))
        return client_error_set(error, BANYAN_INVALID_ARGUMENT,
                                "give an id or a name; session must not be NULL");
    Banyan__Pb__SessionOpenRequest request = BANYAN__PB__SESSION_OPEN_REQUEST__INIT;
    request.session = id;
    if (id == 0)
        request.name = (char *)name;
    struct created created = {.client = client};
    banyan_code code = client_unary(client, BANYAN__PB__METHOD__METHOD_SESSION_OPEN, &request.base, true, 0,
                                    take_opened, &created, error);
    if (code == BANYAN_OK)
        *out = created.session;
    return code;
}

#define CLOSE_TIMEOUT_NS COMMON_NS_PER_S // nobody waits long for a goodbye

struct goodbye {
    struct client_call call;
    Banyan__Pb__SessionCloseRequest request;
};

static void on_goodbye_done(struct client_call *call, banyan_code code, const struct proto_message *message,
                            const banyan_error *error)
{
    (void)code;
    (void)message;
    (void)error;
    free(call);
}

static void say_goodbye(void *arg)
{
    client_call_start(arg);
}

// In a callback nothing may block: the word goes out, and nobody waits for the answer.
static void close_from_callback(struct banyan_session *session)
{
    struct goodbye *goodbye = calloc(1, sizeof *goodbye);
    if (!goodbye)
        return;
    banyan__pb__session_close_request__init(&goodbye->request);
    goodbye->request.session = session->id;
    goodbye->call = (struct client_call){
        .client = session->client,
        .method = BANYAN__PB__METHOD__METHOD_SESSION_CLOSE,
        .body = &goodbye->request.base,
        .deadline_ns = common_clock_after(CLOSE_TIMEOUT_NS),
        .done = on_goodbye_done,
    };
    say_goodbye(&goodbye->call);
}

void banyan_session_close(banyan_session *session)
{
    if (!session)
        return;
    struct banyan_client *client = session->client;
    if (!atomic_load(&client->closing)) {
        Banyan__Pb__SessionCloseRequest request = BANYAN__PB__SESSION_CLOSE_REQUEST__INIT;
        request.session = session->id;
        if (common_loop_is_owner(client->loop))
            close_from_callback(session);
        else
            client_unary(client, BANYAN__PB__METHOD__METHOD_SESSION_CLOSE, &request.base, false,
                         CLOSE_TIMEOUT_NS, NULL, NULL, NULL);
    }
    client_tickets_free(session);
    client_sums_fini(&session->sums);
    spec_free(&session->spec);
    free(session);
    client_unref(client);
}

static banyan_code check_session(const banyan_session *session, banyan_error *error)
{
    return session ? BANYAN_OK : client_error_set(error, BANYAN_INVALID_ARGUMENT, "the session is NULL");
}

banyan_code banyan_session_delete(banyan_session *session, banyan_error *error)
{
    banyan_code code = check_session(session, error);
    if (code != BANYAN_OK)
        return code;
    Banyan__Pb__SessionDeleteRequest request = BANYAN__PB__SESSION_DELETE_REQUEST__INIT;
    request.session = session->id;
    return client_unary(session->client, BANYAN__PB__METHOD__METHOD_SESSION_DELETE, &request.base, true, 0,
                        NULL, NULL, error);
}

uint64_t banyan_session_id(const banyan_session *session)
{
    return session->id;
}

const banyan_spec *banyan_session_spec(const banyan_session *session)
{
    return &session->spec;
}

static banyan_code take_truncated(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    (void)error;
    struct banyan_session *session = arg;
    atomic_store(&session->incarnation, ((const Banyan__Pb__SessionTruncateReply *)body)->incarnation);
    return BANYAN_OK;
}

banyan_code banyan_session_truncate(banyan_session *session, uint64_t length, banyan_error *error)
{
    banyan_code code = check_session(session, error);
    if (code != BANYAN_OK)
        return code;
    Banyan__Pb__SessionTruncateRequest request = BANYAN__PB__SESSION_TRUNCATE_REQUEST__INIT;
    request.session = session->id;
    request.length = length;
    client_sums_truncate(&session->sums, length);
    return client_unary(session->client, BANYAN__PB__METHOD__METHOD_SESSION_TRUNCATE, &request.base, true, 0,
                        take_truncated, session, error);
}

static banyan_code take_forked(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    struct created *created = arg;
    const Banyan__Pb__SessionForkReply *reply = (const Banyan__Pb__SessionForkReply *)body;
    return make(created, reply->session, reply->incarnation, created->spec, error);
}

banyan_code banyan_session_fork(banyan_session *session, uint64_t length, const char *name,
                                banyan_session **out, banyan_error *error)
{
    banyan_code code = check_session(session, error);
    if (code != BANYAN_OK)
        return code;
    if (!out)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "out is NULL");
    Banyan__Pb__Spec pb; // a fork has its origin's spec
    spec_to_pb(&session->spec, &pb);
    Banyan__Pb__SessionForkRequest request = BANYAN__PB__SESSION_FORK_REQUEST__INIT;
    request.session = session->id;
    request.length = length;
    request.name = (char *)(name ? name : "");
    struct created created = {.client = session->client, .spec = &pb};
    code = draw_key(&request.key, error);
    if (code == BANYAN_OK)
        code = client_unary(session->client, BANYAN__PB__METHOD__METHOD_SESSION_FORK, &request.base, true, 0,
                            take_forked, &created, error);
    if (code == BANYAN_OK)
        *out = created.session;
    return code;
}

static banyan_code take_info(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    return client_info_from_pb((const Banyan__Pb__SessionInfoReply *)body, arg, error);
}

banyan_code banyan_session_get_info(banyan_session *session, banyan_session_info *out, banyan_error *error)
{
    banyan_code code = check_session(session, error);
    if (code != BANYAN_OK)
        return code;
    if (!out)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "out is NULL");
    Banyan__Pb__SessionInfoRequest request = BANYAN__PB__SESSION_INFO_REQUEST__INIT;
    request.session = session->id;
    code = client_unary(session->client, BANYAN__PB__METHOD__METHOD_SESSION_INFO, &request.base, true, 0,
                        take_info, out, error);
    if (code == BANYAN_OK)
        atomic_store(&session->incarnation, out->incarnation);
    return code;
}
