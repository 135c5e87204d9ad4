// SPDX-License-Identifier: Apache-2.0
// A chunk whose rows this worker no longer has, because its file is damaged: nothing here names it any
// longer, so that the coordinator finds with its next visit that a holder is without its copy, as of a worker
// that comes back without it.
#include "worker/control/lose.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/failpoint.h"
#include "common/log/log.h"
#include "worker/core/state.h"

#define LOST_MAX 4096

static bool is_this(const void *arg, uint64_t id)
{
    return id == *(const uint64_t *)arg;
}

static bool is_lost(const void *arg, uint64_t id)
{
    const struct worker *worker = arg;
    uint32_t i = 0;
    while (i < worker->n_lost && worker->lost[i] != id)
        i++;
    return i < worker->n_lost;
}

// ---- what has been lost -------------------------------------------------------------------------

// The oldest is forgotten for one more than LOST_MAX, and the newest without memory for it: a layout may name the chunk
// once more then, and its steps are refused for their coverage.
static void remember(struct worker *worker, uint64_t id)
{
    if (worker->n_lost == LOST_MAX)
        memmove(worker->lost, worker->lost + 1, --worker->n_lost * sizeof *worker->lost);
    uint64_t *lost = realloc(worker->lost, (worker->n_lost + 1) * sizeof *lost);
    if (!lost)
        return;
    worker->lost = lost;
    worker->lost[worker->n_lost++] = id;
}

bool worker_names_lost(const struct worker *worker, const Banyan__Pb__LayoutSetRequest *body)
{
    for (uint32_t i = 0; i < worker->n_lost; i++)
        for (size_t k = 0; k < body->n_chunks; k++)
            if (body->chunks[k]->chunk == worker->lost[i] && !body->chunks[k]->incoming)
                return true;
    return false;
}

void worker_lost_comes(struct worker *worker, const Banyan__Pb__LayoutSetRequest *body)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < worker->n_lost; i++) {
        bool comes = false;
        for (size_t k = 0; k < body->n_chunks && !comes; k++)
            comes = body->chunks[k]->chunk == worker->lost[i];
        if (!comes)
            worker->lost[left++] = worker->lost[i];
    }
    worker->n_lost = left;
}

void worker_lose_chunk(void *arg, struct worker_chunk *chunk)
{
    struct worker *worker = arg;
    uint64_t id = worker_chunk_id(chunk), first = worker_chunk_first(chunk),
             last = first + worker_chunk_shape(chunk)->chunk_tokens - 1;
    size_t cursor = 0;
    void *value;
    worker_store_hold_back(chunk);
    remember(worker, id);
    worker_chunk_keep(chunk)->lost = false; // what fails now is tried again with its next use
    while (worker_map_next(&worker->sessions, &cursor, &value)) {
        struct worker_session *session = value;
        struct common_error err;
        if (!worker_session_chunk(session, id, first))
            continue;
        if (worker_session_without(&worker->sessions, worker->store, session, is_this, &id, &err) !=
            COMMON_OK) {
            common_log_error("a chunk without rows is still named session=%016" PRIx64 " chunk=%" PRIu64
                             ": %s",
                             session->id, id, err.message);
            session->lacks = session->short_of_rows = true;
            session->names_lost = worker_session_chunk(session, id, first) != NULL;
        } else {
            common_log_warn("a chunk's rows are gone: another holder's count session=%016" PRIx64
                            " chunk=%" PRIu64 " positions=%" PRIu64 "-%" PRIu64,
                            session->id, id, first, last);
        }
    }
    COMMON_FAILPOINT("cold_given_up");
    worker_store_let_go(worker->store, chunk);
}

bool worker_lose_again(struct worker *worker, struct worker_session *session)
{
    struct common_error err;
    if (!session->names_lost)
        return true;
    (void)worker_session_without(&worker->sessions, worker->store, session, is_lost, worker, &err);
    session->names_lost = false;
    for (uint32_t i = 0; i < session->n_chunks; i++)
        if (!session->chunks[i].incoming && is_lost(worker, worker_chunk_id(session->chunks[i].chunk)))
            session->names_lost = true;
    return !session->names_lost;
}
