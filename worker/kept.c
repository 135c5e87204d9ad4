// SPDX-License-Identifier: Apache-2.0
#include "worker/kept.h"

#include <stdlib.h>

#include "worker/disk/disk.h"
#include "worker/state.h"

struct kept { // an answer that waits
    struct worker *worker;
    struct proto_request *request;
    uint64_t session;
    worker_kept_fn answer;
    void *arg;
    struct worker_disk_wait wait;
};

static void kept_done(void *arg)
{
    struct kept *k = arg;
    struct worker *worker = k->worker;
    struct common_error err;
    const struct worker_session *session = worker_map_get(&worker->sessions, k->session);
    bool took = !session || worker_disk_took(worker->disk, session, &k->wait, &err) == COMMON_OK;
    worker->n_prepares--;
    k->answer(k->arg, k->request, took ? NULL : &err);
    free(k);
    worker_hand_emptied(worker);
}

void worker_kept_answer(struct worker *worker, struct proto_request *request, uint64_t session,
                        worker_kept_fn answer, void *arg)
{
    struct common_error err;
    struct kept *k = malloc(sizeof *k);
    if (!k) {
        common_error_set(&err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for an answer");
        answer(arg, request, &err);
        return;
    }
    *k =
        (struct kept){.worker = worker, .request = request, .session = session, .answer = answer, .arg = arg};
    if (worker_disk_wait(worker->disk, &k->wait, kept_done, k)) {
        worker->n_prepares++;
        return;
    }
    free(k);
    answer(arg, request, NULL);
}
