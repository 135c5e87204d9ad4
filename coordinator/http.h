// SPDX-License-Identifier: Apache-2.0
// /healthz, /readyz and /metrics (Prometheus text) over HTTP. Small, bounded requests only: GET, 4 KiB of header, no
// body, 5 s.
#ifndef COORDINATOR_HTTP_H
#define COORDINATOR_HTTP_H

#include "coordinator/coordinator.h"

struct coordinator_http;

// address: HOST:PORT, an IP address and a port. PERMISSION_DENIED: not loopback, and not insecure.
// INVALID_ARGUMENT, ALREADY_EXISTS.
enum common_code coordinator_http_new(struct coordinator *c, const char *address, bool insecure,
                                      struct coordinator_http **out, struct common_error *err);
void coordinator_http_free(struct coordinator_http *http); // NULL is allowed

#endif
