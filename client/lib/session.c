// SPDX-License-Identifier: Apache-2.0
// Sessions: making, opening and ending them.
#include "client/lib/session.h"

#include "client/lib/core/internal.h"
#include "client/lib/rows/seals.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/core/call.h"
#include "client/lib/core/error.h"
#include "client/lib/rows/floor.h"
#include "client/lib/rows/ticket.h"
#include "client/lib/session/orphan.h"
#include "client/lib/session/spec.h"
#include "client/lib/session/truncate.h"
#include "common/secure/secret.h"
#include "proto/model/kv.h"
#include "proto/model/limits.h"

struct created {
    struct banyan_client *client;
    const Banyan__Pb__Spec *spec; // NULL: the reply carries it
    struct banyan_session *session;
    uint64_t floor, length; // as the reply says them
    uint64_t states; // likewise: the session with the states of the one that it was forked from; 0: none
};

static banyan_code make(struct created *created, uint64_t id, uint64_t incarnation, uint64_t cut,
                        const Banyan__Pb__Spec *spec, banyan_error *error)
{
    if (id == 0)
        return client_error_set(error, BANYAN_INTERNAL, "the coordinator created a session without an id");
    struct banyan_session *session = calloc(1, sizeof *session);
    if (!session)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    banyan_code code = client_spec_from_pb(spec, &session->spec, &session->layers, error);
    if (code != BANYAN_OK) {
        free(session);
        return code;
    }
    session->id = id;
    atomic_store(&session->incarnation, incarnation);
    session->client = created->client;
    client_sums_init(&session->sums, session->spec.layers);
    client_cuts_init(&session->cuts, cut);
    atomic_fetch_add(&created->client->refs, 1);
    created->session = session;
    return BANYAN_OK;
}

static banyan_code take_created(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    struct created *created = arg;
    const Banyan__Pb__SessionCreateReply *reply = (const Banyan__Pb__SessionCreateReply *)body;
    created->floor = reply->floor;
    created->length = reply->length;
    created->states = reply->states;
    banyan_code code = make(created, reply->session, reply->incarnation, reply->cut, created->spec, error);
    if (code == BANYAN_OK && reply->replicas) { // what the caller has left to the coordinator
        created->session->spec.replicas = reply->replicas;
        created->session->spec.idle_ttl_ns = reply->idle_ttl_ns;
    }
    return code;
}

// It has the floor, or is gone.
static banyan_code take_floor(const struct created *created, uint64_t floor, banyan_error *error)
{
    banyan_code code = created->floor ? client_floor_fill(created->session, created->spec, floor, error)
                                      : client_error_set(error, BANYAN_UNIMPLEMENTED,
                                                         "the coordinator runs an older build, which cannot "
                                                         "create sessions with a floor: update it");
    if (code == BANYAN_OK)
        return code;
    banyan_error left;
    if (banyan_session_delete(created->session, &left) != BANYAN_OK && error) {
        char why[sizeof error->message];
        client_copy_text(why, sizeof why, error->message);
        snprintf(error->message, sizeof error->message,
                 "%.300s (and session 0x%016" PRIx64 ", which is incomplete, could not be deleted)", why,
                 created->session->id);
    }
    banyan_session_close(created->session);
    return code;
}

banyan_code banyan_session_create(banyan_client *client, const banyan_spec *spec, const char *name,
                                  banyan_session **out, banyan_error *error)
{
    return banyan_session_create_at(client, spec, name, 0, out, error);
}

static banyan_code create(banyan_client *client, const banyan_spec *spec,
                          const Banyan__Pb__SessionCreateRequest *request, struct created *created,
                          banyan_error *error)
{
    if (proto_kv_element_bytes((uint32_t)spec->kv_type) == 0)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT,
                                "kv_type %d is not one of BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_INT8, "
                                "BANYAN_FP8",
                                (int)spec->kv_type);
    Banyan__Pb__SessionCreateRequest asked = *request;
    Banyan__Pb__Spec pb;
    void *memory;
    banyan_code code = client_spec_to_pb(spec, &pb, &memory, error);
    if (code != BANYAN_OK)
        return code;
    asked.spec = &pb;
    *created = (struct created){.client = client, .spec = &pb};
    code = client_draw_key(&asked.key, error);
    if (code == BANYAN_OK)
        code = client_unary(client, BANYAN__PB__METHOD__METHOD_SESSION_CREATE, &asked.base, true, 0,
                            take_created, created, error);
    if (!asked.name[0])
        client_orphan_end(client, BANYAN__PB__METHOD__METHOD_SESSION_CREATE, &asked.base, code);
    if (code == BANYAN_OK && asked.floor)
        code = take_floor(created, asked.floor, error);
    free(memory);
    return code;
}

