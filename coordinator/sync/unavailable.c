// SPDX-License-Identifier: Apache-2.0
#include "coordinator/sync/unavailable.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/cluster/worker.h"
#include "coordinator/sync/named.h"
#include "coordinator/sync/repair.h"
#include "coordinator/sync/returned.h"
#include "proto/model/spec.h"

static void name_holders(const struct coordinator_chunk *chunk, struct proto_status *status)
{
    for (uint32_t i = 0; i < coordinator_chunk_copies(chunk); i++) {
        const char *name = coordinator_chunk_holder(chunk, i)->name;
        bool named = false;
        for (uint32_t n = 0; n < status->n_workers; n++)
            named = named || !strcmp(status->workers[n], name);
        if (!named)
            proto_status_add_worker(status, name);
    }
}

enum common_code coordinator_session_missing(struct coordinator_session *s, uint64_t first, uint64_t count,
                                             uint32_t layer, struct proto_status *status)
{
    uint32_t ct = s->layout.chunk_tokens;
    uint64_t end = first + count, from = 0, to = 0; // the missing range that is being put together
    bool lost = false;
    if (!coordinator_session_has_missing(s))
        return COMMON_OK;
    if (s->restored || s->withheld) {
        if (s->restored)
            proto_status_set(status, COMMON_UNAVAILABLE, PROTO_REASON_RESTORED,
                             "the coordinator's store was restored from a backup, and no operator has "
                             "confirmed yet that all workers are back (banyanctl accept)");
        else
            proto_status_set(
                status, COMMON_UNAVAILABLE, PROTO_REASON_QUARANTINE,
                "workers hold a newer state of this session than the coordinator's store has: start the "
                "coordinator on the store that has it, or discard that state (banyanctl quarantine)");
        status->session = s->id;
        status->layer = layer;
        return status->code;
    }
    if (s->broken)
        return coordinator_repairs_status(s, layer, status);
    proto_status_set(status, COMMON_UNAVAILABLE, PROTO_REASON_MISSING_RANGE,
                     "tokens of this session are on workers that are not connected");
    for (uint32_t i = coordinator_layout_lower(&s->layout, first / ct); i < s->layout.n; i++) {
        const struct coordinator_chunk *chunk = &s->layout.chunks[i];
        uint64_t start = (uint64_t)chunk->index * ct, stop = start + ct;
        if (start >= end)
            break;
        if (coordinator_session_chunk_usable(chunk))
            continue;
        lost = lost || (chunk->lost && !coordinator_returned_holder(s, chunk)); // regain.h
        start = start < first ? first : start;
        stop = stop > end ? end : stop;
        name_holders(chunk, status);
        if (to && to != start) {
            proto_status_add_range(status, from, to - from);
            from = start;
        } else if (!to) {
            from = start;
        }
        to = stop;
    }
    if (!to) {
        status->code = COMMON_OK;
        return COMMON_OK;
    }
    proto_status_add_range(status, from, to - from);
    status->session = s->id;
    status->layer = layer;
    const struct proto_range *r = &status->ranges[0];
    status->code = lost ? COMMON_DATA_LOSS : COMMON_UNAVAILABLE;
    snprintf(status->message, sizeof(status->message), "%s tokens [%" PRIu64 ", %" PRIu64 ")%s: %s",
             lost ? "no worker holds" : "no reachable worker holds", r->first, r->first + r->count,
             status->n_ranges > 1 ? " and more" : "",
             lost ? "truncate the session before them, or delete it"
                  : "try again when those that have them are back");
    return status->code;
}

enum common_code coordinator_session_unsettled(struct coordinator_session *s, uint64_t length, uint64_t most,
                                               uint32_t layer, struct proto_status *status)
{
    uint64_t ct = s->layout.chunk_tokens, from = coordinator_session_named_from(s, layer, length), end = most;
    (void)coordinator_session_has_missing(s); // counts, where the counts are old
    // An append may lie over several chunks, and counts as a whole: all that are not known decide about its first row.
    for (uint32_t i = s->unknown ? s->layout.n : 0; i > 0; i--) {
        const struct coordinator_chunk *chunk = &s->layout.chunks[i - 1];
        if (!chunk->known && (chunk->index + 1) * ct > end) {
            end = (chunk->index + 1) * ct;
            break;
        }
    }
    end = end > length ? end : length;
    return end > from ? coordinator_session_missing(s, from, end - from, layer, status) : COMMON_OK;
}

enum common_code coordinator_session_unsettled_any(struct coordinator_session *s, uint64_t most,
                                                   struct proto_status *status)
{
    enum common_code code = COMMON_OK;
    for (uint32_t l = 0; l < s->spec->layers && code == COMMON_OK; l++) {
        uint64_t length = coordinator_session_layer_length(s, l);
        if (proto_spec_stores(s->spec, l) && length < most)
            code = coordinator_session_unsettled(s, length, most, l, status);
    }
    return code;
}
