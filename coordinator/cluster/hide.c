// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/hide.h"

#include <string.h>

void coordinator_name_workers(char *text, size_t bytes, const char *const *names, size_t n)
{
    size_t used = strlen(text), start = used;
    for (size_t i = 0; i < n; i++) {
        const char *before = used > start ? ", " : n > 1 ? " (workers " : " (worker ";
        size_t lead = strlen(before), len = strlen(names[i]);
        if (len == 0 || used + lead + len + 2 > bytes) // its end and a parenthesis must fit
            continue;
        memcpy(text + used, before, lead);
        memcpy(text + used + lead, names[i], len);
        used += lead + len;
    }
    if (used > start)
        memcpy(text + used, ")", 2);
}

void coordinator_status_for(bool shows_workers, struct proto_status *status)
{
    const char *names[PROTO_STATUS_WORKERS];
    if (!shows_workers)
        status->n_workers = 0;
    for (uint32_t i = 0; i < status->n_workers; i++)
        names[i] = status->workers[i];
    coordinator_name_workers(status->message, sizeof(status->message), names, status->n_workers);
}
