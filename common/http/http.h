// SPDX-License-Identifier: Apache-2.0
// A daemon's health and metrics over HTTP, on its loop: /livez (and /healthz, its older name), /readyz and
// /metrics, and what else it answers by itself. Small, bounded requests only: GET and HEAD, 16 KiB of header
// (browsers send the cookies of everything else on localhost), 10 s; answers that wait for their
// readers take 64 MiB at most. At most COMMON_HTTP_CONNECTIONS at a time: beyond that, those addresses that
// have the most lose some (banyan_http_connections, _connections_max, _dropped_total of /metrics, which are
// added here). Nothing here asks who calls: who may reach the address is for its caller to decide.
//
//   /livez, /readyz    200 or 503, and why (health.h); ?verbose names each check, ?exclude=NAME leaves one out
//   /metrics           OpenMetrics where Accept prefers it to plain text, else Prometheus' text (metrics.h)
//   the rest           common_http_pages.answer, else 404
#ifndef COMMON_HTTP_H
#define COMMON_HTTP_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"
#include "common/http/health.h"
#include "common/loop/loop.h"
#include "common/metrics/metrics.h"

enum { COMMON_HTTP_CONNECTIONS = 64 }; // at a time

struct common_http; // opaque

struct common_http_request {  // valid while it is being answered; headers: NULL where there are none
    const char *path, *query; // as they came, "%20" and all; no query: ""
    const char *host, *authorization, *if_none_match, *fetch_site;
    const char *peer; // the caller's address, without its port
    // X-Banyan, which means nothing: but a browser asks (OPTIONS, which is refused) before it sends a header
    // that it does not know for a page of another site.
    const char *x_banyan;
};

#define COMMON_HTTP_HEADERS 8
struct common_http_answer { // begins as an empty 404
    int code;               // 200, 304, 400, 401, 403, 404, 405, 421, 429 or 503
    const char *body;
    size_t len;
    void (*release)(void *body); // once it is sent, or will not be; NULL: the body outlives the daemon's HTTP
    struct common_http_header {
        const char *name, *value; // copied when `answer` returns
    } headers[COMMON_HTTP_HEADERS];
    size_t n_headers;
};

struct common_http_pages {
    const struct common_health_check *live, *ready; // kept
    // Puts all that the daemon has to say to who asks into the empty table. 200; 401: its Authorization is
    // wrong; 503: no memory. Called on the loop.
    int (*metrics)(void *daemon, const struct common_http_request *request, struct common_metrics *table);
    // Other paths than these. NULL: there are none. On the loop; never blocks.
    void (*answer)(void *answerer, const struct common_http_request *request, struct common_http_answer *out);
    void *daemon, *answerer;
};

// Listens on HOST:PORT of --http, port 0: any; so that a daemon finds out that it can before it is made and
// says that it is ready. INVALID_ARGUMENT: no HOST:PORT. ALREADY_EXISTS: the address is taken, or not this
// machine's. RESOURCE_EXHAUSTED.
enum common_code common_http_new(struct common_loop *loop, const char *address, struct common_http **out,
                                 struct common_error *err);
// From now on it speaks HTTPS, and nothing else, with what `tls` has at each connection's start; a reference
// is taken. wants_certs: callers must show a certificate. Of NULL, and with a tls that is NULL: nothing.
// Before the loop runs.
struct common_tls;
void common_http_secure(struct common_http *http, struct common_tls *tls, bool wants_certs);
// From now on these are the answers, while the daemon lives, with a line in the log; before, 503. Of NULL:
// nothing.
void common_http_serve(struct common_http *http, const struct common_http_pages *pages);
const char *
common_http_address(const struct common_http *http); // HOST:PORT, with the real port; of NULL NULL
void common_http_free(struct common_http *http);     // NULL is allowed

// Whether an Accept header (NULL: there is none) prefers OpenMetrics 1.0.0 to plain text.
bool common_http_wants_openmetrics(const char *accept);

enum common_http_value {
    COMMON_HTTP_ABSENT,
    COMMON_HTTP_GIVEN,
    COMMON_HTTP_BAD, // too long, a broken escape, or a control character
};
// The value of a word of a query ("a=b&c"), its escapes undone, in out[room]: "" where it has none, or it is
// BAD; ABSENT leaves out as it is. The first one counts.
enum common_http_value common_http_query(const char *query, const char *word, char *out, size_t room);

// Whether a Host header names this host, with any port or none: "localhost:80" is "localhost". "[::1]" keeps
// its brackets.
bool common_http_host_is(const char *header, const char *host);
// Whether it names an address, not a name that a foreign DNS could point here.
bool common_http_host_is_address(const char *header);

#endif
