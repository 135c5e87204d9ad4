// SPDX-License-Identifier: Apache-2.0
// The coordinators that a client was given, and which of them serves.
#ifndef CLIENT_LIB_ENDPOINTS_H
#define CLIENT_LIB_ENDPOINTS_H

#include <stdbool.h>

#include "client/lib/core/internal.h"
#include "proto/rpc/rpc.h"

// Another one is the current one from now on: what is out over `from` must go over client->channel.
typedef void (*client_moved_fn)(struct banyan_client *client, struct proto_channel *from);

// Opens channels to all of client->endpoint. After a failure: close. INVALID_ARGUMENT, RESOURCE_EXHAUSTED.
banyan_code client_endpoints_open(struct banyan_client *client, const struct proto_channel_options *options,
                                  client_moved_fn moved, banyan_error *error);
void client_endpoints_close(struct banyan_client *client); // their calls end with CANCELLED
bool client_endpoints_several(const struct banyan_client *client);
void client_endpoints_refused(struct banyan_client *client); // the current one says that it does not serve

#endif
