// SPDX-License-Identifier: Apache-2.0
#include "common/http/http.h"

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "common/http/http_crowd.h"
#include "common/log/log.h"
#include "common/secure/tls.h"

#define TEXT_TYPE        "text/plain; version=0.0.4; charset=utf-8"
#define OPENMETRICS_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"

#define SENDING_MAX (64u << 20)

struct sends { // answers on their way; they may outlive the server by a turn of the loop
    size_t bytes;
    uint32_t refs;
};

struct sending {
    struct sends *sends;
    void *body;
    void (*release)(void *body);
};

struct common_http {
    struct common_http_pages pages; // none: not served yet
    struct sends *sends;
    struct evhttp *http;
    struct common_http_crowd *crowd;
    struct common_tls *tls; // NULL: plain
    bool wants_certs;
    char address[96], host[64]; // of --http
    bool loopback;              // no other machine reaches it
};

// ---- what is asked ------------------------------------------------------------------------------

// A range of Accept, "type/sub;name=value;q=0.5": its weight, 0 where a version is named that is not
// `version`.
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

static const char *reason_of(int code)
{
    switch (code) {
    case 200:
        return "OK";
    case 304:
        return "Not Modified";
    case 400:
        return "Bad Request";
    case 401:
        return "Unauthorized";
    case 403:
        return "Forbidden";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 421:
        return "Misdirected Request";
    case 429:
        return "Too Many Requests";
    default:
        return "Service Unavailable";
    }
}

static void http_answer(struct evhttp_request *request, int code, const char *type, const char *text,
                        size_t len)
{
    struct evbuffer *body = evbuffer_new();
    no_delay(request);
    evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Type", type);
    if (body)
        evbuffer_add(body, text, len);
    evhttp_send_reply(request, code, reason_of(code), body);
    if (body)
        evbuffer_free(body);
}

static void sends_unref(struct sends *sends)
{
    if (sends && --sends->refs == 0)
        free(sends);
}

static void sent(const void *data, size_t len, void *arg)
{
    (void)data;
    struct sending *one = arg;
    one->sends->bytes -= len;
    sends_unref(one->sends);
    one->release(one->body);
    free(one);
}

// The body is the buffer's from now on, or has been released. False: it is not in it.
static bool body_put(struct common_http *http, struct evbuffer *buffer, const struct common_http_answer *a)
{
    if (!a->release)
        return evbuffer_add_reference(buffer, a->body, a->len, NULL, NULL) == 0;
    struct sending *one = a->len <= SENDING_MAX - http->sends->bytes ? malloc(sizeof *one) : NULL;
    if (one) {
        *one = (struct sending){http->sends, (void *)a->body, a->release};
        if (evbuffer_add_reference(buffer, a->body, a->len, sent, one) == 0) {
            http->sends->bytes += a->len;
            http->sends->refs++;
            return true;
        }
        free(one);
    }
    a->release((void *)a->body);
    return false;
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
    bool verbose = common_http_query(query, "verbose", unused, sizeof unused) != COMMON_HTTP_ABSENT;
    const char *exclude =
        common_http_query(query, "exclude", name, sizeof name) == COMMON_HTTP_GIVEN ? name : NULL;
    bool good = common_health_run(checks, http->pages.daemon, verbose, exclude, text);
    http_answer(request, good ? 200 : 503, "text/plain", text, strlen(text));
}

// A page of another site whose name was made to point here (DNS rebinding) asks as browsers do, by that name.
static bool is_own_host(const struct common_http *http, const struct evkeyvalq *in, const char *host)
{
    const char *agent = evhttp_find_header(in, "User-Agent");
    if (!host || http->tls || common_http_host_is(host, "localhost") ||
        common_http_host_is(host, http->host) ||
        common_http_host_is_address(host)) // with TLS the name would have to be the certificate's
        return true;
    bool browser = (agent && strstr(agent, "Mozilla/")) || evhttp_find_header(in, "Accept-Language") ||
                   evhttp_find_header(in, "Origin") || evhttp_find_header(in, "Sec-Fetch-Site");
    return !http->loopback && !browser;
}

