// SPDX-License-Identifier: Apache-2.0
// What a daemon says of its health, in the form of Kubernetes' and etcd's checks: "ok", or why not; verbose:
// all checks, a line each, and the verdict.
#ifndef COMMON_HEALTH_H
#define COMMON_HEALTH_H

#include <stdbool.h>

#define COMMON_HEALTH_TEXT 512

struct common_health_check {
    const char *name;                   // NULL ends a table
    const char *(*fails)(void *daemon); // why; NULL: it passes
    bool warns;                         // it is told of where all are named (verbose), and fails nothing
};

// Whether all pass. `exclude`: a check's name, which counts as passed; NULL: none.
bool common_health_run(const struct common_health_check *checks, void *daemon, bool verbose,
                       const char *exclude, char text[COMMON_HEALTH_TEXT]);

#endif
