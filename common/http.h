// SPDX-License-Identifier: Apache-2.0
// A daemon's health and metrics over HTTP, on its loop: /livez (and /healthz, its older name), /readyz and /metrics. Small,
// bounded requests only: GET and HEAD, 4 KiB of header, no body, 5 s. Nothing here asks who calls: who may reach the address
// is for its caller to decide.
//
//   /livez, /readyz    200 or 503, and why (common/health.h); ?verbose names each check, ?exclude=NAME leaves one out
//   /metrics           OpenMetrics where Accept prefers it to plain text, else Prometheus' text (common/metrics.h)
#ifndef COMMON_HTTP_H
#define COMMON_HTTP_H

#include <stdbool.h>

#include "common/health.h"
#include "common/loop.h"
#include "common/metrics.h"
#include "common/status.h"

struct common_http; // opaque

struct common_http_pages {
    const struct common_health_check *live, *ready; // kept
    // Puts all that the daemon has to say into the empty table; false: no memory. Called on the loop.
    bool (*metrics)(void *daemon, struct common_metrics *table);
    void *daemon;
};

// Listens on HOST:PORT of --http, port 0: any; so that a daemon knows that it can before it is made and says that it is
// ready. INVALID_ARGUMENT: no HOST:PORT. ALREADY_EXISTS: the address is taken, or not this machine's. RESOURCE_EXHAUSTED.
enum common_code common_http_new(struct common_loop *loop, const char *address, struct common_http **out,
                                 struct common_error *err);
// From now on these are the answers, while the daemon lives, with a line in the log; before, 503. Of NULL: nothing.
void common_http_serve(struct common_http *http, const struct common_http_pages *pages);
const char *
common_http_address(const struct common_http *http); // HOST:PORT, with the real port; of NULL NULL
void common_http_free(struct common_http *http);     // NULL is allowed

// Whether an Accept header (NULL: there is none) prefers OpenMetrics 1.0.0 to plain text.
bool common_http_wants_openmetrics(const char *accept);

#endif
