// SPDX-License-Identifier: Apache-2.0
// What workers keep and the coordinator's store does not know: listed, and dropped on an operator's word.
#include <stdlib.h>
#include <string.h>

#include "client/lib/core/call.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"

struct quarantine_listing {
    banyan_quarantine_list list;
    uint64_t next;
};

static banyan_code take_page(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    struct quarantine_listing *listing = arg;
    const Banyan__Pb__QuarantineListReply *reply = (const Banyan__Pb__QuarantineListReply *)body;
    banyan_quarantine_list *list = &listing->list;
    if (reply->n_sessions == 0)
        listing->next = 0;
    else
        listing->next = reply->next;
    if (reply->n_sessions == 0)
        return BANYAN_OK;
    banyan_quarantined *grown = realloc(list->sessions, (list->n + reply->n_sessions) * sizeof *grown);
    if (!grown)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
    list->sessions = grown;
    for (size_t i = 0; i < reply->n_sessions; i++) {
        const Banyan__Pb__QuarantinedSession *from = reply->sessions[i];
        banyan_quarantined *to = &list->sessions[list->n++];
        *to = (banyan_quarantined){
            .session = from->session, .life = from->life, .bytes = from->bytes, .newer = from->newer};
        client_copy_text(to->worker, sizeof to->worker, from->worker);
    }
    return BANYAN_OK;
}

banyan_code banyan_quarantine_get_list(banyan_client *client, const char *worker, banyan_quarantine_list *out,
                                       banyan_error *error)
{
    struct quarantine_listing listing = {0};
    banyan_code code = BANYAN_OK;
    if (!client || !out)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    do {
        Banyan__Pb__QuarantineListRequest request = BANYAN__PB__QUARANTINE_LIST_REQUEST__INIT;
        request.worker = (char *)(worker ? worker : "");
        request.after = listing.next;
        code = client_unary(client, BANYAN__PB__METHOD__METHOD_QUARANTINE_LIST, &request.base, true, 0,
                            take_page, &listing, error);
    } while (code == BANYAN_OK && listing.next != 0);
    if (code == BANYAN_OK)
        *out = listing.list;
    else
        banyan_quarantine_list_free(&listing.list);
    return code;
}

void banyan_quarantine_list_free(banyan_quarantine_list *list)
{
    if (!list)
        return;
    free(list->sessions);
    *list = (banyan_quarantine_list){0};
}

struct quarantine_dropped {
    uint64_t sessions, bytes;
};

static banyan_code take_dropped(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    struct quarantine_dropped *out = arg;
    const Banyan__Pb__QuarantineDropReply *reply = (const Banyan__Pb__QuarantineDropReply *)body;
    (void)error;
    out->sessions = reply->sessions;
    out->bytes = reply->bytes;
    return BANYAN_OK;
}

banyan_code banyan_quarantine_drop(banyan_client *client, const char *worker, uint64_t session,
                                   uint64_t *sessions, uint64_t *bytes, banyan_error *error)
{
    if (!client || !worker)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    struct quarantine_dropped dropped = {0};
    Banyan__Pb__QuarantineDropRequest request = BANYAN__PB__QUARANTINE_DROP_REQUEST__INIT;
    request.worker = (char *)worker;
    request.session = session;
    banyan_code code = client_unary(client, BANYAN__PB__METHOD__METHOD_QUARANTINE_DROP, &request.base, false,
                                    0, take_dropped, &dropped, error);
    if (code == BANYAN_OK && sessions)
        *sessions = dropped.sessions;
    if (code == BANYAN_OK && bytes)
        *bytes = dropped.bytes;
    return code;
}
