// SPDX-License-Identifier: Apache-2.0
// What a coordinator is started with, and what all its rooms read. Units are in the names; all else is in docs/reference/cli.md.
#ifndef COORDINATOR_OPTIONS_H
#define COORDINATOR_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/secure/secret.h"

struct common_tls;
struct common_tracer;

enum coordinator_slow_workers { // what becomes of workers that compute far slower than planned
    COORDINATOR_SLOW_MOVE,      // work and chunks go to others
    COORDINATOR_SLOW_FLAG,      // they are only named
    COORDINATOR_SLOW_IGNORE
};

#define COORDINATOR_PREFIX_SHARE UINT64_MAX // a quarter of what all workers have

struct coordinator_options {
    const char *cluster;          // name, for people
    const char *const *endpoints; // to listen on, ending with NULL
    const struct common_secret *secret;
    const char *token; // a client that presents it is an admin (docs/operating/tenants.md); NULL: none
    bool insecure;     // other addresses than loopback may be listened on without TLS or a token
    // Its certificate, for tls:// and nng+tls:// and to dial workers; a reference is taken; NULL: none
    struct common_tls *tls;
    bool tls_client_certs;  // clients must show one, too
    const char *store_path; // ":memory:" keeps nothing
    bool store_sync_full;
    uint32_t max_workers, max_sessions;
    uint32_t max_clients;         // connections over streams, and again over each nng endpoint
    uint32_t max_requests;        // of clients being served, and again of daemons
    uint32_t max_client_requests; // of these, of one client; 0: half
    uint32_t max_steps;           // that wait or are under way
    uint64_t max_bytes;           // of requests being served, and of replies being gathered
    uint64_t max_client_bytes;    // of these, of one client; 0: an eighth
    uint64_t max_session_tokens;  // positions are below it
    uint64_t session_ttl_ns;      // idle time to live of sessions that are created without one; 0: none
    uint64_t heartbeat_ns;        // workers' interval; three missed: lost
    uint32_t replicas; // of sessions that do not say; 0: 2 where workers are on two hosts or more, else 1
    uint64_t move_bytes_per_s; // of chunks that move, at each receiver; 0: no limit
    enum coordinator_slow_workers slow_workers;
    uint64_t slow_after_ns; // a worker counts as slow after so long
    uint64_t grace_ns;      // a broken link may take this long to come back before the worker counts as lost
    uint64_t ticket_ns;     // life of an attach ticket
    uint32_t events;        // that are kept in memory (events.h)
    uint64_t keep_bytes;    // of steps that are kept, one a session; 0: none are
    uint64_t audit; // one step in so many is computed again by workers, in float64, and compared; 0: none
    uint64_t audit_madds; // multiply-adds of an audit: of a long context some rows and heads are compared
    uint64_t scrub_ns;    // in this time each sealed chunk is compared at all its holders; 0: never
    uint64_t
        prefix_bytes; // of sessions that are kept as cache; 0: none are; COORDINATOR_PREFIX_SHARE: see there
    const char *audit_log; // file that records who has changed what (docs/operating/audit.md); NULL: none
    bool audit_required;   // while that cannot be written, calls that would change something are refused
    struct common_tracer *tracer; // of steps' spans, kept; NULL: none
    // Called when the store is this coordinator's, before it listens. Not called where the store is refused. May be NULL.
    void (*held)(void *arg);
    void *arg;
};

void coordinator_options_default(struct coordinator_options *options);

#endif
