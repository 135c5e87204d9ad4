// SPDX-License-Identifier: Apache-2.0
// The name of a worker without --name: HOST-0, or HOST-1 where a
// worker of this user and coordinator has that on this machine already. So a worker that is started again
// has the name that it had.
#ifndef WORKER_DEFAULT_NAME_H
#define WORKER_DEFAULT_NAME_H

#include <stddef.h>

// The name is this process's until it ends, or until the next call.
void worker_default_name(const char *host, const char *coordinator, char *out, size_t bytes);

#endif
