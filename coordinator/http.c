// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/http.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/metrics.h"
#include "coordinator/cluster/plan.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/limits.h"
#include "coordinator/sessions/table.h"
#include "coordinator/state.h"

struct coordinator_http {
    struct coordinator *c;
    struct evhttp *http;
};

// evhttp sends in pieces of 16 KiB and leaves Nagle on: 44 ms for an answer of 20 KB, 52 µs without.
static void no_delay(struct evhttp_request *request)
{
    struct bufferevent *bev = evhttp_connection_get_bufferevent(evhttp_request_get_connection(request));
    int on = 1;
    setsockopt(bufferevent_getfd(bev), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static void http_answer(struct evhttp_request *request, int code, const char *reason, const char *type,
                        const char *text, size_t len)
{
    struct evbuffer *body = evbuffer_new();
    no_delay(request);
    evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Type", type);
    if (body)
        evbuffer_add(body, text, len);
    evhttp_send_reply(request, code, reason, body);
    if (body)
        evbuffer_free(body);
}

static void healthz(struct evhttp_request *request, void *arg)
{
    const struct coordinator_http *http = arg;
    bool serving = !http->c->core.stopping;
    http_answer(request, serving ? 200 : 503, serving ? "OK" : "Service Unavailable", "text/plain",
                serving ? "ok\n" : "stopping\n", serving ? 3 : 9);
}

// Whether it answers calls: for who sends them to the one that does.
static void readyz(struct evhttp_request *request, void *arg)
{
    const struct coordinator_http *http = arg;
    const struct coordinator_core *core = &http->c->core;
    const char *text = core->stopping      ? "stopping\n"
                       : core->standing_by ? "standing by: another coordinator has the store\n"
                                           : "ready\n";
    bool ready = !core->stopping && !core->standing_by;
    http_answer(request, ready ? 200 : 503, ready ? "OK" : "Service Unavailable", "text/plain", text,
                strlen(text));
}

struct number {
    enum common_metric_kind kind;
    const char *name, *help, *label, *value;
    double amount;
};

static bool text_put(struct common_metrics *table, const struct number *n)
{
    struct common_metric_spec spec = {
        .kind = n->kind, .name = n->name, .help = n->help, .label = n->label, .value = n->value};
    struct common_metric *metric;
    if (common_metrics_add(table, &spec, &metric) != COMMON_OK)
        return false;
    common_metric_add(metric, n->amount);
    return true;
}

// Plans by engine: those that an engine's workers offer, and stream.
static bool put_engines(struct common_metrics *table, const struct coordinator *c)
{
    static const char *const engines[] = {COORDINATOR_ENGINE_STREAM, "mpi", "nccl"};
    for (size_t e = 0; e < sizeof(engines) / sizeof(*engines); e++) {
        struct number n = {COMMON_METRIC_GAUGE,
                           "banyan_engine_plans",
                           "Plans whose partials an engine carries.",
                           "engine",
                           engines[e],
                           0};
        for (const struct coordinator_plan *plan = c->cluster.plans; plan; plan = plan->next)
            n.amount += plan->state == COORDINATOR_PLAN_READY && strcmp(plan->engine, engines[e]) == 0;
        if (!text_put(table, &n))
            return false;
    }
    return true;
}

static bool put_limits(struct common_metrics *table, const struct coordinator *c)
{
    struct coordinator_limit_use limits[COORDINATOR_LIMIT_USES];
    uint32_t n = coordinator_limits(c, limits);
    for (uint32_t i = 0; i < n; i++) {
        char name[80];
        snprintf(name, sizeof(name), "%s%s", limits[i].worker[0] ? "worker_" : "", limits[i].name);
        const struct number numbers[] = {
            {COMMON_METRIC_GAUGE, "banyan_limit_used", "What is in use of a limit.", "limit", name,
             (double)limits[i].used},
            {COMMON_METRIC_GAUGE, "banyan_limit_max", "How much may be in use.", "limit", name,
             (double)limits[i].max},
            {COMMON_METRIC_COUNTER, "banyan_limit_refused_total",
             "Times that a limit was reached: refused, closed or not read on.", "limit", name,
             (double)limits[i].refused},
        };
        for (size_t k = 0; k < sizeof(numbers) / sizeof(*numbers); k++)
            if (!text_put(table, &numbers[k]))
                return false;
    }
    return true;
}

static bool put_all(struct common_metrics *table, const struct coordinator *c)
{
    const enum common_metric_kind counter = COMMON_METRIC_COUNTER, gauge = COMMON_METRIC_GAUGE;
    const struct number numbers[] = {
        {counter, "banyan_steps_total", "Items of attend calls answered.", NULL, NULL,
         (double)c->steps.count_steps},
        {counter, "banyan_frames_total", "Step frames sent to roots.", NULL, NULL,
         (double)c->steps.count_frames},
        {counter, "banyan_retries_total", "Items sent again.", NULL, NULL, (double)c->steps.count_retries},
        {counter, "banyan_collective_frames_total", "Step frames whose partials a communicator carried.",
         NULL, NULL, (double)c->steps.count_collective},
        {counter, "banyan_damaged_frames_total",
         "Messages to the coordinator that were damaged on their way.", NULL, NULL,
         (double)proto_frames_damaged()},
        {counter, "banyan_moved_chunks_total", "Copies of chunks that have moved to a worker.", NULL, NULL,
         (double)c->sessions.moves.chunks},
        {counter, "banyan_moved_bytes_total", "Bytes of K and V that moves have copied between workers.",
         NULL, NULL, (double)c->sessions.moves.bytes},
        {counter, "banyan_struck_copies_total", "Copies of chunks struck off: their workers were lost.", NULL,
         NULL, (double)c->sessions.moves.struck},
        {gauge, "banyan_thin_chunks", "Chunks with fewer copies than their sessions ask for.", NULL, NULL,
         (double)coordinator_sessions_thin(&c->sessions)},
        {gauge, "banyan_moves", "Moves of chunks between workers under way.", NULL, NULL,
         c->sessions.moves.n},
        {gauge, "banyan_wished_chunks", "Chunks that a balance wants elsewhere and that do not move yet.",
         NULL, NULL, c->sessions.moves.n_wishes},
        {gauge, "banyan_sessions", "Sessions.", NULL, NULL, c->sessions.n},
        {gauge, "banyan_plans", "Plans.", NULL, NULL, c->cluster.n_plans},
        {gauge, "banyan_items", "Items of attend calls under way.", NULL, NULL, c->steps.items},
        {gauge, "banyan_term", "Number of this coordinator's life.", NULL, NULL, (double)c->core.term},
        {gauge, "banyan_standing_by", "1 while another coordinator has the store.", NULL, NULL,
         c->core.standing_by},
        {gauge, "banyan_uptime_seconds", "Since the start.", NULL, NULL,
         (double)(common_clock_ns() - c->core.started_ns) / 1e9},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        if (!text_put(table, &numbers[i]))
            return false;
    if (!put_engines(table, c) || !put_limits(table, c))
        return false;
    for (uint32_t i = 0; i < c->cluster.n_workers; i++) {
        const struct coordinator_worker *w = c->cluster.workers[i];
        if (!w)
            continue;
        const struct number mine[] = {
            {gauge, "banyan_worker_active", "1 while the worker may compute.", "worker", w->name,
             coordinator_worker_active(w)},
            {gauge, "banyan_worker_draining", "1 while it is being emptied, or is out of use.", "worker",
             w->name, w->draining},
            {gauge, "banyan_worker_used_bytes", "Memory of K and V in use.", "worker", w->name,
             (double)w->used_bytes},
            {gauge, "banyan_worker_capacity_bytes", "Memory of K and V that it may use.", "worker", w->name,
             (double)w->capacity_bytes},
            {gauge, "banyan_worker_tokens", "Tokens in these chunks.", "worker", w->name, (double)w->tokens},
            {gauge, "banyan_worker_chunks", "Chunks placed on it.", "worker", w->name, (double)w->chunks},
            {gauge, "banyan_worker_store_bytes", "Bytes of its files (--store).", "worker", w->name,
             (double)w->store_bytes},
            {gauge, "banyan_worker_store_refused", "Writes that its files have not taken, since its start.",
             "worker", w->name, (double)w->store_refused},
            {gauge, "banyan_worker_store_damaged", "Files that were found damaged, since its start.",
             "worker", w->name, (double)w->store_damaged},
        };
        for (size_t k = 0; k < sizeof(mine) / sizeof(*mine); k++)
            if (!text_put(table, &mine[k]))
                return false;
    }
    return true;
}

static void metrics(struct evhttp_request *request, void *arg)
{
    const struct coordinator_http *http = arg;
    struct common_metrics *table = common_metrics_new();
    char *text = NULL;
    size_t len = 0;
    if (table && put_all(table, http->c) && common_metrics_render(table, &text, &len) == COMMON_OK)
        http_answer(request, 200, "OK", "text/plain; version=0.0.4; charset=utf-8", text, len);
    else
        http_answer(request, 503, "Service Unavailable", "text/plain", "out of memory\n", 14);
    free(text);
    common_metrics_free(table);
}

static void other(struct evhttp_request *request, void *arg)
{
    (void)arg;
    http_answer(request, 404, "Not Found", "text/plain", "try /healthz, /readyz or /metrics\n", 34);
}

enum common_code coordinator_http_new(struct coordinator *c, const char *address, bool insecure,
                                      struct coordinator_http **out, struct common_error *err)
{
    char host[64], endpoint[96];
    const char *colon = strrchr(address, ':');
    unsigned port = 0;
    char rest;
    if (!colon || colon == address || (size_t)(colon - address) >= sizeof(host) ||
        sscanf(colon + 1, "%5u%c", &port, &rest) != 1 || port > 65535)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "--http takes HOST:PORT, not %s", address);
    snprintf(host, sizeof(host), "%.*s", (int)(colon - address), address);
    snprintf(endpoint, sizeof(endpoint), "tcp://%s", address);
    if (proto_listen_allowed(endpoint, false, insecure, err) != COMMON_OK)
        return common_error_set(
            err, COMMON_PERMISSION_DENIED,
            "--http %s is not a loopback address and has no authentication: add --insecure to allow it",
            address);
    struct coordinator_http *http = coordinator_alloc(sizeof(*http));
    http->c = c;
    http->http = evhttp_new(common_loop_base(c->core.loop));
    if (!http->http || evhttp_bind_socket(http->http, host, (uint16_t)port)) {
        coordinator_http_free(http);
        return common_error_set(
            err, COMMON_ALREADY_EXISTS,
            "--http %s cannot be listened on: the address is taken, or not this machine's", address);
    }
    evhttp_set_allowed_methods(http->http, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
    evhttp_set_max_headers_size(http->http, 4096);
    evhttp_set_max_body_size(http->http, 0);
    evhttp_set_timeout(http->http, 5);
    evhttp_set_cb(http->http, "/healthz", healthz, http);
    evhttp_set_cb(http->http, "/readyz", readyz, http);
    evhttp_set_cb(http->http, "/metrics", metrics, http);
    evhttp_set_gencb(http->http, other, http);
    *out = http;
    return COMMON_OK;
}

void coordinator_http_free(struct coordinator_http *http)
{
    if (!http)
        return;
    if (http->http)
        evhttp_free(http->http);
    free(http);
}
