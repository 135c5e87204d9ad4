// SPDX-License-Identifier: Apache-2.0
#include "coordinator/dashboard/dashboard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/clock.h"
#include "coordinator/admission.h"
#include "coordinator/cluster/hide.h"
#include "coordinator/dashboard/ask.h"
#include "coordinator/dashboard/files.h"

#define API    "/api/v1/"
#define DIGITS 6 // of a number that is no integer: a share, a factor

#define WRONG_TOKENS_MAX                                                                                     \
    10 // in WRONG_TOKENS_NS, of all callers together; more are 429, and lose their connection
#define WRONG_TOKENS_NS COMMON_NS_PER_S

// All that the page loads is here, and nothing else can be put into it.
#define POLICY                                                                                               \
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

static const struct route {
    const char *name; // the path after API; '*' is an id
    coordinator_dashboard_fn answer;
} routes[] = {
    {"cluster", coordinator_dashboard_cluster},      {"workers", coordinator_dashboard_workers},
    {"plans", coordinator_dashboard_plans},          {"plans/*", coordinator_dashboard_plan},
    {"sessions", coordinator_dashboard_sessions},    {"sessions/*", coordinator_dashboard_session},
    {"sessions/*/mass", coordinator_dashboard_mass}, {"sessions/*/trace", coordinator_dashboard_trace},
    {"events", coordinator_dashboard_events},        {"history", coordinator_dashboard_history},
    {"tenants", coordinator_dashboard_tenants},
};

// ---- life ---------------------------------------------------------------------------------------

static void sample(void *arg)
{
    struct coordinator_dashboard *d = arg;
    coordinator_history_take(&d->history, d->c, common_clock_ns());
}

struct coordinator_dashboard *coordinator_dashboard_new(struct coordinator *c, const char *address)
{
    struct coordinator_dashboard *d = calloc(1, sizeof(*d));
    const char *colon = address ? strrchr(address, ':') : NULL;
    if (!d || common_timer_new(c->core.loop, sample, d, &d->sampling) != COMMON_OK) {
        free(d);
        return NULL;
    }
    d->c = c;
    d->history.begun_ns = common_clock_ns();
    common_timer_start(d->sampling, COORDINATOR_HISTORY_EVERY_NS, true);
    if (!colon)
        return d;
    snprintf(d->host, sizeof(d->host), "%.*s", (int)(colon - address), address);
    d->loopback =
        !strncmp(d->host, "127.", 4) || !strcmp(d->host, "[::1]") || !strcasecmp(d->host, "localhost");
    return d;
}

void coordinator_dashboard_free(struct coordinator_dashboard *d)
{
    if (!d)
        return;
    common_timer_free(d->sampling);
    coordinator_lists_fini(&d->lists);
    free(d);
}

// ---- answering ----------------------------------------------------------------------------------

static void put_header(struct common_http_answer *out, const char *name, const char *value)
{
    out->headers[out->n_headers++] = (struct common_http_header){name, value};
}

// What every answer says: its type is meant, and no other page may have or show it.
static void put_headers(struct common_http_answer *out, const char *type, const char *cache)
{
    put_header(out, "Content-Type", type);
    put_header(out, "Cache-Control", cache);
    put_header(out, "X-Content-Type-Options", "nosniff");
    put_header(out, "Content-Security-Policy", POLICY);
    put_header(out, "Referrer-Policy", "no-referrer");
    put_header(out, "Cross-Origin-Resource-Policy", "same-origin");
}

static void answer_json(struct common_http_answer *out, int code, json_t *json)
{
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS)) : NULL;
    json_decref(json);
    out->code = text ? code : 503;
    out->body = text;
    out->len = text ? strlen(text) : 0;
    out->release = text ? free : NULL;
    put_headers(out, "application/json", "no-store");
    if (code == 401)
        put_header(out, "WWW-Authenticate", "Bearer realm=\"banyan\"");
    if (code == 429)
        put_header(out, "Retry-After", "1");
}

static void refuse(struct common_http_answer *out, int code, const char *why)
{
    answer_json(out, code, json_pack("{s:s}", "error", why));
}

static void answer_file(struct common_http_answer *out, const struct coordinator_dashboard_file *file,
                        const char *if_none_match)
{
    put_headers(out, file->type, "no-cache"); // kept, and asked for with its ETag
    put_header(out, "ETag", file->etag);
    out->code = if_none_match && strstr(if_none_match, file->etag) ? 304 : 200;
    if (out->code == 304)
        return;
    out->body = (const char *)file->bytes;
    out->len = file->len;
}

// ---- who may ask --------------------------------------------------------------------------------

