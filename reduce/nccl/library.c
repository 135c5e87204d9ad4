// SPDX-License-Identifier: Apache-2.0
#include "reduce/nccl/library.h"

#include <dlfcn.h>
#include <stdlib.h>

#define OLDEST 21800 // non-blocking communicators with a configuration

struct nccl_library nccl;
static void *library; // never closed: its threads may outlive us

enum common_code nccl_library_open(struct common_error *err)
{
    const char *path = getenv("BANYAN_NCCL_LIBRARY");
    if (!path || !*path)
        path = "libnccl.so.2";
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "NCCL was not found (%s): install libnccl2, or name the file in "
                                "BANYAN_NCCL_LIBRARY",
                                dlerror());
#define X(name, result, parameters)                                                                          \
    *(void **)&nccl.name = dlsym(library, "nccl" #name);                                                     \
    if (!nccl.name)                                                                                          \
        return common_error_set(err, COMMON_FAILED_PRECONDITION, "%s has no nccl" #name ": it is too old",   \
                                path);
    NCCL_FUNCTIONS(X)
#undef X
    if (nccl.GetVersion(&nccl.version) != ncclSuccess || nccl.version < OLDEST)
        return common_error_set(err, COMMON_FAILED_PRECONDITION, "%s is NCCL %d: 2.18 or later is needed",
                                path, nccl.version);
    return COMMON_OK;
}