banyan_code banyan_session_create_at(banyan_client *client, const banyan_spec *spec, const char *name,
                                     uint64_t floor, banyan_session **out, banyan_error *error)
{
    if (!spec || !out)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "spec or out is NULL");
    Banyan__Pb__SessionCreateRequest request = BANYAN__PB__SESSION_CREATE_REQUEST__INIT;
    request.name = (char *)(name ? name : "");
    request.floor = floor;
    struct created created;
    banyan_code code = create(client, spec, &request, &created, error);
    if (code == BANYAN_OK)
        *out = created.session;
    return code;
}

banyan_code client_session_create_from(banyan_client *client, const banyan_spec *spec, const char *name,
                                       const void *hashes, uint32_t n, banyan_session **out, uint64_t *length,
                                       uint64_t *states, banyan_error *error)
{
    if (!spec || !out || !length || (n && !hashes))
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    if (n > PROTO_HASHES_BYTES / PROTO_PREFIX_HASH)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "a prefix has at most %u chunks",
                                PROTO_HASHES_BYTES / PROTO_PREFIX_HASH);
    Banyan__Pb__SessionCreateRequest request = BANYAN__PB__SESSION_CREATE_REQUEST__INIT;
    request.name = (char *)(name ? name : "");
    request.prefix.data = (uint8_t *)hashes;
    request.prefix.len = (size_t)n * PROTO_PREFIX_HASH;
    struct created created;
    banyan_code code = create(client, spec, &request, &created, error);
    if (code != BANYAN_OK)
        return code;
    *out = created.session;
    *length = created.length;
    *states = created.states;
    return code;
}

static banyan_code take_opened(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    const Banyan__Pb__SessionInfoReply *reply = (const Banyan__Pb__SessionInfoReply *)body;
    return make(arg, reply->session, reply->incarnation, reply->cut, reply->spec, error);
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

#define CLOSE_TIMEOUT_NS COMMON_NS_PER_S // a goodbye is not waited for long

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

// In a callback nothing may block: the message goes out, and its answer is not awaited.
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
    client_seals_free(session->seals);
    client_sums_fini(&session->sums);
    client_cuts_fini(&session->cuts);
    client_spec_free(&session->spec);
    free(session->layers);
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

static banyan_code take_forked(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    struct created *created = arg;
    const Banyan__Pb__SessionForkReply *reply = (const Banyan__Pb__SessionForkReply *)body;
    created->states = reply->states;
    return make(created, reply->session, reply->incarnation, reply->cut, created->spec, error);
}

banyan_code client_session_fork(banyan_session *session, uint64_t length, uint64_t idle_ttl_ns,
                                const char *name, banyan_session **out, uint64_t *states, banyan_error *error)
{
    banyan_code code = check_session(session, error);
    if (code != BANYAN_OK)
        return code;
    if (!out)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "out is NULL");
    Banyan__Pb__Spec pb; // a fork has its origin's spec
    void *memory;
    code = client_spec_to_pb(&session->spec, &pb, &memory, error);
    if (code != BANYAN_OK)
        return code;
    Banyan__Pb__SessionForkRequest request = BANYAN__PB__SESSION_FORK_REQUEST__INIT;
    request.session = session->id;
    request.idle_ttl_ns = idle_ttl_ns;
    pb.idle_ttl_ns = idle_ttl_ns ? idle_ttl_ns : pb.idle_ttl_ns;
    request.length = length;
    request.name = (char *)(name ? name : "");
    struct created created = {.client = session->client, .spec = &pb};
    code = client_draw_key(&request.key, error);
    if (code == BANYAN_OK)
        code = client_unary(session->client, BANYAN__PB__METHOD__METHOD_SESSION_FORK, &request.base, true, 0,
                            take_forked, &created, error);
    if (!request.name[0])
        client_orphan_end(session->client, BANYAN__PB__METHOD__METHOD_SESSION_FORK, &request.base, code);
    free(memory);
    *states = created.states;
    if (code == BANYAN_OK)
        *out = created.session;
    return code;
}

banyan_code banyan_session_pin(banyan_session *session, uint64_t length, uint64_t idle_ttl_ns,
                               const char *name, banyan_session **out, banyan_error *error)
{
    uint64_t states;
    return client_session_fork(session, length, idle_ttl_ns, name, out, &states, error);
}
