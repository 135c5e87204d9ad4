// SPDX-License-Identifier: Apache-2.0
// What the serving ends of a daemon have for its /metrics, in families that all daemons share:
//
//   banyan_rpc_seconds{method}            from a whole request to its answer; methods that were called
//   banyan_rpc_failures_total{code}       banyan_refused_total{reason}
//   banyan_clients                        connections of clients
//   banyan_damaged_frames_total           banyan_limit_used, _max, _refused_total{limit}
//   banyan_tls_certificate_expiry_timestamp_seconds{which}   with TLS: own, ca
#ifndef PROTO_METRICS_H
#define PROTO_METRICS_H

#include "common/http/http.h"
#include "common/metrics/metrics.h"
#include "proto/rpc/rpc.h"

// Of --http, --http-tls and --tls-client-cert, before there is anything else: what cannot be listened on ends
// the start. Without --http *out stays NULL. insecure: other addresses than loopback are allowed; as they are
// where callers must show a certificate. As common_http_new and common_daemon_http_tls; PERMISSION_DENIED.
struct common_daemon;
enum common_code proto_http_new(struct common_loop *loop, const struct common_daemon *daemon, bool insecure,
                                struct common_http **out, struct common_error *err);

// The servers' sums, without their limits; false: no memory.
bool proto_metrics_put(struct common_metrics *table, const struct proto_server *const *servers, size_t n);
struct common_tls;
bool proto_metrics_put_tls(struct common_metrics *table, const struct common_tls *tls); // NULL: nothing
bool proto_metrics_put_limit(struct common_metrics *table, const char *name, uint64_t used, uint64_t max,
                             uint64_t refused);
// A counter for each code but OK, in the label `code`.
bool proto_metrics_put_codes(struct common_metrics *table, const char *name, const char *help,
                             const uint64_t counts[COMMON_CODE_COUNT]);

#endif
