// SPDX-License-Identifier: Apache-2.0
// A cluster whose daemons, links and disk are disturbed, from a seed. Between it and the clients stands a
// proxy (tests/harness/proxy.h); where there are namespaces (net.h) two of the four workers live on hosts of
// their own.
#ifndef TESTS_CHAOS_FAULTS_H
#define TESTS_CHAOS_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/chaos/load.h"
#include "tests/harness/cluster.h"

enum { FAULTS_WORKERS = 4 };

enum fault_class {
    FAULT_KILL_WORKER,      // SIGKILL, sometimes two of them, sometimes the coordinator with it; then again
    FAULT_RESTART_WORKER,   // SIGTERM, then again
    FAULT_STOP_WORKER,      // SIGSTOP, SIGCONT: shorter or longer than silence is taken for death
    FAULT_KILL_COORDINATOR, // SIGKILL, then again
    FAULT_STOP_COORDINATOR,
    FAULT_SUPERVISE, // it ends, stopped in the middle or not, and the next one is started at once
    FAULT_SLOW_DISK, // of the coordinator's store, and sometimes it ends meanwhile
    FAULT_RESET,     // links end with a reset
    FAULT_HALF_OPEN, // one end is reset and the other does not see it; or both stay, and nothing goes through
    FAULT_FULL_DISK, // of the coordinator's store
    FAULT_PARTITION, // of network namespaces
    FAULT_RESTART_ALL,
    FAULT_FLIPPED_BIT, // in a file of a worker's store, while it does not run
    FAULT_CUT_FILE,    // likewise
    FAULT_FULL_STORE,  // of a worker: its files cannot grow
    FAULT_CLASSES,
};
extern const char *const fault_names[FAULT_CLASSES];

struct faults;

struct faults_options {
    uint64_t seed;
    bool hosts;            // net_start has made them
    bool direct;           // no proxy: who dials a process that has ended is refused, as without one
    bool stores;           // workers keep what they hold in files: what is killed loses nothing
    const char *heartbeat; // NULL: the daemons' own
};
// Starts the cluster. Ends the program when it cannot.
struct faults *faults_start(const struct faults_options *options);
struct harness_cluster *faults_cluster(struct faults *faults);
// Where client number `client` finds the coordinator: some through the proxy, some not.
const char *faults_endpoint(struct faults *faults, int client);
bool faults_has(const struct faults *faults, enum fault_class which);

// Disturbs once, and sets right what it has done. A fault by which memory is lost waits first until all
// sessions have their copies, and of the others every second one. False: a daemon did not come back, or the
// sessions did not get whole; reported on stderr.
bool faults_make(struct faults *faults, struct load *load, enum fault_class which);
// Waits until all workers are there for the coordinator.
bool faults_over(struct faults *faults);
// Starts a daemon that has ended.
bool faults_start_again(struct faults *faults, uint32_t who);
uint64_t faults_draw(struct faults *faults, uint64_t n);
// Stops everything. The number of problems (harness_cluster_stop); `keep`: the logs stay.
int faults_stop(struct faults *faults, bool keep);

#endif