// What none of our own clients sends, and what others read in another way than we do. False: it is answered.
static bool is_proper(struct evhttp_request *request, struct common_http *http)
{
    const struct evkeyvalq *in = evhttp_request_get_input_headers(request);
    const struct evkeyval *header;
    struct bufferevent *bev = evhttp_connection_get_bufferevent(evhttp_request_get_connection(request));
    enum evhttp_cmd_type method = evhttp_request_get_command(request);
    unsigned hosts = 0;
    common_http_crowd_asked(http->crowd, (int)bufferevent_getfd(bev));
    for (header = in->tqh_first; header; header = header->next.tqe_next)
        hosts += evutil_ascii_strcasecmp(header->key, "Host") == 0;
    if (method != EVHTTP_REQ_GET && method != EVHTTP_REQ_HEAD) {
        evhttp_add_header(evhttp_request_get_output_headers(request), "Allow", "GET, HEAD");
        http_answer(request, 405, "text/plain", "only GET and HEAD are allowed\n", 30);
    } else if (hosts > 1 || evhttp_request_get_uri(request)[0] != '/') {
        http_answer(request, 400, "text/plain", "one Host header and a path are needed\n", 38);
    } else {
        return true;
    }
    return false;
}

// evhttp goes on in the clear where there was no memory for TLS: nothing is answered then.
static bool is_guarded(struct evhttp_request *request, struct common_http *http)
{
    struct bufferevent *bev = evhttp_connection_get_bufferevent(evhttp_request_get_connection(request));
    if (!http->tls || bufferevent_openssl_get_ssl(bev))
        return is_proper(request, http);
    http_answer(request, 503, "text/plain", "out of memory\n", 14);
    return false;
}

static void livez(struct evhttp_request *request, void *arg)
{
    if (is_guarded(request, arg))
        health(request, arg, ((const struct common_http *)arg)->pages.live);
}

static void readyz(struct evhttp_request *request, void *arg)
{
    if (is_guarded(request, arg))
        health(request, arg, ((const struct common_http *)arg)->pages.ready);
}

static struct common_http_request what_is_asked(struct evhttp_request *request)
{
    const struct evkeyvalq *in = evhttp_request_get_input_headers(request);
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(request);
    const char *path = evhttp_uri_get_path(uri), *query = evhttp_uri_get_query(uri);
    char *peer = NULL;
    uint16_t port;
    evhttp_connection_get_peer(evhttp_request_get_connection(request), &peer, &port);
    return (struct common_http_request){.path = path ? path : "",
                                        .query = query ? query : "",
                                        .host = evhttp_find_header(in, "Host"),
                                        .authorization = evhttp_find_header(in, "Authorization"),
                                        .if_none_match = evhttp_find_header(in, "If-None-Match"),
                                        .fetch_site = evhttp_find_header(in, "Sec-Fetch-Site"),
                                        .peer = peer ? peer : "?",
                                        .x_banyan = evhttp_find_header(in, "X-Banyan")};
}

static void metrics(struct evhttp_request *request, void *arg)
{
    struct common_http *http = arg;
    if (!is_guarded(request, http))
        return;
    const struct evkeyvalq *in = evhttp_request_get_input_headers(request);
    if (!is_own_host(http, in, evhttp_find_header(in, "Host"))) {
        static const char other_host[] =
            "this host name is not allowed: use localhost, or the address of --http\n";
        http_answer(request, 421, "text/plain", other_host, sizeof other_host - 1);
        return;
    }
    if (!http->pages.metrics) {
        http_answer(request, 503, "text/plain", "starting\n", 9);
        return;
    }
    struct common_metrics *table = common_metrics_new();
    struct common_http_request asked = what_is_asked(request);
    int code = table ? http->pages.metrics(http->pages.daemon, &asked, table) : 503;
    const char *accept = evhttp_find_header(evhttp_request_get_input_headers(request), "Accept");
    bool openmetrics = common_http_wants_openmetrics(accept);
    char *text = NULL;
    size_t len = 0;
    evhttp_add_header(evhttp_request_get_output_headers(request), "Vary", "Accept");
    if (code == 200 &&
        (!common_http_crowd_metrics(http->crowd, table) ||
         common_metrics_render(table, openmetrics ? COMMON_METRICS_OPENMETRICS : COMMON_METRICS_TEXT, &text,
                               &len) != COMMON_OK))
        code = 503;
    if (code == 200)
        http_answer(request, 200, openmetrics ? OPENMETRICS_TYPE : TEXT_TYPE, text, len);
    else if (code == 401 &&
             evhttp_add_header(evhttp_request_get_output_headers(request), "WWW-Authenticate", "Bearer") == 0)
        http_answer(request, 401, "text/plain", "the token is wrong\n", 19);
    else
        http_answer(request, 503, "text/plain", "out of memory\n", 14);
    free(text);
    common_metrics_free(table);
}

