// SPDX-License-Identifier: Apache-2.0
// Loadable modules (banyan-cuda.so, banyan-mpi.so, ...): where they are, and the symbol that they export.
#ifndef WORKER_MODULE_H
#define WORKER_MODULE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

// Where the module of that name lies: beside the program, in ../lib (a build's folders), or in banyan/ of the
// library folder that the program was installed with. False: in none of them.
bool worker_module_find(const char *name, char *out, size_t cap);

// Opens a module and finds its symbol. It is never closed: its threads may outlive what was made with it.
// FAILED_PRECONDITION with the reason.
enum common_code worker_module_open(const char *path, const char *symbol, const void **out,
                                    struct common_error *err);

#endif
