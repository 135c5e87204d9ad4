// SPDX-License-Identifier: Apache-2.0
#include "client/lib/core/spans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "client/lib/core/error.h"
#include "client/lib/core/wait.h"
#include "common/base/random.h"
#include "common/tracing/tracer.h"

#define FINISH_NS (1 * COMMON_NS_PER_S)

// ---- the environment ----------------------------------------------------------------------------

static const char *set(const char *name) // NULL: it is not, or is empty
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static const char *either(const char *first, const char *second)
{
    const char *value = set(first);
    return value ? value : set(second);
}

// As https://opentelemetry.io/docs/specs/otel/protocol/exporter/ has it. NULL: nothing that we could speak
// to.
static const char *collector(char url[1024])
{
    const char *whole = set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), *base = set("OTEL_EXPORTER_OTLP_ENDPOINT");
    const char *protocol = either("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL");
    const char *disabled = set("OTEL_SDK_DISABLED");
    const char *endpoint = whole ? whole : base;
    if (!endpoint || !protocol || strcmp(protocol, "http/json") != 0 ||
        (disabled && !strcasecmp(disabled, "true")))
        return NULL;
    size_t len = strlen(endpoint);
    bool slash = !whole && endpoint[len - 1] == '/';
    int n = snprintf(url, 1024, "%.*s%s", (int)(len - slash), endpoint, whole ? "" : "/v1/traces");
    return n > 0 && n < 1024 && strncasecmp(endpoint, "http://", 7) == 0 ? url : NULL;
}

banyan_code client_spans_open(struct banyan_client *client, banyan_error *error)
{
    char url[1024], host[256] = "";
    const struct common_tracer_options options = {.file = set("BANYAN_TRACE_FILE"), .otlp = collector(url)};
    const char *service = set("OTEL_SERVICE_NAME");
    struct common_error err;
    if (!options.file && !options.otlp)
        return BANYAN_OK;
    if (gethostname(host, sizeof host - 1) != 0)
        snprintf(host, sizeof host, "localhost");
    const struct common_span_attribute resource[] = {
        {.key = "service.name", .type = COMMON_SPAN_TEXT, .text = service ? service : "libbanyan"},
        {.key = "host.name", .type = COMMON_SPAN_TEXT, .text = host},
        {.key = "process.pid", .type = COMMON_SPAN_NUMBER, .number = (uint64_t)getpid()},
    };
    enum common_code code = common_tracer_new(client->loop, resource, 3, &client->tracer, &err);
    if (code == COMMON_OK)
        code = common_tracer_set(client->tracer, &options, &err);
    if (code == COMMON_FAILED_PRECONDITION)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "BANYAN_TRACE_FILE: %s", err.message);
    return code == COMMON_OK ? BANYAN_OK : client_error_set(error, (banyan_code)code, "%s", err.message);
}

static void finished(void *arg)
{
    client_wait_signal(arg);
}

struct finishing {
    struct common_tracer *tracer;
    struct client_wait wait;
};

static void finish(void *arg)
{
    struct finishing *finishing = arg;
    common_tracer_finish(finishing->tracer, FINISH_NS, finished, &finishing->wait);
}

void client_spans_finish(struct banyan_client *client)
{
    struct finishing finishing = {.tracer = client->tracer};
    if (!client->tracer)
        return;
    common_loop_call(client->loop, finish, &finishing);
    client_wait_for(&finishing.wait);
}

// ---- items --------------------------------------------------------------------------------------

banyan_code client_item_trace_take(const struct banyan_client *client, const char *traceparent,
                                   struct client_item_trace *out, banyan_error *error)
{
    struct client_item_trace taken = {.there = true};
    struct common_error err;
    if (common_trace_parse(traceparent, &taken.trace, &err) != COMMON_OK)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "item: %s", err.message);
    memcpy(taken.parent_id, taken.trace.span_id, sizeof taken.parent_id);
    if (client->tracer && common_trace_sampled(&taken.trace)) {
        uint64_t id = 0;
        taken.own = common_random(&id, sizeof id) && id;
        if (taken.own)
            memcpy(taken.trace.span_id, &id, sizeof taken.trace.span_id);
    }
    *out = taken;
    return BANYAN_OK;
}

void client_spans_add(struct banyan_client *client, const struct client_item_trace *traces,
                      const banyan_item *items, size_t n, uint64_t started_ns, uint64_t ended_ns)
{
    for (size_t i = 0; i < n; i++) {
        const banyan_item *item = &items[i];
        if (!traces[i].own)
            continue;
        struct common_span span = {.trace_id = traces[i].trace.trace_id,
                                   .name = "banyan.attend",
                                   .kind = COMMON_SPAN_CLIENT,
                                   .start_ns = started_ns,
                                   .end_ns = ended_ns,
                                   .code = (enum common_code)item->code,
                                   .message = item->error && item->code ? item->error->message : NULL};
        memcpy(span.id, traces[i].trace.span_id, sizeof span.id);
        memcpy(span.parent_id, traces[i].parent_id, sizeof span.parent_id);
        if (item->session)
            common_span_hex(&span, "banyan.session", item->session->id);
        common_span_number(&span, "banyan.layer", item->layer);
        common_span_number(&span, "banyan.position", item->first);
        common_span_number(&span, "banyan.rows", item->rows);
        common_span_number(&span, "banyan.items", n);
        common_span_text(&span, "server.address", client->endpoint);
        if (item->code == BANYAN_OK)
            common_span_hex(&span, "banyan.plan_digest", item->digest);
        common_tracer_add(client->tracer, &span);
    }
}
