// SPDX-License-Identifier: Apache-2.0
// What both daemons report about themselves and their machine (HealthCheckRequest.examine).
#ifndef PROTO_HEALTH_H
#define PROTO_HEALTH_H

#include "proto/banyan.pb-c.h"

// The clock, descriptors, memory, of the store's path (NULL: there is none) the disk, and of its certificate
// (NULL: it has none) the end. Some microseconds.
struct common_tls;
void proto_health_examine(Banyan__Pb__HealthCheckReply *reply, const char *store_path,
                          const struct common_tls *tls);

#endif
