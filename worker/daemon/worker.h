// SPDX-License-Identifier: Apache-2.0
// A worker: holds K and V of chunks, computes attention over them, merges with its children's answers. All
// state belongs to the loop thread; the compute team reads pinned memory only (worker/README.md).
#ifndef WORKER_WORKER_H
#define WORKER_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/loop/loop.h"
#include "common/secure/secret.h"
#include "worker/disk/disk.h"

struct common_tls;
struct common_tracer;
struct worker; // opaque
struct worker_device;
struct worker_engine;
struct worker_files;
struct worker_place;

struct worker_config {           // strings are copied
    const char *name;            // unique in the cluster, 1..64 bytes
    const char *host;            // 1..64 bytes
    const char *coordinator;     // stream endpoint; NULL: none is dialled (tests)
    const char *listen;          // public endpoint: clients' puts
    const char *edge_listen;     // stream endpoint: the coordinator and parents
    const char *advertise;       // host to tell the others in place of these two's; NULL: address.h
    bool listen_by_default;      // `listen` was not given: a loopback address stays what it is
    struct common_secret secret; // the cluster's
    const char *token;           // clients may present it in place of a pass; NULL: none
    struct common_tls
        *tls; // its certificate, for tls:// and nng+tls:// endpoints; a reference is taken; NULL: none
    bool tls_client_certs; // clients must show one, too
    bool insecure;         // endpoints may be other than loopback without TLS, the public one without a token
    uint64_t memory_bytes; // for K and V and for what is in flight
    bool prefault;         // what of it is for K and V is had from the system at once; not with a device
    uint32_t max_clients;  // connections; 0: 1024
    uint64_t attach_ttl_ns;           // rows that are put and not committed stay so long; 0: forever
    const char *store;                // directory that keeps K and V; NULL: memory alone
    enum worker_fsync fsync;          // of it
    const char *boot;                 // which start of the machine this is; NULL: as the system says
    uint64_t scrub_ns;                // all of it is read once in this time; 0: it is not
    uint64_t store_limit;             // of K and V, in memory and files together; 0: what memory has room for
    uint32_t read_ahead;              // layers that are read from it before they are asked for
    struct worker_files *files;       // it, open, taken over; NULL: worker_new opens it
    struct worker_device *device;     // that holds K and V and computes, kept; NULL: the team does
    const char *no_device;            // why not (worker/processors/device.h), kept; NULL: nothing to say
    struct worker_engine *engine;     // offered beside `stream`, kept; NULL: none
    struct common_tracer *tracer;     // of steps' spans, kept; NULL: none
    uint32_t threads;                 // of the compute team, >= 1
    const struct worker_place *place; // where they and the memory go, kept; NULL: anywhere
    // Steps with fewer multiply-adds are computed on the loop thread; 0: measured default.
    uint64_t inline_madds;
    uint64_t bandwidth; // bytes of K and V per second to report; 0: measured now (about 0.1 s)
    // The device is lost: no step succeeds any more. It must be drained and restarted. May be NULL.
    void (*failed)(void *arg, const struct common_error *err);
    void *failed_arg;
    void (*registered)(void *arg); // the coordinator accepted us, again and again; may be NULL
    void *registered_arg;
};

// Listens and begins to register. On the loop thread, or before it runs. Errors say what to do.
enum common_code worker_new(struct common_loop *loop, const struct worker_config *config, struct worker **out,
                            struct common_error *err);
// Takes those of these options that may change while it runs: attach_ttl_ns, read_ahead, scrub_ns (another round begins).
void worker_set_config(struct worker *worker, const struct worker_config *config);
const char *worker_endpoint(const struct worker *worker); // public, with its real port, as others know it
const char *worker_edge_endpoint(const struct worker *worker); // likewise

// Has the coordinator move its chunks to other workers; it goes on serving. done runs once, never on this stack: it has
// none any more, or (empty false) limit_ns (0: no limit) is over. Once in a worker's life; it has a coordinator.
// RESOURCE_EXHAUSTED.
enum common_code worker_empty(struct worker *worker, uint64_t limit_ns, void (*done)(void *arg, bool empty),
                              void *arg);
// Bytes of K and V that no file holds: they go with this worker.
uint64_t worker_unsaved_bytes(const struct worker *worker);
// Takes no new steps and lets those in hand end; after grace_ns it ends them. Then calls done once, on the
// loop thread, never on this stack. Once in a worker's life. RESOURCE_EXHAUSTED: nothing has changed.
enum common_code worker_drain(struct worker *worker, uint64_t grace_ns, void (*done)(void *arg), void *arg);
// Tells the coordinator that this process ends as it was asked to, once no step is in hand. done runs once:
// when that was answered, or a second later. Once in a worker's life. RESOURCE_EXHAUSTED: done does not run.
enum common_code worker_say_farewell(struct worker *worker, void (*done)(void *arg), void *arg);
// When no step is in hand: after worker_drain's done, or when none was sent. On the loop thread, or when it
// runs no more. NULL is allowed.
void worker_free(struct worker *worker);

#endif