// What the daemon answers by itself.
static void answer(struct evhttp_request *request, struct common_http *http)
{
    struct common_http_request asked = what_is_asked(request);
    struct common_http_answer a = {.code = 404};
    http->pages.answer(http->pages.answerer, &asked, &a);
    struct evbuffer *body = evbuffer_new();
    if (!body && a.release)
        a.release((void *)a.body);
    if (!body || (a.len && !body_put(http, body, &a))) {
        static const char busy[] = "too much is already being sent: try again\n";
        http_answer(request, 503, "text/plain", busy, sizeof busy - 1);
    } else {
        no_delay(request);
        for (size_t i = 0; i < a.n_headers; i++)
            evhttp_add_header(evhttp_request_get_output_headers(request), a.headers[i].name,
                              a.headers[i].value);
        evhttp_send_reply(request, a.code, reason_of(a.code), body);
    }
    if (body)
        evbuffer_free(body);
}

static void other(struct evhttp_request *request, void *arg)
{
    struct common_http *http = arg;
    if (!is_guarded(request, http))
        return;
    if (http->pages.answer)
        answer(request, http);
    else
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

// One for each connection, so that reloaded certificates apply to new ones. NULL: evhttp makes a plain one.
static struct bufferevent *make_connection(struct event_base *base, void *arg)
{
    const struct common_http *http = arg;
    common_http_crowd_enter(http->crowd);
    if (!http->tls)
        return NULL;
    SSL *ssl = SSL_new(common_tls_context(http->tls, COMMON_TLS_ACCEPT));
    if (ssl && http->wants_certs)
        SSL_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    struct bufferevent *bev =
        ssl ? bufferevent_openssl_socket_new(base, -1, ssl, BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE)
            : NULL;
    if (!bev)
        SSL_free(ssl);
    else
        bufferevent_openssl_set_allow_dirty_shutdown(bev, 1); // browsers close without a word
    ERR_clear_error();
    return bev;
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
    if (http) {
        http->http = evhttp_new(common_loop_base(loop));
        http->sends = calloc(1, sizeof(*http->sends));
    }
    if (http && http->sends)
        http->sends->refs = 1;
    if (!http || !http->http || !http->sends) {
        common_http_free(http);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for --http");
    }
    struct evhttp_bound_socket *bound = evhttp_bind_socket_with_handle(http->http, host, (uint16_t)port);
    if (!bound) {
        common_http_free(http);
        return common_error_set(
            err, COMMON_ALREADY_EXISTS,
            "cannot listen on --http %.100s: the address is in use, or not this machine's", address);
    }
    snprintf(http->host, sizeof(http->host), "%.*s", (int)(colon - address), address); // with its brackets
    http->loopback = !strncmp(host, "127.", 4) || !strcmp(host, "::1") || !strcasecmp(host, "localhost");
    snprintf(http->address, sizeof(http->address), "%.*s:%u", (int)(colon - address), address,
             port_of(evhttp_bound_socket_get_fd(bound)));
    http->crowd = common_http_crowd_new(loop, evhttp_bound_socket_get_listener(bound));
    if (!http->crowd) {
        common_http_free(http);
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "out of memory for --http");
    }
    evhttp_set_bevcb(http->http, make_connection, http);
    // All methods, and small bodies: so that POST is answered with what is allowed.
    evhttp_set_allowed_methods(http->http, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD | EVHTTP_REQ_POST |
                                               EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE | EVHTTP_REQ_PATCH);
    evhttp_set_max_headers_size(http->http, 16384);
    evhttp_set_max_body_size(http->http, 16384);
    evhttp_set_timeout(http->http, 5);
    evhttp_set_cb(http->http, "/livez", livez, http);
    evhttp_set_cb(http->http, "/healthz", livez, http); // its older name
    evhttp_set_cb(http->http, "/readyz", readyz, http);
    evhttp_set_cb(http->http, "/metrics", metrics, http);
    evhttp_set_gencb(http->http, other, http);
    *out = http;
    return COMMON_OK;
}

void common_http_secure(struct common_http *http, struct common_tls *tls, bool wants_certs)
{
    if (!http || !tls)
        return;
    http->tls = common_tls_ref(tls);
    http->wants_certs = wants_certs;
}

void common_http_serve(struct common_http *http, const struct common_http_pages *pages)
{
    if (!http)
        return;
    http->pages = *pages;
    common_log_info("health and metrics %s=%s", http->tls ? "https" : "http", http->address);
}

const char *common_http_address(const struct common_http *http)
{
    return http ? http->address : NULL;
}

void common_http_free(struct common_http *http)
{
    if (!http)
        return;
    common_http_crowd_free(http->crowd);
    if (http->http)
        evhttp_free(http->http);
    sends_unref(http->sends);
    common_tls_unref(http->tls);
    free(http);
}
