// SPDX-License-Identifier: Apache-2.0
// Attached rows that are not committed are dropped after a time, and their memory is freed. Looked at with
// each heartbeat, so that no time counts in which the coordinator could not have taken a commit.
#include "worker/rows/expire.h"

#include "common/log/log.h"
#include "worker/core/state.h"

enum {
    CHUNKS_ROUND = 4096,  // looked at in a round
    ROWS_ROUND = 1 << 20, // of all layers, of chunks that have such rows: about 1 ms
    BEATS_SHARE = 8,      // a gap between two rounds counts as an eighth of the time to live at most
};

void worker_attach_touch(const struct worker *worker, struct worker_session *session, bool put)
{
    if (put || session->put_at_ns)
        session->put_at_ns = worker->attach_clock_ns;
}

// What is over in one session. true: all its chunks have been looked at.
static bool expire_session(struct worker *worker, struct worker_session *session, uint32_t *chunks,
                           uint64_t *rows)
{
    const struct worker_shape *shape = session->spec->shape;
    for (uint32_t i = worker_session_at(session, session->expire_from); i < session->n_chunks; i++) {
        struct worker_chunk *chunk = session->chunks[i].chunk;
        if (*chunks == 0 || *rows == 0) {
            session->expire_from = worker_chunk_first(chunk);
            return false;
        }
        --*chunks;
        if (!worker_chunk_has_put(chunk))
            continue;
        uint64_t looked = (uint64_t)shape->layers * shape->chunk_tokens;
        *rows -= looked < *rows ? looked : *rows;
        session->expired_rows += worker_store_expire(worker->store, chunk);
        session->expire_left = session->expire_left || worker_chunk_has_put(chunk);
    }
    if (session->expired_rows)
        common_log_warn("dropped attached rows that were not committed session=%016" PRIx64 " rows=%" PRIu64
                        ": attach them again, or raise --attach-ttl",
                        session->id, session->expired_rows);
    // Rows of a commit that is not over, or that are being read: another time.
    session->put_at_ns = session->expire_left ? worker->attach_clock_ns : 0;
    session->expire_from = session->expired_rows = 0;
    session->expire_left = false;
    return true;
}

void worker_attach_expire(struct worker *worker, uint64_t now_ns)
{
    uint64_t ttl_ns = worker->attach_ttl_ns, most_ns = ttl_ns / BEATS_SHARE + 1, rows = ROWS_ROUND;
    uint64_t passed_ns = worker->attach_seen_ns ? now_ns - worker->attach_seen_ns : 0;
    uint32_t chunks = CHUNKS_ROUND;
    size_t cursor = 0;
    void *session;
    if (!ttl_ns)
        return;
    worker->attach_seen_ns = now_ns;
    worker->attach_clock_ns += passed_ns < most_ns ? passed_ns : most_ns;
    while (worker_map_next(&worker->sessions, &cursor, &session)) {
        struct worker_session *s = session;
        bool over = s->put_at_ns && worker->attach_clock_ns - s->put_at_ns > ttl_ns;
        if (over && s->life == worker->life &&
            !expire_session(worker, s, &chunks, &rows)) // not in quarantine
            return;
    }
}
