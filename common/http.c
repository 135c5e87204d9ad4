// SPDX-License-Identifier: Apache-2.0
#include "common/http.h"

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/http.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "common/log.h"

#define TEXT_TYPE        "text/plain; version=0.0.4; charset=utf-8"
#define OPENMETRICS_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"

struct common_http {
    struct common_http_pages pages; // none: not served yet
    struct evhttp *http;
    char address[96];
};

// ---- what is asked ------------------------------------------------------------------------------

// The value of a word of a query, "a&b=c", in `out`; words have no value, or a plain one. libevent's own parser takes no
// word without a value. False: it is not there.
static bool query_find(const char *query, const char *word, char out[32])
{
    size_t len = strlen(word);
    for (const char *at = query; at && *at; at += strcspn(at, "&"), at += *at == '&') {
        if (strncmp(at, word, len) != 0 || (at[len] && !strchr("=&", at[len])))
            continue;
        const char *value = at[len] == '=' ? at + len + 1 : "";
        snprintf(out, 32, "%.*s", at[len] == '=' ? (int)strcspn(value, "&") : 0, value);
        return true;
    }
    return false;
}

// A range of Accept, "type/sub;name=value;q=0.5": its weight, 0 where a version is named that is not `version`.
static double weight_of(const char *range, size_t len, const char *version)
{
    double weight = 1;
    const char *end = range + len;
    for (const char *at = memchr(range, ';', len); at && at < end; at = memchr(at, ';', (size_t)(end - at))) {
        at++;
        at += strspn(at, " \t");
        if (strncasecmp(at, "q=", 2) == 0)
            weight *= strtod(at + 2, NULL);
        else if (strncasecmp(at, "version=", 8) == 0 && strncmp(at + 8, version, strlen(version)) != 0)
            return 0;
    }
    return weight;
}

static bool is_type(const char *range, const char *type)
{
    size_t len = strlen(type);
    return strncasecmp(range, type, len) == 0 && strchr(" \t;,", range[len]); // or its end
}

bool common_http_wants_openmetrics(const char *accept)
{
    double openmetrics = 0, text = 0;
    for (const char *at = accept; at && *at; at += *at == ',') {
        at += strspn(at, " \t");
        size_t len = strcspn(at, ",");
        double *weight = is_type(at, "application/openmetrics-text") ? &openmetrics
                         : is_type(at, "text/plain")                 ? &text
                                                                     : NULL;
        double mine = weight ? weight_of(at, len, weight == &text ? "0.0.4" : "1.0.0") : 0;
        if (weight && mine > *weight)
            *weight = mine;
        at += len;
    }
    return openmetrics > 0 && openmetrics >= text;
}

// ---- answers ------------------------------------------------------------------------------------