static bool host_allowed(const struct coordinator_dashboard *d, const char *host)
{
    if (!host)
        return false;
    if (common_http_host_is(host, "localhost") || common_http_host_is(host, "127.0.0.1") ||
        common_http_host_is(host, "[::1]") || common_http_host_is(host, d->host))
        return true;
    // Another site's page that reaches this by its own name has no token to present.
    return !d->loopback && (common_http_host_is_address(host) || coordinator_wants_token(d->c));
}

static bool from_here(const char *site) // also where it is no browser
{
    return !site || !strcmp(site, "same-origin") || !strcmp(site, "none");
}

// Whether the request begins something, which a page of another site must not: an old browser, or one that does not trust
// this address, says no Sec-Fetch-Site.
static bool begins_watch(const char *query)
{
    char value[8]; // what is no text, or too long, is refused by the handler
    return common_http_query(query, "watch", value, sizeof(value)) != COMMON_HTTP_ABSENT &&
           strcmp(value, "0") != 0;
}

static void ask_for_token(struct common_http_answer *out)
{
    refuse(out, 401, "the coordinator requires a client token: Authorization: Bearer TOKEN");
}

static void refuse_token(struct coordinator_dashboard *d, struct common_http_answer *out)
{
    uint64_t now = common_clock_ns();
    if (now - d->wrong_tokens_from_ns >= WRONG_TOKENS_NS) {
        d->wrong_tokens_from_ns = now;
        d->wrong_tokens = 0;
    }
    if (d->wrong_tokens < WRONG_TOKENS_MAX) {
        d->wrong_tokens++;
        ask_for_token(out);
        return;
    }
    refuse(out, 429, "too many wrong tokens: try again in a second");
    put_header(out, "Connection", "close");
}

// ---- routes -------------------------------------------------------------------------------------

// Whether the path is the route's; *id of its '*'.
static bool route_matches(const char *path, const char *name, uint64_t *id)
{
    *id = 0;
    while (*name && *path) {
        if (*name != '*') {
            if (*name++ != *path++)
                return false;
            continue;
        }
        size_t digits = strspn(path, "0123456789abcdef");
        if (digits != 16)
            return false;
        *id = strtoull(path, NULL, 16); // stops at what follows
        path += digits;
        name++;
    }
    return !*name && !*path;
}

static int http_code(enum common_code code)
{
    switch (code) {
    case COMMON_INVALID_ARGUMENT:
        return 400;
    case COMMON_NOT_FOUND:
        return 404;
    case COMMON_RESOURCE_EXHAUSTED:
        return 429;
    default:
        return 503;
    }
}

static void answer_api(struct coordinator_dashboard *d, const struct common_http_request *request,
                       struct common_http_answer *out)
{
    uint64_t id = 0;
    const struct route *route = NULL;
    struct common_error err = {0};
    json_t *json = NULL;
    if (!from_here(request->fetch_site)) {
        refuse(out, 403, "cross-site request refused");
        return;
    }
    if (begins_watch(request->query) && !request->x_banyan) {
        refuse(out, 403, "watch=1 requires a header that a page of another site cannot send: X-Banyan: 1");
        return;
    }
    struct proto_identity who;
    if (!coordinator_admit_http(d->c, request, &who)) {
        refuse_token(d, out);
        return;
    }
    if (who.access == PROTO_ACCESS_NONE) { // that is how the page begins
        ask_for_token(out);
        return;
    }
    if (!coordinator_shows_workers(&who)) { // all of it is of the whole cluster
        refuse(out, 403, "the dashboard requires a token with access operator or admin");
        return;
    }
    for (size_t i = 0; i < sizeof(routes) / sizeof(*routes) && !route; i++)
        route = route_matches(request->path + strlen(API), routes[i].name, &id) ? &routes[i] : NULL;
    if (!route) {
        refuse(out, 404, "not found; docs/operating/dashboard.md lists all paths");
    } else {
        enum common_code code = route->answer(d, request->query, id, &json, &err);
        if (code == COMMON_OK)
            answer_json(out, 200, json);
        else
            refuse(out, http_code(code), err.message);
    }
}

void coordinator_dashboard_answer(void *answerer, const struct common_http_request *request,
                                  struct common_http_answer *out)
{
    struct coordinator_dashboard *d = answerer;
    if (!host_allowed(d, request->host)) {
        refuse(out, 421, "this host name is not allowed: use localhost, or the address of --http");
        return;
    }
    if (strncmp(request->path, API, strlen(API)) == 0) {
        answer_api(d, request, out);
        return;
    }
    const char *path = strcmp(request->path, "/") == 0 ? "/index.html" : request->path;
    for (const struct coordinator_dashboard_file *file = coordinator_dashboard_files; file->path; file++)
        if (strcmp(file->path, path) == 0) {
            answer_file(out, file, request->if_none_match);
            return;
        }
    static const char other[] = "try /, /livez, /readyz or /metrics\n";
    put_headers(out, "text/plain", "no-store");
    out->body = other;
    out->len = sizeof(other) - 1;
}
