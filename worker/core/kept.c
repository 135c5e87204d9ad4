// SPDX-License-Identifier: Apache-2.0
#include "worker/core/kept.h"

#include <stdlib.h>

#include "worker/core/state.h"
#include "worker/disk/disk.h"

struct kept { // an answer that waits
    struct worker *worker;
    struct proto_request *request;
    uint64_t session, first, count; // session 0: all
    bool layout;
    worker_kept_fn answer;
    void *arg;
    struct worker_disk_wait wait;
};

struct held { // a request that waits
    struct worker *worker;
    struct proto_request *request;
    void (*handle)(void *worker, struct proto_request *request);
    struct worker_disk_wait wait;
};

// ---- answers ------------------------------------------------------------------------------------

static enum common_code took(const struct kept *k, struct common_error *err)
{
    const struct worker_session *session = worker_map_get(&k->worker->sessions, k->session);
    if (!session) // of all, or dropped meanwhile
        return worker_disk_waited(k->worker->disk, &k->wait) || k->session
                   ? COMMON_OK
                   : common_error_set(err, COMMON_UNAVAILABLE, "the worker is leaving");
    return k->layout ? worker_disk_took_layout(k->worker->disk, session, &k->wait, err)
                     : worker_disk_took(k->worker->disk, session, k->first, k->count, &k->wait, err);
}

static void kept_done(void *arg)
{
    struct kept *k = arg;
    struct worker *worker = k->worker;
    struct common_error err;
    bool kept = took(k, &err) == COMMON_OK;
    worker->n_prepares--;
    k->answer(k->arg, k->request, kept ? NULL : &err);
    free(k);
    worker_hand_emptied(worker);
}

static void keep(const struct kept *like)
{
    struct common_error err;
    struct kept *k = malloc(sizeof *k);
    if (!k) {
        common_error_set(&err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for an answer");
        like->answer(like->arg, like->request, &err);
        return;
    }
    *k = *like;
    if (worker_disk_wait(k->worker->disk, &k->wait, kept_done, k)) {
        k->worker->n_prepares++;
        return;
    }
    free(k);
    like->answer(like->arg, like->request, NULL);
}

void worker_kept_answer(struct worker *worker, struct proto_request *request, uint64_t session,
                        uint64_t first, uint64_t count, worker_kept_fn answer, void *arg)
{
    keep(&(struct kept){.worker = worker,
                        .request = request,
                        .session = session,
                        .first = first,
                        .count = count,
                        .answer = answer,
                        .arg = arg});
}

void worker_kept_all(struct worker *worker, struct proto_request *request, worker_kept_fn answer, void *arg)
{
    keep(&(struct kept){.worker = worker, .request = request, .answer = answer, .arg = arg});
}

void worker_kept_layout(struct worker *worker, struct proto_request *request, uint64_t session,
                        worker_kept_fn answer, void *arg)
{
    keep(&(struct kept){.worker = worker,
                        .request = request,
                        .session = session,
                        .layout = true,
                        .answer = answer,
                        .arg = arg});
}

// ---- requests -----------------------------------------------------------------------------------

static void held_done(void *arg)
{
    struct held *h = arg;
    struct worker *worker = h->worker;
    bool leaving = !worker_disk_waited(worker->disk, &h->wait);
    worker->n_prepares--;
    if (leaving)
        proto_request_fail(h->request, COMMON_UNAVAILABLE, "the worker is leaving", NULL, 0);
    else if (proto_request_over(h->request))
        proto_request_fail(h->request, COMMON_CANCELLED, "the deadline passed before the call was started",
                           NULL, 0);
    else
        h->handle(worker, h->request);
    free(h);
    worker_hand_emptied(worker);
}

bool worker_kept_crowded(struct worker *worker, struct proto_request *request,
                         void (*handle)(void *worker, struct proto_request *request))
{
    struct held *h = worker_disk_crowded(worker->disk) ? malloc(sizeof *h) : NULL;
    if (!h)
        return false;
    *h = (struct held){.worker = worker, .request = request, .handle = handle};
    if (worker_disk_wait(worker->disk, &h->wait, held_done, h)) {
        worker->n_prepares++;
        return true;
    }
    free(h);
    return false;
}
