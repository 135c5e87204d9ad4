// SPDX-License-Identifier: Apache-2.0
// banyan_item.traceparent on its way, and the client's own spans (docs/operating/tracing.md). A call without
// one pays a comparison an item.
//
// Spans are exported where the environment says so when a client connects:
//   BANYAN_TRACE_FILE                     appended to, lines of OTLP JSON
//   OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,   OTEL_EXPORTER_OTLP_ENDPOINT: a collector, where OTEL_EXPORTER_OTLP_TRACES_PROTOCOL or
//                                         OTEL_EXPORTER_OTLP_PROTOCOL is http/json and the endpoint begins with http://
//   OTEL_SERVICE_NAME                     service.name of these spans, else libbanyan; OTEL_SDK_DISABLED=true: no collector
#ifndef CLIENT_SPANS_H
#define CLIENT_SPANS_H

#include "client/lib/core/internal.h"
#include "common/base/trace.h"
#include "common/tracing/span.h"

struct client_item_trace {
    struct common_trace trace; // as it is sent; flags of one that is not there are zero, and its ids
    bool there, own;           // own: trace.span_id is a span of ours, below parent_id
    uint8_t parent_id[COMMON_SPAN_ID_BYTES];
};

// I/O thread, at connect. client->tracer stays NULL where the environment asks for nothing. INVALID_ARGUMENT:
// the file; RESOURCE_EXHAUSTED.
banyan_code client_spans_open(struct banyan_client *client, banyan_error *error);
// Any other thread, before the loop stops: lets the last spans leave, for a second at most.
void client_spans_finish(struct banyan_client *client);

// Any thread. INVALID_ARGUMENT: it is malformed.
banyan_code client_item_trace_take(const struct banyan_client *client, const char *traceparent,
                                   struct client_item_trace *out, banyan_error *error);
// I/O thread: the items of a call that has ended. traces: [n].
void client_spans_add(struct banyan_client *client, const struct client_item_trace *traces,
                      const banyan_item *items, size_t n, uint64_t started_ns, uint64_t ended_ns);

#endif
