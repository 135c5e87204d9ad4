// SPDX-License-Identifier: Apache-2.0
#include "client/snapshot/failure.h"

#include "client/lib/core/error.h"
#include "client/snapshot/crew.h"

banyan_code snapshot_file_failure(const struct common_error *err, banyan_error *error)
{
    if (err->code == COMMON_RESOURCE_EXHAUSTED)
        return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "%s", err->message);
    // The file system's own reason is no defect of ours.
    banyan_code code = err->code == COMMON_INTERNAL ? BANYAN_UNAVAILABLE : (banyan_code)err->code;
    client_error_set(error, code, "%s", err->message);
    if (error)
        error->reason = BANYAN_REASON_FILE;
    return code;
}

banyan_code snapshot_no_memory(banyan_error *error)
{
    return client_error_set(error, BANYAN_RESOURCE_EXHAUSTED, "out of memory");
}

banyan_code snapshot_threads(uint32_t *threads, banyan_error *error)
{
    if (*threads > SNAPSHOT_THREADS_MAX)
        return client_error_set(error, BANYAN_INVALID_ARGUMENT, "%u threads: 1 to %d are allowed", *threads,
                                SNAPSHOT_THREADS_MAX);
    *threads = *threads ? *threads : SNAPSHOT_THREADS;
    return BANYAN_OK;
}
