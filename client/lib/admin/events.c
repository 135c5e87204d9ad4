// SPDX-License-Identifier: Apache-2.0
// Events: what the coordinator has kept of what has happened, and a call that waits there for what comes.
#include <stdlib.h>

#include "client/lib/core/call.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"
#include "proto/model/limits.h"

static banyan_code take_events(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    banyan_events *out = arg;
    const Banyan__Pb__EventsReply *reply = (const Banyan__Pb__EventsReply *)body;
    banyan_event *events = calloc(reply->n_events + 1, sizeof *events);
    if (!events)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t i = 0; i < reply->n_events; i++) {
        const Banyan__Pb__Event *from = reply->events[i];
        banyan_event *to = &events[i];
        *to = (banyan_event){.seq = from->seq,
                             .term = from->term,
                             .time_ns = from->wall_ns,
                             .session = from->session,
                             .epoch = from->epoch,
                             .count = from->count};
        client_copy_text(to->kind, sizeof to->kind, from->kind);
        client_copy_text(to->severity, sizeof to->severity, from->severity);
        client_copy_text(to->worker, sizeof to->worker, from->worker);
        client_copy_text(to->session_name, sizeof to->session_name, from->session_name);
        client_copy_text(to->text, sizeof to->text, from->text);
    }
    *out = (banyan_events){.n = (uint32_t)reply->n_events,
                           .events = events,
                           .term = reply->term,
                           .seq = reply->seq,
                           .more = reply->more,
                           .anew = reply->anew,
                           .lost = reply->lost};
    return BANYAN_OK;
}

banyan_code banyan_events_read(banyan_client *client, const banyan_events_options *options,
                               banyan_events *out, banyan_error *error)
{
    static const banyan_events_options all = {0};
    Banyan__Pb__EventsRequest request = BANYAN__PB__EVENTS_REQUEST__INIT;
    banyan_events events = {0};
    if (!client || !out)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    options = options ? options : &all;
    if (options->n_kinds > PROTO_EVENT_KINDS_MAX || (options->n_kinds && !options->kinds))
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "%u kinds: at most %u may be requested",
                                options->n_kinds, PROTO_EVENT_KINDS_MAX);
    if (options->wait_ns > 50 * COMMON_NS_PER_S)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "a call waits for events for at most 50 s");
    request.term = options->term;
    request.seq = options->seq;
    request.kinds = (char **)(uintptr_t)options->kinds;
    request.n_kinds = options->n_kinds;
    request.severity = (char *)(options->severity ? options->severity : "");
    request.worker = (char *)(options->worker ? options->worker : "");
    request.session = options->session;
    request.session_name = (char *)(options->session_name ? options->session_name : "");
    request.since_ns = options->since_ns;
    request.max = options->max ? options->max : PROTO_EVENTS_MAX;
    request.wait_ns = options->wait_ns;
    banyan_code code = client_unary(client, BANYAN__PB__METHOD__METHOD_EVENTS, &request.base, true,
                                    options->wait_ns ? options->wait_ns + client->timeout_ns : 0, take_events,
                                    &events, error);
    if (code == BANYAN_OK)
        *out = events;
    return code;
}

void banyan_events_free(banyan_events *events)
{
    if (!events)
        return;
    free(events->events);
    *events = (banyan_events){0};
}