// evhttp sends in pieces of 16 KiB and leaves Nagle on: 44 ms for an answer of 20 KB, 52 µs without.
static void no_delay(struct evhttp_request *request)
{
    struct bufferevent *bev = evhttp_connection_get_bufferevent(evhttp_request_get_connection(request));
    int on = 1;
    setsockopt(bufferevent_getfd(bev), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static void http_answer(struct evhttp_request *request, int code, const char *type, const char *text,
                        size_t len)
{
    struct evbuffer *body = evbuffer_new();
    no_delay(request);
    evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Type", type);
    if (body)
        evbuffer_add(body, text, len);
    evhttp_send_reply(request, code,
                      code == 200   ? "OK"
                      : code == 404 ? "Not Found"
                                    : "Service Unavailable",
                      body);
    if (body)
        evbuffer_free(body);
}

static void health(struct evhttp_request *request, const struct common_http *http,
                   const struct common_health_check *checks)
{
    if (!checks) {
        http_answer(request, 503, "text/plain", "starting\n", 9);
        return;
    }
    char text[COMMON_HEALTH_TEXT], unused[32], name[32];
    const char *query = evhttp_uri_get_query(evhttp_request_get_evhttp_uri(request));
    bool verbose = query_find(query, "verbose", unused);
    const char *exclude = query_find(query, "exclude", name) ? name : NULL;
    bool good = common_health_run(checks, http->pages.daemon, verbose, exclude, text);
    http_answer(request, good ? 200 : 503, "text/plain", text, strlen(text));
}

static void livez(struct evhttp_request *request, void *arg)
{
    health(request, arg, ((const struct common_http *)arg)->pages.live);
}

static void readyz(struct evhttp_request *request, void *arg)
{
    health(request, arg, ((const struct common_http *)arg)->pages.ready);
}

static void metrics(struct evhttp_request *request, void *arg)
{
    const struct common_http *http = arg;
    if (!http->pages.metrics) {
        http_answer(request, 503, "text/plain", "starting\n", 9);
        return;
    }
    struct common_metrics *table = common_metrics_new();
    const char *accept = evhttp_find_header(evhttp_request_get_input_headers(request), "Accept");
    bool openmetrics = common_http_wants_openmetrics(accept);
    char *text = NULL;
    size_t len = 0;
    evhttp_add_header(evhttp_request_get_output_headers(request), "Vary", "Accept");
    if (table && http->pages.metrics(http->pages.daemon, table) &&
        common_metrics_render(table, openmetrics ? COMMON_METRICS_OPENMETRICS : COMMON_METRICS_TEXT, &text,
                              &len) == COMMON_OK)
        http_answer(request, 200, openmetrics ? OPENMETRICS_TYPE : TEXT_TYPE, text, len);
    else
        http_answer(request, 503, "text/plain", "out of memory\n", 14);
    free(text);
    common_metrics_free(table);
}

static void other(struct evhttp_request *request, void *arg)
{
    (void)arg;
    http_answer(request, 404, "text/plain", "try /livez, /readyz or /metrics\n", 32);
}

// ---- life ---------------------------------------------------------------------------------------

static uint16_t port_of(evutil_socket_t fd)
{
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof(at);
    if (getsockname(fd, (struct sockaddr *)&at, &len) != 0)
        return 0;
    return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                          : ((struct sockaddr_in *)&at)->sin_port);
}

enum common_code common_http_new(struct common_loop *loop, const char *address, struct common_http **out,
                                 struct common_error *err)
{
    const char *colon = strrchr(address, ':');
    char host[64], rest;
    unsigned port = 0;
    if (!colon || colon == address || (size_t)(colon - address) >= sizeof(host) ||
        sscanf(colon + 1, "%5u%c", &port, &rest) != 1 || port > 65535)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "--http takes HOST:PORT, not %.100s", address);
    bool brackets = address[0] == '[' && colon[-1] == ']'; // [::1]:9411
    snprintf(host, sizeof(host), "%.*s", (int)(colon - address) - 2 * brackets, address + brackets);
    struct common_http *http = calloc(1, sizeof(*http));
    if (http)
        http->http = evhttp_new(common_loop_base(loop));
    if (!http || !http->http) {
        common_http_free(http);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for --http");
    }
    struct evhttp_bound_socket *bound = evhttp_bind_socket_with_handle(http->http, host, (uint16_t)port);
    if (!bound) {
        common_http_free(http);
        return common_error_set(
            err, COMMON_ALREADY_EXISTS,
            "--http %.100s cannot be listened on: the address is taken, or not this machine's", address);
    }
    snprintf(http->address, sizeof(http->address), "%.*s:%u", (int)(colon - address), address,
             port_of(evhttp_bound_socket_get_fd(bound)));
    evhttp_set_allowed_methods(http->http, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
    evhttp_set_max_headers_size(http->http, 4096);
    evhttp_set_max_body_size(http->http, 0);
    evhttp_set_timeout(http->http, 5);
    evhttp_set_cb(http->http, "/livez", livez, http);
    evhttp_set_cb(http->http, "/healthz", livez, http); // its older name
    evhttp_set_cb(http->http, "/readyz", readyz, http);
    evhttp_set_cb(http->http, "/metrics", metrics, http);
    evhttp_set_gencb(http->http, other, http);
    *out = http;
    return COMMON_OK;
}

void common_http_serve(struct common_http *http, const struct common_http_pages *pages)
{
    if (!http)
        return;
    http->pages = *pages;
    common_log_info("health and metrics http=%s", http->address);
}

const char *common_http_address(const struct common_http *http)
{
    return http ? http->address : NULL;
}

void common_http_free(struct common_http *http)
{
    if (!http)
        return;
    if (http->http)
        evhttp_free(http->http);
    free(http);
}
