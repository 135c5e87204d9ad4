// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sync/restored.h"

#include <stdio.h>
#include <string.h>

#include "common/log/log.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/session.h"

void coordinator_restored_withhold(struct coordinator_sessions *sessions)
{
    if (!coordinator_store_restored(sessions->store))
        return;
    sessions->restored = true;
    for (uint32_t i = 0; i < sessions->n_slots; i++) {
        struct coordinator_session *s = sessions->slots[i];
        if (!s)
            continue;
        s->restored = true;
        s->withheld++;
        coordinator_session_recount(s);
    }
    coordinator_tell(sessions->core, BACKUP_RESTORED, WARN,
                     "the store was restored from a backup: its sessions are not served until all workers "
                     "are back and an operator runs 'banyanctl accept' sessions=%u",
                     sessions->n);
}

enum common_code coordinator_restored_check(const struct coordinator_sessions *sessions, bool without_absent,
                                            struct common_error *err)
{
    char names[160] = "";
    uint32_t n = 0;
    if (!sessions->restored)
        return common_error_set(err, COMMON_FAILED_PRECONDITION,
                                "the store was not restored from a backup, or has already been accepted");
    for (uint32_t i = 0; i < sessions->cluster->n_workers; i++) {
        const struct coordinator_worker *w = sessions->cluster->workers[i];
        if (!w || coordinator_worker_active(w) || (!w->chunks && !w->members))
            continue; // one that held nothing has nothing newer of these sessions
        size_t used = strlen(names);
        if (used + strlen(w->name) + 8 < sizeof names)
            snprintf(names + used, sizeof names - used, "%s%s", n ? ", " : "", w->name);
        else if (used + 4 < sizeof names && names[used - 1] != '.')
            memcpy(names + used, "...", 4);
        n++;
    }
    if (!n || without_absent)
        return COMMON_OK;
    return common_error_set(
        err, COMMON_FAILED_PRECONDITION,
        "%u workers that hold chunks of the backup's sessions are not connected: %s. Start them, or confirm "
        "with --without-absent that they are gone for good",
        n, names);
}

void coordinator_restored_accept(struct coordinator_sessions *sessions, coordinator_store_fn done, void *arg)
{
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_accept(batch);
    coordinator_store_submit(sessions->store, batch, done, arg);
}

uint64_t coordinator_restored_serve(struct coordinator_sessions *sessions)
{
    uint64_t n = 0;
    sessions->restored = false;
    for (uint32_t i = 0; i < sessions->n_slots; i++) {
        struct coordinator_session *s = sessions->slots[i];
        if (!s || !s->restored)
            continue;
        s->restored = false;
        s->withheld--;
        n += s->withheld == 0;
        coordinator_session_recount(s);
        coordinator_session_settle(s);
    }
    coordinator_tell(sessions->core, BACKUP_ACCEPTED, WARN,
                     "a store restored from a backup was accepted on an operator's request sessions=%llu",
                     (unsigned long long)n);
    return n;
}
