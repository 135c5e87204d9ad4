// SPDX-License-Identifier: Apache-2.0
// Sessions without a name that were made for a caller who has stopped waiting: the answer with their id never
// came, so only this file can end them. The request is sent again with its key, which finds what the first
// sending made (or makes it), and that is deleted.
#include "client/lib/session/orphan.h"

#include <stdlib.h>

#include "client/lib/core/call.h"
#include "client/lib/core/internal.h"

#define PATIENCE_NS                                                                                          \
    (600 * COMMON_NS_PER_S) // of a coordinator that is away; what it makes later is left to its time-to-live

struct orphan {
    struct client_call call; // first: done gets it
    ProtobufCMessage *again;
    Banyan__Pb__SessionDeleteRequest end;
};

static void orphan_free(struct orphan *orphan)
{
    protobuf_c_message_free_unpacked(orphan->again, NULL);
    free(orphan);
}

static void on_deleted(struct client_call *call, banyan_code code, const struct proto_message *message,
                       const banyan_error *error)
{
    (void)code;
    (void)message;
    (void)error;
    orphan_free((struct orphan *)call);
}

static uint64_t session_of(uint32_t method, const ProtobufCMessage *body)
{
    return method == BANYAN__PB__METHOD__METHOD_SESSION_CREATE
               ? ((const Banyan__Pb__SessionCreateReply *)body)->session
               : ((const Banyan__Pb__SessionForkReply *)body)->session;
}

static void on_found(struct client_call *call, banyan_code code, const struct proto_message *message,
                     const banyan_error *error)
{
    (void)error;
    struct orphan *orphan = (struct orphan *)call;
    uint64_t session =
        code == BANYAN_OK && message && message->body ? session_of(call->method, message->body) : 0;
    if (session == 0) { // it was refused: there is none
        orphan_free(orphan);
        return;
    }
    banyan__pb__session_delete_request__init(&orphan->end);
    orphan->end.session = session;
    orphan->call = (struct client_call){
        .client = call->client,
        .method = BANYAN__PB__METHOD__METHOD_SESSION_DELETE,
        .body = &orphan->end.base,
        .deadline_ns = common_clock_after(PATIENCE_NS),
        .idempotent = true,
        .done = on_deleted,
    };
    client_call_start(&orphan->call);
}

static void look_for(void *arg)
{
    client_call_start(arg);
}

static ProtobufCMessage *copy_of(const ProtobufCMessage *request)
{
    size_t len = protobuf_c_message_get_packed_size(request);
    uint8_t *packed = malloc(len ? len : 1);
    if (!packed)
        return NULL;
    protobuf_c_message_pack(request, packed);
    ProtobufCMessage *copy = protobuf_c_message_unpack(request->descriptor, NULL, len, packed);
    free(packed);
    return copy;
}

void client_orphan_end(struct banyan_client *client, uint32_t method, const ProtobufCMessage *request,
                       banyan_code code)
{
    if (code != BANYAN_DEADLINE_EXCEEDED && code != BANYAN_UNAVAILABLE)
        return;
    struct orphan *orphan = calloc(1, sizeof *orphan);
    ProtobufCMessage *again = orphan ? copy_of(request) : NULL;
    if (!again) { // out of memory: it is left to its time-to-live
        free(orphan);
        return;
    }
    orphan->again = again;
    orphan->call = (struct client_call){
        .client = client,
        .method = method,
        .body = again,
        .deadline_ns = common_clock_after(PATIENCE_NS),
        .idempotent = true,
        .done = on_found,
    };
    common_loop_mail(client->loop, &orphan->call.mail, look_for, &orphan->call);
}
