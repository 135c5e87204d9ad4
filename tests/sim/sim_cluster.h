// SPDX-License-Identifier: Apache-2.0
// A whole cluster in a test: the real coordinator, real workers and one client, each a process of a world of
// its own.
//
//   struct sim_cluster *cluster = sim_cluster_new(&(struct sim_cluster_options){.workers = 2});
//   sim_cluster_start(cluster);                      // coordinator and workers; all ACTIVE when it returns
//   struct sim_call *call = sim_create(cluster->client, (struct sim_shape){0}, "a");
//   sim_wait(call);                                  // simulated time passes until it is done
//   ...
//   sim_cluster_free(cluster);                       // and asserts that nothing is left
#ifndef TESTS_SIM_SIM_CLUSTER_H
#define TESTS_SIM_SIM_CLUSTER_H

#include "common/secure/secret.h"
#include "coordinator/coordinator.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_client.h"
#include "tests/sim/sim_net.h"
#include "tests/sim/sim_serve.h"
#include "tests/sim/sim_store.h"
#include "tests/sim/sim_worker.h"

#define SIM_COORDINATOR "tcp://127.0.0.1:7000"
#define SIM_SECOND      "tcp://127.0.0.1:7001" // where the next one listens, while the old one is still there
#define SIM_DISK_PATH   "disk"

enum { SIM_WORKERS_MAX = 16 };

struct sim_cluster_options {
    uint64_t seed;         // of the world
    uint32_t workers;      // w0, w1, ...: each on a host of its own
    uint32_t later;        // so many of them, the last ones, do not start with the cluster
    uint64_t memory_bytes; // of each worker; 0: 64 MiB
    bool team;             // workers compute even the smallest step on their teams
    uint64_t
        pace; // bytes a second that workers say they compute, where they say how fast they do; 0: far more
    uint64_t attach_ttl_ns; // of each worker
    bool store;             // workers keep what they hold in files
    bool syncs;             // some of their processes with --fsync always
    uint64_t scrub_ns;      // and read them once in this time
    bool second;            // workers know both endpoints of the coordinator
    size_t inventory_bytes; // of a page of their inventories; 0: the usual
    // Changes the coordinator's options before each start; NULL: defaults with heartbeats of 100 ms.
    void (*tune)(struct coordinator_options *options);
};

struct sim_coordinator {
    const char *endpoint;
    struct common_loop *loop; // NULL while it is down
    struct coordinator *coordinator;
    bool stopping; // it has had SIGTERM, and has not ended
};

struct sim_cluster { // for tests to read
    struct sim_cluster_options options;
    struct common_secret secret;
    struct sim_coordinator coordinators[2];
    uint32_t active; // which of them
    // Of the active one:
    struct common_loop *loop; // the coordinator's; NULL while it is down
    struct coordinator *coordinator;
    struct sim_worker *workers[SIM_WORKERS_MAX];
    struct sim_client *client;
    int64_t
        coordinator_skew_ns; // of the wall clock where coordinators run (sim_loop_skew), from the next start on
};

// Begins a world. Nothing runs yet.
struct sim_cluster *sim_cluster_new(const struct sim_cluster_options *options);

// Starts the coordinator, the workers and the client, and waits until all workers are ACTIVE.
void sim_cluster_start(struct sim_cluster *cluster);

// The coordinator alone. Fails as coordinator_new does.
enum common_code sim_coordinator_start(struct sim_cluster *cluster, struct common_error *err);

// Kills it as SIGKILL does: nothing more goes out, links close, what was not durable is lost. What is in
// memory is freed, on simulated time that stands still.
void sim_coordinator_kill(struct sim_cluster *cluster);

// Ends it as SIGTERM does: calls are answered, the store is written.
void sim_coordinator_stop(struct sim_cluster *cluster);

// SIGTERM while its disk is slow, or it is stopped: it serves no more calls, writes what it was given in the
// disk's own time, and has the store for so much longer.
void sim_coordinator_stop_slowly(struct sim_cluster *cluster, uint64_t ns);
// Another process on the same store, at the other endpoint: a supervisor's next one. Fails as coordinator_new
// does, while the old one has the store (FAILED_PRECONDITION). If not, it is the active one, and clients are
// to be redirected to cluster->coordinators[cluster->active].endpoint.
enum common_code sim_next_start(struct sim_cluster *cluster, struct common_error *err);
// One that has had SIGTERM: whether it is still there, which is looked at now, and SIGKILL; nothing when none
// is.
bool sim_old_runs(struct sim_cluster *cluster);
void sim_old_kill(struct sim_cluster *cluster);

// Asks the coordinator every 10 ms until so many workers are ACTIVE, for at most 20 s.
bool sim_wait_active(struct sim_cluster *cluster, uint32_t n);

// Whether the tokens that the coordinator has kept of each worker are those that counting its layouts gives.
bool sim_tokens_counted(const struct sim_cluster *cluster);
// Likewise what tenants have in use of their quotas: sessions, room of chunks, steps and connections.
bool sim_quotas_counted(const struct sim_cluster *cluster);

// Waits until the call is done, at most 60 s of simulated time. Returns its code; COMMON_IN_PROGRESS: it is
// not.
enum common_code sim_wait(struct sim_call *call);

// Ends everything and asserts that every call of the client came to its end once.
void sim_cluster_free(struct sim_cluster *cluster);

#endif
