// SPDX-License-Identifier: Apache-2.0
// Comparing what workers have in memory with what was sealed: asked for here, carried out by the coordinator.
#include "client/lib/core/call.h"
#include "client/lib/core/error.h"
#include "client/lib/core/internal.h"

static banyan_code take_scrub(void *arg, const ProtobufCMessage *body, banyan_error *error)
{
    banyan_scrub *out = arg;
    const Banyan__Pb__ScrubReply *reply = (const Banyan__Pb__ScrubReply *)body;
    (void)error;
    *out = (banyan_scrub){.chunks = reply->chunks,
                          .left = reply->left,
                          .unsealed = reply->unsealed,
                          .lost = reply->lost,
                          .compared = reply->compared,
                          .corrupt = reply->corrupt,
                          .disputed = reply->disputed,
                          .healed = reply->healed,
                          .differ = reply->differ};
    return BANYAN_OK;
}

static banyan_code call_scrub(banyan_client *client, uint64_t session, bool ask, banyan_scrub *out,
                              banyan_error *error)
{
    banyan_scrub scrub = {0};
    if (!client)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "an argument is NULL");
    Banyan__Pb__ScrubRequest request = BANYAN__PB__SCRUB_REQUEST__INIT;
    request.session = session;
    request.ask = ask;
    banyan_code code = client_unary(client, BANYAN__PB__METHOD__METHOD_SCRUB, &request.base, true, 0,
                                    take_scrub, &scrub, error);
    if (code == BANYAN_OK && out)
        *out = scrub;
    return code;
}

banyan_code banyan_scrub_begin(banyan_client *client, uint64_t session, banyan_scrub *out,
                               banyan_error *error)
{
    return call_scrub(client, session, false, out, error);
}

banyan_code banyan_get_scrub(banyan_client *client, uint64_t session, banyan_scrub *out, banyan_error *error)
{
    return call_scrub(client, session, true, out, error);
}
