// SPDX-License-Identifier: Apache-2.0
// Sessions that a create or fork may have made without an answer.
#ifndef CLIENT_LIB_ORPHAN_H
#define CLIENT_LIB_ORPHAN_H

#include "client/lib/core/internal.h"
#include "proto/rpc/rpc.h"

// After a create or fork (method, with its key in the request) without a name that ended with this code: if it
// is unknown whether a session was made, one that was made is found and deleted, in the background. One with a
// name is never deleted: another caller may have opened it, and have rows in it. Any thread.
void client_orphan_end(struct banyan_client *client, uint32_t method, const ProtobufCMessage *request,
                       banyan_code code);

#endif
