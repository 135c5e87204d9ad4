// SPDX-License-Identifier: Apache-2.0
// The command line of banyan-worker and what it writes for scripts.
#ifndef WORKER_DAEMON_H
#define WORKER_DAEMON_H

#include "common/base/status.h"
#include "common/cli/daemon.h"
#include "worker/daemon/worker.h"
#include "worker/memory/place.h"
#include "worker/processors/device.h"
#include "worker/processors/engine.h"

struct worker_daemon_options {
    struct worker_config config;  // strings point into argv, the environment, or below
    struct common_daemon daemon;  // the caller's to end, after a failure too
    bool drain;                   // a signal: it is emptied first
    uint64_t drain_ns;            // for so long at most; 0: no limit
    struct worker_place *place;   // the caller's to free, after a failure too; NULL when there is none yet
    struct worker_device *device; // the caller's to close, likewise
    struct worker_engine *engine; // likewise, last
    char name[65], host[65];
    char no_device[PROTO_NO_DEVICE_MAX + 1]; // why `auto` came to nothing: worker/processors/device.h
};

// CANCELLED after --help or --version; INVALID_ARGUMENT for a wrong command line; other codes when the secret
// or the token cannot be had. Loads or makes the secret.
enum common_code worker_daemon_options_parse(int argc, char **argv, struct worker_daemon_options *out,
                                             struct common_error *err);

// After SIGHUP: reads the same command line and its --config again. What can change meanwhile does; a mistake changes
// nothing. With lines in the log.
void worker_daemon_reload(struct worker_daemon_options *options, struct worker *worker);

// One line of JSON with name, endpoints, pid and, if not NULL, the address of --http; complete or not at all.
enum common_code worker_daemon_write_ready(const char *path, const struct worker_config *config,
                                           const char *endpoint, const char *edge_endpoint, const char *http,
                                           struct common_error *err);

#endif
