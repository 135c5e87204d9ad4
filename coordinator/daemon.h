// SPDX-License-Identifier: Apache-2.0
// The coordinator's command line, configuration and ready file.
#ifndef COORDINATOR_DAEMON_H
#define COORDINATOR_DAEMON_H

#include "common/cli/daemon.h"
#include "coordinator/coordinator.h"
#include "proto/model/limits.h"

#define COORDINATOR_LISTEN_MAX PROTO_LISTEN_MAX

struct coordinator_daemon_options {
    struct coordinator_options config;
    struct common_daemon daemon;
    const char *restore; // a backup's file: the process makes a store of it, and ends; NULL: it serves
    // What config points into.
    const char *endpoints[COORDINATOR_LISTEN_MAX + 1];
    char *listen, *store;
};

// COMMON_CANCELLED after --help and --version; INVALID_ARGUMENT for a mistake on the command line; another
// code when a file is refused.
enum common_code coordinator_daemon_options_parse(int argc, char **argv,
                                                  struct coordinator_daemon_options *out,
                                                  struct common_error *err);
// After SIGHUP: reads the same command line and its --config again. What can change meanwhile does; a mistake changes
// nothing. With lines in the log.
void coordinator_daemon_reload(struct coordinator_daemon_options *options, struct coordinator *c);
void coordinator_daemon_options_free(struct coordinator_daemon_options *options);

// One line of JSON: {"endpoints": [...], "pid": n, "http": address, where it is not NULL}. Appears whole or not at all.
enum common_code coordinator_daemon_write_ready(const char *path, const struct coordinator *c,
                                                const char *http, struct common_error *err);

#endif
