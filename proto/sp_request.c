// SPDX-License-Identifier: Apache-2.0
// Requests of nng clients: from a whole message to a request, and from its answer to bytes.
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/sp_link.h"

enum { LEAD_MAX = 8 + 4 * PROTO_SP_TRACE_MAX };

struct served { // joins a request with its link
    struct proto_sp_link *link;
    struct proto_identity identity; // each message shows its own token
    unsigned trace_len;
    uint8_t trace[4 * PROTO_SP_TRACE_MAX];
};

// ---- answers --------------------------------------------------------------------------------------------

static bool reserve_head(struct proto_sp_server *sp, size_t len)
{
    if (len <= sp->head_cap)
        return true;
    size_t cap = len < 4096 ? 4096 : len + len / 2;
    free(sp->head); // nothing in it is needed any more
    sp->head = malloc(cap);
    sp->head_cap = sp->head ? cap : 0;
    return sp->head != NULL;
}

// Writes an answer behind its length and trace; NULL: an empty one.
static void answer(struct proto_sp_link *link, const uint8_t *trace, unsigned trace_len,
                   struct proto_gather *gather, proto_done_fn sent, void *sent_arg)
{
    struct proto_sp_server *sp = link->sp;
    struct iovec only = {NULL, 0};
    struct proto_gather empty = {.iov = &only, .n = 1};
    if (!gather)
        gather = &empty;
    size_t head = gather->iov[0].iov_len, lead = 8 + (size_t)trace_len;
    bool done = reserve_head(sp, LEAD_MAX + head);
    if (done) {
        uint64_t len = htobe64(trace_len + gather->bytes);
        memcpy(sp->head, &len, 8);
        memcpy(sp->head + 8, trace, trace_len);
        if (head > 0)
            memcpy(sp->head + lead, gather->iov[0].iov_base, head);
        gather->iov[0] = (struct iovec){sp->head, lead + head};
        gather->bytes += lead;
        done = proto_link_send(link->io, gather, sent, sent_arg, NULL);
    }
    if (!done) {
        proto_link_fail(link->io, COMMON_RESOURCE_EXHAUSTED, "out of memory for an answer");
        if (sent)
            sent(sent_arg);
    }
}

static void send_reply(struct proto_request *request, struct proto_gather *gather, proto_done_fn sent,
                       void *sent_arg)
{
    struct served *served = request->transport;
    struct proto_sp_link *link = served->link;
    common_list_remove(&request->link);
    if (link->io)
        answer(link, served->trace, served->trace_len, gather, sent, sent_arg);
    else if (sent)
        sent(sent_arg);
    // `sent` may have closed it
    if (link->io && link->io->state == PROTO_LINK_PAUSED && proto_sp_link_may_read(link))
        proto_link_resume(link->io);
    free(served);
    proto_sp_link_unref(link);
}

// ---- requests -------------------------------------------------------------------------------------------

static void refuse_empty(struct proto_sp_link *link, const char *why)
{
    proto_server_refused(link->server, link->peer, why);
    answer(link, link->reader.trace, link->reader.trace_len, NULL, NULL, NULL);
}

// nng's REQ sends again what has no answer after a time. The first is still being served here and its answer
// goes the same way, so the second is left out: it would only do the work twice, and each further one, too.
static bool being_served(const struct proto_sp_link *link)
{
    const struct proto_sp_reader *reader = &link->reader;
    for (const struct common_list *at = link->requests.next; at != &link->requests; at = at->next) {
        const struct served *served = common_list_entry(at, struct proto_request, link)->transport;
        if (served->trace_len == reader->trace_len &&
            memcmp(served->trace, reader->trace, reader->trace_len) == 0)
            return true;
    }
    return false;
}

// Makes the request of the frame that has been read; NULL with the reason when it is none.
static struct proto_request *request_of(struct proto_sp_link *link, struct common_error *err)
{
    struct proto_server *server = link->server;
    struct proto_sp_reader *reader = &link->reader;
    struct proto_prefix here = link->prefix;
    here.skipped = link->use != PROTO_SP_REQUEST;
    if (here.skipped)
        here.payload_len = 0;
    struct proto_message *message;
    bool unsaid = false; // callers of several kinds may share a connection, behind a device of nng's
    if (proto_message_open(&server->pool, &here, reader->blob, 0, &unsaid, &message, err) != COMMON_OK)
        return NULL;
    struct served *served = malloc(sizeof *served);
    struct proto_request *request = NULL;
    if (served)
        request = proto_request_new(server, &link->caller, BANYAN__PB__ROLE__ROLE_CLIENT, message);
    else
        proto_message_release(&server->pool, message);
    if (!request) {
        common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for a request");
        free(served);
        return NULL;
    }
    served->link = link;
    served->identity = (struct proto_identity){0};
    served->trace_len = reader->trace_len;
    memcpy(served->trace, reader->trace, reader->trace_len);
    link->refs++;
    request->send = send_reply;
    request->transport = served;
    request->identity = &served->identity;
    request->peer = link->peer;
    common_list_push(&link->requests, &request->link);
    return request;
}

void proto_sp_serve(struct proto_sp_link *link)
{
    struct proto_server *server = link->server;
    struct common_error err;
    if (link->use == PROTO_SP_EMPTY) {
        refuse_empty(link, link->why);
        return;
    }
    if (being_served(link))
        return;
    struct proto_request *request = request_of(link, &err);
    if (!request &&
        err.code == COMMON_DATA_LOSS) { // who asked is not known; its REQ asks again over another link
        proto_link_fail(link->io, err.code, err.message);
        return;
    }
    if (!request) {
        refuse_empty(link, err.message);
        return;
    }
    struct proto_identity *identity = &((struct served *)request->transport)->identity;
    bool authentic = proto_server_admit(server, &request->message->header->credentials, link->peer, identity);
    if (authentic)
        link->caller.identity = *identity;
    char text[PROTO_LIMIT_TEXT] = "no room for this connection: try again";
    // One whose token stands late in its header is known only now. What there was no place for was not read,
    // though there may be one now.
    bool known = authentic && proto_sp_link_known(link, text);
    if (authentic && (!known || link->use == PROTO_SP_CROWDED)) {
        proto_request_refuse(request, PROTO_REFUSED_LIMIT, COMMON_RESOURCE_EXHAUSTED, text);
    } else if (link->use == PROTO_SP_OVERSIZE) {
        snprintf(text, sizeof text, "a payload of %llu bytes is above this server's limit of %llu",
                 (unsigned long long)link->prefix.payload_len, (unsigned long long)server->payload_max);
        proto_request_refuse(request, PROTO_REFUSED_LIMIT, COMMON_RESOURCE_EXHAUSTED, text);
    } else if (authentic && link->use == PROTO_SP_UNKNOWN) {
        proto_request_refuse(request, PROTO_REFUSED_TOKEN, COMMON_INVALID_ARGUMENT,
                             "the client token must stand at the beginning of a large request's header");
    } else if (authentic &&
               (link->use == PROTO_SP_FULL || server->lanes[PROTO_LANE_CLIENTS].bytes > server->bytes_max)) {
        proto_limit_reached(server, PROTO_LIMIT_BYTES, text);
        proto_request_fail(request, COMMON_RESOURCE_EXHAUSTED, text, NULL, 0);
    } else {
        proto_request_dispatch(request, authentic);
    }
}
