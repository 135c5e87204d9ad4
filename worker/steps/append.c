// SPDX-License-Identifier: Apache-2.0
#include "worker/steps/append.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/base/failpoint.h"
#include "worker/core/state.h"
#include "worker/disk/disk.h"

static bool holds(const struct proto_append_run *run, uint32_t rank)
{
    for (uint32_t i = 0; i < run->n_holders; i++)
        if (run->holders[i] == rank)
            return true;
    return false;
}

// The rows that are stored here, as pieces. Returns a code, the reason in *reason.
static enum common_code append_pieces(struct worker *worker, const struct proto_step *step, uint32_t rank,
                                      const struct worker_session *session,
                                      const struct proto_step_item *item, struct worker_rows *pieces,
                                      uint32_t *n, const char **reason, struct common_error *err)
{
    const struct worker_shape *shape = session->spec->shape;
    size_t k_row = item->k_bytes / item->append_rows, v_row = item->v_bytes / item->append_rows;
    uint64_t at = item->first;
    *n = 0;
    for (uint32_t i = 0; i < item->n_append; i++) {
        const struct proto_append_run *run = &step->appends[item->append_first + i];
        if (run->first != at || run->rows == 0 || run->rows > item->first + item->append_rows - at)
            return common_error_set(err, COMMON_INVALID_ARGUMENT,
                                    "appended runs must follow each other inside the item");
        at += run->rows;
        if (!holds(run, rank))
            continue;
        if (item->k_bytes == 0)
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "the frame has no k and v for a holder");
        struct worker_chunk *chunk = worker_store_find(worker->store, run->chunk);
        if (!chunk || !worker_session_chunk(session, run->chunk, worker_chunk_first(chunk))) {
            *reason = "COVERAGE";
            return common_error_set(err, COMMON_DATA_LOSS, "chunk %" PRIu64 " is not held here", run->chunk);
        }
        uint64_t first = worker_chunk_first(chunk);
        if (run->first < first || run->first - first >= shape->chunk_tokens ||
            run->rows > shape->chunk_tokens - (run->first - first))
            return common_error_set(err, COMMON_INVALID_ARGUMENT, "an appended run leaves its chunk");
        pieces[(*n)++] =
            (struct worker_rows){.chunk = chunk,
                                 .layer = item->layer,
                                 .row = (uint32_t)(run->first - first),
                                 .count = run->rows,
                                 .k = step->k + item->k_offset + (run->first - item->first) * k_row,
                                 .v = step->v + item->v_offset + (run->first - item->first) * v_row};
    }
    if (item->n_append > 0 && at != item->first + item->append_rows)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "appended runs must cover the item's rows");
    return COMMON_OK;
}

// Rows that are no longer asked for are not written again.
static bool any_forgotten(const struct worker_rows *pieces, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (worker_chunk_forgotten(pieces[i].chunk, pieces[i].layer))
            return true;
    return false;
}

static enum common_code store_rows(struct worker_store *store, const struct worker_rows *pieces, uint32_t n,
                                   const char **reason, struct common_error *err)
{
    enum common_code code = worker_store_write(store, pieces, n, WORKER_ROW_APPENDED, UINT64_MAX, err);
    if (code == COMMON_RESOURCE_EXHAUSTED)
        *reason = "FULL";
    return code;
}

enum common_code worker_append_rows(struct worker *worker, const struct proto_step *step, uint32_t rank,
                                    struct worker_session *session, const struct proto_step_item *item,
                                    uint32_t *appends, const char **reason, struct common_error *err)
{
    if (item->write == 0)
        return common_error_set(err, COMMON_INVALID_ARGUMENT, "an append needs a write sequence");
    struct worker_rows *pieces = calloc(item->n_append, sizeof *pieces);
    if (!pieces)
        return common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "the system has no memory for an append");
    uint32_t n;
    uint64_t end = item->first + item->append_rows;
    end = item->write_end > end ? item->write_end : end;
    bool older = step->term < session->write_term ||
                 (step->term == session->write_term && item->write < session->write) ||
                 item->write <= session->writes_over;
    enum common_code code = append_pieces(worker, step, rank, session, item, pieces, &n, reason, err);
    if (code == COMMON_OK && older) {
        if (!worker_store_same(worker->store, pieces, n)) {
            *reason = "OLD_WRITE";
            code = common_error_set(err, COMMON_ABORTED, "write %" PRIu64 " was overtaken by write %" PRIu64,
                                    item->write,
                                    session->writes_over > session->write ? session->writes_over
                                                                          : session->write);
        }
    } else if (code == COMMON_OK) {
        session->write_term = step->term;
        session->write = item->write;
        worker_appended_begin(session, item->layer, item->write);
        if (COMMON_FAILPOINT_FAILS("append_refused"))
            code = common_error_set(err, COMMON_RESOURCE_EXHAUSTED, "a failpoint refuses this append");
        if (code == COMMON_OK && n > 0)
            code = worker_disk_append(worker->disk, session, item->layer, item->write, end, err);
        if (code == COMMON_OK)
            code = store_rows(worker->store, pieces, n, reason, err);
        if (code == COMMON_FAILED_PRECONDITION && any_forgotten(pieces, n))
            *reason = "FORGOTTEN";
        COMMON_FAILPOINT("append_written");
        if (code == COMMON_OK && n > 0)
            worker_appended_stored(session, item->layer, item->write, end);
        else if (code == COMMON_FAILED_PRECONDITION || code == COMMON_RESOURCE_EXHAUSTED)
            worker_appended_settle(session, item->layer, item->write); // not all of it was ever stored here
    }
    for (uint32_t i = 0; code == COMMON_OK && i < n; i++)
        *appends += pieces[i].count;
    free(pieces);
    return code;
}
