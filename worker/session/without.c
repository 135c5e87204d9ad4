// SPDX-License-Identifier: Apache-2.0
// A session's layout without some of its chunks.
#include <stdlib.h>

#include "worker/session/session.h"

enum common_code worker_session_without(struct worker_map *sessions, struct worker_store *store,
                                        struct worker_session *session, worker_session_drops_fn drops,
                                        const void *arg, struct common_error *err)
{
    Banyan__Pb__LayoutSetRequest request = BANYAN__PB__LAYOUT_SET_REQUEST__INIT;
    Banyan__Pb__LayoutChunk *chunks = malloc((session->n_chunks + 1) * sizeof *chunks),
                            **pointers = malloc((session->n_chunks + 1) * sizeof(*pointers));
    enum common_code code = COMMON_OK;
    if (!chunks || !pointers)
        code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for a layout");
    for (uint32_t i = 0; code == COMMON_OK && i < session->n_chunks; i++) {
        const struct worker_session_chunk *entry = &session->chunks[i];
        if (drops(arg, worker_chunk_id(entry->chunk)))
            continue;
        Banyan__Pb__LayoutChunk *chunk = &chunks[request.n_chunks];
        banyan__pb__layout_chunk__init(chunk);
        chunk->chunk = worker_chunk_id(entry->chunk);
        chunk->first = worker_chunk_first(entry->chunk);
        chunk->compute = entry->compute;
        chunk->incoming = entry->incoming;
        chunk->copy = entry->copy;
        pointers[request.n_chunks++] = chunk;
    }
    request.session = session->id;
    request.incarnation = session->incarnation;
    request.epoch = session->epoch;
    request.life = session->life;
    request.forgotten = 0; // as far as it is: a floor does not fall within an incarnation
    request.replace = true;
    request.chunks = pointers;
    if (code == COMMON_OK && request.n_chunks < session->n_chunks) {
        code = worker_session_layout(sessions, store, &request, err);
        if (session->n_chunks == request.n_chunks) // even if the files do not have this yet
            session->lacks = session->short_of_rows = true;
    }
    free(chunks);
    free(pointers);
    return code;
}
