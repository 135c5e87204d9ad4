// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/quarantine.h"

#include <stdlib.h>

void coordinator_quarantine_add(struct coordinator_quarantine *list,
                                const struct coordinator_quarantined *entry)
{
    if (!list->n || list->entries[list->n - 1].session != entry->session) {
        if (!(list->n & (list->n + 1))) { // full: as many as a power of two, less one
            list->entries = realloc(list->entries, (list->n + 1) * 2 * sizeof(*list->entries));
            if (!list->entries)
                abort();
        }
        list->n++;
    }
    list->entries[list->n - 1] = *entry;
}

static int by_session(const void *key, const void *entry)
{
    uint64_t session = *(const uint64_t *)key,
             other = ((const struct coordinator_quarantined *)entry)->session;
    return session < other ? -1 : session > other;
}

bool coordinator_quarantine_has(const struct coordinator_quarantine *list, uint64_t session)
{
    return list->n && bsearch(&session, list->entries, list->n, sizeof(*list->entries), by_session);
}

void coordinator_quarantine_fini(struct coordinator_quarantine *list)
{
    free(list->entries);
    *list = (struct coordinator_quarantine){0};
}

uint64_t coordinator_quarantine_bytes(const struct coordinator_quarantine *list)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < list->n; i++)
        bytes += list->entries[i].bytes;
    return bytes;
}
