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

#include "common/secret.h"
#include "coordinator/coordinator.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_client.h"
#include "tests/sim/sim_net.h"
#include "tests/sim/sim_serve.h"
#include "tests/sim/sim_store.h"
#include "tests/sim/sim_worker.h"

#define SIM_COORDINATOR "tcp://127.0.0.1:7000"
#define SIM_STANDBY     "tcp://127.0.0.1:7001" // where the second one listens
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
    uint64_t scrub_ns;      // and read them once in this time
    size_t inventory_bytes; // of a page of their inventories; 0: as ever
    bool standby;           // workers know the endpoints of two coordinators
    // Changes the coordinator's options before each start; NULL: defaults with heartbeats of 100 ms.
    void (*tune)(struct coordinator_options *options);
};

struct sim_coordinator {
    const char *endpoint;
    struct common_loop *loop; // NULL while it is down
    struct coordinator *coordinator;
    bool over; // it has said that it must end, and is mute from then on
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
};

// Begins a world. Nothing runs yet.
struct sim_cluster *sim_cluster_new(const struct sim_cluster_options *options);

// Starts the coordinator, the workers and the client, and waits until all workers are ACTIVE.
void sim_cluster_start(struct sim_cluster *cluster);

// The coordinator alone. Fails as coordinator_new does.
enum common_code sim_coordinator_start(struct sim_cluster *cluster, struct common_error *err);

// Kills it as SIGKILL does: nothing more goes out, links close, what was not durable is lost. What is in memory
// is freed, on simulated time that stands still.
void sim_coordinator_kill(struct sim_cluster *cluster);

// Ends it as SIGTERM does: calls are answered, the store is written.
void sim_coordinator_stop(struct sim_cluster *cluster);

// A second one that stands by on the same store, and whether it has taken over. Then swap: it is the active one, and
// clients are to be redirected to cluster->coordinators[cluster->active].endpoint.
enum common_code sim_standby_start(struct sim_cluster *cluster, struct common_error *err);
struct sim_coordinator *sim_standby(struct sim_cluster *cluster); // the one that is not active
bool sim_standby_took_over(struct sim_cluster *cluster);
void sim_standby_swap(struct sim_cluster *cluster);
void sim_standby_kill(struct sim_cluster *cluster); // the one that is not active; nothing when it is down

// Asks the coordinator every 10 ms until so many workers are ACTIVE, for at most 20 s.
bool sim_wait_active(struct sim_cluster *cluster, uint32_t n);

// Whether the tokens that the coordinator has kept of each worker are those that counting its layouts gives.
bool sim_tokens_counted(const struct sim_cluster *cluster);
// Likewise what tenants have in use of their quotas: sessions, room of chunks, steps and connections.
bool sim_quotas_counted(const struct sim_cluster *cluster);

// Waits until the call is done, at most 60 s of simulated time. Returns its code; COMMON_IN_PROGRESS: it is not.
enum common_code sim_wait(struct sim_call *call);

// Ends everything and asserts that every call of the client came to its end once.
void sim_cluster_free(struct sim_cluster *cluster);

#endif
