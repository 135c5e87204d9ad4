// SPDX-License-Identifier: Apache-2.0
// The coordinator as an object on one loop: main.c makes one from the command line, tests make them from
// options. Everything is called on the loop thread, or while nobody runs the loop.
#ifndef COORDINATOR_COORDINATOR_H
#define COORDINATOR_COORDINATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "common/loop.h"
#include "common/secret.h"
#include "common/status.h"

struct coordinator;

struct coordinator_options {
    const char *cluster;          // name, for people
    const char *const *endpoints; // to listen on, ending with NULL
    const struct common_secret *secret;
    const char *token;      // clients must present it; NULL: none
    bool insecure;          // other addresses than loopback may be listened on without a token
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
    uint64_t
        move_bytes_per_s; // of chunks that go to another worker, at each that receives; 0: as fast as it goes
    uint64_t grace_ns;    // a broken link may take this long to come back before the worker counts as lost
    uint64_t ticket_ns;   // life of an attach ticket
    // Another coordinator may have the store: then this one listens, refuses every call (UNAVAILABLE, STANDBY), and takes
    // the store over when the other is gone or does not run (store/lease.h).
    bool standby;
    void (*active)(
        void *arg); // it has, and serves from now on; not called when it serves from the start; may be NULL
    // This coordinator must end at once, without another answer: FAILED_PRECONDITION: another one has its store, or may
    // have; other codes: it could not take the store. It is not stopped: it does nothing more. May be NULL with ":memory:".
    void (*over)(void *arg, enum common_code code, const char *why);
    void *arg;
};

void coordinator_options_default(struct coordinator_options *options);

// Opens the store, loads the sessions and listens. Strings are copied. Codes of the store and of
// proto_server_listen.
enum common_code coordinator_new(struct common_loop *loop, const struct coordinator_options *options,
                                 struct coordinator **out, struct common_error *err);

bool coordinator_stands_by(const struct coordinator *c);

const char *coordinator_endpoint(const struct coordinator *c,
                                 uint32_t nth); // listened on, with real ports; NULL past the end

// Ends everything under way (calls are answered CANCELLED or UNAVAILABLE) and writes what was submitted to
// the store. Does not stop the loop.
void coordinator_stop(struct coordinator *c);

// After stop, once the loop has ended (or was never run). NULL is allowed.
void coordinator_free(struct coordinator *c);

#endif
