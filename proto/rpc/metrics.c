// SPDX-License-Identifier: Apache-2.0
#include "proto/rpc/metrics.h"

#include <stdio.h>

#include "common/cli/daemon.h"
#include "common/secure/tls.h"
#include "proto/rpc/endpoint.h"
#include "proto/wire/codec.h"

static const char *const reasons[PROTO_REFUSALS] = {
    [PROTO_REFUSED_CONNECTION] = "connection", [PROTO_REFUSED_TOKEN] = "token", [PROTO_REFUSED_ROLE] = "role",
    [PROTO_REFUSED_METHOD] = "method",         [PROTO_REFUSED_LIMIT] = "limit", [PROTO_REFUSED_LATE] = "late",
    [PROTO_REFUSED_MESSAGE] = "message",
};

static bool put_number(struct common_metrics *table, const struct common_metric_spec *spec, uint64_t number)
{
    return common_metrics_put(table, spec, (double)number);
}

bool proto_metrics_put_codes(struct common_metrics *table, const char *name, const char *help,
                             const uint64_t counts[COMMON_CODE_COUNT])
{
    for (int code = COMMON_OK + 1; code < COMMON_CODE_COUNT; code++)
        if (!put_number(table,
                        &(struct common_metric_spec){.kind = COMMON_METRIC_COUNTER,
                                                     .name = name,
                                                     .help = help,
                                                     .label = "code",
                                                     .value = common_code_name((enum common_code)code)},
                        counts[code]))
            return false;
    return true;
}

bool proto_metrics_put_limit(struct common_metrics *table, const char *name, uint64_t used, uint64_t max,
                             uint64_t refused)
{
    const struct common_metric_spec specs[] = {
        {.kind = COMMON_METRIC_GAUGE, .name = "banyan_limit_used", .help = "How much of a limit is in use."},
        {.kind = COMMON_METRIC_GAUGE, .name = "banyan_limit_max", .help = "The limit."},
        {.kind = COMMON_METRIC_COUNTER,
         .name = "banyan_limit_refused_total",
         .help = "Times that a limit was reached and something was refused, closed or left unread."},
    };
    const uint64_t numbers[] = {used, max, refused};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        struct common_metric_spec spec = specs[i];
        spec.label = "limit";
        spec.value = name;
        if (!put_number(table, &spec, numbers[i]))
            return false;
    }
    return true;
}

static bool put_methods(struct common_metrics *table, const struct proto_server_counts *counts, size_t n)
{
    for (uint32_t method = 0; method < PROTO_METHOD_LIMIT; method++) {
        const struct proto_method_info *info = proto_codec_method(method);
        struct common_buckets sum = {0};
        for (size_t i = 0; i < n; i++)
            common_buckets_sum(&sum, &counts[i].took[method]);
        if (info && common_buckets_count(&sum) &&
            !common_metrics_put_buckets(
                table,
                &(struct common_metric_spec){.kind = COMMON_METRIC_HISTOGRAM,
                                             .name = "banyan_rpc_seconds",
                                             .help = "Time from a complete request to its answer.",
                                             .label = "method",
                                             .value = info->name},
                &sum))
            return false;
    }
    return true;
}

static bool put_refusals(struct common_metrics *table, const uint64_t refused[PROTO_REFUSALS])
{
    for (int i = 0; i < PROTO_REFUSALS; i++)
        if (!put_number(
                table,
                &(struct common_metric_spec){.kind = COMMON_METRIC_COUNTER,
                                             .name = "banyan_refused_total",
                                             .help = "Connections and requests refused before any handler.",
                                             .label = "reason",
                                             .value = reasons[i]},
                refused[i]))
            return false;
    return true;
}

bool proto_metrics_put(struct common_metrics *table, const struct proto_server *const *servers, size_t n)
{
    enum { SERVERS_MAX = 4 };
    struct proto_server_counts counts[SERVERS_MAX];
    uint64_t failed[COMMON_CODE_COUNT] = {0}, refused[PROTO_REFUSALS] = {0}, clients = 0;
    n = n < SERVERS_MAX ? n : SERVERS_MAX;
    for (size_t i = 0; i < n; i++) {
        struct proto_limit_use uses[PROTO_LIMIT_COUNT];
        proto_server_limits(servers[i], uses);
        proto_server_counts(servers[i], &counts[i]);
        clients += uses[PROTO_LIMIT_CLIENTS].used + uses[PROTO_LIMIT_NNG_CLIENTS].used;
        for (int c = 0; c < COMMON_CODE_COUNT; c++)
            failed[c] += counts[i].failed[c];
        for (int r = 0; r < PROTO_REFUSALS; r++)
            refused[r] += counts[i].refused[r];
    }
    return put_number(table,
                      &(struct common_metric_spec){.kind = COMMON_METRIC_GAUGE,
                                                   .name = "banyan_clients",
                                                   .help = "Connections of clients."},
                      clients) &&
           put_number(
               table,
               &(struct common_metric_spec){.kind = COMMON_METRIC_COUNTER,
                                            .name = "banyan_damaged_frames_total",
                                            .help = "Messages to this process that were damaged in transit."},
               proto_frames_damaged()) &&
           proto_metrics_put_codes(table, "banyan_rpc_failures_total", "Requests answered with an error.",
                                   failed) &&
           put_refusals(table, refused) && put_methods(table, counts, n);
}

bool proto_metrics_put_tls(struct common_metrics *table, const struct common_tls *tls)
{
    struct common_metric_spec spec = {
        .kind = COMMON_METRIC_GAUGE,
        .name = "banyan_tls_certificate_expiry_timestamp_seconds",
        .help = "When the certificate of this process and that of its authority expire.",
        .label = "which",
        .value = "own"};
    if (!tls)
        return true;
    if (!common_metrics_put(table, &spec, (double)common_tls_expires_s(tls)))
        return false;
    spec.value = "ca";
    return common_metrics_put(table, &spec, (double)common_tls_ca_expires_s(tls));
}

// ---- --http -----------------------------------------------------------------------------------------------

// True for what is not an address: the listener reports it.
static bool is_near(const char *address)
{
    struct proto_endpoint endpoint;
    char text[PROTO_ENDPOINT_MAX];
    return snprintf(text, sizeof text, "tcp://%s", address) >= (int)sizeof text ||
           proto_endpoint_parse(text, &endpoint, NULL) != COMMON_OK || proto_endpoint_is_loopback(&endpoint);
}

enum common_code proto_http_new(struct common_loop *loop, const struct common_daemon *daemon, bool insecure,
                                struct common_http **out, struct common_error *err)
{
    const char *address = daemon->http;
    struct common_tls *tls = NULL;
    bool near = !address || is_near(address);
    enum common_code code = common_daemon_http_tls(daemon, near, &tls, err);
    if (code != COMMON_OK || !address)
        return code;
    bool wants_certs = tls && common_daemon_wants_client_certs(daemon);
    if (!near && !insecure && !wants_certs)
        return common_error_set(
            err, COMMON_PERMISSION_DENIED,
            "--http %.100s is not a loopback address, and anyone who can reach it can read health and "
            "metrics, and the dashboard of a coordinator without a token: add --http-insecure to allow this "
            "(all else stays protected), or --tls-client-cert require with certificates",
            address);
    code = common_http_new(loop, address, out, err);
    if (code == COMMON_OK)
        common_http_secure(*out, tls, wants_certs);
    return code;
}
