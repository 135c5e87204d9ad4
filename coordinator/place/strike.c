// SPDX-License-Identifier: Apache-2.0
#include "coordinator/place/strike.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/log/log.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/cluster/worker.h"
#include "coordinator/session/sessions.h"
#include "coordinator/store/store.h"
#include "proto/banyan.pb-c.h"
#include "proto/rpc/rpc.h"

struct strike {
    struct coordinator_sessions *sessions;
    struct proto_request *request; // NULL: the worker itself said that it ends
    struct coordinator_worker *w;  // its record stays: a visitor
};

// Why it is still needed, for people; false: it is not.
static bool is_needed(const struct coordinator_worker *w, char *why, size_t len)
{
    if (!coordinator_worker_gone(w))
        snprintf(why, len, "%s is %s: drain it first, then stop it", w->name,
                 coordinator_worker_state_name(w->state));
    else if (w->chunks)
        snprintf(why, len,
                 "%" PRIu64 " chunks of %u sessions have their only copy on %s: start it again, or truncate "
                 "or delete these sessions first. A lost worker's chunks that have other copies "
                 "are released on their own, soon after the loss",
                 w->chunks, w->members, w->name);
    else if (w->quarantine.n)
        snprintf(why, len,
                 "%s holds %u sessions in quarantine: start it again and see 'banyanctl quarantine'", w->name,
                 w->quarantine.n);
    else if (w->members || !coordinator_worker_idle(w))
        snprintf(why, len,
                 "%u sessions still count %s as one of their workers, or are releasing it: try again soon",
                 w->members, w->name);
    else
        return false;
    return true;
}

static void strike_stored(void *arg, enum common_code code, const char *text)
{
    struct strike *s = arg;
    struct coordinator_worker *w = s->w;
    struct proto_request *request = s->request;
    char why[400];
    free(s);
    w->visitors--;
    if (code != COMMON_OK) { // one that has ended stays on the list, for an operator
        if (request)
            proto_request_fail_why(request, code, coordinator_store_reason(code), text);
        return;
    }
    w->stored_instance = 0; // when it has come back meanwhile, the store is told again
    if (is_needed(w, why, sizeof(why))) {
        if (request)
            proto_request_fail(request, COMMON_ABORTED, why, NULL, 0);
        return;
    }
    coordinator_worker_tell(w, WORKER_FORGOTTEN, INFO, "a worker was forgotten worker=%s", w->name);
    coordinator_worker_strike(w);
    if (!request)
        return;
    const Banyan__Pb__WorkerForgetReply m = BANYAN__PB__WORKER_FORGET_REPLY__INIT;
    proto_request_reply(request, &m.base, NULL, 0, NULL, NULL);
}

static void strike_begin(struct coordinator_sessions *sessions, struct coordinator_worker *w,
                         struct proto_request *request)
{
    struct strike *s = coordinator_alloc(sizeof(*s));
    *s = (struct strike){.sessions = sessions, .request = request, .w = w};
    w->visitors++;
    struct coordinator_batch *batch = coordinator_batch_new();
    coordinator_batch_worker_drop(batch, w->name);
    coordinator_store_submit(sessions->store, batch, strike_stored, s);
}

void coordinator_strikes_tick(struct coordinator_sessions *sessions)
{
    const struct coordinator_cluster *cluster = sessions->cluster;
    for (uint32_t i = 0; i < cluster->n_workers; i++) {
        struct coordinator_worker *w = cluster->workers[i];
        if (!w || !w->farewell || w->drain_ordered || !coordinator_worker_idle(w))
            continue;
        w->farewell = false; // once: what the store refuses is left to an operator
        strike_begin(sessions, w, NULL);
    }
}

void coordinator_handle_worker_forget(void *arg, struct proto_request *request)
{
    struct coordinator_sessions *sessions = arg;
    const Banyan__Pb__WorkerForgetRequest *m = (const void *)proto_request_message(request)->body;
    struct coordinator_worker *w = coordinator_worker_find(sessions->cluster, m->worker);
    char why[400];
    if (!w) {
        proto_request_fail_why(request, COMMON_NOT_FOUND, PROTO_REASON_UNKNOWN_WORKER,
                               "there is no worker with this name");
        return;
    }
    if (is_needed(w, why, sizeof(why))) {
        proto_request_fail(request, COMMON_FAILED_PRECONDITION, why, NULL, 0);
        return;
    }
    strike_begin(sessions, w, request);
}
